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
        FAILED: "jobs are lost, leased twice or were never admitted; events are missing or "
        "altered, or that cannot be ruled out; or the journal cannot be read",
        NO_BROKER: "the broker of --broker is not reachable",
    },
)  # fmt: skip
@click.option(
    "--stuck-after", type=click.FloatRange(min=0), default=STUCK_AFTER, show_default=True,
    metavar="SECONDS", help="A leased job is stuck if it had no event for so long.",
)  # fmt: skip
@click.option(
    "--list", "listed", type=click.IntRange(min=0), default=LISTED, show_default=True, metavar="N",
    help="Ids in a list at most.",
)  # fmt: skip
@click.option(
    "--broker", "brokers", metavar="URL", multiple=True,
    help="Ask this broker which event number it was last told is sealed; the journal must reach "
    "it. It needs a key with the role admin where the broker has keys. Repeatable: the journal is "
    "anchored once every broker in it was asked.",
)  # fmt: skip
@takes_journal
def command(
    shared: JournalOptions, stuck_after: float, listed: int, brokers: tuple[str, ...]
) -> int:
    """Audit a journal: whether every accepted job has ended, or in which state it is.

    Each job is one of: succeeded, failed, cancelled, expired; waiting; running; stuck, if its
    worker was silent for long; lost, if it has not ended and an event after its first one is
    missing; unknown, if the broker had to drop events after its first one. A missing event that no
    gap event accounts for is damage. No job may be leased twice at once, and a job that was never
    admitted may have no events.

    Every file is compared with its name, its folder, its footer and the seal log, by checksums.
    "damage" names what is wrong. Where the seal log of a broker is missing, it is not proven that
    nothing is missing or altered, and "unproven" says so. With --broker the journal must end where
    the broker was told that it ends: the journal is anchored. Nothing else reveals that files and
    seal log were cut short together, or restored from an older copy. Without it "unanchored" says
    so.

    "conclusion" sums it up. "clean" is a proof. "complete as far as its own seals
    reach; not anchored" proves the same for what the seal logs have; the exit code is 0 as well.

    --since and --until choose jobs by their first event, --queue and --task by their queue and
    task; missing events are always looked for in the whole journal. A host whose clock differs
    from the broker's is named on stderr.
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
    """Return, by store id, the last event number that each broker was told is sealed."""
    sealed: dict[str, int] = {}
    for url in urls:
        with Target(broker=url).asking() as app:
            answer = app.ask("events.read", {"after": _NO_EVENT, "bytes": 1})
        sealed[answer["store"]] = answer["sealed"]
    return sealed
