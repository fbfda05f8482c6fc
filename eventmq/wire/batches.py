"""Bodies that carry many jobs or outcomes: batch, chunk, outcomes (wire extensions).

All of them are MessagePack. The broker reads only indexes, and forwards payloads unchanged.

- *batch*, client to broker: ``[[[queue, headers], ...], [[id, template, payload], ...]]``.
- *chunk*, broker to worker: 4 bytes big-endian length of the index, the index, then the payloads
  end to end. Index: ``[queue, [headers, ...], [[id, delivery, attempt, template, timeout,
  expires, offset, length], ...]]``; ``template`` is the index of the job's header text.
- *outcomes*, worker to broker: ``[[position, kind, started, ran, content_type, payload,
  countdown], ...]``; ``position`` counts from 0 in the chunk, see `OutcomeRow`. If the broker has
  the extension ``logs``, the log of the job may follow, UTF-8 as bytes: see `LoggedRow`.
- *graph*, client to broker (extension ``graph``): ``[templates, jobs, plan]``, the first two as in
  a batch, the jobs by node index; the plan is `eventmq.graph.Plan` as nested lists. The id of the
  message is that of the first job, and of the graph; its header ``nodes`` is the number of jobs.
- *exceptions*, in the ACK of a batch: ``{position: [code, text]}``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

from eventmq.errors import ProtocolError
from eventmq.graph import MAX_NODES, Plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "ASK",
    "NOW",
    "ChunkEntry",
    "ChunkIndex",
    "LoggedRow",
    "OutcomeRow",
    "check_jobs",
    "chunk_number",
    "decode_batch",
    "decode_chunk",
    "decode_exceptions",
    "decode_graph",
    "decode_outcomes",
    "encode_batch",
    "encode_chunk",
    "encode_exceptions",
    "encode_graph",
    "encode_outcomes",
    "has_nul",
    "is_text",
    "move_expiry",
    "pack",
    "parse_chunk_number",
    "read_outcomes",
    "unpack",
]

#: Limit in seconds of times on the wire; rejects infinity and invalid values.
_TIMES = 1e12

#: Header of a chunk with expiring jobs: the guarded wall time of the broker when it sent the chunk.
NOW = "now"

#: Header of a chunk whose only job the worker starts after the answer to the CALL ``begin``.
ASK = "ask"


class ChunkEntry(NamedTuple):
    """One job in a chunk. ``timeout`` and ``expires`` are seconds, 0.0 for none."""

    id: str
    delivery: int
    attempt: int
    template: int
    timeout: float
    expires: float
    offset: int
    length: int


class ChunkIndex(NamedTuple):
    """The index of a chunk: everything but the payloads."""

    queue: str
    templates: list[str]
    entries: list[ChunkEntry]
    base: int

    def payload(self, body: bytes, entry: ChunkEntry) -> bytes:
        """Return the payload of one job from the body of the chunk."""
        start = self.base + entry.offset
        return body[start : start + entry.length]


class OutcomeRow(NamedTuple):
    """The outcome of one job of a chunk.

    Attributes:
        position: Position of the job in the chunk, from 0.
        kind: `eventmq.job.OutcomeKind`.
        started: Unix time of the start in seconds, 0.0 if the job never started.
        run_time: Run time in seconds.
        content_type: Content type of ``result``; that of an error (`eventmq.wire.results`) unless
            the job succeeded.
        result: The encoded result or error.
        countdown: For RETRY, seconds until the next attempt.
    """

    position: int
    kind: int
    started: float = 0.0
    run_time: float = 0.0
    content_type: str = ""
    result: bytes = b""
    countdown: float = 0.0


class LoggedRow(OutcomeRow):
    """An outcome with one more field: the kept log of the job."""

    __slots__ = ()

    @classmethod
    def of(cls, row: OutcomeRow, log: bytes) -> OutcomeRow:
        """Return an outcome with a log in UTF-8; the same outcome if the log is empty."""
        return tuple.__new__(cls, (*row[:_FIELDS], log)) if log else row


_FIELDS = len(OutcomeRow._fields)


def pack(value: object) -> bytes:
    """Encode plain data as MessagePack."""
    return msgpack.packb(value)  # type: ignore[no-any-return]


def unpack(data: bytes, name: str) -> Any:
    """Decode MessagePack from a peer.

    Raises:
        ProtocolError: The data is not MessagePack; the message contains ``name``.
    """
    try:
        return msgpack.unpackb(data, strict_map_key=False)
    except Exception as error:
        raise ProtocolError(f"{name} is not MessagePack", code="bad-body") from error


def has_nul(value: object) -> bool:
    """Return whether plain data has a text with a NUL character, which some stores cannot keep."""
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(map(has_nul, value)) or any(map(has_nul, value.values()))
    return isinstance(value, list) and any(map(has_nul, value))


def is_text(data: bytes) -> bool:
    """Return whether a body is UTF-8, as legacy peers need it: they decode every frame."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def encode_batch(
    templates: Sequence[tuple[str, str]], jobs: Sequence[tuple[str, int, bytes]]
) -> bytes:
    """Encode a batch: ``templates`` are (queue, headers), ``jobs`` (id, template, payload)."""
    return pack([templates, jobs])


def decode_batch(
    body: bytes, count: int
) -> tuple[list[tuple[str, str]], list[tuple[str, int, bytes]]]:
    """Decode a batch.

    Args:
        body: The body of the REQUEST.
        count: Number of jobs in its header ``batch``.

    Raises:
        ProtocolError: The body is malformed or has another number of jobs.
    """
    match unpack(body, "the body of the batch"):
        case [list(templates), list(jobs)] if len(jobs) == count and len(templates) <= count:
            pass
        case _:
            raise ProtocolError(
                f"a batch of {count} is [templates, jobs] with {count} jobs, no more templates",
                code="bad-body",
            )
    check_jobs(templates, jobs)
    return templates, jobs


def check_jobs(templates: Sequence[Any], jobs: Sequence[Any]) -> None:
    """Check the templates and jobs of a batch from a peer.

    Raises:
        ProtocolError: They are not as `encode_batch` encodes them.
    """
    if not (all(map(_is_template, templates)) and _are_jobs(jobs, len(templates))):
        raise ProtocolError(
            "a batch has templates [queue, headers] and jobs [id, template, bytes]; no text has a "
            "NUL character",
            code="bad-body",
        )


def _is_template(value: object) -> bool:
    match value:
        case [str(queue), str(headers)]:
            return not has_nul(queue) and not has_nul(headers) and "%00" not in headers
    return False


# hot loop: python -m benchmarks enqueue_bulk
def _are_jobs(jobs: Sequence[Any], templates: int) -> bool:
    try:
        for job_id, template, payload in jobs:
            if not (
                type(job_id) is str
                and type(template) is int
                and type(payload) is bytes
                and 0 <= template < templates
                and job_id
                and "\0" not in job_id
            ):
                return False
    except (TypeError, ValueError):
        return False
    return True


# hot loop: python -m benchmarks drain
def encode_chunk(
    queue: str, rows: Iterable[tuple[str, int, int, str, float, float, bytes]]
) -> bytes:
    """Encode a chunk; rows are (id, delivery, attempt, headers, timeout, expires, payload)."""
    templates: dict[str, int] = {}
    entries = []
    payloads = []
    offset = 0
    for job_id, delivery, attempt, headers, timeout, expires, payload in rows:
        template = templates.setdefault(headers, len(templates))
        length = len(payload)
        entries.append((job_id, delivery, attempt, template, timeout, expires, offset, length))
        payloads.append(payload)
        offset += length
    index = pack([queue, list(templates), entries])
    return b"".join([len(index).to_bytes(4, "big"), index, *payloads])


# hot loop: python -m benchmarks drain
def decode_chunk(body: bytes) -> ChunkIndex:
    """Decode the index of a chunk.

    Raises:
        ProtocolError: The body is malformed, or not as long as its index says.
    """
    size = int.from_bytes(body[:4], "big")
    value = unpack(body[4 : 4 + size], "the index of the chunk")
    position = 0
    try:
        queue, templates, rows = value
        entries = list(map(ChunkEntry._make, rows))
        if type(queue) is not str or not all(type(text) is str for text in templates):
            raise ValueError(queue)
        texts = len(templates)
        for job_id, delivery, attempt, template, timeout, expires, offset, length in entries:
            if not (
                type(job_id) is str
                and type(delivery) is type(attempt) is type(template) is type(length) is int
                and type(timeout) is type(expires) is float
                and offset == position
                and length >= 0
                and 0 <= template < texts
            ):
                raise ValueError(job_id)
            position += length
    except (TypeError, ValueError) as error:
        raise ProtocolError("the index of the chunk is malformed", code="bad-body") from error
    if not entries or 4 + size + position != len(body):
        raise ProtocolError("the chunk is not as long as its index says", code="bad-body")
    return ChunkIndex(queue, templates, entries, 4 + size)


def move_expiry(body: bytes, index: ChunkIndex, seconds: float) -> bytes:
    """Return the body of a chunk in which jobs expire later.

    Args:
        body: Body of the chunk.
        index: Index of the chunk.
        seconds: Seconds to add to the expiries.
    """
    entries = [
        entry._replace(expires=entry.expires + seconds) if entry.expires else entry
        for entry in index.entries
    ]
    packed = pack([index.queue, index.templates, entries])
    return b"".join([len(packed).to_bytes(4, "big"), packed, body[index.base :]])


def chunk_number(text: str) -> int:
    """Read the number of a chunk; return 0 if it is invalid."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0  # noqa: PLR2004


def parse_chunk_number(outcome: str) -> int:
    """Read the OUTCOME frame of a REPLY to a chunk, ``chunk:NUMBER``.

    Raises:
        ProtocolError: The frame is malformed.
    """
    name, _, text = outcome.partition(":")
    number = chunk_number(text) if name == "chunk" else 0
    if not number:
        raise ProtocolError(
            f"OUTCOME is {outcome[:80]!r}; a REPLY to a chunk says chunk:NUMBER", code="bad-outcome"
        )
    return number


def encode_outcomes(rows: Sequence[OutcomeRow]) -> bytes:
    """Encode the outcomes of some jobs of one chunk."""
    return pack(rows)


def decode_outcomes(body: bytes) -> Sequence[OutcomeRow]:
    """Decode outcomes without logs: sequences with the fields of `OutcomeRow`, in that order.

    Raises:
        ProtocolError: The body is malformed, or a time is negative, infinite or no number.
    """
    return read_outcomes(body)[0]


def read_outcomes(body: bytes) -> tuple[Sequence[OutcomeRow], Mapping[int, bytes]]:
    """Decode outcomes, and the kept logs of their jobs by position.

    Raises:
        ProtocolError: The body is malformed, or a time is negative, infinite or no number.
    """
    value = unpack(body, "the body of the outcomes")
    logs: dict[int, bytes] = {}
    try:
        try:
            _check_outcomes(value)
        except ValueError:
            value, logs = _without_logs(value)
            _check_outcomes(value)
    except (TypeError, ValueError) as error:
        raise ProtocolError(
            "an outcome is [position, kind, started, ran, content type, payload, countdown]",
            code="bad-body",
        ) from error
    return value, logs


def _without_logs(value: Any) -> tuple[list[Any], dict[int, bytes]]:
    logs = {row[0]: row[_FIELDS] for row in value if len(row) > _FIELDS}
    if not all(type(position) is int and type(log) is bytes for position, log in logs.items()):
        raise ValueError(value)
    rows = [row[:_FIELDS] if len(row) == _FIELDS + 1 else row for row in value]
    return rows, logs


# hot loop: python -m benchmarks drain
def _check_outcomes(value: Any) -> None:
    """Raise `ValueError` or `TypeError` if a value from a peer is not a list of outcomes."""
    for position, kind, started, run_time, content_type, result, countdown in value:
        if not (
            type(position) is int
            and type(kind) is int
            and type(result) is bytes
            and type(content_type) is str
            and "\0" not in content_type
            and type(started) is type(run_time) is type(countdown) is float
            and 0.0 <= started < _TIMES
            and 0.0 <= run_time < _TIMES
            and 0.0 <= countdown < _TIMES
        ):
            raise ValueError(position)


def encode_exceptions(exceptions: Mapping[int, tuple[str, str]]) -> bytes:
    """Encode the refused jobs of a batch: position -> (code, text)."""
    return pack(dict(exceptions))


def decode_exceptions(data: bytes) -> dict[int, tuple[str, str]]:
    """Decode the refused jobs of a batch.

    Raises:
        ProtocolError: The data is malformed.
    """
    value = unpack(data, "the exceptions of the ACK")
    try:
        return {int(position): (str(code), str(text)) for position, (code, text) in value.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ProtocolError(
            "the exceptions of an ACK are a map of index to [code, text]", code="bad-body"
        ) from error


def encode_graph(
    templates: Sequence[tuple[str, str]], jobs: Sequence[tuple[str, int, bytes]], plan: Plan
) -> bytes:
    """Encode a graph: ``templates`` are (queue, headers), ``jobs`` (id, template, payload)."""
    return pack([templates, jobs, plan])


def decode_graph(
    body: bytes, count: int
) -> tuple[list[tuple[str, str]], list[tuple[str, int, bytes]], Plan]:
    """Decode a graph.

    Args:
        body: The body of the REQUEST.
        count: Number of jobs in its header ``nodes``.

    Raises:
        ProtocolError: The body is malformed, has another number of jobs or the same id twice, or
            the plan is invalid.
    """
    if count > MAX_NODES:
        raise ProtocolError(f"a graph has at most {MAX_NODES} jobs, not {count}", code="too-many")
    value: Any = unpack(body, "the body of the graph")
    match value:
        case [list(templates), list(jobs), plan] if len(jobs) == count >= len(templates):
            pass
        case _:
            raise ProtocolError(
                f"a graph of {count} is [templates, jobs, plan] with {count} jobs", code="bad-body"
            )
    check_jobs(templates, jobs)
    if len({job_id for job_id, _, _ in jobs}) != count:
        raise ProtocolError("two jobs of the graph have the same id", code="bad-body")
    return templates, jobs, Plan.decode(plan, count)
