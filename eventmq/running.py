"""What runs: the job as its task sees it, and what a worker pool tells about it."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from eventmq.headers import parse_headers
from eventmq.job import id_time

__all__ = [
    "Answered", "Died", "JobContext", "PoolEvent", "Progressed", "Running", "Streamed", "current",
]  # fmt: skip


#: The largest number of a progress; what is larger has no exact place in a float.
_MOST = float(1 << 53)


@dataclass(frozen=True, slots=True)
class JobContext:
    """The job that is being executed. ``delivery`` and ``attempt`` count from 1.

    ``headers`` is the header text; `header` reads it.
    """

    id: str
    task: str
    queue: str
    attempt: int
    delivery: int
    headers: str
    #: What `check` asks and `progress` tells.
    stop: Any = field(default=None, compare=False, repr=False)

    def check(self) -> None:
        """Raise `JobCancelled`, or once `SoftTimeLimitExceeded`, where the job is to stop."""
        if self.stop is not None:
            self.stop.check()

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Tell those who ask ``job.info()`` how far the job is.

        The last value counts; it costs microseconds and may be called as often as you like: at
        most ten values a second are sent.

        Args:
            done: How much is done, in any unit.
            total: How much there is, if that is known.
            note: A few words for people, at most 1,000 characters.

        Raises:
            TypeError: A number is none, or the note is no text.
            ValueError: A number is not finite.
        """
        for value in (done,) if total is None else (done, total):
            if type(value) not in {int, float}:
                raise TypeError(f"progress is told in numbers, not {type(value).__name__}")
            if not -_MOST <= value <= _MOST:
                raise ValueError(f"progress is {value!r}; allowed is a number up to {_MOST:g}")
        if not isinstance(note, str):
            raise TypeError(f"the note of a progress is a text, not {type(note).__name__}")
        if self.stop is not None and self.stop.report is not None:
            self.stop.report(done, total, note)

    @property
    def created(self) -> float:
        """Unix time at which the client made the job, 0.0 if neither headers nor id say so."""
        return parse_headers(self.headers).created or id_time(self.id) or 0.0

    def header(self, name: str, default: str = "") -> str:
        """Return the value of a header that the caller or a middleware added."""
        return dict(parse_headers(self.headers).extra).get(name, default)

    def lineage(self) -> dict[str, str]:
        """Return the headers by which jobs that are submitted in here say whose they are.

        ``parent-id`` is this job, ``root-id`` the first job of the tree, ``trace-id`` goes on.
        """
        said = {"root-id": self.header("root-id", self.id), "parent-id": self.id}
        trace = self.header("trace-id")
        return {**said, "trace-id": trace} if trace else said


#: The running job; has no value outside a job. Whoever executes a job sets it before the call and
#: resets it afterwards.
current: ContextVar[JobContext] = ContextVar("eventmq_current_job")


@dataclass(frozen=True, slots=True)
class Answered:
    """Pool event: the next ``count`` jobs of a chunk have outcomes, in their order.

    From a `eventmq.interfaces.SharedPool` it is jobs of any ``positions``; the slot says nothing.
    """

    slot: int
    chunk: int
    count: int
    #: Seconds that these jobs ran together.
    ran: float
    #: `eventmq.wire.bulk.encode_outcomes` of them.
    outcomes: bytes
    positions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Died:
    """Pool event: a slot lost all that it was given and has not answered; it goes on anew.

    In a `eventmq.interfaces.SharedPool` that is the one job that it ran.
    """

    slot: int
    #: The chunk and the position of the job that was running, or (0, -1).
    chunk: int
    position: int
    #: For people: exit status or signal.
    reason: str
    #: Number of the signal that ended the process, 0 for none.
    signal: int = 0
    #: Bytes of memory that the process had at the last look, and at most; 0 for unknown.
    rss: int = 0
    peak: int = 0
    #: Jobs that it had begun and not answered, the one that was running among them: the oldest of
    #: those that it was given. 0 also where the pool does not know.
    begun: int = 0
    #: Other slots died at the same moment of the same cause: which job it was is not known.
    together: bool = False


@dataclass(frozen=True, slots=True)
class Streamed:
    """Pool event: the job that runs has yielded parts."""

    slot: int
    chunk: int
    position: int
    #: Index of the first, and how many.
    first: int
    count: int
    #: `eventmq.wire.streams.encode_parts` of them.
    body: bytes


@dataclass(frozen=True, slots=True)
class Progressed:
    """Pool event: the job that runs has told how far it is."""

    slot: int
    chunk: int
    position: int
    #: `eventmq.wire.streams.encode_progress` of it.
    body: bytes


PoolEvent = Answered | Died | Streamed | Progressed


class Running(NamedTuple):
    """The job that a slot runs."""

    chunk: int
    position: int
    #: Monotonic time of its start.
    since: float
