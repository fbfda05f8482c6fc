"""Real processes, killed at bad times: no job is lost; only jobs of killed processes run twice."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.wire.commands import MAX_ROWS
from tests.support.system import DEADLINE, System, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from eventmq.app import EventMQ

JOBS = 20_000


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    system = System(tmp_path)
    yield system
    system.stop()


def task(app: EventMQ, name: str, queue: str = "default") -> Any:
    """Return a task by which a client calls one of the workers'."""

    def stand_in(*args: object) -> None:
        """Run in a worker."""

    return app.task(name=f"survivor.{name}", queue=queue)(stand_in)


def submit(app: EventMQ, n: int = JOBS) -> list[Any]:
    """Submit ``n`` numbers, 1,000 at a time."""
    work = task(app, "work")
    jobs: list[Any] = []
    for start in range(0, n, 1000):
        jobs += work.map([(number,) for number in range(start, start + 1000)])
    return jobs


def all_done(system: System, n: int = JOBS) -> bool:
    return system.has_started(n) and len(system.executed()) >= n


def test_nothing_is_lost_when_the_broker_is_killed_in_the_middle(system: System) -> None:
    """kill -9 of the broker in the middle of 20,000 jobs and restart."""
    broker = system.broker()
    system.worker()
    app = system.app(submit_timeout=30.0)
    submitted: list[Any] = []
    client = threading.Thread(target=lambda: submitted.extend(submit(app)))
    client.start()
    until(lambda: system.has_started(501), "the first jobs run")
    broker.kill9()
    assert len(system.executed()) < JOBS
    system.broker()
    client.join(DEADLINE)
    assert len(submitted) == JOBS
    until(lambda: all_done(system), "every job was executed")
    results = [job.get(timeout=DEADLINE) for job in submitted[:: JOBS // 100]]
    assert results == list(range(0, JOBS, JOBS // 100))
    until(lambda: app.ask("queues")[0]["waiting"] == 0, "the queue is empty")
    duplicates = sum(n - 1 for n in system.executed().values())
    assert duplicates == 0, (
        "the workers lived: they answer the jobs that they hold, none runs twice"
    )


def running(app: EventMQ) -> set[str]:
    """Return the ids of the jobs that the broker has assigned to workers without an answer yet."""
    ids: set[str] = set()
    cursor = ""
    while True:
        page = app.ask("jobs", {"state": "running", "cursor": cursor, "limit": MAX_ROWS})
        ids |= {row["id"] for row in page["jobs"]}
        cursor = page["cursor"]
        if not cursor:
            return ids


def test_the_jobs_of_a_killed_worker_run_elsewhere(system: System) -> None:
    """kill -9 of a worker: the jobs that it held run again, at most once more, and no others.

    The worker is stopped while the broker lists its jobs: from then on it acknowledges
    nothing, so whatever it had executed without an answer is among these jobs.
    """
    system.broker()
    first = system.worker()
    app = system.app()
    jobs = submit(app)
    until(lambda: system.has_started(501), "the first jobs run")
    first.freeze()
    held = running(app)
    first.kill9()
    assert len(system.executed()) < JOBS
    second = system.worker()
    until(lambda: all_done(system), "every job was executed")
    until(lambda: app.ask("queues")[0]["running"] == 0, "everything is answered")
    ran = system.executed_by()
    twice = {number: by for number, by in ran.items() if len(by) > 1}
    assert 0 < len(held) < JOBS
    assert {jobs[int(number)].id for number in twice} <= held
    assert all(by == [first.who, second.who] for by in twice.values()), twice
    assert [job.get(timeout=DEADLINE) for job in jobs[:: JOBS // 100]] == list(
        range(0, JOBS, JOBS // 100)
    )


def test_a_killed_child_loses_nothing(
    system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 of a child: its job is tried again, its neighbours are not charged.

    Results are in a file of the host: nothing is lost there either.
    """
    backend = f"sqlite:///{tmp_path}/results.sqlite?durable=no"
    monkeypatch.setenv("EVENTMQ_RESULT_BACKEND", backend)
    system.broker()
    system.worker()
    app = system.app()
    job = task(app, "slow").delay(1, 1.5)
    until(lambda: "1" in system.started(), "the job runs")
    jobs = submit(app, 2000)
    os.kill(system.started()["1"], signal.SIGKILL)
    assert app.wait(jobs, timeout=DEADLINE).pending == []
    assert job.get(timeout=DEADLINE) == 1
    assert [job.get() for job in jobs] == list(range(2000))
    assert (tmp_path / "results.sqlite").exists()
    assert system.times_started("1") == 2
    happened = system.events(job.id)
    assert happened["lease_lost"] == 1
    # One more each time that it was handed back, not started, from behind a job that took long.
    assert job.info()["delivery"] == 2 + happened["handed_back"]
    assert job.info()["attempt"] == 1


def test_clients_may_start_before_the_broker(system: System) -> None:
    """Unsent messages are kept by the client until the broker is there."""
    broker = system.broker()
    broker.kill9()
    app = system.app(submit_timeout=30.0)
    done = threading.Event()
    jobs: list[Any] = []

    def call() -> None:
        jobs.append(task(app, "work").delay(7))
        done.set()

    threading.Thread(target=call, daemon=True).start()
    system.broker()
    assert done.wait(DEADLINE)
    system.worker()
    assert jobs[0].get(timeout=DEADLINE) == 7


def test_workers_may_start_before_the_broker(system: System) -> None:
    """A worker waits for its broker."""
    broker = system.broker()
    broker.kill9()
    worker = system.worker(wait=False)
    system.broker()
    assert "ready" in system.ready(worker)
    assert task(system.app(), "work").delay(3).get(timeout=DEADLINE) == 3


def test_weights_share_a_worker_between_queues(system: System) -> None:
    """Two workers with weights 30 to 10: while both queues have jobs they get 3 to 1."""
    system.broker()
    app = system.app()
    task(app, "email", "email").map([(n,) for n in range(800)])
    task(app, "other", "other").map([(n,) for n in range(800)])
    for _ in range(2):
        system.worker("-Q", "email:30,other:10")
    until(lambda: system.has_started(600), "600 jobs of both queues ran")
    ran = system.executed()
    emails = sum(n for line, n in ran.items() if line.startswith("email"))
    share = emails / ran.total()
    assert 0.6 < share < 0.9, share


def test_weights_hold_when_jobs_suddenly_take_longer(system: System) -> None:
    """Chunks sized for jobs that took no time would hold hundreds of those that take 20 ms."""
    system.broker()
    system.worker("-Q", "email:30,other:10")
    app = system.app(submit_timeout=30.0)
    slow = {queue: task(app, "slow").options(queue=queue) for queue in ("email", "other")}

    def run(seconds: float, name: str, jobs: int) -> None:
        with app.batch():  # both queues have jobs from the same commit on
            for queue, call in slow.items():
                for number in range(jobs):
                    call.delay(f"{name}-{queue}-{number}", seconds)

    run(0.0, "short", 400)
    until(lambda: len(system.executed()) == 800, "the short jobs ran, and were measured")
    run(0.02, "long", 400)
    until(lambda: len(system.executed()) >= 800 + 160, "160 of the long jobs ran")
    started = [number for number in system.started() if number.startswith("long")][:160]
    emails = sum(number.startswith("long-email") for number in started)
    assert 100 <= emails <= 140, emails


def test_sigterm_under_load_loses_nothing_and_runs_nothing_twice(system: System) -> None:
    """SIGTERM: hand back jobs that have not started, finish running ones, then send KBAI."""
    system.broker()
    first = system.worker()
    app = system.app()
    submit(app)
    until(lambda: system.has_started(501), "the first jobs run")
    first.send_signal(signal.SIGTERM)
    assert first.wait(DEADLINE) == 0
    before = len(system.executed())
    assert before < JOBS
    system.worker()
    until(lambda: all_done(system), "every job was executed")
    until(lambda: app.ask("queues")[0]["running"] == 0, "everything is answered")
    assert sum(n - 1 for n in system.executed().values()) == 0


def test_results_survive_a_restart_of_the_broker(system: System) -> None:
    """Waiting survives a new broker epoch, for one job or many, and so does a stored result."""
    broker = system.broker()
    system.worker()
    app = system.app()
    early = task(app, "work").delay(1)
    assert early.get(timeout=DEADLINE) == 1
    last = task(app, "slow").delay(9000, 2.0)
    until(lambda: "9000" in system.started(), "the job runs")
    jobs = [last, *submit(app, 3000)]
    waited: list[Any] = []
    waiting = threading.Thread(target=lambda: waited.extend(app.wait(jobs, timeout=DEADLINE)))
    waiting.start()
    until(lambda: app.ask("status")["waited_for"] > 0, "the client waits")
    broker.kill9()
    system.broker()
    waiting.join(DEADLINE)
    assert waited == [jobs, []]
    assert last.get(timeout=DEADLINE) == 9000
    assert early.get(timeout=DEADLINE) == 1
    assert system.executed()["9000"] == 1
