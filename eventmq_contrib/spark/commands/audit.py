"""``eventmq spark audit``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from eventmq.cli import DONE, FAILED, NO_BROKER, Command, Target, printable, show_object
from eventmq_contrib.spark.analyses.audit import LISTED, STUCK_AFTER, audit
from eventmq_contrib.spark.analyses.clocks import sentence, wrong_clocks
from eventmq_contrib.spark.command import takes_journal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eventmq_contrib.spark.command import JournalOptions

__all__ = ["command"]


#: A number that no event has.
_NO_EVENT = 2**53


@click.command(
    "audit", cls=Command,
    exits={
        FAILED: "jobs are lost, double-leased or orphans, events are missing or altered, or it is "
        "not proven that none is; or it cannot be read",
        NO_BROKER: "the broker of --broker is not reachable",
    },
)  # fmt: skip
@click.option(
    "--stuck-after", type=click.FloatRange(min=0), default=STUCK_AFTER, show_default=True,
    metavar="SECONDS", help="A job that has a worker is stuck if nothing was heard of it so long.",
)  # fmt: skip
@click.option(
    "--list", "listed", type=click.IntRange(min=0), default=LISTED, show_default=True, metavar="N",
    help="Ids in a list at most.",
)  # fmt: skip
@click.option(
    "--broker", "brokers", metavar="URL", multiple=True,
    help="Ask this broker how far it was told that its events are sealed: up to there they must "
    "be. It needs a key with the role admin where the broker has keys. Repeatable: the journal is "
    "anchored if each broker that has events in it was asked.",
)  # fmt: skip
@takes_journal
def command(
    shared: JournalOptions, stuck_after: float, listed: int, brokers: tuple[str, ...]
) -> int:
    """Audit a journal: whether every accepted job has ended, or in which state it is.

    Each job is one of: succeeded, failed, cancelled, expired; waiting; running; stuck, if its
    worker was silent for long; lost, if it has not ended and an event after its first one is
    missing; unknown, if the broker had to drop events after its first one. Events that are missing
    although no gap tells of them are damage. No job may have two workers at once, and none may
    have events that was never admitted.

    Every file is compared with its name, its folder, its footer and the seal log, by checksums.
    "damage" names what is wrong. Where the seal log of a broker is missing, it is not proven that
    nothing is missing or altered, and "unproven" says so. With --broker the end is where the broker
    was told that it is: only so it is seen that files and seal log were cut off together, or were
    put back to another time. Without it the end is not anchored, and "unanchored" says so.

    "conclusion" sums it up. "clean" is a proof. "complete as far as its own seals
    reach; not anchored" proves the same for what the seal logs have; the exit code is 0 as well.

    --since and --until choose jobs by their first event, --queue and --task choose jobs; events
    that are missing are always looked for in the whole journal. A host whose clock is not that of
    the broker is named on stderr.
    """
    with shared.evidence(_sealed(brokers)) as evidence:
        events = evidence.events
        result = audit(
            events, stuck_after=stuck_after, listed=listed, queue=shared.queue, task=shared.task,
            since=shared.since, until=shared.until, evidence=evidence,
        )  # fmt: skip
        if shared.out is not None:
            shared.show(events.sparkSession.createDataFrame([result.as_dict()], result.columns()))
        else:
            shown = result.as_dict()
            if not shared.as_json:
                texts = ("damage", "unproven", "unanchored")
                shown |= {name: "\n".join(shown[name]) for name in texts}
            show_object(shown, as_json=shared.as_json)
        for row in wrong_clocks(events).collect():
            warning = sentence(printable(row.host), row.broker_id, row.early_s, row.late_s)
            click.echo(f"warning: {warning}", err=True)
    return DONE if result.complete else FAILED


def _sealed(urls: Iterable[str]) -> dict[str, int]:
    """Return up to which number the events of brokers are sealed, as they were told; by store."""
    sealed: dict[str, int] = {}
    for url in urls:
        with Target(broker=url).asking() as app:
            answer = app.ask("events.read", {"after": _NO_EVENT, "bytes": 1})
        sealed[answer["store"]] = answer["sealed"]
    return sealed
