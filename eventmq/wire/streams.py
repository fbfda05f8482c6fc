"""Parts of a stream, credit for them, and progress (extension ``stream``): encoding and decoding.

Parts travel in batches. A batch is a REPLY of the worker, which the broker forwards to readers
unchanged. The broker reads only its OUTCOME frame, ``part:DELIVERY:FIRST:COUNT``: the delivery of
the job, the index of the first part, and the number of parts. The body is MessagePack ``[content
type, [payload, ...]]``. Progress is a REPLY with the OUTCOME ``progress:DELIVERY`` and the body
``[done, total, note]``. At the end of a stream its readers get ``end:DELIVERY:TOTAL``, with the row
that ``get`` answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from eventmq.errors import ProtocolError
from eventmq.wire.batches import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "END",
    "NO_READER",
    "PART",
    "PROGRESS",
    "WINDOW",
    "WINDOW_BYTES",
    "PartHead",
    "decode_parts",
    "decode_progress",
    "encode_parts",
    "encode_progress",
    "format_end",
    "parse_end",
    "parse_progress",
]

#: Number of parts that a task may be ahead of the slowest reader.
WINDOW = 1024

#: Bytes of these parts, without the last one.
WINDOW_BYTES = 1024 * 1024

#: Credit that means: no reader needs the rest, which must not be sent.
NO_READER = 1 << 53

#: Prefixes of the OUTCOME frames of parts and of progress.
PART = "part:"
PROGRESS = "progress:"

#: Prefix of the OUTCOME frame at the end of a stream.
END = "end:"

#: Characters of the longest note of a progress.
NOTE_LIMIT = 1000


def _numbers(outcome: str, prefix: str, shape: str) -> list[int]:
    """Return the numbers of an OUTCOME frame, from its prefix and a description of its shape."""
    texts = outcome.removeprefix(prefix).split(":")
    whole = all(t.isascii() and t.isdigit() and len(t) < 16 for t in texts)  # noqa: PLR2004 - below 2**53
    if not outcome.startswith(prefix) or len(texts) != shape.count(":") or not whole:
        raise ProtocolError(f"OUTCOME is {outcome[:80]!r}; that of {shape}", code="bad-outcome")
    return list(map(int, texts))


class PartHead(NamedTuple):
    """The OUTCOME frame of a batch of parts."""

    delivery: int
    first: int
    parts: int

    @property
    def end(self) -> int:
        """Index after the last part."""
        return self.first + self.parts

    def format(self) -> str:
        """Return the text of the frame."""
        return f"{PART}{self.delivery}:{self.first}:{self.parts}"

    @classmethod
    def parse(cls, outcome: str) -> PartHead:
        """Read a frame.

        Raises:
            ProtocolError: The frame is malformed.
        """
        return cls(*_numbers(outcome, PART, "parts is part:DELIVERY:FIRST:COUNT"))


def format_end(delivery: int, total: int) -> str:
    """Return the OUTCOME frame of a stream's end, with the number of parts of the last run."""
    return f"{END}{delivery}:{total}"


def parse_end(outcome: str) -> PartHead:
    """Read the OUTCOME frame of a stream's end, as an empty batch after the last part.

    Raises:
        ProtocolError: The frame is malformed.
    """
    delivery, total = _numbers(outcome, END, "a stream's end is end:DELIVERY:TOTAL")
    return PartHead(delivery, total, 0)


def parse_progress(outcome: str) -> int:
    """Read the delivery in the OUTCOME frame of progress.

    Raises:
        ProtocolError: The frame is malformed.
    """
    return _numbers(outcome, PROGRESS, "progress is progress:DELIVERY")[0]


def encode_parts(content_type: str, payloads: Sequence[bytes]) -> bytes:
    """Encode a batch of parts that have the same content type."""
    return pack([content_type, payloads])


def decode_parts(body: bytes) -> tuple[str, list[bytes]]:
    """Decode a batch of parts.

    Raises:
        ProtocolError: The body is malformed.
    """
    match unpack(body, "the body of the parts"):
        case [str(content_type), list(payloads)] if all(type(p) is bytes for p in payloads):
            return content_type, payloads
    raise ProtocolError("parts are [content type, [bytes, ...]]", code="bad-body")


def encode_progress(done: float, total: float | None, note: str) -> bytes:
    """Encode the progress of a job."""
    return pack([done, total, note[:NOTE_LIMIT]])


def decode_progress(body: bytes) -> tuple[float, float | None, str]:
    """Decode the progress of a job.

    Raises:
        ProtocolError: The body is malformed.
    """
    match unpack(body, "the body of the progress"):
        case [int() | float() as done, int() | float() | None as total, str(note)]:
            return done, total, note[:NOTE_LIMIT]
    raise ProtocolError("progress is [done, total or nil, note]", code="bad-body")
