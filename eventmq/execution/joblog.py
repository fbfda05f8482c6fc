"""Job log: a log record for each job that failed, was retried, cancelled, stopped or lost.

Records name job, task and attempt, and never have arguments or results; they do have the texts of
exceptions. The executor logs jobs that ran, the job manager those that were stopped or lost.
Control characters are escaped here, since a handler of the app writes text unchanged. These
functions never raise, so that a broken log handler fails no job.

A record at level error has the fields of ``log-context``, even if it is made outside the job, and
the exception itself as ``exc_info``, for handlers that send more than text.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from eventmq.headers import parse_headers
from eventmq.job import OutcomeKind
from eventmq.text import log_about, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eventmq.execution.routes import Route
    from eventmq.interfaces import JobContext
    from eventmq.wire.batches import ChunkEntry, ChunkIndex, OutcomeRow
    from eventmq.wire.results import RemoteError

    Run = Callable[[Route, int, ChunkEntry, bytes], OutcomeRow]

__all__ = [
    "aborted",
    "cancelled",
    "died",
    "failed",
    "id_and_task",
    "logged",
    "logs_success",
    "lost",
    "refused",
    "result_too_large",
    "retried",
    "soft_limit_missed",
    "stopped",
]

_log = logging.getLogger(__name__)

#: Maximum number of bytes of a traceback in the log, counted from its end.
TRACEBACK_BYTES = 16 * 1024

#: Maximum number of characters of an error's text in the log.
MAX_TEXT = 4096

#: Maximum number of jobs that one record names.
MAX_NAMED = 10

#: Record of a final failure: job, task, attempt, error.
_FAILED = "job %s of task %s failed for good at attempt %d: %s"


def _end_of(traceback: str) -> str:
    """Return the last lines of a traceback."""
    data = traceback.rstrip().encode(errors="replace")
    if len(data) <= TRACEBACK_BYTES:
        return data.decode()
    end = data[-TRACEBACK_BYTES:]
    lines = end[end.find(b"\n") + 1 :]
    return f"[...]\n{lines.decode(errors='ignore')}"


def _task(name: str) -> str:
    return name or "(legacy)"


def _error_line(error: RemoteError) -> str:
    """Return type and text of an error."""
    text = error.message
    if len(text) > MAX_TEXT:
        text = f"{text[:MAX_TEXT]} [...]"
    return printable(f"{error.type.removeprefix('builtins.')}: {text}")


def _fields(job: JobContext) -> tuple[str, str, str, int]:
    return job.id, job.task, job.queue, job.attempt


def _fields_in(index: ChunkIndex, position: int) -> tuple[str, str, str, int]:
    job, task = id_and_task(index, position)
    return job, task, index.queue, index.entries[position].attempt


def failed(job: JobContext, error: RemoteError, exception: BaseException | None = None) -> None:
    """Log that a job failed for good, with the traceback.

    Args:
        job: The job.
        error: The error to log.
        exception: The exception that it describes.
    """
    with suppress(Exception):
        log_about(
            _log, logging.ERROR, _fields(job),
            _FAILED, job.id, _task(job.task), job.attempt, _error_line(error),
            frames=printable(_end_of(error.traceback), keep="\n\t"), exception=exception,
        )  # fmt: skip


def retried(job: JobContext, error: RemoteError, delay: float, *, requested: bool) -> None:
    """Log a failed attempt with a retry; ``requested`` if the task raised `Retry`."""
    with suppress(Exception):
        log_about(
            _log, logging.INFO if requested else logging.WARNING, _fields(job),
            "attempt %d of job %s of task %s failed: %s; the next is in %.3g s",
            job.attempt, job.id, _task(job.task), _error_line(error), delay,
        )  # fmt: skip


def cancelled(job: JobContext, run_time: float) -> None:
    """Log that a job was cancelled while it ran, and has ended."""
    with suppress(Exception):
        text = "job %s of task %s was cancelled after %.3g s"
        log_about(_log, logging.INFO, _fields(job), text, job.id, _task(job.task), run_time)


def soft_limit_missed(job: JobContext) -> None:
    """Log that a job ran past its soft limit, because this pool cannot interrupt it."""
    with suppress(Exception):
        _log.warning(
            "job %s of task %s ran past its soft_timeout: this pool cannot interrupt blocking "
            "code; use a pool of processes, or call current_job().check() in the task",
            job.id, _task(job.task),
        )  # fmt: skip


def stopped(index: ChunkIndex, position: int, why: str) -> None:
    """Log that the worker stops a job.

    Args:
        index: Index of the job's chunk.
        position: Position of the job in it.
        why: The limit that it exceeded, or the cancellation.
    """
    with suppress(Exception):
        fields = _fields_in(index, position)
        text = "job %s of task %s is stopped: %s"
        log_about(_log, logging.WARNING, fields, text, fields[0], _task(fields[1]), why)


def refused(  # noqa: PLR0917 - called thrice, from where jobs are refused
    job: str, task: str, queue: str, attempt: int, kind: int, error: RemoteError
) -> None:
    """Log that a job cannot be run here, because of its headers or its task."""
    with suppress(Exception):
        fields = job, task, queue, attempt
        if kind == OutcomeKind.UNKNOWN_TASK:
            text = "job %s goes back to the broker: %s"
            log_about(_log, logging.WARNING, fields, text, job, error.message)
        else:
            line = _error_line(error)
            log_about(_log, logging.ERROR, fields, _FAILED, job, _task(task), attempt, line)


def id_and_task(index: ChunkIndex, position: int) -> tuple[str, str]:
    """Return id and task of a job of a chunk; the task is "" if its headers cannot be read."""
    entry = index.entries[position]
    try:
        return entry.id, parse_headers(index.templates[entry.template]).task
    except Exception:  # noqa: BLE001 - only for a log record; running the job reports the error
        return entry.id, ""


def result_too_large(index: ChunkIndex, position: int, text: str) -> None:
    """Log that a job failed for good because its result is too large for the broker."""
    with suppress(Exception):
        error = f"eventmq.errors.ResultTooLarge: {text}"
        job, task, _, attempt = fields = _fields_in(index, position)
        log_about(_log, logging.ERROR, fields, _FAILED, job, _task(task), attempt, error)


def died(reason: str, index: ChunkIndex, position: int, others: int) -> None:
    """Log that a process ended while it ran the job at ``position``.

    Args:
        reason: How the process ended.
        index: Index of the job's chunk.
        position: Position of the job in it.
        others: Number of further jobs of the process.
    """
    with suppress(Exception):
        job, task, *_ = fields = _fields_in(index, position)
        entry = index.entries[position]
        log_about(
            _log, logging.ERROR, fields,
            "job %s of task %s was interrupted at attempt %d, delivery %d: %s; the broker runs it "
            "again, or fails it if it killed too many processes; %s",
            job, _task(task), entry.attempt, entry.delivery, reason,
            f"{others} other jobs of the process run again, which does not count against them"
            if others else "the process had no other job",
        )  # fmt: skip


def _names(jobs: Sequence[tuple[str, str]]) -> str:
    """Return ids and tasks of the first jobs, and the number of the others."""
    names = ", ".join(f"{job} ({_task(task)})" for job, task in jobs[:MAX_NAMED])
    return names + (f" and {len(jobs) - MAX_NAMED} more" if len(jobs) > MAX_NAMED else "")


def lost(reason: str, started: Sequence[tuple[str, str]], others: int) -> None:
    """Log that a process died with several started jobs, any of which may be the cause.

    Args:
        reason: How the process ended.
        started: Id and task of each job that it had started.
        others: Number of jobs that it had not started.
    """
    with suppress(Exception):
        _log.error(
            "a process of the worker ended with %d jobs that it had started: %s; they run again "
            "one by one, so that the next death shows which job it was: %s; %d other jobs of the "
            "process run again",
            len(started), reason, _names(started), others,
        )  # fmt: skip


def aborted(jobs: Sequence[tuple[str, str]], why: str) -> None:
    """Log that running jobs were killed, and are handed back.

    Args:
        jobs: Id and task of each job.
        why: The reason.
    """
    if not jobs:
        return
    with suppress(Exception):
        noun = "job, which will" if len(jobs) == 1 else "jobs, which will"
        _log.warning("%s: aborted %d running %s run again: %s", why, len(jobs), noun, _names(jobs))


def logs_success() -> bool:
    """Return whether successful jobs are logged too, which is the case at level debug."""
    return _log.isEnabledFor(logging.DEBUG)


def logged(run: Run) -> Run:
    """Wrap a function that runs a job, and log the start and the success of the job."""

    def run_logged(route: Route, position: int, entry: ChunkEntry, payload: bytes) -> OutcomeRow:
        names = (entry.id, _task(route.task), entry.attempt)
        with suppress(Exception):
            _log.debug("job %s of task %s starts, attempt %d", *names)
        row = run(route, position, entry, payload)
        if row.kind == OutcomeKind.SUCCEEDED:
            with suppress(Exception):
                _log.debug(
                    "job %s of task %s succeeded at attempt %d in %.3g s", *names, row.run_time
                )
        return row

    return run_logged
