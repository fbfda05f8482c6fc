"""Run a scheduler: ``beat``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import click

from eventmq.cli.command import FAILED, Command
from eventmq.cli.target import takes_target

if TYPE_CHECKING:
    from eventmq.cli.target import Target

__all__ = ["COMMANDS"]

logger = logging.getLogger("eventmq.scheduler")


@click.command(
    cls=Command, exits={FAILED: "the schedules cannot be read, or another host uses their file"}
)
@click.option(
    "--store", "schedule_store", metavar="URL",
    help="Keeps schedules: broker (the default), sqlite or memory, or a URL by its scheme.",
)  # fmt: skip
@takes_target
def beat(target: Target, schedule_store: str | None) -> None:
    """Run the scheduler of an app.

    It stores the schedules of the app's code, prints "ready" on stdout, and submits the job of
    every schedule at its fire times. Any number may run: one fires, another takes over within 2 s
    when it ends, and no job is submitted twice. SIGTERM or Ctrl-C stops it.
    """
    if not target.app_name:
        raise click.UsageError("a scheduler needs an app: -A module[:attribute]")
    app = target.serving(schedule_store=schedule_store).app
    app.inform_as("scheduler")
    for name, schedule in sorted(app.schedules.in_code().items()):
        logger.info("schedule %s, task %s, %s", name, schedule.task, schedule.trigger)
    store = app.settings.schedule_store
    runner = app.make_beat(on_ready=lambda: click.echo(f"ready app={app.name} store={store}"))
    runner.install_signal_handlers()
    try:
        runner.run()
    finally:
        app.close()


COMMANDS = (beat,)
