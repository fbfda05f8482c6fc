"""The handle of a job: what `delay` returns, and what callers ask and wait with."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from eventmq.client.errands import NOWHERE
from eventmq.client.streams import Stream

if TYPE_CHECKING:
    from eventmq.client.outcomes import Row
    from eventmq.client.results import Results

__all__ = ["DEFAULT", "Default", "Job", "Origin"]

T = TypeVar("T")

_ENDED = frozenset({"succeeded", "failed", "cancelled", "expired"})


class Default(enum.Enum):
    """Stands for what the settings say."""

    DEFAULT = "default"


DEFAULT = Default.DEFAULT


@dataclass(slots=True, eq=False)
class Origin:
    """Where jobs that were sent together are.

    Attributes:
        task: Name of their task, "" if the handle was made from an id.
        broker: Index of the broker that took them, or `NOWHERE` if it is not known.
        store: Id of its store.
        sent: False while they are part of a batch that was not sent.
        confirmed: False if the broker gave no receipt for them, because it gives none.
    """

    task: str = ""
    broker: int = NOWHERE
    store: str = ""
    sent: bool = True
    confirmed: bool = True


class Job(Generic[T]):
    """One submitted job; ``T`` is the type of its result.

    It remembers the broker that took it. Making one costs nothing; every question goes to the
    broker, until the job's end is known here. Thread-safe. It cannot be pickled: hand on the id,
    and make a handle of it with ``app.job(id)``.

    Attributes:
        id: The job's id.
        origin: Which broker has it.
        row: How it ended, once that is known here.
    """

    __slots__ = ("__weakref__", "_results", "id", "origin", "row")

    def __init__(self, job_id: str, results: Results, origin: Origin) -> None:
        self.id = job_id
        self._results = results
        self.origin = origin
        self.row: Row | None = None

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.origin.task}>".replace(" >", ">")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __reduce__(self) -> str | tuple[Any, ...]:
        msg = "a job handle cannot be pickled; pass job.id and use app.job(id) on the other side"
        raise TypeError(msg)

    # Results

    def get(self, timeout: float | Default | None = DEFAULT) -> T:
        """Wait for the job's end and return its result.

        Args:
            timeout: Seconds, 60 unless the setting ``result_timeout`` says otherwise; None waits
                without limit. An answer takes a moment: less than 0.1 counts as 0.1.

        Raises:
            ResultTimeout: It had not ended in time; it goes on. The message says where it is, for
                which the broker is asked, at most a second after the time is up.
            JobFailed: The task raised (the original is the cause, where it can be had).
            JobCancelled: Somebody cancelled it.
            JobExpired: Its ``expires`` passed first.
            JobNotFound: The broker does not know it.
            ResultUnavailable: It succeeded, and its result was not kept.
        """
        return self._results.get(self, timeout)  # type: ignore[no-any-return]

    async def aget(self, timeout: float | Default | None = DEFAULT) -> T:
        """Do the same as `get` in a coroutine."""
        return await self._results.aget(self, timeout)  # type: ignore[no-any-return]

    # Questions

    @property
    def confirmed(self) -> bool:
        """Whether a broker has said that it keeps the job.

        False of one in a batch that was not sent, and of one that was sent to a legacy broker,
        which gives no receipts: it may be lost, and nothing can be asked about it.
        """
        return self.origin.sent and self.origin.confirmed

    @property
    def state(self) -> str:
        """The state now: one of the words of `eventmq.job.JobState`.

        Raises:
            JobNotFound: The broker does not know it.
            BrokerUnavailable: No answer within ``submit_timeout``.
        """
        return self.row.state if self.row else self._results.state(self)

    async def astate(self) -> str:
        """Do the same as `state` in a coroutine."""
        return self.row.state if self.row else await self._results.astate(self)

    def ready(self) -> bool:
        """Return whether the job has ended; raises what `state` raises."""
        return self.state in _ENDED

    def successful(self) -> bool:
        """Return whether the job has ended by success; raises what `state` raises."""
        return self.state == "succeeded"

    def info(self) -> dict[str, Any]:
        """Return what the broker knows of the job, without arguments and result.

        Returns:
            id, task, queue, state, attempt, delivery, priority, created, due, expires,
            finished, leased (Unix times, 0.0 for none), worker, error, headers, attempts (the last
            ten that failed) and others: see ``info`` in the table of calls on the protocol page. An
            error has ``type message traceback arguments``.

        Raises:
            JobNotFound: The broker does not know it.
            BrokerUnavailable: No answer within ``submit_timeout``.
        """
        return self._results.info(self)

    async def ainfo(self) -> dict[str, Any]:
        """Do the same as `info` in a coroutine."""
        return await self._results.ainfo(self)

    # Cancelling

    def cancel(self, reason: str = "") -> bool:
        """Cancel the job, whether it waits or runs. Doing it twice is harmless.

        It has ended at once, and whoever waits gets `JobCancelled`. A worker that runs it is told
        to stop; what it still answers changes nothing.

        Args:
            reason: For those who wait.

        Returns:
            Whether it is cancelled now; False if it had ended in another way.

        Raises:
            JobNotFound: The broker does not know it.
            BrokerUnavailable: No answer within ``submit_timeout``; it may be cancelled.
        """
        return self._results.cancel(self, reason)

    async def acancel(self, reason: str = "") -> bool:
        """Do the same as `cancel` in a coroutine."""
        return await self._results.acancel(self, reason)

    # Streams

    def stream(self, timeout: float | Default | None = DEFAULT) -> Stream[T]:
        """Iterate over what a generator task yields, for ``for`` and ``async for``.

        The parts come in order. After the last one `get` has the return value of the generator. A
        job that ends in another way than by success raises at the end what `get` raises. Each part
        is taken once: a stream that was left in the middle goes on where it was left.

        Args:
            timeout: Seconds to wait for each part, as in `get`.

        Raises:
            ResultTimeout: No part came in time; the iterator may be asked again.
            StreamRestarted: The job is run again, and is not ``replayable``: what follows, of the
                same iterator, are its parts from the first on.
            ResultUnavailable: Parts were discarded because nobody read them, or were read.
            NotAllowed: The job has ended and has no parts: its task is no generator.
            JobNotFound: The broker does not know it.
        """
        return Stream(self, self._results, timeout)
