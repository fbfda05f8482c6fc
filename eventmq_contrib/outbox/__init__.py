"""Transactional outbox: jobs are rows in the application's own transaction, until they are sent.

`delay` and `send` write a row through a connection of the application and send nothing; ``eventmq
outbox relay`` submits the rows that were committed. Jobs of a transaction that is rolled back are
never sent, and those of a committed one are sent at least once, also if the broker was away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq import hookimpl
from eventmq_contrib.outbox.writing import DDL, TABLE, adelay, asend, delay, send

if TYPE_CHECKING:
    import click

__all__ = ["DDL", "TABLE", "adelay", "asend", "delay", "eventmq_add_commands", "send"]


@hookimpl
def eventmq_add_commands(cli: click.Group) -> None:
    """Add ``eventmq outbox``."""
    from eventmq_contrib.outbox.command import outbox

    cli.add_command(outbox)
