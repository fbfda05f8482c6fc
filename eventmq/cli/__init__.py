"""The program ``eventmq``: one module per family of commands, put together in `program`.

Importing this package loads nothing, so that what must start fast can. Results go to stdout,
everything else to stderr; `exits` has the exit codes.
"""

from __future__ import annotations

__all__ = ["main"]


def main(*, child: bool = False) -> None:
    """Run the program and exit with its code.

    Args:
        child: Another process of the program started this one, and has said what is said once.
    """
    from eventmq.cli.program import program

    program.main(prog_name="eventmq", told=child)
