"""Finds hours that are not like those of earlier weeks: ``eventmq spark anomaly``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from eventmq.cli import DONE, FAILED, Command
from eventmq_contrib.spark.analyses.anomaly import MIN_HISTORY, THRESHOLD, anomaly, between
from eventmq_contrib.spark.command import takes_journal

if TYPE_CHECKING:
    from eventmq_contrib.spark.command import JournalOptions

__all__ = ["command"]


@click.command("anomaly", cls=Command, exits={FAILED: "the journal cannot be read"})
@click.option(
    "--threshold", type=click.FloatRange(0, min_open=True), default=THRESHOLD, show_default=True,
    metavar="SCORE",
    help="Robust standard deviations from the median above which an hour is anomalous.",
)  # fmt: skip
@click.option(
    "--min-history", type=click.IntRange(2), default=MIN_HISTORY, show_default=True,
    metavar="WEEKS", help="Weeks that must have gone before an hour can be odd.",
)  # fmt: skip
@takes_journal
def command(shared: JournalOptions, threshold: float, min_history: int) -> int:
    """Find hours that are not like the same hour of earlier weeks, and say why.

    By task, of each hour of the week (UTC): how many jobs ended, how long half of them waited, and
    the share that failed, against median and MAD of up to 26 weeks before. --since and --until
    choose the hours that are shown; the history before them is always read.
    """
    with replace(shared, since=None, until=None).events() as events:
        anomalies = anomaly(events, threshold=threshold, min_history=min_history)
        shared.show(between(anomalies, shared.since, shared.until), empty="No hour is anomalous.")
    return DONE
