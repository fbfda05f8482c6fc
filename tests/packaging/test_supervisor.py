"""supervisord runs the programs of deploy/supervisord.conf."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from eventmq import EventMQ
from tests.support.shell import Program, Shell, free_port
from tests.support.system import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(120)

CONF = Path(__file__).parents[2] / "deploy" / "supervisord.conf"
PROGRAMS = Path(sys.executable).parent

SHOP = """
import os
import re
import time

from eventmq import EventMQ

app = EventMQ("shop")


@app.task
def total(prices):
    return sum(prices)


@app.task
def slow(started, go):
    with open(started, "a") as file:
        file.write("once")
    while not os.path.exists(go):
        time.sleep(0.01)
    return "done"
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "logs").mkdir()
    shutil.copy(CONF, tmp_path)
    address = f"tcp://127.0.0.1:{free_port()}"
    shell = Shell(
        tmp_path, EVENTMQ_DATA=str(tmp_path / "data"), EVENTMQ_APP=str(tmp_path),
        EVENTMQ_BIND=address, EVENTMQ_BROKER=address, TMPDIR=str(tmp_path / "logs"),
    )  # fmt: skip
    shell.environ["PATH"] = f"{PROGRAMS}:{shell.environ['PATH']}"
    yield shell
    for program in shell.programs:  # killed, it would leave its programs behind
        program.stop()
    shell.close()


def start(shell: Shell) -> Program:
    return shell.launch(str(PROGRAMS / "supervisord"), "-c", "supervisord.conf")


def pids(supervisor: Program) -> dict[str, int]:
    """Return the process that was last started for each program."""
    spawned = re.findall(r"INFO spawned: '(\w+)' with pid (\d+)", supervisor.text)
    return {name: int(pid) for name, pid in spawned}


def test_broker_worker_and_beat_run_and_are_drained(shell: Shell) -> None:
    """A worker that is killed comes back; at SIGTERM a running job ends, and its result is kept."""
    supervisor = start(shell)
    until(lambda: supervisor.text.count("entered RUNNING state") == 3, "all programs run")
    assert set(pids(supervisor)) == {"broker", "worker", "beat"}
    go, started = shell.folder / "go", shell.folder / "started"
    with EventMQ("client", broker=shell.environ["EVENTMQ_BROKER"], submit_timeout=30.0) as app:
        assert app.send("shop.total", ([1, 2],)).get(timeout=40) == 3
        worker = pids(supervisor)["worker"]
        os.kill(worker, signal.SIGKILL)
        until(lambda: pids(supervisor)["worker"] != worker, "the worker was started again")
        job = app.send("shop.slow", (str(started), str(go)))
        until(started.exists, "the job runs")
        supervisor.process.send_signal(signal.SIGTERM)
        logs = shell.folder / "logs"
        until(
            lambda: any("takes no more jobs" in each.read_text() for each in logs.iterdir()),
            "the worker ends",
        )
        go.touch()
        assert supervisor.wait() == 0
        assert "killing" not in supervisor.text, "each ended by itself"
        stopped = re.findall(r"INFO stopped: (\w+)", supervisor.text)
        assert stopped == ["beat", "worker", "broker"]
        again = start(shell)
        assert job.get(timeout=40) == "done"
        assert started.read_text() == "once"
        assert again.stop() == 0
