"""Command line ``eventmq``, and the kit of command authors.

One module per family of commands, put together in `program`. Importing this package imports no
other module: names load when first used. Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eventmq.cli.command import (
        DONE,
        FAILED,
        NO_BROKER,
        NOT_FOUND,
        WRONG_USAGE,
        Command,
        read_length,
        read_timestamp,
    )
    from eventmq.cli.hangup import at_hangup
    from eventmq.cli.inspect import history_of
    from eventmq.cli.output import (
        age,
        cell_text,
        column_widths,
        duration,
        printable,
        show_object,
        show_rows,
        to_json,
    )
    from eventmq.cli.schedules import describe_trigger
    from eventmq.cli.target import (
        Found,
        Target,
        import_named,
        takes_app,
        takes_json,
        takes_log_format,
        takes_target,
        takes_wide,
        user,
    )

__all__ = [
    "DONE",
    "FAILED",
    "NOT_FOUND",
    "NO_BROKER",
    "WRONG_USAGE",
    "Command",
    "Found",
    "Target",
    "age",
    "at_hangup",
    "cell_text",
    "column_widths",
    "describe_trigger",
    "duration",
    "history_of",
    "import_named",
    "main",
    "printable",
    "read_length",
    "read_timestamp",
    "show_object",
    "show_rows",
    "takes_app",
    "takes_json",
    "takes_log_format",
    "takes_target",
    "takes_wide",
    "to_json",
    "user",
]

#: Module -> the names that it has; all others are in `command`.
_MODULES = {
    "hangup": {"at_hangup"},
    "inspect": {"history_of"},
    "output": {
        "age", "cell_text", "column_widths", "duration", "printable", "show_object", "show_rows",
        "to_json",
    },
    "schedules": {"describe_trigger"},
    "target": {
        "Found", "Target", "import_named", "takes_app", "takes_json", "takes_log_format",
        "takes_target", "takes_wide", "user",
    },
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = next((module for module, names in _MODULES.items() if name in names), "command")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def main(*, child: bool = False) -> None:
    """Run the program and exit with its code.

    Args:
        child: Whether another eventmq process started this one: it then ends with its parent and
            does not repeat its warnings.
    """
    if child:
        from eventmq.cli.processes import watch_parent

        watch_parent()
    from eventmq.cli.program import program

    program.main(prog_name="eventmq", warned=child)
