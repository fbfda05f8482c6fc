"""One line of the log for each decision about a job, with the fields of the job."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from eventmq import EventMQ, JobFailed
from eventmq.errors import JobCancelled, JobExpired
from tests.support.shell import Shell, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.shell import Program

SHOP = """
import os
import pathlib
import time

from eventmq import EventMQ, fixed

app = EventMQ("shop")


@app.task(retry_policy=fixed(delay=0.01))
def fail():
    raise ValueError("no")


@app.task(retry_policy=fixed(delay=0.01))
def sleep(seconds):
    pathlib.Path("started").touch()
    time.sleep(seconds)


@app.task
def die():
    os._exit(3)


@app.task
def fine():
    pass
"""


class System(Shell):
    """Broker and worker that log in JSON."""

    def __init__(self, folder: Path) -> None:
        (folder / "shop.py").write_text(SHOP)
        bind = f"tcp://127.0.0.1:{free_port()}"
        super().__init__(folder, EVENTMQ_BROKER=bind)
        self.app = EventMQ("client", broker=bind, submit_timeout=20.0)
        self.both = [
            self.start("broker", "--bind", bind, "--log-format", "json"),
            self.start("worker", "-A", "shop", "-c", "1", "--log-format", "json"),
        ]
        for program in self.both:
            program.ready()

    def end(self) -> None:
        """End both, so that all lines are written."""
        for program in reversed(self.both):
            assert program.stop() == 0

    def lines(self, job_id: str) -> list[tuple[str, str, int]]:
        """Return the lines about a job: whose, level and attempt, and check their other fields."""
        lines = []
        for name, program in zip(("broker", "worker"), self.both, strict=True):
            for line in json_lines(program):
                if job_id in line["message"] or line.get("job_id") == job_id:
                    assert line["job_id"] == job_id, line
                    assert line["task"].startswith("shop."), line
                    assert line["queue"] == "default", line
                    lines.append((name, line["level"], line["attempt"]))
        return lines

    def close(self) -> None:
        self.app.close()
        super().close()


def json_lines(program: Program) -> list[dict[str, Any]]:
    return [json.loads(line) for line in program.text.splitlines() if line.startswith("{")]


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    system = System(tmp_path)
    yield system
    system.close()


def test_each_decision_about_a_job_is_one_line_with_its_fields(system: System) -> None:
    app = system.app
    fine, failed, timed_out, died = (
        app.send("shop.fine"),
        app.send("shop.fail", retries=1),
        app.send("shop.sleep", (60,), timeout=0.3, retries=1),
        app.send("shop.die"),
    )
    fine.get(timeout=40)
    for job in (failed, timed_out, died):
        with pytest.raises(JobFailed):
            job.get(timeout=40)
    again = app.send("shop.fail")
    with pytest.raises(JobFailed):
        again.get(timeout=40)
    (system.folder / "started").unlink()
    slow = app.send("shop.sleep", (60,))
    while not (system.folder / "started").exists():
        assert slow.state in {"queued", "running"}
    expired = app.send("shop.fine", expires=0.05)
    with pytest.raises(JobExpired):
        expired.get(timeout=40)
    slow.cancel("enough")
    with pytest.raises(JobCancelled):
        slow.get(timeout=40)
    assert app.ask("drop", {"ids": [again.id]}) == [[again.id, "dropped", "failed"]]
    app.send("shop.fine").get(timeout=40)
    system.end()
    tried_again = [("worker", "warning", 1), ("worker", "error", 2)]
    assert system.lines(fine.id) == []
    assert system.lines(failed.id) == tried_again
    assert system.lines(timed_out.id) == tried_again, (
        "a job stopped at its timeout is not logged twice"
    )
    assert system.lines(died.id) == [("broker", "error", 1), *[("worker", "error", 1)] * 3]
    assert system.lines(again.id) == [("broker", "info", 1), ("worker", "error", 1)]
    assert system.lines(expired.id) == [("broker", "info", 1)]
    assert system.lines(slow.id) == [("broker", "info", 1), ("worker", "info", 1)]
    others = [line["message"] for line in json_lines(system.both[1]) if "job_id" not in line]
    assert [text for text in others if "slot" in text] == [], "each death is logged with its job"
