"""Whether the job that runs in a slot is to stop: what tasks, signal handlers and pools look at.

A pool asks with `request`; the task hears of it as an exception: from its event loop, from a signal
in its process, or where it calls ``current_job().check()``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from eventmq.errors import JobCancelled, SoftTimeLimitExceeded, TimeLimitExceeded

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventmq.worker.streaming import Sink

__all__ = ["Alarm", "StopSign", "cancelled", "past_hard_limit", "past_soft_limit"]


class Alarm(Protocol):
    """Raises `SoftTimeLimitExceeded` in blocking code. Where a pool has none, nothing can."""

    def arm(self, seconds: float) -> None:
        """Raise it after so many seconds in the code that runs then."""

    def disarm(self) -> None:
        """Raise nothing any more. Idempotent."""


def cancelled() -> JobCancelled:
    """Return what is raised in a task that somebody cancelled."""
    return JobCancelled("the job was cancelled while it ran")


def past_hard_limit(seconds: float) -> TimeLimitExceeded:
    """Return with what a job fails that was stopped at its ``timeout``."""
    return TimeLimitExceeded(f"the job was stopped after its timeout of {seconds:g} s")


def past_soft_limit(seconds: float) -> SoftTimeLimitExceeded:
    """Return what is raised in a task whose ``soft_timeout`` has passed."""
    return SoftTimeLimitExceeded(f"the job has run for its soft_timeout of {seconds:g} s")


class StopSign:
    """One per slot, or per job where jobs share a thread.

    Args:
        monotonic: Reads the time.

    Attributes:
        requested: Somebody cancelled the job.
        inside: The task's own code runs: only there may a signal raise.
        sink: Takes the parts of an async generator that has a stop sign of its own.
        report: Sends how far the job is; None where nobody would hear of it.
    """

    __slots__ = ("_monotonic", "_soft", "_soft_due", "inside", "report", "requested", "sink")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.requested = False
        self.inside = False
        self.report: Callable[[float, float | None, str], None] | None = None
        self.sink: Sink | None = None
        self._monotonic = monotonic
        self._soft = self._soft_due = 0.0

    def limit(self, seconds: float) -> None:
        """Begin the soft limit of a job; 0.0 ends it."""
        self._soft = seconds
        self._soft_due = self._monotonic() + seconds if seconds else 0.0

    @property
    def late(self) -> bool:
        """Whether the soft limit has passed."""
        return bool(self._soft_due) and self._monotonic() >= self._soft_due

    def overdue(self) -> SoftTimeLimitExceeded:
        """Return what is raised in a task that is late, which it is not twice."""
        self._soft_due = 0.0
        return past_soft_limit(self._soft)

    def check(self) -> None:
        """Raise what stops the task, if something does.

        Raises:
            JobCancelled: Somebody cancelled the job.
            SoftTimeLimitExceeded: Its soft limit has passed; raised once.
        """
        if self.requested:
            raise cancelled()
        if self.late:
            raise self.overdue()
