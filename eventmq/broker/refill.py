"""Reads the jobs from the store that the lanes of a queue lack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.entries import Claim

if TYPE_CHECKING:
    from eventmq.broker.damage import Damage
    from eventmq.broker.lanes import Lane
    from eventmq.broker.queues import Queue
    from eventmq.broker.state import State
    from eventmq.job import Job

__all__ = ["Refill"]


class Refill:
    """Fills windows. `Dispatch` runs it at the end of each turn."""

    def __init__(self, state: State, damage: Damage) -> None:
        self.state = state
        self.damage = damage

    def run(self, queue: Queue) -> None:
        """Claim what the lanes of a queue lack."""
        for lane, jobs, size in queue.hungry(self.state.now):
            self._claim(queue, lane, jobs, size)

    def _claim(self, queue: Queue, lane: Lane, limit: int, max_bytes: int) -> None:
        lane.claiming = True
        entry = Claim(queue.name, lane.key, lane.edge, limit, max_bytes)

        def settle(verdict: tuple[list[Job], bool]) -> None:
            jobs, more = verdict
            if queue.claimed(lane, entry.after, jobs, more=more):
                self._join(queue, lane, self.damage.sort_out(jobs))
                queue.rest(lane)

        self.state.write(entry, settle, lambda: queue.failed(lane))

    # hot loop: benchmarks/drain.py
    def _join(self, queue: Queue, lane: Lane, jobs: list[Job]) -> None:
        state = self.state
        state.busy[queue.name] = queue
        known, text, limited = state.jobs, "", False
        new = [job for job in jobs if job.id not in known]
        for job in new:
            known[job.id] = job
            if job.headers is not text:
                text = job.headers
                limited = "limit-" in text
            if limited:
                state.learn(text, job.seq)
            if job.deaths:
                state.suspects.add(job)
        for displaced in queue.fill(lane, new):
            known.pop(displaced.id, None)
