"""What a schedule is: the stored object, what moves it on, who keeps it, the ids of its jobs.

Not here: when it fires (`eventmq.scheduler` and triggers) and where it is kept (schedule stores).
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

#: What happens with fire times that were missed: none of them, one for all, or all within a window.
MISFIRE = ("skip", "one", "all")

#: What happens at a fire time while the job of the one before has not ended.
OVERLAP = ("allow", "skip", "queue")

#: Who made a schedule: an app's code, a client, the command line, or a SCHEDULE message.
SOURCES = ("code", "client", "cli", "wire")

#: Bytes of the longest body: many schedules travel in one message.
MAX_BODY = 1024 * 1024

#: Characters of the longest name or queue: what the broker takes as an id.
_MAX_TEXT = 255

#: Fields that change when it fires; the others only when it is edited.
_MOVING = frozenset({"version", "last_fire_time", "remaining", "last_job"})

#: Fields of the definition that say nothing about what is to be done.
_CIRCUMSTANCE = frozenset({"created", "enabled"})


@dataclass(slots=True, kw_only=True)
class Schedule:
    """A stored schedule. Times are Unix time and lengths seconds, as float.

    Attributes:
        name: Unique in its store.
        task: Name of the task, "" for a legacy job.
        queue: Where its jobs go, "" for the broker's default.
        headers: Of its jobs, as text on the wire.
        body: Of its jobs.
        trigger: When it fires, as `eventmq.policies.Timing` writes it.
        source: One of `SOURCES`.
        app: Name of the app whose code has it.
        created: When it was made, or got another trigger.
        nohaste: It first fires when its trigger says; else it fires once at ``created`` too.
        enabled: Whether it fires.
        misfire: One of `MISFIRE`.
        window: For misfire ``all``: how far back missed fire times are made up for.
        overlap: One of `OVERLAP`.
        jitter: It fires up to so many seconds later, always the same for one fire time.
        run_count: How often it fires in all, None for no limit.
        expires_in: Seconds after its fire time at which a job expires, 0.0 for never.
        sent: Of a SCHEDULE message: its headers and, of nine frames, interval and cron.
        version: Grows with every change.
        last_fire_time: The last fire time that was dealt with, None before the first.
        remaining: How often it still fires, None for no limit.
        last_job: Id of the job that it made last.
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
        """Whether its jobs are legacy ones, which schedulers without FEATURES can fire too."""
        return "content-type:" not in self.headers

    def jitter_at(self, fire_time: float, identity: str) -> float:
        """Return the jitter of a fire time in seconds: every scheduler computes the same.

        Args:
            fire_time: One of its own.
            identity: Of the schedule store.
        """
        if not self.jitter:
            return 0.0
        text = f"{identity}\0{self.name}\0{fire_time:.6f}".encode()
        return self.jitter * (int.from_bytes(hashlib.sha256(text).digest()[:6], "big") / (1 << 48))

    def check(self) -> Schedule:
        """Return itself.

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
        """Return what does not change when it fires, as plain data without the name."""
        data = asdict(self)
        return {name: data[name] for name in data if name not in _MOVING and name != "name"}

    @classmethod
    def read(cls, name: str, definition: Mapping[str, Any]) -> Schedule:
        """Return the schedule of a `definition`, checked.

        Raises:
            SettingsError: A field is unknown or has a value that is not allowed.
        """
        for field in definition:
            if field not in _FIELDS:
                hint = did_you_mean(str(field), _FIELDS)
                raise SettingsError(f"a schedule has no field {str(field)[:40]!r}; {hint}")
        made = cls(name=name, **definition)
        made.sent = tuple(made.sent)
        return made.check()

    def does_the_same(self, other: Schedule) -> bool:
        """Whether the definitions of both say the same, whenever they were made."""
        mine, others = self.definition(), other.definition()
        return all(mine[name] == others[name] for name in mine if name not in _CIRCUMSTANCE)

    def started(self, now: float) -> Schedule:
        """Return it as one that starts now."""
        last = now if self.nohaste else None
        return replace(
            self, created=now, last_fire_time=last, remaining=self.run_count, last_job=""
        )

    def succeeding(self, other: Schedule, now: float) -> Schedule:
        """Return it as one that takes the place of another of its name.

        It goes on where the other one was, unless its trigger is another.
        """
        if self.trigger != other.trigger:
            return replace(self.started(now), enabled=other.enabled, last_job=other.last_job)
        left = other.remaining if self.run_count == other.run_count else self.run_count
        return replace(
            self, created=other.created, enabled=other.enabled, last_fire_time=other.last_fire_time,
            remaining=left, last_job=other.last_job,
        )  # fmt: skip


def _refuse(name: str, value: object, allowed: str) -> None:
    raise SettingsError(f"{name} of a schedule is {value!r}; allowed is: {allowed}")


_NAMES = [field.name for field in fields(Schedule)]
_FIELDS = frozenset(_NAMES) - _MOVING - {"name"}
_CHOICES = {"misfire": MISFIRE, "overlap": OVERLAP, "source": SOURCES}

#: Field -> (types, what is allowed).
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
    """How a schedule of version ``expected`` moves on; it has the next version after that."""

    name: str
    expected: int
    last_fire_time: float | None
    remaining: int | None
    last_job: str


class Loaded(NamedTuple):
    """What changed in a store.

    Attributes:
        revision: Of the store; to be given to the next call.
        schedules: All that are new or were changed.
        removed: Names of those that were removed.
        whole: It begins at nothing: what is not in ``schedules`` is not there any more.
    """

    revision: int
    schedules: Sequence[Schedule]
    removed: Sequence[str] = ()
    whole: bool = False


class Saved(NamedTuple):
    """What became of changes, in their order, and the store's revision after them."""

    done: Sequence[bool]
    revision: int


class SchedulerLease(NamedTuple):
    """The answer of a store to a scheduler that wants to fire its schedules.

    Attributes:
        held: It may; no other scheduler may for the time that it requested.
        revision: Of the store, now.
        foreign: A scheduler of another kind fires the legacy jobs of source ``wire``.
    """

    held: bool
    revision: int
    foreign: bool = False


class ScheduleStore(Protocol):
    """Keeps schedules. Every change is compare-and-set on the version.

    Used from one thread. May block; raises `BrokerUnavailable` or `StoreError` where it cannot be
    reached now, and `StoreError` for good where a user must act first.
    """

    #: In which the names of schedules are unique: the same for all that see the same schedules.
    identity: str

    def load(self, after: int = 0) -> Loaded:
        """Return what changed after a revision, 0 for all. Unreadable ones are logged and left."""

    def find(self, name: str) -> Schedule | None:
        """Return a schedule by its name."""

    def save(self, changes: Sequence[tuple[Schedule, int | None]]) -> Saved:
        """Store each if its version is the one beside it (None: if there is none of its name).

        A stored one has a version above any that this name ever had. Raises `QueueFull` where
        there are too many.
        """

    def advance(self, rows: Sequence[Progress]) -> Saved:
        """Move schedules on, each if its version is the expected one, which then grows by 1."""

    def remove(self, name: str, expected: int | None) -> bool:
        """Remove it if its version is ``expected``, None: any; return whether it was."""

    def lease(self, holder: str, seconds: float) -> SchedulerLease:
        """Ask to be the only one that fires, for so long; its holder may ask again."""

    def release(self, holder: str) -> None:
        """Give the lease back, if one holds it."""

    def close(self) -> None:
        """Release everything. Idempotent."""


@runtime_checkable
class DeferredScheduleStore(ScheduleStore, Protocol):
    """A schedule store that passes its changes on, and need not be waited for."""

    def begin_advance(self, rows: Sequence[Progress]) -> Callable[[], Saved]:
        """Begin to ``advance``; return a function that waits until that is done.

        Both may raise. The scheduler submits more jobs meanwhile, and can begin the next steps
        before it waits for these: they are done in the order in which they were begun. After
        trouble it does not wait for them.
        """


def scheduled_job_id(store: str, name: str, fire_time: float) -> str:
    """Return the id of a schedule's job for one fire time: every scheduler computes the same.

    It has the layout of UUID version 7 (RFC 9562, section 5.7) with the fire time as its time.

    Args:
        store: Identity of the schedule store, in which names are unique.
        name: Of the schedule.
        fire_time: Unix time.
    """
    micros = round(fire_time * 1e6)
    digest = hashlib.sha256(f"{store}\0{name}\0{micros}".encode()).digest()
    tail = int.from_bytes(digest[:8], "big") & 0x3FFFFFFFFFFFFFFF | 0x8000000000000000
    more = int.from_bytes(digest[8:10], "big") & 0xFFF
    return f"{micros // 1000 & 0xFFFFFFFFFFFF:012x}7{more:03x}{tail:016x}"
