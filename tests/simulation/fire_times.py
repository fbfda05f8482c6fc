"""Checks schedules: each fire time has exactly one job, and none comes too late."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.store.reads import JobRow
    from tests.simulation.auditor import Auditor

__all__ = ["check_fire_times"]

#: Seconds that a job may be late: a lease of the store, and the time that another scheduler takes.
MAX_DELAY = 8.0


def check_fire_times(
    auditor: Auditor, name: str, every: float, stored: Mapping[str, JobRow], stopped: float
) -> None:
    """Check the jobs of a schedule that submits one for each fire time.

    Args:
        auditor: Has the jobs that were submitted.
        name: Name of the schedule.
        every: Seconds between two fire times.
        stored: Jobs in the store, by id.
        stopped: Unix time at which the schedulers were stopped.
    """
    fire_times = sorted(
        int(job_id[:12], 16) / 1000
        for job_id, audited in auditor.jobs.items()
        if audited.headers.task == f"sim.{name}" and job_id in stored
    )
    if auditor.rolled_back:
        return
    for fire_time, following in pairwise(fire_times):
        if abs(following - fire_time - every) > 0.002:
            auditor.fail(f"schedule {name}: fire time {following:.3f} follows {fire_time:.3f}")
    if (
        not auditor.clocks_set
        and stopped - (fire_times[-1] if fire_times else 0.0) > every + MAX_DELAY
    ):
        auditor.fail(
            f"schedule {name}: the last of {len(fire_times)} fire times is {fire_times[-1:]}"
        )
