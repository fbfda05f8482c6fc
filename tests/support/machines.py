"""Simulated machines for processes on one machine, with wall clocks that a test can set.

A `Machine` is for commands of ``eventmq``: this file, run as a program, runs them on it. Each
machine has a boot time of its own. A `ServerClock` is the clock of a PostgreSQL server, faked by
the library ``libfaketime``, which does not work with EventMQ because of the sleeps of Python.
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

#: Seconds between the boot times of two machines.
BOOT_DISTANCE = 100_000.0


class Machine:
    """A machine whose wall clock is right at first.

    Args:
        folder: Folder of its files.
        number: Number of the machine, from 1.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self._file = folder / f"machine{number}"
        (folder / f"machine{number}.boot").write_text(f"machine-{number}\n")
        #: Seconds by which its wall clock is ahead.
        self.ahead = 0.0
        self.set(0.0)
        #: Prefix of a command, ``PYTHON ...``, that runs on this machine.
        self.command = [sys.executable, __file__, str(self._file), str(number)]

    def set(self, ahead: float) -> None:
        """Set the wall clock to a number of seconds ahead of the right time."""
        self.ahead = ahead
        _replace(self._file, f"{ahead:.3f}")


class ServerClock:
    """The clock of a server, which is right at first.

    Args:
        library: Path of ``libfaketime.so.1``.
        file: Path of the file from which the server reads the offset of the clock.
    """

    def __init__(self, library: Path, file: Path) -> None:
        self._file = file
        self.ahead = 0.0
        self.set(0.0)
        #: Prefix of a command that runs with this clock.
        self.command = [
            "env", f"LD_PRELOAD={library}", f"FAKETIME_TIMESTAMP_FILE={file}",
            "FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1",
        ]  # fmt: skip

    def set(self, ahead: float) -> None:
        """Set it to a number of seconds ahead of the right time."""
        self.ahead = ahead
        _replace(self._file, f"{ahead:+.3f}\n")


def _replace(file: Path, text: str) -> None:
    """Replace a file that other processes may read at any time."""
    made = file.with_suffix(".new")
    made.write_text(text)
    made.chmod(0o644)
    made.replace(file)


def become(file: Path, number: int) -> None:
    """Move this process to a machine."""
    from eventmq import clock

    wall, boot = time.time, clock.SystemClock.boottime

    def now() -> float:
        return wall() + float(file.read_bytes())

    time.time = now
    clock.SystemClock.now = staticmethod(now)  # type: ignore[method-assign]
    clock.SystemClock.boottime = staticmethod(  # type: ignore[method-assign]
        lambda: boot() + BOOT_DISTANCE * number
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
