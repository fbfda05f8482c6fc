"""``eventmq spark failures``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from eventmq.cli import FAILED, Command
from eventmq_contrib.spark.analyses.failures import failures, killers
from eventmq_contrib.spark.command import takes_journal

if TYPE_CHECKING:
    from eventmq_contrib.spark.command import JournalOptions

__all__ = ["command"]


@click.command("failures", cls=Command, exits={FAILED: "the journal cannot be read"})
@click.option("--killers", "deadly", is_flag=True, help="What killed workers, instead.")
@takes_journal
def command(shared: JournalOptions, deadly: bool) -> None:  # noqa: FBT001 - click
    """Show which errors there are: since when, new in which release, and whether retries help.

    An error is known by its fingerprint: its type and the place where it was raised. It is new if
    no earlier release of the task in the journal has it, and there was one. retry_helped is the
    share of the retries whose next attempt succeeded.
    """
    with shared.events() as events:
        if deadly:
            shared.show(killers(events), empty="no worker died")
        else:
            shared.show(failures(events), empty="nothing failed")
