"""The files of ``eventmq/`` in which a function runs during one call that waits for its result.

``sys.setprofile`` records them in client, broker, job manager and child, from the second
``add.delay(2, 3)`` until ``get()`` returns; functions that run only at the start do not count. To
print them::

    python -m benchmarks.files_of_a_call
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.system import ROOT, System
from eventmq import EventMQ

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

__all__ = ["Recording", "files_of_a_call"]

#: Environment variable with the folder of the recording.
FOLDER = "FILES_OF_A_CALL"

ROLES = ("client", "broker", "manager", "child")

app = EventMQ("files")


@app.task
def add(a: int, b: int) -> int:
    """Return the sum."""
    return a + b


@app.on_child_start
def _record_child() -> None:
    if FOLDER in os.environ:
        Recording(Path(os.environ[FOLDER])).record("child")


class Recording:
    """Records functions of several processes: a switch that all see, and a file for each role.

    Args:
        folder: Folder of these files.
        package: Files below this folder count.
    """

    def __init__(self, folder: Path, package: Path = ROOT / "eventmq") -> None:
        self._folder = folder
        self._package = f"{package}{os.sep}"
        with (folder / "on").open("a+b") as file:
            file.truncate(1)
            self._on = mmap.mmap(file.fileno(), 1)

    def switch(self, *, on: bool) -> None:
        """Start or stop recording in all processes."""
        self._on[0] = on

    def record(self, role: str) -> None:
        """Record the functions of this thread, and of threads that start later."""
        on, package = self._on, self._package
        seen: set[str] = set()
        log = os.open(self._folder / role, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

        def profile(frame: FrameType, event: str, _: Any) -> None:
            code = frame.f_code
            if event != "call" or not on[0] or code.co_filename in seen:
                return
            # The code of a module at its import is not a function.
            if code.co_filename.startswith(package) and code.co_name != "<module>":
                seen.add(code.co_filename)
                os.write(log, f"{code.co_filename.removeprefix(package)}\n".encode())

        threading.setprofile(profile)
        sys.setprofile(profile)

    def files(self, role: str) -> frozenset[str]:
        """Return the files that ran in a role, relative to the package."""
        return frozenset((self._folder / role).read_text("utf-8").splitlines())


class RecordedSystem(System):
    """Broker and worker as this module starts them."""

    program = "benchmarks.files_of_a_call"
    app = "benchmarks.files_of_a_call:app"


def files_of_a_call(folder: Path) -> Iterator[tuple[str, frozenset[str]]]:
    """Make the two calls; yield each role with the files that ran in it during the second.

    Args:
        folder: An empty one.
    """
    recording = Recording(folder)
    os.environ[FOLDER] = str(folder)
    system = RecordedSystem(folder)
    try:
        system.start_broker()
        system.start_worker(1)
        recording.record("client")
        with EventMQ("files", broker=system.address) as client:
            call = client.task(name="benchmarks.files_of_a_call.add")(add.function)
            for second in (False, True):
                recording.switch(on=second)
                total = call.delay(2, 3).get(timeout=30)
                recording.switch(on=False)
                assert total == 5
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        system.stop()
        del os.environ[FOLDER]
    for role in ROLES:
        yield role, recording.files(role)


def main() -> None:
    """Print the files of each role and how many there are; as broker or worker, record."""
    if len(sys.argv) > 1:
        role = {"broker": "broker", "worker": "manager"}[sys.argv[1]]
        Recording(Path(os.environ[FOLDER])).record(role)
        from eventmq.cli import main as program

        program()
    with tempfile.TemporaryDirectory(prefix="eventmq-files-") as folder:
        roles = dict(files_of_a_call(Path(folder)))
    for role, files in roles.items():
        print(f"{role}: {len(files)}", *sorted(files), sep="\n    ")
    print(f"all: {len(frozenset().union(*roles.values()))} files of eventmq/")


if __name__ == "__main__":
    main()
