"""Submits jobs: writes them, runs the middlewares, hands them over and waits for the receipt."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from eventmq.client.batches import open_batch
from eventmq.client.delivery import IN_FLIGHT, Delivery
from eventmq.client.errands import Parcel
from eventmq.client.following import Followed
from eventmq.client.handle import Job, Origin
from eventmq.client.lineage import Lineage, related
from eventmq.client.parts import CallSource, WrittenSource
from eventmq.client.templates import END, RECEIPT
from eventmq.errors import NotAllowed
from eventmq.interfaces import Submission

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from eventmq.client.parts import Part, Source
    from eventmq.client.results import Results
    from eventmq.client.runner import ClientRunner
    from eventmq.client.runner_waits import AsyncWaiter, Waiter
    from eventmq.client.templates import Template, Written
    from eventmq.interfaces import Middleware
    from eventmq.job import IdFactory

__all__ = ["Submitter"]


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
        self.mark = Lineage().mark

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
            on_end: See `eventmq.client.following.Followed`.

        Raises:
            BrokerUnavailable: The client was closed.
        """
        job: Job[Any] = Job(written.id, self._results, Origin(sent=False))
        parcel = self._parcel(written, END)
        followed = Followed(
            job, parcel, self._results, on_receipt=lambda job, p: _place(job.origin, p),
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

    def _parcel(self, written: Written, wishes: str) -> Parcel:
        """Return the REQUEST for a job; a graph has no end of its own that could be asked for."""
        deadline = self._runner.deadline(self._timeout)
        if written.headers.startswith("nodes:"):
            return Parcel(written.frames(), id=written.id, deadline=deadline, needs="graph")
        asks = wishes != RECEIPT
        return Parcel(written.frames(wishes), id=written.id, deadline=deadline, asks=asks)

    def _send(self, written: Written, origin: Origin) -> Job[Any]:
        habit = self._results.habit
        parcel = self._parcel(written, habit.begins(written.id))
        self._runner.send(parcel)
        habit.submitted()
        _place(origin, parcel)
        return Job(written.id, self._results, origin)

    async def _asend(self, job: Job[Any], written: Written) -> None:
        habit = self._results.habit
        parcel = self._parcel(written, habit.begins(written.id))
        await self._runner.asend(parcel)
        habit.submitted()
        _place(job.origin, parcel)

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
            open_parts.append((part, self._runner.start(part.parcel)))

    def _finish(self, delivery: Delivery, open_parts: deque[tuple[Part, Waiter]]) -> list[Job[Any]]:
        while open_parts:
            part, waiter = open_parts.popleft()
            self._runner.await_over(part.parcel, waiter)
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
                open_parts.append((part, self._runner.astart(part.parcel)))
            elif open_parts:
                part, waiter = open_parts.popleft()
                await self._runner.aawait_over(part.parcel, waiter)
                delivery.settled(part)
            else:
                return delivery.result()

    def _delivery(self, source: Source) -> Delivery:
        runner, timeout = self._runner, self._timeout
        return Delivery(source, new_id=self._ids.new, deadline=lambda: runner.deadline(timeout))


def _place(origin: Origin, parcel: Parcel) -> None:
    """Note which broker took a job, and whether it has said so."""
    origin.broker, origin.store, origin.sent = parcel.broker, parcel.store, True
    origin.confirmed = parcel.confirmed


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
