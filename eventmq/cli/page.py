"""Reference page of the command line, made from the commands."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import click

from eventmq.cli.command import MEANINGS, Command
from eventmq.cli.declared import DeclaredOptions
from eventmq.cli.program import program

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["document", "section"]

_PAGE = """\
Command line
============

.. Made by ``eventmq.cli.page.document()``; change the code, not this page.

.. code-block:: text

   eventmq [-p NAME]... [-v | -q]... COMMAND [OPTIONS] [ARGUMENTS]

``python -m eventmq`` is the same program. Results go to stdout, everything else to stderr; an error
is one line there that begins with ``error:``.

A listing is a table on a terminal, without colours where ``NO_COLOR`` is set, and plain columns in
a pipe. With ``--json`` stdout has a list of flat objects, whose names are those of the columns, and
nothing else; for a single item it has one object.

A command connects to the broker of ``--broker``, else to the app's, else to that of
``EVENTMQ_BROKER``, else to ``tcp://127.0.0.1:47291``.

Options of the program
----------------------

They stand before the command.

"""

_CODES = """
Exit codes
----------

A program that was interrupted by Ctrl-C ends with 130, except where that is its usual end.

"""


def document() -> str:
    """Return the text of ``docs/reference/cli.rst``."""
    parts = [_PAGE, *_options(program), _CODES]
    parts += [f"``{code}``\n    {text}\n" for code, text in MEANINGS.items()]
    for name, command in _flat(program.commands):
        parts += ["\n", *section(name, command)]
    return "".join(parts)


def _flat(commands: Mapping[str, click.Command], above: str = "") -> Iterator[tuple[str, Command]]:
    """Yield the commands with their whole names, those of a group after each other."""
    for name, command in commands.items():
        if isinstance(command, click.Group):
            yield from _flat(command.commands, f"{above}{name} ")
        elif isinstance(command, Command):
            yield f"{above}{name}", command


def section(name: str, command: Command) -> Iterator[str]:
    """Yield the section of one command, heading first; pages of plugins have it too."""
    yield f"{name}\n{'-' * len(name)}\n\n"
    yield f"{_escape(inspect.cleandoc(command.help or ''))}\n\n"
    with click.Context(command, info_name=f"eventmq {name}") as ctx:
        pieces = " ".join(command.collect_usage_pieces(ctx))
    yield f".. code-block:: text\n\n   eventmq {name} {pieces}\n\n"
    yield from _options(command)
    codes = "; ".join(f"``{code}`` {_escape(text)}" for code, text in command.exits.items())
    yield f"\nExit codes: {codes}.\n"


def _options(command: click.Command) -> Iterator[str]:
    """Yield a definition list of options."""
    with click.Context(command) as ctx:
        if isinstance(command, DeclaredOptions):
            command.collect(ctx)
        for param in command.get_params(ctx):
            if isinstance(param, click.Option) and "--help" not in param.opts:
                names, text = param.get_help_record(ctx) or ("", "")
                yield f"``{names}``\n    {_escape(text)}\n"


def _escape(text: str) -> str:
    """Return the text with what reStructuredText would take for markup escaped."""
    return text.replace("\\", "\\\\").replace("*", "\\*").replace("`", "\\`").replace("|", "\\|")
