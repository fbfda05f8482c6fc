"""Runs commands in a folder, as in a terminal; all programs end with the test."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from queue import Empty, SimpleQueue
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["DEADLINE", "Program", "Shell", "free_port"]

#: Timeout of every wait, in seconds.
DEADLINE = 40.0


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Program:
    """A running program, whose lines are read as they are printed."""

    def __init__(self, arguments: Sequence[str], folder: Path, environ: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            arguments, cwd=folder, env=environ, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.out: SimpleQueue[str | None] = SimpleQueue()
        self.err: SimpleQueue[str | None] = SimpleQueue()
        self.text = ""
        self._threads = [
            self._read(self.process.stdout, self.out),
            self._read(self.process.stderr, self.err),
        ]

    def _read(self, stream: IO[str] | None, lines: SimpleQueue[str | None]) -> threading.Thread:
        def read() -> None:
            assert stream is not None
            with stream:
                for line in stream:
                    self.text += line
                    lines.put(line.rstrip("\n"))
            lines.put(None)

        thread = threading.Thread(target=read)
        thread.start()
        return thread

    def line(self, *, err: bool = False) -> str:
        """Return the next line of stdout, or of stderr."""
        try:
            line = (self.err if err else self.out).get(timeout=DEADLINE)
        except Empty:
            raise AssertionError(f"no line within {DEADLINE} s; it printed: {self.text}") from None
        assert line is not None, f"it ended: {self.text}"
        return line

    def ready(self) -> dict[str, str]:
        """Return the fields of the line with ``ready``."""
        line = self.line()
        assert line.startswith("ready"), line
        return dict(part.split("=", 1) for part in line.split()[1:])

    def stop(self, signum: int = signal.SIGTERM) -> int:
        """Send a signal, wait for the end and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signum)
        return self.wait()

    def wait(self) -> int:
        """Wait for the end and return the exit code."""
        try:
            code = self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"it does not end; it printed: {self.text}") from None
        for thread in self._threads:
            thread.join(DEADLINE)
        return code


class Shell:
    """Starts programs in a folder."""

    def __init__(self, folder: Path, **environ: str) -> None:
        self.folder = folder
        self.environ = {**os.environ, **environ}
        self.programs: list[Program] = []

    def start(self, *arguments: str) -> Program:
        """Start ``eventmq`` with arguments."""
        return self.launch(sys.executable, "-m", "eventmq", *arguments)

    def launch(self, *arguments: str) -> Program:
        """Start any program."""
        program = Program(arguments, self.folder, self.environ)
        self.programs.append(program)
        return program

    def run(self, *arguments: str, timeout: float = DEADLINE) -> subprocess.CompletedProcess[str]:
        """Run ``eventmq`` with arguments to its end."""
        return subprocess.run(
            [sys.executable, "-m", "eventmq", *arguments],
            cwd=self.folder, env=self.environ, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=timeout, check=False,
        )  # fmt: skip

    def output(self, *arguments: str, timeout: float = DEADLINE) -> str:
        """Run a command that succeeds and return what it prints."""
        done = self.run(*arguments, timeout=timeout)
        assert 0 == done.returncode, done.stderr
        return done.stdout

    def json(self, *arguments: str, timeout: float = DEADLINE) -> Any:
        """Run a command that succeeds with ``--json``."""
        return json.loads(self.output(*arguments, "--json", timeout=timeout))

    def error(self, *arguments: str) -> tuple[int, str]:
        """Run a command that fails; return its exit code and its one line."""
        done = self.run(*arguments)
        assert "" == done.stdout
        lines = done.stderr.splitlines()
        assert 1 == len(lines), done.stderr
        assert lines[0].startswith("error: ")
        return done.returncode, lines[0].removeprefix("error: ")

    def close(self) -> None:
        """End the running programs, the last started first."""
        for program in reversed(self.programs):
            if program.process.poll() is None:
                program.process.kill()
            program.stop()
