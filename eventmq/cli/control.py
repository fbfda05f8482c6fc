"""Control a broker: ``cancel purge pause resume drain clock``."""

from __future__ import annotations

import sys
import time
import uuid
from typing import TYPE_CHECKING, Any

import click

from eventmq.cli.command import FAILED, NO_BROKER, NOT_FOUND, Command, say_error
from eventmq.cli.output import show_object, show_rows
from eventmq.cli.target import takes_json, takes_target
from eventmq.errors import JobNotFound, QueueNotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.app import EventMQ
    from eventmq.cli.target import Target

__all__ = ["COMMANDS", "in_pages", "run_bulk"]


#: Seconds between two questions how far it is: the first, and the longest.
_FIRST, _LONGEST = 0.005, 0.5


def in_pages(app: EventMQ, name: str, ids: Sequence[str], **more: Any) -> list[list[str]]:
    """Call an operation that takes ids, as many at a time as it takes; return all rows."""
    from eventmq.wire.calls import MAX_IDS

    rows: list[list[str]] = []
    for start in range(0, len(ids), MAX_IDS):
        rows += app.ask(name, {"ids": list(ids[start : start + MAX_IDS]), **more})
    return rows


def run_bulk(app: EventMQ, action: str, **filters: Any) -> int:
    """Cancel, retry or drop jobs by filters; return how many that were.

    The broker does it slice by slice. It goes on if this process ends, and over a restart of the
    broker; on a terminal people see how far it is.
    """
    arguments = {"id": uuid.uuid4().hex, "action": action, **filters}
    wait, shown = _FIRST, False
    while True:
        answer = app.ask("bulk", arguments)
        if answer["done"]:
            if shown:
                click.echo(err=True)
            return int(answer["count"])
        if wait >= _LONGEST and sys.stderr.isatty():
            click.echo(f"\r{answer['count']} jobs so far", err=True, nl=False)
            shown = True
        time.sleep(wait)
        wait = min(2 * wait, _LONGEST)


#: Seconds between two looks at a queue that is being drained.
LOOK_EVERY = 0.2

_NO_QUEUE = "no queue with this name"


@click.command(cls=Command, exits={NO_BROKER: "", NOT_FOUND: "an id or the queue is not known"})
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--group", metavar="ID", help="The graph of this job: chain, group or chord.")
@click.option("--queue", metavar="NAME", help="Jobs of this queue that have not started.")
@click.option("--task", metavar="NAME", help="Jobs of this task that have not started.")
@click.option(
    "--state", type=click.Choice(["blocked", "delayed", "queued"]), help="Only in this state.",
)  # fmt: skip
@click.option("--running", is_flag=True, help="With --queue or --task: running ones as well.")
@click.option("--reason", metavar="TEXT", default="", help="For those who wait for them.")
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

    They have ended at once. A worker that runs one is told to stop, and what it still answers
    changes nothing. By id it is done to running jobs too; with --queue or --task only to waiting
    and delayed ones, unless --running says otherwise.
    """
    chosen = {name: value for name, value in filters.items() if value}
    ways = bool(ids) + bool(group) + bool(chosen.get("queue") or chosen.get("task"))
    if ways != 1 or ((ids or group) and chosen):
        raise click.UsageError("name jobs by their ids, or by --group, or by --queue or --task")
    with target.asking() as app:
        if group:
            answer = app.ask("cancel_graph", {"id": group, "reason": reason})
            _say(answer["count"], "cancelled", as_json=as_json)
            return None
        if not ids:
            count = run_bulk(app, "cancel", reason=reason, **chosen)
            _say(count, "cancelled", as_json=as_json)
            return None
        answers = in_pages(app, "cancel", ids, reason=reason)
    known = [{"id": i, "state": state, "was": was} for i, state, was in answers if state]
    show_rows(known, ("id", "state", "was"), as_json=as_json)
    missing = [i for i, state, _ in answers if not state]
    for job_id in missing:
        say_error(JobNotFound(job_id))
    return NOT_FOUND if missing else None


def _say(count: int, what: str, *, as_json: bool) -> None:
    if as_json:
        show_object({what: count}, as_json=True)
    else:
        click.echo(f"{count} {'job' if count == 1 else 'jobs'} {what}")


@click.command(cls=Command, exits={NO_BROKER: "", NOT_FOUND: _NO_QUEUE})
@click.argument("queue")
@takes_json
@takes_target
def purge(target: Target, queue: str, as_json: bool) -> None:
    """Empty a queue: cancel what waits and what is delayed.

    Running jobs go on, and so do those that come after the begin. Whoever waits for a job is told
    that it was purged.
    """
    with target.asking() as app:
        count = run_bulk(app, "cancel", queue=queue, reason="purged")
    _say(count, "cancelled", as_json=as_json)


@click.command(cls=Command, exits={NO_BROKER: "", NOT_FOUND: _NO_QUEUE})
@click.argument("queue")
@takes_target
def pause(target: Target, queue: str) -> None:
    """Hand out no jobs of a queue, until it is resumed.

    Jobs are taken as ever, and those that workers have already go on. It is kept over a restart of
    the broker.
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
@click.option("--timeout", type=click.FloatRange(0), metavar="S", help="Wait at most so long.")
@click.option("--delayed", is_flag=True, help="Wait for delayed jobs as well.")
@takes_target
def drain(target: Target, queue: str, timeout: float | None, delayed: bool) -> int | None:
    """Wait until no job of a queue waits or runs.

    New jobs are taken meanwhile; whoever wants the queue to become empty stops what fills it.
    """
    end = None if timeout is None else time.monotonic() + timeout
    with target.asking() as app:
        while left := _left(app, queue, delayed=delayed):
            rest = LOOK_EVERY if end is None else min(LOOK_EVERY, end - time.monotonic())
            if rest <= 0:
                click.echo(f"error: the queue {queue!r} is not empty: {left}", err=True)
                return FAILED
            time.sleep(rest)
    return None


def _left(app: EventMQ, name: str, *, delayed: bool) -> str:
    """Return what a queue still has, "" for nothing."""
    for row in app.ask("queues"):
        if row["name"] == name:
            kinds = ("waiting", "running", "delayed") if delayed else ("waiting", "running")
            left = ", ".join(f"{row[kind]} {kind}" for kind in kinds if row[kind])
            return f"{left}, and it is paused" if left and row["paused"] else left
    raise QueueNotFound(f"there is no queue {name!r}")


@click.group(epilog="Exit codes: 0 done, 2 wrong usage, 3 broker not reachable.")
def clock() -> None:
    """Decide about the clock of the broker's machine.

    "eventmq status" shows what of it does not count yet.
    """


@clock.command("accept", cls=Command, exits={NO_BROKER: ""})
@takes_json
@takes_target
def accept(target: Target, as_json: bool) -> None:
    """Believe the wall clock of the broker's machine from now on.

    A step of it counts at once instead of after ten minutes, and so does the time that the machine
    was off, which otherwise waits for an hour of a steady clock. Shown are the seconds of both. Do
    it where the clock is right: failed jobs, results and limits become older by that time.
    """
    with target.asking() as app:
        accepted = app.ask("clock.accept")
    show_object(accepted, as_json=as_json)


COMMANDS = (cancel, purge, pause, resume, drain, clock)
