"""The arguments and results of a commit's jobs, put into its events where a redactor wants them.

A second pass over what `eventmq.entries.events` has made, so that a broker without the setting
``redactor`` pays nothing. Values are kept as they came: nothing is decoded here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.entries.changes import Admit, Finish, NoteEnds
from eventmq.entries.graphs import AdmitGraph
from eventmq.events import Kind
from eventmq.events.packed import KIND_CODES, Block, Field
from eventmq.headers import parse_headers
from eventmq.job import JobState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from eventmq.entries.changes import Finished
    from eventmq.job import Job

__all__ = ["PARTS", "portions"]

#: A value may have this part of the bytes that a row may have of them; longer ones are left out.
PARTS = 16

_SUCCEEDED = KIND_CODES[Kind.SUCCEEDED]
_ARRIVED = frozenset({KIND_CODES[Kind.ENQUEUED], KIND_CODES[Kind.DELAYED]})

#: Codes of verdicts on jobs that were admitted all the same.
_ADMITTED = frozenset({"replaced", "held"})


class _Value(NamedTuple):
    """A value as it came, with what is needed to decode it; None where it is left out."""

    content_type: str | None
    data: bytes | None

    @property
    def size(self) -> int:
        return len(self.content_type or "") + len(self.data or b"")


_NONE = _Value(None, None)


def portions(
    blocks: Iterable[Block], batch: Sequence[Any], verdicts: Sequence[Any], most: int
) -> Iterator[list[Block]]:
    """Yield the events of a commit, in order, with their values: so many as one row may have.

    An event of an admission gets the body of its job, one of a success the result. The content type
    of a body is followed by signature, time of creation and expiry where it is signed, joined by
    ``;``, as that of a result is by the first two.

    Args:
        blocks: What `eventmq.entries.events_of` returned.
        batch: The entries.
        verdicts: One per entry.
        most: Bytes of values in a portion.
    """
    bodies, results = _given(batch, verdicts)
    portion: list[Block] = []
    room = most
    for block in blocks:
        start = 0
        for place, size in enumerate(_put_values(block, bodies, results, most // PARTS)):
            if size > room:
                if place > start:
                    portion.append(_part(block, start, place))
                yield portion
                portion, room, start = [], most, place
            room -= size
        portion.append(_part(block, start, len(block.ids)))
    if portion:
        yield portion


def _put_values(
    block: Block, bodies: Mapping[str, _Value], results: Mapping[str, _Value], longest: int
) -> list[int]:
    """Add the values of a block's events; return their sizes, none where there are none."""
    kind = block.common[Field.KIND]
    if kind == _SUCCEEDED:
        known = results
    # A job that becomes ready later has been admitted before: its event has no length.
    elif kind in _ARRIVED and block.has(Field.BYTES_IN):
        known = bodies
    else:
        return []
    found = [known.get(job_id, _NONE) for job_id in block.ids]
    values = [value if value.size <= longest else _NONE for value in found]
    if values.count(_NONE) == len(values):
        return []
    block.put(Field.CONTENT_TYPE, [value.content_type for value in values])
    block.put(Field.VALUE, [value.data for value in values])
    return [value.size for value in values]


def _part(block: Block, start: int, end: int) -> Block:
    """Return some events of a block."""
    if end - start == len(block.ids):
        return block
    columns = {field: values[start:end] for field, values in block.columns.items()}
    return Block(block.common, block.ids[start:end], columns)


# What the entries have


def _given(
    batch: Sequence[Any], verdicts: Sequence[Any]
) -> tuple[dict[str, _Value], dict[str, _Value]]:
    """Return the bodies of the jobs that were admitted, and the results, by their ids."""
    bodies: dict[str, _Value] = {}
    results: dict[str, _Value] = {}
    for entry, verdict in zip(batch, verdicts, strict=True):
        if isinstance(entry, Admit):
            _note_bodies(bodies, (
                job for place, job in enumerate(entry.jobs)
                if place not in verdict or verdict[place].code in _ADMITTED
            ))  # fmt: skip
        elif isinstance(entry, AdmitGraph):
            _note_bodies(bodies, entry.jobs if verdict is None else ())
        elif isinstance(entry, Finish):
            _note_results(results, (
                row for place, row in enumerate(entry.rows) if place not in verdict
            ))  # fmt: skip
        elif isinstance(entry, NoteEnds):
            _note_results(results, entry.rows)
    return bodies, results


def _note_bodies(bodies: dict[str, _Value], jobs: Iterable[Job]) -> None:
    for job in jobs:
        bodies[job.id] = _Value(_content_type(job.headers), job.body)


def _note_results(results: dict[str, _Value], rows: Iterable[Finished]) -> None:
    for row in rows:
        # Without a content type the task has kept its result to itself.
        if row.state is JobState.SUCCEEDED and row.content_type:
            results[row.job.id] = _Value(row.content_type, row.result)


def _content_type(text: str) -> str:
    """Return the content type of a body, "" of a plain job, with what a signature covers."""
    headers = parse_headers(text)
    if not headers.signature:
        return headers.content_type
    more = f"{headers.signature};{headers.created!r};{headers.expires!r}"
    return f"{headers.content_type};{more}"
