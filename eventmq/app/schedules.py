"""Schedules of an app: declared by its code, or changed in the store."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from eventmq.app.wiring import make_trigger
from eventmq.client.requests import ACTOR, OPERATION
from eventmq.client.templates import EncodedJob
from eventmq.errors import EventMQError, ScheduleNotFound, SettingsError, StoreError, did_you_mean
from eventmq.graph import Signature
from eventmq.headers import parse_headers
from eventmq.policies import Timing
from eventmq.registry.names import SCHEDULE_STORE
from eventmq.schedule import Schedule, scheduled_job_id
from eventmq.scheduler.machine import job_headers
from eventmq.task.options import CallOptions, TaskOptions
from eventmq.task.task import Task, make_template, signature_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from eventmq.app.wiring import Components
    from eventmq.client.handle import Job
    from eventmq.interfaces import ScheduleStore, Trigger

__all__ = ["Declared", "Schedules", "importing"]

#: Attempts to change a schedule while other clients change it.
ATTEMPTS = 20

#: Seconds before a fire time at which an earlier one is searched: half of the shortest interval.
_APART = 5e-4


def importing() -> bool:
    """Return whether an import of a module is among the callers."""
    frame = sys._getframe(1)  # noqa: SLF001 - documented, for CPython
    while frame is not None:
        spec = frame.f_globals.get("__spec__") if frame.f_code.co_name == "<module>" else None
        if getattr(spec, "_initializing", False):
            return True
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
    return False


@dataclass(frozen=True, slots=True)
class Declared:
    """Declaration of a schedule, checked except for the parts that need plugins."""

    name: str
    signature: Signature
    timing: Timing
    call: CallOptions
    more: Mapping[str, Any]

    @classmethod
    def read(
        cls, name: str, what: object, timing: object, call: Mapping[str, Any], more: dict[str, Any]
    ) -> Declared:
        """Return a checked declaration; raises `SettingsError`."""
        if isinstance(what, Task):
            what = what.s()
        if not isinstance(what, Signature):
            raise SettingsError(
                f"schedule {name!r} needs a task or a signature such as task.s(1), not {what!r}"
            )
        if what.handlers:
            raise SettingsError(
                f"schedule {name!r} cannot have error callbacks: schedule a task that submits "
                "the call with its on_error()"
            )
        if not isinstance(timing, Timing):
            raise SettingsError(
                f"schedule {name!r} needs every(seconds=30), at(datetime) or "
                f"cron('0 3 * * *', tz='Europe/Paris'), not {timing!r}"
            )
        merged = {**what.options, **{k: v for k, v in call.items() if v is not None}}
        call_options = CallOptions.read(merged)
        wrong = next((key for key in ("eta", "job_id") if merged.get(key) is not None), None)
        if wrong is None and isinstance(call_options.expires, datetime):
            wrong = "expires as a datetime"
        if wrong:
            raise SettingsError(
                f"{wrong} is for one job; schedule {name!r} makes many: leave it out"
            )
        Schedule(name=name, **more).check()
        return cls(name, what, timing, call_options, more)


class Schedules:
    """Schedules of one app: ``app.schedules``.

    Args:
        app: Components of the app.
        tasks: Returns the tasks of the app, by name.
    """

    def __init__(self, app: Components, tasks: Callable[[], Mapping[str, Task[Any, Any]]]) -> None:
        self._app = app
        self._tasks = tasks
        self._declared: dict[str, Declared] = {}
        self._store: ScheduleStore | None = None

    # Schedules of the code

    def declare(self, declared: Declared) -> None:
        """Declare a schedule of the code; a beat of the app stores it.

        Raises:
            SettingsError: Another schedule of the code has the name.
        """
        existing = self._declared.get(declared.name)
        if existing is not None and existing != declared:
            raise SettingsError(f"two schedules of the code have the name {declared.name!r}")
        self._declared[declared.name] = declared

    def withdraw(self, name: str) -> None:
        """Withdraw the declaration of a schedule."""
        self._declared.pop(name, None)

    def in_code(self) -> dict[str, Schedule]:
        """Return the schedules of the code, including those of tasks, by name."""
        declared_by_name = dict(self._declared)
        for name, task in self._tasks().items():
            timing = task.declared.schedule
            if timing is not None and name not in declared_by_name:
                declared_by_name[name] = Declared.read(name, task, timing, {}, {})
        try:
            return {
                name: self.make(declared, "code") for name, declared in declared_by_name.items()
            }
        except TypeError as error:
            raise SettingsError(f"a schedule of the code cannot be made: {error}") from error

    @property
    def any_in_code(self) -> bool:
        """Return whether the code has schedules."""
        tasks = self._tasks().values()
        return bool(self._declared) or any(task.declared.schedule for task in tasks)

    def make(self, declared: Declared, source: str) -> Schedule:
        """Return the schedule of a declaration, with encoded arguments.

        Raises:
            SettingsError: Its trigger, its arguments or its serializer is not allowed.
        """
        signature, name = declared.signature, declared.name
        make_trigger(self._app.plugins, str(declared.timing))
        task = self._tasks().get(signature.task)
        options = TaskOptions() if task is None else task.declared
        arguments = signature_of(_any_arguments)
        if task is not None:
            task.check(signature.args, signature.kwargs)
            arguments = task.signature
        template = make_template(self._app, signature.task, options, declared.call, arguments)
        message = replace(template, expires_in=0.0).write(
            "", list(signature.args), dict(signature.kwargs)
        )
        if parse_headers(message.headers).signature:
            raise SettingsError(
                f"schedule {name!r}: serializer {template.headers.content_type!r} signs every job "
                "individually, so its jobs cannot be stored in a schedule; use msgpack"
            )
        return Schedule(
            name=name, task=signature.task, queue=template.queue, headers=message.headers,
            body=message.body, trigger=str(declared.timing), source=source, app=self._app.name,
            expires_in=template.expires_in, **declared.more,
        ).check()  # fmt: skip

    # Schedules in the store

    @property
    def store(self) -> ScheduleStore:
        """The store that the setting ``schedule_store`` names."""
        if self._store is None:
            self._store = self.open_store()
        return self._store

    def open_store(self) -> ScheduleStore:
        """Return a new instance of the store."""
        return self._app.plugins.make(SCHEDULE_STORE, self._app.settings.schedule_store)

    def close(self) -> None:
        """Close the store, if it was opened."""
        if self._store is not None:
            self._store.close()

    def put(self, schedule: Schedule) -> None:
        """Store a schedule, in place of an existing one of its name.

        Raises:
            SettingsError: It would never fire.
            BrokerUnavailable: The broker did not answer in time.
        """
        now = self._app.clock.now()
        if make_trigger(self._app.plugins, schedule.trigger).next_after(now) is None:
            raise SettingsError(
                f"schedule {schedule.name!r} would never fire: {schedule.trigger} has no future "
                "fire time"
            )

        def change(existing: Schedule | None) -> Schedule | None:
            if existing is None or existing.remaining == 0:  # ended, and not removed yet
                return schedule.started(now)
            return None if schedule.does_the_same(existing) else schedule.succeeding(existing, now)

        self._edit(schedule.name, change)

    def _edit(self, name: str, change: Callable[[Schedule | None], Schedule | None]) -> None:
        """Change a schedule; try again if another client changed it at the same time."""
        for _ in range(ATTEMPTS):
            existing = self.store.find(name)
            changed = change(existing)
            if changed is None:
                return
            expected = None if existing is None else existing.version
            if self.store.save([(changed, expected)]).done[0]:
                return
        raise StoreError(f"schedule {name!r} was changed by others at every attempt; try again")

    def get(self, name: str) -> Schedule:
        """Return a schedule.

        Raises:
            ScheduleNotFound: It does not exist; the message has the nearest name.
        """
        schedule = self.store.find(name)
        if schedule is None:
            hint = did_you_mean(name, [each.name for each in self.list()])
            raise ScheduleNotFound(f"there is no schedule {name!r}; {hint}")
        return schedule

    def list(self) -> list[Schedule]:
        """Return all schedules, ordered by name."""
        return sorted(self.store.load().schedules, key=lambda schedule: schedule.name)

    def next_fire_time(self, schedule: Schedule) -> float | None:
        """Return the next fire time of a schedule as Unix time with its jitter; None if none.

        A beat that is late, or that waits for the previous job (``overlap``), is not considered.
        """
        if not schedule.enabled or schedule.remaining == 0:
            return None
        following: float | None = schedule.created
        if schedule.last_fire_time is not None:
            try:
                trigger = make_trigger(self._app.plugins, schedule.trigger)
            except SettingsError:
                return None
            following = trigger.next_after(schedule.last_fire_time)
        if following is None:
            return None
        return following + schedule.jitter_at(following, self.store.identity)

    def past_jobs(self, schedule: Schedule, limit: int = 100) -> dict[str, float]:
        """Return the ids that a schedule's jobs of past fire times have, with these times.

        An id depends on the schedule's name and the fire time alone, so nothing is searched. A fire
        time may have been missed or skipped, or the broker may have forgotten its job: ask for
        their states. Jobs of `run` and of an earlier trigger have other ids.

        Args:
            schedule: The schedule, from `list` or `get`.
            limit: Maximum number of ids.

        Returns:
            Id -> Unix time without jitter, the latest first.
        """
        try:
            trigger = make_trigger(self._app.plugins, schedule.trigger)
        except SettingsError:
            return {}
        last, times = schedule.last_fire_time, set[float]()
        # `enable` begins anew the intervals of a trigger that has no other fixed point.
        for start in (last, None if last is None else trigger.latest(schedule.created, last)):
            at, left = start, limit
            while at is not None and at >= schedule.created and left:
                times.add(at)
                at, left = _before(trigger, schedule.created, at), left - 1
        return {
            scheduled_job_id(self.store.identity, schedule.name, at): at
            for at in sorted(times, reverse=True)[:limit]
        }

    def remove(self, name: str) -> bool:
        """Remove a schedule; return whether it existed."""
        return self.store.remove(name, None)

    def enable(self, name: str, *, actor: str = "") -> None:
        """Enable a schedule; fire times while it was disabled do not count as missed.

        Args:
            name: Its name.
            actor: Who does it, for events and logs; the setting ``actor`` if empty.
        """
        self.get(name)
        now = self._app.clock.now()

        def change(existing: Schedule | None) -> Schedule | None:
            if existing is None or existing.enabled:
                return None
            last = None if existing.last_fire_time is None else max(existing.last_fire_time, now)
            return replace(existing, enabled=True, last_fire_time=last)

        with _audited("enable", actor):
            self._edit(name, change)

    def disable(self, name: str, *, actor: str = "") -> None:
        """Disable a schedule: it does not fire until it is enabled.

        Args:
            name: Its name.
            actor: As in `enable`.
        """
        self.get(name)

        def change(existing: Schedule | None) -> Schedule | None:
            if existing is None or not existing.enabled:
                return None
            return replace(existing, enabled=False)

        with _audited("disable", actor):
            self._edit(name, change)

    def run(self, name: str, *, actor: str = "") -> Job[Any]:
        """Submit the job of a schedule now, without effect on its fire times.

        Args:
            name: Its name.
            actor: As in `enable`.
        """
        schedule = self.get(name)
        headers = job_headers(schedule, self._app.clock.now())
        queue = schedule.queue or self._app.settings.default_queue
        encoded = EncodedJob(self._app.ids.new(), queue, headers, schedule.body)
        job = self._app.submitter.submit_raw(encoded).wait()
        # The job is submitted, whether or not the broker records the user: an older one cannot.
        with contextlib.suppress(EventMQError), _audited("", actor):
            self._app.ask("schedules.ran", {"name": name, "id": job.id}).wait()
        return job


@contextlib.contextmanager
def _audited(operation: str, actor: str) -> Iterator[None]:
    """Send the operation and the actor, unless they are empty, with the calls in this block."""
    tokens = OPERATION.set(operation), ACTOR.set(actor)
    try:
        yield
    finally:
        OPERATION.reset(tokens[0])
        ACTOR.reset(tokens[1])


def _before(trigger: Trigger, created: float, at: float) -> float | None:
    """Return the fire time before another one, None if there is none after ``created``."""
    following = trigger.next_after(at)
    if following is not None:
        # Equal intervals need no search, which costs minutely schedules 60 times as much.
        before = round(2 * at - following, 6)
        if trigger.next_after(before) == at:
            return before
    return trigger.latest(created, at - _APART)


def _any_arguments(*args: Any, **kwargs: Any) -> None:
    """Signature of a task of which only the name is known."""
