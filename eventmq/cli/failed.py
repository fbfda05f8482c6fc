"""Inspect, retry and drop failed jobs: ``failed list show retry drop``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from eventmq.cli.command import NO_BROKER, NOT_FOUND, Command, print_error, read_timestamp
from eventmq.cli.control import in_pages, run_bulk
from eventmq.cli.inspect import attempts_of, error_of, show_attempts
from eventmq.cli.output import rows_of, show_latest, show_object, show_rows
from eventmq.cli.target import takes_json, takes_target
from eventmq.errors import EventMQError, JobNotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from eventmq.cli.target import Target

__all__ = ["COMMANDS"]

_COLUMNS = (
    "id", "task", "queue", "attempt", "delivery", "created", "started", "ran", "finished",
    "worker", "error",
)  # fmt: skip
#: Columns that fit into a terminal.
_TERMINAL_COLUMNS = ("id", "task", "queue", "attempt", "finished", "worker", "error")

_TIMES = ("created", "started", "finished")

#: Default of ``failed list --limit``.
ROWS = 100

_EXITS = {NO_BROKER: "", NOT_FOUND: "a job is not among the failed ones, or no such queue"}


def _takes_filters(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose among failed jobs."""
    for option in (
        click.option("--until", callback=read_timestamp, metavar="WHEN", help="Failed before it."),
        click.option(
            "--since", callback=read_timestamp, metavar="WHEN",
            help="Failed after it: 2h for two hours ago, or 2026-01-31T12:00.",
        ),
        click.option("--error", metavar="TYPE", help="With an error of this type: ValueError."),
        click.option("--task", metavar="NAME", help="Of this task."),
        click.option("--queue", metavar="NAME", help="Of this queue."),
    ):  # fmt: skip
        function = option(function)
    return function


@click.group(
    epilog="Exit codes: 0 done, 2 wrong usage, 3 broker not reachable, 4 a job is not among the "
    "failed ones."
)
def failed() -> None:
    """Inspect failed jobs, retry them, or drop them.

    A job that has failed for good is kept with its arguments, its error and the history of its
    attempts, until it is dropped, or as long as "failed_ttl" and "max_failed_bytes" allow.
    """


@failed.command("list", cls=Command, exits={NO_BROKER: ""})
@_takes_filters
@click.option(
    "--limit", type=click.IntRange(1), default=ROWS, show_default=True, metavar="N",
    help="Largest number of rows.",
)  # fmt: skip
@takes_json
@takes_target
def list_failed(target: Target, limit: int, as_json: bool, **filters: Any) -> None:
    """List failed jobs, the latest first."""
    with target.asking() as app:
        rows = [_flat(row) for row in rows_of(app, "failed", filters, limit)]
    show_latest(rows, _COLUMNS if as_json else _TERMINAL_COLUMNS, limit, as_json=as_json)


def _without_none(filters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in filters.items() if value is not None}


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a failed job as a flat object: times not reached are None."""
    times = {name: row[name] or None for name in _TIMES}
    return {**row, **times, "error": error_of(row["error"])}


@failed.command("show", cls=Command, exits=_EXITS)
@click.argument("job_id", metavar="ID")
@takes_json
@takes_target
def show(target: Target, job_id: str, as_json: bool) -> int | None:
    """Show one failed job with the errors and tracebacks of its attempts.

    Its arguments are not shown.
    """
    with target.asking() as app:
        info = app.job(job_id).info()
    if info["state"] != "failed":
        return _not_failed(job_id, info["state"])
    row = {name: value for name, value in _flat(info).items() if name in _COLUMNS}
    if as_json:
        show_object({**row, "attempts": attempts_of(info)}, as_json=True)
    else:
        show_object({name: value for name, value in row.items() if value}, as_json=False)
        show_attempts(info, tracebacks=True)
    return None


def _not_failed(job_id: str, state: str) -> int:
    print_error(EventMQError(f"job {job_id} is not among the failed jobs: it is {state}"))
    return NOT_FOUND


def _takes_jobs(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add what ``retry`` and ``drop`` have in common."""
    for option in (
        takes_target,
        takes_json,
        click.option("--all", "everything", is_flag=True, help="All failed jobs."),
        click.option(
            "--limit", type=click.IntRange(1), metavar="N", help="Only the last N failed of them."
        ),
        _takes_filters,
        click.argument("ids", metavar="[ID]...", nargs=-1),
    ):
        function = option(function)
    return function


@failed.command("retry", cls=Command, exits=_EXITS)
@_takes_jobs
def retry(**options: Any) -> int | None:
    """Retry failed jobs, by id or by filters.

    Each keeps its id and its history and goes to the back of its queue as its next attempt. If it
    fails again, it is retried only if its task's "retries" still allow that.
    """
    return _apply("retry", "queued", **options)


@failed.command("drop", cls=Command, exits=_EXITS)
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
    chosen = _without_none(filters)
    if sum((bool(ids), bool(chosen) or limit is not None, everything)) != 1:
        raise click.UsageError("name jobs by their ids, by filters, or with --all")
    with target.asking() as app:
        if not ids and limit is None:
            count = run_bulk(app, action, **chosen)
        else:
            chosen_ids = ids or tuple(
                row["id"] for row in rows_of(app, "failed", chosen, limit or 0)
            )
            answers = in_pages(app, action, chosen_ids)
            count = sum(state == done for _, state, _ in answers)
            if ids:
                return _show_answers(answers, done, as_json=as_json)
    if as_json:
        show_object({done: count}, as_json=True)
    else:
        click.echo(f"{count} {'job' if count == 1 else 'jobs'} {done}")
    return None


def _show_answers(answers: list[list[str]], done: str, *, as_json: bool) -> int | None:
    rows = [{"id": i, "state": state, "was": was} for i, state, was in answers if state == done]
    show_rows(rows, ("id", "state", "was"), as_json=as_json)
    code = None
    for job_id, state, _ in answers:
        if not state:
            code = NOT_FOUND
            print_error(JobNotFound(job_id))
        elif state != done:
            code = _not_failed(job_id, state)
    return code


COMMANDS = (failed,)
