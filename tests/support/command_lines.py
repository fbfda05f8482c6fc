"""Parses command lines of EventMQ like the program, without running them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from eventmq.cli.program import program

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["parse", "resolve"]


def resolve(words: Sequence[str]) -> tuple[click.Command, click.Context, list[str]]:
    """Return the command that the first words name, the context of its group, and the other words.

    Raises:
        click.UsageError: There is no such command.
    """
    command: click.Command = program
    context, name, rest = click.Context(program, info_name="eventmq"), "eventmq", list(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        if command is not program:
            context = click.Context(command, parent=context, info_name=name)
        subname, below, rest = command.resolve_command(context, rest)
        assert subname is not None
        assert below is not None
        name, command = subname, below
    return command, context, rest


def parse(words: Sequence[str]) -> click.Context:
    """Parse the words behind ``eventmq``; return the context of the command that would run.

    Raises:
        click.UsageError: There is no such command, or it would refuse the arguments.
    """
    command, context, rest = resolve(words)
    if command is program:
        return program.make_context("eventmq", rest)
    return command.make_context(str(command.name), rest, parent=context)
