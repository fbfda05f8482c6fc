"""Brokers and workers as processes of the command line, and a record of executed jobs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

from eventmq.app import EventMQ
from eventmq.events import rows_of
from eventmq.plugins.queue_stores.sqlite.reading import SqliteEventLogReader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["DEADLINE", "Process", "System", "until"]

#: Timeout of every wait in these tests, in seconds.
DEADLINE = 50.0

#: The app of the workers; it appends each executed job and the name of its worker to RECORD.
APP = """
import asyncio
import os
import time

from eventmq import EventMQ
from eventmq.errors import SoftTimeLimitExceeded

app = EventMQ("survivor")


def note(text):
    fd = os.open(os.environ["RECORD"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, f"{text}|{os.environ['WHO']}\\n".encode())
    os.close(fd)


@app.task
def work(number):
    time.sleep(0.0001)
    note(number)
    return number


@app.task
def slow(number, seconds):
    note(f"start {number} {os.getpid()}")
    time.sleep(seconds)
    note(number)
    return number


@app.task
def deaf(number, seconds):
    note(f"start {number} {os.getpid()}")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            time.sleep(0.1)
        except Exception:
            pass
    note(number)


@app.task
async def nap(number, seconds):
    try:
        await asyncio.sleep(seconds)
    except SoftTimeLimitExceeded:
        return "soft"
    return number


@app.task(queue="email")
def email(number):
    note(f"email {number}")
    time.sleep(0.005)


@app.task(queue="other")
def other(number):
    note(f"other {number}")
    time.sleep(0.005)
"""


def until(condition: Callable[[], object], description: str, deadline: float = DEADLINE) -> None:
    """Wait until a condition is true; after the deadline fail with its description."""
    end = time.monotonic() + deadline
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline} s: {description}")
        time.sleep(0.02)


class Process(subprocess.Popen[str]):
    """A command of ``eventmq`` whose ``ready`` line has been read.

    Attributes:
        who: Name of its worker in the record.
    """

    who = ""

    def freeze(self) -> None:
        """Stop it with SIGSTOP; return when it has stopped."""
        self.send_signal(signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)

    def kill9(self) -> None:
        """Kill the process by SIGKILL, and reap it."""
        self.send_signal(signal.SIGKILL)
        self.wait(DEADLINE)


class System:
    """A folder with an app, a data directory and a record; processes end with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.record = folder / "record"
        self.address = ""
        self.processes: list[Process] = []
        self.apps: list[EventMQ] = []
        (folder / "survivor.py").write_text(APP)

    def start(
        self, *arguments: str, wait: bool = True, under: Sequence[str] = ()
    ) -> tuple[Process, str]:
        """Start a command; return it and its ready line.

        Args:
            arguments: Arguments of ``eventmq``.
            wait: Whether to wait for the ready line.
            under: Prefix of the command, such as a shell that sets limits first.
        """
        log = (self.folder / f"{arguments[0]}.log").open("a")
        number = str(len(self.processes))
        environment = {
            **os.environ, "RECORD": str(self.record), "WHO": number, "PYTHONUNBUFFERED": "1"
        }  # fmt: skip
        process = Process(
            [*under, sys.executable, "-m", "eventmq", *arguments],
            stdout=subprocess.PIPE, stderr=log, text=True, cwd=self.folder, env=environment,
        )  # fmt: skip
        log.close()
        process.who = number
        self.processes.append(process)
        return process, self.ready(process) if wait else ""

    def ready(self, process: Process) -> str:
        """Wait for the ready line of a process."""
        assert process.stdout is not None
        for line in process.stdout:
            if "ready" in line:
                return line
        logs = "\n".join(path.read_text() for path in self.folder.glob("*.log"))
        raise AssertionError(f"no ready line of {process.args}:\n{logs}")

    def broker(self, *, under: Sequence[str] = ()) -> Process:
        """Start the broker, at the same address as before if there was one; see `start`."""
        bind = self.address or "tcp://127.0.0.1:0"
        data = str(self.folder / "data")
        process, line = self.start("broker", "--bind", bind, "--data-dir", data, under=under)
        self.address = next(w for w in line.split() if "tcp://" in w).partition("=")[2]
        return process

    def worker(self, *arguments: str, wait: bool = True) -> Process:
        """Start a worker with two children."""
        common = ("-A", "survivor", "--broker", self.address, "-c", "2")
        return self.start("worker", *common, *arguments, wait=wait)[0]

    def app(self, **settings: object) -> EventMQ:
        """Return a client app whose tasks have the names of the worker's."""
        app = EventMQ("client", broker=self.address, **settings)  # type: ignore[arg-type]
        self.apps.append(app)
        return app

    def _lines(self) -> list[tuple[str, str]]:
        """Return the lines of the record, and the workers that wrote them."""
        if not self.record.exists():
            return []
        lines = self.record.read_text().split("\n")[:-1]
        return [(text, process) for text, _, process in (line.rpartition("|") for line in lines)]

    def has_started(self, count: int) -> bool:
        """Return whether the record has at least ``count`` lines, without parsing them."""
        return self.record.exists() and self.record.read_bytes().count(b"\n") >= count

    def executed(self) -> Counter[str]:
        """Return how often each number was executed to its end."""
        return Counter(text for text, _ in self._lines() if not text.startswith("start "))

    def executed_by(self) -> dict[str, list[str]]:
        """Return the workers that executed each number to its end, in order."""
        executions: dict[str, list[str]] = {}
        for text, process in self._lines():
            if not text.startswith("start "):
                executions.setdefault(text, []).append(process)
        return executions

    def started(self) -> dict[str, int]:
        """Return the process that last started each slow number."""
        return dict(self._starts())

    def times_started(self, number: str) -> int:
        """Return how often a slow number was started."""
        return sum(started == number for started, _ in self._starts())

    def events(self, job_id: str) -> Counter[str]:
        """Return the stored events of a job, counted by kind."""
        reader = SqliteEventLogReader(self.folder / "data")
        try:
            rows, _ = reader.read(0, 64 * 1024 * 1024)
        finally:
            reader.close()
        events = (event for row in rows for event in rows_of("b", row.first, row.body))
        return Counter(str(event["kind"]) for event in events if event.get("job_id") == job_id)

    def _starts(self) -> list[tuple[str, int]]:
        words = [text.split() for text, _ in self._lines() if text.startswith("start ")]
        return [(number, int(pid)) for _, number, pid in words]

    def stop(self) -> None:
        """End everything."""
        for app in self.apps:
            app.close()
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(DEADLINE)
            if process.stdout is not None:
                process.stdout.close()
