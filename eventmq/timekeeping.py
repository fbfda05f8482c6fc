"""Store time and guarded wall time, which a broker and a beat use instead of the wall clock.

*Store time* counts seconds and never steps: while a broker runs it grows by the machine's boot
time, which counts sleep. It begins with the wall time at which the store was made, so it looks
like Unix time; but the two part as soon as the wall clock is set. *Guarded wall time* is the wall
clock, except that a step of more than `STEP` seconds counts only after it has stood for `SETTLED`
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
    "ClockRecord", "GuardedWall", "Passed", "Reading", "StoreTime", "Timekeeper", "say_seconds",
    "say_time",
]  # fmt: skip

#: Seconds by which the wall clock may differ from boot time without having stepped: more than a
#: time service slews, less than a time zone or a wrong minute.
STEP = 60.0

#: Seconds for which a step has to stand before it counts.
SETTLED = 600.0

#: Seconds that a machine that was off adds to store time at once, and by which the wall clock may
#: be later than the stored value after another boot.
AT_ONCE = 3600.0

#: Seconds of one run without a step after which the rest is added.
STEADY = 3600.0

#: Seconds after which a commit takes the clocks along.
SAVE_EVERY = 1.0

#: Seconds after an addition for which events correct by it when a job began to wait.
LATELY = 30 * 86_400.0

#: Additions to store time that are kept; of more, the oldest two become one.
MAX_ADDITIONS = 16


class Reading(NamedTuple):
    """What the clocks of a machine show."""

    #: Unix time.
    wall: float
    #: Since the machine was started, its sleep included.
    boot: float
    #: Which start of the machine that was; "" where the system does not say.
    boot_id: str = ""


class Addition(NamedTuple):
    """Seconds that were added to store time at once, and what is younger than they are.

    They had passed before ``anchor``, and were added after ``until``: what a store wrote between
    these two does not age by them.
    """

    anchor: float
    until: float
    seconds: float

    def covers(self, at: float) -> bool:
        """Return whether what is of that store time must not age by this."""
        return self.anchor <= at <= self.until

    def merge(self, later: Addition) -> Addition:
        """Return one for both, by which nothing ages sooner."""
        return Addition(self.anchor, later.until, self.seconds + later.seconds)


class Passed(NamedTuple):
    """Between how many seconds have passed since a store got its clocks the last time."""

    least: float
    most: float


class ClockRecord(NamedTuple):
    """What a store keeps of its clocks."""

    #: Store time, and what is to be added to it once the wall clock has proved steady.
    store: float
    unconfirmed: float
    #: The reading at that time, and guarded wall time.
    wall: float
    guarded: float
    boot: float
    boot_id: str
    #: Store time at the start at which the first of what is unconfirmed arose.
    since: float = 0.0
    #: What was added to store time at once, the oldest first.
    additions: tuple[Addition, ...] = ()
    #: Of what is unconfirmed, what is known from a step alone that does not count yet.
    doubted: float = 0.0
    #: Seconds by which guarded wall time may be behind: it was taken on where nobody knows how
    #: much time had passed.
    behind: float = 0.0

    @classmethod
    def of(cls, values: Any) -> ClockRecord:
        """Return the record of a list that was stored.

        Raises:
            ValueError: It is none.
        """
        try:
            *numbers, boot_id, since, rows, doubted, behind = values
            store, unconfirmed, wall, guarded, boot = map(float, numbers)
            since, doubted, behind = float(since), float(doubted), float(behind)
            additions = tuple(Addition(*map(float, row)) for row in rows)
        except (TypeError, ValueError):
            raise ValueError("the record of the store's clocks cannot be read") from None
        return cls(
            store, unconfirmed, wall, guarded, boot, str(boot_id), since, additions, doubted, behind
        )

    def same_boot(self, reading: Reading) -> bool:
        """Return whether the machine has not been started anew since this was stored."""
        return bool(self.boot_id) and self.boot_id == reading.boot_id

    def passed(self, wall: float) -> float:
        """Return the seconds since then, by the wall clock of another boot.

        That clock goes on from the one of then, or from guarded time if a step was pending that
        the machine did not keep. So it is the lesser of what these two say, and one that it is
        earlier than says nothing. No time that passed is lost but where both are possible, and
        then no more than the step, or where guarded time may be behind; none is counted twice: the
        waits that began since guarded time is behind would end so much too early.
        """
        spans = (wall - self.wall, wall - self.guarded - self.behind)
        return max(0.0, min((span for span in spans if span >= -STEP), default=0.0))

    def kept_step(self, wall: float) -> bool:
        """Return whether the wall clock of another boot goes on from the one of then."""
        return wall - self.wall >= -STEP


class StoreTime:
    """Seconds that never step.

    Args:
        reading: Of the clocks now.
        last: What the store kept, None for a new store: its time begins as the wall time.
        known: Between how many seconds have passed since then, where somebody has watched.
    """

    __slots__ = (
        "_base", "_begin", "_boot", "_rest", "_steady_offset", "_steady_since", "additions",
        "doubted", "now", "since", "unconfirmed",
    )  # fmt: skip

    def __init__(
        self, reading: Reading, last: ClockRecord | None = None, known: Passed | None = None
    ) -> None:
        wall, boot, _ = reading
        self.unconfirmed = 0.0 if last is None else last.unconfirmed
        #: What of it is to be taken back if the machine dies before its wall clock counts, and
        #: does not show that time any more.
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
            if known is not None and not known.least <= passed <= known.most:
                passed = known.least
            now = last.store + min(passed, AT_ONCE)
            rest = max(0.0, passed - AT_ONCE)
            self.unconfirmed += rest
            self.doubted += rest
        self.now = now
        #: Store time of the start at which the first of what is unconfirmed arose.
        self.since = now if last is None or not last.unconfirmed else last.since
        #: What was added so far, the oldest first.
        self.additions = () if last is None else last.additions
        self._base, self._boot = now - boot, boot
        #: What was unconfirmed at the start, and the wall clock beside boot time then.
        self._rest, self._begin = self.unconfirmed, wall - boot
        self._steady_offset, self._steady_since = wall - boot, boot

    def advance(self, wall: float, boot: float) -> float:
        """Take a reading; return the seconds that `confirm` may add from now on, mostly 0.0."""
        if boot > self._boot:
            self._boot = boot
            self.now = self._base + boot
        if not self._rest:
            return 0.0
        offset = wall - boot
        if abs(offset - self._steady_offset) > STEP:
            self._steady_offset, self._steady_since = offset, boot
            # A clock that is put back says that so much less time has passed while it was off.
            step = offset - self._begin
            self.unconfirmed = max(0.0, self._rest + step) if step < -STEP else self._rest
        return self.unconfirmed if boot - self._steady_since >= STEADY else 0.0

    def addition(self) -> Addition:
        """Return what `confirm` would add now."""
        return Addition(self.since, self.now, self.unconfirmed)

    def confirm(self) -> float:
        """Add what is unconfirmed; return how much that was."""
        confirmed = self.unconfirmed
        if confirmed:
            self.additions = _with(self.additions, self.addition())
        self.unconfirmed = self._rest = 0.0
        self._base += confirmed
        self.now = self._base + self._boot
        return confirmed

    def steady_in(self) -> float:
        """Return the seconds until the rest is added if the wall clock stays steady."""
        return max(0.0, self._steady_since + STEADY - self._boot) if self.unconfirmed else 0.0


class GuardedWall:
    """Wall time in which a step counts only after it has stood for a while.

    Args:
        reading: Of the clocks now.
        last: What a store kept, None to begin with the reading.
        known: Between how many seconds have passed since then, where somebody has watched.
    """

    __slots__ = ("_candidate", "_offset", "_since", "behind", "now", "step")

    def __init__(
        self, reading: Reading, last: ClockRecord | None = None, known: Passed | None = None
    ) -> None:
        wall, boot, _ = reading
        least, most = (0.0, AT_ONCE) if known is None else known
        #: Seconds by which the wall clock is ahead of guarded time, 0.0 unless a step is pending.
        self.step = 0.0
        self._candidate = self._since = 0.0
        #: As `ClockRecord.behind`; the wall clock ends it once it counts.
        self.behind = 0.0 if last is None else last.behind
        self._offset = wall - boot
        if last is not None and last.same_boot(reading):
            self._offset = last.guarded - last.boot
        elif last is not None and not least <= wall - last.guarded <= min(most, AT_ONCE):
            self._offset = last.guarded + least - boot
            self.behind += 0.0 if known is None else most - least
        self.now = self._offset + boot
        self.advance(wall, boot)

    def advance(self, wall: float, boot: float) -> float:
        """Take a reading; return the seconds of a step that counts from now on, mostly 0.0."""
        offset = wall - boot
        step = offset - self._offset
        if -STEP <= step <= STEP:
            self._offset, self.now, self.step, self.behind = offset, wall, 0.0, 0.0
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
            self.behind = 0.0
            self._offset += step
            self.now = self._offset + boot
        return step

    def expect(self, guarded: float, wall: float, boot: float) -> None:
        """Go on from what another process takes for the guarded time now."""
        self._offset, self.step = guarded - boot, 0.0
        self.advance(wall, boot)

    def counts_in(self, boot: float) -> float:
        """Return the seconds until a pending step counts if it stands, 0.0 where there is none."""
        return max(0.0, self._since + SETTLED - boot) if self.step else 0.0


class Timekeeper:
    """Both times of a store, and what they say to people.

    In one thread: the store advances it in its commits, the broker's runner in its ticks. What is
    unconfirmed is added by the store alone, in a commit that stores it: what is `addition` while
    the rows are written, and `confirm` once they are there. Before `start`, both times are 0.0.
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
        #: Seconds in all by which store time grew without boot time, since `start`.
        self.jumped = 0.0
        #: Store time at which wall time stepped the last time.
        self.settled = float("-inf")
        self.boot = 0.0
        #: Sentences for the log; who reads them empties the list.
        self.notices: list[str] = []
        self._boot_id = ""
        self._wall = 0.0
        self._saved = float("-inf")
        self._stepping = 0.0
        self._accepts = self._ripe = False

    def start(
        self, reading: Reading, last: ClockRecord | None, known: Passed | None = None
    ) -> None:
        """Go on from what the store kept, or begin with it.

        Args:
            reading: Of the clocks now.
            last: What the store kept, None for a new store.
            known: Between how many seconds have passed since then, where somebody has watched:
                a wall clock that says otherwise is wrong, or was.
        """
        self.store_time = StoreTime(reading, last, known)
        self.wall_time = GuardedWall(reading, last, known)
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
        """Take a reading; return store time."""
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
        """Whether the next commit is to add what is unconfirmed."""
        return self._ripe

    def addition(self) -> Addition | None:
        """Return what a commit is to add to store time, mostly None."""
        return self.store_time.addition() if self._ripe and self.store_time is not None else None

    def confirm(self) -> None:
        """Add what is unconfirmed: the commit that had `addition` is stored."""
        store, guarded = self.store_time, self.wall_time
        assert store is not None and guarded is not None, "not started"  # noqa: PT018, S101
        self._ripe = False
        self._record(store.confirm(), 0.0)
        self.ahead = guarded.now - store.now

    # Ages

    @property
    def anchor(self) -> float:
        """Store time of what the last addition does not make older, that and everything later."""
        additions = () if self.store_time is None else self.store_time.additions
        return additions[-1].anchor if additions else self.now

    def before(self, at: float) -> float:
        """Return the store time before which everything is as old as what is of ``at``.

        That is ``at`` itself, or earlier where something younger would be forgotten with it, whose
        store time is before that although it has not lived as long (`Addition`).
        """
        additions = () if self.store_time is None else self.store_time.additions
        spare = (a for a in additions if a.anchor < at < a.until + a.seconds)
        return min((max(a.anchor, at - a.seconds) for a in spare), default=at)

    def spared(self, at: float) -> float:
        """Return the seconds that were added to store time and that did not pass since ``at``."""
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

    # An operator

    def accept(self) -> dict[str, float]:
        """Believe the wall clock from the next reading on; return what that changes.

        Returns:
            ``unconfirmed``, added to store time, and ``step``, of wall time.
        """
        status = self.status()
        self._accepts = True
        return {"unconfirmed": status["unconfirmed"], "step": status["step"]}

    def status(self) -> dict[str, float]:
        """Return the times as people should see them.

        Returns:
            ``unconfirmed`` and ``steady_in``: what waits to be added to store time, and until
            when; ``step`` and ``counts_in``: a step of the wall clock that does not count yet, and
            until when. All 0.0 where the clock is as it should be.
        """
        store, guarded = self.store_time, self.wall_time
        if store is None or guarded is None:
            return dict.fromkeys(("unconfirmed", "steady_in", "step", "counts_in"), 0.0)
        return {
            "unconfirmed": store.unconfirmed, "steady_in": store.steady_in(),
            "step": guarded.step, "counts_in": guarded.counts_in(self.boot),
        }  # fmt: skip

    def spares(self, now: float) -> Callable[[float], float] | None:
        """Return `spared` where something was added lately, so that it makes a difference."""
        additions = () if self.store_time is None else self.store_time.additions
        recent = additions and now - additions[-1].until - additions[-1].seconds < LATELY
        return self.spared if recent else None

    def wall_of(self, at: float) -> float:
        """Return the guarded wall time of a store time, as it is known now."""
        return at + self.ahead + self.spared(at)

    # What a store keeps

    def record(self, addition: Addition | None = None) -> ClockRecord:
        """Return what is to be stored of the last reading, with what a commit adds to it."""
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
        """Seconds since a record was stored; infinite if something has to be."""
        return float("inf") if self._ripe else self.boot - self._saved

    def save_soon(self) -> None:
        """Let the next commit store a record, however soon that is."""
        self._saved = float("-inf")

    def saved(self) -> None:
        """Note that the record of the last reading is stored."""
        self._saved = self.boot

    # Words

    def _record(self, confirmed: float, step: float) -> None:
        if confirmed:
            self.jumped += confirmed
            self.notices.append(f"{_span(confirmed)} that the machine was off now count as passed")
        if step:
            self.notices.append(
                f"the wall clock has stepped by {say_seconds(step)}, and that counts now"
            )
            self._stepping = 0.0
        if confirmed or step:
            self.settled = self.now
            self.save_soon()
        self._check_step()

    def _check_step(self) -> None:
        """Record that a step has started, has changed, or was undone."""
        assert self.wall_time is not None  # noqa: S101 - the caller has started it
        step, known = self.wall_time.step, self._stepping
        if not step and known:
            self.notices.append(
                f"the wall clock is back after a step of {say_seconds(known)}, which never counted"
            )
        elif step and (not known or abs(step - known) > STEP):
            self.notices.append(
                f"the wall clock steps by {say_seconds(step)}, to {self._wall:.0f}: that counts in "
                f"{SETTLED / 60:.0f} minutes unless it goes back; "
                '"eventmq clock accept" lets it count now'
            )
        elif step:
            return  # the same step, some microseconds further
        self._stepping = step


def _with(additions: Iterable[Addition], last: Addition) -> tuple[Addition, ...]:
    """Return additions with one more."""
    first, *rest = (*additions, last)
    if len(rest) >= MAX_ADDITIONS:
        rest[0] = first.merge(rest[0])
        return tuple(rest)
    return (first, *rest)


def _span(seconds: float) -> str:
    """Return a span as people read it."""
    for size, name in ((86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds:.1f} seconds"


def say_time(timestamp: float) -> str:
    """Return a Unix time as people read it: local time with its distance from UTC."""
    try:
        return datetime.fromtimestamp(timestamp).astimezone().isoformat(" ", "milliseconds")
    except (OverflowError, OSError, ValueError):  # of a trigger that reckons wrongly
        return f"Unix time {timestamp:g}"


def say_seconds(seconds: float) -> str:
    """Return a step as people read it, as in ``+2.0 days``."""
    return f"{'-' if seconds < 0 else '+'}{_span(abs(seconds))}"
