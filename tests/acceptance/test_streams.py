"""Streams through real processes: worker or broker killed in the middle, and a slow reader."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.errors import StreamRestarted
from tests.support.system import Process, System, until

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "tasks" / "streams.rst"

APP = """
import time

from eventmq import EventMQ, current_job

app = EventMQ("survivor")


def numbers(to, pause):
    for number in range(to):
        current_job().progress(number, to)
        yield number
        time.sleep(pause)
    return "done"


counted = app.task(name="survivor.counted")(numbers)
replayed = app.task(name="survivor.replayed", replayable=True)(numbers)


@app.task
def large(parts, size):
    for _ in range(parts):
        yield b"x" * size
"""

#: Parts of a stream, and seconds between two of them.
PARTS, PAUSE = 60, 0.01


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("streams")
    system = System(folder)
    (folder / "survivor.py").write_text(APP)
    system.broker()
    yield system
    system.stop()


def rss(pid: int) -> float:
    """Return the resident MiB of a process."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(re.findall(r"VmRSS:\s+(\d+)", text)[0]) / 1024


def test_a_killed_worker_is_seen_by_the_reader_unless_the_task_is_replayable(
    system: System,
) -> None:
    """kill -9 in the middle of two streams: one restarts, the other continues."""
    first = system.worker()
    app = system.app()
    replayed = app.task(name="survivor.replayed", replayable=True)(stand_in)
    jobs = [app.send("survivor.counted", (PARTS, PAUSE)), replayed.delay(PARTS, PAUSE)]
    streams = [job.stream() for job in jobs]
    seen = [[next(stream) for _ in range(10)] for stream in streams]
    until(lambda: jobs[0].info()["progress"], "it tells how far it is", 5.0)
    first.kill9()
    system.worker()
    with pytest.raises(StreamRestarted):
        seen[0] += streams[0]
    assert seen[0] == list(range(len(seen[0])))
    assert list(streams[0]) == list(range(PARTS))
    assert seen[1] + list(streams[1]) == list(range(PARTS))
    assert [job.get() for job in jobs] == ["done", "done"]


def broker_of(system: System) -> Process:
    """Return the broker that was started last."""
    return [process for process in system.processes if "broker" in process.args][-1]


def stand_in(*_: Any) -> Any:
    """Yield in a worker."""
    yield


def test_a_restart_of_the_broker_loses_no_part(system: System) -> None:
    app = system.app()
    job = app.send("survivor.counted", (PARTS, PAUSE))
    stream = job.stream()
    seen = [next(stream) for _ in range(10)]
    broker_of(system).kill9()
    system.broker()
    assert seen + list(stream) == list(range(PARTS))
    assert job.get() == "done"


def test_a_fast_task_and_a_slow_reader_fill_no_memory(system: System) -> None:
    """400 MiB of parts, of which no reader takes more than a few."""
    app = system.app()
    broker = broker_of(system).pid
    job = app.send("survivor.large", (4000, 100_000))
    stream = job.stream()
    next(stream)
    before = rss(broker)
    for _ in range(100):
        assert len(next(stream)) == 100_000
    assert rss(broker) - before < 20.0
    assert job.state == "running"
    assert job.cancel()


def test_the_examples_of_the_page_do_what_they_say() -> None:
    """All blocks, one after the other, as a reader would type them."""
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^\.\. code-block:: python\n\n((?:(?: {3}.*)?\n)+)", text, re.MULTILINE)
    assert len(blocks) == 7
    names: dict[str, object] = {"__name__": "report"}
    for block in blocks:
        exec(compile(dedent(block), str(PAGE), "exec"), names)
