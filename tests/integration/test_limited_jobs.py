"""Limits from end to end: the page about them, and a broker with two workers as processes."""

from __future__ import annotations

import os
import re
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from tests.support.system import DEADLINE, System

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "tasks" / "limit-jobs.rst"

APP = """
import os
import time

from eventmq import EventMQ

app = EventMQ("survivor")


@app.task(max_concurrency=1)
def alone(number):
    marker = os.environ["RECORD"] + ".marker"
    os.close(os.open(marker, os.O_CREAT | os.O_EXCL))  # fails while another one runs
    time.sleep(0.01)
    os.unlink(marker)
    return os.getpid()


@app.task(rate_limit="5/s")
def paced(number):
    return time.time()
"""


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    system = System(tmp_path)
    (tmp_path / "survivor.py").write_text(APP)
    yield system
    system.stop()


def test_the_examples_of_the_page_do_what_they_say() -> None:
    """All blocks, one after the other, as a reader would type them."""
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^\.\. code-block:: python\n\n((?:(?: {3}.*)?\n)+)", text, re.MULTILINE)
    assert len(blocks) == 5
    names: dict[str, object] = {"__name__": "mail"}
    for block in blocks:
        exec(compile(dedent(block), str(PAGE), "exec"), names)
    names["app"].close()  # type: ignore[attr-defined]


def test_limits_hold_over_the_processes_of_two_workers(system: System) -> None:
    """Never two at once of four children, and no more than the rate; all of them are run."""
    system.broker()
    system.worker()
    system.worker()
    app = system.app()

    @app.task(name="survivor.alone", max_concurrency=1)
    def alone(number: int) -> int:
        return number

    @app.task(name="survivor.paced", rate_limit="5/s")
    def paced(number: int) -> float:
        return number

    paced_jobs = paced.map([(n,) for n in range(15)])
    jobs = alone.map([(n,) for n in range(60)])
    processes = {job.get(timeout=DEADLINE) for job in jobs}
    assert os.getpid() not in processes
    times = sorted(job.get(timeout=DEADLINE) for job in paced_jobs)
    assert times[14] - times[0] >= 1.7
