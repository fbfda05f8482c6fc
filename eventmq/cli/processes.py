"""Child processes of this program: start them, wait until they are ready, read and stop them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from eventmq.errors import EventMQError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = [
    "Child",
    "ChildFailed",
    "delayed_signals",
    "ignored_signals",
    "interrupt_at_signals",
    "ready_fields",
    "watch_parent",
]

#: Runs the program from the folder from which this process loaded it: an installed one would be
#: found first. The interpreter has put the working directory first on the path, as "".
_PROGRAM = (
    "import sys; sys.path = [*filter(None, sys.path), {root!r}]; "
    "from eventmq.cli import main; main(child=True)"
)


#: Seconds to read the remaining output of a process that has ended.
OUTPUT_TIMEOUT = 1.0

#: Seconds that a process may take to end after its parent was killed.
ORPHAN_GRACE = 5.0

_ENDING_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class ChildFailed(EventMQError):
    """A child process ended unexpectedly, or was not ready in time."""


class Child:
    """A child process that runs a command of this program in a process group of its own.

    Ctrl-C therefore reaches only the parent, which stops its child processes in order.

    Args:
        name: Name in messages.
        arguments: Arguments of the program.
        on_line: Called in a thread with every line of its stderr.
        on_end: Called in a thread when it has ended.
        cwd: Its working directory; that of this process if None.
        env: Its environment variables; those of this process if None.
    """

    #: Whether Ctrl-C was pressed while it was being stopped.
    interrupted = False

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        on_line: Callable[[str], object],
        on_end: Callable[[Child], object] | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._on_line = on_line
        self._on_end = on_end
        self._last = ""
        self._ready = threading.Event()
        self._ready_line = ""
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM.format(root=_root()), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            cwd=cwd, env=env, start_new_session=True, text=True, errors="replace",
        )  # fmt: skip
        assert self._process.stdin is not None  # noqa: S101 - PIPE
        assert self._process.stdout is not None  # noqa: S101 - PIPE
        assert self._process.stderr is not None  # noqa: S101 - PIPE
        self._stdin = self._process.stdin
        self._threads = [
            self._follow(self._process.stdout, self._read_out),
            self._follow(self._process.stderr, self._read_err),
        ]

    def _follow(self, stream: IO[str], read: Callable[[IO[str]], None]) -> threading.Thread:
        thread = threading.Thread(target=read, args=(stream,), name=self.name, daemon=True)
        thread.start()
        return thread

    def _read_out(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                if line.startswith("ready"):
                    self._ready_line = line.strip()
                    self._ready.set()
        self._ready.set()
        if self._on_end is not None:
            self._on_end(self)

    def _read_err(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self._last = line.strip() or self._last
                self._on_line(line)

    # Waiting

    def wait_ready(self, timeout: float) -> str:
        """Wait for the line with ``ready``, and return it.

        Raises:
            ChildFailed: The process ended before, or ``timeout`` seconds passed.
        """
        if not self._ready.wait(timeout):
            raise ChildFailed(f"the {self.name} was not ready within {timeout:g} s; {self._last}")
        if not self._ready_line:
            raise ChildFailed(self.exit_report())
        return self._ready_line

    def exit_report(self) -> str:
        """Return one sentence about the end of a child that has ended, or is about to."""
        code = self._process.wait()
        for thread in self._threads:
            thread.join(OUTPUT_TIMEOUT)
        last = self._last.removeprefix("error: ")
        return f"the {self.name} ended with exit code {code}" + (f": {last}" if last else "")

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    # Stopping

    def hang_up(self) -> None:
        """Send SIGHUP. The process must be ready, since before that SIGHUP ends it."""
        if not self.ended:
            self._process.send_signal(signal.SIGHUP)

    def stop(self, timeout: float) -> int:
        """End the process by SIGTERM; by SIGKILL after ``timeout`` seconds or at Ctrl-C.

        Returns:
            Its exit code.
        """
        if not self.ended:
            self._process.terminate()
        try:
            code = self._process.wait(timeout)
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as error:
            self.interrupted = isinstance(error, KeyboardInterrupt)
            self._process.kill()
            code = self._process.wait()
        self._stdin.close()
        for thread in self._threads:
            thread.join(OUTPUT_TIMEOUT)
        return code


def interrupt_at_signals() -> None:
    """Raise `KeyboardInterrupt` at every signal that asks this process to end.

    SIGHUP stays ignored if it is ignored already, as under ``nohup``.
    """
    for signum in _ENDING_SIGNALS:
        if signum == signal.SIGINT or signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, signal.default_int_handler)


@contextmanager
def delayed_signals() -> Iterator[None]:
    """Delay those signals to the end of a ``with`` block, which must not start a process."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def ignored_signals() -> Iterator[None]:
    """Ignore those signals during a ``with`` block, which must be short."""
    before = [signal.signal(signum, signal.SIG_IGN) for signum in _ENDING_SIGNALS]
    try:
        yield
    finally:
        for signum, handler in zip(_ENDING_SIGNALS, before, strict=True):
            signal.signal(signum, handler)


def ready_fields(line: str) -> dict[str, str]:
    """Return the fields of a ready line, by name."""
    return dict(part.split("=", 1) for part in line.split()[1:])


def watch_parent() -> None:
    """Parent watch: end this process when its parent, which holds its stdin open, has ended."""
    threading.Thread(target=_end_with_parent, name="eventmq-parent-watch", daemon=True).start()


def _end_with_parent() -> None:
    """Send this process SIGTERM when its stdin ends."""
    while os.read(0, 4096):
        continue
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_GRACE)
    os.kill(os.getpid(), signal.SIGTERM)  # at once


def _root() -> str:
    from pathlib import Path

    return str(Path(__file__).resolve().parents[2])
