"""Starts brokers as processes without the time of imports, by forking a prepared process.

The server is a process that has imported `broker_process` and no module of the tests. For each
broker it forks a minder, which forks the broker, sends its process id and later its exit status.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from select import select
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ForkServer", "Forked"]

ROOT = Path(__file__).resolve().parents[2]

#: Maximum bytes of a request.
MAX_REQUEST = 64 * 1024


class Forked:
    """A forked process: its id, its output and its exit status."""

    def __init__(self, output: int, fate: int) -> None:
        self.stdout = os.fdopen(output, "rb")
        self._fate = os.fdopen(fate, "rb")
        self.pid = int(self._fate.readline())

    def send_signal(self, signum: int) -> None:
        """Send a signal."""
        os.kill(self.pid, signum)

    def wait(self, timeout: float) -> int:
        """Wait for the end; return the exit status, negative for a signal."""
        readable, _, _ = select([self._fate], [], [], timeout)
        if not readable:
            raise subprocess.TimeoutExpired("a broker", timeout)
        status = os.waitstatus_to_exitcode(int(self._fate.readline()))
        self._fate.close()
        self.stdout.close()
        return status


class ForkServer:
    """Client of the server."""

    def __init__(self) -> None:
        self._parent_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(child_end.fileno())],
            pass_fds=[child_end.fileno()], env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        child_end.close()
        atexit.register(self.close)

    @classmethod
    @functools.cache
    def running(cls) -> ForkServer:
        """Return the fork server of this process."""
        return cls()

    def start(self, arguments: list[str], log: int) -> Forked:
        """Start a broker whose stderr goes to a file descriptor."""
        (output, their_output), (fate, their_fate) = os.pipe(), os.pipe()
        try:
            request = json.dumps(arguments).encode()
            socket.send_fds(self._parent_end, [request], [their_output, log, their_fate])
        finally:
            os.close(their_output)
            os.close(their_fate)
        return Forked(output, fate)

    def close(self) -> None:
        """End the server; its brokers continue."""
        self._parent_end.close()
        self._process.wait()


def serve(requests: socket.socket) -> None:
    """Fork a minder for each request until no process can send one."""
    from tests.support import broker_process

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps the minders
    while True:
        request, fds, _, _ = socket.recv_fds(requests, MAX_REQUEST, 3)
        if not request:
            return
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            mind(*fds, run=functools.partial(broker_process.main, json.loads(request)))
        for fd in fds:
            os.close(fd)


def mind(output: int, log: int, fate: int, *, run: Callable[[], None]) -> NoReturn:
    """Fork the broker; send its id, wait for its end and send its exit status."""
    pid = os.fork()
    if pid == 0:
        os.dup2(output, 1)
        os.dup2(log, 2)
        for fd in (output, log, fate):
            os.close(fd)
        run_and_exit(run)
    os.write(fate, b"%d\n" % pid)
    os.close(output)
    os.close(log)
    _, status = os.waitpid(pid, 0)
    os.write(fate, b"%d\n" % status)
    os._exit(0)


def run_and_exit(run: Callable[[], None]) -> NoReturn:
    """Run a program and exit, like the interpreter."""
    code = 0
    try:
        run()
    except BaseException:  # noqa: BLE001 - it is printed, as the interpreter would
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
