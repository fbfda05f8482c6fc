"""Reads the system calls of a broker: does any message leave before its content is on disk?"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from tests.support.system import System, until

__all__ = ["receipts_after_syncs"]

_CALL = re.compile(r"^(\d+)\s+(\w+)\((\d+)<([^>]*)>")


def receipts_after_syncs(jobs: int) -> tuple[int, int, int]:
    """Submit jobs one by one to a broker under strace.

    Returns:
        The number of messages to peers, of syncs of the log, and of messages that were sent while
        the log had unsynced data.

    Raises:
        RuntimeError: strace is missing, or may not trace.
    """
    if shutil.which("strace") is None:
        raise RuntimeError("strace is needed")
    with tempfile.TemporaryDirectory() as folder:
        system = System(Path(folder))
        trace = Path(folder) / "trace"
        broker = system.broker()
        calls = "trace=pwrite64,write,fdatasync,fsync,sendto,sendmsg"
        options = ["-f", "-yy", "-s", "0", "-e", calls, "-o", str(trace)]
        watch = subprocess.Popen(
            ["strace", *options, "-p", str(broker.pid)],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            until(trace.exists, "strace watches", 10.0)
            app = system.app(submit_timeout=60.0)
            task = app.task(name="survivor.work")(_stand_in)
            for number in range(jobs):
                task.delay(number)
        finally:
            watch.send_signal(signal.SIGINT)
            watch.wait(30.0)
            if watch.stderr is not None:
                watch.stderr.close()
            system.stop()
        return _read(trace)


def _read(trace: Path) -> tuple[int, int, int]:
    sends = syncs = early = 0
    dirty = False
    for line in trace.read_text().splitlines():
        match = _CALL.match(line)
        if match is None:
            continue
        _, call, _, name = match.groups()
        log = os.path.basename(name) == "queue.sqlite-wal"  # noqa: PTH119 - as strace writes it
        if log and call in {"pwrite64", "write"}:
            dirty = True
        elif log:
            syncs, dirty = syncs + 1, False
        elif call in {"sendto", "sendmsg"} and "TCP" in name:
            sends, early = sends + 1, early + dirty
    return sends, syncs, early


def _stand_in(*args: object) -> None:
    """Run in a worker."""
