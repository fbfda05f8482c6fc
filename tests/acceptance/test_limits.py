"""Jobs that run too long, with real processes."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.errors import (
    JobCancelled,
    JobFailed,
    SoftTimeLimitExceeded,
    TimeLimitExceeded,
    WorkerLost,
)
from tests.support.system import DEADLINE, System, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from eventmq.app import EventMQ


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    system = System(tmp_path)
    yield system
    system.stop()


def slow(app: EventMQ, name: str = "slow") -> Any:
    """Return the worker's task, declared without its code."""

    def declared(number: int, seconds: float) -> int:
        raise NotImplementedError

    return app.task(declared, name=f"survivor.{name}")


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_job_past_its_timeout_fails_after_its_retries_and_the_others_run(
    system: System, pool: str
) -> None:
    """Each attempt is stopped at the limit; what waits behind it is not harmed."""
    system.broker()
    system.worker("--pool", pool, "--max-abandoned", "9")
    task = slow(system.app())
    timed_out = task.options(timeout=0.3, retries=1).delay(1, 6.0)
    fine = task.map([(number, 0.01) for number in range(2, 40)])
    assert [job.get(timeout=DEADLINE) for job in fine] == list(range(2, 40))
    with pytest.raises(TimeLimitExceeded, match=r"its timeout of 0\.3 s"):
        timed_out.get(timeout=DEADLINE)
    assert (timed_out.info()["state"], timed_out.info()["attempt"]) == ("failed", 2)
    assert system.executed()["1"] == 0 or pool == "threads"


def test_the_soft_limit_is_an_exception_in_the_task(system: System) -> None:
    """In blocking code of a process."""
    system.broker()
    system.worker()
    job = slow(system.app()).options(soft_timeout=0.3, timeout=30).delay(1, 20.0)
    with pytest.raises(JobFailed) as caught:
        job.get(timeout=DEADLINE)
    assert isinstance(caught.value.__cause__, SoftTimeLimitExceeded)


def test_thousands_of_coroutines_wait_in_one_worker(system: System) -> None:
    """Twenty seconds of waiting each second and thread, a timeout and a soft limit among them."""
    system.broker()
    system.worker("--pool", "asyncio", "-c", "1000")
    task = slow(system.app(), "nap")
    began = time.monotonic()
    timed_out = task.options(timeout=1.0).delay(-1, 60.0)
    soft = task.options(soft_timeout=0.5).delay(-2, 60.0)
    jobs = task.map([(number, 0.5) for number in range(2000)])
    assert [job.get(timeout=DEADLINE) for job in jobs] == list(range(2000))
    with pytest.raises(TimeLimitExceeded):
        timed_out.get(timeout=DEADLINE)
    assert soft.get(timeout=DEADLINE) == "soft"
    assert time.monotonic() - began < DEADLINE / 2, "one after the other they take 1,000 s"


def test_a_worker_with_too_many_lost_threads_restarts_and_goes_on(system: System) -> None:
    """Its second ready line comes from the same process; the jobs after it run."""
    system.broker()
    worker = system.worker("--pool", "threads", "--max-abandoned", "1")
    task = slow(system.app())
    jobs = [task.options(timeout=0.3).delay(number, 60.0) for number in range(2)]
    for job in jobs:
        with pytest.raises(TimeLimitExceeded):
            job.get(timeout=DEADLINE)
    assert "ready" in system.ready(worker)
    assert task.delay(7, 0.0).get(timeout=DEADLINE) == 7
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(DEADLINE) == 0


def test_the_third_death_names_the_signal_and_the_memory(system: System) -> None:
    """The error of the failed job has what its author needs to know."""
    system.broker()
    system.worker()
    app = system.app()
    job = slow(app).delay(1, 60.0)
    killed: set[int] = set()
    for _ in range(3):
        until(lambda: system.started().get("1", 0) not in {0, *killed}, "a new run of the job")
        pid = system.started()["1"]
        killed.add(pid)
        os.kill(pid, signal.SIGSEGV)
    with pytest.raises(WorkerLost, match="suspected killer: 3 processes died") as caught:
        job.get(timeout=DEADLINE)
    assert "killed by SIGSEGV; it had " in str(caught.value)
    assert "MiB of memory" in str(caught.value)


@pytest.mark.parametrize(
    ("pool", "name"),
    [("prefork", "slow"), ("prefork", "nap"), ("threads", "nap"), ("asyncio", "nap")],
)
def test_a_running_job_is_cancelled_and_its_slot_is_free(
    system: System, pool: str, name: str
) -> None:
    """At once: long before the job would have ended, and never tried again."""
    system.broker()
    system.worker("--pool", pool, "-c", "1", "--cancel-grace", "60")
    app = system.app()
    job = slow(app, name).options(retries=5).delay(1, 600.0)
    until(lambda: job.state == "running", "the job runs")
    if name == "slow":
        until(lambda: "1" in system.started(), "the job has begun")
    waiting = slow(app).delay(2, 0.0)
    job.cancel()
    assert waiting.get(timeout=DEADLINE) == 2
    with pytest.raises(JobCancelled):
        job.get(timeout=DEADLINE)
    assert job.info()["state"] == "cancelled"


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_cancelled_job_that_does_not_end_is_stopped_after_the_grace(
    system: System, pool: str
) -> None:
    """A process is killed, a thread abandoned; the slot continues."""
    system.broker()
    system.worker("--pool", pool, "-c", "1", "--cancel-grace", "0.2", "--max-abandoned", "9")
    app = system.app()
    job = slow(app, "deaf").delay(1, 6.0)
    until(lambda: "1" in system.started(), "the job has begun")
    job.cancel()
    assert slow(app).delay(2, 0.0).get(timeout=DEADLINE) == 2
    assert system.executed()["1"] == 0, "before the job would have ended"


def test_processes_are_replaced_after_so_many_jobs(system: System) -> None:
    """Between two jobs; each job runs once."""
    system.broker()
    system.worker("--max-jobs-per-child", "5")
    jobs = slow(system.app()).map([(number, 0.0) for number in range(60)])
    began = time.monotonic()
    assert [job.get(timeout=DEADLINE) for job in jobs] == list(range(60))
    assert time.monotonic() - began < DEADLINE
    assert set(system.executed().values()) == {1}
    assert len(set(system.started().values())) >= 6


def test_a_worker_uses_more_processes_while_all_are_busy(system: System) -> None:
    """``-c 1-3``: jobs that wait get more of them."""
    system.broker()
    system.worker("-c", "1-3")
    jobs = slow(system.app()).map([(number, 0.2) for number in range(30)])
    assert [job.get(timeout=DEADLINE) for job in jobs] == list(range(30))
    assert len(set(system.started().values())) == 3
    assert set(system.executed().values()) == {1}


@pytest.mark.parametrize("value", ["0", "5-2", "many", "2-", "1-2-3"])
def test_a_wrong_concurrency_is_named(system: System, value: str) -> None:
    """With what would be right."""
    worker, _ = system.start("worker", "-A", "survivor", "-c", value, wait=False)
    assert worker.wait(DEADLINE) == 2
    assert "two such as 2-8" in (system.folder / "worker.log").read_text()
