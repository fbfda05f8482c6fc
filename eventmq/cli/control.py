"""Control a broker: ``cancel purge pause resume drain clock``."""

from __future__ import annotations

import sys
import time
import uuid
from typing import TYPE_CHECKING, Any

import click

from eventmq.cli.command import FAILED, NO_BROKER, NOT_FOUND, Command, print_error
from eventmq.cli.output import show_object, show_rows
from eventmq.cli.target import takes_json, takes_target
from eventmq.errors import JobNotFound, QueueNotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.app import EventMQ
    from eventmq.cli.target import Target

__all__ = ["COMMANDS", "in_pages", "run_bulk"]


#: Seconds between two requests for the progress: first and last.
_MIN_WAIT, _MAX_WAIT = 0.005, 0.5


def in_pages(app: EventMQ, name: str, ids: Sequence[str], **more: Any) -> list[list[str]]:
    """Call an operation on ids, in pages as large as it allows; return all rows."""
    from eventmq.wire.calls import MAX_IDS

    rows: list[list[str]] = []
    for start in range(0, len(ids), MAX_IDS):
        rows += app.ask(name, {"ids": list(ids[start : start + MAX_IDS]), **more})
    return rows


def run_bulk(app: EventMQ, action: str, **filters: Any) -> int:
    """Cancel, retry or drop jobs by filters; return how many were affected.

    The broker works through them in slices. It goes on if this process ends, and after a restart
    of the broker; a terminal shows the progress.
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
@click.option("--group", metavar="ID", help="The graph of this job: chain, group or chord.")
@click.option("--queue", metavar="NAME", help="Jobs of this queue that have not started.")
@click.option("--task", metavar="NAME", help="Jobs of this task that have not started.")
@click.option(
    "--state", type=click.Choice(["blocked", "delayed", "queued"]), help="Only in this state.",
)  # fmt: skip
@click.option("--running", is_flag=True, help="With --queue or --task: also running jobs.")
@click.option(
    "--reason", metavar="TEXT", default="", help="Reason for those who wait for the jobs."
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
    named by its id is cancelled also while it runs; with --queue or --task, running jobs are
    cancelled only with --running.
    """
    chosen = {name: value for name, value in filters.items() if value}
    ways = bool(ids) + bool(group) + bool(chosen.get("queue") or chosen.get("task"))
    if ways != 1 or ((ids or group) and chosen):
        raise click.UsageError("name jobs by their ids, or by --group, or by --queue or --task")
    with target.asking() as app:
        if group:
            answer = app.ask("cancel_graph", {"id": group, "reason": reason})
            _print_count(answer["count"], "cancelled", as_json=as_json)
            return None
        if not ids:
            count = run_bulk(app, "cancel", reason=reason, **chosen)
            _print_count(count, "cancelled", as_json=as_json)
            return None
        answers = in_pages(app, "cancel", ids, reason=reason)
    known = [{"id": i, "state": state, "was": was} for i, state, was in answers if state]
    show_rows(known, ("id", "state", "was"), as_json=as_json)
    missing = [i for i, state, _ in answers if not state]
    for job_id in missing:
        print_error(JobNotFound(job_id))
    return NOT_FOUND if missing else None


def _print_count(count: int, what: str, *, as_json: bool) -> None:
    if as_json:
        show_object({what: count}, as_json=True)
    else:
        click.echo(f"{count} {'job' if count == 1 else 'jobs'} {what}")


@click.command(cls=Command, exits={NO_BROKER: "", NOT_FOUND: _NO_QUEUE})
@click.argument("queue")
@takes_json
@takes_target
def purge(target: Target, queue: str, as_json: bool) -> None:
    """Empty a queue: cancel its waiting and delayed jobs.

    Running jobs go on, and so do jobs that arrive after the start of the command. A client that
    waits for a cancelled job is told that it was purged.
    """
    with target.asking() as app:
        count = run_bulk(app, "cancel", queue=queue, reason="purged")
    _print_count(count, "cancelled", as_json=as_json)


@click.command(cls=Command, exits={NO_BROKER: "", NOT_FOUND: _NO_QUEUE})
@click.argument("queue")
@takes_target
def pause(target: Target, queue: str) -> None:
    """Stop handing out jobs of a queue until it is resumed.

    The queue accepts jobs as before, and jobs that workers already have go on. A pause outlives a
    restart of the broker.
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
@click.option("--timeout", type=click.FloatRange(0), metavar="S", help="Longest wait in seconds.")
@click.option("--delayed", is_flag=True, help="Wait for delayed jobs as well.")
@takes_target
def drain(target: Target, queue: str, timeout: float | None, delayed: bool) -> int | None:
    """Wait until a queue is empty: no job waits or runs.

    The queue accepts new jobs meanwhile; stop their clients first if it is to become empty.
    """
    end = None if timeout is None else time.monotonic() + timeout
    with target.asking() as app:
        while jobs := _jobs_left(app, queue, delayed=delayed):
            wait = DRAIN_INTERVAL if end is None else min(DRAIN_INTERVAL, end - time.monotonic())
            if wait <= 0:
                click.echo(f"error: the queue {queue!r} is not empty: {jobs}", err=True)
                return FAILED
            time.sleep(wait)
    return None


def _jobs_left(app: EventMQ, name: str, *, delayed: bool) -> str:
    """Return how many jobs a queue still has, as text; "" for none."""
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

    A step of the clock then counts at once instead of after ten minutes, and so does the time that
    the machine was off, which otherwise counts after an hour of a steady clock. Prints the seconds
    of both. Do it only where the clock is right: failed jobs, results and limits age by that
    time.
    """
    with target.asking() as app:
        accepted = app.ask("clock.accept")
    show_object(accepted, as_json=as_json)


COMMANDS = (cancel, purge, pause, resume, drain, clock)
