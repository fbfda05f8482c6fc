"""The data directory of a store: its lock, its modes, and the space it keeps in reserve."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from eventmq.errors import StoreError
from eventmq.plugins.queue_stores.sqlite import disk
from eventmq.plugins.queue_stores.sqlite.disk import FILE_NAME, START_BYTES, DataDirectory
from eventmq.plugins.queue_stores.sqlite.store import SqliteStore
from eventmq.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 1024 * 1024


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o177], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> str:
    return oct(stat.S_IMODE(path.stat().st_mode))


# Space


def test_the_ballast_is_an_eighth_of_the_reserve(data: Path) -> None:
    """A small reserve does not cost more space than it keeps."""
    directory = DataDirectory(data, 8 * MIB)
    directory.serve()
    assert (data / "ballast").stat().st_size == MIB
    directory.close()


def test_without_a_reserve_there_is_no_ballast(data: Path) -> None:
    """Ballast only bridges the time until the reserve is free again."""
    directory = DataDirectory(data, 0)
    directory.serve()
    assert {"lock", FILE_NAME} == {file.name for file in data.iterdir()}
    directory.close()


def test_readers_create_no_store(data: Path) -> None:
    """`eventmq fsck` and `backup` take the lock, but create no database."""
    directory = DataDirectory(data, 8 * MIB)
    directory.open()
    assert ["lock"] == [file.name for file in data.iterdir()]
    directory.close()


def test_a_nearly_full_disk_gives_the_ballast_back(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Running jobs end in the space of the ballast; submissions are refused from then on."""
    directory = DataDirectory(data, 8 * MIB)
    directory.serve()
    assert not directory.low(0.0)
    monkeypatch.setattr(directory, "free", lambda: MIB)
    assert directory.low(2.0)
    assert not (data / "ballast").exists()
    directory.close()


def test_a_start_on_a_full_disk_gives_the_ballast_back(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ballast is deleted before the start needs any space."""
    directory = DataDirectory(data, 8 * MIB)
    directory.serve()
    directory.close()
    assert (data / "ballast").exists()
    again = DataDirectory(data, 8 * MIB)
    monkeypatch.setattr(again, "free", lambda: 3 * 4096)
    again.serve()
    assert not (data / "ballast").exists()
    again.close()


def test_the_error_of_a_full_disk_says_how_much_to_free(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log may have to move into the database, and a start needs some space itself."""
    directory = DataDirectory(data, 0)
    directory.serve()
    (data / f"{FILE_NAME}-wal").write_bytes(bytes(5 * MIB))
    monkeypatch.setattr(directory, "free", lambda: 0)
    assert f"{data} is full: free {5 + START_BYTES // MIB} MiB there" in str(directory.full())
    monkeypatch.setattr(directory, "free", lambda: 64 * MIB)
    assert "free 1 MiB there" in str(directory.full())
    directory.close()


def test_a_removed_directory_is_an_error_of_the_store(data: Path) -> None:
    """Reading the free space is often the first call that notices it."""
    directory = DataDirectory(data, 8 * MIB)
    directory.serve()
    data.rename(data.with_name("moved"))
    with pytest.raises(StoreError, match="was moved or removed under the running broker"):
        directory.low(2.0)
    directory.close()


# The lock


def test_a_directory_has_one_broker(data: Path) -> None:
    """The error of the second broker names the process of the first."""
    directory = DataDirectory(data, 0)
    directory.serve()
    with pytest.raises(StoreError, match=f"in use by another broker .process {os.getpid()}"):
        DataDirectory(data, 0).serve()
    directory.close()


_SERVES = """
import sys
from pathlib import Path
from eventmq.errors import StoreError
from eventmq.plugins.queue_stores.sqlite.disk import DataDirectory
directory = DataDirectory(Path(sys.argv[1]), 0)
try:
    directory.serve() if sys.argv[2] == "serve" else directory.open()
except StoreError as error:
    sys.exit(str(error))
"""


def serve_elsewhere(data: Path, method: str = "serve") -> str:
    """Return the error of another process that opens the directory, or "" if it succeeds."""
    command = [sys.executable, "-c", _SERVES, str(data), method]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


@pytest.mark.skipif(sys.platform != "linux", reason="the database is locked on Linux only")
@pytest.mark.parametrize("method", ["serve", "open"])
def test_a_deleted_lock_lets_no_other_broker_in(data: Path, method: str) -> None:
    """The database file is locked too."""
    directory = DataDirectory(data, 0)
    directory.serve()
    (data / "lock").unlink()
    assert "in use by another broker" in serve_elsewhere(data, method)
    directory.close()
    assert "" == serve_elsewhere(data, method)


_HOLDS = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 1 << 30)
"""


def test_a_refused_open_frees_no_lock_of_this_process(data: Path) -> None:
    """Closing a second descriptor of the file would release the locks of SQLite."""
    import fcntl

    directory = DataDirectory(data, 0)
    directory.serve()
    fcntl.lockf(
        directory.descriptors[directory.database], fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 1 << 30
    )
    (data / "lock").unlink()
    with pytest.raises(StoreError, match="in use by another broker"):
        DataDirectory(data, 0).serve()
    command = [sys.executable, "-c", _HOLDS, str(directory.database)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "BlockingIOError" in process.stderr
    directory.close()


_TAKES_THE_INDEX = """
import fcntl, sys
with open(sys.argv[1], "r+b") as index:
    fcntl.lockf(index, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 128)
"""


def test_an_open_store_keeps_its_lock_on_the_index(data: Path) -> None:
    """A process that opens a store without users truncates the index of its log.

    A broker whose index is truncated ends with SIGBUS. See `UNIX_SHM_DMS` in SQLite's os_unix.c.
    """
    store = SqliteStore(data, FakeClock(), reserve=0)
    store.open()
    command = [sys.executable, "-c", _TAKES_THE_INDEX, str(data / f"{FILE_NAME}-shm")]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    store.close()
    assert process.returncode == 1
    assert "BlockingIOError" in process.stderr


# File systems


def test_a_network_file_system_is_refused_by_name(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory is not created."""
    table = tmp_path / "mountinfo"
    table.write_text(
        f"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:9 / {tmp_path} rw - nfs4 h:/x rw\n"
    )
    monkeypatch.setattr(disk, "MOUNTS", table)
    with pytest.raises(StoreError, match=r"is on a network file system \(nfs4\)"):
        DataDirectory(data, 0).serve()
    assert not data.exists()


def test_an_expected_store_is_not_created(data: Path) -> None:
    """A disk that is not mounted leaves an empty directory, or none."""
    for _ in range(2):
        with pytest.raises(StoreError, match=r"there is no store in .*the store abc is expected"):
            DataDirectory(data, 0).serve("abc")
        assert not list(data.glob("*"))
        data.mkdir(exist_ok=True)


# Modes


@pytest.mark.usefixtures("umask")
def test_only_the_owner_can_use_the_files(data: Path) -> None:
    """The modes do not depend on the umask."""
    store = SqliteStore(data, FakeClock(), reserve=8 * MIB)
    store.open()
    modes = {path.name: mode(path) for path in data.iterdir()}
    store.close()
    assert "0o700" == mode(data)
    ends = ("", "-wal", "-shm")
    assert modes == dict.fromkeys(["lock", "ballast", *(FILE_NAME + end for end in ends)], "0o600")


def test_a_warning_about_wider_modes_names_the_command_against_them(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The modes are kept, as they may be intended."""
    directory = DataDirectory(data, 8 * MIB)
    directory.serve()
    directory.close()
    assert [] == caplog.messages
    data.chmod(0o755)
    (data / FILE_NAME).chmod(0o644)
    directory.serve()
    directory.close()
    database = data / FILE_NAME
    (message,) = caplog.messages
    assert f"{data} has mode 0755, {database} has mode 0644" in message
    assert f"to prevent that: chmod 700 {data} && chmod 600 {database}" in message
    assert ("0o755", "0o644") == (mode(data), mode(database))
