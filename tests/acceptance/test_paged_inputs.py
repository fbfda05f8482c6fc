"""Inputs of a callback that exceed a message, with processes killed in the middle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from eventmq import chord
from tests.support.system import System, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Members of a chord, bytes of the result of each, and of the longest message.
MEMBERS, SIZE, FRAME = 64, 256 * 1024, 400 * 1024

_TASKS = """

@app.task
def fill(number, size):
    return bytes([number]) * size


@app.task
def measure(parts, name):
    note(f"measure {name}")
    assert all(part == part[:1] * len(part) for part in parts)
    return [[part[0], len(part)] for part in parts]
"""


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[System]:
    monkeypatch.setenv("EVENTMQ_MAX_FRAME", str(FRAME))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    system = System(tmp_path)
    module = tmp_path / "survivor.py"
    module.write_text(module.read_text() + _TASKS)
    yield system
    system.stop()


def start(system: System, name: str) -> Any:
    """Submit a chord."""
    app = system.app(submit_timeout=20.0)
    fill, measure = (app.task(name=f"survivor.{each}")(_task) for each in ("fill", "measure"))
    return chord([fill.s(n, SIZE) for n in range(MEMBERS)], measure.s(name)).delay()


def _task(*_: Any) -> Any:
    """Stand for a task of the workers."""


def fetched(system: System, pages: int) -> bool:
    """Whether so many pages of a callback have been kept, and not all."""
    parts = [path.stat().st_size for path in system.folder.glob("eventmq-inputs-*/part")]
    return any(size >= pages * SIZE for size in parts)


def test_inputs_are_exact_whoever_is_killed_while_they_are_fetched(system: System) -> None:
    """The broker, then the worker; the callback runs once, and nothing is left of the pages."""
    broker = system.broker()
    worker = system.worker()
    expected = [[number, SIZE] for number in range(MEMBERS)]
    job = start(system, "broker")
    until(lambda: fetched(system, 3), "some pages were fetched")
    broker.kill9()
    system.broker()
    assert job.get(timeout=40) == expected
    job = start(system, "worker")
    until(lambda: fetched(system, 3), "some pages were fetched")
    worker.kill9()
    system.worker()
    assert job.get(timeout=40) == expected
    assert job.info()["delivery"] == 2
    counted = {name: n for name, n in system.executed().items() if name.startswith("measure")}
    assert counted == {"measure broker": 1, "measure worker": 1}
    files = lambda: list(system.folder.glob("eventmq-inputs-*/[0-9a-f]*"))  # noqa: E731
    until(lambda: not files(), "fetched inputs are removed")
    assert len(list(system.folder.glob("eventmq-inputs-*"))) == 1
