"""What the store's verdicts about unique keys change in the broker's memory.

The store decides (`eventmq.entries.Admit`); nothing here does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.entries import unique_rule
from eventmq.job import HELD, JobState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.broker.state import State
    from eventmq.broker.waits import Waits
    from eventmq.entries import Finished, Verdict
    from eventmq.job import Job

__all__ = ["Uniqueness"]


class Uniqueness:
    """Follows what became of jobs with unique keys."""

    def __init__(self, state: State, waits: Waits) -> None:
        self.state = state
        self.waits = waits

    def admitted(self, job: Job, verdict: Verdict) -> bool:
        """Say whether a job is stored, and make it and those that it replaced what they are."""
        if verdict.code == "held":
            job.state = JobState.DELAYED
            job.due += HELD
            return True
        if verdict.code != "replaced":
            return False
        rule = unique_rule(job.headers)
        if rule is not None and rule.mode == "keep_last":
            place = verdict.ended[0].job
            job.state, job.rank = place.state, place.rank
            job.due, job.eta = place.due, place.eta
        self._forget(verdict.ended)
        return True

    def _forget(self, rows: Sequence[Finished]) -> None:
        """Forget replaced jobs and tell whoever waits for them."""
        state = self.state
        for row in rows:
            old = row.job
            queue = state.queue(old.queue)
            live = state.jobs.pop(old.id, None)
            if live is not None:
                queue.remove(live)
            state.refusals.pop(old.id, None)
            queue.counts.delayed -= old.state is JobState.DELAYED
            queue.counts.waiting -= old.state is not JobState.DELAYED
            state.counters[row.state.value] += 1
        state.counters["ended"] += len(rows)
        state.counters["replaced"] += len(rows)
        self.waits.ended(rows)

    def ended(self, rows: Sequence[Finished]) -> None:
        """Look soon for delayed jobs: one may have waited for the end of these."""
        state, text = self.state, ""
        for row in rows:
            if row.job.headers is text:  # most of a chunk have the same
                continue
            text = row.job.headers
            if "unique:" in text:
                due = state.next_due
                state.next_due = state.now if due is None else min(due, state.now)
                return
