"""FEATURES, STATUS and QUEUES, which peers announce about themselves."""

from __future__ import annotations

import json

import pytest

from eventmq.errors import ProtocolError
from eventmq.wire.features import EXTENSIONS, Features, Status, format_queues, parse_queues


def test_a_worker_shows_its_description() -> None:
    """INFORM: session id, known tasks, allowed callables, held chunks."""
    features = Features(
        session="0a", name="host:7", tasks=("shop.add", "a+b,c"), callables=("jobs.*",),
        pool="threads", slots=8, version="1.0+a", received=12, held=(11, 12),
    )  # fmt: skip
    text = (
        "session,batch,chunk,outcome,call,cancel,error,graph,stream,inputs,ended,late-ack,owner,logs,"
        "session:0a,name:host%3A7,pool:threads,version:1.0%2Ba,tasks:shop.add+a%2Bb%2Cc,"
        "callables:jobs.*,slots:8,received:12,held:11+12"
    )
    assert features.format() == text
    assert Features.parse(text) == features


def test_a_broker_says_what_it_is() -> None:
    """ACK: broker epoch, store id, max-frame, publish address."""
    features = Features(epoch=3, store="ab12", max_frame=1 << 24, publish="tcp://127.0.0.1:47299")
    text = (
        "session,batch,chunk,outcome,call,cancel,error,graph,stream,inputs,ended,late-ack,owner,logs,"
        "store:ab12,publish:tcp%3A//127.0.0.1%3A47299,epoch:3,max-frame:16777216"
    )
    assert features.format() == text
    assert Features.parse(text) == features


def test_unknown_names_are_passed_over() -> None:
    """Newer peers may send more than this one understands."""
    assert Features.parse("error, teleport,x:1,,") == Features(extensions=("error",))
    assert Features.parse("") == Features(extensions=())


def test_extensions_are_in_the_order_of_the_page() -> None:
    assert Features.parse(",".join(reversed(EXTENSIONS))).extensions == EXTENSIONS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("received:x", "received is 'x'; allowed are whole numbers joined by +"),
        ("received:1+2", "received is one number, not '1+2'"),
        ("held:1+-2", "held is '1+-2'; allowed are whole numbers joined by +"),
        ("held:+", "held is '+'; allowed are whole numbers joined by +"),
        ("epoch:\u00b2", "epoch is '\u00b2'; allowed are whole numbers joined by +"),
        ("held:" + "9" * 16, f"held is '{'9' * 16}'; allowed are whole numbers joined by +"),
    ],
)  # fmt: skip
def test_a_number_that_is_none_is_refused(text: str, message: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        Features.parse(text)
    assert (caught.value.code, str(caught.value)) == ("bad-features", message)


def test_a_status_says_what_is_held_and_wanted() -> None:
    """Absolute values, never deltas."""
    status = Status(received=9, window=4, held=(7, 9))
    assert status.format() == "received:9,window:4,held:7+9"
    assert Status.parse(status.format()) == status
    assert Status.parse("held:,received:0,window:1") == Status(0, 1, ())
    shared = Status(received=9, window=4, held=(), jobs=1200)
    assert shared.format() == "received:9,window:4,held:,jobs:1200"
    assert Status.parse(shared.format()) == shared
    measured = Status(received=9, window=4, held=(7,), rss=52_428_800)
    assert measured.format() == "received:9,window:4,held:7,rss:52428800"
    assert Status.parse(measured.format()) == measured


def test_a_status_that_is_none_is_refused() -> None:
    with pytest.raises(ProtocolError) as caught:
        Status.parse("window:many")
    assert caught.value.code == "bad-features"


@pytest.mark.parametrize(
    ("text", "queues"),
    [
        ("", ()),
        (" ", ()),
        ("[]", ()),
        ('[[10, "default"]]', ((10, "default"),)),
        ('[[10, "a"], [20, "b"]]', ((10, "a"), (20, "b"))),
        ("[40, 'email']", ((40, "email"),)),
        ('[40, "email"]', ((40, "email"),)),
        ("[40, 'email'], [10, 'default']", ((40, "email"), (10, "default"))),
        ("[[10, '\u2603']]", ((10, "\u2603"),)),
    ],
)
def test_queues_are_read_as_the_document_and_as_deployed_software_write_them(
    text: str, queues: tuple[tuple[int, str], ...]
) -> None:
    """JSON pairs, or the arrays of the document."""
    assert parse_queues(text) == queues


def test_queues_are_written_as_json() -> None:
    text = format_queues(((10, "default"), (20, "b")))
    assert json.loads(text) == [[10, "default"], [20, "b"]]
    assert format_queues(()) == "[]"


@pytest.mark.parametrize(
    "text",
    [
        "[[10,", "default", "7", "null", "{}", '[["default", 10]]', '[[0, "a"]]', '[[-1, "a"]]',
        '[[10, ""]]', '[[10, "a", 3]]', '[[true, "a"]]', "[[1.5, 'a']]", "[[10, 'a'], 7]",
        '[[10, "\\ud800"]]', '[[10, "a\\u0000"]]', '[[2147483648, "a"]]', "[" * 100_000,
        "9" * 10_000, "[[[[]]]]",
        f'[[{"1" * 5000}, "a"]]',
    ],
)  # fmt: skip
def test_queues_that_are_none_are_refused(text: str) -> None:
    """Also lone surrogates, which JSON allows and a frame cannot have."""
    with pytest.raises(ProtocolError) as caught:
        parse_queues(text)
    assert caught.value.code == "bad-queues"
    assert str(caught.value) == (
        f'QUEUES is {text[:80]!r}; allowed is JSON [[weight, "name"], ...], weights from 1'
    )
