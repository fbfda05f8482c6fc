"""One replica of EventMQ for the harness: a broker, a worker and a producer.

Run it with ``python -m benchmarks.harness``; the harness configures it by the environment, and by
lines ``ENQUEUE n`` on stdin. Replicas share the database: one broker owns the store, and the others
stand by, while their workers and clients follow it.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import sys
import tempfile
import threading
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness.app import STATUS_FILE, TASK, WINDOW
from benchmarks.system import System
from eventmq import EventMQ

if TYPE_CHECKING:
    from collections.abc import Iterator

_MANIFEST = json.loads((Path(__file__).parent / "adapter.json").read_text())

#: Metrics that only the first replica reports.
_OF_ALL = {"queue_depth", "producer_target_rate"}


def _number(name: str, default: float) -> float:
    return float(os.environ.get(name) or default)


class _System(System):
    app = "benchmarks.harness.app:app"


class Replica:
    """Submits jobs and reports metrics.

    Args:
        broker: Address of the broker.
        status_file: The file that its worker writes.
        ended: Set when it must end.
    """

    def __init__(self, broker: str, status_file: Path, ended: threading.Event) -> None:
        self.client = EventMQ("harness", broker=broker)
        self.task: Any = self.client.task(name=TASK)(_work)
        self.status_file = status_file
        self.ended = ended
        self.number = int(_number("BENCH_INSTANCE_ID", 0))
        self.every = _number("SAMPLE_EVERY_S", 5)
        self.rate = _number("PRODUCER_RATE", 800)
        self.batch = int(_number("PRODUCER_BATCH_MAX", 128))
        self.payload = "x" * int(_number("JOB_PAYLOAD_BYTES", 256))
        self.enqueued = 0

    def write(self, **record: Any) -> None:
        """Write a line for the harness."""
        print(json.dumps(record | {"instance_id": self.number}), flush=True)

    def describe(self) -> None:
        """Write the first line."""
        self.write(
            kind="descriptor", system=_MANIFEST["system"], db_name=_MANIFEST["db_name"],
            event_tables=_MANIFEST["event_tables"], extensions=_MANIFEST["extensions"],
            version=metadata.version("eventmq"), schema_version="1", started_at=_now(),
        )  # fmt: skip

    def submit(self, n: int) -> None:
        """Submit ``n`` jobs in one call."""
        self.task.map([(time.time(), self.payload)] * n)
        self.enqueued += n

    def produce(self) -> None:
        """Submit until the end."""
        for n in self._parts():
            self.submit(n)

    def _parts(self) -> Iterator[int]:
        """Yield how many jobs to submit next, each number at its time."""
        if os.environ.get("PRODUCER_MODE") == "depth-target":
            target = int(_number("TARGET_DEPTH", 1000))
            while not self.ended.wait(0.02):
                yield from [n for n in [min(self.batch, target - self._depth())] if n > 0]
        elif os.environ.get("PRODUCER_PACING") == "harness":
            for line in sys.stdin:
                if self.ended.is_set():
                    return
                if line.startswith("ENQUEUE "):
                    yield int(line.split()[1])
        else:
            credit, last = 0.0, time.monotonic()
            while not self.ended.wait(_number("PRODUCER_BATCH_MS", 25) / 1000):
                now = time.monotonic()
                credit, last = credit + self.rate * (now - last), now
                while credit >= 1:
                    n = min(self.batch, int(credit))
                    credit -= n
                    yield n

    def sample(self) -> None:
        """Write samples until the end, the first at a round time."""
        before, last = self._counts(), time.monotonic()
        while not self.ended.wait(self.every - time.time() % self.every):
            counts, now = self._counts(), time.monotonic()
            passed = now - last
            self._emit("enqueue_rate", (counts[0] - before[0]) / passed, self.every)
            self._emit("completion_rate", (counts[1] - before[1]) / passed, self.every)
            for name, value in self._status().items():
                if name != "completed":
                    self._emit(name, value, WINDOW)
            self._emit("queue_depth", self._depth(), 0.0)
            self._emit("producer_target_rate", self.rate, 0.0)
            before, last = counts, now

    def _depth(self) -> int:
        return sum(row["waiting"] for row in self.client.ask("queues"))

    def _status(self) -> dict[str, float]:
        if not self.status_file.exists():
            return {}
        status: dict[str, float] = json.loads(self.status_file.read_text())
        return status

    def _counts(self) -> tuple[float, float]:
        return self.enqueued, self._status().get("completed", 0)

    def _emit(self, metric: str, value: float, window: float) -> None:
        if metric not in _OF_ALL or self.number == 0:
            self.write(
                t=_now(), system=_MANIFEST["system"], kind="adapter", subject_kind="adapter",
                subject="", metric=metric, value=value, window_s=window,
            )  # fmt: skip


def _work(created: float, payload: str) -> None:
    """Stand for `benchmarks.harness.app.work`."""


def _now() -> str:
    now = dt.datetime.now(dt.timezone.utc)
    return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def main() -> None:
    """Run until SIGTERM."""
    with tempfile.TemporaryDirectory(prefix="eventmq-harness-") as folder:
        status_file, ended = Path(folder) / "status.json", threading.Event()
        os.environ[STATUS_FILE] = str(status_file)
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, lambda *_: ended.set())
        system = _System(Path(folder))
        try:
            system.start_broker("--store", os.environ["DATABASE_URL"])
            system.start_worker(int(_number("WORKER_COUNT", 32)), "--pool", "asyncio")
            replica = Replica(system.address, status_file, ended)
            replica.describe()
            for loop in (replica.produce, replica.sample):
                threading.Thread(target=loop, daemon=True).start()
            ended.wait()
        finally:
            system.stop()


if __name__ == "__main__":
    main()
