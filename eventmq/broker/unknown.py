"""Says once per task that its jobs wait because no worker of their queue knows it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.broker.peers import Session

__all__ = ["UnknownTasks"]

logger = logging.getLogger("eventmq.broker")

#: Names of tasks that are remembered: clients make them up, and the log is finite.
TASKS = 1000

#: Workers that one line names.
NAMED = 5


class UnknownTasks:
    """Remembers of which tasks it has spoken. `Parking` owns one."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def note(self, queue: str, task: str, sessions: Sequence[Session], grace: float) -> None:
        """Warn of a job that was put aside, if it is the first of its task.

        Args:
            queue: Of the job.
            task: Its name, "" for a plain job.
            sessions: The workers that serve the queue.
            grace: Seconds until such jobs fail.
        """
        if task in self._told or len(self._told) > TASKS:
            return
        self._told.add(task)
        if len(self._told) > TASKS:
            logger.warning("jobs of more than %d unknown tasks wait; no more are named", TASKS)
            return
        names = ", ".join(repr(s.name or s.id) for s in sessions[:NAMED])
        more = f" and {len(sessions) - NAMED} more" if len(sessions) > NAMED else ""
        what = f"the task {task!r}" if task else "what a plain job names (see --allow-callables)"
        logger.warning(
            "no worker of the queue %r knows %s; it is served by %s%s; such jobs wait, and fail "
            "after %g s unless a worker comes that does", queue, what, names, more, grace,
        )  # fmt: skip

    @staticmethod
    def failed(queue: str, task: str, jobs: int) -> None:
        """Tell that jobs failed for good, because no worker came that knows their task."""
        what = "%d jobs of the task %r in the queue %r failed for good: no worker knows it"
        logger.error(what, jobs, task or "(plain)", queue)
