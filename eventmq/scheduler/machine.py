"""The scheduler's state machine: schedules and ``now`` in, pending fires and steps out.

No socket, no store, no clock. Its runner (or a test) passes it the schedules of the store
(`replace`, `drop`), requests the due ones (`due`) and reports each stored step (`moved`). The next
fire time of a schedule is computed from the last one in the store, and the id of a job from
schedule and fire time, so any number of schedulers may run: the broker refuses a second job with
the same id. `synchronise` makes the store match the schedules of an app's code.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from eventmq.errors import EventMQError
from eventmq.headers import write_headers
from eventmq.schedule import Progress, scheduled_job_id
from eventmq.timekeeping import format_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from eventmq.interfaces import ScheduleStore, Trigger
    from eventmq.schedule import Schedule

__all__ = [
    "MAX_AHEAD",
    "MAX_FIRES",
    "RETRY_AFTER",
    "TOLERANCE",
    "Entry",
    "Firing",
    "PendingFire",
    "SchedulerMachine",
    "job_headers",
    "synchronise",
]


def job_headers(schedule: Schedule, at: float) -> str:
    """Return the header text of a schedule's job for the fire time ``at`` (Unix time).

    The header ``schedule-id`` names the schedule in the job's events. The jobs of a SCHEDULE
    message, which a legacy broker may have sent, have only the headers of the message.
    """
    texts = [schedule.headers] if schedule.headers else []
    if schedule.source != "wire":
        texts.append(write_headers([("schedule-id", schedule.name)]))
    if schedule.expires_in:
        texts.append(f"expires:{at + schedule.expires_in:.3f}")
    return ",".join(texts)


class PendingFire(NamedTuple):
    """One job to submit: its id and its fire time."""

    id: str
    fire_time: float


@dataclass(slots=True, eq=False)
class Entry:
    """One schedule in the memory of a scheduler.

    Attributes:
        schedule: The schedule as it is in the store.
        trigger: The trigger made from the schedule's text.
        fire_time: The next fire time, None if there is none.
        ready_at: The next fire time plus its jitter.
        generation: Generation of its valid heap item; items of older ones are ignored.
        waits: Time since which a fire of overlap ``queue`` waits for the previous job, 0.0 for
            none.
        broken: The trigger failed: there is no next fire time, yet the schedule has not ended.
    """

    schedule: Schedule
    trigger: Trigger
    fire_time: float | None = None
    ready_at: float = 0.0
    generation: int = 0
    waits: float = 0.0
    broken: bool = False


@dataclass(slots=True, eq=False)
class Firing:
    """Firing of a schedule: jobs to submit, in order, and then the step to store.

    Attributes:
        entry: The due schedule.
        fires: Jobs to submit; empty if fire times are only skipped.
        last_fire_time: The schedule's last fire time after the step.
        skipped: Whether fire times were skipped, which is logged.
    """

    entry: Entry
    fires: Sequence[PendingFire] = ()
    last_fire_time: float = 0.0
    skipped: bool = False

    def step(self, results: Sequence[bool | None]) -> Progress | None:
        """Return the step to store, None if nothing was submitted.

        Args:
            results: One per pending fire: True if the broker has the job, None if it refused it
                for good, False if this job and all later ones have to be submitted again.
        """
        schedule = self.entry.schedule
        count = results.index(False) if False in results else len(results)
        if results and not count:
            return None
        accepted = [
            fire.id for fire, result in zip(self.fires, results[:count], strict=False) if result
        ]
        fired = self.last_fire_time if count == len(results) else self.fires[count - 1].fire_time
        remaining = schedule.remaining
        if remaining is not None:
            remaining = max(0, remaining - count)
        job = accepted[-1] if accepted else schedule.last_job
        return Progress(schedule.name, schedule.version, fired, remaining, job)


logger = logging.getLogger("eventmq.scheduler")

#: Seconds after which a fire time that has not fired counts as missed. Up to that each one fires,
#: since another beat may have to take over, or the broker may restart.
TOLERANCE = 30.0

#: Maximum number of jobs of one schedule that are submitted together.
MAX_FIRES = 100

#: Seconds until a failed fire is tried again, and until the state of a running job is read again.
RETRY_AFTER = 1.0

#: Maximum seconds by which a last fire time may be ahead of the clock: clocks of beats differ.
MAX_AHEAD = 60.0


class SchedulerMachine:
    """Schedules by name, and a heap of their next fire times.

    Args:
        identity: Identity of the schedule store; part of the ids of jobs.
        make_trigger: Makes a trigger from its text; raises `EventMQError`.
    """

    def __init__(self, identity: str, make_trigger: Callable[[str], Trigger]) -> None:
        self.identity = identity
        self.entries: dict[str, Entry] = {}
        #: Whether a legacy scheduler fires the legacy schedules of source ``wire``.
        self.foreign = False
        self._make_trigger = make_trigger
        self._heap: list[tuple[float, int, str]] = []
        self._generation = 0

    # Schedules of the store

    def replace(self, schedules: Iterable[Schedule], now: float) -> None:
        """Add or replace schedules read from the store; other schedules do not change."""
        ahead: list[tuple[float, str]] = []
        for schedule in schedules:
            current = self.entries.get(schedule.name)
            if current is not None and current.schedule.version == schedule.version:
                continue
            try:
                entry = Entry(schedule, self._make_trigger(schedule.trigger))
            except EventMQError as error:
                logger.error("schedule %r cannot fire: %s", schedule.name, error)  # noqa: TRY400
                self.drop([schedule.name])
                continue
            self.entries[schedule.name] = entry
            if (seconds := (schedule.last_fire_time or 0.0) - now) > MAX_AHEAD:
                ahead.append((seconds, schedule.name))
                schedule.last_fire_time = now
            self._schedule_next(entry)
        _log_ahead(ahead)

    def clock_set_back(self, now: float, slack: float = 0.0) -> None:
        """Reset schedules whose last fire time is in the future, after time was set back.

        They fire from now on. Jobs of repeated fire times have the same ids as before, which the
        broker refuses as long as it remembers them.

        Args:
            now: Unix time.
            slack: Seconds that a last fire time may be ahead.
        """
        ahead: list[tuple[float, str]] = []
        for entry in self.entries.values():
            schedule = entry.schedule
            if (seconds := (schedule.last_fire_time or 0.0) - now) > slack:
                ahead.append((seconds, schedule.name))
                schedule.last_fire_time = now
                self._schedule_next(entry)
        _log_ahead(ahead)

    def drop(self, names: Iterable[str]) -> None:
        """Remove schedules that the store no longer has."""
        for name in names:
            self.entries.pop(name, None)

    def keep_only(self, names: Iterable[str]) -> None:
        """Remove all schedules except these."""
        valid_names = set(names)
        self.drop([name for name in self.entries if name not in valid_names])

    def _schedule_next(self, entry: Entry, at: float | None = None) -> None:
        """Compute the next fire time of a schedule and push it onto the heap."""
        schedule = entry.schedule
        entry.fire_time = self._next(entry)
        if entry.fire_time is None:
            return
        entry.ready_at = entry.fire_time + schedule.jitter_at(entry.fire_time, self.identity)
        self._push(entry, entry.ready_at if at is None else at)

    def _push(self, entry: Entry, at: float) -> None:
        self._generation += 1
        entry.generation = self._generation
        heappush(self._heap, (at, self._generation, entry.schedule.name))
        if len(self._heap) > 1000 and len(self._heap) > 3 * len(self.entries):  # noqa: PLR2004
            # Most items belong to schedules that were replaced or removed.
            self._heap = [item for item in self._heap if self._is_valid(item)]
            heapify(self._heap)

    def _next(self, entry: Entry) -> float | None:
        schedule = entry.schedule
        if not schedule.enabled or schedule.remaining == 0:
            return None
        last = schedule.last_fire_time
        if last is None:
            return schedule.created
        try:
            fire_time = entry.trigger.next_after(last)
        except Exception:
            logger.exception("the trigger of schedule %r failed; it does not fire", schedule.name)
            entry.broken = True
            return None
        if fire_time is not None and not fire_time > last:
            text = "the trigger of schedule %r goes from %s to %s, not forward; it does not fire"
            logger.error(text, schedule.name, format_time(last), format_time(fire_time))
            entry.broken = True
            return None
        return fire_time

    # Due schedules

    def next_tick(self) -> float | None:
        """Return the Unix time at which the next schedule is due, None if none is."""
        while self._heap and not self._is_valid(self._heap[0]):
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _is_valid(self, item: tuple[float, int, str]) -> bool:
        """Return whether the schedule of a heap item was neither replaced nor removed."""
        entry = self.entries.get(item[2])
        return entry is not None and entry.generation == item[1]

    def due(self, now: float, limit: int) -> list[Entry]:
        """Return up to ``limit`` schedules whose next fire time has come; `fire` or `wait` each."""
        entries: list[Entry] = []
        while len(entries) < limit and (at := self.next_tick()) is not None and at <= now:
            _, _, name = heappop(self._heap)
            entries.append(self.entries[name])
        return entries

    @staticmethod
    def awaited_jobs(entries: Iterable[Entry]) -> list[str]:
        """Return the ids of the last jobs of due schedules that do not allow an overlap."""
        schedules = (entry.schedule for entry in entries)
        return [s.last_job for s in schedules if s.overlap != "allow" and s.last_job]

    def fire(self, entry: Entry, now: float, unfinished: Mapping[str, bool]) -> Firing | None:
        """Decide which jobs a due schedule submits.

        Args:
            entry: A schedule that `due` returned.
            now: Unix time.
            unfinished: Ids of `awaited_jobs` -> whether the job has not ended.

        Returns:
            Jobs to submit and the step to store, or None if it waits for the previous job.
        """
        schedule = entry.schedule
        try:
            fire_times, last, skipped = self._fire_times(entry, now)
        except Exception:
            logger.exception("the trigger of schedule %r failed; it does not fire", schedule.name)
            self.drop([schedule.name])
            return None
        if self.foreign and schedule.source == "wire" and schedule.legacy:
            return Firing(entry, (), last)
        if unfinished.get(schedule.last_job):
            if schedule.overlap == "queue":
                entry.waits = entry.waits or now
                self._push(entry, now + RETRY_AFTER)
                return None
            logger.info(
                "schedule %r: job %s still runs, so fire times are skipped",
                schedule.name,
                schedule.last_job,
            )
            return Firing(entry, (), last, skipped=True)
        entry.waits = 0.0
        if schedule.remaining is not None:
            fire_times = fire_times[: schedule.remaining]
        if skipped:
            text = (
                "schedule %r: fire times up to %s were missed; by misfire=%r %d jobs are submitted"
            )
            logger.info(text, schedule.name, format_time(last), schedule.misfire, len(fire_times))
        fires = [
            PendingFire(scheduled_job_id(self.identity, schedule.name, fire_time), fire_time)
            for fire_time in fire_times
        ]
        return Firing(entry, fires, last, skipped)

    def _fire_times(self, entry: Entry, now: float) -> tuple[list[float], float, bool]:
        """Return the times to fire, the last fire time of the step, and whether some are skipped.

        All fire times that are at most `TOLERANCE` late fire. If the first one is later, it was
        missed and the misfire policy decides; ``skip`` acts as ``all`` within the tolerance.
        """
        schedule, first = entry.schedule, entry.fire_time
        assert first is not None  # noqa: S101 - it was due
        if not entry.waits and now - entry.ready_at <= TOLERANCE:
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
        if following is None or following + schedule.jitter_at(following, self.identity) > now:
            return [], begin, True
        fire_times, last, _ = self._steps(entry, following, now)
        return fire_times, last, True

    def _steps(self, entry: Entry, fire_time: float, now: float) -> tuple[list[float], float, bool]:
        """Return the due times from ``fire_time`` on, up to the number that may fire at once."""
        schedule, fire_times = entry.schedule, [fire_time]
        limit = MAX_FIRES if schedule.overlap == "allow" else 1
        while len(fire_times) < limit:
            following = entry.trigger.next_after(fire_times[-1])
            if following is None or following + schedule.jitter_at(following, self.identity) > now:
                break
            fire_times.append(following)
        return fire_times, fire_times[-1], False

    # Results

    def moved(self, entry: Entry, step: Progress) -> None:
        """Apply a step that is stored."""
        schedule = entry.schedule
        schedule.version = step.expected + 1
        schedule.last_fire_time, schedule.remaining = step.last_fire_time, step.remaining
        schedule.last_job = step.last_job
        if self.entries.get(schedule.name) is entry:
            self._schedule_next(entry)

    @staticmethod
    def is_over(entry: Entry) -> bool:
        """Return whether a schedule will never fire again and is not declared in code."""
        stored = entry.schedule
        return (
            entry.fire_time is None
            and stored.enabled
            and stored.source != "code"
            and not entry.broken
        )

    def ended(self) -> list[Schedule]:
        """Return ended schedules that are still in the store."""
        return [
            entry.schedule
            for entry in self.entries.values()
            if self.is_over(entry) and (entry.schedule.last_job or entry.schedule.remaining == 0)
        ]

    def wait(self, entry: Entry, now: float) -> None:
        """Retry a due schedule after `RETRY_AFTER`: broker or store could not be reached."""
        if self.entries.get(entry.schedule.name) is entry:
            self._push(entry, now + RETRY_AFTER)


def _log_ahead(ahead: Sequence[tuple[float, str]]) -> None:
    if ahead:
        seconds, name = max(ahead)
        logger.warning(
            "%d schedules have fired for times ahead of the clock, %r for one in %.0f s: they "
            "continue from now", len(ahead), name, seconds,
        )  # fmt: skip


def synchronise(
    store: ScheduleStore,
    stored: Mapping[str, Schedule],
    declared: Mapping[str, Schedule],
    app: str,
    now: float,
) -> None:
    """Add, change and remove schedules until the store matches the code's declarations.

    Those of other apps, of clients, of the command line and of SCHEDULE messages are not changed.
    If another beat does the same at the same time, the second one finds nothing to change.

    Args:
        store: The schedule store to change.
        stored: Schedules in the store, by name.
        declared: Schedules in the code, by name.
        app: Name of the app.
        now: Unix time.
    """
    changes: list[tuple[Schedule, int | None]] = []
    for name, schedule in declared.items():
        existing = stored.get(name)
        if existing is None:
            changes.append((schedule.started(now), None))
            logger.info("schedule %r is new", name)
        elif not schedule.does_the_same(existing):
            changes.append((schedule.succeeding(existing, now), existing.version))
            logger.info("schedule %r has changed", name)
    if changes:
        store.save(changes)
    for name, existing in stored.items():
        if existing.source == "code" and existing.app == app and name not in declared:
            logger.info("schedule %r is not in the code any more and is removed", name)
            store.remove(name, existing.version)
