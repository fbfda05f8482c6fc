"""Kept logs: collects the log of a job whose task keeps logs, and sends it with the outcome.

A handler of the root logger collects the records of the job, in the text format of the worker's
log: those of the job's thread, its coroutines and the threads of `asyncio.to_thread`, which have
the context of the job, but not those of threads that the task starts itself. The handler is
installed only while such a job runs. The newest lines are kept, after a line with the number of
dropped lines.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from threading import Lock
from typing import TYPE_CHECKING, Any

from eventmq.text import LineFormatter
from eventmq.wire.batches import LoggedRow

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from eventmq.execution.joblog import Run
    from eventmq.execution.routes import Route
    from eventmq.execution.streaming import Cancellation
    from eventmq.wire.batches import ChunkEntry, OutcomeRow

    AsyncRun = Callable[
        [Route, int, ChunkEntry, bytes, Cancellation], Coroutine[Any, Any, OutcomeRow]
    ]

__all__ = ["MAX_BYTES", "LogBuffer", "keeping", "keeping_async"]

#: Default of the setting ``max_job_log_bytes``: maximum length of the kept log of one job.
MAX_BYTES = 64 * 1024

#: Bytes reserved for the line about dropped lines.
_HEAD_BYTES = 96

_ELLIPSIS = b" [...]\n"

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class LogBuffer:
    """The last lines of a job's log. Threads may share it.

    Args:
        max_bytes: Maximum length in bytes of UTF-8.
    """

    __slots__ = ("_dropped", "_lines", "_lock", "_max_bytes", "_max_lines_bytes", "_size")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._max_lines_bytes = max(max_bytes - _HEAD_BYTES, len(_ELLIPSIS))
        self._lines: deque[bytes] = deque()
        self._size = self._dropped = 0
        self._lock = Lock()

    def add(self, text: str) -> None:
        """Add one or more lines, such as those of a traceback; a line that is too long is cut."""
        data = text.encode(errors="replace") + b"\n"
        if len(data) > self._max_lines_bytes:
            data = (
                data[: self._max_lines_bytes - len(_ELLIPSIS)].decode(errors="ignore").encode()
                + _ELLIPSIS
            )
        with self._lock:
            lines = self._lines
            lines.append(data)
            self._size += len(data)
            while self._size > self._max_lines_bytes:
                dropped = lines.popleft()
                self._size -= len(dropped)
                self._dropped += dropped.count(b"\n")

    def text(self) -> bytes:
        """Return the kept lines, after a line with the number of dropped ones."""
        with self._lock:
            lines = b"".join(self._lines)
            if not self._dropped:
                return lines
            cut = f"lines cut before these: {self._dropped}"
            head = f"[{cut}; max_job_log_bytes is {self._max_bytes}]\n"
            return head.encode() + lines


_current: ContextVar[LogBuffer | None] = ContextVar("eventmq_job_log", default=None)


class _JobLogHandler(logging.Handler):
    """Adds records to the log of the job that makes them. It raises and prints nothing."""

    def emit(self, record: logging.LogRecord) -> None:
        """Add a record, or a note that it cannot be formatted; other handlers report the error."""
        log = _current.get()
        if log is None:
            return
        with suppress(Exception):
            before = record.exc_text
            try:
                text = self.format(record)
            except Exception:  # noqa: BLE001 - code of the app's classes
                text = f"{record.levelname} {record.name}: a line that cannot be formatted"
            finally:
                record.exc_text = before  # other handlers may format it differently
            log.add(text)


_handler = _JobLogHandler()
_handler.setFormatter(LineFormatter(_FORMAT))

_lock = Lock()

_running = 0


@contextmanager
def _collected(max_bytes: int) -> Iterator[LogBuffer]:
    """Collect the records of this context until the ``with`` block ends."""
    global _running  # noqa: PLW0603 - handlers belong to the process
    log, root = LogBuffer(max_bytes), logging.getLogger()
    with _lock:
        _running += 1
        if _handler not in root.handlers:  # also after a job has reconfigured logging
            root.addHandler(_handler)
    token = _current.set(log)
    try:
        yield log
    finally:
        _current.reset(token)
        with _lock:
            _running -= 1
            if not _running:
                root.removeHandler(_handler)


def keeping(run: Run, max_bytes: int) -> Run:
    """Wrap a function that runs a job: add the log to the outcome if the task keeps logs.

    Args:
        run: Runs a job.
        max_bytes: Maximum length in bytes of the log of one job.
    """

    def run_keeping(route: Route, position: int, entry: ChunkEntry, payload: bytes) -> OutcomeRow:
        if not route.spec.keep_logs:
            return run(route, position, entry, payload)
        with _collected(max_bytes) as log:
            row = run(route, position, entry, payload)
        return LoggedRow.of(row, log.text())

    return run_keeping


def keeping_async(run: AsyncRun, max_bytes: int) -> AsyncRun:
    """Do the same as `keeping` for a coroutine function that runs a job in its own task."""

    async def run_keeping(
        route: Route, position: int, entry: ChunkEntry, payload: bytes, cancellation: Cancellation
    ) -> OutcomeRow:
        if not route.spec.keep_logs:
            return await run(route, position, entry, payload, cancellation)
        with _collected(max_bytes) as log:
            row = await run(route, position, entry, payload, cancellation)
        return LoggedRow.of(row, log.text())

    return run_keeping
