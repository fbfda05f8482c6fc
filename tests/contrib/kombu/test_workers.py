"""Celery's own workers and clients, unmodified, on a broker of EventMQ."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import TaskRevokedError
from celery.exceptions import TimeoutError as NotInTime

from tests.support.system import DEADLINE, System, until

TASKS = """
import os, time
from celery import Celery
import eventmq_contrib.kombu

url = os.environ["CELERY_URL"]
app = Celery("shop", broker=url, backend=url)
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=1)
app.conf.broker_connection_retry_on_startup = True


def note(text):
    with open(os.environ["RECORD"], "a") as file:
        file.write(f"{text}\\n")


@app.task
def add(a, b):
    return a + b


@app.task
def total(numbers):
    return sum(numbers)


@app.task(bind=True, max_retries=3)
def retried(self):
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return self.request.retries


@app.task
def fail(text):
    raise ValueError(text)


@app.task
def slow(name, seconds):
    note(f"start {name}")
    time.sleep(seconds)
    note(f"end {name}")
    return name


@app.task
def large(size):
    return "x" * size
"""


@pytest.fixture(scope="module")
def shop(system, url):
    """The app of the client: the same URL, and the tasks by their names."""
    app = Celery("client", broker=url, backend=url, set_as_current=False)
    (system.folder / "shop.py").write_text(TASKS)
    yield app
    app.close()


@contextmanager
def worker(system: System, url: str, *arguments: str):
    """Run a worker until the end of the block."""
    environment = {
        **os.environ, "CELERY_URL": url, "RECORD": str(system.record), "PYTHONWARNINGS": "ignore"
    }  # fmt: skip
    log = system.folder / "worker.log"
    start = log.stat().st_size if log.exists() else 0
    command = [sys.executable, "-m", "celery", "-A", "shop", "worker", "-l", "INFO", *arguments]
    with log.open("a") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, cwd=system.folder, env=environment,
            start_new_session=True,
        )  # fmt: skip
    process.log = lambda: log.read_text()[start:]
    try:
        until(lambda: " ready." in process.log() or process.poll() is not None, "the worker")
        yield process
        process.terminate()
        assert process.wait(DEADLINE) in {0, -signal.SIGKILL}, process.log()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(DEADLINE)


@pytest.fixture(scope="module", params=["prefork", "threads"])
def pool(request, system, shop, url):
    name = f"{request.param}@here"
    with worker(system, url, "-P", request.param, "-c", "2", "-n", name, "-Q", "celery,second"):
        yield name


def call(shop, name, *args, **options):
    return shop.send_task(f"shop.{name}", args, **options)


def sign(shop, name, *args, **options):
    return shop.signature(f"shop.{name}", args=args, app=shop, **options)


def lines(system):
    return system.record.read_text().split("\n")[:-1] if system.record.exists() else []


def test_a_result_arrives(shop, pool):
    result = call(shop, "add", 2, 3)
    assert result.get(timeout=DEADLINE) == 5
    assert shop.AsyncResult(result.id).get(timeout=DEADLINE) == 5
    assert (result.state, call(shop, "add", 1, 1, queue="second").get(timeout=DEADLINE)) == (
        "SUCCESS", 2,
    )  # fmt: skip


def test_a_failure_is_raised_and_kept(shop, pool):
    result = call(shop, "fail", "no stock")
    with pytest.raises(ValueError, match="no stock"):
        result.get(timeout=DEADLINE)
    assert shop.AsyncResult(result.id).state == "FAILURE"
    result.forget()
    assert shop.AsyncResult(result.id).state == "PENDING"


def test_retries_and_countdowns(shop, pool):
    assert call(shop, "retried").get(timeout=DEADLINE) == 2
    start = time.monotonic()
    assert call(shop, "add", 1, 2, countdown=1).get(timeout=DEADLINE) == 3
    assert time.monotonic() - start >= 1


def test_groups_chains_and_chords(shop, pool):
    adds = [sign(shop, "add", n, n) for n in range(20)]
    assert list(range(0, 40, 2)) == group(adds, app=shop).delay().get(timeout=DEADLINE)
    assert chord(adds, sign(shop, "total"), app=shop).delay().get(timeout=DEADLINE) == 380
    linked = chain(sign(shop, "add", 1, 1), sign(shop, "add", 3), app=shop)
    assert linked.delay().get(timeout=DEADLINE) == 5
    failing = chord([*adds[:2], sign(shop, "fail", "one")], sign(shop, "total"), app=shop)
    with pytest.raises(Exception, match="one"):
        failing.delay().get(timeout=DEADLINE)


def test_a_large_result(shop, pool):
    for size in (3_000_000, 20_000_000):  # the second is longer than a frame
        assert len(call(shop, "large", size).get(timeout=DEADLINE)) == size


def test_remote_control(shop, pool):
    inspect = shop.control.inspect(timeout=2)
    assert inspect.ping() == {pool: {"ok": "pong"}}
    for _ in range(3):  # with a destination, Celery looks once for its answer
        assert shop.control.ping(destination=[pool], timeout=DEADLINE) == [{pool: {"ok": "pong"}}]
    assert {"celery", "second"} == {queue["name"] for queue in inspect.active_queues()[pool]}
    shop.control.add_consumer("third", destination=[pool], reply=True)
    assert call(shop, "add", 1, 1, queue="third").get(timeout=DEADLINE) == 2
    shop.control.cancel_consumer("third", destination=[pool], reply=True)


def test_a_revoked_task_does_not_run(shop, pool, system):
    result = shop.send_task("shop.slow", (f"revoked {pool}", 0), countdown=1)
    shop.control.revoke(result.id)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=DEADLINE)
    assert f"start revoked {pool}" not in lines(system)


def test_events(shop, pool):
    """A receiver gets the events that the worker sends from then on."""
    seen = []
    with shop.connection() as connection:
        receiver = shop.events.Receiver(
            connection, handlers={"*": lambda event: seen.append(event["type"])}
        )
        shop.control.enable_events(destination=[pool], reply=True)
        with receiver.consumer_context() as (listening, *_):
            call(shop, "add", 1, 1)
            while "task-succeeded" not in seen:
                listening.drain_events(timeout=DEADLINE)
    assert {"task-received", "task-started", "task-succeeded"} <= {*seen}


def test_a_message_of_a_serializer_that_is_not_accepted_is_kept(shop, pool, system):
    with system.app() as app:
        call(shop, "add", 1, 2, serializer="pickle", queue="second")
        until(lambda: failed(app, "second"), "it is among the failed jobs")
        assert "rejected" in str(app.ask("failed", {"queue": "second"})["failed"][0]["error"])


def failed(app, queue):
    return [row for row in app.ask("queues") if row["name"] == queue and row["failed"]]


def test_tasks_of_a_killed_worker_run_elsewhere(shop, system, url):
    with worker(system, url, "-c", "1", "-n", "victim@here", "-Q", "own") as victim:
        result = call(shop, "slow", "killed", 1.5, queue="own")
        until(lambda: "start killed" in lines(system), "it runs")
        children = subprocess.run(
            ["pgrep", "-P", str(victim.pid)], capture_output=True, text=True, check=True
        )
        for pid in (victim.pid, *map(int, children.stdout.split())):
            os.kill(pid, signal.SIGKILL)
        victim.wait(DEADLINE)
    with worker(system, url, "-c", "1", "-Q", "own"):
        assert result.get(timeout=DEADLINE) == "killed"
    assert (lines(system).count("start killed"), lines(system).count("end killed")) == (2, 1)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_broker_that_restarts_under_both(shop, system, url, pool):
    """What runs goes on and is acknowledged once, what waits is kept, and results arrive."""
    with worker(system, url, "-P", pool, "-c", "1", "-Q", "own") as process:
        name = f"restart {pool}"
        running = call(shop, "slow", name, 2, queue="own")
        waiting = call(shop, "add", 1, 2, queue="own")
        until(lambda: f"start {name}" in lines(system), "it runs")
        broker = next(each for each in system.processes if each.poll() is None)
        broker.kill9()
        with pytest.raises(NotInTime):
            running.get(timeout=0.2)
        system.broker()
        assert running.get(timeout=DEADLINE) == name
        assert waiting.get(timeout=DEADLINE) == 3
        assert call(shop, "add", 2, 2, queue="own").get(timeout=DEADLINE) == 4
        assert process.poll() is None
    assert lines(system).count(f"start {name}") == 1


def test_a_url_without_an_import(system, url):
    """``broker_transport`` names the class; the backend is found by its entry point."""
    code = f"""
from celery import Celery
app = Celery(broker={url!r}, backend={url!r})
app.conf.broker_transport = "eventmq_contrib.kombu:Transport"
result = app.send_task("shop.nothing", queue="nobody")
assert app.AsyncResult(result.id).state == "PENDING"
print("sent")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "sent\n", done.stderr
