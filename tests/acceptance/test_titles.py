"""Titles of real processes, as ``ps`` shows them."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from eventmq import titles
from tests.support.system import DEADLINE, System, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HELD_TASK = """
from pathlib import Path


@app.task
def gated(gate):
    note(os.getpid())
    while not Path(gate).exists():
        time.sleep(0.02)
"""


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    system = System(tmp_path)
    with (tmp_path / "survivor.py").open("a") as module:
        module.write(HELD_TASK)
    yield system
    system.stop()


def title(pid: int) -> str:
    command = ["ps", "-o", "args=", "-p", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def test_titles_show_the_kind_of_a_process(system: System) -> None:
    broker = system.broker()
    worker = system.worker()
    beat, _ = system.start("beat", "-A", "survivor", "--broker", system.address)
    titles = [title(process.pid) for process in (broker, worker, beat)]
    assert titles == ["eventmq: broker", "eventmq: worker survivor", "eventmq: beat survivor"]


def test_the_title_of_a_child_shows_the_task_that_it_runs(system: System) -> None:
    """Very short jobs are not shown: no one could read their titles."""
    system.broker()
    system.worker("-c", "1")
    app = system.app()
    release = system.folder / "gate"
    job = app.send("survivor.gated", (str(release),))
    until(lambda: system.has_started(1), "the job runs")
    (pid,) = map(int, system.executed())
    until(lambda: title(pid) == "eventmq: child survivor.gated", "its title")
    release.touch()
    job.get(timeout=DEADLINE)
    until(lambda: title(pid) == "eventmq: child", "it is idle")
    app.send("survivor.work", (1,)).get(timeout=DEADLINE)
    assert title(pid) == "eventmq: child"


def test_without_the_library_processes_keep_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has wheels for most platforms, not for all."""
    monkeypatch.setattr(titles, "setproctitle", None)
    titles.set_title("worker", "shop")
