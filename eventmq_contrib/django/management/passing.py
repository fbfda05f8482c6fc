"""Commands of ``manage.py`` that run a command of ``eventmq`` for the app of a backend."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from eventmq.cli import main
from eventmq_contrib.django import worker
from eventmq_contrib.django.framework import InvalidTask, InvalidTaskBackend

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

__all__ = ["PassingCommand"]

#: Verbosity of Django -> options of eventmq.
_VERBOSITY = {0: ["-q"], 1: [], 2: ["-v"], 3: ["-v", "-v"]}


class PassingCommand(BaseCommand):
    """Passes options that Django does not have to a command of ``eventmq``.

    Attributes:
        command: That command.
    """

    command = ""

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """Return a parser that keeps unknown options, ``--help`` among them, as arguments."""
        kwargs |= {"add_help": False, "allow_abbrev": False}
        kwargs["epilog"] = f"Further options are those of: eventmq {self.command}"
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        parser.parse_args = partial(_parse_known, parser)
        return parser

    def add_arguments(self, parser: CommandParser) -> None:
        """Add ``--backend``."""
        text = "Alias of the backend in TASKS; default: default."
        parser.add_argument("--backend", metavar="ALIAS", default="default", help=text)

    def handle(self, *args: str, **options: Any) -> None:
        """Run the command of ``eventmq`` in this process until it ends."""
        alias = options["backend"]
        try:
            worker.load(alias)
        except (InvalidTask, InvalidTaskBackend) as error:
            raise CommandError(str(error)) from error
        passed = [*_VERBOSITY[options["verbosity"]], *args, *self.more(alias, args)]
        sys.argv = ["eventmq", self.command, "-A", f"{worker.__name__}:{alias}", *passed]
        main()

    def more(self, alias: str, args: Sequence[str]) -> Sequence[str]:
        """Return further options."""
        return []


def _parse_known(
    parser: CommandParser, args: Sequence[str] | None = None, namespace: Namespace | None = None
) -> Namespace:
    options: Namespace
    options, others = parser.parse_known_args(args, namespace)
    options.args = others
    return options
