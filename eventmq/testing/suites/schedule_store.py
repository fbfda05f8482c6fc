"""Conformance suite for schedule stores."""

# ruff: noqa: S101, PLR2004 - suites are methods that assert, with figures that are the point

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from eventmq.errors import SettingsError
from eventmq.schedule import DeferredScheduleStore, Progress, Schedule
from eventmq.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from eventmq.interfaces import ScheduleStore
    from eventmq.schedule import Saved

__all__ = ["ScheduleStoreSuite"]


def new_schedule(name: str, **more: object) -> Schedule:
    """Return a schedule to store."""
    fields = {"task": "shop.send", "body": b"\x00\xff", "trigger": 'every:{"seconds":5.0}'}
    return Schedule(name=name, **{**fields, **more})  # type: ignore[arg-type]


def stored_schedule(store: ScheduleStore, name: str) -> Schedule:
    """Return a schedule that is in the store."""
    schedule = store.find(name)
    assert schedule is not None, f"the store does not find the schedule {name!r}"
    return schedule


class ScheduleStoreSuite:
    """Subclass it and return your store from `make`.

    Attributes:
        too_many: More removed schedules than a store remembers; lower it for a shorter test.
    """

    too_many = 20_000

    def make(self, clock: FakeClock) -> ScheduleStore:
        """Return an empty store."""
        raise NotImplementedError("define make() in your subclass: it returns your schedule store")

    def second(self, clock: FakeClock) -> ScheduleStore | None:
        """Return another connection to the store that `make` made last, None if there is none."""
        return None

    @pytest.fixture
    def clock(self) -> FakeClock:
        """Return the clock of the store."""
        return FakeClock()

    @pytest.fixture
    def store(self, clock: FakeClock) -> Iterator[ScheduleStore]:
        """Return an empty store, closed twice after the test."""
        store = self.make(clock)
        yield store
        store.close()
        store.close()

    @pytest.fixture
    def other(self, store: ScheduleStore, clock: FakeClock) -> Iterator[ScheduleStore]:
        """Return a second connection to the store."""
        other = self.second(clock)
        if other is None:
            pytest.skip("this store has no second connection")
        yield other
        other.close()

    def test_a_saved_schedule_is_found_unchanged(self, store: ScheduleStore) -> None:
        """Every field comes back, with a new version."""
        schedule = new_schedule(
            "nightly", queue="fast", headers="task:a,content-type:msgpack", source="code",
            app="shop", created=5.5, nohaste=False, enabled=False, misfire="all", window=60.0,
            overlap="queue", jitter=1.5, run_count=7, expires_in=9.0, last_fire_time=1234.5,
            remaining=3, last_job="x", sent=("a", "b", ""),
        )  # fmt: skip
        assert list(store.save([(schedule, None)]).done) == [True]
        stored = stored_schedule(store, "nightly")
        assert stored.version > 0
        assert replace(stored, version=0) == schedule
        assert list(store.load().schedules) == [stored]

    def test_an_unknown_name_is_none(self, store: ScheduleStore) -> None:
        """It is not an error."""
        assert store.find("unknown") is None
        assert not store.remove("unknown", 1)
        assert not store.remove("unknown", None)
        assert list(store.advance([Progress("unknown", 1, 5.0, None, "")]).done) == [False]

    def test_a_save_needs_the_current_version(self, store: ScheduleStore) -> None:
        """A caller with an older version must read the schedule again."""
        store.save([(new_schedule("a"), None)])
        first = stored_schedule(store, "a")
        assert list(store.save([(new_schedule("a"), None)]).done) == [False]
        assert list(store.save([(new_schedule("a", queue="q"), first.version)]).done) == [True]
        assert list(store.save([(new_schedule("a", queue="r"), first.version)]).done) == [False]
        last = stored_schedule(store, "a")
        assert (last.queue, last.version > first.version) == ("q", True)

    def test_the_results_of_a_save_are_in_order(self, store: ScheduleStore) -> None:
        """A stale version does not keep the other schedules from being stored."""
        store.save([(new_schedule("b"), None)])
        saved = store.save(
            [(new_schedule("a"), None), (new_schedule("b"), None), (new_schedule("c"), None)]
        )
        assert list(saved.done) == [True, False, True]
        assert sorted(s.name for s in store.load().schedules) == ["a", "b", "c"]

    def test_a_bad_schedule_is_not_stored(self, store: ScheduleStore) -> None:
        """The others of the same save are not stored either."""
        for bad in (
            new_schedule("", queue="x"),
            new_schedule("x", run_count=0),
            new_schedule("x", misfire="twice"),
        ):
            with pytest.raises(SettingsError, match="allowed is"):
                store.save([(new_schedule("good"), None), (bad, None)])
        assert not store.load().schedules

    def test_advancing_increments_the_version(self, store: ScheduleStore) -> None:
        """It grows by one, so that the caller knows it without reading the schedule."""
        store.save([(new_schedule("a", remaining=3, run_count=3), None)])
        first = stored_schedule(store, "a")
        row = Progress("a", first.version, 10.25, 2, "job")
        assert list(store.advance([row]).done) == [True]
        assert list(store.advance([row]).done) == [False]
        assert store.find("a") == replace(
            first, version=first.version + 1, last_fire_time=10.25, remaining=2, last_job="job"
        )

    def test_begin_advance_returns_before_the_result(self, store: ScheduleStore) -> None:
        """If the store has it; the caller may begin the next one before it reads the result."""
        store.save([(new_schedule("a"), None), (new_schedule("b"), None)])
        begin: Callable[[list[Progress]], Callable[[], Saved]] = partial(partial, store.advance)
        if isinstance(store, DeferredScheduleStore):
            begin = store.begin_advance
        unknown = Progress("unknown", 1, 5.0, None, "")
        one = begin([Progress("a", stored_schedule(store, "a").version, 10.25, None, "x"), unknown])
        two = begin([Progress("b", stored_schedule(store, "b").version, 20.5, None, "y")])
        before, after = one(), two()
        assert (list(before.done), list(after.done)) == ([True, False], [True])
        assert store.load().revision == after.revision == before.revision + 1
        moved = [stored_schedule(store, name) for name in "ab"]
        assert [(stored.last_fire_time, stored.last_job) for stored in moved] == [
            (10.25, "x"), (20.5, "y"),
        ]  # fmt: skip

    def test_a_removed_schedule_can_be_saved_again(self, store: ScheduleStore) -> None:
        """Its version is larger than any before under that name."""
        store.save([(new_schedule("a"), None)])
        first = stored_schedule(store, "a")
        assert not store.remove("a", first.version + 1)
        assert store.remove("a", first.version)
        assert store.find("a") is None
        assert not store.load().schedules
        assert list(store.save([(new_schedule("a"), first.version)]).done) == [False]
        store.save([(new_schedule("a"), None)])
        assert stored_schedule(store, "a").version > first.version
        assert store.remove("a", None)

    def test_changes_since_a_revision_can_be_loaded(self, store: ScheduleStore) -> None:
        """New, edited, advanced and removed schedules."""
        store.save([(new_schedule(name), None) for name in "abcd"])
        seen = store.load()
        assert seen.whole
        assert len(seen.schedules) == 4
        after = store.load(seen.revision)
        assert (after.revision, [*after.schedules, *after.removed]) == (seen.revision, [])
        by_name = {s.name: s for s in seen.schedules}
        store.advance([Progress("b", by_name["b"].version, 7.0, None, "")])
        store.remove("c", None)
        saved = store.save([(new_schedule("d", queue="q"), by_name["d"].version)])
        after = store.load(seen.revision)
        assert sorted(s.name for s in after.schedules) == ["b", "d"]
        assert (list(after.removed), after.whole, after.revision) == (["c"], False, saved.revision)

    def test_revisions_count_changes(self, store: ScheduleStore) -> None:
        """Each change counts one, so that a writer notices the changes of others."""
        before = store.save([(new_schedule(name), None) for name in "abc"]).revision
        rows = [Progress(s.name, s.version, 1.0, None, "") for s in store.load().schedules]
        assert store.advance(rows).revision == before + 3
        assert store.advance(rows).revision == before + 3

    def test_many_schedules_are_loaded_completely(self, store: ScheduleStore) -> None:
        """They need not fit into one message."""
        names = [f"s{n}" for n in range(2500)]
        store.save([(new_schedule(name), None) for name in names])
        large = new_schedule("large", body=b"x" * 900_000)
        store.save([(large, None), (replace(large, name="huge"), None)])
        assert {*names, "large", "huge"} == {s.name for s in store.load().schedules}

    def test_a_reader_that_missed_too_much_reads_everything(self, store: ScheduleStore) -> None:
        """The names of removed schedules are not kept for ever."""
        store.save([(new_schedule("old"), None)])
        seen = store.load().revision
        at_once = self.too_many // 20
        for first in range(0, self.too_many + 1, at_once):
            store.save([(new_schedule(f"s{n}"), None) for n in range(first, first + at_once)])
            for n in range(first, first + at_once):
                store.remove(f"s{n}", None)
        after = store.load(seen)
        assert after.whole or len(after.removed) > self.too_many
        if after.whole:
            assert [s.name for s in after.schedules] == ["old"]

    def test_the_lease_has_one_holder(self, store: ScheduleStore, clock: FakeClock) -> None:
        """The holder keeps it until it ends or is released."""
        for seconds, session, held in (
            (0.0, "a", True), (0.0, "b", False), (0.9, "a", True), (0.9, "b", False),
            (0.2, "b", True), (0.0, "a", False),
        ):  # fmt: skip
            clock.advance(seconds)
            assert store.lease(session, 1.0).held == held, f"{session}, {seconds} s later"
        store.release("a")
        assert not store.lease("a", 1.0).held
        store.release("b")
        assert store.lease("a", 1.0).held

    @pytest.mark.parametrize("step", [7200.0, 1.5, -1.5, -7200.0])
    def test_a_step_of_the_wall_clock_does_not_move_the_end_of_a_lease(
        self, store: ScheduleStore, clock: FakeClock, step: float
    ) -> None:
        """Its holder still fires, alone; but it does not last longer by the hours of the step."""
        assert store.lease("a", 1.0).held
        clock.set_now(clock.now() + step)
        clock.advance(0.5)
        assert not store.lease("b", 1.0).held
        assert store.lease("a", 1.0).held
        clock.advance(1.5)
        assert store.lease("b", 1.0).held

    def test_the_lease_has_the_revision(self, store: ScheduleStore) -> None:
        """Renewing it is therefore enough to notice changes."""
        before = store.lease("a", 1.0).revision
        revision = store.save([(new_schedule("a"), None)]).revision
        assert before < revision == store.lease("a", 1.0).revision == store.load().revision

    def test_two_connections_share_the_data(
        self, store: ScheduleStore, other: ScheduleStore
    ) -> None:
        """Schedules, versions and the lease."""
        assert store.identity == other.identity
        store.save([(new_schedule("a"), None)])
        row = Progress("a", stored_schedule(other, "a").version, 5.0, None, "")
        assert sorted([*store.advance([row]).done, *other.advance([row]).done]) == [False, True]
        assert store.lease("x", 1.0).held
        assert not other.lease("y", 1.0).held
