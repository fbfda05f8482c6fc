"""Submits jobs: writes them, runs the middlewares, hands them over and waits for the receipt."""

from __future__ import annotations

from collections import deque
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from eventmq.client.events import Followed
from eventmq.client.handle import Job, Origin
from eventmq.client.outcomes import refusal
from eventmq.client.requests import PendingSubmit
from eventmq.client.templates import END, RECEIPT
from eventmq.errors import BatchError, BrokerUnavailable, MessageTooLarge, NotAllowed
from eventmq.headers import Headers, format_headers, parse_headers
from eventmq.interfaces import Submission, current
from eventmq.wire.batches import encode_batch
from eventmq.wire.commands import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextvars import Token
    from types import TracebackType

    from typing_extensions import Self

    from eventmq.client.client import ClientRunner
    from eventmq.client.handle import Results
    from eventmq.client.io_loop import AsyncWaiter, Waiter
    from eventmq.client.templates import Template, Written
    from eventmq.interfaces import JobContext, Middleware
    from eventmq.job import IdFactory

__all__ = [
    "IN_FLIGHT",
    "PART_BYTES",
    "PART_JOBS",
    "Batch",
    "CallSource",
    "Delivery",
    "LineageMarker",
    "Part",
    "Source",
    "Submitter",
    "WrittenSource",
    "open_batch",
    "related",
]


#: Messages that wait for their receipt at a time: enough to keep the broker busy.
IN_FLIGHT = 4


class Delivery:
    """One bulk submission.

    Args:
        source: Where the parts come from.
        new_id: Makes ids of messages.
        deadline: Says when a message that is sent now is to be given up.
    """

    def __init__(
        self, source: Source, *, new_id: Callable[[], str], deadline: Callable[[], float]
    ) -> None:
        self._source = source
        self._new_id = new_id
        self._deadline = deadline
        self._again: deque[Part] = deque()
        self._sent = 0
        #: (place of the first job, number of jobs) of parts with a receipt.
        self._receipts: list[tuple[int, int]] = []
        #: Places of jobs that were not confirmed.
        self._failed: dict[int, tuple[str, Exception | None]] = {}
        self._stopped: Exception | None = None

    def next(self) -> Part | None:
        """Return the next part with its message, or None if there is nothing to send.

        Raises:
            SerializationError: A job of the first part cannot be encoded; nothing was sent.
        """
        if self._stopped is not None:
            return None
        try:
            part = self._again.popleft() if self._again else self._source.part()
        except Exception as error:
            if not self._sent:
                raise
            self._stopped = error
            return None
        if part is not None:
            self._sent += 1
            part.pack(self._new_id(), self._deadline())
        return part

    def settled(self, part: Part) -> None:
        """Take note of how the message of a part ended."""
        pending, rows = part.pending, part.rows
        error = pending.error
        if isinstance(error, MessageTooLarge) and len(rows) > 1:
            self._again.extend(part.halves())
            return
        if error is None:
            self._receipts.append((part.first, len(rows)))
            for origin in part.origins:
                origin.broker, origin.store, origin.sent = pending.broker, pending.store, True
        elif isinstance(error, BrokerUnavailable):
            self._stopped = self._stopped or error
        if error is not None or pending.refused:
            self._note(part)

    def _note(self, part: Part) -> None:
        error, refused = part.pending.error, part.pending.refused
        maybe = isinstance(error, BrokerUnavailable) and error.maybe_accepted
        for position, (job_id, *_) in enumerate(part.rows):
            if error is not None:
                status = "unknown" if maybe else "refused"
                self._failed[part.first + position] = (status, error)
            elif position in refused:
                why = refusal(*refused[position], job_id)
                self._failed[part.first + position] = ("refused", why)

    def result(self) -> list[Job[Any]]:
        """Return the handles of all jobs, in order.

        Raises:
            BatchError: Some were not confirmed; it says which, and why.
        """
        if self._stopped is None and not self._failed:
            return self._source.jobs
        self._source.rest()
        ends = dict.fromkeys(range(len(self._source.jobs)), ("refused", self._stopped))
        for first, count in self._receipts:
            ends.update(dict.fromkeys(range(first, first + count), ("confirmed", None)))
        ends.update(self._failed)
        jobs = [(job, *ends[place]) for place, job in enumerate(self._source.jobs)]
        lost = [entry for entry in jobs if entry[1] != "confirmed"]
        msg = f"{len(lost)} of {len(jobs)} jobs were not confirmed; the first: {lost[0][2]}"
        raise BatchError(msg, jobs=jobs) from lost[0][2]


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

    __slots__ = ("first", "origins", "pending", "rows", "templates")

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
        self.pending = PendingSubmit([])

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
        self.pending = PendingSubmit(frames, id=message_id, deadline=deadline, count=count)


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


_innermost: ContextVar[Batch | None] = ContextVar("eventmq_batch", default=None)


def open_batch(submitter: Submitter) -> Batch | None:
    """Return the innermost open batch of a submitter in this thread or coroutine."""
    batch = _innermost.get()
    while batch is not None and (batch.submitter is not submitter or batch.closed):
        batch = batch.outer
    return batch


class Batch:
    """A context manager, for ``with`` and ``async with``; made by ``app.batch()``.

    Handles of jobs inside can be used after the exit. An exception inside sends nothing. A batch
    within a batch of the same app joins it, and is sent with it.

    Raises at the exit:
        BatchError: Some jobs were not confirmed.
    """

    def __init__(self, submitter: Submitter) -> None:
        self.submitter = submitter
        self.outer: Batch | None = None
        self.closed = False
        self._entries: list[tuple[Job[Any], Written]] = []
        self._token: Token[Batch | None] | None = None

    def add(self, job: Job[Any], written: Written) -> None:
        """Keep a job until the exit."""
        self._entries.append((job, written))

    def __len__(self) -> int:
        return len(self._entries)

    def __enter__(self) -> Self:
        if self._token is not None:
            raise RuntimeError("a batch is entered once; make another with app.batch()")
        self.outer = _innermost.get()
        self._token = _innermost.set(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        entries = self._leave(failed=kind is not None)
        if entries:
            self.submitter.deliver(WrittenSource(entries))

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        entries = self._leave(failed=kind is not None)
        if entries:
            await self.submitter.adeliver(WrittenSource(entries))

    def _leave(self, *, failed: bool) -> list[tuple[Job[Any], Written]]:
        """Close the batch and return what is to be sent now."""
        self.closed = True
        if self._token is not None:
            _innermost.reset(self._token)
        entries, self._entries = self._entries, []
        if failed:
            return []
        outer = open_batch(self.submitter)
        if outer is None:
            return entries
        for job, written in entries:
            outer.add(job, written)
        return []


class LineageMarker:
    """Marks the templates of jobs. Thread-safe."""

    def __init__(self) -> None:
        #: A task often submits many jobs of one template: (its job, template, marked template).
        self._last: tuple[JobContext, Template, Template] | None = None

    def mark(self, template: Template) -> Template:
        """Return the template as the running job submits it; as it is where there is none."""
        job = current.get(None)
        if job is None:
            return template
        last = self._last
        if last is not None and last[0] is job and last[1] is template:
            return last[2]
        more = _lacking(template.headers, job)
        marked = template.extended(more) if more else template
        self._last = job, template, marked
        return marked


def related(written: Written) -> Written:
    """Return a job that has no template, as the running job submits it.

    A graph stays as it is: the jobs in it say it.
    """
    job = current.get(None)
    if job is None or written.headers.startswith("nodes:"):
        return written
    extra = tuple(_lacking(parse_headers(written.headers), job).items())
    texts = [text for text in (written.headers, format_headers(Headers(extra=extra))) if text]
    return written._replace(headers=",".join(texts))


def _lacking(headers: Headers, job: JobContext) -> dict[str, str]:
    """Return what a job says of the running one, without what its caller has said."""
    said = dict(headers.extra)
    return {name: value for name, value in job.lineage().items() if name not in said}


class Submitter:
    """Submits jobs of one app. Thread-safe.

    Args:
        runner: Talks to the brokers.
        results: For the handles.
        ids: Makes job ids.
        timeout: Seconds to wait for a receipt.
        middleware: Outermost first; only its ``submit`` is used.
    """

    def __init__(
        self,
        runner: ClientRunner,
        results: Results,
        *,
        ids: IdFactory,
        timeout: float,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        self._runner = runner
        self._results = results
        self._ids = ids
        self._timeout = timeout
        self._around = [m.submit for m in middleware if hasattr(m, "submit")]
        #: Says whose job submits a template.
        self.mark = LineageMarker().mark

    # One job

    def submit(
        self, template: Template, args: Any, kwargs: Mapping[str, Any], job_id: str | None = None
    ) -> Job[Any]:
        """Submit one job and wait for its receipt; inside a batch, only keep it.

        Raises:
            SerializationError: The arguments cannot be encoded.
            BrokerUnavailable: There was no receipt in time.
            SubmitError: The broker refused the job.
        """
        batch = open_batch(self)
        if batch is not None:
            return self._write(template, args, kwargs, job_id, self._collect(batch.add))
        return self._write(template, args, kwargs, job_id, self._send)

    async def asubmit(
        self, template: Template, args: Any, kwargs: Mapping[str, Any], job_id: str | None = None
    ) -> Job[Any]:
        """Do the same as `submit` in a coroutine.

        Middlewares see the job leave; what they do after ``proceed`` runs before the receipt.
        """
        batch = open_batch(self)
        if batch is not None:
            return self._write(template, args, kwargs, job_id, self._collect(batch.add))
        entries: list[tuple[Job[Any], Written]] = []
        sink = self._collect(lambda job, written: entries.append((job, written)))
        job = self._write(template, args, kwargs, job_id, sink)
        for each, written in entries:
            await self._asend(each, written)
        return job

    def submit_raw(self, written: Written) -> Job[Any]:
        """Submit a body as it is, without serializer and middleware."""
        batch = open_batch(self)
        sink = self._send if batch is None else self._collect(batch.add)
        return sink(related(written), Origin(sent=False))

    async def asubmit_raw(self, written: Written) -> Job[Any]:
        """Do the same as `submit_raw` in a coroutine."""
        written = related(written)
        job: Job[Any] = Job(written.id, self._results, Origin(sent=False))
        batch = open_batch(self)
        if batch is not None:
            batch.add(job, written)
        else:
            await self._asend(job, written)
        return job

    def follow(
        self, written: Written, on_end: Callable[[Job[Any], Exception | None], None]
    ) -> Job[Any]:
        """Submit a body as it is, and call back when the job has ended or could not be submitted.

        Args:
            written: The job.
            on_end: See `eventmq.client.events.Followed`.

        Raises:
            BrokerUnavailable: The client was closed.
        """
        job: Job[Any] = Job(written.id, self._results, Origin(sent=False))
        pending = self._pending_submit(written, END)
        followed = Followed(
            job, pending, self._results, on_receipt=lambda job, p: _place(job.origin, p),
            on_end=on_end,
        )  # fmt: skip
        followed.begin()
        return job

    def _write(
        self,
        template: Template,
        args: Any,
        kwargs: Mapping[str, Any],
        job_id: str | None,
        sink: Callable[[Written, Origin], Job[Any]],
    ) -> Job[Any]:
        """Write a job, with the middlewares around it, and give it to ``sink``."""
        job_id = job_id or self._ids.new()
        template = self.mark(template)
        task, queue = template.headers.task, template.queue
        if not self._around:
            return sink(template.write(job_id, args, kwargs), Origin(task, sent=False))
        proceed: Callable[[Submission], Any] = partial(_proceed, template, sink)
        for around in reversed(self._around):
            proceed = partial(_nest, around, proceed)
        submission = Submission(task, tuple(args), dict(kwargs), job_id, queue)
        return proceed(submission)  # type: ignore[no-any-return]

    def _pending_submit(self, written: Written, wishes: str) -> PendingSubmit:
        """Return the REQUEST for a job; a graph has no end of its own that could be asked for."""
        deadline = self._runner.deadline(self._timeout)
        if written.headers.startswith("nodes:"):
            return PendingSubmit(written.frames(), id=written.id, deadline=deadline, needs="graph")
        asks = wishes != RECEIPT
        return PendingSubmit(written.frames(wishes), id=written.id, deadline=deadline, asks=asks)

    def _send(self, written: Written, origin: Origin) -> Job[Any]:
        predictor = self._results.predictor
        pending = self._pending_submit(written, predictor.submitting(written.id))
        self._runner.send(pending)
        predictor.submitted()
        _place(origin, pending)
        return Job(written.id, self._results, origin)

    async def _asend(self, job: Job[Any], written: Written) -> None:
        predictor = self._results.predictor
        pending = self._pending_submit(written, predictor.submitting(written.id))
        await self._runner.asend(pending)
        predictor.submitted()
        _place(job.origin, pending)

    def _collect(
        self, add: Callable[[Job[Any], Written], None]
    ) -> Callable[[Written, Origin], Job[Any]]:
        """Return a sink that keeps jobs for later."""

        def sink(written: Written, origin: Origin) -> Job[Any]:
            job: Job[Any] = Job(written.id, self._results, origin)
            add(job, written)
            return job

        return sink

    # Graphs

    @property
    def results(self) -> Results:
        """What handles ask."""
        return self._results

    def begin_graph(self, count: int) -> list[str]:
        """Return ids for the jobs of a graph.

        Raises:
            NotAllowed: A batch is open.
        """
        if open_batch(self) is not None:
            msg = "a chain, group or chord is a message by itself: submit it outside app.batch()"
            raise NotAllowed(msg)
        return self._ids.new_many(count)

    @property
    def writer(self) -> Callable[..., Written] | None:
        """Writes (template, args, kwargs, id) through the middlewares; None without any."""
        return self._write_one if self._around else None

    def _write_one(
        self, template: Template, args: Any, kwargs: Mapping[str, Any], job_id: str
    ) -> Written:
        found: list[Written] = []
        sink = self._collect(lambda _, written: found.append(written))
        self._write(template, args, kwargs, job_id, sink)
        if len(found) != 1:
            msg = f"a middleware kept a job of task {template.headers.task!r} back, which is part "
            raise NotAllowed(f"{msg}of a graph: the graph goes out whole, or raise an exception")
        return found[0]

    # Many jobs

    def submit_many(
        self, template: Template, calls: Iterable[Sequence[Any]], kwargs: Mapping[str, Any]
    ) -> list[Job[Any]]:
        """Submit one job per argument tuple and wait for the receipts.

        Raises:
            SerializationError: The first jobs cannot be encoded; nothing was sent.
            BatchError: Some jobs were not confirmed.
        """
        return self.deliver(self._source(template, calls, kwargs))

    async def asubmit_many(
        self, template: Template, calls: Iterable[Sequence[Any]], kwargs: Mapping[str, Any]
    ) -> list[Job[Any]]:
        """Do the same as `submit_many` in a coroutine."""
        return await self.adeliver(self._source(template, calls, kwargs))

    def _source(
        self, template: Template, calls: Iterable[Sequence[Any]], kwargs: Mapping[str, Any]
    ) -> Source:
        calls = list(calls)
        batch = open_batch(self)
        if batch is None and not self._around:
            template = self.mark(template)
            return CallSource(template, calls, kwargs, ids=self._ids, results=self._results)
        entries: list[tuple[Job[Any], Written]] = []
        sink = self._collect(lambda job, written: entries.append((job, written)))
        for args in calls:
            self._write(template, args, kwargs, None, sink)
        if batch is None:
            return WrittenSource(entries)
        for job, written in entries:
            batch.add(job, written)
        return WrittenSource([])

    def deliver(self, source: Source) -> list[Job[Any]]:
        """Send many jobs in parts, several at a time, and wait for the receipts."""
        return self.begin_delivery(source)()

    def begin_delivery(self, source: Source) -> Callable[[], list[Job[Any]]]:
        """Send the first parts of many jobs; what is returned does the rest of `deliver`."""
        delivery = self._delivery(source)
        open_parts: deque[tuple[Part, Waiter]] = deque()
        self._send_parts(delivery, open_parts)
        return partial(self._finish, delivery, open_parts)

    def _send_parts(self, delivery: Delivery, open_parts: deque[tuple[Part, Waiter]]) -> None:
        while len(open_parts) < IN_FLIGHT and (part := delivery.next()) is not None:
            open_parts.append((part, self._runner.start(part.pending)))

    def _finish(self, delivery: Delivery, open_parts: deque[tuple[Part, Waiter]]) -> list[Job[Any]]:
        while open_parts:
            part, waiter = open_parts.popleft()
            self._runner.wait_until_done(part.pending, waiter)
            delivery.settled(part)
            self._send_parts(delivery, open_parts)
        return delivery.result()

    async def adeliver(self, source: Source) -> list[Job[Any]]:
        """Do the same as `deliver` in a coroutine."""
        delivery = self._delivery(source)
        open_parts: deque[tuple[Part, AsyncWaiter]] = deque()
        while True:
            part = delivery.next() if len(open_parts) < IN_FLIGHT else None
            if part is not None:
                open_parts.append((part, self._runner.astart(part.pending)))
            elif open_parts:
                part, waiter = open_parts.popleft()
                await self._runner.await_until_done(part.pending, waiter)
                delivery.settled(part)
            else:
                return delivery.result()

    def _delivery(self, source: Source) -> Delivery:
        runner, timeout = self._runner, self._timeout
        return Delivery(source, new_id=self._ids.new, deadline=lambda: runner.deadline(timeout))


def _place(origin: Origin, pending: PendingSubmit) -> None:
    """Note which broker took a job, and whether it has said so."""
    origin.broker, origin.store, origin.sent = pending.broker, pending.store, True
    origin.confirmed = pending.confirmed


def _nest(
    around: Callable[..., Any], proceed: Callable[[Submission], Any], submission: Submission
) -> Any:
    return around(submission, proceed)


def _proceed(
    template: Template, sink: Callable[[Written, Origin], Job[Any]], submission: Submission
) -> Job[Any]:
    """Write what the innermost middleware let through."""
    if submission.headers:
        template = template.extended(submission.headers)
    written = template.write(submission.job_id, submission.args, submission.kwargs)
    return sink(written, Origin(submission.task, sent=False))
