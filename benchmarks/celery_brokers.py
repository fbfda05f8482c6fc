"""The row about Celery: one application on EventMQ's transport, and on other brokers."""

from __future__ import annotations

import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peers.servers import SERVERS, Missing, server_versions
from benchmarks.system import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.figures import Figures

__all__ = ["GOALS", "ROWS"]

#: The brokers, the last of which loses up to a second of messages in a crash.
_BROKERS = ("eventmq", "redis-always", "rabbitmq", "redis-everysec")

_POOLS = ("prefork", "threads")

#: Messages of the throughput, and of the start delay and the round trip, which go one by one.
_MESSAGES, _SINGLE = 1000, 100

#: Seconds that messages and workers may take.
_LIMIT = 120.0


def celery(figures: Figures) -> None:
    """A Celery application on EventMQ, Redis and RabbitMQ: throughput, start delay, round trip.

    Messages are sent one by one while a worker with two processes, or threads, runs them; late
    acknowledgement. The throughput is of sending and running together. ``delay()`` returns when the
    message is on disk, but with redis-everysec. Round trips have a result.
    """
    messages = figures.sizes[0] if figures.sizes else _MESSAGES
    for name in _BROKERS:
        for pool in _POOLS:
            with tempfile.TemporaryDirectory(prefix="eventmq-bench-") as folder:
                try:
                    with SERVERS[name](Path(folder)) as server:
                        url = server.url.replace("tcp://", "eventmq://")
                        found = _measured(Path(folder), url, pool, messages)
                except Missing as error:
                    figures.more[name] = str(error)
                    continue
            figures.add(**{f"{name} {pool} {figure}": value for figure, value in found.items()})
    figures.more |= {"messages": messages, **server_versions(("redis", "rabbitmq"))}


def _measured(folder: Path, url: str, pool: str, messages: int) -> dict[str, float]:
    record = folder / "record"
    environment = {**os.environ, "CELERY_URL": url, "CELERY_RECORD": str(record)}
    client = [sys.executable, "-m", "benchmarks.celery_brokers", str(record), str(messages)]
    with _worker(folder / "worker.log", pool, environment):
        text = subprocess.check_output(client, cwd=ROOT, env=environment, text=True, timeout=_LIMIT)
    throughput, delay, trip = map(float, text.split())
    return {"messages/s": throughput, "start_p50_ms": delay * 1e3, "round_trip_p50_ms": trip * 1e3}


@contextmanager
def _worker(log: Path, pool: str, environment: dict[str, str]) -> Iterator[None]:
    command = [sys.executable, "-m", "celery", "-A", "benchmarks.celery_app", "worker", "-P", pool,
               "-c", "2", "--without-gossip", "--without-mingle", "-l", "WARNING"]  # fmt: skip
    with log.open("w") as file:
        worker = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=file)
    try:
        yield
    finally:
        worker.terminate()
        worker.wait(_LIMIT)


def _client(record: Path, messages: int) -> None:
    """Print messages per second, the median start delay and the median round trip."""
    from benchmarks.celery_app import nothing
    from benchmarks.celery_app import record as task

    sent = 0

    def send() -> None:
        nonlocal sent
        sent += 1
        task.delay(time.time())

    def wait() -> None:
        end = time.monotonic() + _LIMIT
        while not record.exists() or record.stat().st_size < sent * 8:
            if time.monotonic() > end:
                raise TimeoutError(f"{sent} messages did not run within {_LIMIT:g} s")
            time.sleep(0.001)

    for _ in range(20):  # until the worker is ready, and warm
        send()
    wait()
    started = time.monotonic()
    for _ in range(messages):
        send()
    wait()
    throughput = messages / (time.monotonic() - started)
    size = record.stat().st_size
    for _ in range(_SINGLE):
        send()
        wait()
    delays = [value for (value,) in struct.iter_unpack("d", record.read_bytes()[size:])]
    trips = []
    for _ in range(_SINGLE):
        started = time.monotonic()
        nothing.delay().get(timeout=_LIMIT)
        trips.append(time.monotonic() - started)
    print(throughput, statistics.median(delays), statistics.median(trips))


ROWS = {"celery": celery}

#: Figure -> goal.
GOALS: dict[str, dict[str, str]] = {"celery": {}}

if __name__ == "__main__":
    _client(Path(sys.argv[1]), int(sys.argv[2]))
