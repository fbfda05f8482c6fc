"""The hook of this plugin: it adds the command ``eventmq backlog``.

Every program that finds this plugin imports this module, so the command is imported in the hook,
which is called only where the program needs the names of all commands, or this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq import hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def eventmq_add_commands(cli: click.Group) -> None:
    """Add ``eventmq backlog``."""
    from eventmq_command_example.command import backlog

    cli.add_command(backlog)
