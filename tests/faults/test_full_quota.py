"""A store after a crash, on a full disk that is simulated by a quota.

`test_full_disk` tests the same with a broker, a worker and a small file system.
"""

from __future__ import annotations

import re
import shutil
from contextlib import closing
from typing import TYPE_CHECKING

import apsw
import pytest

from eventmq.errors import QueueFull, StoreError
from eventmq.job import IdFactory, JobRecord, JobState
from eventmq.plugins.queue_stores.sqlite.disk import FILE_NAME
from eventmq.plugins.queue_stores.sqlite.store import SqliteStore
from eventmq.store.writes import Admit, Finish, Finished, WriteResult
from eventmq.testing import FakeClock
from tests.faults.quota import Quota

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import Any

MIB = 1024 * 1024

#: Jobs, and bytes of each.
JOBS, SIZE = 36, 100_000

#: Bytes of the reserve; an eighth of it is the ballast.
RESERVE = 64 * MIB

#: Bytes that are left free on the disk.
THREE_BLOCKS = 3 * 4096


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def jobs(clock: FakeClock) -> list[JobRecord]:
    new_id = IdFactory(clock).new
    return [
        JobRecord(new_id(), "q", "task:t", bytes(SIZE), number, number, created=clock.now())
        for number in range(1, JOBS + 1)
    ]


@pytest.fixture
def crashed(tmp_path: Path, clock: FakeClock, jobs: list[JobRecord]) -> Path:
    """Return the directory of a killed broker, with its files at that time."""
    with closing(SqliteStore(tmp_path / "was", clock, reserve=RESERVE)) as store:
        store.open()
        for job in jobs:
            assert [[{}]] == commit(store, Admit([job]))
        shutil.copytree(tmp_path / "was", tmp_path / "data")
    (tmp_path / "data" / f"{FILE_NAME}-shm").unlink()
    return tmp_path / "data"


@pytest.fixture
def quota(crashed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Quota]:
    """Return the quota of that directory, with three blocks free."""
    quota = Quota(crashed, 0)
    quota.limit = quota.used() + THREE_BLOCKS
    quota.install(monkeypatch)
    yield quota
    quota.unregister()


def commit(store: SqliteStore, write: Any) -> Sequence[Any]:
    store.submit([write])
    return store.finished()


def end(job: JobRecord, now: float) -> Finish:
    ended = Finished(job, JobState.SUCCEEDED, now, 60.0, "json", b"r", now - 2.0, 1.5, "worker")
    return Finish([ended])


def work_off(store: SqliteStore, jobs: list[JobRecord], now: float) -> None:
    """Finish all jobs; none may be refused."""
    for job in jobs:
        assert [[{}]] == commit(store, end(job, now))


def test_a_store_opens_with_its_ballast_and_its_jobs_can_end(
    quota: Quota, crashed: Path, clock: FakeClock, jobs: list[JobRecord]
) -> None:
    """New jobs are refused, and no job is lost."""
    with closing(SqliteStore(crashed, clock, reserve=RESERVE, vfs=quota.NAME)) as store:
        recovered = store.open()
        assert not (crashed / "ballast").exists()
        assert [JOBS] == [counts.queued for counts in recovered.counts.values()]
        assert [[{0: WriteResult("full", "the disk is nearly full")}]] == commit(
            store, Admit(jobs[:1])
        )
        work_off(store, jobs, clock.now())
    assert quota.used() <= quota.limit


def test_without_a_ballast_the_error_names_the_space_needed(
    quota: Quota, crashed: Path, clock: FakeClock, jobs: list[JobRecord]
) -> None:
    """With so much freed it opens; the refused start has lost nothing."""
    quota.limit -= (crashed / "ballast").stat().st_size
    (crashed / "ballast").unlink()
    with closing(SqliteStore(crashed, clock, reserve=RESERVE, vfs=quota.NAME)) as store:
        with pytest.raises(StoreError, match=r"data is full: free \d+ MiB there") as raised:
            store.open()
        match = re.search(r"free (\d+) MiB", str(raised.value))
        assert match
        quota.limit += int(match[1]) * MIB
        recovered = store.open()
        assert [JOBS] == [counts.queued for counts in recovered.counts.values()]
        work_off(store, jobs, clock.now())


def test_an_index_that_cannot_grow_is_a_full_disk_only_where_it_is_full(
    quota: Quota, crashed: Path, clock: FakeClock
) -> None:
    """SQLite has one error for both; if there is space, something else is wrong."""
    error = apsw.IOError("disk I/O error")
    error.extendedresult = apsw.SQLITE_IOERR_SHMSIZE
    with closing(SqliteStore(crashed, clock, reserve=RESERVE, vfs=quota.NAME)) as store:
        store.open()
        assert quota.free() > MIB
        assert isinstance(store._failure(error), StoreError)
        quota.limit = quota.used() + THREE_BLOCKS
        assert isinstance(store._failure(error), QueueFull)


def test_jobs_end_as_soon_as_there_is_space_again(
    quota: Quota, crashed: Path, clock: FakeClock, jobs: list[JobRecord]
) -> None:
    """A commit without space is refused whole, and the store stays usable."""
    with closing(SqliteStore(crashed, clock, reserve=RESERVE, vfs=quota.NAME)) as store:
        store.open()
        limit, quota.limit = quota.limit, quota.used()
        write_results = [commit(store, end(job, clock.now()))[0] for job in jobs]
        refused = [isinstance(write_result, QueueFull) for write_result in write_results]
        assert any(refused)
        assert all(
            full or write_result == [{}]
            for full, write_result in zip(refused, write_results, strict=True)
        )
        quota.limit = limit
        remaining = [job for job, full in zip(jobs, refused, strict=True) if full]
        work_off(store, remaining, clock.now())
