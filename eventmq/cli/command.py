"""Commands with exit codes: a click command that documents them."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from eventmq.errors import (
    AppNotFound,
    BrokerUnavailable,
    EventMQError,
    JobNotFound,
    PluginNotFound,
    QueueNotFound,
    ScheduleNotFound,
    SettingsError,
)
from eventmq.text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "DONE",
    "FAILED",
    "INTERRUPTED",
    "MEANINGS",
    "NOT_FOUND",
    "NO_BROKER",
    "SUMMARY",
    "WRONG_USAGE",
    "Command",
    "CommandGroup",
    "ListingGroup",
    "code_of",
    "count_of",
    "print_error",
    "read_length",
    "read_timestamp",
    "sentence",
]


DONE: Final = 0

FAILED: Final = 1

WRONG_USAGE: Final = 2

NO_BROKER: Final = 3

NOT_FOUND: Final = 4

#: Part of the client's error message if no broker can be reached.
_START: Final = 'start one with "eventmq broker"'

#: As in shells: 128 and the number of SIGINT.
INTERRUPTED: Final = 130

#: Maximum number of characters of a summary.
SUMMARY: Final = 300

MEANINGS: Mapping[int, str] = {
    DONE: "done",
    FAILED: "failed",
    WRONG_USAGE: "wrong usage; also a wrong setting, or an app that cannot be found or imported",
    NO_BROKER: "broker not reachable",
    NOT_FOUND: "not found",
}

#: Exit codes of errors; the first match decides.
_CODES: tuple[tuple[type[EventMQError], int], ...] = (
    (BrokerUnavailable, NO_BROKER),
    (JobNotFound, NOT_FOUND),
    (QueueNotFound, NOT_FOUND),
    (ScheduleNotFound, NOT_FOUND),
    (SettingsError, WRONG_USAGE),
    (AppNotFound, WRONG_USAGE),
    (PluginNotFound, WRONG_USAGE),
    (EventMQError, FAILED),
)


def code_of(error: Exception) -> int:
    """Return the exit code of an expected error."""
    if isinstance(error, click.ClickException):
        return error.exit_code
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)


def sentence(error: Exception) -> str:
    """Return an error as one printable line, with a hint."""
    text = error.format_message() if isinstance(error, click.ClickException) else str(error)
    line = printable(" ".join(text.split())).rstrip(".") or type(error).__name__
    if isinstance(error, click.UsageError):
        line = line[:1].lower() + line[1:]
        if error.ctx is not None:
            line += f" (see {error.ctx.command_path} --help)"
    if isinstance(error, BrokerUnavailable):
        start = "" if _START in line else f"; {_START}"
        line += f"{start}, or name its address with --broker"
    return line


def print_error(error: Exception) -> int:
    """Print an expected error on stderr and return its exit code."""
    click.echo(f"error: {sentence(error)}", err=True)
    return code_of(error)


class Command(click.Command):
    """A command with documented exit codes. It returns its exit code, or None for 0.

    Args:
        exits: Exit code -> its meaning for this command, in addition to 0 and 2, which every
            command has; an empty text stands for the general meaning.
        more: Arguments of `click.Command`.
    """

    def __init__(self, *args: Any, exits: Mapping[int, str] | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        codes = {DONE: "", WRONG_USAGE: "wrong usage", **(exits or {})}
        self.exits = {code: codes[code] or MEANINGS[code] for code in sorted(codes)}
        meanings = ", ".join(f"{code} {text}" for code, text in self.exits.items())
        self.epilog = self.epilog or f"Exit codes: {meanings}."

    def get_short_help_str(self, limit: int = SUMMARY) -> str:
        """Return the whole summary; the list of commands breaks it into lines."""
        return super().get_short_help_str(max(limit, SUMMARY))


class CommandGroup(Command, click.Group):
    """A `Command` with subcommands."""


class ListingGroup(click.Group):
    """A group of commands about one kind of object; without a command it lists the objects."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line; without a command it is that of ``list``."""
        has_command = args and (args[0][:1] != "-" or args[0] in ctx.help_option_names)
        if not has_command and not ctx.resilient_parsing:  # set for shell completion
            args = ["list", *args]
        return super().parse_args(ctx, args)


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 job``, ``2 jobs``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


_LENGTH = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


def read_length(text: str) -> float | None:
    """Parse a length of time such as ``90s 15m 2h 3d 1w``; return seconds, None if malformed."""
    match = _LENGTH.fullmatch(text)
    return float(match[1]) * _SECONDS[match[2]] if match else None


def read_timestamp(_: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Parse the value of an option as Unix time; None if the option was not used.

    Accepts ``90s 15m 2h 3d 1w`` (ago), ``2026-01-31T12:00`` in local time, or seconds since 1970.
    """
    if value is None:
        return None
    ago = read_length(value)
    if ago is not None:
        return time.time() - ago
    try:
        with suppress(ValueError):
            return float(value)
        return datetime.fromisoformat(value).timestamp()
    except (ValueError, OverflowError, OSError):
        msg = f"{value!r} is not a time; write 2h for two hours ago, or 2026-01-31T12:00"
        raise click.BadParameter(msg, param=param) from None
