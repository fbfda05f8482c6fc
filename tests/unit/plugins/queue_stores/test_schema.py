"""Stores of other versions are refused with an error, and nothing is written to them."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from eventmq.cli.program import program
from eventmq.errors import StoreError
from eventmq.job import HELD, JobRecord, JobState
from eventmq.plugins.database import all_rows, connect, first_row
from eventmq.plugins.queue_stores.sqlite import schema
from eventmq.plugins.queue_stores.sqlite.disk import FILE_NAME
from eventmq.plugins.queue_stores.sqlite.reading import SqliteEventLogReader
from eventmq.plugins.queue_stores.sqlite.store import SqliteStore
from eventmq.plugins.schedule_stores import SqliteSchedules
from eventmq.store.writes import Admit
from eventmq.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

    import apsw

#: Statements that give a store another version -> the error about it.
OTHERS = {
    "PRAGMA user_version = 9": "store version 9 with table definitions {hash},",
    "PRAGMA user_version = 12": "store version 12 with table definitions {hash},",
    "PRAGMA user_version = 2": "store version 2 with table definitions {hash},",
    "UPDATE meta SET value = '0123456789abcdef' WHERE key = 'schema'; DROP TABLE handlers;"
    "CREATE TABLE handlers (key)": "store version 1 with table definitions 0123456789abcdef,",
    "DELETE FROM meta WHERE key = 'schema'": "store version 1 with no hash of its tables,",
}


def make_store(folder: Path, *statements: str, logged: bool = False) -> None:
    """Create a store with a waiting job, run statements on it, and keep its log or not."""
    work = folder.with_name("work")
    store = SqliteStore(work, FakeClock(), reserve=0)
    store.open()
    store.submit([Admit([JobRecord("waiting", "q", "task:t", b"\x01", 1)])])
    store.close()
    db = connect(work / FILE_NAME, busy=0.0)
    for statement in statements:
        db.execute(statement)
    if not logged:
        db.close()
    folder.mkdir()
    for path in work.glob(f"{FILE_NAME}*"):
        if path.suffix != ".sqlite-shm":
            shutil.copyfile(path, folder / path.name)
    db.close()


def content(folder: Path) -> dict[str, bytes]:
    """Return the contents of a store's files, without the index of its log and empty logs."""
    contents = {path.name: path.read_bytes() for path in folder.glob(f"{FILE_NAME}*")}
    return {name: data for name, data in contents.items() if data and not name.endswith("-shm")}


def run(*arguments: str) -> str:
    """Run a command that fails, and return its error text."""
    done = CliRunner().invoke(program, arguments)
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 1
    return done.stderr


def serve(folder: Path) -> str:
    with pytest.raises(StoreError) as raised:
        SqliteStore(folder, FakeClock(), reserve=0).open()
    return str(raised.value)


def read_events(folder: Path) -> str:
    with pytest.raises(StoreError) as raised:
        SqliteEventLogReader(folder)
    return str(raised.value)


OPENINGS: dict[str, Callable[[Path], str]] = {
    "broker": serve,
    "journal": read_events,
    "fsck": lambda folder: run("fsck", str(folder)),
    "repair": lambda folder: run("fsck", str(folder), "--repair"),
    "salvage": lambda folder: run("fsck", str(folder), "--salvage", str(folder.parent / "new")),
    "backup": lambda folder: run(
        "backup", "--data-dir", str(folder), str(folder.parent / "copy.sqlite")
    ),
}


@pytest.mark.parametrize("logged", [False, True], ids=["closed", "with a log"])
@pytest.mark.parametrize(
    ("opening", "statement"),
    # A missing hash is damage, and damaged stores can be salvaged.
    [(w, s) for w in OPENINGS for s in OTHERS if w != "salvage" or "DELETE" not in s],
)
def test_a_store_of_another_version_is_refused_and_left_as_it_is(
    tmp_path: Path, opening: str, statement: str, logged: bool
) -> None:
    """The error names the store's version, the required one and the way out."""
    folder = tmp_path / "data"
    make_store(folder, statement, logged=logged)
    before = content(folder)
    message = " ".join(OPENINGS[opening](folder).split())
    hash_ = schema.SCHEMA_HASH
    expected = OTHERS[statement].format(hash=hash_)
    if opening == "salvage":  # it reads the version in the header alone
        expected = expected.replace(f"table definitions {hash_}", "no hash of its tables")
    assert expected in message
    assert f"this EventMQ needs version 1 with table definitions {hash_}" in message
    assert "work off its jobs with the EventMQ that made it" in message
    assert "or use another data directory (--data-dir)" in message
    assert content(folder) == before
    assert not list(folder.parent.glob("new*"))
    assert not (folder.parent / "copy.sqlite").exists()


def test_a_store_is_marked_with_version_and_hash_and_opens_again(tmp_path: Path) -> None:
    make_store(tmp_path / "data")
    with closing(connect(tmp_path / "data" / FILE_NAME, busy=0.0)) as db:
        assert first_row(db, "PRAGMA user_version") == (1,)
        assert first_row(db, "SELECT value FROM meta WHERE key = 'schema'") == (schema.SCHEMA_HASH,)
    store = SqliteStore(tmp_path / "data", FakeClock(), reserve=0)
    assert store.open().counts["q"].queued == 1
    store.close()


def test_the_hash_covers_all_tables_and_ignores_spaces(tmp_path: Path) -> None:
    """The hash covers each table that a broker creates."""
    store = SqliteStore(tmp_path, FakeClock(), reserve=0)
    store.open()
    store.engine.tables.period(0.0)
    sql = "SELECT name FROM sqlite_master WHERE sql IS NOT NULL AND name NOT GLOB 'sqlite_*'"
    names = {name for (name,) in all_rows(store._db, sql)}
    store.close()
    statements = (
        schema._TABLES, schema.bucket_ddl(0), schema.bucket_index(0), schema.FORMULA,
    )  # fmt: skip
    text = " ".join(statements).replace('"', "")
    missing = [name for name in names if f" {name} " not in text]
    assert missing == []
    spaced = (text.replace(" ", "\n  ") for text in statements)
    assert schema.definitions_hash(*spaced) == schema.SCHEMA_HASH
    for changed in range(len(statements)):
        other = [text + (" x" if n == changed else "") for n, text in enumerate(statements)]
        assert schema.definitions_hash(*other) != schema.SCHEMA_HASH


def test_a_store_whose_hash_alone_is_damaged_is_salvaged(tmp_path: Path) -> None:
    make_store(tmp_path / "data", "UPDATE meta SET value = 'damaged' WHERE key = 'schema'")
    done = CliRunner().invoke(
        program, ["fsck", str(tmp_path / "data"), "--salvage", str(tmp_path / "new")]
    )
    assert done.exit_code == 0, done.output
    store = SqliteStore(tmp_path / "new", FakeClock(), reserve=0)
    assert store.open().counts["q"].queued == 1
    store.close()


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("PRAGMA user_version = 2", "it has version 2 with table definitions "),
        ("DELETE FROM beats WHERE key = 'schema'", "it has version 1 with no hash of its tables, "),
        (
            "UPDATE beats SET value = 'other' WHERE key = 'schema'",
            "it has version 1 with table definitions other, this EventMQ needs version 1 with ",
        ),
    ],
)
def test_schedules_of_another_version_are_refused_and_left_as_they_are(
    tmp_path: Path, statement: str, expected: str
) -> None:
    path = tmp_path / "schedules.sqlite"
    SqliteSchedules(path, FakeClock()).close()
    SqliteSchedules(path, FakeClock()).close()
    with closing(connect(path, busy=0.0)) as db:
        db.execute(statement)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="define the schedules again") as raised:
        SqliteSchedules(path, FakeClock())
    assert expected in str(raised.value)
    assert path.read_bytes() == before


def test_orphans_are_released_without_reading_all_jobs(tmp_path):
    """Each start searches for such jobs, however many jobs wait."""
    store = SqliteStore(tmp_path, FakeClock(), reserve=0)
    store.open()
    job = JobRecord(
        "j1", "q", "task:t,unique:key", b"", 1, state=JobState.DELAYED, ready_at=HELD + 5.0
    )
    store.submit([Admit([job])])
    plans: list[str] = []

    def explain(cursor: apsw.Cursor, sql: str, bindings: tuple[Any, ...]) -> bool:
        if not sql.startswith("EXPLAIN"):
            rows = all_rows(cursor.connection, f"EXPLAIN QUERY PLAN {sql}", bindings)
            plans.extend(row[3] for row in rows)
        return True

    store._db.exec_trace = explain
    store.engine.writes.unique.release_orphans()
    store._db.exec_trace = None
    released = first_row(store._db, "SELECT ready_at FROM jobs")
    store.close()
    assert released == (5.0,)
    assert plans
    assert [plan for plan in plans if "jobs_held" not in plan and "SEARCH" not in plan] == []


#: Statements that turn a store of this version into one of an earlier version.
_EARLIER = (
    "ALTER TABLE suspects RENAME TO poison",
    "UPDATE meta SET value = 'earlier' WHERE key = 'schema'",
)


def example_migrations(*, second_fails: bool = False) -> dict[int, schema.Migration]:
    """Return a step from version 1, which renames a table, and one from version 2."""

    def add_note(db):
        db.execute("INSERT INTO meta VALUES ('note', 'changed twice')")
        if second_fails:
            raise RuntimeError("the machine stops here")

    return {
        1: schema.Migration(
            "earlier", lambda db: db.execute("ALTER TABLE poison RENAME TO suspects")
        ),
        2: schema.Migration("between", add_note),
    }


@pytest.fixture
def version_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(schema, "MIGRATIONS", example_migrations())


@pytest.mark.usefixtures("version_3")
@pytest.mark.parametrize("logged", [False, True], ids=["closed", "with a log"])
def test_a_broker_migrates_a_store_of_an_earlier_version_step_by_step(
    tmp_path: Path, logged: bool
) -> None:
    make_store(tmp_path / "data", *_EARLIER, "PRAGMA user_version = 1", logged=logged)
    for _ in range(2):  # the second time there is nothing to change
        store = SqliteStore(tmp_path / "data", FakeClock(), reserve=0)
        assert store.open().counts["q"].queued == 1
        rows = dict(all_rows(store._db, "SELECT key, value FROM meta"))
        assert (rows["schema"], rows["note"]) == (schema.SCHEMA_HASH, "changed twice")
        assert first_row(store._db, "PRAGMA user_version") == (3,)
        store.close()


@pytest.mark.usefixtures("version_3")
def test_a_step_that_fails_leaves_the_store_at_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(tmp_path / "data", *_EARLIER, "PRAGMA user_version = 1")
    monkeypatch.setattr(schema, "MIGRATIONS", example_migrations(second_fails=True))
    with pytest.raises(RuntimeError, match="stops here"):
        SqliteStore(tmp_path / "data", FakeClock(), reserve=0).open()
    with closing(connect(tmp_path / "data" / FILE_NAME, busy=0.0)) as db:
        assert first_row(db, "PRAGMA user_version") == (1,)
        assert all_rows(db, "SELECT value FROM meta WHERE key IN ('note', 'schema')") == [
            ("earlier",)
        ]
        assert first_row(db, "SELECT 1 FROM sqlite_master WHERE name = 'poison'")
    monkeypatch.setattr(schema, "MIGRATIONS", example_migrations())
    store = SqliteStore(tmp_path / "data", FakeClock(), reserve=0)
    assert store.open().counts["q"].queued == 1
    store.close()


@pytest.mark.usefixtures("version_3")
@pytest.mark.parametrize("opening", ["journal", "fsck", "backup"])
def test_readers_ask_for_a_broker_that_migrates_the_store(tmp_path: Path, opening: str) -> None:
    make_store(tmp_path / "data", *_EARLIER, "PRAGMA user_version = 1")
    before = content(tmp_path / "data")
    message = " ".join(OPENINGS[opening](tmp_path / "data").split())
    assert (
        "has store version 1: start a broker on it once, which changes it to version 3" in message
    )
    assert content(tmp_path / "data") == before


@pytest.mark.usefixtures("version_3")
@pytest.mark.parametrize("version", [0, 2, 4])
def test_a_version_without_a_matching_step_is_refused(tmp_path: Path, version: int) -> None:
    """The tables of version 2 do not match its step; version 4 is newer."""
    make_store(tmp_path / "data", *_EARLIER, f"PRAGMA user_version = {version}")
    assert f"it has store version {version} with" in serve(tmp_path / "data")
