"""What an app wants to have run when a worker comes and goes; `EventMQ` has it as decorators."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from eventmq.errors import EventMQError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Callbacks", "WorkerCallbacks"]

_log = logging.getLogger(__name__)

F = TypeVar("F", bound="Callable[[], Any]")


class Callbacks:
    """Functions without arguments, in the order in which they were given."""

    def __init__(self) -> None:
        self.worker_start: list[Callable[[], Any]] = []
        self.worker_stop: list[Callable[[], Any]] = []
        self.child_start: list[Callable[[], Any]] = []
        self._lock = threading.Lock()
        self._workers = 0
        self._child = 0

    @contextmanager
    def worker(self) -> Iterator[None]:
        """Run them around a worker; of several in one process, around the first and the last.

        Raises:
            EventMQError: One failed at the start: the worker must not run.
        """
        with self._lock:
            if not self._workers:
                _run("on_worker_start", self.worker_start)
            self._workers += 1
        try:
            yield
        finally:
            with self._lock:
                self._workers -= 1
                if not self._workers:
                    self._stop()

    def _stop(self) -> None:
        for function in self.worker_stop:
            try:
                function()
            except Exception:  # noqa: BLE001 - any of the user's
                _log.exception("%s of on_worker_stop failed", _name(function))

    def child(self) -> None:
        """Run those of a process that runs jobs, once in each.

        Raises:
            EventMQError: One failed: no job may run there.
        """
        if self._child != os.getpid():
            _run("on_child_start", self.child_start)
            self._child = os.getpid()


def _run(what: str, functions: list[Callable[[], Any]]) -> None:
    for function in functions:
        try:
            function()
        except Exception as error:
            msg = f"{_name(function)} of {what} failed: {type(error).__name__}: {error}"
            raise EventMQError(msg) from error


def _name(function: Callable[[], Any]) -> str:
    return getattr(function, "__qualname__", repr(function))


class WorkerCallbacks:
    """The decorators of an app, for functions without arguments."""

    def __init__(self) -> None:
        self.callbacks = Callbacks()

    def on_worker_start(self, function: F) -> F:
        """Run a function in the worker's own process before it takes jobs.

        Write ``@app.on_worker_start`` above it, as with the others. That process runs no job where
        the pool has processes of its own. If the function raises, the worker ends with that error.
        """
        self.callbacks.worker_start.append(function)
        return function

    def on_worker_stop(self, function: F) -> F:
        """Run a function in the worker's own process after its last job.

        It does not run where the process is killed. What it raises is logged.
        """
        self.callbacks.worker_stop.append(function)
        return function

    def on_child_start(self, function: F) -> F:
        """Run a function in each process that runs jobs, before its first job.

        The place to open connections. A child of the pool ``prefork`` that replaces another runs
        it too; with the pool ``threads`` it runs once, in the worker's own process. If it raises,
        the child ends.
        """
        self.callbacks.child_start.append(function)
        return function
