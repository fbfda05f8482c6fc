"""One command of the program: a click command that also says its exit codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from eventmq.cli.exits import DONE, MEANINGS, WRONG_USAGE

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Command"]


class Command(click.Command):
    """A command with documented exit codes. It returns its exit code, or None for 0.

    Args:
        exits: Exit code -> what it means here, beside 0 and 2, which every command has; an
            empty text stands for the general meaning.
        more: Arguments of `click.Command`.
    """

    def __init__(self, *args: Any, exits: Mapping[int, str] | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        codes = {DONE: "", WRONG_USAGE: "wrong usage", **(exits or {})}
        self.exits = {code: codes[code] or MEANINGS[code] for code in sorted(codes)}
        meanings = ", ".join(f"{code} {text}" for code, text in self.exits.items())
        self.epilog = self.epilog or f"Exit codes: {meanings}."
