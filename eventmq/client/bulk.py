"""Bulk submission: many jobs that travel together, in several messages.

A `BulkSubmit` is one submission, cut into `BulkPart` messages by a `BulkSource`. It sends nothing
itself: `eventmq.client.submit` does, and reports the end of each message.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from eventmq.client.handle import Job, JobOrigin
from eventmq.client.requests import PendingSubmit
from eventmq.errors import BatchError, BrokerUnavailable, MessageTooLarge
from eventmq.wire.batches import encode_batch
from eventmq.wire.commands import Request
from eventmq.wire.outcomes import refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eventmq.client.handle import ResultClient
    from eventmq.client.templates import EncodedJob, Template
    from eventmq.job import IdFactory

__all__ = [
    "PART_BYTES",
    "PART_JOBS",
    "BulkPart",
    "BulkSource",
    "BulkSubmit",
    "CallSource",
    "EncodedSource",
]

#: Maximum number of jobs in one message: the broker commits that many in about 10 ms.
PART_JOBS = 1000

#: Maximum bytes of payload in one message, unless one job alone has more.
PART_BYTES = 1024 * 1024


class BulkSubmit:
    """One submission of many jobs in several messages.

    Args:
        source: Makes the parts.
        new_id: Makes ids of messages.
        deadline: Returns the deadline for a message that is sent now.
    """

    def __init__(
        self, source: BulkSource, *, new_id: Callable[[], str], deadline: Callable[[], float]
    ) -> None:
        self._source = source
        self._new_id = new_id
        self._deadline = deadline
        #: Whether a message was handed to the I/O loop.
        self.started = False
        self._retries: deque[BulkPart] = deque()
        self._sent_parts = 0
        #: (position of the first job, number of jobs) of parts with a receipt.
        self._receipts: list[tuple[int, int]] = []
        #: Position -> status and error of jobs that were not confirmed.
        self._failed: dict[int, tuple[str, Exception | None]] = {}
        self._stopped: Exception | None = None

    def next(self) -> BulkPart | None:
        """Return the next part with its message, or None after the last.

        Raises:
            SerializationError: A job of the first part cannot be encoded; nothing was sent.
        """
        if self._stopped is not None:
            return None
        try:
            part = self._retries.popleft() if self._retries else self._source.part()
        except Exception as error:
            if not self._sent_parts:
                raise
            self._stopped = error
            return None
        if part is not None:
            self._sent_parts += 1
            part.pack(self._new_id(), self._deadline())
        return part

    def ended(self, part: BulkPart) -> None:
        """Record the end of the message of a part."""
        pending, rows = part.pending, part.rows
        error = pending.error
        if isinstance(error, MessageTooLarge) and len(rows) > 1:
            self._retries.extend(part.halves())
            return
        if error is None:
            self._receipts.append((part.first, len(rows)))
            for origin in part.origins:
                origin.broker, origin.store, origin.sent = pending.broker, pending.store, True
        elif isinstance(error, BrokerUnavailable):
            self._stopped = self._stopped or error
        if error is not None or pending.refused:
            self._record_failures(part)

    def _record_failures(self, part: BulkPart) -> None:
        error, refused = part.pending.error, part.pending.refused
        maybe = isinstance(error, BrokerUnavailable) and error.maybe_accepted
        for position, (job_id, *_) in enumerate(part.rows):
            if error is not None:
                status = "unknown" if maybe else "refused"
                self._failed[part.first + position] = (status, error)
            elif position in refused:
                refused_error = refusal(*refused[position], job_id)
                self._failed[part.first + position] = ("refused", refused_error)

    def result(self) -> list[Job[Any]]:
        """Return the handles of all jobs, in order.

        Raises:
            BatchError: Some were not confirmed; its ``jobs`` name them, with the reasons.
        """
        if self._stopped is None and not self._failed:
            return self._source.jobs
        self._source.make_remaining()
        ends = dict.fromkeys(range(len(self._source.jobs)), ("refused", self._stopped))
        for first, count in self._receipts:
            ends.update(dict.fromkeys(range(first, first + count), ("confirmed", None)))
        ends.update(self._failed)
        jobs = [(job, *ends[position]) for position, job in enumerate(self._source.jobs)]
        unconfirmed = [entry for entry in jobs if entry[1] != "confirmed"]
        raise BatchError(
            f"{len(unconfirmed)} of {len(jobs)} jobs were not confirmed; the first: "
            f"{unconfirmed[0][2]}",
            jobs=jobs,
        ) from unconfirmed[0][2]


@dataclass(slots=True, eq=False)
class BulkPart:
    """One message of a bulk submission.

    Args:
        first: Position of its first job in the submission.
        templates: (queue, headers) pairs.
        rows: (id, index into ``templates``, body) per job.
        origins: Origins of the handles; filled in with the receipt.
    """

    first: int
    templates: list[tuple[str, str]]
    rows: list[tuple[str, int, bytes]]
    origins: list[JobOrigin]
    pending: PendingSubmit = field(default_factory=lambda: PendingSubmit([]), init=False)

    def halves(self) -> list[BulkPart]:
        """Return two parts of half the size."""
        middle = len(self.rows) // 2
        rows = self.rows[:middle], self.rows[middle:]
        firsts = self.first, self.first + middle
        return [self._part(first, half) for first, half in zip(firsts, rows, strict=True)]

    def _part(self, first: int, rows: Sequence[tuple[str, int, bytes]]) -> BulkPart:
        """Return a part of some rows, with the templates that they use: others are refused."""
        indexes: dict[int, int] = {}
        used = [
            (job_id, indexes.setdefault(index, len(indexes)), body) for job_id, index, body in rows
        ]
        return BulkPart(first, [self.templates[index] for index in indexes], used, self.origins)

    def pack(self, message_id: str, deadline: float) -> None:
        """Make the message."""
        count = len(self.rows)
        body = encode_batch(self.templates, self.rows)
        queue = self.templates[0][0]
        frames = Request(message_id, queue, f"ack-requested,batch:{count}", body).frames()
        self.pending = PendingSubmit(frames, id=message_id, deadline=deadline, count=count)


class BulkSource(Protocol):
    """Makes the parts of a bulk submission."""

    #: The handles made so far, in order.
    jobs: list[Job[Any]]

    def part(self) -> BulkPart | None:
        """Return the next part, None after the last; raises the errors of encoding."""

    def make_remaining(self) -> None:
        """Make the handles of the jobs that are in no part yet."""


class CallSource:
    """Parts of calls that share a template.

    Args:
        template: The template.
        calls: Argument tuples.
        kwargs: Keyword arguments of every call.
        ids: Makes job ids.
        results: Result client of the handles.
    """

    def __init__(
        self,
        template: Template,
        calls: Sequence[Sequence[Any]],
        kwargs: Mapping[str, Any],
        *,
        ids: IdFactory,
        results: ResultClient,
    ) -> None:
        self.jobs: list[Job[Any]] = []
        self._template = template
        self._calls = calls
        self._kwargs = kwargs
        self._ids = ids
        self._results = results

    # hot loop: python -m benchmarks enqueue_bulk
    def part(self) -> BulkPart | None:
        """Encode the next part."""
        first = len(self.jobs)
        calls = self._calls[first : first + PART_JOBS]
        if not calls:
            return None
        template, kwargs, results = self._template, self._kwargs, self._results
        queue = template.queue
        origin = JobOrigin(template.headers.task, sent=False, results=template.results)
        ids, size = self._ids.new_many(len(calls)), 0
        rows: list[tuple[str, int, bytes]] = []
        indexes: dict[str, int] = {}
        for job_id, headers, body in template.bodies(ids, calls, kwargs):
            size += len(body)
            # Too much for one message: the job goes into the next part.
            if size > PART_BYTES and rows:
                break
            rows.append((job_id, indexes.setdefault(headers, len(indexes)), body))
        self.jobs += [Job(row[0], results, origin) for row in rows]
        return BulkPart(first, [(queue, headers) for headers in indexes], rows, [origin])

    def make_remaining(self) -> None:
        """Make the handles of the jobs that were not encoded."""
        remaining = len(self._calls) - len(self.jobs)
        origin = JobOrigin(self._template.headers.task, sent=False)
        self.jobs += [
            Job(job_id, self._results, origin) for job_id in self._ids.new_many(remaining)
        ]


class EncodedSource:
    """Parts of jobs that are encoded already and have handles.

    Args:
        entries: (handle, job) pairs.
    """

    def __init__(self, entries: Sequence[tuple[Job[Any], EncodedJob]]) -> None:
        self.jobs = [job for job, _ in entries]
        self._entries = entries
        self._packed = 0

    def part(self) -> BulkPart | None:
        """Collect the next part."""
        first, size = self._packed, 0
        rows: list[tuple[str, int, bytes]] = []
        indexes: dict[tuple[str, str], int] = {}
        for _, encoded in self._entries[first : first + PART_JOBS]:
            size += len(encoded.body)
            if size > PART_BYTES and rows:
                break
            index = indexes.setdefault((encoded.queue, encoded.headers), len(indexes))
            rows.append((encoded.id, index, encoded.body))
        self._packed += len(rows)
        origins = [job.origin for job in self.jobs[first : self._packed]]
        return BulkPart(first, list(indexes), rows, origins) if rows else None

    def make_remaining(self) -> None:
        """Do nothing, since all jobs have handles."""
