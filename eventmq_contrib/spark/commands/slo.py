"""``eventmq spark slo``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from eventmq.cli import FAILED, Command
from eventmq_contrib.spark.analyses.numbers import numbers
from eventmq_contrib.spark.analyses.report import Choice
from eventmq_contrib.spark.analyses.slo import Objective, slo
from eventmq_contrib.spark.command import takes_journal

if TYPE_CHECKING:
    from eventmq_contrib.spark.command import JournalOptions

__all__ = ["command"]


@click.command("slo", cls=Command, exits={FAILED: "the journal cannot be read"})
@click.option(
    "--target", type=click.FloatRange(0, 100, min_open=True, max_open=True), default=95.0,
    show_default=True, metavar="PERCENT", help="Share of the jobs that are to start in time.",
)  # fmt: skip
@click.option(
    "--within", type=click.FloatRange(min=0), default=2.0, show_default=True, metavar="SECONDS",
    help="In time: so long after they were ready.",
)  # fmt: skip
@takes_journal
def command(shared: JournalOptions, target: float, within: float) -> None:
    """Show whether jobs start in time, by queue.

    attainment is the share that did, budget_left what is left of the share that may be late, below
    0 if more were. burn_5m and burn_1h say how many times faster than allowed it was spent in the
    last five minutes and the last hour before --until, or else before the last event. waiting jobs
    wait for a worker at that time, the oldest of them for so many seconds; jobs that became unknown
    since events after their last one are missing are not among them.
    """
    objective = Objective(share=target / 100, within=within)
    # Numbers of other queues and tasks are not missing.
    with replace(shared, queue=None, task=None).events() as events:
        chosen = Choice(queue=shared.queue, task=shared.task).jobs(events)
        table = slo(chosen, objective, now=shared.until, brokers=numbers(events))
        shared.show(table, empty="nothing started")
