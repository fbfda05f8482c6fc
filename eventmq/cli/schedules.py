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

__all__ = ["COMMANDS"]

_COLUMNS = (
    "name", "task", "trigger", "queue", "enabled", "next", "next_local", "zone", "last",
    "last_local", "last_job", "outcome", "source", "app", "remaining", "misfire", "overlap",
    "jitter", "version",
)  # fmt: skip
_SHOWN = (
    "name", "task", "trigger", "next", "last", "outcome", "enabled", "queue", "zone", "source",
)  # fmt: skip

#: Columns that give way on a narrow terminal, the first one first. That one is disabled is always
#: shown: names and tasks are cut instead.
_GIVES_WAY = ("source", "zone", "queue", "outcome", "last")

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
        found = app.schedules.list()
        states: dict[str, str] = {}
        for ids in pages_of([made.last_job for made in found if made.last_job]):
            states.update(app.ask("state", {"ids": ids}))
        rows = [_row(app, made, states) for made in found]
    show_rows(
        rows, _COLUMNS, as_json=as_json, wide=wide, brief=_SHOWN, gives_way=_GIVES_WAY,
        empty=none_of("schedules"),
    )  # fmt: skip


def describe_trigger(trigger: str) -> str:
    """Return a trigger as people write it, with its zone."""
    name, _, options = trigger.partition(":")
    zone = _zone(options)
    return _words(name, options) + (f", zone {zone}" if zone else "")


def _row(app: EventMQ, made: Schedule, states: dict[str, str]) -> dict[str, Any]:
    name, _, options = made.trigger.partition(":")
    following = app.schedules.next_fire_time(made)
    last = made.last_fire_time if made.last_job else None
    return {
        "name": made.name, "task": made.task, "trigger": _words(name, options),
        "queue": made.queue, "enabled": made.enabled, "next": following,
        "next_local": following and local_time(following), "zone": _zone(options), "last": last,
        "last_local": last and local_time(last), "last_job": made.last_job or None,
        "outcome": states.get(made.last_job) or None, "source": made.source,
        "app": made.app or None, "remaining": made.remaining, "misfire": made.misfire,
        "overlap": made.overlap, "jitter": made.jitter, "version": made.version,
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
    """Return a trigger as people write it."""
    options = _options(text)
    if name == "every" and isinstance(options.get("seconds"), (int, float)):
        return f"every {_interval(options['seconds'])}"
    if name == "cron":
        return f"cron {options.get('expression')}"
    if name == "at" and isinstance(options.get("moment"), (int, float)):
        return f"at {local_time(options['moment'])}"
    return f"{name} {text}".strip()


def _interval(seconds: float) -> str:
    """Return it as listings write a length of time, in seconds where that is not all of it."""
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
    """Submit the job of a schedule now, and print its id. Its fire times stay as they are."""
    with target.asking() as app:
        click.echo(app.schedules.run(name).id)


@schedules.command("remove", cls=Command, exits=_EXITS)
@click.argument("name")
@takes_target
def remove(target: Target, name: str) -> None:
    """Remove a schedule. One in the code of an app comes back when a beat of the app starts."""
    with target.asking() as app:
        app.schedules.get(name)
        app.schedules.remove(name)


@schedules.command("enable", cls=Command, exits=_EXITS)
@click.argument("name")
@takes_target
def enable(target: Target, name: str) -> None:
    """Let a schedule fire again, from now on."""
    with target.asking() as app:
        app.schedules.enable(name)


@schedules.command("disable", cls=Command, exits=_EXITS)
@click.argument("name")
@takes_target
def disable(target: Target, name: str) -> None:
    """Stop a schedule from firing until it is enabled."""
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
    seconds = read_length(text if text[-1:].isalpha() else f"{text}s")
    if seconds is None:
        msg = f"--every {text!r} is no length of time; right is 30s, 5m, 2h or 1d"
        raise click.UsageError(msg)
    return seconds


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


unschedule = Command(
    "unschedule", exits=_EXITS, params=remove.params, callback=remove.callback,
    help='Remove a schedule, as "schedules remove" does.',
)  # fmt: skip

COMMANDS = (schedules, schedule, unschedule)
