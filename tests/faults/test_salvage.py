"""Salvage: readable rows of a damaged store are copied to a new one, and losses are listed."""

from __future__ import annotations

import json
import os
import random
import shutil
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from eventmq.cli.program import program
from eventmq.errors import StoreError
from eventmq.graph import Group, Signature
from eventmq.job import IdFactory, JobRecord
from eventmq.plugins.database import DISK_FULL, all_rows, connect
from eventmq.plugins.queue_stores.sqlite.disk import FILE_NAME
from eventmq.plugins.queue_stores.sqlite.schema import buckets
from eventmq.plugins.queue_stores.sqlite.store import SqliteStore
from eventmq.plugins.queue_stores.sqlite.tools import salvage
from eventmq.plugins.queue_stores.sqlite.tools.btree import File
from eventmq.plugins.queue_stores.sqlite.tools.fsck import SqliteTools
from eventmq.store.reads import FindJobs
from eventmq.store.writes import Admit
from eventmq.testing import FakeClock
from tests.faults.script import Script, Stuck, finish, run_script
from tests.support.broker_harness import Broker, chunks, row
from tests.support.broker_harness import FakeClock as Clock
from tests.support.graph_jobs import submit
from tests.support.pages import PAGE, leaves, nodes, overwrite
from tests.support.store_rules import audit

if TYPE_CHECKING:
    from eventmq.store.reports import Salvaged

_TASK = "task:shop.add,content-type:msgpack"


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Return a data directory with 200 waiting jobs, and their ids."""
    folder = tmp_path_factory.mktemp("waiting") / "data"
    clock = FakeClock()
    store = SqliteStore(folder, clock, reserve=0)
    store.open()
    ids = IdFactory(clock).new_many(200)
    store.submit([Admit([
        JobRecord(job_id, "mail", _TASK, job_id.encode() * 9, n + 1) for n, job_id in enumerate(ids)
    ])])  # fmt: skip
    assert store.finished() == [[{}]]
    store.close()
    return folder, ids


@pytest.fixture
def folder(waiting: tuple[Path, list[str]], tmp_path: Path) -> Path:
    return shutil.copytree(waiting[0], tmp_path / "data")


@pytest.fixture
def ids(waiting: tuple[Path, list[str]]) -> list[str]:
    return waiting[1]


def salvaged(folder: Path) -> Salvaged:
    """Salvage a store into a folder beside it; check that the store itself is not changed."""
    before = {path.name: path.read_bytes() for path in folder.glob("queue*")}
    done = SqliteTools(folder / FILE_NAME, durable=True).salvage(folder.parent / "new")
    assert {path.name: path.read_bytes() for path in folder.glob("queue*")} == before
    assert [path.name for path in (folder.parent / "new").iterdir()] == [FILE_NAME]
    return done


def drained(folder: Path, queue: str = "mail") -> dict[str, bytes]:
    """Let a broker dispatch all jobs of a store; return their bodies by id."""
    broker, bodies, done = Broker(folder), dict[str, bytes](), 0
    broker.worker(queues=f'[[10, "{queue}"]]')
    while done < len(broker.dispatched):
        [(chunk, index)] = chunks(broker.dispatched[done : done + 1])
        bodies.update({entry.id: index.payload(chunk.body, entry) for entry in index.entries})
        done += 1
        broker.answer(b"worker", chunk, [row(position) for position in range(len(index.entries))])
        broker.ready(b"worker", 1, received=done)
    assert all(queue_row["waiting"] == 0 for queue_row in broker.call("queues"))
    broker.close()
    assert audit(folder) == []
    return bodies


def ids_on(path: Path, page: int) -> list[str]:
    """Return the ids of the jobs whose rows start on a page."""
    file = File(path.read_bytes())
    file._below.clear()
    return [row.values[1] for row in file.rows(page, lambda _: None)]


@pytest.mark.parametrize("content", [bytes(PAGE), b"\xff" * PAGE], ids=["zeros", "garbage"])
def test_jobs_of_a_damaged_page_are_named_and_all_others_kept(
    folder: Path, ids: list[str], content: bytes
) -> None:
    """A broker runs the jobs of the new store; the old one is refused."""
    path = folder / FILE_NAME
    page = leaves(path, "jobs")[3]
    damaged_ids = ids_on(path, page)
    assert 3 < len(damaged_ids) < 20
    overwrite(path, page, content)
    done = salvaged(folder)
    assert {lost.id for lost in done.lost if lost.id} == set(damaged_ids)
    assert [lost.table for lost in done.lost if not lost.id] == ["jobs"]
    assert (done.copied["jobs"], done.left) == (200 - len(damaged_ids), [])
    bodies = drained(Path(done.path).parent)
    assert bodies == {job_id: job_id.encode() * 9 for job_id in ids if job_id not in damaged_ids}


def test_the_new_store_is_for_its_owner_only_and_has_an_id_of_its_own(folder: Path) -> None:
    """Whatever the umask. A broker that expects the old store reports that this is a copy."""
    with closing(connect(folder / FILE_NAME, busy=1.0)) as db:
        [(store_id,)] = db.execute("SELECT value FROM meta WHERE key = 'store_id'").fetchall()
    before = os.umask(0)
    try:
        made = Path(salvaged(folder).path)
    finally:
        os.umask(before)
    assert ("0o600", "0o700") == tuple(
        oct(path.stat().st_mode & 0o777) for path in (made, made.parent)
    )
    with (
        closing(SqliteStore(made.parent, FakeClock(), reserve=0, expect_store=store_id)) as store,
        pytest.raises(StoreError, match=f"is a copy of the store {store_id}, which gets an id"),
    ):
        store.open()


@pytest.mark.parametrize("name", ["jobs", "jobs_id", "jobs_ready"])
def test_a_damaged_interior_page_loses_nothing(folder: Path, ids: list[str], name: str) -> None:
    """The pages below it are found by the pointer map; indexes are rebuilt."""
    path = folder / FILE_NAME
    for page in nodes(path, name):
        overwrite(path, page, b"\xff" * PAGE)
    done = salvaged(folder)
    assert (done.lost, done.left, done.copied["jobs"]) == ([], [], 200)
    assert set(drained(Path(done.path).parent)) == set(ids)


def test_a_damaged_index_loses_nothing(folder: Path, ids: list[str]) -> None:
    path = folder / FILE_NAME
    for page in leaves(path, "jobs_id"):
        overwrite(path, page, bytes(PAGE))
    done = salvaged(folder)
    assert (done.lost, done.left) == ([], [])
    assert set(drained(Path(done.path).parent)) == set(ids)


@pytest.mark.parametrize("page", [1, 2], ids=["header", "pointer map"])
def test_a_damaged_header_page_loses_nothing(folder: Path, page: int) -> None:
    """The first page lists the tables, the second one the parent of each page."""
    path = folder / FILE_NAME
    leaves(path, "jobs")  # now all is in the file
    overwrite(path, page, bytes(PAGE))
    done = salvaged(folder)
    assert done.copied["jobs"] == 200
    assert len(drained(Path(done.path).parent)) == 200


def test_the_rest_of_a_truncated_file_is_kept(folder: Path, ids: list[str]) -> None:
    path = folder / FILE_NAME
    data = path.read_bytes()
    path.write_bytes(data[: -8 * PAGE + 100])
    done = salvaged(folder)
    named = {lost.id for lost in done.lost if lost.table == "jobs" and lost.id}
    bodies = drained(Path(done.path).parent)
    assert 100 < len(bodies) < 200
    assert named | set(bodies) == set(ids)
    assert not named & set(bodies)
    assert bodies == {job_id: job_id.encode() * 9 for job_id in bodies}
    assert done.lost


def test_names_of_queues_are_read_from_their_index(folder: Path, ids: list[str]) -> None:
    """Without them no job could be dispatched."""
    path = folder / FILE_NAME
    overwrite(path, leaves(path, "queues")[0], bytes(PAGE))
    done = salvaged(folder)
    assert [lost.table for lost in done.lost] == ["queues"]
    assert set(drained(Path(done.path).parent)) == set(ids)


def test_altered_rows_are_left_out_and_named(folder: Path, ids: list[str]) -> None:
    with closing(connect(folder / FILE_NAME, busy=0.0)) as db:
        db.execute("UPDATE jobs SET body = x'00' WHERE seq = 7")
        db.execute("UPDATE jobs SET headers = CAST(x'ff' || headers AS TEXT) WHERE seq = 8")
    done = salvaged(folder)
    assert [(lost.table, lost.where, lost.id) for lost in done.lost] == [
        ("jobs", "row 7", ids[6]), ("jobs", "row 8", ids[7]),
    ]  # fmt: skip
    assert done.lost[0].why == "its checksum is wrong"
    assert len(drained(Path(done.path).parent)) == 198


def test_rows_whose_key_has_two_columns_are_kept_as_they_are(tmp_path: Path) -> None:
    """Of attempts and logs; the second of these columns is no number of a row."""
    script = Script(tmp_path / "data")
    run_script(script, 200)
    script.close()
    done = SqliteTools(tmp_path / "data" / FILE_NAME, durable=True).salvage(tmp_path / "new")
    ids = []
    for folder in ("data", "new"):
        with closing(connect(tmp_path / folder / FILE_NAME, busy=0.0)) as db:
            tables = ("attempts", "job_logs")
            rows = [all_rows(db, f"SELECT * FROM {table} ORDER BY 1, 2") for table in tables]
        ids.append(rows)
    assert done.lost == []
    assert ids[0] == ids[1]
    assert all(len(rows) > 3 for rows in ids[0])


def test_commits_in_the_log_are_kept(tmp_path: Path) -> None:
    """The broker was killed, so the log was not moved."""
    script = Script(tmp_path / "live")
    run_script(script, 60)
    shutil.copytree(tmp_path / "live", tmp_path / "data")
    confirmed, clock = set(script.promises.confirmed), script.clock
    script.close()
    (tmp_path / "data" / f"{FILE_NAME}-shm").unlink(missing_ok=True)
    done = SqliteTools(tmp_path / "data" / FILE_NAME, durable=True).salvage(tmp_path / "new")
    assert (done.lost, done.left) == ([], [])
    again = Script(tmp_path / "new", clock)
    again.join("second")
    finish(again)
    again.store.submit([FindJobs(sorted(confirmed))])
    [[stored]] = again.store.finished()
    assert set(stored) == confirmed
    again.close()


def test_a_lease_is_dropped_and_its_delivery_counts(tmp_path: Path) -> None:
    """The job is queued again; a later answer of its worker belongs to the old store."""
    broker = Broker(tmp_path / "data")
    job_id, _ = broker.submit()
    broker.worker()
    assert len(broker.dispatched) == 1
    broker.close()
    done = SqliteTools(tmp_path / "data" / FILE_NAME, durable=True).salvage(tmp_path / "new")
    assert done.lost == []
    other = Broker(tmp_path / "new")
    assert other.core.state.store_id != broker.core.state.store_id
    other.worker()
    [(_, index)] = chunks(other.dispatched)
    assert [(entry.id, entry.delivery) for entry in index.entries] == [(job_id, 2)]
    other.close()


def test_jobs_that_waited_for_a_lost_job_are_cancelled(tmp_path: Path) -> None:
    """A job never runs without the result that it waits for."""
    broker = Broker(tmp_path / "data")
    a, b, c = map(Signature, "abc")
    ids = submit(broker, Group((a, b)) | c)
    broker.close()
    with closing(connect(tmp_path / "data" / FILE_NAME, busy=0.0)) as db:
        db.execute("UPDATE jobs SET body = x'00' WHERE id = ?", (ids[0],))
    done = SqliteTools(tmp_path / "data" / FILE_NAME, durable=True).salvage(tmp_path / "new")
    assert [lost.id for lost in done.lost] == [ids[0]]
    other = Broker(tmp_path / "new")
    other.tick()
    other.worker()
    [(_, index)] = chunks(other.dispatched)
    assert [entry.id for entry in index.entries] == [ids[1]]
    [[_, state, _, data]] = other.call("get", ids=[ids[2]])
    assert (state, f"job {ids[0]} was lost" in str(data)) == ("cancelled", True)
    other.close()


# Refusals


def test_a_store_that_a_broker_has_open_is_refused(folder: Path) -> None:
    store = SqliteStore(folder, FakeClock(), reserve=0)
    store.open()
    with pytest.raises(StoreError, match="in use by another broker"):
        SqliteTools(folder / FILE_NAME, durable=True).salvage(folder.parent / "new")
    store.close()
    assert not (folder.parent / "new").exists()


def test_a_folder_that_is_not_empty_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "mine").write_text("mine")
    with pytest.raises(StoreError, match="is not empty"):
        SqliteTools(folder / FILE_NAME, durable=True).salvage(tmp_path / "new")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["mine"]


def test_a_store_of_another_version_is_refused_and_leaves_nothing(folder: Path) -> None:
    with closing(connect(folder / FILE_NAME, busy=0.0)) as db:
        db.execute("PRAGMA user_version = 3")
    with pytest.raises(StoreError, match="has store version 3"):
        SqliteTools(folder / FILE_NAME, durable=True).salvage(folder.parent / "new")
    assert not (folder.parent / "new").exists()


# The command


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(program, ["fsck", *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def test_the_command_lists_copied_and_lost_jobs(folder: Path, tmp_path: Path) -> None:
    path = folder / FILE_NAME
    code, output, errors = run(str(folder), "--salvage", str(tmp_path / "whole"))
    assert (code, "lost:" in output) == (0, False)
    assert str(tmp_path / "whole" / FILE_NAME) in errors
    page = leaves(path, "jobs")[3]
    damaged_ids = ids_on(path, page)
    overwrite(path, page, bytes(PAGE))
    code, output, _ = run("--data-dir", str(folder), "--salvage", str(tmp_path / "part"))
    assert code == 1
    assert f"jobs       {200 - len(damaged_ids)}     {len(damaged_ids) + 1}" in output
    assert f"lost: jobs {damaged_ids[0]} (row " in output
    code, output, _ = run(str(folder), "--json", "--salvage", str(tmp_path / "json"))
    report = json.loads(output)
    assert (code, report["copied"]["jobs"]) == (1, 200 - len(damaged_ids))
    assert {row["id"] for row in report["lost"] if row["id"]} == set(damaged_ids)
    assert run(str(tmp_path / "part"))[:2] == (0, "the store is in order\n")


@pytest.mark.parametrize(
    "arguments", [("--repair", "--salvage", "x"), ("a", "--data-dir", "b")], ids=str
)
def test_contradicting_options_are_wrong_usage(arguments: tuple[str, ...]) -> None:
    assert run(*arguments)[0] == 2


# Random damage


@pytest.mark.parametrize("seed", range(24))
def test_each_job_is_kept_unaltered_or_reported_as_lost(
    worked: tuple[Path, Any], seed: int, tmp_path: Path
) -> None:
    """With up to ten damaged pages, in a store with waiting, running and ended jobs."""
    check_salvage(worked, seed, tmp_path)


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("worked")
    script = Script(folder / "data")
    run_script(script, 100)
    script.close()
    return folder / "data", script


def check_salvage(worked: tuple[Path, Any], seed: int, folder: Path) -> Salvaged:
    """Damage a copy of a store at random, salvage it, and run the jobs of the new store."""
    source, script = worked
    data = bytearray((source / FILE_NAME).read_bytes())
    chance = random.Random(seed)
    for _ in range(chance.choice((1, 1, 2, 10))):
        offset = chance.randrange(len(data) // PAGE) * PAGE
        size = chance.choice((1, 16, PAGE))
        offset += chance.randrange(PAGE - size + 1)
        data[offset : offset + size] = chance.choice((bytes(size), chance.randbytes(size)))
    (folder / "data").mkdir()
    (folder / "data" / FILE_NAME).write_bytes(data)
    done = SqliteTools(folder / "data" / FILE_NAME, durable=True).salvage(folder / "new")
    again = Script(folder / "new", Clock(script.clock.time))
    again.join("second")
    try:
        finish(again)
    except Stuck:
        assert done.left, "unfinished jobs have to be reported"
    assert again.promises.altered == []
    db = again.store._db
    tables = ["jobs", "failed", *(f"outcomes_{n}" for n in buckets(db))]
    salvaged_ids = {
        job_id for table in tables for (job_id,) in db.execute(f"SELECT id FROM {table}")
    }
    again.close()
    missing = set(script.promises.confirmed) - salvaged_ids - {lost.id for lost in done.lost}
    # A lost job has no name if its page is gone, or if its id was altered.
    unknown = [lost for lost in done.lost if lost.id not in script.promises.intended]
    assert not missing or unknown, (missing, done.lost)
    return done


def test_a_full_disk_is_no_damage(folder: Path, tmp_path: Path, monkeypatch) -> None:
    """The log cannot be moved then: nothing is salvaged, and nothing is reported as lost."""
    clock = FakeClock()
    store = SqliteStore(folder, clock, reserve=0)
    store.open()
    ids = IdFactory(clock).new_many(20)
    store.submit(
        [Admit([JobRecord(job_id, "mail", _TASK, b"x", n) for n, job_id in enumerate(ids, 500)])]
    )
    source = shutil.copytree(folder, tmp_path / "copied")
    store.close()

    def full(*_: object) -> None:
        raise DISK_FULL("database or disk is full")

    monkeypatch.setattr(salvage, "checkpoint", full)
    with pytest.raises(StoreError, match="full"):
        SqliteTools(source / FILE_NAME, durable=True).salvage(tmp_path / "new")
    assert not (tmp_path / "new" / FILE_NAME).exists()
