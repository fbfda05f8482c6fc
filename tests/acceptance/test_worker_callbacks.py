"""Callbacks and log fields in real workers, with processes and with threads."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.support.system import DEADLINE, System, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

APP = """
import logging
import os

from eventmq import EventMQ

app = EventMQ("survivor")
connections = []


def note(text):
    fd = os.open("noted", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, f"{text} {os.getpid()}\\n".encode())
    os.close(fd)


class ToFile(logging.Handler):
    def emit(self, record):
        fields = record.eventmq_job, record.eventmq_task, record.eventmq_attempt
        note(f"log {record.getMessage()} {' '.join(map(str, fields))}")


logging.getLogger("shop").addHandler(ToFile())


@app.on_worker_start
def worker_start():
    note("worker-start")


@app.on_worker_stop
def worker_stop():
    note("worker-stop")


@app.on_child_start
def child_start():
    if os.path.exists("broken"):
        raise OSError("no database")
    connections.append(os.getpid())
    note("child-start")


@app.on_child_stop
def child_stop():
    note("child-stop")


@app.task
def connected():
    logging.getLogger("shop").warning("hello")
    return connections


@app.task
async def connected_async():
    logging.getLogger("shop").warning("async")
"""


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    system = System(tmp_path)
    (tmp_path / "survivor.py").write_text(APP)
    system.broker()
    yield system
    system.stop()


def records(system: System, word: str) -> list[list[str]]:
    path = system.folder / "noted"
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [rest for first, *rest in lines if first == word]


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_callbacks_run_where_they_should_and_logs_name_their_job(system: System, pool: str) -> None:
    worker = system.worker("--pool", pool)
    job = system.app().send("survivor.connected")
    (child,) = job.get(timeout=DEADLINE)
    other = system.app().send("survivor.connected_async")
    other.get(timeout=DEADLINE)
    assert records(system, "worker-start") == [[str(worker.pid)]]
    children = {pid for (pid,) in records(system, "child-start")}
    assert str(child) in children
    assert len(children) == (2 if pool == "prefork" else 1)
    assert (str(worker.pid) in children) == (pool == "threads")
    logged = [fields[:-1] for fields in records(system, "log")]
    assert ["hello", job.id, "survivor.connected", "1"] in logged
    assert ["async", other.id, "survivor.connected_async", "1"] in logged
    assert records(system, "worker-stop") == records(system, "child-stop") == []
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(DEADLINE) == 0
    assert records(system, "worker-stop") == [[str(worker.pid)]]
    assert {pid for (pid,) in records(system, "child-stop")} == children


def test_a_child_that_replaces_another_connects_too(system: System) -> None:
    system.worker()
    (child,) = system.app().send("survivor.connected").get(timeout=DEADLINE)
    import os

    os.kill(child, signal.SIGKILL)
    until(lambda: len(records(system, "child-start")) == 3, "another child connects")


def test_a_worker_of_threads_whose_connection_fails_reports_it_and_ends(system: System) -> None:
    (system.folder / "broken").touch()
    worker = system.worker("--pool", "threads", wait=False)
    assert worker.wait(DEADLINE) == 1
    log = (system.folder / "worker.log").read_text()
    assert "child_start of on_child_start failed: OSError: no database" in log
