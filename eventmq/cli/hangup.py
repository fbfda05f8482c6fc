"""SIGHUP: a worker or scheduler starts anew with new code, a server reads its keys again.

A worker or scheduler first loads the new code in a process of its own, by the same command line
with ``--check``. What cannot be loaded changes nothing: the old code goes on, and the log says why.
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
    "run_restartable",
    "start_anew",
]

logger = logging.getLogger("eventmq.cli")

#: Seconds within which new code must be loaded.
CHECK_TIMEOUT = 90.0


class Restartable(Protocol):
    """A worker or scheduler."""

    #: Tells the service manager.
    notifier: Notifier

    @property
    def needs_restart(self) -> bool:
        """Whether it has ended in order to be started anew."""

    def install_signal_handlers(self) -> None:
        """Stop at SIGTERM and SIGINT."""

    def run(self) -> None:
        """Serve until `stop` or `restart`."""

    def stop(self) -> None:
        """End gracefully."""

    def restart(self) -> None:
        """End gracefully, with `needs_restart`. From any thread."""


def run_restartable(runner: Restartable, what: str) -> None:
    """Run a worker or scheduler until it ends; it restarts at SIGHUP. In the main thread only.

    Args:
        runner: Not started yet.
        what: For people.
    """
    runner.notifier = Notifier(os.environ)
    runner.install_signal_handlers()
    at_hangup(partial(_try_new_code, runner, what, threading.Lock()), runner.stop)
    runner.run()


def start_anew() -> None:
    """Run this very command line again in this process, if it can be.

    Not by fork: no thread of this process may be left. A SIGHUP that comes before the new program
    handles it waits for that.
    """
    sys.stdout.flush()
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - this very command


def at_hangup(act: Callable[[], object], stop: Callable[[], object]) -> None:
    """Handle SIGHUP, which otherwise ends a process. In the main thread only.

    It stays ignored where it is, as under ``nohup``. When the terminal of this process was closed
    it ends.

    Args:
        act: Called in a thread at each SIGHUP but that of a closed terminal; it does nothing in a
            process that has no keys to read again.
        stop: Called in the main thread when the terminal is gone.
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
    """Let a server read its keys again: what `at_hangup` calls in one."""
    from eventmq.wire import zap_thread

    if not zap_thread.reread_keys():
        logger.info("SIGHUP: no keys are in use, so there are none to read again")


def rereading_keys(notifier: Notifier, status: Callable[[], str]) -> Callable[[], None]:
    """Return `reread_keys` for a server that has a service manager.

    Args:
        notifier: Tells it.
        status: Returns what the server does, for people.
    """

    def reread() -> None:
        notifier.reloading("reads the keys again")
        try:
            reread_keys()
        finally:
            notifier.ready(status())

    return reread


def _try_new_code(runner: Restartable, what: str, trying: threading.Lock) -> None:
    """Restart if the command line can be started anew; once at a time."""
    if not trying.acquire(blocking=False):
        return
    try:
        logger.info("SIGHUP: loading the new code; the %s starts anew if that works", what)
        runner.notifier.reloading("loads the new code")
        if failure := _failure():
            logger.error("the %s goes on with the code that it has: %s", what, failure)
            runner.notifier.ready(f"goes on with the code that it has: {failure}")
        else:
            runner.restart()
    finally:
        trying.release()


def _failure() -> str:
    """Return why this command line cannot be started anew, "" if it can."""
    command = [sys.executable, *sys.orig_argv[1:], "--check"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=CHECK_TIMEOUT,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"it was not loaded within {CHECK_TIMEOUT:g} s"
    except OSError as error:
        return str(error)
    if not done.returncode:
        return ""
    last = done.stderr.strip().rpartition("\n")[2].removeprefix("error: ")
    return last or f"the attempt to load it ended with status {done.returncode}"
