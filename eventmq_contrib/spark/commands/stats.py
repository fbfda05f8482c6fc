"""``eventmq spark stats``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from eventmq.cli import FAILED, Command
from eventmq_contrib.spark.analyses.stats import PERIODS, stats
from eventmq_contrib.spark.command import takes_journal

if TYPE_CHECKING:
    from eventmq_contrib.spark.command import JournalOptions

__all__ = ["command"]


@click.command("stats", cls=Command, exits={FAILED: "the journal cannot be read"})
@click.option(
    "--by",
    "period",
    type=click.Choice(list(PERIODS)),
    default="hour",
    show_default=True,
    help="Length of a row.",
)
@takes_journal
def command(shared: JournalOptions, period: str) -> None:
    """Show rates, waiting and running times and failures, by task, queue and time.

    Times are in seconds, of attempts that ended in the period, and within 1 % of the exact
    percentiles. failure_share is of the jobs that succeeded or failed.
    """
    with shared.events() as events:
        shared.show(stats(events, period), empty="there are no events of that time, queue and task")
