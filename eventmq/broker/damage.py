"""Damaged jobs: those whose records were altered on the disk fail, and are never dispatched."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from eventmq.job import JobState
from eventmq.wire.results import ERROR_TYPE, RemoteError, encode_error

if TYPE_CHECKING:
    from eventmq.broker.outcomes import Outcomes
    from eventmq.broker.state import State
    from eventmq.job import JobRecord
    from eventmq.store.writes import Finished

__all__ = ["DamagedJobs"]

logger = logging.getLogger("eventmq.broker")


class DamagedJobs:
    """Fails the jobs that a store says are damaged; the store keeps them as they are."""

    def __init__(self, state: State, outcomes: Outcomes) -> None:
        self.state = state
        self.outcomes = outcomes
        #: Those whose end could not be stored.
        self.unsaved: list[JobRecord] = []

    def sort_out(self, jobs: list[JobRecord]) -> list[JobRecord]:
        """Fail the damaged ones of queued jobs that were read; return the others."""
        damaged = [job for job in jobs if job.damaged]
        if not damaged:
            return jobs
        known = self.state.jobs  # what is in memory was read, or admitted, when it was sound
        self._fail([job for job in damaged if job.id not in known])
        return [job for job in jobs if not job.damaged]

    def run(self) -> None:
        """Fail those whose end could not be stored before."""
        if self.unsaved and self.state.now >= self.state.hold_until:
            jobs, self.unsaved = self.unsaved, []
            self._fail(jobs)

    def _fail(self, jobs: list[JobRecord]) -> None:
        if not jobs:
            return
        rows: list[Finished] = []
        for job in jobs:
            what = f"job {job.id} of the queue {job.queue!r} is damaged in the store"
            logger.error("%s: it was not run, and is kept among the failed jobs", what)
            text = f"{what}: its checksum is wrong, so it was not run; submit it again"
            error = encode_error(RemoteError("eventmq.errors.StoreError", text))
            rows.append(self.outcomes.row(job, JobState.FAILED, ERROR_TYPE, error))
        self.outcomes.finish(rows, lambda: self.unsaved.extend(jobs))
