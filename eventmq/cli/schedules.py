"""Inspect and change schedules: ``schedules``, ``schedule`` and ``unschedule``."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from eventmq.cli.call import find_task, read_arguments
from eventmq.cli.command import DONE, NO_BROKER, NOT_FOUND, Command, print_error
from eventmq.cli.output import show_rows
from eventmq.cli.target import takes_json, takes_target

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventmq.app import EventMQ
    from eventmq.cli.target import Target
    from eventmq.policies import Timing
    from eventmq.schedule import Schedule

__all__ = ["COMMANDS"]

_COLUMNS = (
    "name", "task", "trigger", "queue", "enabled", "next", "next_local", "zone", "last",
    "last_local", "last_job", "outcome", "source", "app", "remaining", "misfire", "overlap",
    "jitter", "version",
)  # fmt: skip
#: Columns that fit into a terminal.
_TERMINAL_COLUMNS = (
    "name", "task", "trigger", "queue", "enabled", "next_local", "zone", "last_local", "outcome",
    "source",
)  # fmt: skip

_EXITS = {NO_BROKER: "", NOT_FOUND: "no such schedule"}

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


@click.group(
    epilog="Exit codes: 0 done, 2 wrong usage, 3 broker not reachable, 4 no such schedule."
)
def schedules() -> None:
    """List schedules, run one now, remove, enable or disable them."""


# Inspecting


@schedules.command("list", cls=Command, exits={NO_BROKER: ""})
@takes_json
@takes_target
def list_schedules(target: Target, as_json: bool) -> None:
    """List all schedules.

    For each its next fire time, in local time and its zone, its last one, and the state of the job
    that was submitted then.
    """
    with target.asking() as app:
        found = app.schedules.list()
        states = _states(app, [made.last_job for made in found if made.last_job])
        rows = [_row(app, made, states) for made in found]
    columns = _COLUMNS if as_json else _TERMINAL_COLUMNS
    show_rows(rows, columns, as_json=as_json, empty="there are no schedules")


def _states(app: EventMQ, ids: list[str]) -> dict[str, str]:
    """Return the states of jobs, in as many calls as it takes."""
    from eventmq.wire.calls import MAX_IDS

    found: dict[str, str] = {}
    for first in range(0, len(ids), MAX_IDS):
        found.update(app.ask("state", {"ids": ids[first : first + MAX_IDS]}))
    return found


def _row(app: EventMQ, made: Schedule, states: dict[str, str]) -> dict[str, Any]:
    name, _, options = made.trigger.partition(":")
    following = app.schedules.next_fire_time(made)
    last = made.last_fire_time if made.last_job else None
    return {
        "name": made.name, "task": made.task, "trigger": _words(name, options),
        "queue": made.queue, "enabled": made.enabled, "next": following,
        "next_local": _local(following), "zone": _zone(options), "last": last,
        "last_local": _local(last), "last_job": made.last_job or None,
        "outcome": states.get(made.last_job) or None, "source": made.source,
        "app": made.app or None, "remaining": made.remaining, "misfire": made.misfire,
        "overlap": made.overlap, "jitter": made.jitter, "version": made.version,
    }  # fmt: skip


def _local(timestamp: float | None) -> str | None:
    """Return a timestamp in local time, with the name of the zone."""
    if timestamp is None:
        return None
    return datetime.fromtimestamp(timestamp).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def _options(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _zone(options: str) -> str | None:
    zone = _options(options).get("tz")
    return zone if isinstance(zone, str) else None


def _words(name: str, text: str) -> str:
    """Return a trigger as people write it."""
    options = _options(text)
    if name == "every" and isinstance(options.get("seconds"), (int, float)):
        return f"every {options['seconds']:g} s"
    if name == "cron":
        return f"cron {options.get('expression')}"
    if name == "at" and isinstance(options.get("moment"), (int, float)):
        return f"at {_local(options['moment'])}"
    return f"{name} {text}".strip()


# Changing


def _change(target: Target, change: Callable[[EventMQ], object]) -> int:
    """Change one schedule; print an error if there is none of the name."""
    from eventmq.app.schedules import ScheduleNotFound

    try:
        with target.asking() as app:
            change(app)
    except ScheduleNotFound as error:
        print_error(error)
        return NOT_FOUND
    return DONE


@schedules.command("run", cls=Command, exits=_EXITS)
@click.argument("name")
@takes_target
def run(target: Target, name: str) -> int:
    """Submit the job of a schedule now, and print its id. Its fire times stay as they are."""
    return _change(target, lambda app: click.echo(app.schedules.run(name).id))


@schedules.command("remove", cls=Command, exits=_EXITS)
@click.argument("name")
@takes_target
def remove(target: Target, name: str) -> int:
    """Remove a schedule. One in the code of an app comes back when a beat of the app starts."""
    return _change(target, lambda app: _remove(app, name))


def _remove(app: EventMQ, name: str) -> None:
    app.schedules.get(name)
    app.schedules.remove(name)


@schedules.command("enable", cls=Command, exits=_EXITS)
@click.argument("name")
@takes_target
def enable(target: Target, name: str) -> int:
    """Let a schedule fire again, from now on."""
    return _change(target, lambda app: app.schedules.enable(name))


@schedules.command("disable", cls=Command, exits=_EXITS)
@click.argument("name")
@takes_target
def disable(target: Target, name: str) -> int:
    """Stop a schedule from firing until it is enabled."""
    return _change(target, lambda app: app.schedules.disable(name))


@click.command(
    cls=Command, exits={NO_BROKER: ""}, context_settings={"ignore_unknown_options": True}
)
@click.argument("name")
@click.argument("task")
@click.argument("arguments", nargs=-1, metavar="[JSON]... [KEY=JSON]...")
@click.option("--every", metavar="TIME", help="Interval: 30s, 5m, 2h or 1d.")
@click.option("--cron", metavar="EXPRESSION", help='Five fields, as in "0 3 * * *".')
@click.option("--at", metavar="TIME", help="Once, as in 2030-01-01T09:00+01:00.")
@click.option("--tz", metavar="ZONE", help="Zone of --cron or --at, as in Europe/Paris; else UTC.")
@click.option("--queue", metavar="NAME", help="The queue, if not the task's own.")
@click.option(
    "--misfire",
    type=click.Choice(["skip", "one", "all"]),
    default="one",
    help="What happens with missed fire times; default: one job for all of them.",
)
@click.option(
    "--window",
    type=float,
    metavar="S",
    default=3600.0,
    help="How far back --misfire all fires missed times; default: an hour.",
)
@click.option(
    "--overlap",
    type=click.Choice(["allow", "skip", "queue"]),
    default="allow",
    help="What happens while the previous job has not ended; default: allow.",
)
@click.option(
    "--jitter", type=float, metavar="S", default=0.0, help="Fire up to so many seconds later."
)
@click.option("--run-count", type=int, metavar="N", help="Number of times that it fires in all.")
@click.option("--now", is_flag=True, help="Fire once at once, too.")
@takes_target
def schedule(  # noqa: PLR0917 - click hands over by name
    target: Target,
    name: str,
    task: str,
    arguments: tuple[str, ...],
    every: str | None,
    cron: str | None,
    at: str | None,
    tz: str | None,
    queue: str | None,
    now: bool,
    **more: Any,
) -> None:
    """Submit a job on a schedule, under a name.

    An existing schedule of this name is replaced. Arguments are JSON, and with -A the task is
    looked up in the app, as for "eventmq call".
    """
    from eventmq.app.schedules import Declared
    from eventmq.graph import Signature

    policies = _timing(every, cron, at, tz)
    args, kwargs = read_arguments(arguments)
    with target.asking() as app:
        full = find_task(app, task) if target.app_name else task
        more["nohaste"] = not now
        call = {"queue": queue} if queue else {}
        declared = Declared.read(name, Signature(full, tuple(args), kwargs), policies, call, more)
        try:
            made = app.schedules.make(declared, "cli")
        except TypeError as error:
            raise click.UsageError(str(error)) from error
        app.schedules.put(made)


def _timing(every: str | None, cron: str | None, at: str | None, tz: str | None) -> Timing:
    from eventmq import policies

    if sum(value is not None for value in (every, cron, at)) != 1:
        raise click.UsageError("name one of --every, --cron and --at")
    if every is not None:
        if tz is not None:
            raise click.UsageError("--tz goes with --cron or --at: an interval has no zone")
        return policies.every(seconds=_seconds(every))
    if cron is not None:
        return policies.cron(cron, tz=tz or "UTC")
    return policies.at(_when(at or "", tz))


def _seconds(text: str) -> float:
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "s")
    try:
        return float(number) * _UNITS[unit]
    except ValueError:
        msg = f"--every {text!r} is no length of time; right is 30s, 5m, 2h or 1d"
        raise click.UsageError(msg) from None


def _when(text: str, tz: str | None) -> datetime:
    from eventmq.policies import find_zone

    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        msg = f"--at {text!r} is no time; right is 2030-01-01T09:00+01:00"
        raise click.UsageError(msg) from None
    if when.tzinfo is None and tz is None:
        msg = f"--at {text} has no time zone; right is {text}+01:00, or --tz beside it"
        raise click.UsageError(msg)
    if tz is None:
        return when
    if when.tzinfo is not None:
        raise click.UsageError("--at has a zone already; leave --tz out")
    return when.replace(tzinfo=find_zone(tz))


@click.command(cls=Command, exits=_EXITS)
@click.argument("name")
@takes_target
def unschedule(target: Target, name: str) -> int:
    """Remove a schedule, as "schedules remove" does."""
    return _change(target, lambda app: _remove(app, name))


COMMANDS = (schedules, schedule, unschedule)
