"""What the scheduler machine asks its runner to do, and how one schedule stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from eventmq.headers import write_headers
from eventmq.schedule import Progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.interfaces import Trigger
    from eventmq.schedule import Schedule

__all__ = ["Entry", "Firing", "Shot", "job_headers"]


def job_headers(made: Schedule, at: float) -> str:
    """Return the header text of a job of a schedule, for the slot at a Unix time.

    The header ``schedule-id`` names the schedule, so that events of the job do. A job of a SCHEDULE
    message, which a plain broker may have sent, is as that says.
    """
    texts = [made.headers] if made.headers else []
    if made.source != "wire":
        texts.append(write_headers([("schedule-id", made.name)]))
    if made.expires_in:
        texts.append(f"expires:{at + made.expires_in:.3f}")
    return ",".join(texts)


class Shot(NamedTuple):
    """One job to be submitted: its id and the slot that it is for."""

    id: str
    slot: float


@dataclass(slots=True, eq=False)
class Entry:
    """One schedule in the memory of a scheduler.

    Attributes:
        schedule: As it is in the store.
        trigger: Its own.
        slot: The next one, None where there is none.
        due: When the slot fires: with its jitter.
        generation: Of what the heap has about it; older ones count no more.
        waits: Since when a slot of overlap ``queue`` waits for the job before, 0.0 if none does.
        broken: The trigger has failed: there is no slot, and it has not ended either.
    """

    schedule: Schedule
    trigger: Trigger
    slot: float | None = None
    due: float = 0.0
    generation: int = 0
    waits: float = 0.0
    broken: bool = False


@dataclass(slots=True, eq=False)
class Firing:
    """A due schedule: jobs to be submitted, in order, and then the step to be stored.

    Attributes:
        entry: Whose.
        shots: May be none: then slots are only passed over.
        last_fire_time: Of the schedule after it.
        passed: Whether slots were left out, which is told.
    """

    entry: Entry
    shots: Sequence[Shot] = ()
    last_fire_time: float = 0.0
    passed: bool = False

    def step(self, results: Sequence[bool | None]) -> Progress | None:
        """Return what to store, None if nothing came of it.

        Args:
            results: Per shot: True if the broker has it, None if it never will, False if it is to
                be tried again, and so are all after it.
        """
        schedule = self.entry.schedule
        dealt = results.index(False) if False in results else len(results)
        if results and not dealt:
            return None
        accepted = [shot.id for shot, got in zip(self.shots, results[:dealt], strict=False) if got]
        fired = self.last_fire_time if dealt == len(results) else self.shots[dealt - 1].slot
        left = schedule.remaining
        if left is not None:
            left = max(0, left - dealt)
        job = accepted[-1] if accepted else schedule.last_job
        return Progress(schedule.name, schedule.version, fired, left, job)
