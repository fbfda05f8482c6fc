"""Planted faults: bugs that are patched into the code, each with a test that must fail then.

Each fault is what a careless change might do to one guarantee, and names the test that guards it. A
test that passes although its fault is planted guards nothing. To add one, write a row in `FAULTS`
with the patch and the test. ``python -m tests.faults.planted [NAME...]`` prints the outcome of the
test of each fault; ``test_planted.py`` checks that all of them failed.

Faults are planted in one process, so tests that start other processes do not notice them. Faults
that show only in an unlucky order of events are in `tests.simulation.teeth`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import sys
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import pytest

from eventmq import timekeeping
from eventmq.broker.admission import Admission
from eventmq.broker.core import BrokerCore
from eventmq.broker.grants import Grant
from eventmq.broker.graphs import GraphTracker
from eventmq.broker.limiters import Limiter, Limiters
from eventmq.broker.maintenance import Retention
from eventmq.broker.outcomes import Outcomes
from eventmq.broker.suspects import Suspects
from eventmq.client import machine
from eventmq.engine import CannotUndo, Engine, engine, rows
from eventmq.engine.listings import _Budget
from eventmq.engine.rows import Tables
from eventmq.errors import QueueFull
from eventmq.job import id_time
from eventmq.plugins.queue_stores.sqlite import store, wal
from eventmq.plugins.queue_stores.sqlite.disk import DataDirectory, OpenedFiles
from eventmq.scheduler.machine import SchedulerMachine
from eventmq.scheduler.runner import GuardedClock
from eventmq.store import events
from eventmq.timekeeping import ClockRecord, StoreTime, Timekeeper
from eventmq.wire.owner import ACTIVE, Owners
from eventmq.worker.manager import JobManager
from eventmq.worker.session import WorkerSession
from eventmq_contrib.dashboard import User, guard
from eventmq_contrib.journal import inspection
from eventmq_contrib.journal.catalog import Catalog
from eventmq_contrib.journal.seals import SealLog
from eventmq_contrib.outbox import database
from eventmq_contrib.outbox.relay import Relay
from tests.simulation.teeth import BUGS, bug

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

__all__ = ["FAULTS", "Fault", "outcome"]


#: Warning of pytest, which runs inside a program that has imported modules with assertions.
_IMPORTED = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"


class Fault(NamedTuple):
    """A fault, and the test that must fail while it is planted.

    Attributes:
        plant: Returns a context manager that plants the fault.
        file: File of the test, with its class if it has one.
        test: Name of the test.
    """

    plant: Callable[[], AbstractContextManager[Any]]
    file: str
    test: str


# Patches


def _hasty_answer(original: Any) -> Any:
    """Acknowledge the answer of a worker before its commit."""

    def write(self: Outcomes, answers: Any, acknowledge: Callable[[], None]) -> None:
        acknowledge()
        original(self, answers, lambda: None)

    return write


def _recovered(**changes: Any) -> Callable[[Any], Any]:
    """Change the state that a broker recovers from its store."""

    def wrap(original: Any) -> Any:
        def recover(self: BrokerCore, recovered: Any, *rest: Any) -> None:
            original(self, dataclasses.replace(recovered, **changes), *rest)

        return recover

    return wrap


def _with_reconnect_timeout(seconds: float) -> Callable[[Any], Any]:
    """Set the seconds that a restarted broker waits for the sessions of its leases."""

    def wrap(original: Any) -> Any:
        def run(self: BrokerCore, recovered: Any) -> None:
            original(self, recovered)
            for session in self.state.sessions.values():
                session.reconnect_timeout = seconds

        return run

    return wrap


def _content(original: Any) -> Any:
    """Prune failed jobs by age only after another one has failed."""

    def init(self: Retention, state: Any) -> None:
        original(self, state)
        self._failed_count, self._prune_at = 0, float("inf")

    return init


def _by_the_wall(original: Any) -> Any:
    """Replace store time by the wall clock."""

    def advance(self: StoreTime, wall: float, boot: float) -> float:
        original(self, wall, boot)
        self.now = wall
        return 0.0

    return advance


def _takes_nothing_back(original: Any) -> Any:
    """Count the time off by the clock of the start, although that clock was corrected since."""

    def advance(self: StoreTime, wall: float, boot: float) -> float:
        seconds: float = original(self, self._begin + boot, boot)
        self.unconfirmed = self._initial_unconfirmed
        return seconds

    return advance


def _later_of_both(_: Any) -> Any:
    return lambda self, wall: max(0.0, wall - max(self.wall, self.guarded))


def _as_it_is(_: Any) -> Any:
    return lambda _self, at: at


def _looks_once(original: Any) -> Any:
    def init(self: Engine, *arguments: Any, **more: Any) -> None:
        original(self, *arguments, **more)
        self._scan_every = float("inf")

    return init


def _by_id_time(_: Any) -> Any:
    """Skip outcomes that are older, by store time, than the wall time in an id."""

    def periods_of(self: Tables, job_id: str) -> list[str]:
        oldest = int(((id_time(job_id) or 0.0) - 86_400.0) // self.period_seconds)
        return [name for period, name in reversed(self.periods.items()) if period >= oldest]

    return periods_of


def _no_eta(original: Any) -> Any:
    def maker(self: Admission, *arguments: Any) -> Any:
        make_job = original(self, *arguments)

        def make_so(*more: Any) -> Any:
            job = make_job(*more)
            job.eta = 0.0
            return job

        return make_so

    return maker


def _unguarded(_: Any) -> Any:
    return lambda self: self._clock.now()


def _weightless(original: Any) -> Any:
    """Count no bytes for failed jobs from before a restart."""

    def reload(self: Tables) -> None:
        original(self)
        self.failed_bytes = self._stored_bytes = 0

    return reload


def _without_past(original: Any) -> Any:
    """Lose at a restart which jobs have ended."""

    def init(self: Tables, *arguments: Any) -> None:
        original(self, *arguments)
        self.periods = {}

    return init


@contextlib.contextmanager
def _outcomes_stay() -> Iterator[None]:
    """Delete only outcomes of jobs that ended since the start."""
    init, drop = Tables.__init__, Tables.drop_periods_before

    def begin(self: Any, *arguments: Any) -> None:
        init(self, *arguments)
        _kept[id(self)] = list(self.periods)

    def drop_new(self: Any, at: float) -> float:
        old_periods = _kept.get(id(self), [])
        all_periods = self.periods
        self.periods = {n: name for n, name in all_periods.items() if n not in old_periods}
        before = drop(self, at)
        remaining = {*old_periods, *self.periods}
        self.periods = {n: name for n, name in all_periods.items() if n in remaining}
        return before

    _kept: dict[int, list[int]] = {}
    with (
        patch.object(Tables, "__init__", begin),
        patch.object(Tables, "drop_periods_before", drop_new),
    ):
        yield


def _leased_now(original: Any) -> Any:
    """Let recovered leases start at the restart."""

    def run(self: BrokerCore, recovered: Any) -> None:
        original(self, recovered)
        for session in self.state.sessions.values():
            for lease in session.leases.values():
                lease.leased = self.state.now

    return run


def _unwaited(original: Any) -> Any:
    return lambda block, job, attempt, ready: original(block, job, attempt, 0.0)


def _always_full(original: Any) -> Any:
    return lambda self, error: QueueFull("the disk is full")


def _overlooked(original: Any) -> Any:
    """Run on although a commit could not be rolled back."""

    def undo(self: Engine, highest: str) -> None:
        with contextlib.suppress(CannotUndo):
            original(self, highest)

    return undo


def _nothing(original: Any) -> Any:
    return lambda self, *arguments, **more: None


def _not_recovered(original: Any) -> Any:
    """Do not count jobs that were started before a restart."""

    def leased(self: Limiters, *arguments: Any, recovered: bool = False, **more: Any) -> None:
        if not recovered:
            original(self, *arguments, **more)

    return leased


def _unlocked(original: Any) -> Any:
    """Lock the lock file only, not the database."""

    def lock(self: DataDirectory, *, make: bool) -> None:
        with patch.object(DataDirectory, "_take_lock", lambda *_: None):
            original(self, make=make)

    return lock


_SCHEDULER = "tests/unit/scheduler/test_machine.py"
_WALL_CLOCK = "tests/faults/test_wall_clock.py"
_CORE = "tests/unit/broker/test_core.py"
_EVENTS = "tests/unit/broker/test_events.py"
_DIRECTORY = "tests/unit/plugins/queue_stores/test_data_directory.py"
_GRAPHS = "tests/unit/broker/test_graphs.py"
_INJECTED = "tests/faults/test_injected.py"
_LIMITS = "tests/unit/broker/test_limits.py"
_OPERATIONS = "tests/unit/broker/test_operations.py"
_QUEUE_LIMITS = "tests/unit/broker/test_queue_limits.py"
_SUSPECTS = "tests/unit/broker/test_suspects.py"
_STORE = "tests/contracts/test_queue_stores.py::TestSqlite"

#: Description of a fault -> its patch, and the test that must fail.
FAULTS: dict[str, Fault] = {
    # Leases, and sessions that a restarted broker waits for
    "an answer to a revoked lease counts": Fault(
        BUGS["an answer to a revoked lease counts"], _CORE,
        "test_a_reply_of_a_revoked_session_changes_nothing_of_the_job_that_another_has",
    ),
    "a restarted broker waits for no session": Fault(
        bug(BrokerCore, "_load", _with_reconnect_timeout(1e-9)), _CORE,
        "test_after_a_restart_leased_jobs_wait_for_their_session",
    ),
    "a restarted broker waits for a session for ever": Fault(
        bug(BrokerCore, "_load", _with_reconnect_timeout(1e9)), _CORE,
        "test_after_a_restart_jobs_of_a_session_that_stays_away_are_dispatched",
    ),
    # Acknowledgements
    "a receipt leaves before the commit": Fault(
        BUGS["the receipt leaves before the commit"], _CORE,
        "test_a_receipt_comes_after_the_commit_and_only_then",
    ),
    "the answer of a worker is acknowledged before the commit": Fault(
        bug(Outcomes, "_write_and_close", _hasty_answer), _CORE,
        "test_a_worker_hears_that_its_answer_is_kept_after_the_commit_and_only_then",
    ),
    # The disk
    "a commit is not synced": Fault(
        lambda: patch.dict(store._SYNCHRONOUS, durable="NORMAL"), _INJECTED,
        "test_no_receipt_leaves_before_its_sync",
    ),
    "any error of the store is taken for a full disk": Fault(
        bug(store.SqliteStore, "_failure", _always_full), _INJECTED,
        "test_an_error_of_a_rare_call_ends_the_broker_too[sync]",
    ),
    "a commit that cannot be undone is not the last one": Fault(
        bug(Engine, "_undo", _overlooked),
        "tests/unit/plugins/queue_stores/test_errors.py",
        "test_a_commit_is_retried_only_if_the_first_was_undone",
    ),
    "no checksum is compared": Fault(
        lambda: patch.object(rows, "crc32", lambda data, begun=0: 0),
        "tests/faults/test_altered.py", "test_an_altered_job_fails_by_name_and_the_others_run",
    ),
    "a damaged store is opened": Fault(
        bug(store, "check_quickly", lambda _: lambda db, path: None),
        "tests/faults/test_quick_check.py", "test_a_store_with_a_damaged_page_is_refused",
    ),
    # The files of the store
    "receipts are given for a store that is gone": Fault(
        bug(OpenedFiles, "committed", _nothing), "tests/unit/plugins/queue_stores/test_opened.py",
        "test_a_commit_into_files_without_a_name_has_no_receipt",
    ),
    "a deleted lock lets a second broker in": Fault(
        bug(DataDirectory, "_lock_database", _unlocked), _DIRECTORY,
        "test_a_deleted_lock_lets_no_other_broker_in",
    ),
    "the ballast stays at a start on a full disk": Fault(
        bug(DataDirectory, "release_ballast", _nothing), _DIRECTORY,
        "test_a_start_on_a_full_disk_gives_the_ballast_back",
    ),
    "the log of a crash is not emptied": Fault(
        lambda: patch.object(wal, "checkpoint", lambda *_: False),
        "tests/unit/plugins/queue_stores/test_checkpoint.py",
        "test_a_log_that_a_crash_left_is_emptied_by_the_next_start",
    ),
    # Retention
    "failed jobs from before a restart are never too old": Fault(
        bug(Retention, "__init__", _content), _OPERATIONS,
        "test_the_age_of_failed_jobs_is_looked_at_after_a_restart",
    ),
    "failed jobs from before a restart have no bytes": Fault(
        bug(Tables, "reload", _weightless), _OPERATIONS,
        "test_the_bytes_of_failed_jobs_count_after_a_restart",
    ),
    "a restart forgets which jobs have ended": Fault(
        bug(Tables, "__init__", _without_past), _CORE,
        "test_the_id_of_a_finished_job_is_refused_within_the_dedupe_window",
    ),
    "outcomes from before a restart stay for ever": Fault(
        _outcomes_stay, _STORE,
        "test_an_id_that_ended_before_a_restart_is_forgotten_too",
    ),
    # Limits
    "a restart fills the token buckets of tasks": Fault(
        bug(Limiters, "recover", _nothing), _LIMITS, "test_a_restart_keeps_what_is_left_of_a_rate",
    ),
    "a restart fills the token buckets of queues": Fault(
        bug(Limiter, "restore", _nothing), _QUEUE_LIMITS,
        "test_a_restart_keeps_what_is_left_of_the_rate_and_what_runs",
    ),
    "a restart forgets what runs under a limit": Fault(
        bug(Limiters, "leased", _not_recovered), _LIMITS, "test_a_restart_keeps_what_runs",
    ),
    # Suspects
    "a death is charged to no job": Fault(
        bug(Suspects, "proves", lambda _: lambda self, job, death: False), _SUSPECTS,
        "test_the_only_job_of_a_dead_worker_is_charged_and_fails_the_third_time",
    ),
    "a death is charged to all jobs that had started": Fault(
        bug(Suspects, "proves", lambda _: lambda self, job, death: True), _SUSPECTS,
        "test_what_had_begun_beside_a_killer_travels_alone_and_is_not_counted",
    ),
    # Graphs
    "a graph has no deadline": Fault(
        bug(GraphTracker, "tick", _nothing), _GRAPHS,
        "test_a_member_that_never_ends_is_cancelled_at_the_deadline",
    ),
    "a restart forgets the deadlines of graphs": Fault(
        bug(BrokerCore, "recover", _recovered(next_deadline=None)), _GRAPHS,
        "test_a_member_that_never_ends_is_cancelled_at_the_deadline",
    ),
    # Events
    "the wait of a failed attempt is not recorded": Fault(
        bug(events, "_put_attempt", _unwaited), _EVENTS,
        "test_each_attempt_waits_from_when_it_was_ready",
    ),
    "a lease begins anew when a broker is restarted": Fault(
        bug(BrokerCore, "_load", _leased_now), _EVENTS,
        "test_a_lease_began_when_it_was_given_whatever_broker_hears_of_its_end",
    ),
}  # fmt: skip


#: Faults of `eventmq.timekeeping`, with tests in `_WALL_CLOCK`.
_CLOCKS = {
    "store time is the wall clock": (
        bug(StoreTime, "advance", _by_the_wall),
        "test_a_step_for_some_seconds_changes_nothing",
    ),
    "a step of the wall clock counts at once": (
        lambda: patch.object(timekeeping, "SETTLED", 0.0),
        "test_a_job_expires_by_guarded_wall_time",
    ),
    "all of the time that a machine was off counts at once": (
        lambda: patch.object(timekeeping, "AT_ONCE", float("inf")),
        "test_a_clock_that_is_set_while_the_broker_is_down",
    ),
    "a clock that is put back takes nothing back": (
        bug(StoreTime, "advance", _takes_nothing_back),
        "test_a_clock_that_is_set_while_the_broker_is_down",
    ),
    "the id above which no look-up is needed is never computed again": (
        bug(Engine, "__init__", _looks_once),
        "test_a_clock_a_year_ahead_for_good_does_not_readmit_earlier_ids",
    ),
    "the look-up for duplicates uses the time in an id": (
        bug(Tables, "periods_of", _by_id_time),
        "test_a_machine_that_was_off_for_a_week_counts_an_hour_first",
    ),
    "time that is added at once is taken for silence": (
        bug(BrokerCore, "shift", _nothing), "test_added_time_loses_no_worker",
    ),
    "a step that did not count yet is time that has passed": (
        bug(ClockRecord, "passed", _later_of_both),
        "test_a_power_failure_beside_a_step_loses_no_time_off_and_counts_none_twice",
    ),
    "what is younger than the machine's start is forgotten with what is older": (
        bug(Timekeeper, "before", _as_it_is),
        "test_jobs_from_after_the_start_do_not_age_by_the_time_off",
    ),
    "results made since the machine's start are gone when its time off counts": (
        bug(Timekeeper, "spared", lambda _: lambda *_: 0.0),
        "test_jobs_from_after_the_start_do_not_age_by_the_time_off",
    ),
    "waits that began since the machine's start end when its time off counts": (
        lambda: patch.object(engine, "move_waits", lambda *_: None),
        "test_jobs_from_after_the_start_do_not_age_by_the_time_off",
    ),
    "tokens come for time that a machine was off before they were taken": (
        bug(Limiters, "shift", _nothing),
        "test_jobs_from_after_the_start_do_not_age_by_the_time_off",
    ),
    "waits for a wall time are waits of store time": (
        bug(Admission, "_job_factory", _no_eta),
        "test_a_lasting_step_moves_only_jobs_with_a_unix_time",
    ),
}  # fmt: skip
FAULTS |= {name: Fault(plant, _WALL_CLOCK, test) for name, (plant, test) in _CLOCKS.items()}
FAULTS |= {
    "a beat follows the wall clock": Fault(
        bug(GuardedClock, "now", _unguarded), _SCHEDULER,
        "test_a_clock_that_steps_for_some_seconds_fires_nothing_and_stops_nothing",
    ),
    "a schedule that has fired for later fire times waits for them": Fault(
        bug(SchedulerMachine, "clock_set_back", _nothing), _SCHEDULER,
        "test_a_clock_put_back_an_hour_fires_no_fire_time_twice_and_stops_nothing",
    ),
    "a beat does not ask for the broker's time": Fault(
        bug(GuardedClock, "expect", _nothing), _SCHEDULER,
        "test_a_beat_whose_clock_is_a_day_ahead_goes_by_the_brokers_for_ten_minutes",
    ),
}  # fmt: skip

FAULTS |= {
    # Brokers that share a store
    "chunks of an earlier owner are started": Fault(
        bug(JobManager, "_is_from_old_owner", lambda _: lambda self, epoch: False),
        "tests/unit/worker/test_owner.py", "test_a_chunk_of_a_lower_epoch_is_ignored",
    ),
    "any broker that says so is the owner": Fault(
        bug(Owners, "owns", lambda _: lambda self, info: info is None or info.role == ACTIVE),
        "tests/unit/client/test_owners.py", "test_a_lower_epoch_is_not_followed",
    ),
    "an owner is trusted without its key": Fault(
        bug(machine, "untrusted", lambda _: lambda keys, key: ""),
        "tests/unit/client/test_owners.py",
        "test_an_owner_that_is_not_trusted_is_not_connected_to",
    ),
    "answers that no owner takes are dropped": Fault(
        bug(WorkerSession, "receive_error", lambda original: lambda self, error, now: original(
            self, error._replace(code="bad-message"), now)),
        "tests/unit/worker/test_owner.py",
        "test_an_answer_that_is_refused_without_an_owner_is_kept",
    ),
    # The journal and its audit
    "a sealed file is not in the seal log": Fault(
        bug(SealLog, "append", _nothing), "tests/contrib/journal/test_journal.py",
        "test_each_event_is_there_once_wherever_the_journal_is_killed",
    ),
    "a file is not compared with its seal": Fault(
        bug(inspection, "_altered", lambda _: lambda file, facts: iter(())),
        "tests/contrib/spark/test_damage.py", "test_the_files_show_each_damage",
    ),
    "a missing beginning is ignored": Fault(
        bug(Catalog, "check", _nothing), "tests/contrib/journal/test_compaction.py",
        "test_files_removed_by_hand_are_missing_until_they_are_declared_forgotten",
    ),
    "files that were compacted are not read": Fault(
        bug(Catalog, "current", lambda _: lambda self: list(self.own)),
        "tests/contrib/journal/test_compaction.py", "test_a_large_file_has_no_hole",
    ),
    # Listings and the dashboard
    "a page examines all jobs": Fault(
        bug(_Budget, "spend", lambda _: lambda self: False),
        "tests/unit/broker/test_reading.py",
        "test_a_page_ends_after_its_time_and_says_where_to_go_on",
    ),
    "a viewer is shown arguments": Fault(
        bug(Grant, "sees", lambda _: lambda self, name, *, arguments: True),
        "tests/unit/broker/test_grants.py",
        "test_a_viewer_sees_jobs_of_all_and_their_arguments_only_if_it_may",
    ),
    "a form of another site is executed": Fault(
        lambda: patch.object(guard, "_check_origin", lambda request: None),
        "tests/contrib/dashboard/test_guard.py", "test_a_form_of_another_origin_does_nothing",
    ),
    "whoever sees the dashboard may act": Fault(
        lambda: patch.object(User, "is_operator", property(lambda self: True)),
        "tests/contrib/dashboard/test_guard.py", "test_handlers_refuse_users_who_only_read",
    ),
    "a row of an outbox is deleted without a receipt": Fault(
        bug(Relay, "_submit", lambda real: lambda self, rows, ends: real(self, rows, {})),
        "tests/contrib/outbox/test_relay.py",
        "test_rows_wait_for_a_broker_that_is_away[sqlite]",
    ),
    "an old row of an outbox is sent again": Fault(
        bug(Relay, "_check", lambda _: lambda self, row: None),
        "tests/contrib/outbox/test_relay.py",
        "test_a_row_that_may_have_been_sent_before_the_window_is_kept_until_someone_decides"
        "[sqlite]",
    ),
    "a relay knows only when it sent a row last": Fault(
        lambda: patch.object(database, "_MARK", database._MARK.replace("COALESCE(sent, %s)", "%s")),
        "tests/contrib/outbox/test_relay.py",
        "test_a_row_that_may_have_been_sent_before_the_window_is_kept_until_someone_decides"
        "[sqlite]",
    ),
    "a row of an outbox overtakes another of its key": Fault(
        lambda: patch.object(database, "_CLAIM", database._CLAIM.partition(" AND\n")[0]),
        "tests/contrib/outbox/test_relay.py",
        "test_a_claimed_row_and_the_rest_of_its_key_are_for_one_relay[postgresql]",
    ),
}  # fmt: skip


class Watch:
    """Pytest plugin that records the outcome of each test, and the exception of a failed one."""

    def __init__(self) -> None:
        self.seen: dict[str, str] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Iterator[None]:
        report: Any = yield
        if report.when == "call" or report.outcome != "passed":
            self.seen.setdefault(item.nodeid, f"{report.when} {report.outcome} {_raised(call)}")
        return report


def _raised(call: pytest.CallInfo[None]) -> str:
    """Return the name of the exception of a test, "" for none; assertion errors have one name."""
    if call.excinfo is None:
        return ""
    asserted = call.excinfo.errisinstance(AssertionError)
    return AssertionError.__name__ if asserted else call.excinfo.typename


def outcome(name: str) -> str:
    """Plant a fault and return the outcome of its test, such as ``"call failed AssertionError"``.

    For a test with parameters it is the outcome of the first failure; "" if no test ran.
    """
    fault, watch = FAULTS[name], Watch()
    arguments = ["-qq", "--tb=no", "-p", "no:cacheprovider", "-W", _IMPORTED]
    with fault.plant(), contextlib.redirect_stdout(io.StringIO()):
        pytest.main([*arguments, f"{fault.file}::{fault.test}"], plugins=[watch])
    failed = [seen for seen in watch.seen.values() if "failed" in seen]
    return next(iter([*failed, *watch.seen.values()]), "")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or FAULTS:
        print(chosen, outcome(chosen), sep="\t", flush=True)
