"""Ownership of a shared store: when a standby claims it, and the reports to peers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eventmq.broker.ownership import (
    AFTER_BEAT,
    BEAT_TIMEOUT,
    BEFORE_BEAT,
    COMEBACK,
    COMMIT_LIMIT,
    HANDOVER,
    MAX_REASONS,
    MAX_RETRY,
    READ_EVERY,
    Candidate,
    Watch,
)
from eventmq.errors import Fenced, StoreError, Unknown
from eventmq.store.lease import Claimant, LeaseRow
from eventmq.wire.owner import OwnerInfo
from tests.support.shared_store import SharedDatabase, SharedLease

if TYPE_CHECKING:
    from collections.abc import Callable

#: The lease of another broker.
OTHER = LeaseRow("s", 7, "other", "tcp://other:1", "", 100)


class Standby:
    """A `Watch` whose reads of the lease take a time that the test sets."""

    def __init__(self) -> None:
        self.watch = Watch("me")
        self.now = 1000.0

    def read(self, row: LeaseRow = OTHER, *, takes: float = 0.01) -> bool:
        """Wait until the next read is due, read, and return whether a claim is due."""
        self.now = max(self.now, self.watch.next_at)
        began, self.now = self.now, self.now + takes
        self.watch.observe(row, began, self.now)
        return self.watch.claiming

    def until_claim(self, row: LeaseRow = OTHER, *, takes: float = 0.01) -> float:
        """Read until a claim is due; return the seconds that took, or infinity after a minute."""
        start = self.now
        while not self.read(row, takes=takes):
            if self.now > start + 60.0:
                return float("inf")
        return self.now - start


@pytest.fixture
def standby() -> Standby:
    return Standby()


def test_a_store_without_an_owner_is_claimed_at_once(standby: Standby) -> None:
    """A new store, and a released one."""
    assert standby.read(LeaseRow("s"))
    other = Standby()
    assert not other.read()
    assert other.read(LeaseRow("s", 7))


def test_a_beat_that_stands_still_for_three_seconds_is_overtaken(standby: Standby) -> None:
    """The time counts from the first read of this beat; the claim comes at most one read later."""
    assert BEAT_TIMEOUT <= standby.until_claim() <= BEAT_TIMEOUT + 0.1


def test_an_owner_that_renews_is_left_alone(standby: Standby) -> None:
    """However often the lease is read, and even if the owner renews only every 2.9 s."""
    for beat in range(20):
        row = OTHER._replace(beat=beat)
        assert not standby.read(row)
        standby.now += 1.9
        assert not standby.read(row)


def test_a_new_owner_begins_anew(standby: Standby) -> None:
    assert not standby.read()
    standby.now += 1.9
    assert not standby.read()
    again = OTHER._replace(epoch=8, owner="third", beat=100)
    assert standby.until_claim(again) >= BEAT_TIMEOUT


def test_slow_commits_of_its_own_say_nothing_of_the_owner(standby: Standby) -> None:
    """While the database is slow for all brokers, the owner cannot renew either."""
    assert standby.until_claim(takes=COMMIT_LIMIT + 0.01) == float("inf")
    assert standby.until_claim(takes=COMMIT_LIMIT - 0.01) >= BEAT_TIMEOUT - COMMIT_LIMIT


def test_one_slow_commit_begins_anew(standby: Standby) -> None:
    standby.read()
    standby.read()
    standby.read()
    assert not standby.read(takes=COMMIT_LIMIT + 0.01)
    assert standby.until_claim() >= BEAT_TIMEOUT


def test_a_standby_that_did_not_read_the_lease_has_seen_nothing(standby: Standby) -> None:
    """It was suspended, and perhaps the database with it."""
    assert not standby.read()
    standby.now += 100.0
    assert not standby.read()
    assert standby.until_claim() >= BEAT_TIMEOUT - 0.01


def test_a_failure_to_read_begins_anew(standby: Standby) -> None:
    standby.read()
    standby.read()
    standby.watch.failed(StoreError("gone"), standby.now)
    assert standby.watch.unavailable_reason == "gone"
    assert not standby.read()
    assert standby.watch.unavailable_reason == ""
    assert standby.until_claim() >= BEAT_TIMEOUT - 0.01


def test_each_reason_is_logged_once_until_the_store_can_be_used(
    standby: Standby, caplog: pytest.LogCaptureFixture
) -> None:
    """The last reason may differ from the first: a server may come back with other rows."""
    caplog.set_level("INFO", "eventmq.broker")
    for _ in range(2):
        for reason in ("refused", "put back", "refused", *(f"{n}" for n in range(100))):
            standby.watch.failed(StoreError(reason), standby.now)
        assert standby.watch.unavailable_reason == "99"
        standby.read()
        standby.read()
    messages = [record.getMessage() for record in caplog.records]
    assert messages[:2] == [
        f"the shared store cannot be used now: {n}" for n in ("refused", "put back")
    ]
    assert messages[MAX_REASONS] == "the shared store can be used again"
    assert messages == 2 * messages[: MAX_REASONS + 1]


def test_an_owner_whose_connection_is_gone_is_overtaken_soon(standby: Standby) -> None:
    """It has half a second to reconnect, counted from the read that saw it disconnected."""
    assert not standby.read()
    disconnected = OTHER._replace(beat=101, connected=False)
    assert not standby.read(disconnected)
    assert COMEBACK <= standby.until_claim(disconnected) <= COMEBACK + 0.1


def test_a_sign_that_the_connection_has_ended_makes_it_read_at_once(standby: Standby) -> None:
    """Only the lease counts: a late or wrong sign has no other effect."""
    standby.read()
    standby.watch.freed(standby.now)
    assert standby.watch.next_at == standby.now
    assert not standby.read()
    assert standby.until_claim() >= BEAT_TIMEOUT - 0.1


def test_an_owner_that_comes_back_is_left_alone(standby: Standby) -> None:
    """It has claimed the store again, in another epoch."""
    assert not standby.read()
    assert not standby.read(OTHER._replace(connected=False))
    standby.now += 0.2
    again = OTHER._replace(epoch=8, beat=0)
    assert not standby.read(again)
    assert standby.until_claim(again) >= BEAT_TIMEOUT - 0.01


def test_another_owner_that_is_gone_has_its_own_time_to_come_back(standby: Standby) -> None:
    standby.read()
    assert not standby.read(OTHER._replace(connected=False))
    other = OTHER._replace(epoch=8, owner="third", connected=False)
    assert not standby.read(other)
    assert COMEBACK <= standby.until_claim(other) <= COMEBACK + 0.1


def test_slow_commits_after_the_end_count_anew(standby: Standby) -> None:
    standby.read()
    disconnected = OTHER._replace(connected=False)
    assert not standby.read(disconnected)
    assert not standby.read(disconnected, takes=0.6)
    assert COMEBACK <= standby.until_claim(disconnected) <= COMEBACK + 0.1


def test_its_own_claim_whose_answer_was_lost_is_claimed_again(standby: Standby) -> None:
    """The epoch is its own, but the store was not recovered in it."""
    assert standby.read(LeaseRow("s", 8, "me", "tcp://me:1"))


def test_the_lease_is_read_again_soon_after_a_claim_that_failed(standby: Standby) -> None:
    standby.until_claim()
    standby.watch.claimed(0, standby.now)
    assert not standby.watch.claiming
    assert standby.watch.next_at - standby.now < 0.2
    assert standby.read()
    assert not standby.read(OTHER._replace(beat=101))


def test_tries_become_rare_while_the_store_is_away(standby: Standby) -> None:
    waits = []
    for _ in range(8):
        standby.watch.failed(StoreError("gone"), standby.now)
        waits.append(standby.watch.next_at - standby.now)
        standby.now = standby.watch.next_at
    assert waits == sorted(waits)
    assert waits[0] == pytest.approx(0.1)
    assert waits[-1] == pytest.approx(MAX_RETRY)


def test_what_was_handed_over_is_left_to_others_for_a_while(standby: Standby) -> None:
    """After that, this broker is a better owner than none."""
    standby.read(LeaseRow("s"))
    standby.watch.claimed(1, standby.now)
    standby.watch.released(standby.now)
    free = LeaseRow("s", 1)
    assert HANDOVER <= standby.until_claim(free) <= HANDOVER + 0.2


def test_what_another_has_taken_and_released_is_claimed_at_once(standby: Standby) -> None:
    """The handover has ended."""
    standby.read(LeaseRow("s"))
    standby.watch.claimed(1, standby.now)
    standby.watch.released(standby.now)
    assert not standby.read(LeaseRow("s", 1))
    assert not standby.read(LeaseRow("s", 2, "other", "tcp://other:1"))
    assert standby.read(LeaseRow("s", 2))


def test_an_owner_reads_the_lease_no_more(standby: Standby) -> None:
    standby.read(LeaseRow("s"))
    standby.watch.claimed(1, standby.now)
    standby.watch.freed(standby.now)
    assert standby.watch.next_at == float("inf")
    standby.watch.lost(standby.now)
    assert standby.watch.next_at == standby.now


# With a store


class Clock:
    """Monotonic time, which tests set and each call advances a little."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def candidates(database: SharedDatabase, clock: Callable[[], float]) -> list[Candidate]:
    made = []
    for name in ("a", "b"):
        lease = SharedLease(database)
        made.append(Candidate(lease, Claimant(name, f"tcp://{name}:1", ""), clock))
        made[-1].read_lease()
    return made


def step(candidate: Candidate, clock: Clock, seconds: float) -> int:
    """Call `step` when it is due, for some time; return the claimed epoch."""
    end = clock.now + seconds
    while clock.now < end:
        if epoch := candidate.step():
            return epoch
        clock.now = max(clock.now, min(end, candidate.watch.next_at))
    return 0


def test_one_of_two_owns_the_store_and_the_other_says_so() -> None:
    clock, database = Clock(), SharedDatabase("s")
    a, b = candidates(database, clock)
    assert a.info == OwnerInfo(0, "standby", "", "", "s")
    assert step(a, clock, 0.1) == 1
    assert step(b, clock, 0.1) == 0
    assert a.info == OwnerInfo(1, "active", "tcp://a:1", "", "s")
    assert b.info == OwnerInfo(1, "standby", "tcp://a:1", "", "s")


def test_a_frozen_owner_is_overtaken_and_fenced() -> None:
    clock, database = Clock(), SharedDatabase("s")
    a, b = candidates(database, clock)
    step(a, clock, 0.1)
    began = clock.now
    assert step(b, clock, 10.0) == 2
    assert clock.now - began <= BEAT_TIMEOUT + READ_EVERY
    [first, _] = database.leases
    with pytest.raises(Unknown):  # the claim ended its connection
        first.renew()
    first.look()
    with pytest.raises(Fenced):
        first.renew()
    a.lost(Fenced("x"))
    assert step(a, clock, 0.1) == 0
    assert a.info == OwnerInfo(2, "standby", "tcp://b:1", "", "s")


def test_an_owner_that_has_lost_its_connection_claims_anew_at_once() -> None:
    """Before the standby does, which the lost connection has woken."""
    clock, database = Clock(), SharedDatabase("s")
    a, b = candidates(database, clock)
    step(a, clock, 0.1)
    step(b, clock, 0.1)
    database.leases[0].disconnect()
    a.lost(Unknown("x"))
    b.check_freed()
    assert step(a, clock, 0.1) == 2
    assert step(b, clock, 1.0) == 0
    assert b.info.epoch == 2


def test_while_the_store_is_away_no_owner_is_named_by_who_was_it() -> None:
    clock, database = Clock(), SharedDatabase("s")
    a, b = candidates(database, clock)
    step(a, clock, 0.1)
    step(b, clock, 0.1)
    database.go_away()
    a.lost(Unknown("x"))
    assert step(a, clock, 30.0) == step(b, clock, 30.0) == 0
    assert a.info == OwnerInfo(1, "standby", "", "", "s")
    assert "cannot be reached" in a.watch.unavailable_reason
    database.down = False
    assert step(a, clock, MAX_RETRY + 0.1) == 2


@pytest.mark.parametrize("frozen", [False, True], ids=["no owner", "an owner that hangs"])
def test_a_store_that_can_be_read_and_not_claimed_is_tried_ever_more_rarely(
    frozen: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each reason is logged once, and the last one stays: a read does not clear it."""
    caplog.set_level("INFO", "eventmq.broker")
    clock, database = Clock(), SharedDatabase("s")
    a, b = candidates(database, clock)
    if frozen:
        step(a, clock, 0.1)
        step(b, clock, 0.1)
    tries, lease, reasons = [], database.leases[1], set()

    def claim(*_: object) -> int:
        tries.append(clock.now)
        raise StoreError(f"takes no writes, {len(tries) % 2}")

    with monkeypatch.context() as patch:
        patch.setattr(lease, "claim", claim)
        while clock.now < 110.0:
            step(b, clock, 0.1)
            if tries:
                reasons.add(b.watch.unavailable_reason)
    assert reasons == {"takes no writes, 0", "takes no writes, 1"}
    messages = [r.getMessage() for r in caplog.records if "shared store" in r.getMessage()]
    assert messages == [
        f"the shared store cannot be used now: takes no writes, {n}" for n in (1, 0)
    ]
    assert 10 < len(tries) < 40
    assert tries[-1] - tries[-2] >= MAX_RETRY
    assert step(b, clock, 10.0) == 1 + frozen
    assert b.watch.unavailable_reason == ""
    assert "the shared store can be used again" in caplog.text


def test_a_failed_claim_is_forgotten_where_another_broker_is_at_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, database = Clock(), SharedDatabase("s")
    a, b = candidates(database, clock)

    def claim(*_: object) -> int:
        raise StoreError("takes no writes")

    monkeypatch.setattr(database.leases[1], "claim", claim)
    step(b, clock, 1.0)
    assert b.watch.unavailable_reason == "takes no writes"
    assert step(a, clock, 0.1) == 1
    step(b, clock, MAX_RETRY + 0.1)
    assert b.watch.unavailable_reason == ""


def test_what_is_released_is_claimed_by_the_other() -> None:
    clock, database = Clock(), SharedDatabase("s")
    a, b = candidates(database, clock)
    step(a, clock, 0.1)
    a.release()
    assert step(b, clock, READ_EVERY + 0.1) == 2
    assert step(a, clock, 0.2) == 0
    assert a.info == OwnerInfo(2, "standby", "tcp://b:1", "", "s")


# How long the store had no owner


def test_an_owner_at_work_leaves_no_time_without_one(standby: Standby) -> None:
    for beat in range(100, 110):
        standby.read(OTHER._replace(beat=beat))
    assert standby.watch.without_owner(standby.now) == 0.0


def test_the_time_without_an_owner_begins_with_its_last_beat(standby: Standby) -> None:
    """It ends when this broker has claimed the store."""
    standby.read()
    began = standby.now
    standby.until_claim()
    assert standby.watch.without_owner(standby.now) == standby.now - began >= BEAT_TIMEOUT
    standby.now += 1.0
    standby.watch.claimed(8, standby.now)
    gap = standby.now - began
    assert standby.watch.without_owner(standby.now + 100.0) == gap


def test_the_time_without_an_owner_ends_where_another_broker_takes_over(standby: Standby) -> None:
    """It begins when the release of the store was seen."""
    standby.read()
    standby.read(LeaseRow("s", 7))
    began = standby.now
    standby.now += 0.5
    standby.read(OTHER._replace(epoch=8, owner="third"))
    gap = standby.now - began
    assert standby.watch.without_owner(standby.now + 100.0) == gap >= 0.5


def test_an_owner_that_loses_the_store_counts_until_it_has_it_again(standby: Standby) -> None:
    """Also while it cannot read the lease."""
    standby.read(LeaseRow("s", 7))
    standby.watch.claimed(8, standby.now)
    before = standby.watch.without_owner(standby.now)
    standby.watch.lost(standby.now)
    standby.watch.failed(StoreError("away"), standby.now + 2.0)
    standby.now += 5.0
    assert standby.watch.without_owner(standby.now) - before == 5.0
    standby.read(LeaseRow("s", 8, "me"), takes=0.0)
    standby.watch.claimed(9, standby.now)
    assert standby.watch.without_owner(standby.now + 9.0) - before == 5.0


# How long ago the owner stored its clocks


def test_a_standby_knows_between_which_times_the_owner_had_its_last_beat(
    standby: Standby,
) -> None:
    """Between two reads; before the first read there is no bound."""
    standby.read(OTHER, takes=0.0)
    assert standby.watch.passed(standby.now).most == float("inf")
    before = standby.now
    standby.read(OTHER._replace(beat=101), takes=0.0)
    seen = standby.now
    standby.until_claim(OTHER._replace(beat=101))
    passed = standby.watch.passed(seen + 60.0)
    assert passed == (60.0 - AFTER_BEAT, seen + 60.0 - before + BEFORE_BEAT)
    assert standby.watch.passed(seen).least == 0.0


def test_an_owner_that_ends_after_the_first_read_was_alive_until_then(standby: Standby) -> None:
    """Else a wrong wall clock of a broker that has just started would be believed."""
    standby.read(OTHER, takes=0.0)
    first = standby.now
    standby.now += 0.4
    standby.read(OTHER._replace(connected=False), takes=0.0)
    passed = standby.watch.passed(first + 10.0)
    assert passed == (10.0 - AFTER_BEAT, 10.0 + BEAT_TIMEOUT + BEFORE_BEAT)


def test_an_owner_whose_beat_was_missing_may_have_stopped_long_ago(standby: Standby) -> None:
    standby.read(OTHER, takes=0.0)
    for _ in range(8):
        standby.now += 0.5
        standby.read(OTHER, takes=0.0)
    standby.read(OTHER._replace(connected=False), takes=0.0)
    assert standby.watch.passed(standby.now).most == float("inf")


def test_what_follows_its_own_ownership_is_later_than_its_claim(standby: Standby) -> None:
    standby.read(OTHER._replace(owner=""), takes=0.0)
    standby.watch.claimed(8, standby.now)
    claimed = standby.now
    standby.now += 50.0
    standby.watch.lost(standby.now)
    standby.read(OTHER._replace(epoch=9), takes=0.0)
    assert standby.watch.passed(standby.now).most == standby.now - claimed + BEFORE_BEAT


def test_a_standby_that_could_not_read_the_lease_knows_less(standby: Standby) -> None:
    """The owner may have ended right after the last read."""
    standby.read(OTHER)
    before = standby.now
    standby.watch.failed(StoreError("away"), standby.now)
    standby.now += 3600.0
    standby.read(OTHER._replace(beat=101))
    passed = standby.watch.passed(standby.now)
    assert passed.least == 0.0
    assert passed.most > standby.now - before


def test_a_claim_says_what_is_known() -> None:
    clock, database = Clock(), SharedDatabase("s")
    a, b = candidates(database, clock)
    step(a, clock, 0.1)
    step(b, clock, 0.5)
    for _ in range(3):
        database.lease_of("a").renew()
        step(b, clock, READ_EVERY + 0.1)
    began = clock.now
    assert step(b, clock, 10.0) == 2
    passed = database.lease_of("b").claimed.passed
    assert passed.least <= clock.now - began <= passed.most < clock.now - began + 40.0
