"""Decides about the broker's clock: ``clock accept``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from eventmq.cli.command import NO_BROKER, Command
from eventmq.cli.output import show_object
from eventmq.cli.target import takes_json, takes_target

if TYPE_CHECKING:
    from eventmq.cli.target import Target

__all__ = ["COMMANDS"]


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


COMMANDS = (clock,)
