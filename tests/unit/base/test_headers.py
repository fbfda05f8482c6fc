"""The header field: csv text to typed headers and back."""

from __future__ import annotations

from dataclasses import fields
from urllib.parse import quote

import pytest

from eventmq.errors import ProtocolError
from eventmq.headers import EMPTY, Headers, format_headers, parse_headers, write_headers

#: The published ones, and what deployed software adds.
DOCUMENT = ("reply-requested", "retry-count", "timeout", "guarantee", "nohaste")
DEPLOYED = ("run_count",)

#: Text, and the one field that it sets.
FORMS = [
    ("reply-requested", {"reply_requested": True}),
    ("retry-count:3", {"retry_count": 3}),
    ("timeout:5", {"timeout": 5.0}),
    ("timeout:0.25", {"timeout": 0.25}),
    ("guarantee", {"guarantee": True}),
    ("guarantee:False", {"guarantee": False}),
    ("nohaste", {"nohaste": True}),
    ("run_count:5", {"run_count": 5}),
    ("run_count:0", {"run_count": 0}),
    ("ack-requested", {"ack_requested": True}),
    ("late-ack", {"late_ack": True}),
    ("interval:60", {"interval": 60.0}),
    ("cron:0 4 * * *", {"cron": "0 4 * * *"}),
    ("task:shop.add", {"task": "shop.add"}),
    ("content-type:msgpack", {"content_type": "msgpack"}),
    ("priority:255", {"priority": 255}),
    ("countdown:1.5", {"countdown": 1.5}),
    ("eta:1795217419.69", {"eta": 1795217419.69}),
    ("expires:1795217419", {"expires": 1795217419.0}),
    ("ignore-result", {"ignore_result": True}),
    ("result-ttl:0", {"result_ttl": 0.0}),
    ("keep-arguments", {"keep_arguments": True}),
    ("soft-limit:10", {"soft_limit": 10.0}),
    ('backoff:fixed:{"delay": 1}', {"backoff": 'fixed:{"delay": 1}'}),
    ("signature:ab12", {"signature": "ab12"}),
    ("created:1795217419.5", {"created": 1795217419.5}),
    ("batch:100", {"batch": 100}),
    ("chunk:7", {"chunk": 7}),
    ("unique:shop.send:a", {"unique": "shop.send:a"}),
    ("unique-mode:keep_last", {"unique_mode": "keep_last"}),
    ("unique-period:2.5", {"unique_period": 2.5}),
    ("unique-states:queued+failed", {"unique_states": "queued+failed"}),
    ("owner:4jaYN2Ob0_WyRWbp/shop", {"owner": "4jaYN2Ob0_WyRWbp/shop"}),
    ("limit-rate:100/m", {"limit_rate": "100/m"}),
    ("limit-running:5", {"limit_running": 5}),
    ("limit-key:user:ada", {"limit_key": "user:ada"}),
    ("nodes:3", {"nodes": 3}),
    ("graph:io", {"graph": "io"}),
    ("stream", {"stream": True}),
    ("replayable", {"replayable": True}),
    ("stream-idle:2.5", {"stream_idle": 2.5}),
    ("stream-unread:cancel", {"stream_unread": "cancel"}),
    ("x-tenant:a", {"extra": (("x-tenant", "a"),)}),
    ("x-flag", {"extra": (("x-flag", ""),)}),
]


@pytest.mark.parametrize(("text", "values"), FORMS)
def test_a_header_sets_its_field(text: str, values: dict[str, object]) -> None:
    assert parse_headers(text) == Headers(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "values"), FORMS)
def test_a_field_is_written_as_its_header(text: str, values: dict[str, object]) -> None:
    """What is written is read back the same; blanks are percent-encoded."""
    headers = Headers(**values)  # type: ignore[arg-type]
    assert format_headers(headers) == text.replace(" ", "%20")
    assert parse_headers(format_headers(headers)) == headers


def test_there_is_a_form_of_every_field() -> None:
    assert {name for _, values in FORMS for name in values} == {f.name for f in fields(Headers)}


def test_no_headers_are_an_empty_text() -> None:
    """If there are no headers an empty string is sent."""
    assert parse_headers("") is EMPTY
    assert format_headers(EMPTY) == ""


def test_fields_are_written_in_the_order_of_the_class_and_unknown_ones_last() -> None:
    headers = parse_headers("x:1,chunk:2,timeout:3,reply-requested,y")
    assert format_headers(headers) == "reply-requested,timeout:3,chunk:2,x:1,y"


@pytest.mark.parametrize(
    "text", [" timeout:5 , guarantee", ",timeout:5,,guarantee,", "guarantee:1,timeout:5.0",
             "guarantee:TRUE,timeout:5", "timeout:1,guarantee,timeout:5"],
)  # fmt: skip
def test_reading_is_lenient(text: str) -> None:
    """Blanks, empty places and several ways to say true; the last one wins."""
    assert parse_headers(text) == Headers(timeout=5.0, guarantee=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("timeout:soon", "header 'timeout' has the value 'soon'; allowed is seconds from 0"),
        ("timeout:", "header 'timeout' has the value ''; allowed is seconds from 0"),
        ("timeout:-1", "header 'timeout' has the value '-1'; allowed is seconds from 0"),
        ("timeout:nan", "header 'timeout' has the value 'nan'; allowed is seconds from 0"),
        ("timeout:inf", "header 'timeout' has the value 'inf'; allowed is seconds from 0"),
        ("eta:1e12", "header 'eta' has the value '1e12'; allowed is seconds from 0"),
        (
            "retry-count:-1",
            "header 'retry-count' has the value '-1'; allowed is a whole number from 0",
        ),
        (
            "retry-count:\u00b2",
            "header 'retry-count' has the value '\u00b2'; allowed is a whole number from 0",
        ),
        ("batch:1.0", "header 'batch' has the value '1.0'; allowed is a whole number from 0"),
        (
            f"chunk:{'9' * 16}",
            f"header 'chunk' has the value '{'9' * 16}'; allowed is a whole number from 0",
        ),
        (
            "priority:256",
            "header 'priority' has the value '256'; allowed is a whole number from 0 to 255",
        ),
        ("guarantee:no", "header 'guarantee' has the value 'no'; allowed is True or False"),
        ("nohaste:2", "header 'nohaste' has the value '2'; allowed is True or False"),
        (
            "ack-requested:%2C",
            "header 'ack-requested' has the value ','; allowed is True or False",
        ),
    ],
)
def test_a_value_that_cannot_be_is_refused_exactly(text: str, message: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_headers(text)
    assert (caught.value.code, str(caught.value)) == ("bad-header", message)


@pytest.mark.parametrize("value", ["a,timeout:1", "%2C", "a b", "\n", "\u2603", "%", ":", "\0"])
def test_nothing_in_a_value_can_make_another_header(value: str) -> None:
    """Values are percent-encoded."""
    headers = Headers(task=value, extra=(("x", value), (value, "y")))
    text = format_headers(headers)
    assert parse_headers(text) == headers
    assert text.isascii()
    assert text.count(",") == 2
    assert not any(char.isspace() for char in text)


def test_our_headers_share_no_substring_with_the_documents() -> None:
    """Deployed code looks for substrings: soft-timeout:25 would become its time-out."""
    ours = {text.partition(":")[0] for text, _ in FORMS} - {*DOCUMENT, *DEPLOYED}
    for name in ours:
        assert not any(old in name for old in (*DOCUMENT, *DEPLOYED)), name


def test_a_long_text_is_read_as_well_but_not_cached() -> None:
    """Texts from unknown peers do not fill the memory."""
    text = ",".join(f"x{n}:{'y' * 100}" for n in range(100))
    assert len(parse_headers(text).extra) == 100
    assert parse_headers(text) is not parse_headers(text)
    assert parse_headers("task:t") is parse_headers("task:t")


def test_written_pairs_read_back_as_they_were_said() -> None:
    """Known ones stand first; nothing in a name or value makes another header."""
    pairs = [("x-a", "1,batch:7"), ("y\n", "%2C"), ("content-type", "frames"), ("stream", "")]
    text = write_headers(pairs)
    assert text.startswith("content-type:frames,stream,")
    known = parse_headers(text)
    assert (known.content_type, known.stream, known.batch) == ("frames", True, 0)
    assert known.extra == (("x-a", "1,batch:7"), ("y\n", "%2C"))


def test_written_pairs_are_refused_where_a_known_value_is_wrong() -> None:
    with pytest.raises(ProtocolError, match="'timeout' has the value 'soon'"):
        write_headers([("timeout", "soon")])


def test_a_value_is_written_as_the_library_quotes_it() -> None:
    """The characters that are not percent-encoded are listed twice, since one list is faster."""
    safe = "!\"#$&'()*+/:;<=>?@[\\]^`{|}"
    for char in map(chr, range(0x500)):
        for text in (char, f"a {char} b", f"{char}\n"):
            assert format_headers(Headers(task=text)) == f"task:{quote(text, safe=safe)}"
            assert parse_headers(format_headers(Headers(task=text))).task == text
