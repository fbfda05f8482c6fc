"""Jobs whose task no connected worker knows: they stop nobody, and fail after a grace.

A worker knows the task of a subqueue or does not, so a subqueue that no worker knows just waits. A
job that each worker of its queue refused by itself is put aside, out of the window.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from eventmq.broker.dispatch import knows
from eventmq.headers import parse_headers
from eventmq.job import JobState
from eventmq.store.writes import Finish, subqueue_of
from eventmq.wire.results import ERROR_TYPE, RemoteError, encode_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.broker.outcomes import Outcomes
    from eventmq.broker.peers import Session
    from eventmq.broker.queues import Queue
    from eventmq.broker.state import State
    from eventmq.job import JobRecord

__all__ = ["Parking", "UnknownTasks"]


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


class Parking:
    """Watches subqueues that nobody knows and jobs that everybody refused."""

    def __init__(self, state: State, outcomes: Outcomes) -> None:
        self.state = state
        self.outcomes = outcomes
        self._unknown = UnknownTasks()

    def session_changed(self, session: Session) -> None:
        """A session came or went: what was put aside in its queues is looked at again."""
        for _, name in session.queues:
            queue = self.state.queues.get(name)
            if queue is not None:
                self._look(queue)
                self._bring_back(queue)

    def tick(self) -> None:
        """Look who knows what; fail what waited too long."""
        for queue in list(self.state.queues.values()):
            if queue.subqueues:
                self._look(queue)
            if queue.aside:
                self._fail_aside(queue)

    def shift(self, seconds: float) -> None:
        """Let jobs wait longer: the broker itself was away, or store time went on at once."""
        for queue in self.state.queues.values():
            for subqueue in queue.subqueues.values():
                if subqueue.unknown_since is not None:
                    subqueue.unknown_since += seconds
            for job_id, (job, since) in queue.aside.items():
                queue.aside[job_id] = (job, since + seconds)

    def _serving(self, queue: Queue) -> list[Session]:
        return [
            session
            for session in self.state.sessions.values()
            if any(name == queue.name for _, name in session.queues)
        ]

    # Subqueues

    def _look(self, queue: Queue) -> None:
        """Note since when nobody knows a subqueue; fail its jobs when that is too long."""
        sessions = self._serving(queue)
        eligibilities = {session.eligibility for session in sessions}
        known: dict[str | None, bool] = {}  # subqueues are many where jobs have keys, tasks are not
        for subqueue in list(queue.subqueues.values()):
            task = subqueue.task
            if task not in known:
                known[task] = any(eligibility.admits(task) for eligibility in eligibilities)
            if known[task]:
                subqueue.unknown_since = None
            elif sessions and subqueue.unknown_since is None and subqueue.first is not None:
                subqueue.unknown_since = self.state.now
                grace = self.state.limits.unknown_task_grace
                self._unknown.note(queue.name, subqueue.task or "", sessions, grace)
            if subqueue.unknown_since is not None and self._too_long(subqueue.unknown_since):
                self._fail(queue, subqueue.task or "", queue.drop_from(subqueue, lambda _: True))
                queue.want(subqueue)
        if self.state.refusals and sessions:
            self._put_aside(queue, sessions)

    def _too_long(self, since: float) -> bool:
        return self.state.now - since >= self.state.limits.unknown_task_grace

    # Single jobs

    def _put_aside(self, queue: Queue, sessions: Sequence[Session]) -> None:
        """Take jobs out of the way that every worker which knows their subqueue refused."""
        refusals, now = self.state.refusals, self.state.now

        def nobody(job: JobRecord) -> bool:
            refused = refusals.get(job.id)
            if not refused:
                return False
            task = subqueue_of(job.headers).task
            return not any(knows(s, task) and s.id not in refused for s in sessions)

        for job in queue.drop(nobody):
            queue.aside[job.id] = (job, now)
            task = parse_headers(job.headers).task
            self._unknown.note(queue.name, task, sessions, self.state.limits.unknown_task_grace)

    def _bring_back(self, queue: Queue) -> None:
        """Let jobs wait in line again that a worker of now has not refused."""
        sessions = self._serving(queue)
        for job, _ in list(queue.aside.values()):
            refused = self.state.refusals.get(job.id, ())
            task = subqueue_of(job.headers).task
            if any(knows(s, task) and s.id not in refused for s in sessions):
                del queue.aside[job.id]
                self.state.joined(job)

    def _fail_aside(self, queue: Queue) -> None:
        late = [job for job, since in queue.aside.values() if self._too_long(since)]
        for job in late:
            del queue.aside[job.id]
        for task in dict.fromkeys(parse_headers(job.headers).task for job in late):
            jobs = [job for job in late if parse_headers(job.headers).task == task]
            self._fail(queue, task, jobs)

    def _fail(self, queue: Queue, task: str, jobs: Sequence[JobRecord]) -> None:
        if not jobs:
            return
        msg = (
            f"no worker of the queue {queue.name!r} knows the task {task!r}: start one whose app "
            "has it, or look for a misspelt name"
        )
        self._unknown.failed(queue.name, task, len(jobs))
        error = encode_error(RemoteError("eventmq.errors.UnknownTask", msg))
        rows = [self.outcomes.row(job, JobState.FAILED, ERROR_TYPE, error) for job in jobs]

        def undo() -> None:
            for job in jobs:
                self.state.joined(job)

        self.state.write(
            Finish(rows), lambda write_result: self.outcomes.finished(rows, write_result), undo
        )
