"""A worker with the pool ``spark`` whose executor is killed while a job runs there."""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.system import DEADLINE, System, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from eventmq import EventMQ

#: Imported by this process and by the executors. Job 0 takes a minute, when it runs first.
WARD = """
import os
import threading
from pathlib import Path

from eventmq import EventMQ

app = EventMQ("ward")


@app.task
def work(folder, number):
    starts = Path(folder, f"starts-{number}")
    first = number == 0 and not starts.exists()
    with starts.open("a") as file:
        file.write(f"{os.getpid()}\\n")
    if first:
        threading.Event().wait(60)
    return number
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EventMQ]:
    """The app, with a broker."""
    system = System(tmp_path)
    system.broker()
    (tmp_path / "ward.py").write_text(WARD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("EVENTMQ_BROKER", system.address)
    app: EventMQ = importlib.import_module("ward").app
    yield app
    app.close()
    system.stop()
    del sys.modules["ward"]


def starts(folder: Path, number: int) -> list[int]:
    """Return the processes in which a job was started."""
    path = folder / f"starts-{number}"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def executor_of(pid: int) -> int:
    """Return the process of Spark above that of a job."""
    while pid > 1:
        match = re.search(r"^PPid:\t(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        assert match is not None
        pid = int(match[1])
        if b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise AssertionError("it runs in no process of Spark")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="finds the executor by /proc")
def test_the_job_of_a_lost_executor_is_run_again_and_no_other(
    spark: SparkSession, app: EventMQ, tmp_path: Path
) -> None:
    """The loss costs its job a delivery and no attempt; those behind it run once."""
    worker = app.make_worker(path="ward:app", pool="spark", concurrency=1)
    results: dict[int, Any] = {}

    def go() -> None:
        try:
            jobs = [app.tasks["ward.work"].delay(str(tmp_path), n) for n in range(6)]
            until(lambda: starts(tmp_path, 0), "the job runs")
            os.kill(executor_of(starts(tmp_path, 0)[0]), signal.SIGKILL)
            for number, job in enumerate(jobs):
                results[number] = (job.get(timeout=DEADLINE), job.info())
        finally:
            worker.stop()

    client = threading.Thread(target=go)
    client.start()
    worker.run()  # here: a session of Spark is of the thread that has started it
    client.join(DEADLINE)
    assert [value for value, _ in results.values()] == list(range(6))
    assert len(set(starts(tmp_path, 0))) == 2
    assert [len(starts(tmp_path, number)) for number in range(1, 6)] == [1] * 5
    assert results[0][1]["delivery"] == 2
    assert {info["attempt"] for _, info in results.values()} == {1}
