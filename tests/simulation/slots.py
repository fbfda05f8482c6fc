"""Schedules: each slot has one job, none is left out, and they keep up."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.store.reads import JobRow
    from tests.simulation.auditor import Auditor

__all__ = ["check_slots"]

#: Seconds that a slot may be late: the lease, and that one beat here waits while another one does.
LATE = 8.0


def check_slots(
    auditor: Auditor, name: str, every: float, found: Mapping[str, JobRow], stopped: float
) -> None:
    """Check the jobs of a schedule that fires for each of its slots.

    Args:
        auditor: Knows what was submitted.
        name: Of the schedule.
        every: Seconds between two slots.
        found: What the store has.
        stopped: Unix time at which the beats ended.
    """
    slots = sorted(
        int(job_id[:12], 16) / 1000
        for job_id, known in auditor.jobs.items()
        if known.headers.task == f"sim.{name}" and job_id in found
    )
    if auditor.rolled_back:
        return
    for slot, following in pairwise(slots):
        if abs(following - slot - every) > 0.002:
            auditor.fail(f"schedule {name}: slot {following:.3f} follows {slot:.3f}")
    if not auditor.clocks and stopped - (slots[-1] if slots else 0.0) > every + LATE:
        auditor.fail(f"schedule {name}: the last of {len(slots)} slots is {slots[-1:]}")
