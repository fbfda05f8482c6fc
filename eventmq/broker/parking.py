"""Jobs whose task no connected worker knows: out of the window, so that they stop nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.broker.dispatch import admits
from eventmq.broker.unknown import UnknownTasks
from eventmq.entries import Finish
from eventmq.headers import parse_headers
from eventmq.job import JobState
from eventmq.wire.results import ERROR_TYPE, RemoteError, encode_error

if TYPE_CHECKING:
    from eventmq.broker.outcomes import Outcomes
    from eventmq.broker.peers import Session
    from eventmq.broker.queues import Queue
    from eventmq.broker.state import State
    from eventmq.job import Job

__all__ = ["Parking"]


class Parking:
    """Parks jobs, brings them back when a worker knows them, fails them after the grace."""

    def __init__(self, state: State, outcomes: Outcomes) -> None:
        self.state = state
        self.outcomes = outcomes
        #: Queues with parked jobs that are in the store only.
        self._overflowed: set[str] = set()
        self._unknown = UnknownTasks()

    def session_changed(self, session: Session) -> None:
        """A session came or went: parked jobs of its queues are looked at again."""
        for _, name in session.queues:
            queue = self.state.queues.get(name)
            if queue is not None and (queue.parked or name in self._overflowed):
                self._unpark(queue)

    def _unpark(self, queue: Queue) -> None:
        parked = [job for jobs in queue.parked.values() for job in jobs]
        since = dict(queue.parked_since)
        queue.parked.clear()
        for job in parked:
            self.state.joined(job)
        self._rewind(queue)
        self._park(queue, since)

    def _rewind(self, queue: Queue) -> None:
        if queue.name in self._overflowed:
            self._overflowed.discard(queue.name)
            queue.rewind()
            self.state.busy[queue.name] = queue

    def tick(self) -> None:
        """Park what nobody knows where a worker is idle for it; fail what waited too long."""
        for queue in list(self.state.queues.values()):
            if len(queue) and self._stuck(queue):
                self._park(queue, queue.parked_since)
            if queue.parked:
                self._fail_old(queue)

    def _stuck(self, queue: Queue) -> bool:
        return any(
            session.blocked.get(queue.name) == queue.version
            for session in self._serving(queue)
            if session.room > 0
        )

    def _serving(self, queue: Queue) -> list[Session]:
        return [
            session
            for session in self.state.sessions.values()
            if any(name == queue.name for _, name in session.queues)
        ]

    def _park(self, queue: Queue, since: dict[str, float]) -> None:
        state = self.state
        sessions = self._serving(queue)
        if not sessions:
            return
        refusals = state.refusals

        def nobody(job: Job) -> bool:
            refused = refusals.get(job.id, ())
            return not any(admits(s, job.headers) and s.id not in refused for s in sessions)

        unknown = queue.drop(nobody)
        room = state.limits.window - sum(map(len, queue.parked.values()))
        for job in unknown:
            task = parse_headers(job.headers).task
            queue.parked_since[task] = since.get(task, state.now)
            self._unknown.note(queue.name, task, sessions, state.limits.unknown_task_grace)
            if room > 0:
                queue.parked.setdefault(task, []).append(job)
                room -= 1
            else:
                state.jobs.pop(job.id, None)
                self._overflowed.add(queue.name)
        queue.parked_since = {
            task: at for task, at in queue.parked_since.items() if task in queue.parked
        }

    def _fail_old(self, queue: Queue) -> None:
        state = self.state
        for task, at in list(queue.parked_since.items()):
            if state.now - at >= state.limits.unknown_task_grace and task in queue.parked:
                self._fail(queue, task, queue.parked.pop(task))
                del queue.parked_since[task]
                self._rewind(queue)

    def _fail(self, queue: Queue, task: str, jobs: list[Job]) -> None:
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

        self.state.write(Finish(rows), lambda verdict: self.outcomes.finished(rows, verdict), undo)
