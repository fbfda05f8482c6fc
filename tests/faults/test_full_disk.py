"""A full disk after a crash: the broker starts by its ballast, and runs the jobs in its store."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from eventmq.errors import QueueFull
from tests.support.system import System, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 1024 * 1024

#: Jobs, and bytes of each: together they outgrow any buffer of the store.
JOBS, SIZE = 36, 100_000

#: Bytes of the disk, and of the reserve, an eighth of which is the ballast.
DISK, RESERVE = 100 * MIB, 64 * MIB

#: Bytes that are left free on the disk.
THREE_BLOCKS = 3 * 4096

UNDER = ("env", f"EVENTMQ_DISK_RESERVE={RESERVE}")


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    """Return a system whose data directory is a small disk of its own."""
    data = tmp_path / "data"
    data.mkdir()
    mount = shutil.which("mount")
    if mount is None:
        pytest.skip("there is no mount command; test_full_quota.py has the same without a disk")
    options = f"size={DISK},mode=0700"
    made = subprocess.run(
        [mount, "-t", "tmpfs", "-o", options, "tmpfs", str(data)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"no disk can be mounted ({made.stderr.strip()}): see test_full_quota.py")
    system = System(tmp_path)
    yield system
    system.stop()
    subprocess.run(["umount", "-l", str(data)], check=True)


def fill(data: Path, free: int) -> Path:
    """Fill a disk but for some bytes; return the file that does."""
    filler = data / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    os.truncate(filler, filler.stat().st_size - free)
    return filler


def crash_with_jobs(system: System) -> None:
    """Submit jobs to a broker, and kill it."""
    broker = system.broker(under=UNDER)
    app = system.app()
    for number in range(JOBS):
        app.send("survivor.work", (f"{number:0{SIZE}}",))
    broker.kill9()


def test_a_broker_starts_on_a_full_disk_and_drains_it(system: System) -> None:
    """New jobs are refused; those in the store run, and their space is freed."""
    crash_with_jobs(system)
    fill(system.folder / "data", THREE_BLOCKS)
    system.broker(under=UNDER)
    assert not (system.folder / "data" / "ballast").exists()
    app = system.app()
    with pytest.raises(QueueFull):
        app.send("survivor.work", ("one more",))
    system.worker()
    until(lambda: len(system.executed()) == JOBS, "every job was executed")
    until(lambda: app.ask("queues")[0]["waiting"] == 0, "none waits")
    assert [(0, 0)] == [(row["running"], row["failed"]) for row in app.ask("queues")]


@pytest.mark.parametrize("removed", [["ballast"], ["ballast", "queue.sqlite-shm"]], ids=len)
def test_a_broker_without_a_ballast_reports_how_much_to_free(
    system: System, removed: list[str]
) -> None:
    """With so much freed it starts. Even the index of the log may not fit."""
    crash_with_jobs(system)
    data = system.folder / "data"
    for name in removed:
        (data / name).unlink()
    filler = fill(data, THREE_BLOCKS)
    broker, _ = system.start(
        "broker", "--bind", "tcp://127.0.0.1:0", "--data-dir", "data", wait=False, under=UNDER
    )
    assert 1 == broker.wait(50)
    *_, error = (system.folder / "broker.log").read_text().splitlines()
    match = re.fullmatch(
        r"error: the disk of the data directory data is full: free (\d+) MiB there and start the "
        r"broker again", error,
    )  # fmt: skip
    assert match, error
    os.truncate(filler, filler.stat().st_size - int(match[1]) * MIB)
    system.broker(under=UNDER)
    system.worker()
    until(lambda: len(system.executed()) == JOBS, "every job was executed")
