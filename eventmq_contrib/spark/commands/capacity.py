"""Says how busy queues were, and how many slots they need: ``eventmq spark capacity``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from eventmq.cli import DONE, FAILED, Command
from eventmq_contrib.spark.command import takes_journal

if TYPE_CHECKING:
    from eventmq_contrib.spark.command import JournalOptions

__all__ = ["command"]


@click.command("capacity", cls=Command, exits={FAILED: "the journal cannot be read"})
@click.option(
    "--target-p95", type=click.FloatRange(0), default=1.0, show_default=True, metavar="SECONDS",
    help="How long 95 % of the jobs of a queue may wait at most.",
)  # fmt: skip
@click.option(
    "--slots", type=click.IntRange(1, 100_000), multiple=True, metavar="N",
    help="Also say what so many slots would have done. Repeatable.",
)  # fmt: skip
@click.option("--workers", is_flag=True, help="A row per worker instead: how busy each was.")
@takes_journal
def command(
    shared: JournalOptions,
    target_p95: float,
    slots: tuple[int, ...],
    workers: bool,  # noqa: FBT001 - click
) -> int:
    """Show how busy the queues were, and how many slots each needs.

    A slot runs one job at a time: eventmq worker -c 4 has four. The recorded arrivals and run times
    of a queue are played through so many slots, first come first served. "needed" is the least
    number with which 95 % of the jobs wait no longer than --target-p95; "recorded" is how it was.
    A queue that shares its workers with others needs them only while it has jobs: the sum of what
    all queues need is more than what they need together.
    """
    from eventmq_contrib.spark.analyses import capacity as analysis

    with shared.events() as events:
        if workers:
            shared.show(analysis.workers(events), empty="no job ran")
        else:
            table = analysis.capacity(events, target_p95=target_p95, slots=slots)
            shared.show(table, empty="no job ran")
    return DONE
