"""Act on jobs, queues and the broker: ``failed cancel purge pause resume drain clock``."""

from __future__ import annotations

import sys
import time
import uuid
from typing import TYPE_CHECKING, Any

import click

from eventmq.cli.command import (
    FAILED,
    NO_BROKER,
    NOT_FOUND,
    Command,
    ListingGroup,
    count_of,
    print_error,
    read_timestamp,
)
from eventmq.cli.inspect import as_row, show_job, takes_args, takes_logs
from eventmq.cli.output import (
    full_ids,
    none_of,
    pages_of,
    rows_of,
    show_latest,
    show_object,
    show_rows,
)
from eventmq.cli.target import takes_json, takes_target, takes_wide
from eventmq.errors import EventMQError, JobNotFound, QueueNotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eventmq.app import EventMQ
    from eventmq.cli.target import Target

__all__ = ["COMMANDS"]

#: Seconds between two requests for the progress: at first, and at most.
_MIN_WAIT, _MAX_WAIT = 0.005, 0.5


def run_bulk(app: EventMQ, action: str, **filters: Any) -> int:
    """Cancel, retry or drop jobs by filters; return the number of affected jobs.

    The broker works through them in slices. It continues if this process ends, and after its own
    restart; a terminal shows the progress.
    """
    arguments = {"id": uuid.uuid4().hex, "action": action, **filters}
    wait, shown = _MIN_WAIT, False
    while True:
        answer = app.ask("bulk", arguments)
        if answer["done"]:
            if shown:
                click.echo(err=True)
            return int(answer["count"])
        if wait >= _MAX_WAIT and sys.stderr.isatty():
            click.echo(f"\r{answer['count']} jobs so far", err=True, nl=False)
            shown = True
        time.sleep(wait)
        wait = min(2 * wait, _MAX_WAIT)


#: Seconds between two checks of a queue that is being drained.
DRAIN_INTERVAL = 0.2

_NO_QUEUE = "no queue with this name"


@click.command(cls=Command, exits={NO_BROKER: "", NOT_FOUND: "an id or the queue is not known"})
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option(
    "--group", metavar="ID", help="All jobs in the graph of this job: chain, group or chord."
)
@click.option("--queue", metavar="NAME", help="Jobs of this queue that have not started.")
@click.option("--task", metavar="NAME", help="Jobs of this task that have not started.")
@click.option(
    "--state", type=click.Choice(["blocked", "delayed", "queued"]), help="Only jobs in this state.",
)  # fmt: skip
@click.option("--running", is_flag=True, help="With --queue or --task: also running jobs.")
@click.option(
    "--reason", metavar="TEXT", default="", help="Reason, which clients that wait for the jobs get."
)
@takes_json
@takes_target
def cancel(
    *,
    target: Target,
    ids: tuple[str, ...],
    group: str | None,
    reason: str,
    as_json: bool,
    **filters: Any,
) -> int | None:
    """Cancel jobs: by id, all of a graph, or all of a queue or task.

    The jobs end at once. A worker that runs one is told to stop, and its outcome is ignored. A job
    named by its id is cancelled even while it runs; with --queue or --task, running jobs are
    cancelled only with --running. An id may be a part of one, such as the end that listings show.
    """
    chosen = {name: value for name, value in filters.items() if value}
    selectors = bool(ids) + bool(group) + bool(chosen.get("queue") or chosen.get("task"))
    if selectors != 1 or ((ids or group) and chosen):
        raise click.UsageError("name jobs by their ids, or by --group, or by --queue or --task")
    with target.asking() as app:
        if group:
            (member,) = full_ids(app, [group])
            answer = app.ask("cancel_graph", {"id": member, "reason": reason})
            _print_count(answer["count"], "cancelled", as_json=as_json)
            return None
        if not ids:
            count = run_bulk(app, "cancel", reason=reason, **chosen)
            _print_count(count, "cancelled", as_json=as_json)
            return None
        answers = [
            row
            for page in pages_of(full_ids(app, ids))
            for row in app.ask("cancel", {"ids": page, "reason": reason})
        ]
    return _show_answers(answers, as_json=as_json)


def _show_answers(answers: Sequence[Sequence[str]], done: str = "", *, as_json: bool) -> int | None:
    """Print the result for each job, and an error for each that is unknown or not ``done``."""
    rows = [{"id": i, "state": state, "was": was} for i, state, was in answers]
    changed = [row for row in rows if row["state"] and row["state"] == (done or row["state"])]
    show_rows(changed, ("id", "state", "was"), as_json=as_json)
    code = None
    for row in rows:
        if not row["state"]:
            code = print_error(JobNotFound(row["id"]))
        elif row not in changed:
            code = _not_failed(row["id"], row["state"])
    return code


def _print_count(count: int, verb: str, *, as_json: bool) -> None:
    if as_json:
        show_object({verb: count}, as_json=True)
    else:
        click.echo(f"{count_of(count, 'job')} {verb}")


@click.command(cls=Command, exits={NO_BROKER: "", NOT_FOUND: _NO_QUEUE})
@click.argument("queue")
@takes_json
@takes_target
def purge(target: Target, queue: str, as_json: bool) -> None:
    """Empty a queue: cancel its waiting and delayed jobs.

    Running jobs continue, as do jobs that arrive after the start of the command. A client that
    waits for a cancelled job gets the reason that its queue was purged.
    """
    with target.asking() as app:
        count = run_bulk(app, "cancel", queue=queue, reason="purged", operation="purge")
    _print_count(count, "cancelled", as_json=as_json)


@click.command(cls=Command, exits={NO_BROKER: "", NOT_FOUND: _NO_QUEUE})
@click.argument("queue")
@takes_target
def pause(target: Target, queue: str) -> None:
    """Stop handing out jobs of a queue until it is resumed.

    The queue still accepts jobs, and jobs that workers already have continue. The queue stays
    paused when the broker restarts.
    """
    with target.asking() as app:
        app.ask("pause", {"queue": queue})


@click.command(cls=Command, exits={NO_BROKER: "", NOT_FOUND: _NO_QUEUE})
@click.argument("queue")
@takes_target
def resume(target: Target, queue: str) -> None:
    """Hand out jobs of a paused queue again."""
    with target.asking() as app:
        app.ask("resume", {"queue": queue})


_DRAIN_EXITS = {FAILED: "it was not empty in time", NO_BROKER: "", NOT_FOUND: _NO_QUEUE}


@click.command(cls=Command, exits=_DRAIN_EXITS)
@click.argument("queue")
@click.option("--timeout", type=click.FloatRange(0), metavar="S", help="Maximum wait in seconds.")
@click.option("--delayed", is_flag=True, help="Wait for delayed jobs as well.")
@takes_target
def drain(target: Target, queue: str, timeout: float | None, delayed: bool) -> int | None:
    """Wait until a queue is empty: no job waits or runs.

    The queue accepts new jobs meanwhile; stop its clients first if it has to become empty.
    """
    end = None if timeout is None else time.monotonic() + timeout
    with target.asking() as app:
        while jobs := _remaining_jobs(app, queue, delayed=delayed):
            wait = DRAIN_INTERVAL if end is None else min(DRAIN_INTERVAL, end - time.monotonic())
            if wait <= 0:
                return print_error(EventMQError(f"the queue {queue!r} is not empty: {jobs}"))
            time.sleep(wait)
    return None


def _remaining_jobs(app: EventMQ, name: str, *, delayed: bool) -> str:
    """Return the number of jobs left in a queue as text; "" for none."""
    for row in app.ask("queues"):
        if row["name"] == name:
            kinds = ("waiting", "running", "delayed") if delayed else ("waiting", "running")
            jobs = ", ".join(f"{row[kind]} {kind}" for kind in kinds if row[kind])
            return f"{jobs}, and it is paused" if jobs and row["paused"] else jobs
    raise QueueNotFound(f"there is no queue {name!r}")


@click.group(epilog="Exit codes: 0 done, 2 wrong usage, 3 broker not reachable.")
def clock() -> None:
    """Manage the broker's trust in the clock of its machine.

    "eventmq status" shows the time that does not count yet.
    """


@clock.command("accept", cls=Command, exits={NO_BROKER: ""})
@takes_json
@takes_target
def accept(target: Target, as_json: bool) -> None:
    """Accept the wall clock of the broker's machine now.

    A step of the clock then counts at once instead of after ten minutes, and the time that the
    machine was off counts at once instead of after an hour of a steady clock. Prints the seconds of
    both. Use it only if the clock is right: failed jobs, results and limits age by that time.
    """
    with target.asking() as app:
        accepted = app.ask("clock.accept")
    show_object(accepted, as_json=as_json)


# Failed jobs

_FAILED = (
    "id", "task", "queue", "attempt", "delivery", "created", "started", "ran", "finished",
    "worker", "error",
)  # fmt: skip
_FAILED_SHOWN = ("id", "task", "queue", "attempt", "finished", "worker", "error")

#: Default of ``failed list --limit``.
ROWS = 100

_FAILED_EXITS = {NO_BROKER: "", NOT_FOUND: "a job is not a failed one, or the queue does not exist"}


def _takes_filters(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that filter failed jobs."""
    for option in (
        click.option(
            "--until", callback=read_timestamp, metavar="WHEN", help="Only jobs that failed before."
        ),
        click.option(
            "--since", callback=read_timestamp, metavar="WHEN",
            help="Only jobs that failed after: 2h for two hours ago, or 2026-01-31T12:00.",
        ),
        click.option("--error", metavar="TYPE", help="Only with this type of error: ValueError."),
        click.option("--task", metavar="NAME", help="Only jobs of this task."),
        click.option("--queue", metavar="NAME", help="Only jobs of this queue."),
    ):  # fmt: skip
        function = option(function)
    return function


@click.group(
    cls=ListingGroup,
    epilog="Exit codes: 0 done, 2 wrong usage, 3 broker not reachable, 4 a job is not among the "
    "failed ones.",
)
def failed() -> None:
    """List failed jobs, or inspect, retry or drop them.

    Without a command, and with options alone, it is "failed list".

    A job that has failed for good is kept with its arguments, its error and the history of its
    attempts until it is dropped, or as long as "failed_ttl" and "max_failed_bytes" allow.
    """


@failed.command("list", cls=Command, exits={NO_BROKER: ""})
@_takes_filters
@click.option(
    "--text",
    metavar="TEXT",
    help="Only jobs whose error has this text in its type, message or traceback, in any case.",
)
@click.option(
    "--limit", type=click.IntRange(1), default=ROWS, show_default=True, metavar="N",
    help="Maximum number of rows.",
)  # fmt: skip
@takes_json
@takes_wide
@takes_target
def list_failed(target: Target, limit: int, as_json: bool, wide: bool, **filters: Any) -> None:
    """List failed jobs, the latest first.

    On a narrow terminal these columns are dropped first: worker, queue, finished, attempt.
    """
    with target.asking() as app:
        rows = [as_row(row) for row in rows_of(app, "failed", filters, limit)]
    show_latest(
        rows, _FAILED, limit, as_json=as_json, wide=wide, brief=_FAILED_SHOWN,
        empty=none_of("failed jobs", **filters),
    )  # fmt: skip


@failed.command("show", cls=Command, exits=_FAILED_EXITS)
@click.argument("job_id", metavar="ID")
@takes_args
@takes_logs
@takes_json
@takes_target
def show(
    target: Target, job_id: str, *, args: bool, logs: bool, as_json: bool
) -> int | None:  # fmt: skip
    """Show one failed job with the errors and tracebacks of its attempts.

    ID may be a part of an id, such as the end that listings show. --args shows its arguments and
    --logs its logs, like "eventmq job".
    """
    with target.asking() as app:
        info = app.job(*full_ids(app, [job_id])).info(args=args, logs=logs)
    if info["state"] != "failed":
        return _not_failed(info["id"], info["state"])
    columns = {*_FAILED, "args", "kwargs", "args_note", "logs"}
    row = {name: value for name, value in as_row(info).items() if name in columns}
    show_job(row, info, as_json=as_json, tracebacks=True)
    return None


def _not_failed(job_id: str, state: str) -> int:
    print_error(EventMQError(f"job {job_id} is not among the failed jobs: it is {state}"))
    return NOT_FOUND


def _takes_jobs(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the common options of ``retry`` and ``drop``."""
    for option in (
        takes_target,
        takes_json,
        click.option("--all", "everything", is_flag=True, help="All failed jobs."),
        click.option(
            "--limit", type=click.IntRange(1), metavar="N", help="Only the N that failed last."
        ),
        _takes_filters,
        click.argument("ids", metavar="[ID]...", nargs=-1),
    ):
        function = option(function)
    return function


@failed.command("retry", cls=Command, exits=_FAILED_EXITS)
@_takes_jobs
def retry(**options: Any) -> int | None:
    """Retry failed jobs, by id or by filters.

    Each keeps its id and its history, and goes to the back of its queue as its next attempt. If it
    fails again, it is retried only if the "retries" of its task still allow that.
    """
    return _apply("retry", "queued", **options)


@failed.command("drop", cls=Command, exits=_FAILED_EXITS)
@_takes_jobs
def drop(**options: Any) -> int | None:
    """Drop failed jobs, by id or by filters.

    Dropped jobs cannot be restored.
    """
    return _apply("drop", "dropped", **options)


def _apply(
    action: str,
    done: str,
    *,
    target: Target,
    ids: tuple[str, ...],
    limit: int | None,
    everything: bool,
    as_json: bool,
    **filters: Any,
) -> int | None:
    chosen = {name: value for name, value in filters.items() if value is not None}
    if sum((bool(ids), bool(chosen) or limit is not None, everything)) != 1:
        raise click.UsageError("name jobs by their ids, by filters, or with --all")
    with target.asking() as app:
        if not ids and limit is None:
            count = run_bulk(app, action, **chosen)
        else:
            newest = rows_of(app, "failed", chosen, limit or 0)
            chosen_ids = full_ids(app, ids) if ids else [row["id"] for row in newest]
            pages = pages_of(chosen_ids)
            answers = [row for page in pages for row in app.ask(action, {"ids": page})]
            count = sum(state == done for _, state, _ in answers)
            if ids:
                return _show_answers(answers, done, as_json=as_json)
    _print_count(count, done, as_json=as_json)
    return None


COMMANDS = (failed, cancel, purge, pause, resume, drain, clock)
