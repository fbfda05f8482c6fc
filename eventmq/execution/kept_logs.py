"""Kept logs: collects what a job logs, if its task keeps its log, and sends it with the outcome.

What the loggers of the process hand to the root logger inside the job is kept, in the text form of
the worker's log: in the job's thread, its coroutines and the threads of `asyncio.to_thread`, which
have the context of the job, not in threads that the task starts itself. The handler is there only
while such a job runs. The newest lines are kept; a line in front of them says how many were cut.
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

#: Bytes that are kept of one job unless the setting ``max_job_log_bytes`` says another number.
MAX_BYTES = 64 * 1024

#: Bytes of the line that says what was cut.
_NOTE = 96

_CUT = b" [...]\n"

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class LogBuffer:
    """The last lines that a job logged. Threads may share it.

    Args:
        most: Bytes of UTF-8 that are kept.
    """

    __slots__ = ("_cut", "_lines", "_lock", "_most", "_room", "_size")

    def __init__(self, most: int) -> None:
        self._most = most
        self._room = max(most - _NOTE, len(_CUT))
        self._lines: deque[bytes] = deque()
        self._size = self._cut = 0
        self._lock = Lock()

    def add(self, text: str) -> None:
        """Add a line, or several, as of a traceback; one that is too long loses its end."""
        data = text.encode(errors="replace") + b"\n"
        if len(data) > self._room:
            data = data[: self._room - len(_CUT)].decode(errors="ignore").encode() + _CUT
        with self._lock:
            lines = self._lines
            lines.append(data)
            self._size += len(data)
            while self._size > self._room:
                gone = lines.popleft()
                self._size -= len(gone)
                self._cut += gone.count(b"\n")

    def text(self) -> bytes:
        """Return what is kept, after a line that says how much is not."""
        with self._lock:
            kept = b"".join(self._lines)
            if not self._cut:
                return kept
            note = f"[lines cut before these: {self._cut}; max_job_log_bytes is {self._most}]\n"
            return note.encode() + kept


_current: ContextVar[LogBuffer | None] = ContextVar("eventmq_job_log", default=None)


class _Handler(logging.Handler):
    """Adds records to the log of the job that makes them. It raises and prints nothing."""

    def emit(self, record: logging.LogRecord) -> None:
        """Add a record, or that it cannot be formatted: other handlers say why."""
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
                record.exc_text = before  # other handlers may have another form of it
            log.add(text)


_handler = _Handler()
_handler.setFormatter(LineFormatter(_FORMAT))

_lock = Lock()

_running = 0


@contextmanager
def _kept(most: int) -> Iterator[LogBuffer]:
    """Collect what this context logs until the ``with`` block ends."""
    global _running  # noqa: PLW0603 - handlers belong to the process
    log, root = LogBuffer(most), logging.getLogger()
    with _lock:
        _running += 1
        if _handler not in root.handlers:  # also where a job has configured logging anew
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


def keeping(run: Run, most: int) -> Run:
    """Return a function that runs a job, and adds the log to its outcome if the task keeps it.

    Args:
        run: Runs a job.
        most: Bytes that are kept of one job.
    """

    def run_keeping(route: Route, position: int, entry: ChunkEntry, payload: bytes) -> OutcomeRow:
        if not route.spec.keep_logs:
            return run(route, position, entry, payload)
        with _kept(most) as log:
            row = run(route, position, entry, payload)
        return LoggedRow.of(row, log.text())

    return run_keeping


def keeping_async(run: AsyncRun, most: int) -> AsyncRun:
    """Do the same as `keeping` for a coroutine that runs a job in a task of its own."""

    async def run_keeping(
        route: Route, position: int, entry: ChunkEntry, payload: bytes, cancellation: Cancellation
    ) -> OutcomeRow:
        if not route.spec.keep_logs:
            return await run(route, position, entry, payload, cancellation)
        with _kept(most) as log:
            row = await run(route, position, entry, payload, cancellation)
        return LoggedRow.of(row, log.text())

    return run_keeping
