"""The data directory of a store: its lock and the space that it keeps in reserve."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from eventmq.errors import StoreError
from eventmq.plugins.queue_stores.disk import DataDirectory
from eventmq.plugins.queue_stores.sqlite import FILE_NAME, SqliteStore
from eventmq.testing import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1024 * 1024


def test_the_ballast_is_an_eighth_of_the_reserve(tmp_path: Path) -> None:
    """A small reserve does not cost more space than it keeps."""
    home = DataDirectory(tmp_path / "data", 8 * MIB)
    home.open()
    assert (tmp_path / "data" / "ballast").stat().st_size == MIB
    home.close()


def test_without_a_reserve_there_is_no_ballast(tmp_path: Path) -> None:
    """There is nothing that it could bridge."""
    home = DataDirectory(tmp_path / "data", 0)
    home.open()
    assert [file.name for file in (tmp_path / "data").iterdir()] == ["lock"]
    home.close()


def test_a_nearly_full_disk_gives_the_ballast_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs is finished in its space; submissions are refused from then on."""
    home = DataDirectory(tmp_path / "data", 8 * MIB)
    home.open()
    assert not home.low(0.0)
    monkeypatch.setattr(home, "free", lambda: MIB)
    assert home.low(2.0)
    assert not (tmp_path / "data" / "ballast").exists()
    home.close()


def test_a_directory_has_one_broker(tmp_path: Path) -> None:
    """The second is told which process has it."""
    home = DataDirectory(tmp_path / "data", 0)
    home.open()
    with pytest.raises(StoreError, match="in use by another broker"):
        DataDirectory(tmp_path / "data", 0).open()
    home.close()


_TAKES_THE_INDEX = """
import fcntl, sys
with open(sys.argv[1], "r+b") as index:
    fcntl.lockf(index, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 128)
"""


def test_an_open_store_keeps_its_hold_of_the_index(tmp_path: Path) -> None:
    """Whoever opens a store that nobody seems to have cuts the index of its log to nothing.

    A broker whose index was cut ends by SIGBUS. The place is `UNIX_SHM_DMS` of SQLite's os_unix.c.
    """
    store = SqliteStore(tmp_path, FakeClock(), reserve=0)
    store.open()
    command = [sys.executable, "-c", _TAKES_THE_INDEX, str(tmp_path / f"{FILE_NAME}-shm")]
    taken = subprocess.run(command, capture_output=True, text=True, check=False)
    store.close()
    assert taken.returncode == 1
    assert "BlockingIOError" in taken.stderr
