"""The threads pool: the same contract without processes."""

from __future__ import annotations

import random
import threading

import pytest

from eventmq.clock import SystemClock
from eventmq.errors import PluginError
from eventmq.interfaces import PluginContext
from eventmq.plugins.pools.threads import make_threads_pool
from tests.support.worker_harness import OK, Driver, call, load, options, wait_for

NOOP = call("noop")


def make_pool(**values):
    values = {"executor": load(), **values}
    return make_threads_pool(PluginContext("threads", options(**values), SystemClock()))


@pytest.fixture
def driver():
    pool = make_pool()
    pool.start()
    yield Driver(pool)
    pool.stop(5.0)
    pool.stop(5.0)


def test_jobs_run_in_order(driver):
    driver.assign(1, call("add", 1, 2), call("whoami"), call("later"))
    driver.assign(2, call("echo", 1), slot=1)
    assert driver.until_answered(1, 3) == [3, ["j1", "whoami", "default", 1, 1], "later"]
    assert driver.until_answered(2, 1) == [1]


def test_many_jobs_are_each_answered_once(driver):
    for chunk in range(1, 41):
        driver.assign(chunk, *[call("echo", n) for n in range(50)], slot=chunk % 2)
    driver.until(lambda: sum(map(len, driver.rows.values())) == 2000)
    assert all(driver.results(chunk) == list(range(50)) for chunk in range(1, 41))


def test_outcomes_do_not_wait_for_a_long_neighbour(driver, tmp_path):
    release = tmp_path / "gate"
    driver.assign(1, *[NOOP] * 5, call("hold", str(release)))
    driver.until_answered(1, 5)
    assert driver.pool.running(0) is not None
    release.touch()
    driver.until_answered(1, 6)
    driver.until(lambda: driver.pool.running(0) is None)


def test_what_has_not_started_is_taken_back(driver, tmp_path):
    release = tmp_path / "gate"
    driver.assign(1, call("hold", str(release)), *[NOOP] * 9)
    driver.assign(2, *[NOOP] * 5)
    wait_for((tmp_path / "gate.runs").exists)
    assert driver.pool.take_back(0) == 14
    driver.assign(3, call("echo", "last"))
    release.touch()
    assert driver.until_answered(3, 1) == ["last"]
    assert {chunk: len(rows) for chunk, rows in driver.rows.items()} == {1: 1, 3: 1}


def test_the_race_for_a_job_has_one_winner(driver):
    dice = random.Random(1)
    for chunk in range(1, 101):
        count = dice.randrange(1, 200)
        driver.assign(chunk, *[NOOP] * count)
        for _ in range(dice.randrange(0, 3000)):
            pass
        withdrawn = driver.pool.take_back(0)
        assert driver.positions(chunk, count - withdrawn) == list(range(count - withdrawn))


def test_a_task_that_would_end_the_process_ends_its_job_only(driver):
    driver.assign(1, call("give_up"), call("echo", 1))
    driver.until_answered(1, 2)
    assert driver.rows[1][1].kind == OK


def test_stop_waits_for_what_runs_and_keeps_its_outcome(tmp_path):
    pool = make_pool()
    pool.start()
    driver = Driver(pool)
    release = tmp_path / "gate"
    driver.assign(1, call("hold", str(release)), NOOP)
    wait_for((tmp_path / "gate.runs").exists)
    opener = threading.Timer(0.1, release.touch)
    opener.start()
    pool.stop(10.0)
    opener.join()
    driver.take(pool.poll())
    assert [row.kind for row in driver.rows[1]] == [OK]


@pytest.mark.parametrize("values", [{"concurrency": "2"}, {"executor": None}, {"size": 1}])
def test_wrong_options_are_refused(values):
    with pytest.raises(PluginError):
        make_pool(**values)
