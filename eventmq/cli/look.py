"""Looks at a broker: ``ping status queues workers jobs job``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from eventmq.cli.command import Command
from eventmq.cli.exits import NO_BROKER, NOT_FOUND
from eventmq.cli.history import attempts_of, error_of, progress_of, show_attempts, traceback_of
from eventmq.cli.listing import rows_of
from eventmq.cli.output import show_object, show_rows
from eventmq.cli.target import takes_json, takes_target
from eventmq.cli.tree import drawn, graph_of
from eventmq.job import JobState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from eventmq.cli.target import Target

__all__ = ["COMMANDS"]

_QUEUES = ("name", "waiting", "delayed", "running", "failed", "paused", "workers")
_WORKERS = (
    "name", "session", "queues", "tasks", "running", "chunks", "window", "seen", "legacy",
)  # fmt: skip
_JOBS = (
    "id", "task", "queue", "state", "attempt", "delivery", "priority", "created", "due",
    "expires", "started", "ran", "finished", "worker", "error",
)  # fmt: skip
_TREE = (*_JOBS, "place", "input", "output", "handler")
#: What of `_JOBS` fits into a terminal.
_JOBS_FOR_PEOPLE = (
    "id", "task", "queue", "state", "attempt", "created", "finished", "worker", "error",
)  # fmt: skip

#: Rows that ``jobs`` shows unless told.
ROWS = 100


@click.command(cls=Command, exits={NO_BROKER: ""})
@click.option("--timeout", type=float, metavar="S", help="Wait so long for the answer.")
@takes_json
@takes_target
def ping(target: Target, timeout: float | None, as_json: bool) -> None:
    """Ask the broker whether it is there.

    It answers with its version, epoch, store and time; "round_trip" is what that took, in seconds.
    """
    with target.asking(timeout) as app:
        app.ask("ping")  # connects; the second one measures
        start = time.perf_counter()
        answer = app.ask("ping")
        taken = time.perf_counter() - start
    show_object({**answer, "round_trip": round(taken, 6)}, as_json=as_json)


@click.command(cls=Command, exits={NO_BROKER: ""})
@takes_json
@takes_target
def status(target: Target, as_json: bool) -> None:
    """Show how the broker is.

    That is: addresses, peers, waiting jobs, and counters since its start. "clock" has what does not
    count yet of a step of the wall clock, and of the time that the machine was off, in seconds.
    """
    with target.asking() as app:
        answer = app.ask("status")
    if not as_json:
        clock = answer.get("clock", {})
        answer["clock"] = {name: round(value) for name, value in clock.items() if value}
    show_object(answer if as_json else dict(_flat(answer)), as_json=as_json)


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a row for each part of what people read in a status."""
    for name, part in value.items():
        if isinstance(part, dict):
            yield from _flat(part, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", ", ".join(map(str, part)) if isinstance(part, list) else part


@click.command(cls=Command, exits={NO_BROKER: ""})
@takes_json
@takes_target
def queues(target: Target, as_json: bool) -> None:
    """List the queues.

    For each how many jobs wait, are delayed, run and have failed, and how many workers serve it;
    its limits where the broker has limits of queues.
    """
    with target.asking() as app:
        rows = app.ask("queues")
    limited = any(row.get("limits") for row in rows)
    columns = (*_QUEUES, "limits") if limited else _QUEUES
    show_rows(rows, columns, as_json=as_json, empty="the broker has no queue yet")


@click.command(cls=Command, exits={NO_BROKER: ""})
@takes_json
@takes_target
def workers(target: Target, as_json: bool) -> None:
    """List the workers.

    For each its queues with weights, its tasks, how many jobs and chunks it has, for how many
    chunks there is room, and how many seconds ago it was heard. A legacy one speaks only the
    published protocol.
    """
    with target.asking() as app:
        rows = [_worker(row) for row in app.ask("workers")]
    show_rows(rows, _WORKERS, as_json=as_json, empty="no worker is connected")


def _worker(row: Mapping[str, Any]) -> dict[str, Any]:
    queues = ",".join(f"{name}:{weight}" for weight, name in row["queues"])
    tasks = ",".join(row["tasks"])
    return {**row, "queues": queues, "tasks": tasks, "legacy": row["plain"]}


@click.command(cls=Command, exits={NO_BROKER: ""})
@click.option("--queue", metavar="NAME", help="Only of this queue.")
@click.option(
    "--state", type=click.Choice([state.value for state in JobState]), help="Only in this state.",
)  # fmt: skip
@click.option("--task", metavar="NAME", help="Only of this task.")
@click.option(
    "--limit", type=click.IntRange(1), default=ROWS, show_default=True, metavar="N",
    help="At most so many.",
)  # fmt: skip
@takes_json
@takes_target
def jobs(target: Target, limit: int, as_json: bool, **filters: str | None) -> None:
    """List jobs, the newest first, also ended ones.

    The latter are kept for the result's time to live, and failed ones longer.
    """
    with target.asking() as app:
        rows = [_job(row) for row in rows_of(app, "jobs", filters, limit)]
    columns = _JOBS if as_json else _JOBS_FOR_PEOPLE
    show_rows(rows, columns, as_json=as_json, empty="no such jobs")
    if len(rows) == limit and not as_json:
        click.echo(f"the newest {limit}; --limit shows more", err=True)


def _job(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job as a flat object: times that have not come are None, the error is a text."""
    flat = {**row, "error": error_of(row.get("error"))}
    for name in ("created", "due", "expires", "started", "ran", "finished"):
        flat[name] = flat.get(name) or None
    return flat


@click.command(cls=Command, exits={NO_BROKER: "", NOT_FOUND: "no job with this id"})
@click.argument("job_id", metavar="ID")
@click.option("--tree", is_flag=True, help="The chain, group or chord that it is part of.")
@takes_json
@takes_target
def job(target: Target, job_id: str, tree: bool, as_json: bool) -> None:
    """Show what is known of one job, with its failed attempts.

    Its arguments and its result are not shown. With --tree all jobs of its graph are drawn with
    their states: the last ones on top, and below each what it waits for.
    """
    with target.asking() as app:
        info = app.job(job_id).info()
        if tree:
            _show_tree(graph_of(app, job_id) if info["root"] else [_alone(info)], as_json=as_json)
            return
    row = _job(info)
    del row["attempts"]  # shown below
    row["traceback"] = traceback_of(info.get("error"))
    if as_json:
        show_object({**row, "attempts": attempts_of(info)}, as_json=True)
        return
    row["progress"] = progress_of(row["progress"])
    show_object({name: value for name, value in row.items() if value is not None}, as_json=False)
    if info["attempt"] > 1 or info["state"] != "failed":  # else it was shown above
        show_attempts(info)


def _alone(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job of no graph as the only one of one."""
    return {**info, "place": 0, "input": 0, "output": 0, "handler": False}


def _show_tree(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        show_rows([_job(row) for row in rows], _TREE, as_json=True)
        return
    for line in drawn(rows):
        click.echo(line)


COMMANDS = (ping, status, queues, workers, jobs, job)
