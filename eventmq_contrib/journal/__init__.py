"""Journal: keeps all events of a broker in Parquet files, with the command ``eventmq journal``.

A separate process reads the events from the broker's store, or requests them from the broker, seals
them in files and reports this to the broker, which then deletes them. The library ``pyarrow`` comes
with ``eventmq[spark]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq import hookimpl

if TYPE_CHECKING:
    import click

__all__ = ["eventmq_add_commands"]


@hookimpl
def eventmq_add_commands(cli: click.Group) -> None:
    """Add ``eventmq journal``."""
    from eventmq_contrib.journal.command import journal

    cli.add_command(journal)
