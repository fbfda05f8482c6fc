"""The folders of Spark: those of killed processes are removed, and no others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest

from eventmq_contrib.spark.scratch import make_scratch, scratch_root
from tests.support.page_files import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.contrib.spark.conftest import Followed

#: Makes a folder, prints its name, and holds it until it is ended.
_OWNER = """
import sys
from eventmq_contrib.spark.scratch import make_scratch
print(make_scratch(), flush=True)
sys.stdin.read()
"""


class Owner:
    """Another process with a folder."""

    def __init__(self, tmp: Path) -> None:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _OWNER], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        self.folder = tmp / self.process.stdout.readline().decode().strip()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder, also of this process."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def owners(tmp: Path) -> Iterator[list[Owner]]:
    owners = [Owner(tmp) for _ in range(3)]
    yield owners
    for owner in owners:
        owner.kill()


def test_the_folders_of_killed_processes_are_removed_and_no_others(owners: list[Owner]) -> None:
    """Whatever is in them."""
    for owner in owners:
        (owner.folder / "blockmgr-1" / "0c").mkdir(parents=True)
        (owner.folder / "blockmgr-1" / "0c" / "shuffle").write_bytes(b"x")
    killed, *alive = owners
    killed.kill()
    own = make_scratch()
    there = {path for path in scratch_root().iterdir() if path.is_dir()}
    assert there == {own, *(owner.folder for owner in alive)}
    assert all((owner.folder / "blockmgr-1" / "0c" / "shuffle").exists() for owner in alive)


def test_a_process_keeps_each_of_its_own(tmp: Path) -> None:
    """Until it ends: each JVM that it starts has another."""
    first = make_scratch()
    second = make_scratch()
    assert first != second
    assert first.is_dir()
    assert scratch_root().stat().st_mode & 0o777 == 0o700


def test_a_folder_that_was_being_made_is_removed(tmp: Path) -> None:
    """It has no lock: its maker was killed before it had one."""
    make_scratch()
    (scratch_root() / "9-half").mkdir()
    make_scratch()
    assert not (scratch_root() / "9-half").exists()


def test_the_folder_of_another_user_is_not_touched(
    tmp: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor a link, which may lead anywhere: a folder beside it is taken."""
    (tmp / "elsewhere").mkdir()
    (tmp / "elsewhere" / "precious").mkdir()
    scratch_root().symlink_to(tmp / "elsewhere")
    folder = make_scratch()
    assert folder.parent == tmp
    assert (tmp / "elsewhere" / "precious").is_dir()
    assert "is not a folder of this user" in caplog.text


def test_what_a_killed_spark_leaves_is_removed_by_the_next_start(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its JVM, by -9, at work: nothing of it is elsewhere in the temporary folder."""
    followed.kill_at_work()
    tmp = followed.folder / "tmp"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp))
    kinds = {path.name.partition("-")[0] for path in scratch_root().glob("*/*")}
    assert kinds >= {"blockmgr", "artifacts"}
    assert {path.name.partition("-")[0] for path in tmp.iterdir()} == {"eventmq"}
    own = make_scratch()
    assert [path for path in scratch_root().iterdir() if path.is_dir()] == [own]
