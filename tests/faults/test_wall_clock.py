"""Steps of the wall clock, and machines that sleep or are off: no job is lost, repeated or moved.

The real broker core on a real store in a directory, with clocks that a test sets.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from eventmq.broker.limits import Limits
from eventmq.errors import StoreError
from eventmq.graph import Group
from eventmq.job import OutcomeKind
from eventmq.store.reads import FindJobs
from eventmq.store.writes import KeepTime
from eventmq.testing import FakeClock
from eventmq.timekeeping import AT_ONCE, SETTLED, STEADY
from eventmq.wire.results import ERROR_TYPE, RemoteError, encode_error
from tests.support.broker_harness import SWIFT, Broker, chunks, row
from tests.support.graph_jobs import A, B
from tests.support.graph_jobs import submit as submit_graph

DAY, WEEK, YEAR = 86_400.0, 7 * 86_400.0, 365 * 86_400.0
STEPS = [400 * DAY, 2 * DAY, -YEAR]
_UNIQUE = "unique:k,unique-period:7200"
_NO = encode_error(RemoteError("builtins.ValueError", "no"))


class Clocked(Broker):
    """Broker on a machine whose clocks a test sets."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, Limits(heartbeat_interval=1.0), FakeClock(1_800_000_000.0))
        self.runs: list[tuple[str, float]] = []

    def step(self, seconds: float) -> None:
        """Step the wall clock; the broker notices at once."""
        self.clock.set_now(self.clock.now() + seconds)
        self.tick()

    def keep(self) -> None:
        """Keep time as the runner does without commits."""
        self.store.submit([KeepTime()])
        self.store.finished()

    def go(self, seconds: float, every: float = 0.5) -> None:
        """Let time pass in steps that the broker notices."""
        while seconds > 0:
            self.clock.advance(min(every, seconds))
            seconds -= every
            self.tick()

    def run(self, job_id: str, kind: OutcomeKind = OutcomeKind.SUCCEEDED) -> None:
        """Submit a job, and let a new worker run it."""
        self.submit(job_id, queue="once")
        self.serve(kind, queue="once")

    def serve(self, kind: OutcomeKind = OutcomeKind.SUCCEEDED, queue: str = "default") -> list[str]:
        """Let a new worker run the ready jobs; return their ids."""
        name = self.new_id()
        queues = f'[[10, "{queue}"]]'
        assigned = chunks(self.worker(name.encode(), name, window=9, queues=queues))
        for chunk, index in assigned:
            rows = [
                row(n, kind, _NO, content_type=ERROR_TYPE) if kind else row(n)
                for n in range(len(index.entries))
            ]
            self.answer(name.encode(), chunk, rows)
        ended = [entry.id for _, index in assigned for entry in index.entries]
        del self.core.state.peers[next(k for k in self.core.state.peers if k[1] == name.encode())]
        self.core.state.sessions.pop(name, None)
        return ended

    def state_of(self, job_id: str) -> str:
        return self.call("state", ids=[job_id])[0][1]

    def is_refused(self, job_id: str) -> bool:
        """Submit a job again; return whether it is refused as known."""
        before = self.core.state.counters["duplicates"]
        self.submit(job_id, queue="again")
        return self.core.state.counters["duplicates"] == before + 1

    def status(self) -> dict[str, float]:
        clock = self.call("status")["clock"]
        return {name: round(value) for name, value in clock.items() if value}


class Case:
    """Broker with a failed job, an ended one, and two delayed ones."""

    def __init__(self, path: Path) -> None:
        self.broker = broker = Clocked(path)
        self.begin = broker.now()
        self.failed, self.ended, self.later, self.at = (broker.new_id() for _ in range(4))
        broker.run(self.failed, OutcomeKind.FAILED)
        broker.run(self.ended)
        broker.submit(self.later, headers="countdown:1500")
        broker.submit(self.at, headers=f"eta:{broker.clock.now() + 2000:.3f}")
        broker.go(60.0)
        broker.keep()

    @property
    def passed(self) -> float:
        """Seconds of store time since the start of the test."""
        return self.broker.now() - self.begin

    def check_kept(self) -> None:
        """Check that no job was lost, and no id is admitted twice."""
        assert self.broker.state_of(self.failed) == "failed"
        assert self.broker.state_of(self.ended) == "succeeded"
        assert self.broker.is_refused(self.ended)
        assert self.broker.is_refused(self.failed)


@pytest.fixture
def case(tmp_path: Path):
    case = Case(tmp_path)
    yield case
    case.broker.close()


# While the broker runs


@pytest.mark.parametrize("step", STEPS)
def test_a_step_for_some_seconds_changes_nothing(case: Case, step: float) -> None:
    broker = case.broker
    broker.step(step)
    broker.go(8.0)
    assert broker.status() == {"step": step, "counts_in": SETTLED - 8}
    assert (broker.state_of(case.later), broker.state_of(case.at)) == ("delayed", "delayed")
    case.check_kept()
    broker.step(-step)
    broker.go(1.0)
    assert broker.status() == {}
    case.check_kept()
    broker.go(1490.0 - case.passed, every=5.0)
    assert broker.serve() == []
    broker.go(1500.0 - case.passed)
    assert broker.serve() == [case.later]
    broker.go(1999.0 - case.passed, every=5.0)
    assert broker.serve() == []
    broker.go(2000.0 - case.passed)
    assert broker.serve() == [case.at]


@pytest.mark.parametrize("step", STEPS)
def test_a_lasting_step_moves_only_jobs_with_a_unix_time(case: Case, step: float) -> None:
    broker = case.broker
    broker.step(step)
    broker.go(SETTLED - 1, every=5.0)
    assert (broker.state_of(case.later), broker.state_of(case.at)) == ("delayed", "delayed")
    broker.go(2.0)
    assert broker.status() == {}
    assert broker.call("ping")["now"] == pytest.approx(broker.clock.now())
    case.check_kept()
    assert broker.serve() == ([case.at] if step > 0 else [])
    broker.go(1499.0 - case.passed, every=5.0)
    assert broker.serve() == []
    broker.go(1500.0 - case.passed)
    assert broker.serve() == [case.later]
    broker.go(STEADY, every=60.0)
    case.check_kept()


@pytest.mark.parametrize("step", STEPS)
def test_ids_of_clients_with_the_wrong_time_are_known_after_it_is_right_again(
    case: Case, step: float
) -> None:
    """A client on the broker's machine makes ids from the raw wall clock."""
    broker = case.broker
    broker.step(step)
    ids = [broker.new_id() for _ in range(3)]
    broker.run(ids[0])
    broker.go(SETTLED, every=10.0)
    broker.run(ids[1])
    broker.step(-step)
    broker.run(ids[2])
    broker.go(2 * SETTLED, every=10.0)
    assert [broker.is_refused(job_id) for job_id in ids] == [True] * 3
    broker.crash()
    assert [broker.is_refused(job_id) for job_id in ids] == [True] * 3


def test_a_clock_a_year_ahead_for_good_does_not_readmit_earlier_ids(
    case: Case,
) -> None:
    """Ids above the highest known one need no look-up, unless they are from the future."""
    broker = case.broker
    broker.step(-YEAR)
    broker.go(SETTLED + 1, every=10.0)
    broker.crash()  # now the earlier ids are from the future
    broker.step(YEAR)
    broker.go(SETTLED + 1, every=10.0)
    case.check_kept()


@pytest.mark.parametrize("step", STEPS)
def test_a_result_is_kept_for_its_time(case: Case, step: float) -> None:
    broker = case.broker
    job_id, _ = broker.submit(headers="result-ttl:1000")
    broker.serve()
    broker.step(step)
    broker.go(990.0, every=10.0)
    assert _result(broker, job_id) == b"\xc0"
    broker.go(20.0, every=10.0)
    assert _result(broker, job_id) is None


def _result(broker: Broker, job_id: str) -> bytes | None:
    broker.store.submit([FindJobs([job_id])])
    [[rows]] = broker.store.finished()
    return rows[job_id].result


@pytest.mark.parametrize("step", STEPS)
def test_a_retry_follows_store_time(case: Case, step: float) -> None:
    broker = case.broker
    job_id, _ = broker.submit(headers="retry-count:3")
    broker.worker(b"tries", "tries")
    [chunk] = broker.dispatched[-1:]
    broker.answer(
        b"tries", chunk, [row(0, OutcomeKind.RETRY, _NO, content_type=ERROR_TYPE, countdown=900.0)]
    )
    broker.step(step)
    broker.go(895.0, every=5.0)
    assert broker.state_of(job_id) == "delayed"
    broker.go(10.0, every=5.0)
    assert broker.state_of(job_id) != "delayed"


@pytest.mark.parametrize("step", STEPS)
def test_a_job_expires_by_guarded_wall_time(case: Case, step: float) -> None:
    broker = case.broker
    expires = broker.clock.now() + 300
    job_id, _ = broker.submit(headers=f"expires:{expires:.3f}")
    broker.step(step)
    broker.go(299.0, every=1.0)
    assert broker.state_of(job_id) == "queued"
    broker.go(5.0)
    assert broker.state_of(job_id) == "expired"


def test_events_have_guarded_wall_time_and_waits_of_store_time(case: Case) -> None:
    """After a step that counts, times move and waits do not."""
    broker = case.broker
    job_id, _ = broker.submit()
    broker.step(2 * DAY)
    broker.go(SETTLED + 10, every=10.0)
    broker.serve()
    first, *_, last = [event for event in broker.events() if event.get("job_id") == job_id]
    assert last["ts_us"] / 1e6 == pytest.approx(broker.clock.now(), abs=0.01)
    assert last["ts_us"] - first["ts_us"] == pytest.approx((2 * DAY + SETTLED + 10) * 1e6, abs=1e4)
    assert last["wait_us"] / 1e6 == pytest.approx(SETTLED + 10, abs=0.01)


@pytest.mark.parametrize("step", STEPS)
def test_the_wall_clock_does_not_change_whether_an_expired_job_was_ready(
    case: Case, step: float
) -> None:
    """It is ready by store time and expires by wall time, compared at that time."""
    broker = case.broker
    broker.step(step)
    broker.go(SETTLED + 10, every=10.0)
    wall = broker.clock.now()
    waited, _ = broker.submit(headers=f"countdown:10,expires:{wall + 20:.3f}")
    delayed, _ = broker.submit(headers=f"countdown:40,expires:{wall + 20:.3f}")
    at, _ = broker.submit(headers=f"eta:{wall + 40:.3f},expires:{wall + 20:.3f}")
    first, then = submit_graph(broker, A | B, b=f",expires:{wall + 20:.3f}")
    broker.go(25.0)
    assert first in broker.serve()  # the other one has expired when it is released
    broker.go(1.0)
    due_us = {e["job_id"]: e.get("due_us", 0) for e in broker.events() if e["kind"] == "expired"}
    assert due_us.keys() == {waited, delayed, at, then}
    assert due_us[waited] == 0
    assert due_us[delayed] / 1e6 == due_us[at] / 1e6 == pytest.approx(wall + 40, abs=0.01)
    assert due_us[then] / 1e6 == pytest.approx(wall + 25, abs=1.0)


def test_listings_show_wall_times(case: Case) -> None:
    """Times before a step that counts are shown as by the right clock."""
    broker = case.broker
    job_id, _ = broker.submit(headers="countdown:5000")
    made = broker.clock.now()
    broker.step(-YEAR)
    broker.go(SETTLED + 1, every=10.0)
    info = broker.call("info", id=job_id)
    assert info["created"] == pytest.approx(made - YEAR)
    assert info["due"] == pytest.approx(made - YEAR + 5000)
    assert broker.call("info", id=case.at)["due"] == pytest.approx(case.begin + 2000, abs=1.0)
    since = broker.call("failed", since=made - YEAR - 61.0)["failed"]
    assert [row["id"] for row in since] == [case.failed]
    assert broker.call("failed", since=made - YEAR - 1.0)["failed"] == []


def test_jobs_with_an_eta_rank_by_when_they_became_ready(tmp_path: Path) -> None:
    """A step neither lets them overtake earlier jobs nor delays them for ever."""
    broker = Clocked(tmp_path)
    waiting, _ = broker.submit()
    eta, _ = broker.submit(headers=f"eta:{broker.clock.now() + 50 * DAY:.3f}")
    broker.go(10.0)
    broker.step(400 * DAY)
    broker.go(SETTLED + 1, every=10.0)
    assert broker.state_of(eta) == "queued"
    later, _ = broker.submit()
    jobs = broker.core.state.jobs
    assert sorted((waiting, eta, later), key=lambda i: jobs[i].rank) == [waiting, eta, later]
    broker.close()


# Sleep, restarts and boots


def test_a_machine_that_slept_for_a_week_prunes_and_fires_when_it_wakes(case: Case) -> None:
    broker = case.broker
    broker.clock.sleep(WEEK)
    broker.core.shift(broker.now(), WEEK)  # as its runner does after such a gap
    broker.go(2.0)
    assert broker.status() == {}
    assert sorted(broker.serve()) == sorted([case.later, case.at])
    assert broker.state_of(case.failed) == "failed"  # kept for 30 days
    broker.keep()
    assert broker.state_of(case.ended) == ""


@pytest.mark.parametrize("boots", [False, True])
def test_a_machine_that_was_off_for_a_week_counts_an_hour_first(case: Case, boots: bool) -> None:
    """The remaining time counts after an hour of a steady clock; the status shows it."""
    broker = case.broker
    broker.store.close()
    broker.clock.reboot(WEEK)
    broker.start()
    if boots:  # once more, at once
        broker.store.close()
        broker.clock.reboot(0.0)
        broker.start()
    assert broker.now() == pytest.approx(case.begin + 60 + AT_ONCE, abs=2.0)
    assert broker.status()["unconfirmed"] == pytest.approx(WEEK - AT_ONCE, abs=2)
    broker.go(1.0)
    assert broker.serve() == [case.later]
    assert broker.state_of(case.at) == "delayed"
    case.check_kept()
    fresh = broker.new_id()
    broker.run(fresh)
    assert broker.is_refused(fresh)
    broker.go(SETTLED, every=10.0)
    assert broker.serve() == [case.at]
    case.check_kept()
    broker.go(STEADY - SETTLED - 30, every=10.0)
    case.check_kept()
    broker.go(60.0, every=10.0)
    assert broker.status() == {}
    assert broker.now() == pytest.approx(broker.clock.now(), abs=2.0)
    broker.keep()
    case.check_kept()  # in the same table of outcomes as younger ones
    assert broker.is_refused(fresh)
    broker.go(DAY + 3 * 3600, every=600.0)
    broker.keep()
    assert (broker.state_of(case.ended), broker.state_of(fresh)) == ("", "")
    assert broker.state_of(case.failed) == "failed"


@pytest.mark.parametrize("step", [2 * DAY, YEAR])
@pytest.mark.parametrize("keeps", [False, True])
def test_a_power_failure_beside_a_step_loses_no_time_off_and_counts_none_twice(
    case: Case, step: float, keeps: bool
) -> None:
    """The machine's clock keeps the step, or is right again."""
    broker = case.broker
    broker.step(step)
    broker.go(8.0)
    broker.keep()
    broker.store.close()
    broker.clock.reboot(1800.0)
    if not keeps:
        broker.clock.set_now(broker.clock.now() - step)
    broker.start()
    assert case.passed == pytest.approx(68.0 + 1800.0, abs=2.0)
    assert "unconfirmed" not in broker.status()
    broker.go(1.0)
    assert broker.serve() == [case.later]
    case.check_kept()


class Off:
    """Broker whose machine was off for 60 days, with jobs from before and from the hour after.

    Each of ``old`` and ``fresh`` has an ended job, a failed one, and one with a countdown of a day.
    """

    def __init__(self, path: Path) -> None:
        self.broker = broker = Clocked(path)
        self.old = self._jobs()
        self.tried, _ = broker.submit(queue="tries", headers="retry-count:3")
        self.released = submit_graph(broker, A | B, b=f",countdown:{DAY:.0f}")
        broker.go(3 * 3600.0, every=60.0)
        broker.keep()
        broker.store.close()
        broker.clock.reboot(60 * DAY)
        broker.start()
        broker.go(SETTLED + 60, every=10.0)
        self.begin = broker.now()
        self.fresh = self._jobs()
        broker.serve()  # the first job of the graph
        self._fail_once()
        rate = "limit-rate:1/d,limit-key:k"
        self.limited = [broker.submit(queue="rate", headers=rate)[0] for _ in range(2)]
        assert broker.serve(queue="rate") == self.limited[:1]
        self.kept, _ = broker.submit(queue="kept", headers="result-ttl:7200")
        broker.serve(queue="kept")
        self.unique, _ = broker.submit(queue="kept", headers=_UNIQUE)
        broker.serve(queue="kept")
        part = Group((A, B), on_failure="continue", deadline=7200)
        self.part = submit_graph(broker, part)
        self.transient = self._delay("guarantee:False")
        self.waiting = [*self.fresh[2:], self.tried, self.released[1], self.transient]

    def _jobs(self) -> list[str]:
        broker = self.broker
        ids = [broker.new_id(), broker.new_id()]
        broker.run(ids[0])
        broker.run(ids[1], OutcomeKind.FAILED)
        return [*ids, self._delay()]

    def _delay(self, more: str = "") -> str:
        headers = ",".join(filter(None, [f"countdown:{DAY:.0f}", more]))
        return self.broker.submit(queue="day", headers=headers)[0]

    def _fail_once(self) -> None:
        """Let a job fail that is retried after a day."""
        self.broker.worker(b"tries", "tries", queues='[[10, "tries"]]')
        [chunk] = self.broker.dispatched[-1:]
        again = row(0, OutcomeKind.RETRY, _NO, content_type=ERROR_TYPE, countdown=DAY)
        self.broker.answer(b"tries", chunk, [again])

    def states(self, ids: list[str]) -> list[str]:
        return [self.broker.state_of(job_id) for job_id in ids]


@pytest.fixture
def off(tmp_path: Path):
    off = Off(tmp_path)
    yield off
    off.broker.close()


@pytest.mark.parametrize("accepts", [False, True])
@pytest.mark.parametrize("restarts", [False, True])
def test_jobs_from_after_the_start_do_not_age_by_the_time_off(
    off: Off, accepts: bool, restarts: bool
) -> None:
    """Neither after an hour of a steady clock, nor when an operator accepts the time."""
    broker = off.broker
    assert set(off.states(off.waiting)) == {"delayed"}
    if accepts:
        broker.call("clock.accept")
    else:
        broker.go(STEADY - SETTLED, every=10.0)
    broker.go(1.0)
    broker.keep()
    assert broker.status() == {}
    assert broker.now() == pytest.approx(broker.clock.now(), abs=2.0)
    if restarts:
        broker.crash()
        broker.go(120.0, every=10.0)
        broker.keep()
        off.waiting.remove(off.transient)
    assert off.states(off.old) == ["", "", "queued"]
    assert off.states(off.fresh) == ["succeeded", "failed", "delayed"]
    assert [broker.is_refused(job_id) for job_id in off.fresh] == [True] * 3
    assert set(off.states(off.waiting)) == {"delayed"}
    assert broker.serve(queue="rate") == []
    assert _result(broker, off.kept) == b"\xc0"
    assert broker.state_of(broker.submit(queue="kept", headers=_UNIQUE)[0]) == ""
    assert "cancelled" not in off.states(off.part)


def test_jobs_from_after_the_start_age_from_then_on(off: Off) -> None:
    broker = off.broker
    broker.call("clock.accept")
    broker.go(7300.0, every=10.0)
    assert _result(broker, off.kept) is None
    assert broker.state_of(broker.submit(queue="kept", headers=_UNIQUE)[0]) == "queued"
    assert set(off.states(off.part)) == {"cancelled"}
    broker.go(DAY - 7300.0 - 60.0, every=60.0)
    assert off.states(off.waiting) == ["delayed"] * 4
    broker.go(120.0, every=10.0)
    assert off.states(off.waiting) == ["queued"] * 4
    assert broker.serve(queue="rate") == off.limited[1:]
    broker.go(3 * 3600.0, every=60.0)
    broker.keep()
    assert off.states(off.fresh[:2]) == ["", "failed"]
    broker.go(29 * DAY, every=6 * 3600.0)
    assert broker.state_of(off.fresh[1]) == ""


def test_jobs_from_after_the_start_are_shown_with_their_own_times(off: Off) -> None:
    broker = off.broker
    made = broker.clock.now()
    job_id, _ = broker.submit(queue="late")
    broker.call("clock.accept")
    broker.go(100.0, every=10.0)
    broker.serve(queue="late")
    info = broker.call("info", id=job_id)
    assert info["created"] == pytest.approx(made, abs=1.0)
    assert broker.call("info", id=off.fresh[1])["finished"] == pytest.approx(made, abs=1.0)
    [*_, end] = [event for event in broker.events() if event.get("job_id") == job_id]
    assert end["wait_us"] / 1e6 == pytest.approx(100.0, abs=1.0)


def test_the_commit_that_moves_waiting_jobs_records_it(off: Off) -> None:
    """If the machine dies right after it, nothing is moved a second time."""
    broker = off.broker
    due_at = broker.call("info", id=off.fresh[2])["due"]
    broker.keeper.accept()
    broker.keep()
    broker.store.close()
    broker.start()
    assert broker.status() == {}
    assert broker.call("info", id=off.fresh[2])["due"] == pytest.approx(due_at, abs=2.0)


def test_a_commit_that_fails_moves_nothing(off: Off) -> None:
    broker, begin = off.broker, off.broker.now()
    due_at = broker.call("info", id=off.fresh[2])["due"]
    broker.keeper.accept()
    broker.store._db.set_commit_hook(lambda: True)  # it is rolled back
    broker.store.submit([KeepTime()])
    assert [type(error) for error in broker.store.finished()] == [StoreError]
    broker.store._db.set_commit_hook(None)
    assert broker.now() == begin
    broker.go(5.0)  # the next commit does
    assert broker.status() == {}
    assert broker.call("info", id=off.fresh[2])["due"] == pytest.approx(due_at, abs=2.0)


def test_added_time_ends_no_lease_of_a_beat(off: Off) -> None:
    lease = off.broker.call("schedules.lease", holder="one", seconds=30)
    assert lease["held"]
    off.broker.call("clock.accept")
    off.broker.go(1.0)
    assert not off.broker.call("schedules.lease", holder="two", seconds=30)["held"]


def test_an_operator_can_accept_a_week_at_once(case: Case) -> None:
    broker = case.broker
    broker.store.close()
    broker.clock.reboot(WEEK)
    broker.start()
    accepted = broker.call("clock.accept")
    assert accepted["unconfirmed"] == pytest.approx(WEEK - AT_ONCE, abs=2)
    assert accepted["step"] == pytest.approx(WEEK, abs=2)
    broker.go(1.0)
    assert broker.status() == {}
    assert sorted(broker.serve()) == sorted([case.later, case.at])
    broker.crash()
    assert broker.now() == pytest.approx(broker.clock.now(), abs=2.0)


def test_added_time_loses_no_worker(case: Case) -> None:
    broker = case.broker
    broker.store.close()
    broker.clock.reboot(WEEK)
    broker.start()
    broker.submit()
    [(_, index)] = chunks(broker.worker())
    broker.call("clock.accept")
    broker.go(2.0)
    assert broker.core.state.counters["lease_lost"] == 0
    assert broker.state_of(index.entries[0].id) == "running"


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("reboots", [False, True])
def test_a_clock_that_is_set_while_the_broker_is_down(
    case: Case, step: float, reboots: bool
) -> None:
    """With the same boot id nothing happens; with another one at most an hour counts."""
    broker = case.broker
    broker.store.close()
    if reboots:
        broker.clock.reboot(30.0)
    else:
        broker.clock.advance(30.0)
    broker.clock.set_now(broker.clock.now() + step)
    broker.start()
    hour = AT_ONCE if reboots and step > 0 else 0.0 if reboots else 30.0
    assert broker.now() == pytest.approx(case.begin + 60 + hour, abs=1.5)
    assert broker.status()["step"] == pytest.approx(step, abs=61)
    broker.go(1.0)
    case.check_kept()
    assert broker.serve() == ([case.later] if hour == AT_ONCE else [])
    broker.go(SETTLED / 2, every=10.0)
    broker.step(-step)
    broker.go(STEADY, every=30.0)
    case.check_kept()


def test_the_clocks_are_stored_with_commits_and_a_crash_loses_a_second_at_most(
    tmp_path: Path,
) -> None:
    broker = Clocked(tmp_path)
    for _ in range(20):
        broker.clock.advance(0.3)
        broker.submit()
    before = broker.now()
    broker.clock.reboot(0.0)
    broker.crash()
    assert before - 1.3 <= broker.now() <= before
    broker.close()


def test_a_store_without_clock_records_starts_from_the_wall_clock(case: Case) -> None:
    broker = case.broker
    broker.store._db.execute("DELETE FROM meta WHERE key = 'clock'")
    broker.crash()
    assert broker.now() == broker.clock.now()
    case.check_kept()


# Random steps


class AnyClock(RuleBasedStateMachine):
    """Whatever the clocks do, ended ids are refused in the dedupe window, and failed jobs stay."""

    @initialize()
    def begin(self) -> None:
        self.path = Path(tempfile.mkdtemp(dir=SWIFT))
        self.broker = Clocked(self.path)
        self.failed = self.broker.new_id()
        self.broker.run(self.failed, OutcomeKind.FAILED)
        self.ended: dict[str, float] = {}
        self.random = random.Random(1)

    @rule(n=st.integers(1, 3))
    def run_jobs(self, n: int) -> None:
        for _ in range(n):
            job_id = self.broker.new_id()
            if job_id not in self.ended:
                self.broker.run(job_id)
                self.ended[job_id] = self.broker.now()

    @rule(seconds=st.sampled_from([1.0, 100.0, 1000.0, 4000.0, 30_000.0]))
    def wait(self, seconds: float) -> None:
        self.broker.go(seconds, every=max(1.0, seconds / 20))

    @rule(step=st.sampled_from([*STEPS, -2 * DAY, -400 * DAY, YEAR, 7200.0, -7200.0, 30.0]))
    def set_clock(self, step: float) -> None:
        self.broker.clock.set_now(self.broker.clock.now() + step)

    @rule(off=st.sampled_from([None, 0.0, 60.0, DAY, WEEK]))
    def restart(self, off: float | None) -> None:
        self.broker.store.close()
        if off is not None:
            self.broker.clock.reboot(off)
        self.broker.start()

    @rule()
    def submit_again(self) -> None:
        now = self.broker.now()
        recent = [job_id for job_id, at in self.ended.items() if now - at < DAY - 60]
        for job_id in self.random.sample(recent, min(3, len(recent))):
            assert self.broker.is_refused(job_id), job_id

    @invariant()
    def the_failed_job_is_kept(self) -> None:
        if self.broker.now() < 1_800_000_000.0 + 29 * DAY:
            assert self.broker.state_of(self.failed) == "failed"

    def teardown(self) -> None:
        if hasattr(self, "broker"):
            self.broker.close()
            shutil.rmtree(self.path)


TestAnyClock = AnyClock.TestCase
TestAnyClock.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
