"""SIGHUP: a worker or scheduler restarts with new code, a server reads its keys again.

A worker or scheduler first loads the new code in another process, with the same command line and
``--check``. If that fails, it continues with the old code and logs the reason.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Protocol

from eventmq.notify import Notifier

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "Restartable",
    "at_hangup",
    "reread_keys",
    "rereading_keys",
    "restart_process",
    "run_restartable",
]

logger = logging.getLogger("eventmq.cli")

#: Seconds within which the new code must be loaded.
CHECK_TIMEOUT = 90.0


class Restartable(Protocol):
    """A worker or scheduler."""

    #: Notifies the service manager.
    notifier: Notifier

    @property
    def needs_restart(self) -> bool:
        """Whether it has ended in order to be restarted."""

    def install_signal_handlers(self) -> None:
        """Make SIGTERM and SIGINT stop it."""

    def run(self) -> None:
        """Serve until `stop` or `restart` is called."""

    def stop(self) -> None:
        """End gracefully."""

    def restart(self) -> None:
        """End gracefully and set `needs_restart`. From any thread."""


def run_restartable(runner: Restartable, role: str) -> None:
    """Run a worker or scheduler until it ends; restart it at SIGHUP. In the main thread only.

    Args:
        runner: The worker or scheduler, not started yet.
        role: Its role in messages: ``worker``.
    """
    runner.notifier = Notifier(os.environ)
    runner.install_signal_handlers()
    at_hangup(partial(_restart_with_new_code, runner, role, threading.Lock()), runner.stop)
    runner.run()


def restart_process() -> None:
    """Execute this command line again in this process, if the system supports that.

    Not by a fork, since all threads of this process must end. A SIGHUP is blocked until the new
    program handles it.
    """
    sys.stdout.flush()
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - this very command


def at_hangup(act: Callable[[], object], stop: Callable[[], object]) -> None:
    """Handle SIGHUP, which by default ends a process. In the main thread only.

    SIGHUP stays ignored if it is ignored already, as under ``nohup``. If the terminal of this
    process was closed, the process ends.

    Args:
        act: Called in a thread at each SIGHUP except that of a closed terminal; it does nothing in
            a process without keys.
        stop: Called in the main thread when the terminal is closed.
    """
    if not hasattr(signal, "SIGHUP") or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return
    terminal = os.isatty(0)

    def on_hangup(*_: object) -> None:
        if terminal and not os.isatty(0):
            stop()
        else:
            threading.Thread(target=act, name="eventmq-hangup", daemon=True).start()

    signal.signal(signal.SIGHUP, on_hangup)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


def reread_keys() -> None:
    """Make a server read its keys again; the usual ``act`` of `at_hangup`."""
    from eventmq.wire import zap_thread

    if not zap_thread.reread_keys():
        logger.info("SIGHUP: no keys are in use, so none are read")


def rereading_keys(notifier: Notifier, status: Callable[[], str]) -> Callable[[], None]:
    """Return `reread_keys` for a server with a service manager.

    Args:
        notifier: Notifies the service manager.
        status: Returns the status text of the server.
    """

    def reread() -> None:
        notifier.reloading("reads the keys again")
        try:
            reread_keys()
        finally:
            notifier.ready(status())

    return reread


def _restart_with_new_code(runner: Restartable, role: str, lock: threading.Lock) -> None:
    """Restart if the new code can be loaded; one attempt at a time."""
    if not lock.acquire(blocking=False):
        return
    try:
        logger.info("SIGHUP: loading the new code; the %s restarts if that succeeds", role)
        runner.notifier.reloading("loads the new code")
        if failure := _failure():
            logger.error("the %s continues with the old code: %s", role, failure)
            runner.notifier.ready(f"continues with the old code: {failure}")
        else:
            runner.restart()
    finally:
        lock.release()


def _failure() -> str:
    """Return the reason why this command line cannot be restarted, "" if it can."""
    command = [sys.executable, *sys.orig_argv[1:], "--check"]
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=CHECK_TIMEOUT,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"the new code was not loaded within {CHECK_TIMEOUT:g} s"
    except OSError as error:
        return str(error)
    if not process.returncode:
        return ""
    last = process.stderr.strip().rpartition("\n")[2].removeprefix("error: ")
    return last or f"loading the new code ended with status {process.returncode}"
