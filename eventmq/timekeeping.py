"""Store time and guarded wall time, which a broker and a beat use instead of the wall clock.

*Store time* counts seconds and never steps: while a broker runs it grows by the machine's boot
time, which counts sleep. It begins with the wall time at which the store was made, so it looks
like Unix time; the two diverge when the wall clock is set. *Guarded wall time* is the wall clock,
except that a step of more than `STEP` seconds counts only after it has lasted for `SETTLED`
seconds.

Pure state machines: their runners read the clocks (`eventmq.clock`) and pass the readings. All
figures are seconds.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "AT_ONCE", "MAX_ADDITIONS", "SAVE_EVERY", "SETTLED", "STEADY", "STEP", "Addition",
    "ClockRecord", "GuardedWall", "Passed", "Reading", "StoreTime", "Timekeeper", "format_seconds",
    "format_time",
]  # fmt: skip

#: Seconds by which the wall clock may differ from boot time without counting as a step: more than
#: a time service slews, less than a time zone or an error of a minute.
STEP = 60.0

#: Seconds that a step has to last before it counts.
SETTLED = 600.0

#: Maximum seconds by which store time grows at once for the time that a machine was off, and by
#: which the wall clock may be later than the stored value after another boot.
AT_ONCE = 3600.0

#: Seconds of one run without a step after which the rest is added.
STEADY = 3600.0

#: Seconds after which a commit also stores the clocks.
SAVE_EVERY = 1.0

#: Seconds after an addition during which events use it to correct when a job began to wait.
LATELY = 30 * 86_400.0

#: Maximum number of additions to store time that are kept; beyond it the oldest two are merged.
MAX_ADDITIONS = 16


class Reading(NamedTuple):
    """A reading of the clocks of a machine."""

    #: Unix time.
    wall: float
    #: Seconds since the machine was started, its sleep included.
    boot: float
    #: Id of the boot; "" if the system has none.
    boot_id: str = ""


class Addition(NamedTuple):
    """Seconds that were added to store time at once, and the range that does not age by them.

    The seconds passed before ``anchor`` and were added after ``until``: what a store wrote between
    these two store times does not age by them.
    """

    anchor: float
    until: float
    seconds: float

    def covers(self, at: float) -> bool:
        """Return whether a record of that store time must not age by this addition."""
        return self.anchor <= at <= self.until

    def merge(self, later: Addition) -> Addition:
        """Return one addition for both; no record ages sooner by it."""
        return Addition(self.anchor, later.until, self.seconds + later.seconds)


class Passed(NamedTuple):
    """Lower and upper bound of the seconds since a store last recorded its clocks."""

    least: float
    most: float


class ClockRecord(NamedTuple):
    """The clocks as a store keeps them."""

    #: Store time, and the unconfirmed seconds that are added once the wall clock is steady.
    store: float
    unconfirmed: float
    #: The wall clock at that time, the boot clock, and guarded wall time.
    wall: float
    guarded: float
    boot: float
    boot_id: str
    #: Store time of the start at which the oldest of the unconfirmed seconds arose.
    since: float = 0.0
    #: What was added to store time at once, the oldest first.
    additions: tuple[Addition, ...] = ()
    #: The part of the unconfirmed seconds that only a step proves which does not count yet.
    doubted: float = 0.0
    #: Whether guarded wall time may be behind: it was adopted when only bounds of the time that
    #: had passed were known.
    behind: bool = False

    @classmethod
    def of(cls, values: Any) -> ClockRecord:
        """Return the record of a stored list.

        Raises:
            ValueError: The list is malformed.
        """
        try:
            *numbers, boot_id, since, rows, doubted, behind = values
            store, unconfirmed, wall, guarded, boot = map(float, numbers)
            since, doubted, behind = float(since), float(doubted), bool(behind)
            additions = tuple(Addition(*map(float, row)) for row in rows)
        except (TypeError, ValueError):
            raise ValueError("the record of the store's clocks cannot be read") from None
        return cls(
            store, unconfirmed, wall, guarded, boot, str(boot_id), since, additions, doubted, behind
        )

    def same_boot(self, reading: Reading) -> bool:
        """Return whether the reading is of the boot in which this record was stored."""
        return bool(self.boot_id) and self.boot_id == reading.boot_id

    def passed(self, wall: float) -> float:
        """Return the seconds since this record, by the wall clock of another boot.

        The wall clock continues from the recorded one, or from guarded time if the machine lost a
        pending step. The result is the smaller of these two differences; a negative one is ignored.
        So passed time is lost only where both are possible, and then at most the step. Guarded time
        that may be behind does not count: the difference would contain what earlier takeovers did
        not count, and waits that have begun since then would end too early by that much.
        """
        spans = (wall - self.wall,) if self.behind else (wall - self.wall, wall - self.guarded)
        return max(0.0, min((span for span in spans if span >= -STEP), default=0.0))

    def kept_step(self, wall: float) -> bool:
        """Return whether the wall clock of another boot continues from the recorded one."""
        return wall - self.wall >= -STEP


class StoreTime:
    """Seconds that never step.

    Args:
        reading: Current reading of the clocks.
        last: The stored record, None for a new store: its time begins as the wall time.
        bounds: Bounds of the seconds since that record, if another broker has watched.
    """

    __slots__ = (
        "_base", "_begin", "_boot", "_initial_unconfirmed", "_steady_offset", "_steady_since",
        "additions", "doubted", "now", "since", "unconfirmed",
    )  # fmt: skip

    def __init__(
        self, reading: Reading, last: ClockRecord | None = None, bounds: Passed | None = None
    ) -> None:
        wall, boot, _ = reading
        self.unconfirmed = 0.0 if last is None else last.unconfirmed
        #: The part of ``unconfirmed`` that is withdrawn if the machine dies before its wall clock
        #: counts and the clock does not show that time after the restart.
        self.doubted = 0.0 if last is None else last.doubted
        if last is None:
            now = wall
        elif last.same_boot(reading):
            now = last.store + max(0.0, boot - last.boot)
        else:
            if not last.kept_step(wall):
                self.unconfirmed -= last.doubted
                self.doubted = 0.0
            passed = last.passed(wall)
            if bounds is not None and not bounds.least <= passed <= bounds.most:
                passed = bounds.least
            now = last.store + min(passed, AT_ONCE)
            excess = max(0.0, passed - AT_ONCE)
            self.unconfirmed += excess
            self.doubted += excess
        self.now = now
        #: Store time of the start at which the oldest of the unconfirmed seconds arose.
        self.since = now if last is None or not last.unconfirmed else last.since
        #: Additions so far, the oldest first.
        self.additions = () if last is None else last.additions
        self._base, self._boot = now - boot, boot
        #: The unconfirmed seconds at the start, and the wall clock minus boot time at that time.
        self._initial_unconfirmed, self._begin = self.unconfirmed, wall - boot
        self._steady_offset, self._steady_since = wall - boot, boot

    def advance(self, wall: float, boot: float) -> float:
        """Advance to a reading; return the seconds that `confirm` may add now, mostly 0.0."""
        if boot > self._boot:
            self._boot = boot
            self.now = self._base + boot
        if not self._initial_unconfirmed:
            return 0.0
        offset = wall - boot
        if abs(offset - self._steady_offset) > STEP:
            self._steady_offset, self._steady_since = offset, boot
            # A clock that is set back shows that so much less time passed while it was off.
            step = offset - self._begin
            self.unconfirmed = (
                max(0.0, self._initial_unconfirmed + step)
                if step < -STEP
                else self._initial_unconfirmed
            )
        return self.unconfirmed if boot - self._steady_since >= STEADY else 0.0

    def addition(self) -> Addition:
        """Return the addition that `confirm` would make now."""
        return Addition(self.since, self.now, self.unconfirmed)

    def confirm(self) -> float:
        """Add the unconfirmed seconds; return their number."""
        confirmed = self.unconfirmed
        if confirmed:
            self.additions = _with(self.additions, self.addition())
        self.unconfirmed = self._initial_unconfirmed = 0.0
        self._base += confirmed
        self.now = self._base + self._boot
        return confirmed

    def steady_in(self) -> float:
        """Return the seconds until the rest is added if the wall clock stays steady."""
        return max(0.0, self._steady_since + STEADY - self._boot) if self.unconfirmed else 0.0


class GuardedWall:
    """Wall time in which a step counts only after it has lasted for a while.

    Args:
        reading: Current reading of the clocks.
        last: The stored record, None to begin with the reading.
        bounds: Bounds of the seconds since that record, if another broker has watched.
    """

    __slots__ = ("_candidate", "_offset", "_since", "behind", "now", "step")

    def __init__(
        self, reading: Reading, last: ClockRecord | None = None, bounds: Passed | None = None
    ) -> None:
        wall, boot, _ = reading
        least, most = (0.0, AT_ONCE) if bounds is None else bounds
        #: Seconds by which the wall clock is ahead of guarded time, 0.0 unless a step is pending.
        self.step = 0.0
        self._candidate = self._since = 0.0
        #: Like `ClockRecord.behind`; False once the wall clock counts.
        self.behind = last is not None and last.behind
        self._offset = wall - boot
        if last is not None and last.same_boot(reading):
            self._offset = last.guarded - last.boot
        elif last is not None and not least <= wall - last.guarded <= min(most, AT_ONCE):
            self._offset = last.guarded + least - boot
            self.behind = self.behind or bounds is not None
        self.now = self._offset + boot
        self.advance(wall, boot)

    def advance(self, wall: float, boot: float) -> float:
        """Advance to a reading; return the seconds of a step that counts now, mostly 0.0."""
        offset = wall - boot
        step = offset - self._offset
        if -STEP <= step <= STEP:
            self._offset, self.now, self.step, self.behind = offset, wall, 0.0, False
            return 0.0
        if not self.step or abs(offset - self._candidate) > STEP:
            self._candidate, self._since = offset, boot
        self.step = step
        if boot - self._since >= SETTLED:
            return self.accept(boot)
        self.now = self._offset + boot
        return 0.0

    def accept(self, boot: float) -> float:
        """Let a pending step count; return its seconds."""
        step, self.step = self.step, 0.0
        if step:
            self.behind = False
            self._offset += step
            self.now = self._offset + boot
        return step

    def expect(self, guarded: float, wall: float, boot: float) -> None:
        """Continue from the guarded time of another process."""
        self._offset, self.step = guarded - boot, 0.0
        self.advance(wall, boot)

    def counts_in(self, boot: float) -> float:
        """Return the seconds until a pending step counts, 0.0 if there is none."""
        return max(0.0, self._since + SETTLED - boot) if self.step else 0.0


class Timekeeper:
    """Both times of a store, and messages about them.

    Used in one thread: the store advances it in its commits, the broker's runner in its ticks. Only
    the store adds the unconfirmed seconds, in a commit that stores them: it reads `addition` while
    it writes the rows, and calls `confirm` after the commit. Before `start`, both times are 0.0.
    """

    __slots__ = (
        "_accepts", "_boot_id", "_ripe", "_saved", "_stepping", "_wall", "ahead", "boot", "jumped",
        "notices", "settled", "store_time", "wall_time",
    )  # fmt: skip

    def __init__(self) -> None:
        self.store_time: StoreTime | None = None
        self.wall_time: GuardedWall | None = None
        #: Seconds by which guarded wall time is ahead of store time.
        self.ahead = 0.0
        #: Total seconds by which store time grew without boot time, since `start`.
        self.jumped = 0.0
        #: Store time of the last step of wall time.
        self.settled = float("-inf")
        self.boot = 0.0
        #: Sentences for the log; the reader empties the list.
        self.notices: list[str] = []
        self._boot_id = ""
        self._wall = 0.0
        self._saved = float("-inf")
        self._stepping = 0.0
        self._accepts = self._ripe = False

    def start(
        self, reading: Reading, last: ClockRecord | None, bounds: Passed | None = None
    ) -> None:
        """Continue from the stored record, or begin with the reading.

        Args:
            reading: Current reading of the clocks.
            last: The stored record, None for a new store.
            bounds: Bounds of the seconds since that record, if another broker has watched: a wall
                clock that disagrees is wrong, or was.
        """
        self.store_time = StoreTime(reading, last, bounds)
        self.wall_time = GuardedWall(reading, last, bounds)
        self._wall, self.boot, self._boot_id = reading
        self._saved = float("-inf")
        self.ahead = self.wall_time.now - self.store_time.now
        if last is not None:
            if abs(self.ahead - (last.guarded - last.store)) > 1.0:
                self.settled = self.store_time.now
            if self.store_time.unconfirmed:
                self.notices.append(
                    f"the machine was off, and {_span(self.store_time.unconfirmed)} of that do not "
                    "count yet: they do once the wall clock was steady for "
                    f'{STEADY / 60:.0f} minutes, or at "eventmq clock accept"'
                )
        self._check_step()

    def advance(self, wall: float, boot: float) -> float:
        """Advance to a reading; return store time."""
        store, guarded = self.store_time, self.wall_time
        assert store is not None and guarded is not None, "not started"  # noqa: PT018, S101
        self._wall, self.boot = wall, boot
        ripe, step = store.advance(wall, boot), guarded.advance(wall, boot)
        if self._accepts:
            self._accepts = False
            self._ripe = bool(store.unconfirmed)
            step += guarded.accept(boot)
        self._ripe = self._ripe or bool(ripe)
        if not guarded.step:
            store.doubted = 0.0
        if step or guarded.step != self._stepping:
            self._record(0.0, step)
        self.ahead = guarded.now - store.now
        return store.now

    @property
    def ripe(self) -> bool:
        """Whether the next commit has to add the unconfirmed seconds."""
        return self._ripe

    def addition(self) -> Addition | None:
        """Return the addition for the next commit, mostly None."""
        return self.store_time.addition() if self._ripe and self.store_time is not None else None

    def confirm(self) -> None:
        """Add the unconfirmed seconds: the commit that had `addition` is stored."""
        store, guarded = self.store_time, self.wall_time
        assert store is not None and guarded is not None, "not started"  # noqa: PT018, S101
        self._ripe = False
        self._record(store.confirm(), 0.0)
        self.ahead = guarded.now - store.now

    # Ages

    @property
    def anchor(self) -> float:
        """Store time up to which records age by the last addition; later ones do not."""
        additions = () if self.store_time is None else self.store_time.additions
        return additions[-1].anchor if additions else self.now

    def before(self, at: float) -> float:
        """Return the store time before which every record is at least as old as one of ``at``.

        That is ``at`` itself, or earlier if a younger record would be forgotten with it, because
        its store time is before ``at`` although it has not lived as long (`Addition`).
        """
        additions = () if self.store_time is None else self.store_time.additions
        spare = (a for a in additions if a.anchor < at < a.until + a.seconds)
        return min((max(a.anchor, at - a.seconds) for a in spare), default=at)

    def spared(self, at: float) -> float:
        """Return the seconds added to store time that did not pass since ``at``."""
        additions = () if self.store_time is None else self.store_time.additions
        return sum((a.seconds for a in additions if a.covers(at)), 0.0)

    @property
    def now(self) -> float:
        """Store time of the last reading."""
        return 0.0 if self.store_time is None else self.store_time.now

    @property
    def wall(self) -> float:
        """Guarded wall time of the last reading."""
        return 0.0 if self.wall_time is None else self.wall_time.now

    # Operators

    def accept(self) -> dict[str, float]:
        """Trust the wall clock from the next reading on; return the change.

        Returns:
            ``unconfirmed``, added to store time, and ``step`` of wall time, in seconds.
        """
        status = self.status()
        self._accepts = True
        return {"unconfirmed": status["unconfirmed"], "step": status["step"]}

    def status(self) -> dict[str, float]:
        """Return the state of the times for users.

        Returns:
            ``unconfirmed`` and ``steady_in``: seconds that wait to be added to store time, and
            seconds until they are; ``step`` and ``counts_in``: a step of the wall clock that does
            not count yet, and seconds until it does. All 0.0 if the clock is in order.
        """
        store, guarded = self.store_time, self.wall_time
        if store is None or guarded is None:
            return dict.fromkeys(("unconfirmed", "steady_in", "step", "counts_in"), 0.0)
        return {
            "unconfirmed": store.unconfirmed, "steady_in": store.steady_in(),
            "step": guarded.step, "counts_in": guarded.counts_in(self.boot),
        }  # fmt: skip

    def spares(self, now: float) -> Callable[[float], float] | None:
        """Return `spared` if there was an addition recently, so that it makes a difference."""
        additions = () if self.store_time is None else self.store_time.additions
        recent = additions and now - additions[-1].until - additions[-1].seconds < LATELY
        return self.spared if recent else None

    def wall_of(self, at: float) -> float:
        """Return the guarded wall time of a store time, as far as it is known now."""
        return at + self.ahead + self.spared(at)

    # Records of a store

    def record(self, addition: Addition | None = None) -> ClockRecord:
        """Return the record of the last reading, with the addition of a commit."""
        store, guarded = self.store_time, self.wall_time
        assert store is not None and guarded is not None, "not started"  # noqa: PT018, S101
        now, rest, additions = store.now, store.unconfirmed, store.additions
        if addition is not None:
            now, rest, additions = now + addition.seconds, 0.0, _with(additions, addition)
        doubted = min(store.doubted, rest)
        return ClockRecord(
            now, rest, self._wall, guarded.now, self.boot, self._boot_id, store.since, additions,
            doubted, guarded.behind,
        )  # fmt: skip

    @property
    def unsaved_for(self) -> float:
        """Seconds since a record was stored; infinite if one has to be stored now."""
        return float("inf") if self._ripe else self.boot - self._saved

    def save_soon(self) -> None:
        """Make the next commit store a record."""
        self._saved = float("-inf")

    def saved(self) -> None:
        """Record that the record of the last reading is stored."""
        self._saved = self.boot

    # Messages

    def _record(self, confirmed: float, step: float) -> None:
        if confirmed:
            self.jumped += confirmed
            self.notices.append(f"{_span(confirmed)} that the machine was off now count as passed")
        if step:
            self.notices.append(
                f"the wall clock has stepped by {format_seconds(step)}, and that counts now"
            )
            self._stepping = 0.0
        if confirmed or step:
            self.settled = self.now
            self.save_soon()
        self._check_step()

    def _check_step(self) -> None:
        """Add a message if a step has started, has changed, or was undone."""
        assert self.wall_time is not None  # noqa: S101 - the caller has started it
        step, previous = self.wall_time.step, self._stepping
        if not step and previous:
            self.notices.append(
                f"the wall clock is back after a step of {format_seconds(previous)}, "
                "which never counted"
            )
        elif step and (not previous or abs(step - previous) > STEP):
            self.notices.append(
                f"the wall clock steps by {format_seconds(step)}, to {format_time(self._wall)}: "
                f"that counts in {SETTLED / 60:.0f} minutes unless it goes back; "
                '"eventmq clock accept" lets it count now'
            )
        elif step:
            return  # the same step, changed by microseconds
        self._stepping = step


def _with(additions: Iterable[Addition], last: Addition) -> tuple[Addition, ...]:
    """Return the additions with one more, within `MAX_ADDITIONS`."""
    first, *later = (*additions, last)
    if len(later) >= MAX_ADDITIONS:
        later[0] = first.merge(later[0])
        return tuple(later)
    return (first, *later)


def _span(seconds: float) -> str:
    """Format a length of time."""
    for size, name in ((86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds:.1f} seconds"


def format_time(timestamp: float) -> str:
    """Format a Unix time as local time with its offset from UTC."""
    try:
        return datetime.fromtimestamp(timestamp).astimezone().isoformat(" ", "milliseconds")
    except (OverflowError, OSError, ValueError):  # from a faulty trigger
        return f"Unix time {timestamp:g}"


def format_seconds(seconds: float) -> str:
    """Format a step with its sign, as in ``+2.0 days``."""
    return f"{'-' if seconds < 0 else '+'}{_span(abs(seconds))}"
