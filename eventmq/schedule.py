"""Schedules: the stored object, its progress, the contract of schedule stores, and ids of jobs.

Not here: when a schedule fires (`eventmq.scheduler` and triggers) and the schedule stores.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from eventmq.errors import SettingsError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "MAX_BODY",
    "MISFIRE",
    "OVERLAP",
    "SOURCES",
    "DeferredScheduleStore",
    "Loaded",
    "Progress",
    "Saved",
    "Schedule",
    "ScheduleStore",
    "SchedulerLease",
    "scheduled_job_id",
]

#: Values of ``misfire``: run no missed fire time, one for all, or all within a window.
MISFIRE = ("skip", "one", "all")

#: Values of ``overlap``: what happens at a fire time while the previous job has not ended.
OVERLAP = ("allow", "skip", "queue")

#: Values of ``source``: an app's code, a client, the command line, or a SCHEDULE message.
SOURCES = ("code", "client", "cli", "wire")

#: Maximum length of a body in bytes: many schedules travel in one message.
MAX_BODY = 1024 * 1024

#: Maximum length of a name or queue in characters: the broker's limit of an id.
_MAX_TEXT = 255

#: Fields that change when the schedule fires; the others change only when it is edited.
_MOVING = frozenset({"version", "last_fire_time", "remaining", "last_job"})

#: Fields of the definition that do not affect its jobs or times.
_CIRCUMSTANCE = frozenset({"created", "enabled"})


@dataclass(slots=True, kw_only=True)
class Schedule:
    """A stored schedule. Times are Unix time and lengths seconds, as float.

    Attributes:
        name: Unique in its store.
        task: Name of the task, "" for a legacy job.
        queue: Queue of its jobs, "" for the broker's default.
        headers: Headers of its jobs, as text on the wire.
        body: Body of its jobs.
        trigger: Its trigger, in the form of `eventmq.policies.Timing`.
        source: One of `SOURCES`.
        app: Name of the app whose code declares it.
        created: Time of its creation, or of the last change of its trigger.
        nohaste: It first fires at the first time of its trigger; otherwise also at ``created``.
        enabled: Whether it fires.
        misfire: One of `MISFIRE`.
        window: For misfire ``all``: maximum age of missed fire times that still run.
        overlap: One of `OVERLAP`.
        jitter: Maximum delay of a fire time; always the same for one fire time.
        run_count: Total number of runs, None for no limit.
        expires_in: Seconds after its fire time at which a job expires, 0.0 for never.
        sent: For a SCHEDULE message: its headers and, of nine frames, interval and cron.
        version: Grows with every change.
        last_fire_time: The last fire time that was handled, None before the first.
        remaining: Number of runs left, None for no limit.
        last_job: Id of the last job that it submitted.
    """

    name: str
    task: str = ""
    queue: str = ""
    headers: str = ""
    body: bytes = b""
    trigger: str = ""
    source: str = "client"
    app: str = ""
    created: float = 0.0
    nohaste: bool = True
    enabled: bool = True
    misfire: str = "one"
    window: float = 3600.0
    overlap: str = "allow"
    jitter: float = 0.0
    run_count: int | None = None
    expires_in: float = 0.0
    sent: tuple[str, ...] = ()
    version: int = 0
    last_fire_time: float | None = None
    remaining: int | None = None
    last_job: str = ""

    @property
    def legacy(self) -> bool:
        """Whether its jobs are legacy ones, which schedulers without FEATURES can submit too."""
        return "content-type:" not in self.headers

    def jitter_at(self, fire_time: float, identity: str) -> float:
        """Return the jitter of a fire time in seconds, which is the same in every scheduler.

        Args:
            fire_time: One of its fire times.
            identity: Identity of the schedule store.
        """
        if not self.jitter:
            return 0.0
        text = f"{identity}\0{self.name}\0{fire_time:.6f}".encode()
        return self.jitter * (int.from_bytes(hashlib.sha256(text).digest()[:6], "big") / (1 << 48))

    def check(self) -> Schedule:
        """Check the values, and return the schedule itself.

        Raises:
            SettingsError: A value is not allowed.
        """
        for name, (kind, allowed) in _TYPES.items():
            if not isinstance(getattr(self, name), kind):
                _refuse(name, getattr(self, name), allowed)
        if not 0 < len(self.name) <= _MAX_TEXT or len(self.queue) > _MAX_TEXT:
            _refuse("name", self.name[:40], f"1 to {_MAX_TEXT} characters, as of its queue")
        if len(self.task) > _MAX_TEXT:
            _refuse("task", self.task[:40], f"at most {_MAX_TEXT} characters")
        if len(self.body) > MAX_BODY:
            _refuse("body", f"{len(self.body)} bytes", f"at most {MAX_BODY} bytes")
        for name, values in _CHOICES.items():
            if getattr(self, name) not in values:
                _refuse(name, getattr(self, name), ", ".join(values))
        for name in ("window", "jitter", "expires_in", "created"):
            if not 0 <= getattr(self, name) < 1e12:  # noqa: PLR2004 - not nan, inf or nonsense
                _refuse(name, getattr(self, name), "seconds from 0")
        if self.run_count is not None and self.run_count < 1:
            _refuse("run_count", self.run_count, "a whole number from 1")
        return self

    def definition(self) -> dict[str, Any]:
        """Return the fields that do not change when it fires, as plain data without the name."""
        data = asdict(self)
        return {name: data[name] for name in data if name not in _MOVING and name != "name"}

    @classmethod
    def read(cls, name: str, definition: Mapping[str, Any]) -> Schedule:
        """Return the checked schedule of a `definition`.

        Raises:
            SettingsError: A field is unknown or has a value that is not allowed.
        """
        for field in definition:
            if field not in _FIELDS:
                hint = did_you_mean(str(field), _FIELDS)
                raise SettingsError(f"a schedule has no field {str(field)[:40]!r}; {hint}")
        schedule = cls(name=name, **definition)
        schedule.sent = tuple(schedule.sent)
        return schedule.check()

    def does_the_same(self, other: Schedule) -> bool:
        """Return whether both have the same definition, apart from the time of creation."""
        own, their_own = self.definition(), other.definition()
        return all(own[name] == their_own[name] for name in own if name not in _CIRCUMSTANCE)

    def started(self, now: float) -> Schedule:
        """Return a copy that starts now."""
        last = now if self.nohaste else None
        return replace(
            self, created=now, last_fire_time=last, remaining=self.run_count, last_job=""
        )

    def succeeding(self, other: Schedule, now: float) -> Schedule:
        """Return a copy that replaces another schedule of its name.

        It continues where the other one was, unless its trigger differs.
        """
        if self.trigger != other.trigger:
            return replace(self.started(now), enabled=other.enabled, last_job=other.last_job)
        runs_left = other.remaining if self.run_count == other.run_count else self.run_count
        return replace(
            self, created=other.created, enabled=other.enabled, last_fire_time=other.last_fire_time,
            remaining=runs_left, last_job=other.last_job,
        )  # fmt: skip


def _refuse(name: str, value: object, allowed: str) -> None:
    raise SettingsError(f"{name} of a schedule is {value!r}; allowed is: {allowed}")


_NAMES = [field.name for field in fields(Schedule)]
_FIELDS = frozenset(_NAMES) - _MOVING - {"name"}
_CHOICES = {"misfire": MISFIRE, "overlap": OVERLAP, "source": SOURCES}

#: Field -> (types, description of the allowed values).
_TYPES: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(
        ["name", "task", "queue", "headers", "trigger", "source", "app", "misfire", "overlap"],
        (str, "text"),
    ),
    "body": (bytes, "bytes"),
    **dict.fromkeys(["created", "window", "jitter", "expires_in"], ((int, float), "seconds")),
    **dict.fromkeys(["nohaste", "enabled"], (bool, "True or False")),
    "run_count": ((int, type(None)), "a whole number from 1"),
    "sent": (tuple, "a list of text"),
}


class Progress(NamedTuple):
    """Progress of a schedule from version ``expected`` to the next version."""

    name: str
    expected: int
    last_fire_time: float | None
    remaining: int | None
    last_job: str


class Loaded(NamedTuple):
    """Changes in a store.

    Attributes:
        revision: Revision of the store; argument of the next call.
        schedules: The new and the changed ones.
        removed: Names of the removed ones.
        whole: The result is complete: schedules that are not in ``schedules`` do not exist.
    """

    revision: int
    schedules: Sequence[Schedule]
    removed: Sequence[str] = ()
    whole: bool = False


class Saved(NamedTuple):
    """Whether each change was stored, in order, and the store's revision after the changes."""

    done: Sequence[bool]
    revision: int


class SchedulerLease(NamedTuple):
    """Answer of a store to a scheduler that requests the right to fire its schedules.

    Attributes:
        held: Whether it has the right, which no other scheduler has for the requested time.
        revision: Current revision of the store.
        foreign: A scheduler of another kind fires the legacy jobs of source ``wire``.
    """

    held: bool
    revision: int
    foreign: bool = False


class ScheduleStore(Protocol):
    """Keeps schedules. Every change is compare-and-set on the version.

    Used from one thread. May block; raises `BrokerUnavailable` or `StoreError` if it cannot be
    reached now, and `StoreError` permanently if a user must act first.
    """

    #: Namespace of the names: the same for all objects that see the same schedules.
    identity: str

    def load(self, after: int = 0) -> Loaded:
        """Return the changes after a revision, 0 for all; log and skip unreadable schedules."""

    def find(self, name: str) -> Schedule | None:
        """Return a schedule by its name."""

    def save(self, changes: Sequence[tuple[Schedule, int | None]]) -> Saved:
        """Store each schedule if the stored version is the one given with it (None: no such name).

        A stored schedule gets a version above any that its name ever had. Raises `QueueFull` if
        there are too many schedules.
        """

    def advance(self, rows: Sequence[Progress]) -> Saved:
        """Store the progress of schedules, each if its version is the expected one."""

    def remove(self, name: str, expected: int | None) -> bool:
        """Remove a schedule if its version is ``expected`` (None: any); return whether it was."""

    def lease(self, holder: str, seconds: float) -> SchedulerLease:
        """Request the exclusive right to fire, for that many seconds; its holder may renew it."""

    def release(self, holder: str) -> None:
        """Give up the lease, if ``holder`` holds it."""

    def close(self) -> None:
        """Release everything. Idempotent."""


@runtime_checkable
class DeferredScheduleStore(ScheduleStore, Protocol):
    """A schedule store that can store progress without blocking the scheduler."""

    def begin_advance(self, rows: Sequence[Progress]) -> Callable[[], Saved]:
        """Begin to ``advance``; return a function that waits until that is done.

        Both may raise. The scheduler submits more jobs meanwhile, and may begin further steps
        before it waits for these; they are done in the order in which they were begun. After a
        failure it does not wait for them.
        """


def scheduled_job_id(store: str, name: str, fire_time: float) -> str:
    """Return the id of a schedule's job for one fire time, the same in every scheduler.

    It has the layout of UUID version 7 (RFC 9562, section 5.7) with the fire time as its time.

    Args:
        store: Identity of the schedule store, in which names are unique.
        name: Name of the schedule.
        fire_time: Unix time.
    """
    micros = round(fire_time * 1e6)
    digest = hashlib.sha256(f"{store}\0{name}\0{micros}".encode()).digest()
    tail = int.from_bytes(digest[:8], "big") & 0x3FFFFFFFFFFFFFFF | 0x8000000000000000
    more = int.from_bytes(digest[8:10], "big") & 0xFFF
    return f"{micros // 1000 & 0xFFFFFFFFFFFF:012x}7{more:03x}{tail:016x}"
