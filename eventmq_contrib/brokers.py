"""Brokers by name, as the commands with a page take them, and what their pages ask."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from eventmq.errors import NotAllowed

if TYPE_CHECKING:
    from eventmq import EventMQ
    from eventmq.cli import Target

__all__ = ["info_of", "takes_brokers", "targets_of"]

_NAMED = re.compile(r"([A-Za-z0-9][\w.-]{0,63})=(.+)")


def _read(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    """Read ``[NAME=]URL`` values: name -> URL; the only one needs no name."""
    if len(values) == 1 and "=" not in values[0]:
        return {"": values[0]}
    brokers: dict[str, str] = {}
    for value in values:
        match = _NAMED.fullmatch(value)
        if match is None or match[1] in brokers:
            msg = (
                f"{value!r} is not NAME=URL with a name of its own, as several brokers need, such "
            )
            msg += "as shop=tcp://127.0.0.1:47291"
            raise click.BadParameter(msg, context, parameter)
        brokers[match[1]] = match[2]
    return brokers


#: Passes name -> URL as ``brokers``; the name is "" for the only one, if it has none.
takes_brokers = click.option(
    "--broker", "brokers", metavar="[NAME=]URL", multiple=True, callback=_read,
    help="A broker, or, separated by commas, those that share a store; default: the app's, or "
    "EVENTMQ_BROKER, or tcp://127.0.0.1:47291. Repeatable: each is shown under its name.",
)  # fmt: skip


def targets_of(target: Target, brokers: dict[str, str]) -> dict[str, Target]:
    """Return a target for each broker by name.

    Args:
        target: App of the command line.
        brokers: Value of `takes_brokers`; without any, the target is that of "".
    """
    if target.app_name and len(brokers) > 1:
        raise click.UsageError("-A names the app of one broker; name several without -A")
    return {
        name: replace(target, broker=url or None) for name, url in (brokers or {"": ""}).items()
    }


def info_of(app: EventMQ, job_id: str, *, args: bool = True, logs: bool = False) -> dict[str, Any]:
    """Return what a broker knows of a job.

    Args:
        app: Client of the broker.
        job_id: Its id.
        args: Whether to ask for its arguments; ``args_note`` says why the key is not shown them.
        logs: Whether to ask for its logs.

    Raises:
        JobNotFound: The broker does not know it.
    """
    job = app.job(job_id)
    try:
        return job.info(args=args, logs=logs)
    except NotAllowed as error:
        if not args:
            raise
        return {**job.info(logs=logs), "args_note": str(error)}
