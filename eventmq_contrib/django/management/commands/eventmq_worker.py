"""``manage.py eventmq_worker``: runs the project's tasks."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandParser

from eventmq.cli import main
from eventmq_contrib.django.framework import task_backends

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

__all__ = ["Command"]


class Command(BaseCommand):
    """Runs ``eventmq worker`` for a backend and its queues, with all options that Django lacks.

    Attributes:
        command: That command.
    """

    help = "Run the jobs of the project's tasks."
    command = "worker"

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """Return a parser that keeps unknown options, ``--help`` among them, as arguments."""
        kwargs |= {"add_help": False, "allow_abbrev": False}
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        parser.add_argument("--backend", default="default")
        parser.parse_args = partial(_parse_known, parser)
        return parser

    def handle(self, *args: str, backend: str, **_: Any) -> None:
        """Run the command of ``eventmq`` in this process until it ends."""
        queues = task_backends[backend].queues if backend in task_backends.settings else ()
        if self.command == "worker" and queues and not any(a.startswith(_QUEUES) for a in args):
            args = ("-Q", ",".join(sorted(queues)), *args)
        app = f"eventmq_contrib.django.worker:{backend}"
        sys.argv = ["eventmq", self.command, "-A", app, *args]
        main()


_QUEUES = ("-Q", "--queues")


def _parse_known(parser: CommandParser, args: Sequence[str] | None = None) -> Namespace:
    options: Namespace
    options, options.args = parser.parse_known_args(args)
    return options
