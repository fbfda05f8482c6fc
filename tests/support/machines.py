"""Machines of their own, whose wall clocks a test can set, for processes on one machine.

A `Machine` is one for commands of ``eventmq``: this file as a program runs them there. It has a
start of its own, too, since another time than the others. A `ServerClock` is the clock of a
PostgreSQL server, which the library ``libfaketime`` shows it; EventMQ has no use for that, as it
cannot stand where Python sleeps.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Machine", "ServerClock"]

#: Seconds between the starts of two machines.
APART = 100_000.0


class Machine:
    """A machine whose wall clock is right at first.

    Args:
        folder: Where its files are made.
        number: From 1 on, another one for each.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self._file = folder / f"machine{number}"
        (folder / f"machine{number}.boot").write_text(f"machine-{number}\n")
        #: Seconds by which its wall clock is ahead.
        self.ahead = 0.0
        self.set(0.0)
        #: Runs the command that follows, ``PYTHON ...``, there.
        self.command = [sys.executable, __file__, str(self._file), str(number)]

    def set(self, ahead: float) -> None:
        """Set the wall clock so many seconds ahead of the right time."""
        self.ahead = ahead
        _replace(self._file, f"{ahead:.3f}")


class ServerClock:
    """The clock of a server, which is right at first.

    Args:
        library: Where ``libfaketime.so.1`` is.
        file: Where the server can read how the clock goes.
    """

    def __init__(self, library: Path, file: Path) -> None:
        self._file = file
        self.ahead = 0.0
        self.set(0.0)
        #: Runs the command that follows with this clock.
        self.command = [
            "env", f"LD_PRELOAD={library}", f"FAKETIME_TIMESTAMP_FILE={file}",
            "FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1",
        ]  # fmt: skip

    def set(self, ahead: float) -> None:
        """Set it so many seconds ahead of the right time."""
        self.ahead = ahead
        _replace(self._file, f"{ahead:+.3f}\n")


def _replace(file: Path, text: str) -> None:
    """Write a file that others read at any moment."""
    made = file.with_suffix(".new")
    made.write_text(text)
    made.chmod(0o644)
    made.replace(file)


def become(file: Path, number: int) -> None:
    """Let this process be on a machine."""
    from eventmq import clock

    wall, boot = time.time, clock.SystemClock.boottime

    def now() -> float:
        return wall() + float(file.read_bytes())

    time.time = now
    clock.SystemClock.now = staticmethod(now)  # type: ignore[method-assign]
    clock.SystemClock.boottime = staticmethod(  # type: ignore[method-assign]
        lambda: boot() + APART * number
    )
    clock.BOOT_ID = file.with_suffix(".boot")


def main(file: str, number: str, _: str, first: str, *rest: str) -> None:
    """Run a program or, after ``-m``, a module."""
    become(Path(file), int(number))
    run: Callable[..., object] = runpy.run_path
    if first == "-m":
        run, first, rest = runpy.run_module, rest[0], rest[1:]
    sys.argv = [first, *rest]
    run(first, run_name="__main__")


if __name__ == "__main__":
    sys.path[0] = os.getcwd()  # noqa: PTH109 - as for -m
    main(*sys.argv[1:])
