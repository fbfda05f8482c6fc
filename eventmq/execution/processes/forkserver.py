"""Fork server: a clean interpreter that loads the app once and forks children from it.

It is spawned, so neither it nor its children have threads, locks or sockets of the job manager. It
runs no job itself. When its control socket ends, the manager has ended or closed it: it kills its
remaining children and ends.
"""

from __future__ import annotations

import gc
import importlib
import mmap
import os
import select
import signal
import socket
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventmq import shadows
from eventmq.errors import EventMQError, PluginError
from eventmq.execution.processes import control
from eventmq.execution.processes.child import PoolChild
from eventmq.execution.processes.pipes import RECORD_SIZE, ChildPipes
from eventmq.execution.processes.recycling import ChildRecycling
from eventmq.titles import set_title
from eventmq.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.execution.executor import Executor

__all__ = ["main"]

#: Milliseconds between two searches for exited children, even without a signal: imported code may
#: handle SIGCHLD itself.
REAP_EVERY_MS = 1000

#: Seconds after which a child that was stopped, for example by SIGSTOP, is killed: if its own job
#: stopped it, it would occupy its slot for ever.
STOPPED_GRACE = 5.0

#: Exit status of a child that failed outside any task (EX_SOFTWARE of sysexits.h).
CHILD_FAILED = 70


def _ignore(*_: object) -> None:
    """Ignore a signal.

    A handler, not SIG_IGN, which would be inherited by programs that a task starts.
    """


def _describe(error: BaseException) -> list[str]:
    """Return the type of the error, and a sentence that names the cause of the failed import."""
    if isinstance(error, EventMQError):
        return [type(error).__name__, str(error)]
    frames = traceback.extract_tb(error.__traceback__)
    location = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    text = str(error) or "no message"
    return [
        "PluginError",
        f"the tasks cannot be imported: {type(error).__name__}: {text}{location}",
    ]


def _load(config: dict[str, Any]) -> Executor:
    shadows.protect(str(Path.cwd()))
    sys.path[:] = config["path"]
    module, _, attribute = config["loader"].partition(":")
    loader = getattr(importlib.import_module(module), attribute)
    executor: Executor = loader(**config["arguments"])
    if not hasattr(executor, "for_slot"):
        raise PluginError(f"{config['loader']} returns no Executor")
    return executor


def _end(status: int, peak: int) -> dict[str, Any]:
    """Return the exit report of a child: status, reason and peak memory in bytes."""
    code = os.waitstatus_to_exitcode(status)
    if sys.platform != "darwin":  # macOS reports bytes, others KiB
        peak *= 1024
    if code >= 0:
        reason = f"the process exited with status {code}"
    else:
        try:
            reason = f"the process was killed by {signal.Signals(-code).name}"
        except ValueError:
            reason = f"the process was killed by signal {-code}"
    return {"reason": reason, "code": code, "peak": peak}


def _fork() -> int:
    with warnings.catch_warnings():
        # As always with fork, threads of imported code do not exist in the child.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


class ForkServer:
    """Forks children on request and reports their exits. One thread."""

    def __init__(
        self, sock: socket.socket, records: mmap.mmap, executor: Executor, recycling: Sequence[int]
    ) -> None:
        self._socket = sock
        self._records = records
        self._executor = executor
        self._recycling = recycling
        self._children: dict[int, int] = {}
        #: Stopped children -> seconds of this process's run time for which they have been stopped.
        self._stopped: dict[int, float] = {}
        self._reaped = time.monotonic()
        self._wakeup = Wakeup()

    def run(self) -> None:
        """Serve until the manager closes the control socket or ends."""
        signal.signal(signal.SIGCHLD, _ignore)
        signal.set_wakeup_fd(self._wakeup.writer_fd, warn_on_full_buffer=False)
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        poller.register(self._wakeup.fd, select.POLLIN)
        try:
            while True:
                ready = dict(poller.poll(REAP_EVERY_MS))
                if self._wakeup.fd in ready:
                    self._wakeup.clear()
                self._reap()
                if self._socket.fileno() in ready:
                    self._serve(*control.receive(self._socket))
        except (EOFError, ConnectionError):
            self._kill()

    def _serve(self, message: dict[str, Any], fds: Sequence[int]) -> None:
        slot = message["spawn"]
        pipes = ChildPipes(*fds)
        try:
            pid = _fork()
        except OSError as error:
            pid = -1
            reason = f"no process could be started: {error}"
            answer = {"exited": slot, "pid": 0, "reason": reason, "code": 1, "peak": 0}
        if pid == 0:
            self._run_child(slot, pipes)
        for fd in fds:
            os.close(fd)
        if pid > 0:
            self._children[pid] = slot
            answer = {"spawned": slot, "pid": pid}
        control.send(self._socket, answer)

    def _run_child(self, slot: int, pipes: ChildPipes) -> None:
        """Run as a child, then end the process. Never returns."""
        code = CHILD_FAILED
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for resource in (self._socket, self._wakeup):
                resource.close()
            recycling = ChildRecycling(*self._recycling) if any(self._recycling) else None
            offset = slot * RECORD_SIZE
            PoolChild(self._executor.for_slot(), pipes, self._records, offset, recycling).serve()
            code = 0
        except BrokenPipeError:
            code = 1  # the manager has ended
        except BaseException:  # noqa: BLE001 - the last frame of the process
            traceback.print_exc()
        finally:
            _leave(code)

    def _reap(self) -> None:
        for pid, slot in list(self._children.items()):
            exited_pid, status, used = os.wait4(pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if not exited_pid:
                continue
            if os.WIFSTOPPED(status):
                self._stopped[pid] = 0.0
            elif os.WIFCONTINUED(status):
                self._stopped.pop(pid, None)
            else:
                del self._children[pid]
                end = _end(status, used.ru_maxrss)
                if self._stopped.pop(pid, 0.0) >= STOPPED_GRACE:
                    end["reason"] = f"the process was stopped for {STOPPED_GRACE:g} s and killed"
                control.send(self._socket, {"exited": slot, "pid": pid, **end})
        self._kill_stopped()

    def _kill_stopped(self) -> None:
        """Kill children that have been stopped for too long.

        Only time in which this process ran counts: Ctrl-Z stops all processes of the worker, and
        `fg` continues them in any order.
        """
        now = time.monotonic()
        passed, self._reaped = min(now - self._reaped, REAP_EVERY_MS / 1000), now
        for pid, seconds in self._stopped.items():
            self._stopped[pid] = seconds + passed
            if seconds < STOPPED_GRACE <= seconds + passed:
                os.kill(pid, signal.SIGKILL)

    def _kill(self) -> None:
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
        for pid in self._children:
            os.waitpid(pid, 0)


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # closed, or replaced by a task
            continue


def _leave(code: int) -> None:
    """End the process without the exit handlers of imported code."""
    _flush_streams()
    os._exit(code)


def main(control_fd: int, records_fd: int) -> None:
    """Run a fork server on the control socket ``control_fd``."""
    # Ctrl-C, a hangup of the terminal and a SIGTERM to the group reach all processes: only the
    # manager handles them, and lets running jobs end.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, _ignore)
    set_title("fork server")
    sock = socket.socket(fileno=control_fd)
    sock.set_inheritable(False)
    records = mmap.mmap(records_fd, 0)
    os.close(records_fd)
    try:
        config, _ = control.receive(sock)
    except EOFError:
        return
    try:
        executor = _load(config)
    except BaseException as error:  # noqa: BLE001 - an import can raise anything
        control.send(sock, {"failed": _describe(error)})
        _leave(1)
    _flush_streams()  # otherwise every child would write the buffers again
    gc.collect()
    gc.freeze()
    control.send(sock, {"ready": True})
    ForkServer(sock, records, executor, config["recycling"]).run()
    _leave(0)
