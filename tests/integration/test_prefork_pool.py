"""The prefork pool with real processes: running jobs, withdrawn jobs, dying children."""

from __future__ import annotations

import math
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from eventmq.clock import SystemClock
from eventmq.errors import AppNotFound, PluginError
from eventmq.execution.processes import pool as pool_module
from eventmq.interfaces import PluginContext
from eventmq.job import OutcomeKind
from eventmq.plugins.pools.prefork import make_prefork_pool
from tests.support.worker_harness import OK, Driver, call, options, wait_for

NOOP = call("noop")


def make_pool(**values):
    return make_prefork_pool(PluginContext("prefork", options(**values), SystemClock()))


@pytest.fixture
def driver():
    pool = make_pool()
    pool.start()
    yield Driver(pool)
    pool.stop(0.0)
    pool.stop(0.0)


@pytest.fixture
def unflushed_driver(monkeypatch):
    """A driver whose children send no outcome before the end of a chunk, however slow they are."""
    for name in ("FLUSH_AFTER", "SHOW_AFTER"):
        monkeypatch.setattr(pool_module, name, math.inf)
    pool = make_pool(loader="tests.support.worker_harness:load_without_flush")
    pool.start()
    yield Driver(pool)
    pool.stop(0.0)


def run(driver, chunk, *calls, slot=0):
    driver.assign(chunk, *calls, slot=slot)
    return driver.until_answered(chunk, len(calls))


def pids_of(pool):
    """Return the process id of each slot, None where the child is not there yet."""
    return [slot.pid for slot in pool._slots]


def is_gone(pid):
    """Return whether a process has ended, reaped or not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
        return stat.rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


# What runs


def test_jobs_run_in_order_in_processes_of_their_own(driver):
    driver.assign(1, call("add", 1, 2), call("echo", "x"), call("pid"))
    driver.assign(2, call("pid"), slot=0)
    driver.assign(3, call("pid"), slot=1)
    assert driver.until_answered(1, 3)[:2] == [3, "x"]
    (same,), (other,) = driver.until_answered(2, 1), driver.until_answered(3, 1)
    assert driver.results(1)[2] == same
    assert len({same, other, os.getpid()}) == 3
    assert [row.position for row in driver.rows[1]] == [0, 1, 2]


def test_a_task_knows_its_job_and_coroutines_run(driver):
    assert run(driver, 1, call("whoami"), call("later")) == [
        ["j0", "whoami", "default", 1, 1],
        "later",
    ]


def test_large_payloads_and_results_pass_without_waiting(driver):
    """Ten chunks of 2 MB in a pipe of far less: `assign` returns, the rest follows."""
    text = "x" * 2_000_000
    for chunk in range(1, 11):
        driver.assign(chunk, call("echo", text), slot=0)
    driver.until(lambda: sum(map(len, driver.rows.values())) == 10)
    assert all(driver.results(chunk) == [text] for chunk in range(1, 11))


def test_many_jobs_in_many_chunks_are_each_answered_once(driver):
    for chunk in range(1, 101):
        driver.assign(chunk, *[call("echo", n) for n in range(50)], slot=chunk % 2)
    driver.until(lambda: sum(map(len, driver.rows.values())) == 5000)
    assert all(driver.results(chunk) == list(range(50)) for chunk in range(1, 101))


def test_outcomes_do_not_wait_for_a_long_neighbour(driver, tmp_path):
    release = tmp_path / "gate"
    driver.assign(1, *[NOOP] * 5, call("hold", str(release)), NOOP)
    driver.until_answered(1, 5)
    assert len(driver.rows[1]) == 5
    release.touch()
    driver.until_answered(1, 7)


def test_the_pool_reports_since_when_a_job_runs(driver, tmp_path):
    assert driver.pool.running(0) is None
    before = time.monotonic()
    release = tmp_path / "gate"
    driver.assign(1, call("hold", str(release)))
    driver.until(lambda: driver.pool.running(0) is not None)
    assert before <= driver.pool.running(0).since <= time.monotonic()
    assert driver.pool.running(1) is None
    release.touch()
    driver.until_answered(1, 1)
    driver.until(lambda: driver.pool.running(0) is None)


def test_a_task_that_forks_and_returns_twice_is_answered_once(driver):
    results = run(driver, 1, call("fork_and_return"), call("echo", 1), call("echo", 2))
    assert results[1:] == [1, 2]
    assert results[0] > 0, "the copy answers nothing"
    wait_for(lambda: is_gone(results[0]))
    assert run(driver, 2, call("echo", 3)) == [3]
    assert driver.deaths == []


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_whole_group_does_not_interrupt_a_job(driver, tmp_path, signum):
    """The manager alone acts on it, and lets running jobs end."""
    release = tmp_path / "gate"
    driver.assign(1, call("hold", str(release)))
    wait_for((tmp_path / "gate.runs").exists)
    os.kill(pids_of(driver.pool)[0], signum)
    release.touch()
    driver.until_answered(1, 1)
    assert driver.rows[1][0].kind == OK
    assert driver.deaths == []


# Withdrawal


def test_what_has_not_started_is_taken_back(driver, tmp_path):
    release = tmp_path / "gate"
    driver.assign(1, call("hold", str(release)), *[NOOP] * 9)
    driver.assign(2, *[NOOP] * 5)
    wait_for((tmp_path / "gate.runs").exists)
    assert driver.pool.take_back(0) == 14
    assert driver.pool.take_back(0) == 0
    driver.assign(3, call("echo", "later"))
    assert driver.pool.take_back(0) == 1
    driver.assign(4, call("echo", "last"))
    release.touch()
    assert driver.until_answered(4, 1) == ["last"]
    assert {chunk: len(rows) for chunk, rows in driver.rows.items()} == {1: 1, 4: 1}


def test_the_race_for_a_job_has_one_winner(driver):
    """Whenever it is taken back: a job is either answered or withdrawn, the last ones first."""
    dice = random.Random(1)
    for chunk in range(1, 301):
        count = dice.randrange(1, 200)
        driver.assign(chunk, *[NOOP] * count)
        for _ in range(dice.randrange(0, 3000)):
            pass
        withdrawn = driver.pool.take_back(0)
        assert driver.positions(chunk, count - withdrawn) == list(range(count - withdrawn))
    assert driver.deaths == []


# Deaths


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (call("leave", 7), "the process exited with status 7"),
        (call("leave", 0), "the process exited with status 0"),
        (call("shoot_self"), "the process was killed by SIGKILL"),
    ],
)
def test_a_death_names_the_job_that_ran_and_the_slot_goes_on(driver, task, reason):
    before = pids_of(driver.pool)
    driver.assign(4, NOOP, call("sleep", 0.02), task, NOOP)
    driver.until(lambda: driver.deaths)
    (death,) = driver.deaths
    assert (death.slot, death.chunk, death.position, death.reason) == (0, 4, 2, reason)
    assert [row.position for row in driver.rows[4]] == [0, 1], "outcomes before the death count"
    (new,) = run(driver, 5, call("pid"))
    assert new not in before
    assert run(driver, 6, call("pid"), slot=1) == [before[1]]


def test_an_idle_child_that_is_killed_is_charged_to_no_job(driver):
    run(driver, 1, NOOP)
    os.kill(pids_of(driver.pool)[0], signal.SIGKILL)
    driver.until(lambda: driver.deaths)
    assert (driver.deaths[0].chunk, driver.deaths[0].position) == (0, -1)
    assert run(driver, 2, call("echo", 1)) == [1]


def only_death(driver):
    driver.until(lambda: driver.deaths)
    (death,) = driver.deaths
    return death


def test_a_job_that_closes_the_pipes_is_named_although_it_had_returned(driver):
    driver.assign(4, NOOP, call("sleep", 0.02), call("close_all"), NOOP, NOOP)
    death = only_death(driver)
    assert (death.chunk, death.position, death.signal) == (4, 2, 0)
    assert "closed the pipes" in death.reason
    assert [row.position for row in driver.rows[4]] == [0, 1], "outcomes before the death count"
    assert death.started == 1
    assert run(driver, 5, call("echo", 1)) == [1]


def test_the_last_job_of_a_chunk_that_closes_the_pipes_is_named(unflushed_driver):
    unflushed_driver.assign(4, NOOP, call("sleep", 0.02), call("close_all"))
    death = only_death(unflushed_driver)
    assert (death.chunk, death.position, death.started) == (4, 2, 3)


def test_no_outcome_is_written_into_a_file_in_the_place_of_a_pipe(driver, tmp_path):
    paths = [str(tmp_path / str(n)) for n in range(50)]
    driver.assign(4, call("close_all", *paths), NOOP)
    assert (only_death(driver).chunk, only_death(driver).position) == (4, 0)
    sizes = {path.stat().st_size for path in map(Path, paths) if path.exists()}
    assert sizes == {0}  # where the job takes long the process ends before it has made all


def test_whoever_closes_only_the_pipe_of_results_is_named_if_nothing_else_had_begun(
    unflushed_driver,
):
    unflushed_driver.assign(4, call("close_results"))
    death = only_death(unflushed_driver)
    assert (death.chunk, death.position, death.started) == (4, 0, 1)
    unflushed_driver.deaths.clear()
    unflushed_driver.assign(5, NOOP, call("close_results"), NOOP)
    death = only_death(unflushed_driver)
    assert (death.chunk, death.position, death.started) == (0, -1, 3), "it can be any of them"


@pytest.mark.parametrize("status", [0, 9])
def test_a_child_that_ends_before_its_answer_reports_how_many_jobs_had_started(
    unflushed_driver, status
):
    unflushed_driver.assign(4, call("sleep", 0.02), call("end_before_the_answer", status), NOOP)
    unflushed_driver.assign(5, NOOP)
    death = only_death(unflushed_driver)
    assert (death.chunk, death.position, death.started) == (0, -1, 3)
    unflushed_driver.deaths.clear()
    unflushed_driver.assign(6, call("end_before_the_answer", status))
    assert only_death(unflushed_driver).started == 1


def test_jobs_never_end_the_pool_however_often_they_end_their_process(driver):
    """More often in a row than children without jobs may fail."""
    for chunk in range(1, pool_module.MAX_EARLY_DEATHS + 3):
        driver.assign(chunk, call("end_before_the_answer", 1))
        assert only_death(driver).started == 1
        driver.deaths.clear()
    assert run(driver, 100, call("echo", 1)) == [1]


def test_a_child_that_is_stopped_is_killed_and_its_job_named(driver):
    driver.assign(4, NOOP, call("stop_self"))
    death = only_death(driver)
    assert (death.chunk, death.position, death.signal) == (4, 1, signal.SIGKILL)
    assert "stopped for" in death.reason
    assert run(driver, 5, call("echo", 1)) == [1]


def test_a_child_that_is_stopped_and_goes_on_is_left_alone(driver, tmp_path):
    """As by Ctrl-Z and `fg`."""
    release = tmp_path / "gate"
    driver.assign(1, call("hold", str(release)))
    wait_for((tmp_path / "gate.runs").exists)
    for _ in range(3):
        os.kill(pids_of(driver.pool)[0], signal.SIGSTOP)
        wait_for(lambda: stopped(pids_of(driver.pool)[0]))
        os.kill(pids_of(driver.pool)[0], signal.SIGCONT)
        wait_for(lambda: not stopped(pids_of(driver.pool)[0]))
    release.touch()
    driver.until_answered(1, 1)
    assert driver.deaths == []


def stopped(pid):
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    return stat.rpartition(")")[2].split()[0] == "T"


def test_a_lost_fork_server_names_no_job_where_several_ran(driver, tmp_path):
    driver.until(lambda: all(pids_of(driver.pool)))
    for slot in (0, 1):
        driver.assign(slot + 1, call("hold", str(tmp_path / f"never{slot}")), NOOP, slot=slot)
        wait_for((tmp_path / f"never{slot}.runs").exists)
    pid = str(pids_of(driver.pool)[0])
    os.kill(int(subprocess.check_output(["ps", "-o", "ppid=", "-p", pid])), signal.SIGKILL)
    driver.until(lambda: len(driver.deaths) == 2)
    assert {(d.chunk, d.started, d.shared_cause) for d in driver.deaths} == {
        (1, 1, True),
        (2, 1, True),
    }


def test_chunks_of_a_dead_child_do_not_run_in_the_next(driver):
    driver.assign(1, call("leave", 1))
    driver.assign(2, *[NOOP] * 10)
    driver.until(lambda: driver.deaths)
    assert run(driver, 3, call("echo", 1)) == [1]
    assert 2 not in driver.rows


def test_a_killed_fork_server_is_replaced_with_its_children(driver, tmp_path):
    driver.until(lambda: all(pids_of(driver.pool)))
    old = pids_of(driver.pool)
    driver.assign(1, call("hold", str(tmp_path / "never")))
    wait_for((tmp_path / "never.runs").exists)
    parent = int(subprocess.check_output(["ps", "-o", "ppid=", "-p", str(old[0])]))
    assert parent != os.getpid()
    os.kill(parent, signal.SIGKILL)
    driver.until(lambda: len(driver.deaths) == 2)
    assert {(d.slot, d.chunk, d.position) for d in driver.deaths} == {(0, 1, 0), (1, 0, -1)}
    wait_for(lambda: all(map(is_gone, old)))
    assert run(driver, 2, call("echo", 1)) == [1]
    assert run(driver, 3, call("echo", 2), slot=1) == [2]


def test_children_end_with_their_manager(tmp_path):
    """kill -9 of the manager while a child sleeps: no process is left with stdout open."""
    program = (
        "import sys, time\n"
        "from eventmq.execution.processes.pool import ProcessPool\n"
        "from tests.support.worker_harness import call, make_chunk\n"
        "load = 'tests.support.worker_harness:load'\n"
        "pool = ProcessPool(concurrency=2, loader=load, arguments={})\n"
        "pool.start()\n"
        "pool.assign(0, 1, *make_chunk(call('hold', sys.argv[1]), call('noop')))\n"
        "while not all(s.pid for s in pool._slots): pool.poll()\n"
        "print(*[s.pid for s in pool._slots], flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "never")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as manager:
        pids = [int(pid) for pid in manager.stdout.readline().split()]
        wait_for((tmp_path / "never.runs").exists)
        manager.kill()
        manager.wait()
        assert select.select([manager.stdout], [], [], 10.0)[0], "some process still has it open"
        assert manager.stdout.read() == ""
    wait_for(lambda: all(map(is_gone, pids)))


# Stopping


def test_blocking_code_is_cancelled_at_once_and_its_process_replaced(driver, tmp_path):
    before = pids_of(driver.pool)
    driver.assign(1, call("hold", str(tmp_path / "never")), NOOP)
    wait_for((tmp_path / "never.runs").exists)
    driver.pool.interrupt(0, 1, 0)
    driver.until(lambda: driver.deaths)
    (death,) = driver.deaths
    assert [row.kind for row in driver.rows[1]] == [OutcomeKind.CANCELLED]
    assert (death.chunk, death.position, death.signal) == (0, -1, 0), "it ended by itself"
    assert run(driver, 2, call("pid")) != before[:1]


def test_a_task_that_swallows_the_cancel_is_killed_as_the_manager_wants(driver, tmp_path):
    driver.assign(1, call("stubborn", str(tmp_path / "runs")))
    wait_for((tmp_path / "runs").exists)
    driver.pool.interrupt(0, 1, 0)
    wait_for((tmp_path / "runs.interrupted").exists)
    assert driver.deaths == []
    driver.pool.kill(0)
    driver.until(lambda: driver.deaths)
    assert (driver.deaths[0].position, driver.deaths[0].signal) == (0, signal.SIGKILL)
    assert driver.deaths[0].peak > 1 << 20
    assert run(driver, 2, call("echo", 1)) == [1]


def test_a_child_is_killed_before_its_process_id_is_known(driver):
    driver.pool.kill(0)
    driver.until(lambda: driver.deaths)
    driver.pool.kill(0)
    driver.pool.kill(0)
    driver.until(lambda: len(driver.deaths) == 2)
    assert run(driver, 2, call("echo", 1)) == [1]


def test_a_signal_to_the_group_cancels_no_job_that_was_not_cancelled(driver, tmp_path):
    """Nor one that runs after another job of its process was."""
    release = tmp_path / "gate"
    driver.assign(1, call("hold", str(release)))
    wait_for((tmp_path / "gate.runs").exists)
    driver.pool.interrupt(0, 1, 1)
    driver.pool.interrupt(0, 2, 0)
    os.kill(pids_of(driver.pool)[0], signal.SIGTERM)
    release.touch()
    driver.until_answered(1, 1)
    assert driver.rows[1][0].kind == OK


def test_a_soft_limit_that_passes_after_the_call_has_no_effect(driver):
    text, payload = call("echo", 1, headers="soft-limit:0.1")
    for chunk in range(1, 11):
        driver.assign(chunk, (text, payload), call("sleep", 0.12))
    driver.until(lambda: sum(map(len, driver.rows.values())) == 20)
    assert {row.kind for rows in driver.rows.values() for row in rows} == {OK}
    assert driver.deaths == []


# How many there are


def test_children_come_and_go_with_the_number_of_slots_in_use():
    pool = make_pool(concurrency=3, initial=1)
    pool.start()
    try:
        driver = Driver(pool)
        assert [pid is not None for pid in pids_of(pool)] == [True, False, False]
        pool.scale(3)
        driver.until(lambda: all(pids_of(pool)))
        for slot in range(3):
            assert run(driver, slot + 1, call("pid"), slot=slot) == [pids_of(pool)[slot]]
        first = pids_of(pool)
        pool.scale(1)
        driver.until(lambda: pids_of(pool) == [first[0], None, None])
        pool.scale(2)
        pool.scale(1)
        pool.scale(3)
        driver.until(lambda: all(pids_of(pool)))
        assert run(driver, 9, call("echo", 1), slot=2) == [1]
        assert driver.deaths == [], "no job was lost"
    finally:
        pool.stop(0.0)


# Recycling


@pytest.mark.parametrize("option", ["max_jobs_per_child", "max_memory_per_child"])
def test_a_worn_child_is_replaced_between_two_jobs(option):
    pool = make_pool(concurrency=1, **{option: 1 if "memory" in option else 3})
    pool.start()
    try:
        driver = Driver(pool)
        driver.assign(1, *[call("pid")] * 5)
        driver.assign(2, *[call("pid")] * 2)
        pids = driver.until_answered(1, 5) + driver.until_answered(2, 2)
        served = 1 if "memory" in option else 3
        assert [pids.count(pid) for pid in dict.fromkeys(pids)] == (
            [1] * 7 if served == 1 else [3, 3, 1]
        )
        assert driver.positions(1, 5) == list(range(5))
        assert driver.deaths == [], "nothing was lost: the next process got the rest"
    finally:
        pool.stop(0.0)


def test_what_a_worn_child_left_can_be_taken_back(tmp_path):
    pool = make_pool(concurrency=1, max_jobs_per_child=1)
    pool.start()
    try:
        driver = Driver(pool)
        release = tmp_path / "gate"
        driver.assign(1, NOOP, call("hold", str(release)), NOOP, NOOP)
        driver.assign(2, NOOP)
        wait_for(lambda: driver.poll() or (tmp_path / "gate.runs").exists())
        assert pool.take_back(0) == 3
        driver.assign(3, call("echo", 1), NOOP)
        release.touch()
        assert driver.until_answered(3, 2) == [1, None]
        assert driver.positions(1, 2) == [0, 1]
        assert 2 not in driver.rows
    finally:
        pool.stop(0.0)


def test_a_worn_child_that_dies_takes_with_it_what_it_was_given():
    pool = make_pool(concurrency=1, max_jobs_per_child=2)
    pool.start()
    try:
        driver = Driver(pool)
        driver.assign(1, NOOP, NOOP, NOOP, call("leave", 3), NOOP)
        driver.until(lambda: driver.deaths)
        assert (driver.deaths[0].chunk, driver.deaths[0].position) == (1, 3)
        assert driver.positions(1, 2)[:2] == [0, 1]
        driver.assign(2, NOOP)
        driver.until_answered(2, 1)
    finally:
        pool.stop(0.0)


def test_the_memory_of_a_busy_child_is_known_when_it_dies(tmp_path, monkeypatch):
    monkeypatch.setattr("eventmq.execution.processes.pool.MEASURE_MEMORY_EVERY", 0.01)
    pool = make_pool(concurrency=1)
    pool.start()
    try:
        driver = Driver(pool)
        driver.assign(1, call("hold", str(tmp_path / "never")))
        wait_for((tmp_path / "never.runs").exists)
        driver.poll(0.02)
        driver.poll(0.02)
        pool.kill(0)
        driver.until(lambda: driver.deaths)
        assert driver.deaths[0].rss > 1 << 20
    finally:
        pool.stop(0.0)


# Start and stop


@pytest.mark.parametrize(
    ("fail", "error", "text"),
    [
        ("app", AppNotFound, "module shop has no attribute app"),
        ("import", PluginError, "ModuleNotFoundError: No module named 'module_that_is_not_there'"),
        ("exit", PluginError, "status 3"),
    ],
)
def test_an_app_that_cannot_be_loaded_is_one_clear_error(fail, error, text):
    pool = make_pool(arguments={"fail": fail})
    with pytest.raises(error, match=text):
        pool.start()
    pool.stop(0.0)
    assert pool.poll() == []


def test_an_app_that_loads_for_ever_is_an_error_too():
    pool = make_pool(loader="time:sleep", arguments={}, start_timeout=0.01)
    with pytest.raises(PluginError, match=r"not loaded within 0\.01 s"):
        pool.start()


def test_children_that_cannot_live_end_the_worker_with_one_error(monkeypatch):
    monkeypatch.setattr(pool_module, "MAX_EARLY_DEATHS", 2)
    pool = make_pool(loader="tests.support.worker_harness:load_stillborn")
    pool.start()
    with pytest.raises(PluginError, match="as soon as they are started"):
        Driver(pool).until(lambda: False)
    pool.stop(0.0)


def test_a_loader_that_returns_something_else_is_named():
    with pytest.raises(PluginError, match="os:getcwd returns no Executor"):
        make_pool(loader="os:getcwd").start()


@pytest.mark.parametrize(
    "values",
    [
        {"concurrency": 0},
        {"loader": ""},
        {"start_timeout": "soon"},
        {"start_timeout": 0},
        {"x": 1},
        {"max_jobs_per_child": -1},
        {"max_memory_per_child": "much"},
    ],
)
def test_wrong_options_are_refused(values):
    with pytest.raises(PluginError):
        make_pool(**values)


def test_stop_lets_a_running_job_end_and_keeps_its_outcome(tmp_path):
    pool = make_pool()
    pool.start()
    driver = Driver(pool)
    driver.assign(1, call("hold", str(tmp_path / "gate")), NOOP)
    wait_for((tmp_path / "gate.runs").exists)
    opener = threading.Timer(0.1, (tmp_path / "gate").touch)
    opener.start()
    pool.stop(10.0)
    opener.join()
    driver.take(pool.poll())
    assert [row.kind for row in driver.rows[1]] == [OK]


def test_stop_kills_after_the_grace(tmp_path):
    pool = make_pool()
    pool.start()
    driver = Driver(pool)
    driver.assign(1, NOOP, call("hold", str(tmp_path / "never")))
    wait_for((tmp_path / "never.runs").exists)
    pids = pids_of(pool)
    began = time.monotonic()
    pool.stop(0.1)
    assert time.monotonic() - began < 5.0
    assert all(map(is_gone, filter(None, pids)))
    driver.take(pool.poll())
    assert driver.deaths == []


def test_a_pool_leaves_no_descriptor_open():
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(AppNotFound):
        make_pool(arguments={"fail": "app"}).start()
    pool = make_pool()
    pool.start()
    driver = Driver(pool)
    driver.assign(1, call("leave", 1))
    driver.until(lambda: driver.deaths)
    pool.stop(1.0)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
