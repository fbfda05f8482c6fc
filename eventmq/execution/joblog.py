"""What a worker's log says about jobs: one record for each that did not simply succeed.

Its lines name job, task and attempt themselves. They never have arguments or results; texts of
exceptions are their author's. Called where a job runs (`execution`) and by the job manager for
what happens to jobs from outside. Nothing here raises: a broken log handler fails no job.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from eventmq.headers import parse_headers
from eventmq.job import OutcomeKind

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
    "lost",
    "named",
    "narrated",
    "not_kept",
    "refused",
    "result_too_large",
    "retried",
    "stopped",
    "wants_everything",
]

_log = logging.getLogger(__name__)

#: Bytes of a traceback's end that are logged.
TRACEBACK_BYTES = 16 * 1024

#: Characters of the text of an error that are logged.
TEXT = 4096

#: Jobs that one line names.
NAMED = 10

#: Where a job failed for good: job, task, attempt, error, traceback.
_FAILED = "job %s of task %s failed for good at attempt %d: %s%s"


def _end_of(traceback: str) -> str:
    """Return the last bytes of a traceback, from a line's start on, as lines of their own."""
    data = traceback.rstrip().encode(errors="replace")
    if len(data) <= TRACEBACK_BYTES:
        return f"\n{data.decode()}" if data else ""
    end = data[-TRACEBACK_BYTES:]
    whole = end[end.find(b"\n") + 1 :]
    return f"\n[...]\n{whole.decode(errors='ignore')}"


def _task(name: str) -> str:
    return name or "(legacy)"


def _what(error: RemoteError) -> str:
    """Return type and text of an error."""
    text = error.message
    if len(text) > TEXT:
        text = f"{text[:TEXT]} [...]"
    return f"{error.type.removeprefix('builtins.')}: {text}"


def failed(job: JobContext, error: RemoteError) -> None:
    """A job failed for good."""
    with suppress(Exception):
        names = (job.id, _task(job.task), job.attempt)
        _log.error(_FAILED, *names, _what(error), _end_of(error.traceback))


def retried(job: JobContext, error: RemoteError, delay: float, *, asked: bool) -> None:
    """An attempt failed, and another comes; ``asked``: its task asked for that."""
    with suppress(Exception):
        _log.log(
            logging.INFO if asked else logging.WARNING,
            "attempt %d of job %s of task %s failed: %s; the next is in %.3g s",
            job.attempt, job.id, _task(job.task), _what(error), delay,
        )  # fmt: skip


def cancelled(job: JobContext, run_time: float) -> None:
    """A job was cancelled while it ran, and has ended."""
    with suppress(Exception):
        _log.info("job %s of task %s was cancelled after %.3g s", job.id, _task(job.task), run_time)


def not_kept(job: JobContext) -> None:
    """A job ran on past its soft limit, because nothing here can interrupt it."""
    with suppress(Exception):
        _log.warning(
            "job %s of task %s ran past its soft_timeout: this pool cannot interrupt blocking "
            "code; use the pool prefork, or call current_job().check() in the task",
            job.id, _task(job.task),
        )  # fmt: skip


def stopped(index: ChunkIndex, position: int, why: str) -> None:
    """A job is stopped from outside.

    Args:
        index: Of the job's chunk.
        position: The job's place in it.
        why: What it did not obey.
    """
    with suppress(Exception):
        job, task = named(index, position)
        _log.warning("job %s of task %s is stopped: %s", job, _task(task), why)


def refused(job: str, task: str, attempt: int, kind: int, error: RemoteError) -> None:
    """A job cannot even be tried here, because of its headers or of what it names."""
    with suppress(Exception):
        if kind == OutcomeKind.UNKNOWN_TASK:
            _log.warning("job %s goes back to the broker: %s", job, error.message)
        else:
            _log.error(_FAILED, job, _task(task), attempt, _what(error), "")


def named(index: ChunkIndex, position: int) -> tuple[str, str]:
    """Return id and task of a job of a chunk; the task is "" where its headers are unreadable."""
    entry = index.entries[position]
    try:
        return entry.id, parse_headers(index.templates[entry.template]).task
    except Exception:  # noqa: BLE001 - for people; whoever runs the job says what is wrong
        return entry.id, ""


def result_too_large(index: ChunkIndex, position: int, text: str) -> None:
    """A job succeeded, but the broker does not take its result: it failed for good."""
    with suppress(Exception):
        job, task = named(index, position)
        what = f"eventmq.errors.ResultTooLarge: {text}"
        _log.error(_FAILED, job, _task(task), index.entries[position].attempt, what, "")


def died(reason: str, index: ChunkIndex, position: int, others: int) -> None:
    """A process ended while it ran the job at ``position``.

    Args:
        reason: How it ended.
        index: Of the job's chunk.
        position: The job's place in it.
        others: Jobs that the process had beside it.
    """
    with suppress(Exception):
        job, task = named(index, position)
        entry = index.entries[position]
        _log.error(
            "job %s of task %s broke off at attempt %d, delivery %d: %s; the broker lets it run "
            "again, or fails it if it killed too many processes; %s",
            job, _task(task), entry.attempt, entry.delivery, reason,
            f"{others} other jobs of the process go back and run again, uncounted"
            if others else "the process had no other job",
        )  # fmt: skip


def lost(reason: str, started: int, others: int) -> None:
    """A process ended with jobs that it had started, and which of them was the cause is not known.

    Args:
        reason: How it ended.
        started: How many jobs these are.
        others: Jobs that it had not started.
    """
    with suppress(Exception):
        _log.error(
            "a process of the worker ended with %d jobs that it had started: %s; they run again "
            "one by one, so that the next death says which job it was; %d others go back",
            started, reason, others,
        )  # fmt: skip


def aborted(jobs: Sequence[tuple[str, str]], why: str) -> None:
    """Jobs were killed in the middle, and go back.

    Args:
        jobs: Id and task of each.
        why: What ended them.
    """
    if not jobs:
        return
    with suppress(Exception):
        names = ", ".join(f"{job} ({_task(task)})" for job, task in jobs[:NAMED])
        more = f" and {len(jobs) - NAMED} more" if len(jobs) > NAMED else ""
        what = "job, which will" if len(jobs) == 1 else "jobs, which will"
        _log.warning("%s: aborted %d running %s run again: %s%s", why, len(jobs), what, names, more)


def wants_everything() -> bool:
    """Say whether jobs that succeed are logged too: at debug only."""
    return _log.isEnabledFor(logging.DEBUG)


def narrated(run: Run) -> Run:
    """Return what runs a job, and logs its start and its success."""

    def told(route: Route, position: int, entry: ChunkEntry, payload: bytes) -> OutcomeRow:
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

    return told
