"""Brokers, workers and clients as processes on one database, whose owner is killed or stopped."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from eventmq import EventMQ
from tests.support.shell import DEADLINE, Program, Shell
from tests.support.system import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SHOP = """
import os
import time

from eventmq import EventMQ

app = EventMQ("shop")


@app.task(name="note")
def note(value, seconds=0.0):
    with open("runs", "a") as file:
        file.write(f"{value}\\n")
    time.sleep(seconds)
    return 2 * value
"""

#: Number of jobs that are submitted before the owner ends, and while it does.
JOBS = 20


class Cluster:
    """Two brokers on a database, and a worker."""

    def __init__(self, folder: Path, url: str) -> None:
        (folder / "shop.py").write_text(SHOP)
        self.shell = Shell(folder)
        self._url, self._folder = url, folder
        self.brokers: dict[str, Program] = {}
        for _ in range(2):
            self.start_broker()
        addresses = ",".join(self.brokers)
        self.app = EventMQ("shop", broker=addresses, submit_timeout=DEADLINE)
        worker = self.shell.start("worker", "-A", "shop", "--broker", addresses, "-c", "2")
        worker.ready()

    def start_broker(self, bind: str = "tcp://127.0.0.1:0") -> dict[str, str]:
        """Start a broker, and return the fields of its ready line."""
        broker = self.shell.start("broker", "--store", self._url, "--bind", bind)
        ready = broker.ready()
        self.brokers[ready["main"]] = broker
        return ready

    def owner(self) -> str:
        """Return the address of the owner."""
        return str(self.app.ask("status")["owner"])

    def until_status(self, role: str, line: str) -> None:
        """Wait until ``eventmq status`` has a role and another line."""

        def shown() -> bool:
            text = self.shell.output("status", "--broker", ",".join(self.brokers))
            return f"; {role}\n" in text and line in text

        until(shown, f"status says {role}")

    def runs(self) -> Counter[str]:
        return Counter((self._folder / "runs").read_text().split())

    def close(self) -> None:
        self.app.close()
        for broker in self.brokers.values():
            broker.process.send_signal(signal.SIGCONT)
        self.shell.close()


@pytest.fixture
def cluster(tmp_path: Path, database_url: str) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, database_url)
    yield cluster
    cluster.close()


def test_no_job_is_lost_or_run_twice_when_the_owner_ends(cluster: Cluster) -> None:
    """Jobs run, wait, or await their receipts then. Brokers come back as standbys."""
    first = 0
    for signum in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
        owner = cluster.owner()
        broker = cluster.brokers[owner]
        survive(cluster.app, first, lambda: broker.process.send_signal(signum))  # noqa: B023 - called here
        assert cluster.owner() != owner
        if signum == signal.SIGSTOP:
            broker.process.send_signal(signal.SIGCONT)
        else:
            broker.wait()
            cluster.until_status("no standby", "attention: no broker stands by")
            assert cluster.start_broker(owner)["role"] == "standby"
            cluster.until_status("1 standby", "Nothing needs attention.")
        first += 2 * JOBS
    answer = cluster.shell.json("broker", "handover", "--broker", cluster.owner())
    assert answer["owner"] == cluster.owner()
    assert cluster.app.send("note", (first,)).get(timeout=DEADLINE) == 2 * first
    assert cluster.runs() == Counter(str(n) for n in range(first + 1))


def survive(app: EventMQ, first: int, event: Callable[[], None]) -> None:
    """Submit jobs before and during an event, and check that all of them succeed."""
    jobs = [app.send("note", (n, 0.05)) for n in range(first, first + JOBS)]
    later: list[Any] = []

    def submit() -> None:
        later.extend(app.send("note", (n,)) for n in range(first + JOBS, first + 2 * JOBS))

    thread = threading.Thread(target=submit)
    thread.start()
    event()
    thread.join(DEADLINE)
    assert not thread.is_alive()
    results = [job.get(timeout=DEADLINE) for job in (*jobs, *later)]
    assert results == [2 * n for n in range(first, first + 2 * JOBS)]
