"""Unroutable jobs: no connected worker knows their task. They wait, and fail after a grace period.

A worker knows either all jobs of a subqueue or none, so a subqueue that no worker knows waits where
it is. A single job that every worker of its queue has refused is withheld: taken out of the window.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from eventmq.headers import parse_headers
from eventmq.job import JobState
from eventmq.store.writes import subqueue_of
from eventmq.wire.results import ERROR_TYPE, RemoteError, encode_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.broker.outcomes import Outcomes
    from eventmq.broker.peers import Session
    from eventmq.broker.queues import Queue
    from eventmq.broker.state import State
    from eventmq.job import JobRecord

__all__ = ["UnroutableJobs", "UnroutableLog"]


logger = logging.getLogger("eventmq.broker")

#: Number of unknown tasks that are logged, since clients can name any number of them.
TASKS = 1000

#: Number of workers that one log line names.
NAMED = 5


class UnroutableLog:
    """Logs unroutable jobs, each task once."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def warn(self, queue: str, task: str, sessions: Sequence[Session], grace: float) -> None:
        """Log a warning about an unroutable job, if it is the first of its task.

        Args:
            queue: Queue of the job.
            task: Task of the job, "" for a legacy job.
            sessions: The workers that serve the queue.
            grace: Seconds until such jobs fail.
        """
        if task in self._warned or len(self._warned) > TASKS:
            return
        self._warned.add(task)
        if len(self._warned) > TASKS:
            logger.warning(
                "jobs of more than %d unknown tasks wait; further ones are not logged", TASKS
            )
            return
        names = ", ".join(repr(s.name or s.id) for s in sessions[:NAMED])
        more = f" and {len(sessions) - NAMED} more" if len(sessions) > NAMED else ""
        what = f"the task {task!r}" if task else "what a legacy job names (see --allow-callables)"
        logger.warning(
            "no worker of the queue %r knows %s; it is served by %s%s; such jobs wait, and fail "
            "after %g s unless a worker that does connects", queue, what, names, more, grace,
        )  # fmt: skip

    @staticmethod
    def failed(queue: str, task: str, jobs: int) -> None:
        """Log that jobs failed for good, because no worker that knows their task connected."""
        what = "%d jobs of the task %r in the queue %r failed for good: no worker knows it"
        logger.error(what, jobs, task or "(legacy)", queue)


class UnroutableJobs:
    """Finds subqueues that no worker knows, and jobs that every worker refused."""

    def __init__(self, state: State, outcomes: Outcomes) -> None:
        self.state = state
        self.outcomes = outcomes
        self._log = UnroutableLog()

    def session_changed(self, session: Session) -> None:
        """Scan the queues of a session that connected or ended; requeue routable jobs."""
        for _, name in session.queues:
            queue = self.state.queues.get(name)
            if queue is not None:
                self._scan(queue)
                self._requeue(queue)

    def tick(self) -> None:
        """Find jobs that have become unroutable; fail those that were unroutable for too long."""
        for queue in list(self.state.queues.values()):
            if queue.subqueues:
                self._scan(queue)
            if queue.unroutable:
                self._fail_withheld(queue)

    def shift(self, seconds: float) -> None:
        """Extend the grace of unroutable jobs: the broker was suspended, or store time jumped."""
        for queue in self.state.queues.values():
            for subqueue in queue.subqueues.values():
                if subqueue.unknown_since is not None:
                    subqueue.unknown_since += seconds
            for job_id, (job, since) in queue.unroutable.items():
                queue.unroutable[job_id] = (job, since + seconds)

    def _serving(self, queue: Queue) -> list[Session]:
        return [
            session
            for session in self.state.sessions.values()
            if any(name == queue.name for _, name in session.queues)
        ]

    # Subqueues

    def _scan(self, queue: Queue) -> None:
        """Record since when no worker knows a subqueue; fail its jobs after the grace."""
        sessions = self._serving(queue)
        eligibilities = {session.eligibility for session in sessions}
        known: dict[str | None, bool] = {}  # many subqueues may share a task
        for subqueue in list(queue.subqueues.values()):
            task = subqueue.task
            if task not in known:
                known[task] = any(eligibility.admits(task) for eligibility in eligibilities)
            if known[task]:
                subqueue.unknown_since = None
            elif sessions and subqueue.unknown_since is None and subqueue.first is not None:
                subqueue.unknown_since = self.state.now
                grace = self.state.limits.unknown_task_grace
                self._log.warn(queue.name, subqueue.task or "", sessions, grace)
            if subqueue.unknown_since is not None and self._too_long(subqueue.unknown_since):
                self._fail(queue, subqueue.task or "", queue.drop_from(subqueue, lambda _: True))
                queue.demand(subqueue)
        if self.state.refusals and sessions:
            self._withhold(queue, sessions)

    def _too_long(self, since: float) -> bool:
        return self.state.now - since >= self.state.limits.unknown_task_grace

    # Single jobs

    def _withhold(self, queue: Queue, sessions: Sequence[Session]) -> None:
        """Withhold jobs that were refused by every worker that knows their task."""
        refusals, now = self.state.refusals, self.state.now

        def refused_by_all(job: JobRecord) -> bool:
            refused = refusals.get(job.id)
            if not refused:
                return False
            task = subqueue_of(job.headers).task
            return not any(s.eligibility.admits(task) and s.id not in refused for s in sessions)

        for job in queue.drop(refused_by_all):
            queue.unroutable[job.id] = (job, now)
            task = parse_headers(job.headers).task
            self._log.warn(queue.name, task, sessions, self.state.limits.unknown_task_grace)

    def _requeue(self, queue: Queue) -> None:
        """Requeue withheld jobs that a connected worker knows and has not refused."""
        sessions = self._serving(queue)
        for job, _ in list(queue.unroutable.values()):
            refused = self.state.refusals.get(job.id, ())
            task = subqueue_of(job.headers).task
            if any(s.eligibility.admits(task) and s.id not in refused for s in sessions):
                del queue.unroutable[job.id]
                self.state.enqueue(job)

    def _fail_withheld(self, queue: Queue) -> None:
        overdue = [job for job, since in queue.unroutable.values() if self._too_long(since)]
        for job in overdue:
            del queue.unroutable[job.id]
        for task in dict.fromkeys(parse_headers(job.headers).task for job in overdue):
            jobs = [job for job in overdue if parse_headers(job.headers).task == task]
            self._fail(queue, task, jobs)

    def _fail(self, queue: Queue, task: str, jobs: Sequence[JobRecord]) -> None:
        if not jobs:
            return
        msg = (
            f"no worker of the queue {queue.name!r} knows the task {task!r}: start one whose app "
            "has it, or look for a misspelt name"
        )
        self._log.failed(queue.name, task, len(jobs))
        error = encode_error(RemoteError("eventmq.errors.UnknownTask", msg))
        rows = [self.outcomes.row(job, JobState.FAILED, ERROR_TYPE, error) for job in jobs]
        self.outcomes.finish(rows)
