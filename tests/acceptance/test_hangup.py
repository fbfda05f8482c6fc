"""SIGHUP: workers and schedulers restart with new code, servers reload their keys."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.system import DEADLINE, Process, System, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from eventmq import Job

VERSIONED = """
from pathlib import Path

VERSION = 1


@app.task
def version():
    return VERSION


@app.task
def gated(gate):
    note("start gated")
    while not Path(gate).exists():
        time.sleep(0.02)
    return VERSION
"""

#: Makes stdin the terminal of a session, and runs Python with the other arguments.
ON_ITS_TERMINAL = (
    "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    system = System(tmp_path)
    with (tmp_path / "survivor.py").open("a") as module:
        module.write(VERSIONED)
    yield system
    system.stop()


def deploy(system: System, old: str, new: str) -> None:
    """Change the code of the app.

    Python takes compiled code for current where the source has the same size and the same whole
    second of modification, so each version is at least a second younger than the one before.
    """
    module = system.folder / "survivor.py"
    text = module.read_text()
    assert old in text
    newer = module.with_suffix(".new")
    newer.write_text(text.replace(old, new))
    second = int(module.stat().st_mtime) + 1
    os.utime(newer, (second, second))
    newer.replace(module)


def send(system: System, task: str, *arguments: object) -> Job[Any]:
    return system.app().send(f"survivor.{task}", arguments)


def log(system: System, name: str = "worker") -> str:
    return (system.folder / f"{name}.log").read_text()


def start_held_job(system: System) -> tuple[Job[Any], Path]:
    """Start a job that runs until its gate is there."""
    release = system.folder / "gate"
    job = send(system, "gated", str(release))
    until(lambda: system.has_started(1), "the job runs")
    return job, release


def hang_up(process: Process) -> None:
    process.send_signal(signal.SIGHUP)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_worker_finishes_what_runs_and_goes_on_with_new_code(system: System, pool: str) -> None:
    """In the same process: a supervisor sees nothing of it."""
    system.broker()
    worker = system.worker("--pool", pool)
    job, release = start_held_job(system)
    deploy(system, "VERSION = 1", "VERSION = 2")
    hang_up(worker)
    until(lambda: "ending: takes no more jobs" in log(system), "it takes no more jobs")
    release.touch()
    assert 1 == job.get(timeout=DEADLINE)
    system.ready(worker)
    assert 2 == send(system, "version").get(timeout=DEADLINE)
    assert worker.poll() is None


def test_a_worker_restarts_at_every_sighup(system: System) -> None:
    """A SIGHUP that comes while it starts is kept until it can act on it."""
    system.broker()
    worker = system.worker()
    for number in range(2, 4):
        deploy(system, f"VERSION = {number - 1}", f"VERSION = {number}")
        hang_up(worker)
        system.ready(worker)
        assert number == send(system, "version").get(timeout=DEADLINE)


def test_a_worker_goes_on_with_the_old_code_where_the_new_cannot_be_loaded(system: System) -> None:
    system.broker()
    worker = system.worker()
    deploy(system, "VERSION = 1", "VERSION = 1 / 0")
    hang_up(worker)
    until(lambda: "the worker continues with the old code" in log(system), "the log line")
    assert "ZeroDivisionError: division by zero (survivor.py, line" in log(system)
    assert 1 == send(system, "version").get(timeout=DEADLINE)
    deploy(system, "VERSION = 1 / 0", "VERSION = 2")
    hang_up(worker)
    system.ready(worker)
    assert 2 == send(system, "version").get(timeout=DEADLINE)


def test_a_worker_that_is_stopped_while_it_restarts_ends(system: System) -> None:
    """SIGTERM after SIGHUP is the first one: what runs may finish."""
    system.broker()
    worker = system.worker()
    job, release = start_held_job(system)
    hang_up(worker)
    until(lambda: "ending: takes no more jobs" in log(system), "it takes no more jobs")
    worker.send_signal(signal.SIGTERM)
    release.touch()
    assert 1 == job.get(timeout=DEADLINE)
    assert 0 == worker.wait(DEADLINE)


def test_a_scheduler_goes_on_with_the_schedules_of_new_code(system: System) -> None:
    system.broker()
    arguments = ("beat", "-A", "survivor", "--broker", system.address)
    beat, _ = system.start(*arguments)
    deploy(system, "VERSION = 1", "VERSION = 1\napp.schedule('often', version.s(), every(days=1))")
    hang_up(beat)
    until(lambda: "continues with the old code" in log(system, "beat"), "no every there")
    deploy(system, "import EventMQ", "import EventMQ, every")
    deploy(system, "VERSION = 1\napp.schedule('often', version.s(), every(days=1))", "VERSION = 1")
    with (system.folder / "survivor.py").open("a") as module:
        module.write("app.schedule('often', version.s(), every(days=1))\n")
    hang_up(beat)
    system.ready(beat)
    assert "schedule 'often' is new" in log(system, "beat")
    assert beat.poll() is None


def test_a_broker_reads_its_keys_again_and_goes_on(system: System) -> None:
    broker = system.broker()
    hang_up(broker)
    until(lambda: "no keys are in use" in log(system, "broker"), "the log line")
    system.worker()
    assert 1 == send(system, "version").get(timeout=DEADLINE)
    assert broker.poll() is None


def test_a_broker_with_keys_logs_how_many_it_has_read(system: System) -> None:
    command = [sys.executable, "-m", "eventmq", "keys", "new", "--broker", "--keys-dir", "keys"]
    subprocess.run(command, cwd=system.folder, check=True, capture_output=True)
    broker, _ = system.start("broker", "--bind", "tcp://127.0.0.1:0", "--keys-dir", "keys")
    assert 1 == log(system, "broker").count("0 keys are authorised")
    hang_up(broker)
    until(lambda: 2 == log(system, "broker").count("0 keys are authorised"), "it reads them again")
    assert broker.poll() is None


def test_dev_passes_it_on_to_all_that_it_runs(system: System) -> None:
    """The worker continues with the new code; code that cannot be loaded ends no process."""
    bind = ("--bind", "tcp://127.0.0.1:0")
    dev, line = system.start("dev", "-A", "survivor", *bind, "--data-dir", "data")
    system.address = next(w for w in line.split() if "tcp://" in w).partition("=")[2]
    deploy(system, "VERSION = 1", "VERSION = 1 / 0")
    hang_up(dev)
    for name in ("worker", "beat"):
        words = f"the {'scheduler' if name == 'beat' else name} continues with the old code"
        until(lambda words=words: words in log(system, "dev"), words)
    until(lambda: "no keys are in use" in log(system, "dev"), "the broker's")
    deploy(system, "VERSION = 1 / 0", "VERSION = 2")
    hang_up(dev)
    until(lambda: 2 == send(system, "version").get(timeout=DEADLINE), "the new code")
    dev.send_signal(signal.SIGINT)
    assert 0 == dev.wait(DEADLINE)


class OnTerminal(Process):
    """A command that has a terminal of its own, which `hang_up` closes."""

    def __init__(self, system: System, *arguments: str) -> None:
        self.terminal, child_end = pty.openpty()
        environment = {**os.environ, "RECORD": str(system.record), "WHO": "terminal"}
        super().__init__(
            [sys.executable, "-c", ON_ITS_TERMINAL, "-m", "eventmq", *arguments],
            stdin=child_end, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            cwd=system.folder, env=environment,
        )  # fmt: skip
        os.close(child_end)
        system.processes.append(self)
        system.ready(self)

    def hang_up(self) -> None:
        """Close the terminal, and tell all processes of the command, as a shell does."""
        os.close(self.terminal)
        with suppress(ProcessLookupError):  # it has ended by then
            os.killpg(self.pid, signal.SIGHUP)


@pytest.mark.parametrize("command", ["broker", "worker", "beat", "dev"])
def test_a_process_whose_terminal_was_closed_ends(system: System, command: str) -> None:
    """It restarts at a SIGHUP sent by a process, not at the one of a closed terminal."""
    system.broker()
    arguments = {
        "broker": ["--bind", "tcp://127.0.0.1:0", "--data-dir", "other"],
        "worker": ["-A", "survivor", "--broker", system.address],
        "beat": ["-A", "survivor", "--broker", system.address],
        "dev": ["-A", "survivor", "--bind", "tcp://127.0.0.1:0", "--data-dir", "other"],
    }[command]
    process = OnTerminal(system, command, *arguments)
    process.hang_up()
    assert 0 == process.wait(DEADLINE)


def test_what_runs_ends_before_a_worker_whose_terminal_was_closed(system: System) -> None:
    """Its child processes get the same signal."""
    system.broker()
    worker = OnTerminal(system, "worker", "-A", "survivor", "--broker", system.address)
    job, release = start_held_job(system)
    worker.hang_up()
    release.touch()
    assert 1 == job.get(timeout=DEADLINE)
    assert 0 == worker.wait(DEADLINE)
    assert 1 == system.record.read_text().count("start gated")


def test_what_is_ignored_stays_ignored(system: System) -> None:
    """As under nohup, which is there so that nothing happens."""
    broker, _ = system.start("broker", "--bind", "tcp://127.0.0.1:0", under=["nohup"])
    hang_up(broker)
    broker.send_signal(signal.SIGTERM)
    assert 0 == broker.wait(DEADLINE)
    assert "SIGHUP" not in log(system, "broker")


@pytest.mark.parametrize("command", ["worker", "beat"])
def test_check_reports_whether_the_app_can_be_loaded(system: System, command: str) -> None:
    def check() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "eventmq", "-q", command, "-A", "survivor", "--check"],
            cwd=system.folder, capture_output=True, text=True, timeout=DEADLINE, check=False,
        )  # fmt: skip

    assert (0, "", "") == (check().returncode, check().stdout, check().stderr)
    deploy(system, "VERSION = 1", "VERSION = nothing")
    done = check()
    assert 2 == done.returncode
    assert "error: -A survivor: the module 'survivor' cannot be imported: NameError" in done.stderr
