"""Exit codes, and which error ends the program with which one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from eventmq.errors import (
    AppNotFound,
    BrokerUnavailable,
    EventMQError,
    JobNotFound,
    PluginNotFound,
    QueueNotFound,
    SettingsError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "DONE",
    "FAILED",
    "INTERRUPTED",
    "MEANINGS",
    "NOT_FOUND",
    "NO_BROKER",
    "WRONG_USAGE",
    "code_of",
    "say_error",
    "sentence",
]

DONE: Final = 0
FAILED: Final = 1
WRONG_USAGE: Final = 2
NO_BROKER: Final = 3
NOT_FOUND: Final = 4

#: What the client says already where no broker could be reached.
_START: Final = 'start one with "eventmq broker"'

#: As shells have it: 128 and the number of SIGINT.
INTERRUPTED: Final = 130

MEANINGS: Mapping[int, str] = {
    DONE: "done",
    FAILED: "failed",
    WRONG_USAGE: "wrong usage; also a wrong setting, or an app that cannot be found or imported",
    NO_BROKER: "broker not reachable",
    NOT_FOUND: "not found",
}

#: The first that fits decides.
_CODES: tuple[tuple[type[EventMQError], int], ...] = (
    (BrokerUnavailable, NO_BROKER),
    (JobNotFound, NOT_FOUND),
    (QueueNotFound, NOT_FOUND),
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
    """Return one line that says what is wrong, and where help is."""
    text = error.format_message() if isinstance(error, click.ClickException) else str(error)
    line = " ".join(text.split()).rstrip(".") or type(error).__name__
    if isinstance(error, click.UsageError):
        line = line[:1].lower() + line[1:]
        if error.ctx is not None:
            line += f" (see {error.ctx.command_path} --help)"
    if isinstance(error, BrokerUnavailable):
        start = "" if _START in line else f"; {_START}"
        line += f"{start}, or say where it is with --broker"
    return line


def say_error(error: Exception) -> int:
    """Tell the user of an expected error on stderr and return the exit code."""
    click.echo(f"error: {sentence(error)}", err=True)
    return code_of(error)
