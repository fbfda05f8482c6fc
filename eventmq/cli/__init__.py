"""Command line ``eventmq``: one module per family of commands, put together in `program`.

Importing this package loads no other module. Results go to stdout, everything else to stderr;
`command` has the exit codes.
"""

from __future__ import annotations

__all__ = ["main"]


def main(*, child: bool = False) -> None:
    """Run the program and exit with its code.

    Args:
        child: This process was started by another eventmq process: it ends when its parent
            does, and does not repeat its warnings.
    """
    if child:
        from eventmq.cli.processes import watch_parent

        watch_parent()
    from eventmq.cli.program import program

    program.main(prog_name="eventmq", warned=child)
