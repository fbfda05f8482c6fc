"""The stored parts of a job's life are restored after the broker was killed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.errors import DuplicateJob, JobExpired, JobFailed
from tests.support.system import DEADLINE, System, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from eventmq import EventMQ

_TASKS = """

@app.task(retries=3, retry_policy=fixed(delay=0.8))
def shaky(number, failures):
    note(f"try {number}")
    if current_job().attempt <= failures:
        raise OSError(f"attempt {current_job().attempt}")
    note(number)
    return current_job().attempt
"""


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    system = System(tmp_path)
    module = tmp_path / "survivor.py"
    text = module.read_text().replace(
        "from eventmq import EventMQ\n", "from eventmq import EventMQ, current_job, fixed\n"
    )
    module.write_text(text + _TASKS)
    yield system
    system.stop()


def client(system: System) -> tuple[EventMQ, dict[str, Any]]:
    """Return a client app and the worker's tasks as it sees them."""
    app = system.app(submit_timeout=20.0)

    @app.task(name="survivor.shaky", retries=3)
    def shaky(number: str, failures: int) -> int:
        """Fail so often, then return the attempt."""
        return failures

    @app.task(name="survivor.work")
    def work(number: str) -> str:
        """Note the number and return it."""
        return number

    return app, {"shaky": shaky, "work": work}


def crash(system: System, broker: Any) -> Any:
    """Kill the broker, and start it again at its address."""
    broker.kill9()
    return system.broker()


def test_a_retry_that_waits_survives_with_its_history(system: System) -> None:
    """Killed after the first failure was acknowledged; later attempts continue the count."""
    broker = system.broker()
    system.worker()
    _, tasks = client(system)
    job = tasks["shaky"].delay("r", 2)
    until(lambda: job.state == "delayed", "the first attempt has failed")
    crash(system, broker)
    assert job.get(timeout=DEADLINE) == 3
    history = [(a["attempt"], a["error"].type, a["error"].message) for a in job.info()["attempts"]]
    assert history == [
        (1, "builtins.OSError", "attempt 1"),
        (2, "builtins.OSError", "attempt 2"),
    ]
    assert system.executed()["try r"] == 3


def test_the_last_retry_fails_for_good_with_the_original_error(system: System) -> None:
    broker = system.broker()
    system.worker()
    _, tasks = client(system)
    job = tasks["shaky"].options(retries=1).delay("f", 9)
    until(lambda: job.state == "delayed", "the first attempt has failed")
    crash(system, broker)
    with pytest.raises(JobFailed, match="attempt 2") as caught:
        job.get(timeout=DEADLINE)
    assert isinstance(caught.value.__cause__, OSError)
    assert job.state == "failed"


def test_delays_expiry_and_keys_survive(system: System) -> None:
    """Killed while everything waits and no worker is there."""
    broker = system.broker()
    app, tasks = client(system)
    work = tasks["work"]
    due_at = time.time() + 2.5
    later = work.options(countdown=2.5).delay("later")
    expired = work.options(expires=0.5).delay("late")
    first = work.options(unique="k").delay("unique")
    crash(system, broker)
    with pytest.raises(DuplicateJob) as caught:
        work.options(unique="k").delay("again")
    assert caught.value.job_id == first.id
    assert later.state == "delayed"
    until(lambda: time.time() > due_at - 1.5, "the expiry has passed")
    system.worker()
    with pytest.raises(JobExpired):
        expired.get(timeout=DEADLINE)
    assert first.get(timeout=DEADLINE) == "unique"
    assert later.get(timeout=DEADLINE) == "later"
    info = app.job(later.id).info()
    assert 0.0 <= info["started"] - due_at < 2.0
    assert system.executed() == {"later": 1, "unique": 1}


def test_priorities_survive(system: System) -> None:
    """The best ranked jobs are still the first."""
    broker = system.broker()
    _, tasks = client(system)
    jobs = [tasks["work"].options(priority=p).delay(f"p{p}") for p in (0, 200, 100, 255, 7)]
    crash(system, broker)
    system.start("worker", "-A", "survivor", "--broker", system.address, "-c", "1")
    for job in jobs:
        job.get(timeout=DEADLINE)
    assert list(system.executed_by()) == ["p255", "p200", "p100", "p7", "p0"]


def test_limits_survive(system: System) -> None:
    """Killed while one job runs that is alone: no bucket is filled by that, no slot freed."""
    broker = system.broker()
    system.worker()
    app = system.app(submit_timeout=20.0)
    rated = app.task(name="survivor.work", rate_limit="2/h")(lambda number: number)
    alone = app.task(name="survivor.slow", max_concurrency=1)(lambda number, seconds: number)
    first = [rated.delay(f"r{n}") for n in range(3)]
    long = alone.delay("long", 1.5)
    until(lambda: "long" in system.started(), "the long job has begun")
    assert [job.get(timeout=DEADLINE) for job in first[:2]] == ["r0", "r1"]
    crash(system, broker)
    short, more = alone.delay("short", 0.0), rated.delay("r3")
    free = app.task(name="survivor.deaf")(lambda number, seconds: None).delay("free", 0.0)
    free.get(timeout=DEADLINE)
    assert (long.get(timeout=DEADLINE), short.get(timeout=DEADLINE)) == ("long", "short")
    order = [name for name in system.executed_by() if name in {"long", "short"}]
    assert order == ["long", "short"]
    assert set(system.executed()) == {"r0", "r1", "free", "long", "short"}
    assert [job.state for job in (first[2], more)] == ["queued", "queued"]
