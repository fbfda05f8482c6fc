"""The asyncio pool: many coroutines in one loop, and blocking functions beside it."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from pathlib import Path

import pytest

from eventmq.clock import SystemClock
from eventmq.errors import PluginError
from eventmq.interfaces import PluginContext, current_job
from eventmq.job import OutcomeKind
from eventmq.plugins.pools.asyncio import make_asyncio_pool
from tests.support.worker_harness import (
    OK,
    Driver,
    add,
    call,
    hold,
    make_executor,
    noop,
    sleep,
    wait_for,
)

BLOCKED = "blocked the event loop"


async def nap(seconds):
    await asyncio.sleep(seconds)
    return current_job().id


async def hog(seconds):
    time.sleep(seconds)  # noqa: ASYNC251 - what this is about


remembered = contextvars.ContextVar("remembered", default=None)


async def remember(value):
    """Return the value that was stored here before."""
    await asyncio.sleep(0)
    before = remembered.get()
    remembered.set(value)
    return before


async def where():
    return threading.current_thread().name


async def give_up():
    raise SystemExit(1)


async def cling(path):
    """Not end when it is cancelled, until a file is there."""
    while True:
        try:
            while True:
                Path(path + ".runs").touch()  # noqa: ASYNC240
                await asyncio.sleep(0.01)
                if Path(path).exists():  # noqa: ASYNC240
                    return
        except asyncio.CancelledError:
            continue


def make_pool(slots=2, middleware=(), **options):
    tasks = (nap, hog, remember, where, give_up, cling, noop, add, hold, sleep)
    given = {
        "concurrency": slots,
        "executor": make_executor(*tasks, middleware=middleware),
        **options,
    }
    return make_asyncio_pool(PluginContext("asyncio", given, SystemClock()))


@pytest.fixture
def start():
    drivers = []

    def begin(*args, **options):
        driver = Driver(make_pool(*args, **options))
        driver.pool.start()
        drivers.append(driver)
        return driver

    yield begin
    for driver in drivers:
        driver.pool.stop(5.0)
        driver.pool.stop(5.0)


def test_a_thousand_coroutines_wait_together(start):
    driver = start(1000)
    began = time.monotonic()
    for slot in range(1000):
        driver.assign(slot + 1, call("nap", 0.3), slot=slot)
    driver.until(lambda: len(driver.rows) == 1000)
    assert time.monotonic() - began < 10.0, "one after the other they take 300 s"
    assert {row.kind for rows in driver.rows.values() for row in rows} == {OK}


def test_each_coroutine_has_its_own_current_job(start):
    driver = start(3)
    for slot in range(3):
        driver.assign(slot + 1, call("nap", 0.05), call("nap", 0.0), slot=slot)
    assert [sorted(driver.until_answered(chunk, 2)) for chunk in (1, 2, 3)] == [["j0", "j1"]] * 3


def test_the_jobs_of_a_chunk_are_spread_over_the_slots(start):
    driver = start(3)
    began = time.monotonic()
    driver.assign(1, *[call("nap", 0.5)] * 3)
    driver.until_answered(1, 3)
    assert time.monotonic() - began < 1.4, "one after the other they take 1.5 s"


def test_what_waits_is_begun_in_order_and_taken_back_from_the_end(start):
    driver = start(1)
    driver.assign(1, call("nap", 0.2), call("nap", 0.0))
    driver.assign(2, call("nap", 0.0))
    wait_for(lambda: driver.pool.running(0))
    assert driver.pool.take_back(0) == 2
    driver.assign(3, call("nap", 0.0))
    driver.until_answered(3, 1)
    assert driver.positions(1, 1) == [0]
    assert 2 not in driver.rows


def test_a_pool_that_is_scaled_down_begins_no_more_than_that(start):
    driver = start(3)
    driver.pool.scale(1)
    driver.assign(1, *[call("nap", 0.1)] * 3)
    wait_for(lambda: driver.pool.running(0))
    assert [driver.pool.running(1), driver.pool.running(2)] == [None, None]
    driver.pool.scale(3)
    assert sorted(driver.positions(1, 3)) == [0, 1, 2]


def test_a_job_does_not_find_the_context_of_the_one_before_it(start):
    driver = start(1)
    driver.assign(1, call("remember", "first"), call("remember", "second"))
    assert driver.until_answered(1, 2) == [None, None]


def test_coroutines_share_one_thread_and_functions_run_beside_it(start, tmp_path):
    driver = start(3)
    release = tmp_path / "gate"
    driver.assign(1, call("hold", str(release)), slot=0)
    driver.assign(2, call("add", 1, 2), call("where"), slot=1)
    driver.assign(3, call("where"), slot=2)
    assert driver.until_answered(2, 2) == [3, "eventmq-loop"]
    assert driver.until_answered(3, 1) == ["eventmq-loop"]
    release.touch()
    driver.until_answered(1, 1)


def test_no_more_functions_run_at_once_than_there_are_threads(start, tmp_path):
    driver = start(3, threads=1)
    release = tmp_path / "gate"
    driver.assign(1, call("hold", str(release)), slot=0)
    wait_for((tmp_path / "gate.runs").exists)
    driver.assign(2, call("noop"), slot=1)
    driver.assign(3, call("nap", 0.0), slot=2)
    driver.until_answered(3, 1)
    assert driver.pool.running(1) is None, "its time has not started"
    release.touch()
    driver.until_answered(2, 1)


def test_a_function_that_waits_for_a_thread_can_be_given_up(start, tmp_path):
    driver = start(2, threads=1)
    release = tmp_path / "gate"
    driver.assign(1, call("hold", str(release)), slot=0)
    wait_for((tmp_path / "gate.runs").exists)
    driver.assign(2, call("add", 1, 1), slot=1)
    wait_for(lambda: driver.pool.slot_of(2, 0) == 1)
    driver.assign(3, call("nap", 0.0), slot=0)
    driver.pool.kill(1)
    release.touch()
    driver.until_answered(3, 1)
    driver.assign(4, call("add", 2, 2), slot=1)
    assert driver.until_answered(4, 1) == [4]
    assert 2 not in driver.rows


def test_a_thread_that_is_given_up_is_replaced(start, tmp_path):
    driver = start(2, threads=1)
    release = tmp_path / "gate"
    driver.assign(1, call("hold", str(release)), slot=0)
    wait_for((tmp_path / "gate.runs").exists)
    driver.pool.kill(0)
    assert driver.pool.abandoned == 1
    driver.assign(2, call("add", 2, 2), slot=0)
    assert driver.until_answered(2, 1) == [4]
    release.touch()
    wait_for(lambda: driver.pool.abandoned == 0)


def test_a_task_that_blocks_the_loop_is_named(start, caplog):
    driver = start()
    with caplog.at_level(logging.WARNING):
        driver.assign(1, call("hog", 0.15), call("hog", 0.15))
        driver.until_answered(1, 2)
    (line,) = [r.getMessage() for r in caplog.records if BLOCKED in r.getMessage()]
    assert line.startswith("task hog blocked the event loop for "), "once, not for every job"


def test_a_task_that_blocks_the_loop_for_long_is_named_before_its_end(start, caplog):
    driver = start()
    driver.assign(1, call("hog", 1.6))
    with caplog.at_level(logging.WARNING):
        driver.until(lambda: "task hog has blocked the event loop for 1." in caplog.text)
    assert 1 not in driver.rows
    driver.until_answered(1, 1)
    wait_for(lambda: driver.pool.monitor.lag > 0.1)


def test_a_task_that_would_end_the_process_ends_its_job_only(start):
    driver = start()
    driver.assign(1, call("give_up"), call("nap", 0.0))
    driver.until(lambda: len(driver.rows.get(1, [])) == 2)
    assert [row.kind for row in driver.rows[1]] == [OutcomeKind.FAILED, OK]


def test_what_is_broken_off_at_the_end_is_no_failure(start, caplog):
    """It runs again: no one may report that it failed for good."""
    driver = start(2)
    driver.assign(1, call("nap", 30.0), call("nap", 30.0))
    wait_for(lambda: driver.pool.running(0) and driver.pool.running(1))
    with caplog.at_level(logging.WARNING):
        driver.pool.stop(0.0)
    assert [record.getMessage() for record in caplog.records] == []
    assert [event for event in driver.pool.poll() if type(event).__name__ == "JobsEnded"] == []


def test_a_coroutine_that_will_not_end_is_counted_as_abandoned(start, tmp_path):
    driver = start()
    release = tmp_path / "gate"
    driver.assign(1, call("cling", str(release)))
    wait_for((tmp_path / "gate.runs").exists)
    driver.pool.kill(0)
    assert driver.pool.abandoned == 0, "it may be ending"
    wait_for(lambda: driver.pool.abandoned == 1)
    release.touch()
    wait_for(lambda: driver.pool.abandoned == 0)
    driver.assign(2, call("nap", 0.0))
    driver.until_answered(2, 1)
    assert 1 not in driver.rows


class Around:
    """A middleware for functions and coroutines."""

    def __init__(self):
        self.seen = []

    def execute(self, job, proceed):
        self.seen.append(("function", job.task))
        return proceed()

    async def aexecute(self, job, proceed):
        value = await proceed()
        self.seen.append(("coroutine", job.task, value))
        return value


class OnlySync:
    def execute(self, job, proceed):
        return proceed()


def test_middleware_wraps_coroutines_and_functions(start):
    middleware = [Around(), Around()]
    driver = start(middleware=middleware)
    driver.assign(1, call("nap", 0.0))
    driver.assign(2, call("add", 1, 2))
    assert [driver.until_answered(1, 1), driver.until_answered(2, 1)] == [["j0"], [3]]
    for around in middleware:
        assert sorted(around.seen) == [("coroutine", "nap", "j0"), ("function", "add")]


def test_a_middleware_that_cannot_wrap_coroutines_is_refused():
    with pytest.raises(PluginError, match="OnlySync has execute and no aexecute"):
        make_pool(middleware=[OnlySync()])


@pytest.mark.parametrize("values", [{"threads": 0}, {"executor": None}, {"size": 1}])
def test_wrong_options_are_refused(values):
    with pytest.raises(PluginError):
        make_pool(**values)
