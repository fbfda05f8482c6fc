"""The command ``eventmq backlog``: lists queues with waiting jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from eventmq.cli import DONE, FAILED, NO_BROKER, Command, show_rows, takes_json, takes_target

if TYPE_CHECKING:
    from eventmq.cli import Target

COLUMNS = ("name", "waiting", "running", "workers")


@click.command(cls=Command, exits={FAILED: "a queue has too many jobs waiting", NO_BROKER: ""})
@click.option(
    "--most", type=click.IntRange(0), metavar="N", help="Fail if a queue has more waiting jobs."
)
@takes_json
@takes_target
def backlog(target: Target, *, most: int | None, as_json: bool) -> int:
    """List the queues with waiting jobs, the longest first.

    With --most it fails if a queue has more of them.
    """
    with target.asking() as app:
        queues = [queue for queue in app.ask("queues") if queue["waiting"]]
    queues.sort(key=lambda queue: -queue["waiting"])
    show_rows(queues, COLUMNS, as_json=as_json, empty="No waiting jobs.")
    behind = sum(most is not None and queue["waiting"] > most for queue in queues)
    if not behind:
        return DONE
    queues_have = "queue has" if behind == 1 else "queues have"
    click.echo(f"error: {behind} {queues_have} more than {most} jobs waiting", err=True)
    return FAILED
