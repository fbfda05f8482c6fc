"""Chords with real processes, of which broker and worker are killed in the middle."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from eventmq import chord
from tests.support.system import DEADLINE, System, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Chords and members of each; the large run has 1000x100.
CHORDS, MEMBERS = map(int, os.environ.get("EVENTMQ_TEST_CHORDS", "100x20").split("x"))

_TASKS = """

@app.task
def gather(numbers, name):
    note(f"gather {name}")
    return sum(numbers)
"""


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    system = System(tmp_path)
    module = tmp_path / "survivor.py"
    module.write_text(module.read_text() + _TASKS)
    yield system
    system.stop()


def client(system: System) -> tuple[Any, Any, Any]:
    """Return a client app, and the worker's tasks as it sees them."""
    app = system.app(submit_timeout=20.0)

    @app.task(name="survivor.work")
    def work(number: int) -> int:
        """Note the number and return it."""
        return number

    @app.task(name="survivor.gather")
    def gather(numbers: list[int], name: str) -> int:
        """Note the name and return the sum."""
        return sum(numbers)

    return app, work, gather


def test_every_callback_comes_once_whatever_is_killed(system: System) -> None:
    """With all results in order; it is run again only where its delivery was cut off."""
    broker = system.broker()
    worker = system.worker()
    app, work, gather = client(system)
    jobs = [
        chord([work.s(n * MEMBERS + i) for i in range(MEMBERS)], gather.s(str(n))).delay()
        for n in range(CHORDS // 2)
    ]
    until(lambda: system.has_started(CHORDS * MEMBERS // 8), "an eighth was executed")
    broker.kill9()
    system.broker()
    jobs += [
        chord([work.s(n * MEMBERS + i) for i in range(MEMBERS)], gather.s(str(n))).delay()
        for n in range(CHORDS // 2, CHORDS)
    ]
    worker.kill9()
    system.worker()
    app.wait(jobs, timeout=DEADLINE * (1 + CHORDS * MEMBERS / 10_000))
    members = [sum(range(n * MEMBERS, n * MEMBERS + MEMBERS)) for n in range(CHORDS)]
    assert [job.get() for job in jobs] == members
    executed = system.executed()
    for n, job in enumerate(jobs):
        assert 1 <= executed[f"gather {n}"] <= job.info()["delivery"]
    assert all(executed[str(number)] >= 1 for number in range(CHORDS * MEMBERS))
    [queue] = app.ask("queues")
    assert (queue["waiting"], queue["running"], queue["failed"]) == (0, 0, 0)
