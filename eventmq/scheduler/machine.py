"""The scheduler's state machine: schedules and ``now`` in, jobs and steps out.

No socket, no store, no clock. Its runner (or a test) tells it what is in the store (`replace`,
`drop`), asks what is due (`due`) and tells it what became of that (`moved`). The next fire time
of a schedule always comes from its last one in the store, and the id of a job from schedule and
fire time, so any number of these machines may run: the broker refuses the second job of one.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from eventmq.errors import EventMQError
from eventmq.headers import write_headers
from eventmq.schedule import Progress, slot_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from eventmq.interfaces import Trigger
    from eventmq.schedule import Schedule

__all__ = [
    "AGAIN",
    "AHEAD",
    "MOST_SHOTS",
    "TOLERANCE",
    "Entry",
    "Firing",
    "Machine",
    "Shot",
    "job_headers",
]


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


logger = logging.getLogger("eventmq.scheduler")

#: Seconds that a slot may be late, for instance because another beat took over or the broker was
#: restarted, before it counts as missed. Up to that, each slot fires.
TOLERANCE = 30.0

#: Jobs of one schedule at a time.
MOST_SHOTS = 100

#: Seconds until what could not be done is tried again, and until a job is looked at again.
AGAIN = 1.0

#: Seconds that a schedule's last fire time may be ahead of the clock: other beats' clocks differ.
AHEAD = 60.0


class Machine:
    """Knows what is due.

    Args:
        identity: Of the store that the schedules are in.
        make_trigger: Makes the trigger of its text; raises `EventMQError`.
    """

    def __init__(self, identity: str, make_trigger: Callable[[str], Trigger]) -> None:
        self.identity = identity
        self.entries: dict[str, Entry] = {}
        #: A scheduler of another kind fires the plain schedules of source ``wire``.
        self.foreign = False
        self._make_trigger = make_trigger
        self._heap: list[tuple[float, int, str]] = []
        self._generation = 0

    # What is in the store

    def replace(self, schedules: Iterable[Schedule], now: float) -> None:
        """Take schedules as they are in the store now; the others stay as they are."""
        ahead: list[tuple[float, str]] = []
        for schedule in schedules:
            known = self.entries.get(schedule.name)
            if known is not None and known.schedule.version == schedule.version:
                continue
            try:
                entry = Entry(schedule, self._make_trigger(schedule.trigger))
            except EventMQError as error:
                logger.error("schedule %r cannot fire: %s", schedule.name, error)  # noqa: TRY400
                self.drop([schedule.name])
                continue
            self.entries[schedule.name] = entry
            if (seconds := (schedule.last_fire_time or 0.0) - now) > AHEAD:
                ahead.append((seconds, schedule.name))
                schedule.last_fire_time = now
            self._expect(entry)
        _say_ahead(ahead)

    def went_back(self, now: float, slack: float = 0.0) -> None:
        """Let schedules fire from now on that have fired for later slots: time was put back.

        Slots that come again have the ids of before, which the broker refuses for as long as it
        knows them.

        Args:
            now: Unix time.
            slack: Seconds that a slot may be ahead all the same.
        """
        ahead: list[tuple[float, str]] = []
        for entry in self.entries.values():
            schedule = entry.schedule
            if (seconds := (schedule.last_fire_time or 0.0) - now) > slack:
                ahead.append((seconds, schedule.name))
                schedule.last_fire_time = now
                self._expect(entry)
        _say_ahead(ahead)

    def drop(self, names: Iterable[str]) -> None:
        """Forget schedules that are in the store no more."""
        for name in names:
            self.entries.pop(name, None)

    def keep_only(self, names: Iterable[str]) -> None:
        """Forget all schedules but these."""
        wanted = set(names)
        self.drop([name for name in self.entries if name not in wanted])

    def _expect(self, entry: Entry, at: float | None = None) -> None:
        """Compute the next slot of a schedule, and put it where `due` finds it."""
        schedule = entry.schedule
        entry.slot = self._next(entry)
        if entry.slot is None:
            return
        entry.due = entry.slot + self._jitter(schedule, entry.slot)
        self._push(entry, entry.due if at is None else at)

    def _push(self, entry: Entry, at: float) -> None:
        self._generation += 1
        entry.generation = self._generation
        heappush(self._heap, (at, self._generation, entry.schedule.name))
        if len(self._heap) > 1000 and len(self._heap) > 3 * len(self.entries):  # noqa: PLR2004
            self._sweep()

    def _sweep(self) -> None:
        """Drop what the heap has about schedules that were replaced or removed."""
        entries = self.entries
        self._heap = [
            item for item in self._heap
            if (entry := entries.get(item[2])) is not None and entry.generation == item[1]
        ]  # fmt: skip
        heapify(self._heap)

    def _next(self, entry: Entry) -> float | None:
        schedule = entry.schedule
        if not schedule.enabled or schedule.remaining == 0:
            return None
        last = schedule.last_fire_time
        if last is None:
            return schedule.created
        try:
            slot = entry.trigger.next_after(last)
        except Exception:
            logger.exception("the trigger of schedule %r failed; it does not fire", schedule.name)
            entry.broken = True
            return None
        if slot is not None and not slot > last:
            text = (
                "the trigger of schedule %r goes from %.6f to %.6f, not forward; it does not fire"
            )
            logger.error(text, schedule.name, last, slot)
            entry.broken = True
            return None
        return slot

    def _jitter(self, schedule: Schedule, slot: float) -> float:
        """Return how much later a slot fires: the same whoever computes it."""
        if not schedule.jitter:
            return 0.0
        text = f"{self.identity}\0{schedule.name}\0{slot:.6f}".encode()
        part = int.from_bytes(hashlib.sha256(text).digest()[:6], "big")
        return schedule.jitter * part / (1 << 48)

    # What is due

    def wake_at(self) -> float | None:
        """Return the Unix time at which something is due, None if nothing will be."""
        heap = self._heap
        while heap:
            at, generation, name = heap[0]
            entry = self.entries.get(name)
            if entry is not None and entry.generation == generation:
                return at
            heappop(heap)
        return None

    def due(self, now: float, limit: int) -> list[Entry]:
        """Return up to ``limit`` schedules whose next slot has come; `fire` them, or `wait`."""
        found: list[Entry] = []
        while len(found) < limit and (at := self.wake_at()) is not None and at <= now:
            _, _, name = heappop(self._heap)
            found.append(self.entries[name])
        return found

    @staticmethod
    def asks(entries: Iterable[Entry]) -> list[str]:
        """Return the ids of the jobs whose state decides about due schedules."""
        found = (entry.schedule for entry in entries)
        return [s.last_job for s in found if s.overlap != "allow" and s.last_job]

    def fire(self, entry: Entry, now: float, unfinished: Mapping[str, bool]) -> Firing | None:
        """Decide what happens with a due schedule.

        Args:
            entry: From `due`.
            now: Unix time.
            unfinished: Whether jobs of `asks` have not ended.

        Returns:
            What to do, or None if it waits for the job before.
        """
        schedule = entry.schedule
        try:
            slots, last, passed = self._slots(entry, now)
        except Exception:
            logger.exception("the trigger of schedule %r failed; it does not fire", schedule.name)
            self.drop([schedule.name])
            return None
        if self.foreign and schedule.source == "wire" and schedule.plain:
            return Firing(entry, (), last)
        if unfinished.get(schedule.last_job):
            if schedule.overlap == "queue":
                entry.waits = entry.waits or now
                self._push(entry, now + AGAIN)
                return None
            logger.info("schedule %r: job %s still runs, slots are skipped", *_who(schedule))
            return Firing(entry, (), last, passed=True)
        entry.waits = 0.0
        if schedule.remaining is not None:
            slots = slots[: schedule.remaining]
        if passed:
            text = "schedule %r: slots were missed up to %.3f; policy %s: %d fire"
            logger.info(text, schedule.name, last, schedule.misfire, len(slots))
        shots = [Shot(slot_id(self.identity, schedule.name, slot), slot) for slot in slots]
        return Firing(entry, shots, last, passed)

    def _slots(self, entry: Entry, now: float) -> tuple[list[float], float, bool]:
        """Return the slots that fire, the last one that is dealt with, and whether some do not.

        Slots that come at most `TOLERANCE` late all fire. Where the first one is later than that
        it was missed, and the policy decides; ``skip`` is ``all`` within the tolerance.
        """
        schedule, first = entry.schedule, entry.slot
        assert first is not None  # noqa: S101 - it was due
        if not entry.waits and now - entry.due <= TOLERANCE:
            return self._steps(entry, first, now)
        base = schedule.created if schedule.last_fire_time is None else schedule.last_fire_time
        if entry.waits or schedule.misfire == "one":
            last = entry.trigger.latest(base, now - schedule.jitter)
            last = first if last is None else max(first, last)
            return [last], last, last > first
        window = schedule.window if schedule.misfire == "all" else TOLERANCE
        if first >= now - window:
            return self._steps(entry, first, now)
        begin = entry.trigger.latest(base, now - window)
        begin = first if begin is None else max(first, begin)
        following = entry.trigger.next_after(begin)
        if following is None or following + self._jitter(schedule, following) > now:
            return [], begin, True
        slots, last, _ = self._steps(entry, following, now)
        return slots, last, True

    def _steps(self, entry: Entry, slot: float, now: float) -> tuple[list[float], float, bool]:
        """Return the due slots from one on, as many as fire at a time."""
        slots = [slot]
        most = MOST_SHOTS if entry.schedule.overlap == "allow" else 1
        while len(slots) < most:
            following = entry.trigger.next_after(slots[-1])
            if following is None or following + self._jitter(entry.schedule, following) > now:
                break
            slots.append(following)
        return slots, slots[-1], False

    # What became of it

    def moved(self, entry: Entry, step: Progress) -> None:
        """Note that a step is in the store."""
        schedule = entry.schedule
        schedule.version = step.expected + 1
        schedule.last_fire_time, schedule.remaining = step.last_fire_time, step.remaining
        schedule.last_job = step.last_job
        if self.entries.get(schedule.name) is entry:
            self._expect(entry)

    @staticmethod
    def is_over(entry: Entry) -> bool:
        """Whether a schedule will never fire again, and nobody's code has it."""
        made = entry.schedule
        return entry.slot is None and made.enabled and made.source != "code" and not entry.broken

    def ended(self) -> list[Schedule]:
        """Return those that have fired and are over: nobody removed them when they ended."""
        return [
            entry.schedule
            for entry in self.entries.values()
            if self.is_over(entry) and (entry.schedule.last_job or entry.schedule.remaining == 0)
        ]

    def wait(self, entry: Entry, now: float) -> None:
        """Try a due schedule again soon: something could not be reached."""
        if self.entries.get(entry.schedule.name) is entry:
            self._push(entry, now + AGAIN)


def _say_ahead(ahead: Sequence[tuple[float, str]]) -> None:
    if ahead:
        seconds, name = max(ahead)
        text = "%d schedules have fired for slots ahead of the clock, %r for one in %.0f s: "
        text += "they go on from now"
        logger.warning(text, len(ahead), name, seconds)


def _who(schedule: Schedule) -> tuple[str, str]:
    return schedule.name, schedule.last_job
