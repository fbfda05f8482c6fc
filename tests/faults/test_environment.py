"""Store files that are deleted, moved or replaced under a running broker.

Every job with a receipt is in the original files, and the broker ends with one sentence. Deleted
files have a second name, under which the tests read them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from typing import TYPE_CHECKING

import pytest

from eventmq.errors import EventMQError
from eventmq.plugins.database import open_to_read
from eventmq.plugins.queue_stores.sqlite.disk import FILE_NAME
from tests.support.shell import Shell
from tests.support.system import System, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.system import Process

#: Seconds until a broker must have ended; it takes 2, and the machine may be slow.
ENDS_WITHIN = 10.0

#: Arguments of a broker in the folder of a test.
HERE = ("--bind", "tcp://127.0.0.1:0", "--data-dir", "data")

SENTENCE = "error: the store was moved or removed under the running broker, which now stops: "


def keep(data: Path, links: Path) -> Path:
    """Link the database and its log into a second folder; return it."""
    links.mkdir()
    for name in (FILE_NAME, f"{FILE_NAME}-wal"):
        os.link(data / name, links / name)
    return links


def delete_database(data: Path) -> Path:
    links = keep(data, data.with_name("kept"))
    for path in data.glob(f"{FILE_NAME}*"):
        path.unlink()
    return links


def delete_directory(data: Path) -> Path:
    links = keep(data, data.with_name("kept"))
    shutil.rmtree(data)
    return links


def delete_lock(data: Path) -> Path:
    (data / "lock").unlink()
    return data


def put_back_a_backup(data: Path) -> Path:
    Shell(data.parent).output("backup", "copy", "--data-dir", "data")
    data.rename(data.with_name("old"))
    data.with_name("copy").rename(data)
    return data.with_name("old")


def leave_the_mount_point(data: Path) -> Path:
    """Put an empty directory in its place, like an unmounted disk."""
    data.rename(data.with_name("disk"))
    data.mkdir()
    return data.with_name("disk")


HARMS: dict[str, Callable[[Path], Path]] = {
    "database deleted": delete_database,
    "directory deleted": delete_directory,
    "lock deleted": delete_lock,
    "backup put back": put_back_a_backup,
    "unmounted": leave_the_mount_point,
}


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    system = System(tmp_path)
    yield system
    system.stop()


class Submitter:
    """Client that submits one job after another, and records the ids with a receipt."""

    def __init__(self, system: System) -> None:
        self.confirmed: list[str] = []
        self._app = system.app(submit_timeout=2.0)
        self._thread = threading.Thread(target=self._run)

    def start(self, count: int) -> None:
        """Start, and wait for so many receipts."""
        self._thread.start()
        until(lambda: len(self.confirmed) >= count, "the first receipts")

    def _run(self) -> None:
        with contextlib.suppress(EventMQError):
            while True:
                self.confirmed.append(self._app.send("survivor.work", (len(self.confirmed),)).id)

    def join(self) -> list[str]:
        """Wait until a job gets no receipt; return the ids of those that got one."""
        self._thread.join()
        return self.confirmed


def stored(folder: Path) -> set[str]:
    """Return the ids of the jobs in the files of a store."""
    with contextlib.closing(open_to_read(folder / FILE_NAME)) as db:
        return {job_id for (job_id,) in db.execute("SELECT id FROM jobs")}


def ended(system: System, broker: Process) -> str:
    """Wait until a broker has ended; return its one line of error."""
    assert 1 == broker.wait(ENDS_WITHIN)
    log = (system.folder / "broker.log").read_text()
    assert "Traceback" not in log
    errors = [line for line in log.splitlines() if " INFO " not in line]
    assert 1 == len(errors), log
    return errors[0]


@pytest.mark.parametrize("damage", HARMS)
def test_no_receipt_is_given_for_a_job_in_removed_files(system: System, damage: str) -> None:
    """Under load, each confirmed job is in the original files."""
    broker = system.broker()
    submitter = Submitter(system)
    submitter.start(50)
    links = HARMS[damage](system.folder / "data")
    assert ended(system, broker).startswith(SENTENCE)
    confirmed = submitter.join()
    assert len(confirmed) >= 50
    assert set(confirmed) <= stored(links)


@pytest.mark.parametrize("damage", HARMS)
def test_an_idle_broker_notices_removed_files_too(system: System, damage: str) -> None:
    """It checks once a second, so that the next client is not served from removed files."""
    broker = system.broker()
    system.app().ask("ping")  # its first commit, of its addresses, is done
    HARMS[damage](system.folder / "data")
    assert ended(system, broker).startswith(SENTENCE)


@pytest.mark.skipif(os.uname().sysname != "Linux", reason="the database is locked on Linux only")
def test_a_deleted_lock_admits_no_second_broker(system: System) -> None:
    """The database itself is locked. The first broker is stopped, so that it cannot end before."""
    first = system.broker()
    first.freeze()
    (system.folder / "data" / "lock").unlink()
    code, second = Shell(system.folder).error("broker", *HERE)
    assert 1 == code
    assert "is in use by another broker" in second


# Setting expect_store


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    shell.close()


def make_store(shell: Shell, data: str = "data") -> str:
    """Run a broker once; return the id of its store."""
    broker = shell.start("broker", *HERE[:2], "--data-dir", data)
    store_id = broker.ready()["store"]
    assert 0 == broker.stop()
    return store_id


def test_a_broker_ends_if_its_expected_store_is_missing(shell: Shell) -> None:
    """It makes no store, so that the next start ends too."""
    (shell.folder / "data").mkdir()
    code, error = shell.error("broker", *HERE, "--expect-store", "0123456789abcdef")
    assert 1 == code
    assert error.startswith("there is no store in data, and the store 0123456789abcdef is expected")
    assert [] == list((shell.folder / "data").iterdir())


def test_a_broker_ends_if_it_finds_another_store(shell: Shell) -> None:
    """That store is not changed, not even its epoch."""
    store_id = make_store(shell)
    code, error = shell.error("broker", *HERE, "--expect-store", "0123456789abcdef")
    assert 1 == code
    assert f"has the id {store_id}, and expect_store says 0123456789abcdef" in error
    broker = shell.start("broker", *HERE, "--expect-store", store_id)
    ready = broker.ready()
    assert (store_id, "2") == (ready["store"], ready["epoch"])
    assert 0 == broker.stop()


def test_the_expected_store_can_be_set_by_a_variable(shell: Shell) -> None:
    """Like any setting; a store in memory never has the expected id."""
    shell.environ["EVENTMQ_EXPECT_STORE"] = "0123456789abcdef"
    code, error = shell.error("broker", *HERE)
    assert (1, True) == (code, "is expected" in error)
    code, error = shell.error("broker", *HERE, "--durability", "memory")
    assert (1, True) == (code, "expect_store says 0123456789abcdef" in error)


def test_a_restored_backup_has_another_id_which_the_error_names(shell: Shell) -> None:
    """Before its first start, when its id is not known yet, and afterwards."""
    original = make_store(shell)
    shell.output("backup", "copy", "--data-dir", "data")
    start = ("broker", *HERE[:2], "--data-dir", "copy")
    code, error = shell.error(*start, "--expect-store", original)
    assert 1 == code
    assert f"is a copy of the store {original}, which gets an id of its own" in error
    restored = make_store(shell, "copy")
    assert original != restored
    code, error = shell.error(*start, "--expect-store", original)
    assert 1 == code
    assert f"has the id {restored} (it was a copy of the store {original})" in error
    broker = shell.start(*start, "--expect-store", restored)
    assert restored == broker.ready()["store"]
    assert 0 == broker.stop()


def test_a_new_store_is_logged(shell: Shell) -> None:
    """Once, with its id: after a reboot it shows that the disk is missing."""
    broker = shell.start("broker", *HERE)
    store_id = broker.ready()["store"]
    assert 0 == broker.stop()
    assert (
        f"there was no store in data: a new one was made, and its id is {store_id}" in broker.text
    )
    broker = shell.start("broker", *HERE)
    broker.ready()
    assert 0 == broker.stop()
    assert "a new one was made" not in broker.text
