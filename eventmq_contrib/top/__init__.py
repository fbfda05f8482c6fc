"""Terminal page: the command ``eventmq top``, on Textual.

It is an ordinary client that asks one call a second of each broker. The library ``textual`` comes
with ``eventmq[top]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq import hookimpl

if TYPE_CHECKING:
    import click

__all__ = ["eventmq_add_commands"]


@hookimpl
def eventmq_add_commands(cli: click.Group) -> None:
    """Add ``eventmq top``."""
    from eventmq_contrib.top.command import top

    cli.add_command(top)
