"""Submission of jobs: encodes them within the middlewares, sends them and waits for receipts.

`Submitter` is what tasks use. A `SubmitBatch` collects jobs for one submission at its exit. Many
jobs travel as an `eventmq.client.bulk.BulkSubmit`. `LineageMarker` adds the headers that name the
running job as the parent. A `TrackedJob` follows one job by callback, from its submission to its
end.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

from eventmq.client.bulk import BulkSubmit, CallSource, EncodedSource
from eventmq.client.graphs import make_handle, write_graph
from eventmq.client.handle import DEFAULT, Job, JobOrigin
from eventmq.client.requests import PendingSubmit, take_answer
from eventmq.client.templates import ACK_AND_REPLY_REQUESTED, ACK_REQUESTED, LATE_ACK
from eventmq.errors import BrokerUnavailable, NotAllowed
from eventmq.headers import Headers, add_headers, parse_headers
from eventmq.interfaces import Submission, SubmissionBatch, SubmissionHook, current

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextvars import Token
    from types import TracebackType

    from typing_extensions import Self

    from eventmq.client.bulk import BulkPart, BulkSource
    from eventmq.client.client import ClientRunner, Pending, Steps
    from eventmq.client.graphs import GraphMember
    from eventmq.client.handle import Default, ResultClient
    from eventmq.client.requests import PendingCall
    from eventmq.client.templates import EncodedJob, Template
    from eventmq.graph import Plan
    from eventmq.interfaces import JobContext, Middleware
    from eventmq.job import IdFactory

__all__ = [
    "IN_FLIGHT",
    "LineageMarker",
    "SubmitBatch",
    "Submitter",
    "TrackedJob",
    "open_batch",
    "with_lineage",
]

logger = logging.getLogger(__name__)

#: Maximum number of messages without a receipt at a time: enough to keep the broker busy.
IN_FLIGHT = 4

#: Largest timeout, in seconds, of a call or its submission that is too short for a late receipt: a
#: second, and as much for its transport.
LATE_RECEIPT = 2.0

_GRAPH_IN_BATCH = "a chain, group or chord is a message by itself: submit it outside app.batch()"


class Submitter:
    """Submits jobs of one app. Thread-safe.

    Args:
        runner: Exchanges messages with the brokers.
        results: Result client of the handles.
        ids: Makes job ids.
        timeout: Seconds to wait for a receipt.
        middleware: Middlewares, the outermost first; only ``submit`` is used.
    """

    def __init__(
        self,
        runner: ClientRunner,
        results: ResultClient,
        *,
        ids: IdFactory,
        timeout: float,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        self._runner = runner
        self._results = results
        self._ids = ids
        self._timeout = timeout
        self._around = [m.submit for m in middleware if isinstance(m, SubmissionHook)]
        #: Adds the lineage of the running job to a template.
        self.mark = LineageMarker().mark

    # One job

    def submit(
        self, template: Template, args: Any, kwargs: Mapping[str, Any], job_id: str | None = None
    ) -> Job[Any]:
        """Submit one job and wait for its receipt; inside a batch, only collect it.

        Raises:
            SerializationError: The arguments cannot be encoded.
            BrokerUnavailable: There was no receipt in time.
            SubmitError: The broker refused the job.
        """
        batch = open_batch(self)
        if batch is not None:
            sink = self._collect(batch.add)
            return self._with_middlewares(template, args, kwargs, job_id, sink, batch.shared)
        return self._with_middlewares(template, args, kwargs, job_id, self._submit)

    def asubmit(
        self, template: Template, args: Any, kwargs: Mapping[str, Any], job_id: str | None = None
    ) -> Pending[Job[Any]]:
        """Do the same as `submit`, in a coroutine.

        The code of middlewares after ``proceed`` runs before the receipt.
        """
        batch = open_batch(self)
        entries: list[tuple[Job[Any], EncodedJob]] = []
        shared = batch.shared if batch is not None else None
        add = batch.add if batch is not None else lambda *entry: entries.append(entry)
        job = self._with_middlewares(template, args, kwargs, job_id, self._collect(add), shared)

        def steps() -> Steps[Job[Any]]:
            for each, encoded in entries:
                yield from self._submitting(each, encoded)
            return job

        return self._runner.run(steps())

    def call(
        self,
        template: Template,
        args: Any,
        kwargs: Mapping[str, Any],
        job_id: str | None = None,
        *,
        timeout: float | Default | None = DEFAULT,
    ) -> Pending[Job[Any]]:
        """Submit one job and wait for its end, in one exchange; `Job.get` then has its result.

        The code of middlewares after ``proceed`` runs before the job is sent. If a middleware
        returns the handle of another job, the call waits for the end of that one.

        Args:
            template: As for `submit`.
            args: Positional arguments.
            kwargs: Keyword arguments.
            job_id: The id of the job; made here if None.
            timeout: Total seconds, as in `Job.get`.

        Raises:
            NotAllowed: A batch is open, or a middleware returned no handle; nothing was sent.
            SerializationError: The arguments cannot be encoded.
            BrokerUnavailable: When it is waited for: there was no receipt in time.
            SubmitError: When it is waited for: the broker refused the job.
            ResultTimeout: When it is waited for: the job did not end in time.
        """
        if open_batch(self) is not None:
            raise NotAllowed(
                "call() waits for a result, and a batch is sent at its end: use delay() in it"
            )
        seconds = self._results.timeout(timeout)
        entries: list[tuple[Job[Any], EncodedJob]] = []
        sink = self._collect(lambda *entry: entries.append(entry))
        job = self._with_middlewares(template, args, kwargs, job_id, sink)
        if job is None:
            raise NotAllowed(
                f"a middleware returned None instead of a handle of task {template.headers.task!r}"
                ", and call() waits for a job: return what proceed() returned"
            )

        def steps() -> Steps[Job[Any]]:
            deadline = self._runner.deadline(seconds)
            for each, encoded in entries:
                if each is not job:  # a middleware's own
                    yield from self._submitting(each, encoded)
                    continue
                end = self._results.end_of(job, timeout, self._pending_call(encoded, seconds))
                yield from self._results.ending(job, end, timeout)
            has_row = self._results.owns(job)
            if has_row and job.row is not None:
                return job
            remaining = (
                None if seconds is None else max(deadline - self._runner.clock.monotonic(), 0.0)
            )
            if has_row:
                yield from self._results.ending(job, self._results.end_of(job, remaining), timeout)
            else:  # a handle of another app, or of another type
                yield partial(job.get, remaining)
            return job

        return self._runner.run(steps())

    def _pending_call(self, encoded: EncodedJob, seconds: float | None) -> PendingSubmit:
        """Return the REQUEST for a job and its result."""
        # If either has to arrive before a late receipt would, request the receipt at once.
        late_receipt = all(each is None or each > LATE_RECEIPT for each in (seconds, self._timeout))
        pending = self._pending_submit(
            encoded, LATE_ACK if late_receipt else ACK_AND_REPLY_REQUESTED
        )
        pending.extension = "late-ack"
        pending.asks_for_result = True
        return pending

    def submit_raw(self, encoded: EncodedJob) -> Pending[Job[Any]]:
        """Submit a body unchanged, without serializer and middleware.

        Raises:
            NotAllowed: It is a graph, and a batch is open.
        """
        encoded = with_lineage(encoded)
        job: Job[Any] = Job(encoded.id, self._results, JobOrigin(sent=False))
        batch = open_batch(self)
        if batch is not None and encoded.headers.startswith("nodes:"):
            raise NotAllowed(_GRAPH_IN_BATCH)

        def steps() -> Steps[Job[Any]]:
            if batch is not None:
                batch.add(job, encoded)
            else:
                yield from self._submitting(job, encoded)
            return job

        return self._runner.run(steps())

    def track(
        self, encoded: EncodedJob, on_end: Callable[[Job[Any], Exception | None], None]
    ) -> Job[Any]:
        """Submit a body unchanged, and call back when the job has ended or was not submitted.

        Args:
            encoded: The job.
            on_end: See `TrackedJob`.

        Raises:
            BrokerUnavailable: The client was closed.
        """
        job: Job[Any] = Job(encoded.id, self._results, JobOrigin(sent=False))
        end = self._results.end_of(job, None, self._pending_call(encoded, None))
        TrackedJob(job, end, self._results, on_end=on_end).begin()
        return job

    def _with_middlewares(  # noqa: PLR0917 - for speed
        self,
        template: Template,
        args: Any,
        kwargs: Mapping[str, Any],
        job_id: str | None,
        sink: Callable[[EncodedJob, JobOrigin], Job[Any]],
        batch: SubmissionBatch | None = None,
        waits_for: Sequence[str] = (),
    ) -> Job[Any]:
        """Run the middlewares; inside them encode the job and pass it to ``sink``.

        On return ``sink`` has finished, including any sending and waiting for the receipt.
        """
        job_id = job_id or self._ids.new()
        template = self.mark(template)
        task, queue = template.headers.task, template.queue
        if not self._around:
            origin = JobOrigin(task, sent=False, results=template.results)
            return sink(template.write(job_id, args, kwargs), origin)
        proceed: Callable[[Submission], Any] = partial(_proceed, template, sink)
        for around in reversed(self._around):
            proceed = partial(_nest, around, proceed)
        submission = Submission(
            task, tuple(args), dict(kwargs), job_id, queue, batch=batch, waits_for=waits_for
        )
        return proceed(submission)  # type: ignore[no-any-return]

    def _pending_submit(self, encoded: EncodedJob, requested: str = ACK_REQUESTED) -> PendingSubmit:
        """Return the REQUEST for a job; a graph has no result of its own to request."""
        deadline = self._runner.deadline(self._timeout)
        if encoded.headers.startswith("nodes:"):
            return PendingSubmit(
                encoded.frames(), id=encoded.id, deadline=deadline, extension="graph"
            )
        return PendingSubmit(encoded.frames(requested), id=encoded.id, deadline=deadline)

    # hot loop: python -m benchmarks enqueue_one
    def _submit(self, encoded: EncodedJob, origin: JobOrigin) -> Job[Any]:
        pending = self._pending_submit(encoded)
        self._runner.wait(pending)
        if pending.error is not None:
            raise pending.error
        _set_broker(origin, pending)
        return Job(encoded.id, self._results, origin)

    def _submitting(self, job: Job[Any], encoded: EncodedJob) -> Steps[None]:
        """Return the steps that submit one job."""
        pending = self._pending_submit(encoded)
        yield from self._runner.sending(pending)
        _set_broker(job.origin, pending)

    def _collect(
        self, add: Callable[[Job[Any], EncodedJob], None]
    ) -> Callable[[EncodedJob, JobOrigin], Job[Any]]:
        """Return a sink that passes jobs with their handles to ``add``."""

        def sink(encoded: EncodedJob, origin: JobOrigin) -> Job[Any]:
            job: Job[Any] = Job(encoded.id, self._results, origin)
            add(job, encoded)
            return job

        return sink

    # Graphs

    @property
    def results(self) -> ResultClient:
        """The result client of handles."""
        return self._results

    def begin_graph(self, count: int) -> list[str]:
        """Return ids for the jobs of a graph.

        Raises:
            NotAllowed: A batch is open.
        """
        if open_batch(self) is not None:
            raise NotAllowed(_GRAPH_IN_BATCH)
        return self._ids.new_many(count)

    def submit_graph(
        self, parts: Sequence[GraphMember], plan: Plan, ids: Sequence[str], tree: Any
    ) -> Pending[Any]:
        """Submit a graph as one message.

        Args:
            parts: Its jobs by node index.
            plan: Which jobs wait for which.
            ids: Their ids.
            tree: The shape of the result.

        Raises:
            NotAllowed: A job is unique, or has no guarantee.
            SerializationError: Arguments cannot be encoded.
        """
        batch, encoded = self._write_graph(parts, plan, ids)

        def steps() -> Steps[Any]:
            job: Job[Any] = Job(encoded.id, self._results, JobOrigin(sent=False))
            with _reported(batch):
                yield from self._submitting(job, encoded)
            return make_handle(job, parts, ids, tree, self._results)

        return self._runner.run(steps())

    def encode_graph(
        self, parts: Sequence[GraphMember], plan: Plan, ids: Sequence[str], tree: Any
    ) -> tuple[Any, EncodedJob]:
        """Return the handle and the message of a graph, which is not sent; see `submit_graph`."""
        batch, encoded = self._write_graph(parts, plan, ids)
        batch.end()
        job: Job[Any] = Job(encoded.id, self._results, JobOrigin())
        return make_handle(job, parts, ids, tree, self._results), encoded

    def _write_graph(
        self, parts: Sequence[GraphMember], plan: Plan, ids: Sequence[str]
    ) -> tuple[SubmissionBatch, EncodedJob]:
        """Encode a graph, and return it with the state that middlewares share for its jobs."""
        batch = SubmissionBatch(graph=True)
        write = partial(self._encode_one, batch) if self._around else None
        with _reported(batch, end=False):
            return batch, write_graph(parts, plan, ids, write)

    def _encode_one(  # noqa: PLR0917 - called by one function
        self,
        batch: SubmissionBatch,
        template: Template,
        args: Any,
        kwargs: Mapping[str, Any],
        job_id: str,
        waits_for: Sequence[str],
    ) -> EncodedJob:
        """Encode a job of a graph through the middlewares."""
        collected: list[EncodedJob] = []
        sink = self._collect(lambda _, encoded: collected.append(encoded))
        self._with_middlewares(template, args, kwargs, job_id, sink, batch, waits_for)
        if len(collected) != 1:
            raise NotAllowed(
                f"a middleware kept a job of task {template.headers.task!r} back, which is part "
                "of a graph: the graph goes out whole, or raise an exception"
            )
        return collected[0]

    # Jobs that are sent later

    def encode(
        self, template: Template, args: Any, kwargs: Mapping[str, Any], job_id: str | None = None
    ) -> tuple[Job[Any], EncodedJob]:
        """Return the handle and the message of one job, which is not sent.

        Raises:
            NotAllowed: A middleware held the job back.
            SerializationError: The arguments cannot be encoded.
        """
        entries: list[tuple[Job[Any], EncodedJob]] = []
        sink = self._collect(lambda *entry: entries.append(entry))
        self._with_middlewares(template, args, kwargs, job_id, sink)
        if len(entries) != 1:
            raise NotAllowed(
                f"a middleware kept a job of task {template.headers.task!r} back: it cannot be "
                "encoded to be sent later"
            )
        job, encoded = entries[0]
        job.origin.sent = True
        return job, encoded

    # Many jobs

    def submit_many(
        self, template: Template, calls: Iterable[Sequence[Any]], kwargs: Mapping[str, Any]
    ) -> Pending[list[Job[Any]]]:
        """Submit one job per argument tuple; inside a batch, only collect them.

        Raises:
            BrokerUnavailable: The client was closed; nothing was sent.
            SerializationError: The first jobs cannot be encoded; nothing was sent.
            BatchError: When it is waited for: some jobs were not confirmed.
        """
        shared = SubmissionBatch()
        with _reported(shared, end=False):
            source = self._source(template, calls, kwargs, shared)
        return self.send_bulk(source, shared)

    def _source(
        self,
        template: Template,
        calls: Iterable[Sequence[Any]],
        kwargs: Mapping[str, Any],
        shared: SubmissionBatch,
    ) -> BulkSource:
        """Return the source of the jobs; ``shared`` is for those outside an open batch."""
        calls = list(calls)
        batch = open_batch(self)
        if batch is not None:
            shared = batch.shared
        if batch is None and not self._around:
            template = self.mark(template)
            return CallSource(template, calls, kwargs, ids=self._ids, results=self._results)
        entries: list[tuple[Job[Any], EncodedJob]] = []
        sink = self._collect(lambda job, encoded: entries.append((job, encoded)))
        for args in calls:
            self._with_middlewares(template, args, kwargs, None, sink, shared)
        if batch is None:
            return EncodedSource(entries)
        for job, encoded in entries:
            batch.add(job, encoded)
        source = EncodedSource([])
        source.jobs = [job for job, _ in entries]
        return source

    def send_bulk(
        self, source: BulkSource, shared: SubmissionBatch | None = None
    ) -> Pending[list[Job[Any]]]:
        """Send many jobs in parts, several at a time; the first ones at once.

        Args:
            source: The jobs.
            shared: State that middlewares share for these jobs.

        Raises:
            BrokerUnavailable: The client was closed; nothing was sent.
            SerializationError: The first jobs cannot be encoded; nothing was sent.
            BatchError: When it is waited for: some jobs were not confirmed.
        """
        bulk = self._bulk_submit(source)
        open_parts: deque[BulkPart] = deque()
        shared = shared or SubmissionBatch()
        with _reported(shared, end=False):
            self._send_parts(bulk, open_parts)

        def steps() -> Steps[list[Job[Any]]]:
            with _reported(shared):
                while open_parts:
                    part = open_parts.popleft()
                    yield part.pending
                    bulk.ended(part)
                    self._send_parts(bulk, open_parts)
                return bulk.result()

        return self._runner.run(steps())

    def _send_parts(self, bulk: BulkSubmit, open_parts: deque[BulkPart]) -> None:
        while len(open_parts) < IN_FLIGHT and (part := bulk.next()) is not None:
            try:
                self._runner.begin(part.pending)
            except BrokerUnavailable as error:  # the client was closed
                if not bulk.started:
                    raise
                part.pending.done, part.pending.error = True, error
            bulk.started = True
            open_parts.append(part)

    def _bulk_submit(self, source: BulkSource) -> BulkSubmit:
        runner, timeout = self._runner, self._timeout
        return BulkSubmit(source, new_id=self._ids.new, deadline=lambda: runner.deadline(timeout))


@contextmanager
def _reported(batch: SubmissionBatch, *, end: bool = True) -> Iterator[None]:
    """Report an exception of a ``with`` block to middlewares; also its end, if ``end`` is true."""
    try:
        yield
    except BaseException as error:
        batch.end(error)
        raise
    if end:
        batch.end()


def _set_broker(origin: JobOrigin, pending: PendingSubmit) -> None:
    """Record which broker has a job, and whether it confirmed it."""
    origin.broker, origin.store, origin.sent = pending.broker, pending.store, True
    origin.confirmed = pending.confirmed


def _nest(
    around: Callable[..., Any], proceed: Callable[[Submission], Any], submission: Submission
) -> Any:
    return around(submission, proceed)


def _proceed(
    template: Template, sink: Callable[[EncodedJob, JobOrigin], Job[Any]], submission: Submission
) -> Job[Any]:
    """Encode the job that the innermost middleware passed on."""
    encoded = template.write(submission.job_id, submission.args, submission.kwargs)
    if submission.headers:  # making headers and their text again takes 40 us
        text = add_headers(encoded.headers, submission.headers.items())
        encoded = encoded._replace(headers=text)
    return sink(encoded, JobOrigin(submission.task, sent=False, results=template.results))


class SubmitBatch:
    """Collects jobs and sends them at its exit: ``with app.batch():``, or ``async with``.

    Handles of jobs inside can be used after the exit. An exception inside sends nothing. A batch
    within a batch of the same app joins it, and is sent with it.

    Raises at the exit:
        BatchError: Some jobs were not confirmed.
    """

    def __init__(self, submitter: Submitter) -> None:
        self.submitter = submitter
        self.outer: SubmitBatch | None = None
        self.closed = False
        #: State that middlewares share for its jobs.
        self.shared = SubmissionBatch()
        self._entries: list[tuple[Job[Any], EncodedJob]] = []
        self._token: Token[SubmitBatch | None] | None = None

    def add(self, job: Job[Any], encoded: EncodedJob) -> None:
        """Keep a job until the exit."""
        self._entries.append((job, encoded))

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
        self._leave(error).wait()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._leave(error)

    def _leave(self, error: BaseException | None) -> Pending[list[Job[Any]]]:
        """Close the batch; send its jobs, unless it failed or is part of another batch."""
        self.closed = True
        if self._token is not None:
            _innermost.reset(self._token)
        entries, self._entries = self._entries if error is None else [], []
        if error is not None:
            self.shared.end(error)
        outer = open_batch(self.submitter)
        if outer is not None:
            outer._entries += entries  # noqa: SLF001 - of this class
            outer.shared.on_end(self.shared.end)
            return self.submitter.send_bulk(EncodedSource([]))
        return self.submitter.send_bulk(EncodedSource(entries), self.shared)


_innermost: ContextVar[SubmitBatch | None] = ContextVar("eventmq_batch", default=None)


def open_batch(submitter: Submitter) -> SubmitBatch | None:
    """Return the innermost open batch of a submitter in this thread or coroutine."""
    batch = _innermost.get()
    while batch is not None and (batch.submitter is not submitter or batch.closed):
        batch = batch.outer
    return batch


class LineageMarker:
    """Adds to templates the lineage of jobs that a running job submits. Thread-safe."""

    def __init__(self) -> None:
        #: (running job, template, marked template); a task often submits many jobs of one template.
        self._last: tuple[JobContext, Template, Template] | None = None

    def mark(self, template: Template) -> Template:
        """Return the template with the lineage of the running job; unchanged outside a job."""
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


def with_lineage(encoded: EncodedJob) -> EncodedJob:
    """Return a job without a template, with the lineage of the running job added.

    A graph is unchanged: the jobs in it have the headers.
    """
    job = current.get(None)
    if job is None or encoded.headers.startswith("nodes:"):
        return encoded
    more = _lacking(parse_headers(encoded.headers), job)
    return encoded._replace(headers=add_headers(encoded.headers, more.items()))


def _lacking(headers: Headers, job: JobContext) -> dict[str, str]:
    """Return the lineage headers for a submitted job that its caller did not set."""
    explicit = dict(headers.extra)
    return {name: value for name, value in job.lineage().items() if name not in explicit}


class TrackedJob:
    """Submits one job and reports its end; no thread waits for it.

    For programs with very many open jobs and their own event loop, such as gateways.

    All methods except `begin` run in the thread that drives the client's I/O loop.

    Args:
        job: Its handle; ``row`` of the handle is set when the job has ended.
        call: The call for its end, with its submission.
        results: The result client of the handle.
        on_end: Called once, with the job and None, or with the error because of which it was not
            submitted or its end is not known; must not block.
    """

    __slots__ = ("_call", "_ended", "_job", "_on_end", "_results")

    def __init__(
        self,
        job: Job[Any],
        call: PendingCall,
        results: ResultClient,
        *,
        on_end: Callable[[Job[Any], Exception | None], None],
    ) -> None:
        self._job = job
        self._call = call
        self._results = results
        self._on_end = on_end
        self._ended = False

    def begin(self) -> None:
        """Submit the job; from any thread.

        Raises:
            BrokerUnavailable: The client was closed.
        """
        self._call.notify = self._on_answer
        self._results.runner.begin(self._call)

    def _on_answer(self) -> None:
        call = self._call
        if not call.done:
            return
        self._results.record_broker(self._job, call)
        error: Exception | None = None
        try:
            self._results.record(self._job, take_answer(call))
        except Exception as failure:  # noqa: BLE001 - the callback gets it
            error = failure
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        if self._ended:
            return
        self._ended = True
        try:
            self._on_end(self._job, error)
        except Exception:
            logger.exception("the callback of job %s failed", self._job.id)
