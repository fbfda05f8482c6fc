"""Cuts many jobs into parts of bounded size, each of which travels as one message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from eventmq.client.errands import Parcel
from eventmq.client.handle import Job, Origin
from eventmq.wire.bulk import encode_batch
from eventmq.wire.commands import Request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eventmq.client.results import Results
    from eventmq.client.templates import Template, Written
    from eventmq.job import IdFactory

__all__ = ["PART_BYTES", "PART_JOBS", "CallSource", "Part", "Source", "WrittenSource"]

#: Most jobs in one message: what the broker commits in about 10 ms.
PART_JOBS = 1000

#: Most bytes of payload in one message, unless one job alone has more.
PART_BYTES = 1024 * 1024


class Part:
    """Jobs that travel together.

    Args:
        first: Place of the first among all jobs of the submission.
        templates: (queue, headers) pairs.
        rows: (id, place in ``templates``, body) per job.
        origins: Of their handles; filled in with the receipt.
    """

    __slots__ = ("first", "origins", "parcel", "rows", "templates")

    def __init__(
        self,
        first: int,
        templates: list[tuple[str, str]],
        rows: list[tuple[str, int, bytes]],
        origins: list[Origin],
    ) -> None:
        self.first = first
        self.templates = templates
        self.rows = rows
        self.origins = origins
        self.parcel = Parcel([])

    def halves(self) -> list[Part]:
        """Return two parts of half the size."""
        middle = len(self.rows) // 2
        rows = self.rows[:middle], self.rows[middle:]
        firsts = self.first, self.first + middle
        return [
            Part(first, self.templates, half, self.origins)
            for first, half in zip(firsts, rows, strict=True)
        ]

    def pack(self, message_id: str, deadline: float) -> None:
        """Make the message."""
        count = len(self.rows)
        body = encode_batch(self.templates, self.rows)
        queue = self.templates[0][0]
        frames = Request(message_id, queue, f"ack-requested,batch:{count}", body).frames()
        self.parcel = Parcel(frames, id=message_id, deadline=deadline, count=count)


class Source(Protocol):
    """Where the parts of a submission come from."""

    #: The handles made so far, in order.
    jobs: list[Job[Any]]

    def part(self) -> Part | None:
        """Return the next part, None after the last; raises what encoding raises."""

    def rest(self) -> None:
        """Make the handles of the jobs that are in no part."""


class CallSource:
    """Parts of calls that share a template.

    Args:
        template: The common part.
        calls: Argument tuples.
        kwargs: Keyword arguments of every call.
        ids: Makes job ids.
        results: For the handles.
    """

    def __init__(
        self,
        template: Template,
        calls: Sequence[Sequence[Any]],
        kwargs: Mapping[str, Any],
        *,
        ids: IdFactory,
        results: Results,
    ) -> None:
        self.jobs: list[Job[Any]] = []
        self._template = template
        self._calls = calls
        self._kwargs = kwargs
        self._ids = ids
        self._results = results

    # hot loop: benchmarks/enqueue_bulk.py
    def part(self) -> Part | None:
        """Encode the next part."""
        first = len(self.jobs)
        calls = self._calls[first : first + PART_JOBS]
        if not calls:
            return None
        template, kwargs, results = self._template, self._kwargs, self._results
        queue = template.queue
        origin = Origin(template.headers.task, sent=False)
        ids, size = self._ids.new_many(len(calls)), 0
        rows: list[tuple[str, int, bytes]] = []
        places: dict[str, int] = {}
        for job_id, headers, body in template.bodies(ids, calls, kwargs):
            size += len(body)
            # Too much for one message: the job goes into the next part.
            if size > PART_BYTES and rows:
                break
            rows.append((job_id, places.setdefault(headers, len(places)), body))
        self.jobs += [Job(row[0], results, origin) for row in rows]
        return Part(first, [(queue, headers) for headers in places], rows, [origin])

    def rest(self) -> None:
        """Make the handles of what was not encoded."""
        left = len(self._calls) - len(self.jobs)
        origin = Origin(self._template.headers.task, sent=False)
        self.jobs += [Job(job_id, self._results, origin) for job_id in self._ids.new_many(left)]


class WrittenSource:
    """Parts of jobs that are encoded already and have handles.

    Args:
        entries: (handle, job) pairs.
    """

    def __init__(self, entries: Sequence[tuple[Job[Any], Written]]) -> None:
        self.jobs = [job for job, _ in entries]
        self._entries = entries
        self._taken = 0

    def part(self) -> Part | None:
        """Collect the next part."""
        first, size = self._taken, 0
        rows: list[tuple[str, int, bytes]] = []
        places: dict[tuple[str, str], int] = {}
        for _, written in self._entries[first : first + PART_JOBS]:
            size += len(written.body)
            if size > PART_BYTES and rows:
                break
            place = places.setdefault((written.queue, written.headers), len(places))
            rows.append((written.id, place, written.body))
        self._taken += len(rows)
        origins = [job.origin for job in self.jobs[first : self._taken]]
        return Part(first, list(places), rows, origins) if rows else None

    def rest(self) -> None:
        """Do nothing: all handles are there."""
