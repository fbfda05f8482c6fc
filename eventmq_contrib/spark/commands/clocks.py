"""``eventmq spark clocks``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from eventmq.cli import FAILED, Command
from eventmq_contrib.spark.analyses.clocks import TOLERANCE, clocks
from eventmq_contrib.spark.command import takes_journal

if TYPE_CHECKING:
    from eventmq_contrib.spark.command import JournalOptions

__all__ = ["command"]


@click.command("clocks", cls=Command, exits={FAILED: "the journal cannot be read"})
@click.option(
    "--tolerance", type=click.FloatRange(min=0), default=TOLERANCE, show_default=True,
    metavar="SECONDS", help="A clock that is apart by no more is right.",
)  # fmt: skip
@takes_journal
def command(shared: JournalOptions, tolerance: float) -> None:
    """Show whether the clocks of the workers' hosts agree with that of the broker.

    A job cannot start before its lease nor end after its answer was there. early_s and late_s say
    by how much it looks so at most: then the clock of the host is behind or ahead, by that at
    least, and waiting times of its jobs are wrong by as much. One that is both was set meanwhile.
    """
    with shared.events() as events:
        shared.show(clocks(events, tolerance), empty="no event tells of a run")
