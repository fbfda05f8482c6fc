"""The rows about one application of Celery, or of Dramatiq, on EventMQ and on other brokers."""

from __future__ import annotations

import importlib
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peers.servers import SERVERS, Missing, server_versions
from benchmarks.system import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.figures import Figures

__all__ = ["GOALS", "ROWS"]

#: The brokers, the last of which loses up to a second of messages in a crash.
_BROKERS = ("eventmq", "redis-always", "rabbitmq", "redis-everysec")

#: Framework -> name of a kind of worker -> its command; all run two messages at a time.
_WORKERS = {
    "celery": {
        pool: f"celery -A benchmarks.celery_app worker -P {pool} -c 2 --without-gossip "
        "--without-mingle -l WARNING" for pool in ("prefork", "threads")
    },
    "dramatiq": {
        "processes": "dramatiq benchmarks.dramatiq_app -p 2 -t 1",
        "threads": "dramatiq benchmarks.dramatiq_app -p 1 -t 2",
    },
}  # fmt: skip

#: Messages of each throughput, and of the start delay and the round trip, which go one by one.
_MESSAGES, _SINGLE = 1000, 100

#: Threads of the client that send at the same time, as those of a web server do.
_SENDERS = 8

#: Seconds that messages and workers may take.
_LIMIT = 120.0


def celery(figures: Figures) -> None:
    """A Celery application on EventMQ, Redis and RabbitMQ: throughput, start delay, round trip.

    A worker with two processes, or threads, runs messages while they are sent, by eight threads and
    then by one; late acknowledgement. The throughput is of sending and running together.
    ``delay()`` returns when the message is on disk, but with redis-everysec. Round trips have a
    result.
    """
    _measure(figures, "celery")


def dramatiq(figures: Figures) -> None:
    """A Dramatiq application in the same way as the Celery one, without round trips."""
    _measure(figures, "dramatiq")


def _measure(figures: Figures, framework: str) -> None:
    messages = figures.sizes[0] if figures.sizes else _MESSAGES
    for name in _BROKERS:
        for kind, command in _WORKERS[framework].items():
            with tempfile.TemporaryDirectory(prefix="eventmq-bench-") as folder:
                try:
                    with SERVERS[name](Path(folder)) as server:
                        url = server.url.replace("tcp://", "eventmq://")
                        found = _measured(Path(folder), url, framework, command, messages)
                except Missing as error:
                    figures.more[name] = str(error)
                    continue
            figures.add(**{f"{name} {kind} {figure}": value for figure, value in found.items()})
    figures.more |= {"messages": messages, **server_versions(("redis", "rabbitmq"))}


def _measured(
    folder: Path, url: str, framework: str, command: str, messages: int
) -> dict[str, float]:
    record = folder / "record"
    environment = {**os.environ, "BENCH_URL": url, "BENCH_RECORD": str(record)}
    client = [sys.executable, "-m", "benchmarks.app_brokers", framework, str(record), str(messages)]
    with _worker(folder / "worker.log", command, environment):
        text = subprocess.check_output(client, cwd=ROOT, env=environment, text=True, timeout=_LIMIT)
    names = ("messages/s", "messages/s from one thread", "start_p50_ms", "round_trip_p50_ms")
    return dict(zip(names, map(float, text.split()), strict=False))


@contextmanager
def _worker(log: Path, command: str, environment: dict[str, str]) -> Iterator[None]:
    with log.open("w") as file:
        worker = subprocess.Popen(
            [sys.executable, "-m", *command.split()],
            cwd=ROOT, env=environment, stdout=file, stderr=file,
        )  # fmt: skip
    try:
        yield
    finally:
        worker.terminate()
        worker.wait(_LIMIT)


def _client(framework: str, record: Path, messages: int) -> None:
    """Print both throughputs, the medians of start delay and, of Celery, round trip; in ms."""
    app = importlib.import_module(f"benchmarks.{framework}_app")
    send_one: Callable[[float], object] = getattr(app.record, "delay", None) or app.record.send
    sent = 0

    def send(count: int = 1) -> None:
        for _ in range(count):
            send_one(time.time())

    def wait() -> None:
        end = time.monotonic() + _LIMIT
        while not record.exists() or record.stat().st_size < sent * 8:
            if time.monotonic() > end:
                raise TimeoutError(f"{sent} messages did not run within {_LIMIT:g} s")
            time.sleep(0.001)

    with ThreadPoolExecutor(_SENDERS) as senders:
        for threads, each in ((_SENDERS, 5), (_SENDERS, messages // _SENDERS), (1, messages)):
            started = time.monotonic()
            list(senders.map(send, [each] * threads))
            sent += threads * each
            wait()
            if each > 5:  # the first few are for the worker to be ready, and all to be warm
                print(threads * each / (time.monotonic() - started))
    size = record.stat().st_size
    for _ in range(_SINGLE):
        send()
        sent += 1
        wait()
    delays = [value for (value,) in struct.iter_unpack("d", record.read_bytes()[size:])]
    print(statistics.median(delays) * 1e3)
    trips = []
    for _ in range(_SINGLE if framework == "celery" else 0):
        started = time.monotonic()
        app.nothing.delay().get(timeout=_LIMIT)
        trips.append(time.monotonic() - started)
    if trips:
        print(statistics.median(trips) * 1e3)


ROWS = {"celery": celery, "dramatiq": dramatiq}

#: Figure -> goal.
GOALS: dict[str, dict[str, str]] = {"celery": {}, "dramatiq": {}}

if __name__ == "__main__":
    _client(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
