"""Round trips: encoded values are decoded unchanged, and invalid bytes raise `ProtocolError`."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from eventmq.errors import ProtocolError
from eventmq.headers import Headers, format_headers, parse_headers
from eventmq.wire import batches, commands, streams
from eventmq.wire.commands import (
    ADMIN_COMMANDS,
    Ack,
    Admin,
    Call,
    Cancel,
    Credit,
    Disconnect,
    Error,
    Heartbeat,
    Hello,
    Inform,
    Kbai,
    Publish,
    Ready,
    Reply,
    Request,
    Schedule,
    decode,
)
from eventmq.wire.features import EXTENSIONS, Features, Status, format_queues, parse_queues
from eventmq.wire.owner import OwnerInfo
from eventmq.wire.results import RemoteError, decode_error, encode_error
from tests.support.examples import examples

if TYPE_CHECKING:
    from collections.abc import Callable

#: A second or less for each test here: encoding is quick, and there are many.
few = settings(max_examples=examples(150))

TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20
).filter(lambda text: "%00" not in text)
NAME = TEXT.filter(bool)
BYTES = st.binary(max_size=40)
COUNT = st.integers(0, 10**15 - 1)
SECONDS = st.floats(0, 1e11)
MAYBE = st.none() | TEXT

MESSAGES = st.one_of(
    st.builds(Inform, NAME, TEXT, TEXT, MAYBE),
    st.builds(Ack, NAME, TEXT, st.none() | BYTES),
    st.builds(Ready, NAME, MAYBE),
    st.builds(Request, NAME, TEXT, TEXT, BYTES),
    st.builds(Reply, NAME, BYTES, st.none(), st.none()),
    st.builds(Reply, NAME, BYTES, TEXT, MAYBE),
    st.builds(Heartbeat, NAME, TEXT, MAYBE),
    st.builds(Schedule, NAME, TEXT, TEXT, BYTES, st.none(), st.none(), st.booleans()),
    st.builds(Schedule, NAME, TEXT, TEXT, BYTES, TEXT, TEXT, st.booleans()),
    st.builds(Publish, NAME, TEXT, MAYBE, BYTES),
    st.builds(Kbai, NAME, st.sampled_from(["KBAI", "KBYE"])),
    st.builds(Disconnect, NAME),
    st.builds(Hello, NAME),
    st.builds(Admin, NAME, st.sampled_from(ADMIN_COMMANDS)),
    st.builds(Call, NAME, TEXT, BYTES),
    st.builds(Cancel, NAME, TEXT, TEXT, TEXT),
    st.builds(Credit, NAME, TEXT, TEXT, TEXT),
    st.builds(Error, NAME, TEXT, TEXT, TEXT),
)


def code_of(function: Callable[[Any], object], argument: object) -> str:
    """Return the code of the refusal, "" for none; any other exception is a fault."""
    try:
        function(argument)
    except ProtocolError as error:
        return error.code
    return ""


@few
@given(MESSAGES)
def test_messages(message: Any) -> None:
    assert decode(message.frames()) == message


@few
@given(MESSAGES, st.data())
def test_a_message_with_a_changed_frame_is_a_message_or_refused(
    message: Any, data: st.DataObject
) -> None:
    """Decoders never raise anything but ProtocolError."""
    frames = message.frames()
    index = data.draw(st.integers(0, len(frames)))
    frames[index : index + 1] = data.draw(st.lists(BYTES, max_size=3))
    code = code_of(decode, frames)
    if not code:
        assert decode(decode(frames).frames()) == decode(frames)
    assert code in {
        "", "envelope", "version", "unknown-command", "frame-count", "not-utf8", "no-id",
    }  # fmt: skip


@few
@given(st.lists(BYTES, max_size=12))
def test_random_frames_are_refused(frames: list[bytes]) -> None:
    with pytest.raises(ProtocolError):
        decode(frames)


# Headers, FEATURES, STATUS, QUEUES

_KNOWN = {f.name.replace("_", "-") for f in fields(Headers)} | {f.name for f in fields(Headers)}
_VALUES = {
    "bool": st.booleans(),
    "bool | None": st.none() | st.booleans(),
    "int": COUNT,
    "int | None": st.none() | COUNT,
    "float": SECONDS,
    "float | None": st.none() | SECONDS,
    "str": TEXT,
}
_NAMED = {
    "priority": st.integers(0, 255),
    "limit_rate": st.sampled_from(["", "5/s", "2/10m", "999999999/999999d"]),
}
_EXTRA = st.lists(st.tuples(NAME.filter(lambda n: n not in _KNOWN), TEXT), max_size=3).map(tuple)
HEADERS = st.builds(
    Headers,
    **{
        f.name: _NAMED[f.name] if f.name in _NAMED else _VALUES[str(f.type)]
        for f in fields(Headers)
        if f.name != "extra"
    },
    extra=_EXTRA,
)


@few
@given(HEADERS)
def test_headers(headers: Headers) -> None:
    """One line of ASCII, whatever the values are."""
    text = format_headers(headers)
    assert parse_headers(text) == headers
    assert text.isascii()
    assert text.isprintable()


NAMES = st.lists(NAME, max_size=4).map(tuple)
NUMBERS = st.lists(COUNT, max_size=4).map(tuple)
OWNERS = st.builds(
    OwnerInfo, COUNT, st.sampled_from(("active", "standby")), TEXT, st.sampled_from(("", "+" * 40)),
    TEXT,
)  # fmt: skip
FEATURES = st.builds(
    Features,
    extensions=st.sets(st.sampled_from(EXTENSIONS)).map(
        lambda names: tuple(name for name in EXTENSIONS if name in names)
    ),
    session=TEXT, name=TEXT, tasks=NAMES, callables=NAMES, received=COUNT, held=NUMBERS,
    epoch=COUNT, store=TEXT, max_frame=COUNT, publish=TEXT, owner=st.none() | OWNERS,
)  # fmt: skip


@few
@given(FEATURES)
def test_features(features: Features) -> None:
    """A peer that names its session supports sessions."""
    assume(not features.session or "session" in features.extensions)
    assume(features.owner is None or "owner" in features.extensions)
    assert Features.parse(features.format()) == features


@few
@given(st.builds(Status, COUNT, COUNT, NUMBERS))
def test_statuses(status: Status) -> None:
    assert Status.parse(status.format()) == status


@few
@given(st.lists(st.tuples(st.integers(1, (1 << 31) - 1), NAME), max_size=4).map(tuple))
def test_queues(queues: tuple[tuple[int, str], ...]) -> None:
    assert parse_queues(format_queues(queues)) == queues


# Bodies

TIME = st.floats(0, 1e11)
ROWS = st.lists(
    st.tuples(TEXT, COUNT, COUNT, TEXT, TIME, TIME, BYTES), min_size=1, max_size=5
)  # fmt: skip


@few
@given(TEXT, ROWS)
def test_chunks(queue: str, rows: list[tuple[Any, ...]]) -> None:
    body = batches.encode_chunk(queue, rows)
    index = batches.decode_chunk(body)
    assert index.queue == queue
    assert rows == [
        (
            entry.id, entry.delivery, entry.attempt, index.templates[entry.template],
            entry.timeout, entry.expires, index.payload(body, entry),
        )
        for entry in index.entries
    ]  # fmt: skip


@few
@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=3), st.data())
def test_batches(templates: list[tuple[str, str]], data: st.DataObject) -> None:
    job = st.tuples(NAME, st.integers(0, len(templates) - 1), BYTES)
    jobs = data.draw(st.lists(job, min_size=len(templates), max_size=6))
    decoded = batches.decode_batch(batches.encode_batch(templates, jobs), len(jobs))
    assert ([tuple(t) for t in decoded[0]], [tuple(j) for j in decoded[1]]) == (templates, jobs)


@few
@given(
    st.lists(
        st.builds(batches.OutcomeRow, COUNT, st.integers(0, 7), TIME, TIME, TEXT, BYTES, TIME),
        max_size=5,
    )
)
def test_outcomes(rows: list[batches.OutcomeRow]) -> None:
    decoded = batches.decode_outcomes(batches.encode_outcomes(rows))
    assert [batches.OutcomeRow(*row) for row in decoded] == rows


@few
@given(st.dictionaries(COUNT, st.tuples(TEXT, TEXT), max_size=4))
def test_exceptions(exceptions: dict[int, tuple[str, str]]) -> None:
    assert batches.decode_exceptions(batches.encode_exceptions(exceptions)) == exceptions


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | TEXT | BYTES
    | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


ERRORS = st.recursive(
    st.builds(RemoteError, TEXT, TEXT, TEXT, st.none() | st.lists(PLAIN).map(tuple)),
    lambda inner: st.builds(
        RemoteError, TEXT, TEXT, TEXT, st.none(),
        st.none() | st.dictionaries(TEXT, PLAIN, min_size=1), st.lists(inner).map(tuple),
    ),
    max_leaves=4,
)  # fmt: skip


@few
@given(ERRORS)
def test_errors(error: RemoteError) -> None:
    assert decode_error(encode_error(error)) == error


# Anything else

DECODERS: list[Callable[[bytes], object]] = [
    batches.decode_chunk,
    batches.decode_outcomes,
    batches.decode_exceptions,
    streams.decode_parts,
    streams.decode_progress,
    lambda data: batches.decode_batch(data, 1),
    lambda data: batches.decode_chunk(len(data).to_bytes(4, "big") + data),
]


@pytest.mark.parametrize("decoder", DECODERS)
@few
@given(data=BYTES | PLAIN.map(batches.pack))
def test_bodies_that_are_none_are_refused(decoder: Callable[[bytes], object], data: bytes) -> None:
    """Decoders never raise anything but ProtocolError."""
    assert code_of(decoder, data) in {"", "bad-body"}


@pytest.mark.parametrize(
    ("reader", "code"),
    [
        (parse_headers, "bad-header"),
        (Features.parse, "bad-features"),
        (Status.parse, "bad-features"),
        (parse_queues, "bad-queues"),
        (batches.parse_chunk_number, "bad-outcome"),
        (streams.PartHead.parse, "bad-outcome"),
        (streams.parse_end, "bad-outcome"),
        (streams.parse_progress, "bad-outcome"),
    ],
)
@few
@given(data=st.data())
def test_texts_that_are_none_are_refused(
    reader: Callable[[str], object], code: str, data: st.DataObject
) -> None:
    """Made of the pieces of real ones, so that they get far."""
    piece = st.sampled_from(
        [",", ":", "+", "[", "]", '"', "1", "10", "-", "%", "chunk", "held", "timeout", "x", "'",
         "\N{SUPERSCRIPT TWO}", "guarantee", "received", "\\ud800", "e9", "nan"]
    )  # fmt: skip
    text = "".join(data.draw(st.lists(piece | TEXT, max_size=8)))
    assert code_of(reader, text) in {"", code}


@few
@given(BYTES | PLAIN.map(batches.pack))
def test_an_error_is_always_read(data: bytes) -> None:
    """A job fails with the error that its worker sent."""
    assert isinstance(decode_error(data), RemoteError)


def test_every_command_is_built_above() -> None:
    """Messages that the strategy leaves out would not be tested."""
    built = {type(message).__name__ for message in _examples()}
    classes = {name for name in commands.__all__ if isinstance(getattr(commands, name), type)}
    assert built == classes


def _examples() -> list[Any]:
    examples: dict[str, Any] = {}

    @settings(max_examples=1000, database=None, derandomize=True)
    @given(MESSAGES)
    def collect(message: Any) -> None:
        examples[type(message).__name__] = message

    collect()
    return list(examples.values())
