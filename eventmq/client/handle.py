"""Handles of jobs: what ``delay`` returns, with results, states and streams.

`Job` is the handle, `ResultClient` asks brokers for its state and result, `JobStream` iterates over
the parts that its task yields.
"""

from __future__ import annotations

import enum
import shlex
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from eventmq import hints
from eventmq.client.requests import NO_BROKER, News
from eventmq.errors import (
    BrokerUnavailable,
    EventMQError,
    JobNotFound,
    NotAllowed,
    ResultTimeout,
    ResultUnavailable,
    StreamRestarted,
)
from eventmq.headers import parse_headers
from eventmq.interfaces import Envelope
from eventmq.text import printable
from eventmq.wire.outcomes import EndRow, log_text, with_errors
from eventmq.wire.results import REFERENCE
from eventmq.wire.streams import WINDOW, WINDOW_BYTES, PartHead, decode_parts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

    from eventmq.client.client import ClientRunner, Pending, Steps
    from eventmq.client.requests import PendingCall, PendingSubmit
    from eventmq.execution.annotations import ResultPlan
    from eventmq.wire.outcomes import OutcomeReader

    Rows = Sequence[Mapping[str, Any]]

__all__ = [
    "DEFAULT",
    "DIAGNOSIS_TIMEOUT",
    "Default",
    "Job",
    "JobOrigin",
    "JobStream",
    "ResultClient",
    "diagnose",
    "reason_of",
]

T = TypeVar("T")

#: Limits of parts and bytes after which a CREDIT reports to the broker that they were read.
CREDIT_PARTS = WINDOW // 4

CREDIT_BYTES = WINDOW_BYTES // 4

_ENDED = frozenset({"succeeded", "failed", "cancelled", "expired"})

#: Maximum seconds for a diagnosis, after the caller's timeout has passed.
DIAGNOSIS_TIMEOUT = 1.0

#: Minimum timeout in seconds: enough for an answer that the broker has already.
MIN_TIMEOUT = 0.1


class Default(enum.Enum):
    """Stands for the value of the settings."""

    DEFAULT = "default"


DEFAULT = Default.DEFAULT


class Job(Generic[T]):
    """One submitted job; ``T`` is the type of its result.

    The handle keeps the broker that has the job. Making a handle sends nothing; each method asks
    the broker until the job's end is known here. Thread-safe. It cannot be pickled: pass on the id,
    and make a handle from it with ``app.job(id)``.

    Attributes:
        id: The job's id.
        origin: The broker that has it.
        row: The row about its end, None until that is known here.
    """

    __slots__ = ("__weakref__", "_results", "id", "origin", "row")

    def __init__(self, job_id: str, results: ResultClient, origin: JobOrigin) -> None:
        self.id = job_id
        self._results = results
        self.origin = origin
        self.row: EndRow | None = None

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.origin.task}>".replace(" >", ">")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise `AttributeError`, with a hint for a name of Celery's API."""
            return hints.find_attribute(self, name, hints.JOB)

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError(
            "a job handle cannot be pickled; pass job.id and use app.job(id) on the other side"
        )

    # Results

    def get(self, timeout: float | Default | None = DEFAULT) -> T:
        """Wait for the job's end and return its result.

        Args:
            timeout: Seconds, by default those of the setting ``result_timeout`` (60); None waits
                without limit. Less than 0.1 counts as 0.1, the time of an answer.

        Raises:
            ResultTimeout: The job did not end in time; it continues. The message is a diagnosis,
                for which the broker is asked, at most a second after the timeout.
            JobFailed: The task raised (its exception is the cause, if it can be imported).
            JobCancelled: The job was cancelled.
            JobExpired: Its ``expires`` passed before it started.
            JobNotFound: The broker does not know it.
            ResultUnavailable: It succeeded, and its result was not kept.
        """
        return self._results.get(self, timeout).wait()  # type: ignore[no-any-return]

    async def aget(self, timeout: float | Default | None = DEFAULT) -> T:
        """Do the same as `get`, in a coroutine."""
        return await self._results.get(self, timeout)  # type: ignore[no-any-return]

    # State

    @property
    def confirmed(self) -> bool:
        """Whether a broker has confirmed that it keeps the job.

        False in a batch that was not sent, and after a submission to a legacy broker, which sends
        no receipts: the job may be lost, and its state cannot be read.
        """
        return self.origin.sent and self.origin.confirmed

    @property
    def state(self) -> str:
        """The present state: a value of `eventmq.job.JobState`.

        Raises:
            JobNotFound: The broker does not know it.
            BrokerUnavailable: No answer within ``submit_timeout``.
        """
        return self.row.state if self.row else self._results.state(self).wait()

    async def astate(self) -> str:
        """Do the same as `state`, in a coroutine."""
        return self.row.state if self.row else await self._results.state(self)

    def ready(self) -> bool:
        """Return whether the job has ended; raises what `state` raises."""
        return self.state in _ENDED

    def successful(self) -> bool:
        """Return whether the job has succeeded; raises what `state` raises."""
        return self.state == "succeeded"

    def info(self, *, args: bool = False, logs: bool = False) -> dict[str, Any]:
        """Return the broker's information about the job, without its result.

        Args:
            args: Include its arguments, as ``args`` and ``kwargs``. If the broker has keys, only
                the job's owner, its group, and admins get them. They are None, and ``args_note``
                has the reason, if the broker does not keep them, as for a job that has succeeded,
                or if their serializer is neither json nor msgpack, since decoding others runs code.
            logs: Include its log, as ``logs``: a list of maps with ``attempt``, ``at`` (Unix time
                at which the attempt ended) and ``text``. `logs` returns the same as one text.

        Returns:
            id, task, queue, state, attempt, delivery, priority, created, due, expires,
            finished, leased (Unix times, None for none), worker, error, headers, attempts (the last
            ten that failed) and others: see ``info`` in the table of calls on the protocol page.
            ``leased`` is the time when the broker handed a running job to its worker: it started
            then or, if the worker had others before it, later. An error has ``type message
            traceback arguments``.
        """
        return self._results.info(self, args=args, logs=logs).wait()

    async def ainfo(self, *, args: bool = False, logs: bool = False) -> dict[str, Any]:
        """Do the same as `info`, in a coroutine."""
        return await self._results.info(self, args=args, logs=logs)

    def logs(self) -> str:
        """Return the log of the job, if its task has ``keep_logs``.

        It has the logs of its attempts so far, each below a line with its number: the last lines,
        up to the setting ``max_job_log_bytes``. They are kept as long as the result, or as long as
        the failed job. The log of a running attempt arrives at its end; an attempt whose process
        was killed, for example at its ``timeout``, has no log.

        Returns:
            The lines with their line ends; "" if no log is kept.

        Raises:
            JobNotFound: The broker does not know it.
            BrokerUnavailable: No answer within ``submit_timeout``.
        """
        return self._results.logs(self).wait()

    async def alogs(self) -> str:
        """Do the same as `logs`, in a coroutine."""
        return await self._results.logs(self)

    # Cancelling

    def cancel(self, reason: str = "") -> bool:
        """Cancel the job, whether it waits or runs. Idempotent.

        The job ends at once, and waiting calls of `get` raise `JobCancelled`. A worker that runs it
        is told to stop; its outcome is ignored.

        Args:
            reason: The ``reason`` of `JobCancelled`.

        Returns:
            Whether it is cancelled now; False if it had ended in another way.

        Raises:
            JobNotFound: The broker does not know it.
            BrokerUnavailable: No answer within ``submit_timeout``; it may be cancelled.
        """
        return self._results.cancel(self, reason).wait()

    async def acancel(self, reason: str = "") -> bool:
        """Do the same as `cancel`, in a coroutine."""
        return await self._results.cancel(self, reason)

    # Streams

    def stream(
        self, timeout: float | Default | None = DEFAULT, *, idle: float | None = None
    ) -> JobStream[T]:
        """Iterate over the parts that a generator task yields, for ``for`` and ``async for``.

        The parts come in order. After the last one `get` has the return value of the generator. If
        the job does not succeed, the iteration ends with the exception that `get` raises. Each part
        is read once: a stream that was left in the middle continues where it was left.

        Args:
            timeout: Seconds to wait for each part, as in `get`.
            idle: Seconds without a part after which the iteration yields None and goes on, such as
                for a server that keeps a quiet connection alive; then `timeout` does not count.

        Raises:
            ResultTimeout: No part came in time; the iterator can be used again.
            StreamRestarted: The job runs again and is not ``replayable``: the iterator continues
                with its parts from the first one.
            ResultUnavailable: Parts were discarded because none was read in time, or were read.
            NotAllowed: The job has ended without parts: its task is not a generator.
            JobNotFound: The broker does not know it.
        """
        return JobStream(self, self._results, timeout, idle)


@dataclass(slots=True, eq=False)
class JobOrigin:
    """The broker of jobs that were sent together.

    Attributes:
        task: The name of their task, "" if the handle was made from an id.
        broker: Index of the broker that took them, or `NO_BROKER` if it is not known.
        store: Id of its store.
        sent: False while they are part of a batch that was not sent.
        confirmed: False if the broker gave no receipt for them, because it sends none.
        results: Converts their results; None leaves these as they were serialised.
    """

    task: str = ""
    broker: int = NO_BROKER
    store: str = ""
    sent: bool = True
    confirmed: bool = True
    results: ResultPlan | None = None


class ResultClient:
    """Result client: asks brokers for the state and result of jobs.

    Args:
        runner: Exchanges messages with the brokers.
        reader: Reads outcomes.
        answer_timeout: Seconds to wait for an answer about the present state.
        result_timeout: Default seconds to wait for the end of a job.
    """

    def __init__(
        self,
        runner: ClientRunner,
        reader: OutcomeReader,
        *,
        answer_timeout: float,
        result_timeout: float | None,
    ) -> None:
        self.runner = runner
        self.reader = reader
        self._answer_timeout = answer_timeout
        self._result_timeout = result_timeout

    def timeout(self, timeout: float | Default | None, name: str = "timeout") -> float | None:
        """Return seconds for a caller's ``timeout``, None for no limit."""
        if timeout is DEFAULT:
            return self._result_timeout
        if timeout is None:
            return None
        seconds: object = timeout
        if type(seconds) not in {int, float} or not timeout >= 0:
            raise ValueError(f"{name} is {timeout!r}; allowed are seconds from 0, or None")
        return max(float(timeout), MIN_TIMEOUT)

    # Results

    def get(self, job: Job[Any], timeout: float | Default | None) -> Pending[Any]:
        """Return the operation that waits for a job; its value is the job's result."""
        return self.runner.run(self.getting(job, timeout))

    def getting(self, job: Job[Any], timeout: float | Default | None) -> Steps[Any]:
        """Return the steps of `get`."""
        if job.row is None:
            yield from self.ending(job, self.end_of(job, timeout), timeout)
        row = job.row
        assert row is not None  # noqa: S101 - recorded before
        if row.content_type.startswith(REFERENCE):
            value = yield partial(self.reader.value, row)  # backends may block
        else:
            value = self.reader.value(row)
        plan = job.origin.results
        return value if plan is None else plan.result(job.id, value)

    def ending(
        self, job: Job[Any], call: PendingCall, timeout: float | Default | None
    ) -> Steps[None]:
        """Return the steps that wait for the end of a job, and before that for its submission.

        Args:
            job: The job.
            call: A call of `end_of`, which may have a submission.
            timeout: Timeout of the caller, for the diagnosis.
        """
        try:
            row: list[Any] = yield from self.runner.asking(call)
        except ResultTimeout as error:
            self.record_broker(job, call)
            raise (yield from self.explaining(job, timeout, error)) from None
        self.record_broker(job, call)
        self.record(job, row)

    @staticmethod
    def record_broker(job: Job[Any], call: PendingCall) -> None:
        """Record the broker that has a job, if the call for its end also submitted it."""
        if call.target != NO_BROKER:
            origin = job.origin
            origin.broker, origin.store, origin.sent = call.target, call.store, True

    def owns(self, job: object) -> bool:
        """Return whether an object is a handle of this result client."""
        return isinstance(job, Job) and job._results is self  # noqa: SLF001 - of this module

    def record(self, job: Job[Any], row: list[Any]) -> None:
        """Keep the end of a job; raise `JobNotFound` for an id that the broker does not know."""
        if row[1]:
            job.row = EndRow(*row)
        else:
            raise JobNotFound(job.id)

    def end_of(
        self,
        job: Job[Any],
        timeout: float | Default | None,
        submit: PendingSubmit | None = None,
    ) -> PendingCall:
        """Return the call for a job's end, with a submission that precedes it."""
        origin = self.sent(job) if submit is None else job.origin
        call = self.runner.new_call(
            "get",
            timeout=self.timeout(timeout),
            ids=[job.id],
            target=origin.broker,
            store=origin.store,
        )
        call.submit = submit
        return call

    # Diagnosis

    def explaining(
        self, job: Job[Any], timeout: float | Default | None, error: ResultTimeout
    ) -> Steps[ResultTimeout]:
        """Return the steps to an error with a diagnosis.

        The error is unchanged if it has one already, or none arrives in `DIAGNOSIS_TIMEOUT`.
        """
        if error.state:
            return error
        answers: list[Any] = []
        deadline = self.runner.deadline(DIAGNOSIS_TIMEOUT)
        with suppress(EventMQError):
            for name, arguments in (("info", {"id": job.id}), ("queues", {}), ("workers", {})):
                call = self.job_call(job, name, arguments)
                call.deadline = deadline
                answers.append((yield from self.runner.asking(call)))
                if answers[0]["state"] != "queued":
                    break  # queues and workers say why a job waits in its queue
        if not answers:
            return error
        info, queues, workers = [*answers, None, None][:3]
        text = diagnose(info, queues, workers, f"{self.timeout(timeout):.1f} s")
        return ResultTimeout(text, job_id=job.id, state=info["state"])

    # State

    def state(self, job: Job[Any]) -> Pending[str]:
        """Return the state of a job."""
        return self.runner.run(self._asking_state(job))

    def _asking_state(self, job: Job[Any]) -> Steps[str]:
        call = self.job_call(job, "state", {"ids": [job.id]})
        return self.runner.asking(call, partial(_state, job))

    def info(self, job: Job[Any], *, args: bool, logs: bool) -> Pending[dict[str, Any]]:
        """Return the broker's information about a job, if requested with arguments and log."""
        more = {name: True for name, requested in (("args", args), ("logs", logs)) if requested}
        call = self.job_call(job, "info", {"id": job.id, **more})
        return self.runner.ask(call, self.reader.with_arguments if args else with_errors)

    def logs(self, job: Job[Any]) -> Pending[str]:
        """Return the log of a job."""
        call = self.job_call(job, "info", {"id": job.id, "logs": True})
        return self.runner.ask(call, log_text)

    def cancel(self, job: Job[Any], reason: str) -> Pending[bool]:
        """Cancel a job; return whether it is cancelled now."""
        call = self.job_call(job, "cancel", {"ids": [job.id], "reason": reason})
        return self.runner.ask(call, partial(_cancelled, job))

    def job_call(self, job: Job[Any], name: str, arguments: dict[str, Any]) -> PendingCall:
        """Return a call about a job, addressed to the broker that has it."""
        origin = self.sent(job)
        call = self.runner.new_call(
            name,
            arguments,
            timeout=self._answer_timeout,
            target=origin.broker,
            store=origin.store,
        )
        call.subject = job.id
        return call

    @staticmethod
    def sent(job: Job[Any]) -> JobOrigin:
        """Return the origin of a job; raises `NotAllowed` if it was not sent."""
        origin = job.origin
        if not origin.sent:
            raise NotAllowed(
                f"job {job.id} is part of a batch that was not sent: leave app.batch() first"
            )
        return origin

    # Handles from ids

    def find(self, job_id: str) -> Pending[Job[Any]]:
        """Return a handle of a job that one of the brokers knows.

        Raises when it is waited for:
            JobNotFound: No broker knows it.
            TypeError: The id is not text.
            BrokerUnavailable: One of them did not answer, and the others do not know it.
        """
        return self.runner.run(self._finding(job_id))

    def _finding(self, job_id: str) -> Steps[Job[Any]]:
        unavailable: BrokerUnavailable | None = None
        for job in self._candidates(job_id):
            try:
                yield from self._asking_state(job)
            except JobNotFound:
                continue
            except BrokerUnavailable as error:
                unavailable = error
                continue
            return job
        raise unavailable or JobNotFound(job_id)

    def _candidates(self, job_id: str) -> list[Job[Any]]:
        if not isinstance(job_id, str):
            raise TypeError(f"the id of a job is text, not {job_id!r:.80}")
        if not job_id or not _is_possible(job_id):
            raise JobNotFound(job_id)
        count = self.runner.brokers
        brokers = range(count) if count > 1 else (NO_BROKER,)
        return [Job(job_id, self, JobOrigin(broker=broker)) for broker in brokers]


def _is_possible(job_id: str) -> bool:
    """Return whether a broker can have a job with an id."""
    try:
        return b"\0" not in job_id.encode()
    except UnicodeEncodeError:
        return False


def _cancelled(job: Job[Any], rows: list[list[str]]) -> bool:
    return _state(job, [row[:2] for row in rows]) == "cancelled"


def _state(job: Job[Any], rows: list[list[str]]) -> str:
    for job_id, state in rows:
        if job_id == job.id and state:
            return state
    raise JobNotFound(job.id)


class JobStream(Generic[T]):
    """Iterates over the parts of a job, for ``for`` and ``async for``; made by `Job.stream`.

    It asks the broker when the first part is requested. Each part is read once: a reader that
    leaves a stream in the middle and opens it again continues with the next part. It also continues
    after a restart of the broker. Use it from one thread, or one coroutine.

    Args:
        job: The job.
        results: Its result client.
        timeout: As in `Job.stream`.
        idle: As in `Job.stream`.
    """

    def __init__(
        self, job: Job[T], results: ResultClient, timeout: float | Default | None,
        idle: float | None = None,
    ) -> None:  # fmt: skip
        self._job = job
        self._results = results
        self._runner = results.runner
        self._timeout, self._idle = timeout, idle
        self._seconds = results.timeout(timeout)
        if idle is not None:
            self._seconds = results.timeout(idle, "idle")
        self._call: PendingCall | None = None
        #: The delivery that is being read, and the index of its next part.
        self._delivery = self._next = 0
        #: Index after the last part that was returned, of any delivery.
        self._returned = 0
        self._replayable = False
        self._requested_again = False
        self._done = False
        #: Parts of the batch that is being returned, the next one last.
        self._parts: list[bytes] = []
        self._content_type = ""
        self._credited = self._uncredited_bytes = 0

    def close(self) -> None:
        """End the iteration; unread parts remain for the next reader. Idempotent."""
        self._done = True
        self._parts = []
        self._leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_call", None) is not None:
            self._leave()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """Return the next part; raises the errors of `Job.stream`."""
        part = self._pop()
        if part is _NO_PART:
            part = self._runner.run(self._reading()).wait()
        if part is _NO_PART:
            raise StopIteration
        return part

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        """Return the next part in a coroutine; others run at least once per batch of parts."""
        if not self._parts and self._call is not None:
            from asyncio import sleep

            await sleep(0)  # the parts of a fast task are always here: nothing else would wait
        part = self._pop()
        if part is _NO_PART:
            part = await self._runner.run(self._reading())
        if part is _NO_PART:
            raise StopAsyncIteration
        return part

    def _reading(self) -> Steps[Any]:
        """Return the steps to the next part, None if idle, `_NO_PART` after the last one."""
        while not self._done:
            if self._call is None:
                self._ask()
            assert self._call is not None  # noqa: S101 - it was sent
            if not (yield News((self._call,), self._seconds)):
                if self._idle is not None:
                    return None
                raise (
                    yield from self._results.explaining(self._job, self._timeout, self._timed_out())
                )
            part = self._pop()
            if part is not _NO_PART:
                return part
        return _NO_PART

    # Calls

    def _ask(self) -> None:
        origin = self._results.sent(self._job)
        about = {"id": self._job.id, "delivery": self._delivery, "taken": self._next}
        call = self._runner.new_call(
            "stream", about, timeout=None, target=origin.broker, store=origin.store
        )
        call.subject = self._job.id
        self._call = call
        self._credited, self._uncredited_bytes = self._next, 0
        self._runner.begin(call)

    def _leave(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.arguments["taken"] = self._next
            self._runner.forget(call)

    def _timed_out(self) -> ResultTimeout:
        return ResultTimeout(f"no part of job {self._job.id} came in time", job_id=self._job.id)

    # Parts

    # hot loop: python -m benchmarks stream
    def _pop(self) -> Any:
        """Return the next part that has arrived, or `_NO_PART`."""
        parts = self._parts
        while not parts:
            call = self._call
            if call is None:
                return _NO_PART
            if not call.answers:
                self._send_credit(call)
                if call.done and not call.answers:
                    self._end()
                    raise call.error or ResultUnavailable("the stream has ended too early")
                return _NO_PART
            answer = call.answers.popleft()
            if isinstance(answer, tuple):
                self._receive(call, answer)
            else:
                self._begin(answer)
            parts = self._parts
        payload = parts.pop()
        index = self._next
        value = self._decode(index, payload)
        self._next = self._returned = index + 1
        self._uncredited_bytes += len(payload)
        if index + 1 - self._credited >= CREDIT_PARTS or self._uncredited_bytes >= CREDIT_BYTES:
            self._send_credit(self._call)
        return value

    def _send_credit(self, call: PendingCall | None) -> None:
        """Report to the broker how many parts were read."""
        if call is not None and self._next > self._credited and not call.done:
            self._credited, self._uncredited_bytes = self._next, 0
            call.arguments["taken"] = self._next
            self._runner.credit(call)

    def _decode(self, index: int, payload: bytes) -> Any:
        name, _, parameters = self._content_type.partition(";")
        signature, _, created = parameters.partition(";")
        envelope = Envelope(
            f"{self._job.id}.{index}", name, created=float(created or 0.0), signature=signature
        )
        value = self._results.reader.content(name, payload, envelope)
        plan = self._job.origin.results
        return value if plan is None else plan.part(self._job.id, value)

    def _begin(self, about: dict[str, Any]) -> None:
        """Handle the first answer, which describes the stream."""
        self._replayable = bool(about.get("replayable"))
        if not self._delivery:
            self._delivery, self._next = int(about["delivery"]), int(about["base"])
            self._credited = self._returned = self._next
            self._resume_at(self._delivery)

    def _resume_at(self, delivery: int) -> None:
        if self._call is not None:
            self._call.arguments["delivery"] = delivery
            self._call.arguments["taken"] = self._next

    def _receive(self, call: PendingCall, answer: tuple[Any, Any]) -> None:
        """Handle a batch of parts, or the end."""
        head, body = answer
        if head.delivery < self._delivery:
            if not isinstance(body, bytes):  # a restarted broker received no parts
                self._finish(body)
            return
        if head.delivery > self._delivery:
            first, self._delivery = not self._delivery, head.delivery
            self._next = head.first if first and isinstance(body, bytes) else 0
            self._credited = self._next
            self._resume_at(head.delivery)
            if self._returned and not self._replayable:
                self._returned = 0
                call.answers.appendleft(answer)
                raise StreamRestarted(
                    f"job {self._job.id} is run again: its parts start again from the first"
                )
        if not isinstance(body, bytes):
            self._receive_end(head, body)
        elif head.first > self._next:
            self._request_again(head.first)
        elif head.end > self._next:
            self._requested_again = False
            self._content_type, parts = decode_parts(body)
            self._parts = parts[self._next - head.first :][::-1]
            self._skip()

    def _skip(self) -> None:
        """Skip parts that an earlier delivery has yielded, if each delivery yields the same."""
        while self._parts and self._next < self._returned:
            self._parts.pop()
            self._next += 1

    def _receive_end(self, head: PartHead, row: list[Any]) -> None:
        if head.first > self._next:
            self._request_again(head.first)
        else:
            self._finish(row)

    def _finish(self, row: list[Any]) -> None:
        self._end()
        self._results.record(self._job, row)
        assert self._job.row is not None  # noqa: S101 - noted
        if self._job.row.state != "succeeded":
            self._results.reader.value(self._job.row)  # raises

    def _request_again(self, index: int) -> None:
        """Request parts again that were lost in transit, once."""
        lost = f"parts {self._next} to {index - 1} of job {self._job.id} were lost"
        if self._requested_again:
            self._end()
            raise ResultUnavailable(f"{lost}; get() has its result")
        self._requested_again = True
        self._leave()
        self._ask()

    def _end(self) -> None:
        self._done = True
        self._leave()


class _NoPart:
    """Type of `_NO_PART`: no part has arrived."""


_NO_PART = _NoPart()


# Diagnosis of a job that did not end in time: the text of the `ResultTimeout` of ``get``. Pure:
# `ResultClient` asks the broker, for at most `DIAGNOSIS_TIMEOUT` seconds. Rows are those of the
# calls ``info``, ``queues`` and ``workers``.


def diagnose(
    info: Mapping[str, Any],
    queues: Rows | None,
    workers: Rows | None,
    waited: str,
) -> str:
    """Return a message about one job.

    Args:
        info: The answer to ``info`` about the job.
        queues: The answer to ``queues``, None if there was none.
        workers: The answer to ``workers``, None if there was none.
        waited: The caller's waiting time, as text.
    """
    task, state = info.get("task"), info["state"]
    subject = f"job {info['id']} of task {task!r}" if task else f"job {info['id']}"
    if state in _ENDED:
        return f"{subject} {state} just after {waited}; call get() again for its result"
    reason = reason_of(info, queues, workers)
    return f"{subject} is still {state} after {waited}{f': {reason}' if reason else ''}"


def reason_of(info: Mapping[str, Any], queues: Rows | None, workers: Rows | None) -> str:
    """Return the reason why a job has not ended, "" if that is not known or it has ended.

    Args:
        info: The answer to ``info`` about the job.
        queues: The answer to ``queues``, None if there was none.
        workers: The answer to ``workers``, None if there was none.
    """
    state = info["state"]
    if state == "running":
        since = f" since {_time(info['leased'])}" if info.get("leased") else ""
        return f"the worker {info.get('worker', '')!r} has it{since}{_attempt(info)}"
    if state == "delayed":
        return f"it becomes ready at {_time(info.get('due'))}{_attempt(info)}"
    if state == "blocked":
        return "it waits for other jobs of its graph"
    if state != "queued" or queues is None or workers is None:
        return ""
    return _queued_reason(info, queues, workers)


def _queued_reason(info: Mapping[str, Any], queues: Rows, workers: Rows) -> str:
    name, task = info.get("queue", ""), info.get("task", "")
    queue = next((row for row in queues if row["name"] == name), {})
    if queue.get("paused"):
        return f"the queue {name!r} is paused"
    connected = [row for row in workers if row.get("seen") is not None]
    serving = [row for row in connected if any(pair[1] == name for pair in row["queues"])]
    if not serving:
        start = f"eventmq worker -A MODULE -Q {printable(shlex.quote(name))}"
        return f"no worker serves the queue {name!r}; start one with: {start}"
    named = task and parse_headers(str(info.get("headers", ""))).content_type
    if named and not any(_accepts(row, task) for row in serving):
        names = ", ".join(sorted({str(row["name"]) for row in serving})[:3])
        return f"no worker of the queue {name!r} knows the task {task!r}; connected: {names}"
    waiting, running = int(queue.get("waiting", 1)) - 1, int(queue.get("running", 0))
    if queue.get("limits"):
        limits = f"the queue {name!r} is limited to {queue['limits']}"
        return f"{limits}; {_others(waiting)} in it and {_running(running)}{_attempt(info)}"
    if waiting <= 0 and not running and named:
        return f"no worker takes it from the queue {name!r}; does a worker know the task {task!r}?"
    backlog = f"{_others(waiting)} in the queue {name!r} and {_running(running)}"
    return f"{backlog}; workers that serve it: {len(serving)}{_attempt(info)}"


def _others(waiting: int) -> str:
    return "1 other waits" if waiting == 1 else f"{max(0, waiting)} others wait"


def _running(jobs: int) -> str:
    return "1 runs" if jobs == 1 else f"{jobs} run"


def _accepts(worker: Mapping[str, Any], task: str) -> bool:
    """Return whether a worker has a task; without a list it accepts any, unless it is legacy."""
    return not worker.get("plain") and (not worker["tasks"] or task in worker["tasks"])


def _attempt(info: Mapping[str, Any]) -> str:
    """Return the number of the attempt as text, "" for the first."""
    attempt = int(info.get("attempt") or 1)
    return f" (attempt {attempt})" if attempt > 1 else ""


def _time(timestamp: object) -> str:
    if not isinstance(timestamp, (int, float)) or not timestamp:
        return "an unknown time"
    return datetime.fromtimestamp(timestamp).astimezone().isoformat(sep=" ", timespec="seconds")
