"""Run a scheduler: ``beat``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import click

from eventmq.cli.command import FAILED, Command
from eventmq.cli.hangup import restart_process, run_restartable
from eventmq.cli.schedules import describe_trigger
from eventmq.cli.target import takes_log_format, takes_target
from eventmq.text import printable
from eventmq.titles import set_title

if TYPE_CHECKING:
    from eventmq.cli.target import Target

__all__ = ["COMMANDS"]

logger = logging.getLogger("eventmq.scheduler")


@click.command(
    cls=Command, exits={FAILED: "the schedules cannot be read, or another host uses their file"}
)
@click.option(
    "--store", "schedule_store", metavar="URL",
    help="Store of schedules: broker (the default), sqlite or memory, or a URL.",
)  # fmt: skip
@click.option("--check", is_flag=True, help="Load the app and its schedules, then exit.")
@takes_log_format
@takes_target
def beat(target: Target, schedule_store: str | None, *, check: bool) -> None:
    """Run the scheduler of an app.

    It stores the schedules of the app's code, prints "ready" on stdout, and submits the job of
    every schedule at its fire times. Several may run: one fires, another takes over within 2 s when
    it ends, and no job is submitted twice. SIGTERM or Ctrl-C stops it.

    At SIGHUP it runs its command line again in the same process, with the current code, and prints
    "ready" again. If the new code cannot be loaded, it continues with the old code and logs the
    reason.
    """
    if not target.app_name:
        raise click.UsageError("a scheduler needs an app: -A module[:attribute]")
    app = target.serving(schedule_store=schedule_store).app
    app.inform_as("scheduler")
    for name, schedule in sorted(app.schedules.in_code().items()):
        logger.info(
            "schedule %s, task %s, %s", name, schedule.task, describe_trigger(schedule.trigger)
        )
    store = app.settings.schedule_store

    def ready() -> None:
        click.echo(printable(f"ready app={app.name} store={store}"))
        runner.notifier.ready(f"fires the schedules of {app.name}")

    runner = app.make_beat(on_ready=ready)
    try:
        if check:
            runner.close()
        else:
            set_title("beat", printable(app.name))
            run_restartable(runner, "scheduler")
    finally:
        app.close()
    if runner.needs_restart:
        restart_process()


COMMANDS = (beat,)
