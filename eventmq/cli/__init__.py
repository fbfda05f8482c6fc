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
        read_timestamp,
    )
    from eventmq.cli.hangup import at_hangup
    from eventmq.cli.output import printable, show_object, show_rows, to_json
    from eventmq.cli.target import (
        Found,
        Target,
        import_named,
        takes_app,
        takes_json,
        takes_log_format,
        takes_target,
        takes_wide,
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
    "at_hangup",
    "import_named",
    "main",
    "printable",
    "read_timestamp",
    "show_object",
    "show_rows",
    "takes_app",
    "takes_json",
    "takes_log_format",
    "takes_target",
    "takes_wide",
    "to_json",
]

_OUTPUT = frozenset({"printable", "show_object", "show_rows", "to_json"})

_TARGET = frozenset({
    "Found", "Target", "import_named", "takes_app", "takes_json", "takes_log_format",
    "takes_target", "takes_wide",
})  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "output" if name in _OUTPUT else "target" if name in _TARGET else "command"
    module = "hangup" if name == "at_hangup" else module
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
