"""Inspect and change schedules: ``schedules``, ``schedule`` and ``unschedule``."""

from __future__ import annotations

import json
from datetime import datetime
from math import isclose
from typing import TYPE_CHECKING, Any

import click

from eventmq.cli.call import find_task, read_arguments
from eventmq.cli.command import NO_BROKER, NOT_FOUND, Command, ListingGroup, read_length
from eventmq.cli.output import duration, local_time, none_of, pages_of, show_rows
from eventmq.cli.target import takes_json, takes_target, takes_wide

if TYPE_CHECKING:
    from eventmq.app import EventMQ
    from eventmq.cli.target import Target
    from eventmq.policies import Timing
    from eventmq.schedule import Schedule

__all__ = ["COMMANDS", "describe_trigger"]

_COLUMNS = (
    "name", "task", "trigger", "queue", "enabled", "next", "next_local", "zone", "last",
    "last_local", "last_job", "outcome", "source", "app", "remaining", "misfire", "overlap",
    "jitter", "version",
)  # fmt: skip
_SHOWN = (
    "name", "task", "trigger", "next", "last", "outcome", "enabled", "queue", "zone", "source",
)  # fmt: skip

#: Columns that are dropped on a narrow terminal, in this order. The mark of a disabled schedule is
#: always shown: names and tasks are cut instead.
_DROPPED_FIRST = ("source", "zone", "queue", "outcome", "last")

_UNITS = {"d": 86_400.0, "h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3}

_EXITS = {NO_BROKER: "", NOT_FOUND: "no such schedule"}


@click.group(
    cls=ListingGroup,
    epilog="Exit codes: 0 done, 2 wrong usage, 3 broker not reachable, 4 no such schedule.",
)
def schedules() -> None:
    """List schedules, or run, remove, enable or disable one.

    Without a command, and with options alone, it is "schedules list".
    """


# Inspecting


@schedules.command("list", cls=Command, exits={NO_BROKER: ""})
@takes_json
@takes_wide
@takes_target
def list_schedules(target: Target, as_json: bool, wide: bool) -> None:
    """List all schedules.

    For each its next fire time, its last one, and the state of the job that was submitted then;
    with --wide also both in local time, and its zone.
    """
    with target.asking() as app:
        stored = app.schedules.list()
        states: dict[str, str] = {}
        for ids in pages_of([each.last_job for each in stored if each.last_job]):
            states.update(app.ask("state", {"ids": ids}))
        rows = [_row(app, each, states) for each in stored]
    show_rows(
        rows, _COLUMNS, as_json=as_json, wide=wide, brief=_SHOWN, gives_way=_DROPPED_FIRST,
        empty=none_of("schedules"),
    )  # fmt: skip


def describe_trigger(trigger: str) -> str:
    """Return the readable form of a trigger, with its zone."""
    name, _, options = trigger.partition(":")
    zone = _zone(options)
    return _words(name, options) + (f", zone {zone}" if zone else "")


def _row(app: EventMQ, schedule: Schedule, states: dict[str, str]) -> dict[str, Any]:
    name, _, options = schedule.trigger.partition(":")
    following = app.schedules.next_fire_time(schedule)
    last = schedule.last_fire_time if schedule.last_job else None
    return {
        "name": schedule.name, "task": schedule.task, "trigger": _words(name, options),
        "queue": schedule.queue, "enabled": schedule.enabled, "next": following,
        "next_local": following and local_time(following), "zone": _zone(options), "last": last,
        "last_local": last and local_time(last), "last_job": schedule.last_job or None,
        "outcome": states.get(schedule.last_job) or None, "source": schedule.source,
        "app": schedule.app or None, "remaining": schedule.remaining, "misfire": schedule.misfire,
        "overlap": schedule.overlap, "jitter": schedule.jitter, "version": schedule.version,
    }  # fmt: skip


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
    """Return the readable form of a trigger."""
    options = _options(text)
    if name == "every" and isinstance(options.get("seconds"), (int, float)):
        return f"every {_interval(options['seconds'])}"
    if name == "cron":
        return f"cron {options.get('expression')}"
    if name == "at" and isinstance(options.get("moment"), (int, float)):
        return f"at {local_time(options['moment'])}"
    return f"{name} {text}".strip()


def _interval(seconds: float) -> str:
    """Return an interval in the unit of listings; in seconds if that unit would round it."""
    text = duration(seconds)
    number, _, unit = text.partition(" ")
    if isclose(float(number) * _UNITS.get(unit, 0.0), seconds, rel_tol=1e-9):
        return text
    return f"{seconds:.6f}".rstrip("0").rstrip(".") + " s"


# Changing


@schedules.command("run", cls=Command, exits=_EXITS)
@click.argument("name")
@takes_target
def run(target: Target, name: str) -> None:
    """Submit the job of a schedule now, and print its id. Its fire times do not change."""
    with target.asking() as app:
        click.echo(app.schedules.run(name).id)


@schedules.command("remove", cls=Command, exits=_EXITS)
@click.argument("name")
@takes_target
def remove(target: Target, name: str) -> None:
    """Remove a schedule. A beat of an app restores one that the app's code declares."""
    with target.asking() as app:
        app.schedules.get(name)
        app.schedules.remove(name)


@schedules.command("enable", cls=Command, exits=_EXITS)
@click.argument("name")
@takes_target
def enable(target: Target, name: str) -> None:
    """Enable a schedule: it fires again from now on."""
    with target.asking() as app:
        app.schedules.enable(name)


@schedules.command("disable", cls=Command, exits=_EXITS)
@click.argument("name")
@takes_target
def disable(target: Target, name: str) -> None:
    """Disable a schedule: it does not fire until it is enabled."""
    with target.asking() as app:
        app.schedules.disable(name)


@click.command(
    cls=Command, exits={NO_BROKER: ""}, context_settings={"ignore_unknown_options": True}
)
@click.argument("name")
@click.argument("task")
@click.argument("arguments", nargs=-1, metavar="[JSON]... [KEY=JSON]...")
@click.option("--every", metavar="TIME", help="Interval: 30s, 5m, 2h or 1d.")
@click.option("--cron", metavar="EXPRESSION", help='Five fields, as in "0 3 * * *".')
@click.option("--at", metavar="TIME", help="A single time, as in 2030-01-01T09:00+01:00.")
@click.option(
    "--tz", metavar="ZONE", help="Zone of --cron or --at, as in Europe/Paris; default: UTC."
)
@click.option("--queue", metavar="NAME", help="The queue; default: that of the task.")
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
    help="Maximum age in seconds of missed times that --misfire all fires; default: 3600.",
)
@click.option(
    "--overlap",
    type=click.Choice(["allow", "skip", "queue"]),
    default="allow",
    help="What happens while the previous job has not ended; default: allow.",
)
@click.option(
    "--jitter",
    type=float,
    metavar="S",
    default=0.0,
    help="Maximum delay of a fire time in seconds.",
)
@click.option("--run-count", type=int, metavar="N", help="Total number of runs.")
@click.option("--now", is_flag=True, help="Also fire once immediately.")
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

    An existing schedule of this name is replaced. Arguments are JSON. With -A the task is looked up
    in the app, as for "eventmq call".
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
            new_schedule = app.schedules.make(declared, "cli")
        except TypeError as error:
            raise click.UsageError(str(error)) from error
        app.schedules.put(new_schedule)


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
    seconds = read_length(text if text[-1:].isalpha() else f"{text}s")
    if seconds is None:
        msg = f"--every {text!r} is not a length of time; write 30s, 5m, 2h or 1d"
        raise click.UsageError(msg)
    return seconds


def _when(text: str, tz: str | None) -> datetime:
    from eventmq.policies import find_zone

    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        msg = f"--at {text!r} is not a time; write 2030-01-01T09:00+01:00"
        raise click.UsageError(msg) from None
    if when.tzinfo is None and tz is None:
        msg = f"--at {text} has no time zone; write {text}+01:00, or add --tz"
        raise click.UsageError(msg)
    if tz is None:
        return when
    if when.tzinfo is not None:
        raise click.UsageError("--at has a zone already; leave --tz out")
    return when.replace(tzinfo=find_zone(tz))


unschedule = Command(
    "unschedule", exits=_EXITS, params=remove.params, callback=remove.callback,
    help='Remove a schedule, as "schedules remove" does.',
)  # fmt: skip

COMMANDS = (schedules, schedule, unschedule)
