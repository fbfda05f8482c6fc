"""Findings and repairs of fsck, and that a sound store has none."""

from __future__ import annotations

import json
import os
import shutil
import time
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from eventmq.cli.program import program
from eventmq.errors import StoreError
from eventmq.plugins.database import all_rows, change, connect
from eventmq.plugins.queue_stores.sqlite.checksums import JOB_CRC, JOB_HEAD, add_checksums
from eventmq.plugins.queue_stores.sqlite.disk import FILE_NAME
from eventmq.plugins.queue_stores.sqlite.reading import SqliteEventLogReader
from eventmq.plugins.queue_stores.sqlite.store import SqliteStore
from eventmq.plugins.queue_stores.sqlite.tools.fsck import SqliteTools
from eventmq.plugins.queue_stores.sqlite.tools.rules import RULES
from eventmq.testing import FakeClock
from tests.faults.script import Script, run_script


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data directory in which jobs of all kinds wait, run, and have ended."""
    folder = tmp_path_factory.mktemp("worked") / "data"
    script = Script(folder)
    run_script(script, 200)
    script.close()
    return folder


@pytest.fixture
def folder(worked: Path, tmp_path: Path) -> Path:
    return shutil.copytree(worked, tmp_path / "data")


def tools_of(folder: Path) -> SqliteTools:
    return SqliteTools(folder / FILE_NAME, durable=True)


def damage(folder: Path, sql: str) -> None:
    with closing(connect(folder / FILE_NAME, busy=0.0)) as db:
        add_checksums(db)
        assert change(db, sql) > 0, "the store has none of these"


def test_a_sound_store_has_no_findings(folder: Path) -> None:
    """Even with a log that no broker has moved yet."""
    assert tools_of(folder).check() == []
    store = SqliteStore(folder, FakeClock(), reserve=0)
    store.open()
    assert tools_of(folder).check() == [], "a broker may have it open"
    store.close()


_A_JOB = "(SELECT min(seq) FROM jobs WHERE state = 2)"

#: Damage -> the checks that find it, and whether a repair mends it.
DAMAGE = {
    "UPDATE queues SET waiting = waiting + 3": ({"counts"}, True),
    "UPDATE queues SET failed = 0": ({"counts"}, True),
    "UPDATE queues SET blocked = -1": ({"counts"}, True),
    "UPDATE meta SET value = 7 WHERE key = 'failed_bytes'": ({"bytes"}, True),
    "UPDATE jobs SET subqueue = 99 WHERE state = 2": ({"subqueues"}, True),
    "DELETE FROM subqueues": ({"subqueues"}, True),
    "UPDATE jobs SET unique_key = 'other' WHERE unique_key IS NOT NULL": ({"keys"}, True),
    "UPDATE jobs SET unique_key = CAST(x'ff' AS TEXT) WHERE unique_key IS NOT NULL": (
        {"keys"}, True,
    ),
    "UPDATE jobs SET unique_key = NULL WHERE unique_key IS NOT NULL": ({"keys"}, True),
    "UPDATE failed SET unique_key = 'other' WHERE seq = (SELECT min(seq) FROM failed)": (
        {"keys"}, True,
    ),
    "INSERT INTO attempts VALUES ('gone', 1, 1, 1.0, 1.0, 1.0, 1, 'json', x'', 0,"
    " data_crc(id_crc('gone'), 'json', x''))": ({"orphans"}, True),
    "INSERT INTO job_logs VALUES ('gone', 1, 1.0, 1.0, 0,"
    " data_crc(id_crc('gone'), '1', x'00'), x'00')": ({"orphans"}, True),
    "UPDATE graphs SET remaining = remaining + 1 WHERE ended = 0": ({"graph-counts"}, True),
    "DELETE FROM graphs WHERE ended = 0": ({"graph-rows", "orphans"}, True),
    "UPDATE joins SET remaining = remaining + 1": ({"join-counts"}, True),
    "DELETE FROM join_arguments": ({"join-arguments"}, False),
    "DELETE FROM joins": ({"blocked", "orphans"}, False),
    "UPDATE nodes SET output = 0 WHERE output > 0": ({"stuck"}, False),
    "INSERT INTO member_results VALUES (88888, 88888, 'x', 'json', x'00',"
    " data_crc(id_crc('x'), 'json', x'00'))": ({"orphans"}, True),
    "INSERT INTO inputs VALUES ('gone', 1, 1, 1, 9)": ({"orphans"}, True),
    "INSERT INTO handlers VALUES (88888, 88888, 1, 2)": ({"orphans"}, True),
    "INSERT INTO nodes VALUES (88888, 'x', 88888, 0, 0, 0)": ({"orphans"}, True),
    "DELETE FROM nodes WHERE key = (SELECT max(seq) FROM jobs WHERE state = 0)": (
        {"blocked"}, False,
    ),
    "UPDATE nodes SET id = 'x' WHERE key = (SELECT max(seq) FROM jobs WHERE state = 0)": (
        {"graph-jobs"}, False,
    ),
    f"UPDATE jobs SET state = 7 WHERE seq = {_A_JOB}": ({"values", "counts"}, False),
    f"UPDATE jobs SET queue = 9 WHERE seq = {_A_JOB}": (
        {"checksums", "counts", "subqueues"}, False,
    ),
    f"UPDATE jobs SET body = x'00' WHERE seq = {_A_JOB}": ({"checksums"}, False),
    f"UPDATE jobs SET crc = 7 WHERE seq = {_A_JOB}": ({"checksums"}, False),
    "UPDATE queues SET name = 'other' WHERE id = 1": ({"checksums"}, False),
    "UPDATE failed SET result = x'00' WHERE seq = (SELECT min(seq) FROM failed)": (
        {"checksums"}, False,
    ),
    "UPDATE attempts SET error = x'00'": ({"checksums"}, False),
    "UPDATE job_logs SET body = x'00'": ({"checksums"}, False),
    "UPDATE join_arguments SET crc = 7": ({"checksums"}, False),
    "UPDATE failed SET state = 2 WHERE seq = (SELECT min(seq) FROM failed)": ({"values"}, False),
    f"UPDATE jobs SET rank = 'x' WHERE seq = {_A_JOB}": ({"values"}, False),
    f"UPDATE jobs SET headers = 'unique:a,unique-mode:x' WHERE seq = {_A_JOB}": (
        {"checksums"}, False,
    ),
    "INSERT INTO failed SELECT seq + 50000, id, queue, 1, 5, 1, 1, 0, 1.0, 1.0, 1.0, 0.0, "
    "head_crc, crc, data_crc(head_crc, 'json', x'00'), 1.0, 'json', 1.0, 1.0, 1, 0, NULL, '', '', "
    "headers, body, x'00' FROM jobs LIMIT 1": ({"counts", "labels"}, True),
    "UPDATE failed SET error = 'x' WHERE seq = (SELECT min(seq) FROM failed)": ({"labels"}, True),
    "UPDATE failed SET task = 'x' WHERE seq = (SELECT min(seq) FROM failed)": ({"labels"}, True),
    "DELETE FROM names": ({"checksums"}, False),
    "UPDATE events SET body = x'c1' WHERE first = 1": ({"event-bodies"}, False),
    "DELETE FROM events WHERE first = (SELECT first FROM events LIMIT 1 OFFSET 2)": (
        {"event-numbers"}, False,
    ),
    "UPDATE events SET first = first + 100000 WHERE first = 1": ({"event-numbers"}, False),
    "DELETE FROM meta WHERE key IN ('store_id', 'epoch')": ({"meta"}, True),
    "UPDATE meta SET value = 7 WHERE key = 'store_id'": ({"meta"}, True),
    "UPDATE meta SET value = 'x' WHERE key = 'epoch'": ({"meta"}, True),
    "UPDATE meta SET value = x'c1' WHERE key = 'clock'": ({"clock"}, True),
    "UPDATE chunks SET leases = x'c1'": ({"chunks"}, False),
    "INSERT INTO bulk_operations VALUES (1, 'x', x'c1', 1.0, 1, 1, 0, 0)": (
        {"bulk-operations"}, False,
    ),
    "UPDATE schedule_counts SET value = 5 WHERE key = 'live'": ({"schedule-counts"}, True),
    "INSERT INTO schedules VALUES ('x', 1, 1, 0, '', NULL, NULL, '', x'c1', 7)": (
        {"checksums", "schedule-counts"}, False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("sql", DAMAGE)
def test_damage_is_found_and_repaired_where_that_is_safe(folder: Path, sql: str) -> None:
    checks, repairable = DAMAGE[sql]
    damage(folder, sql)
    tools = tools_of(folder)
    findings = tools.check()
    assert {finding.check for finding in findings} == checks
    assert all(finding.found and finding.means and finding.help for finding in findings)
    repaired = tools.repair()
    assert bool(repaired.left) is not repairable, repaired
    assert list(repaired.left) == tools.check()
    if repaired.done:
        before = shutil.copytree(repaired.kept, folder.parent / "before")
        assert {finding.check for finding in tools_of(before).check()} == checks


@pytest.mark.parametrize("value", ["NULL", "x'00'"])
def test_a_repaired_store_has_an_epoch_that_no_peer_has_seen(folder: Path, value: str) -> None:
    """Numbers of earlier deliveries must not be accepted as results of the next run."""
    damage(folder, f"UPDATE meta SET value = {value} WHERE key IN ('epoch', 'store_id')")
    repaired = tools_of(folder).repair()
    assert repaired.done == [
        "meta: 2 entries that every store has are missing or damaged: store_id, epoch"
    ]
    store = SqliteStore(folder, FakeClock(), reserve=0)
    saved = store.open()
    store.close()
    assert saved.epoch > 1_700_000_000
    assert len(bytes.fromhex(saved.store_id)) == 8


def test_a_graph_whose_row_is_lost_is_made_again_from_its_nodes(folder: Path) -> None:
    """With its size and unfinished jobs, and with its handlers and deadlines."""
    sql = {
        name: f"SELECT * FROM {name} ORDER BY key"
        for name in ("graphs", "nodes", "handlers", "deadlines", "joins")
    }
    with closing(connect(folder / FILE_NAME, busy=0.0)) as db:
        before = {name: all_rows(db, select) for name, select in sql.items()}
    damage(folder, "DELETE FROM graphs WHERE ended = 0")
    assert tools_of(folder).repair().left == []
    with closing(connect(folder / FILE_NAME, busy=0.0)) as db:
        assert {name: all_rows(db, select) for name, select in sql.items()} == before


def test_the_copy_that_a_repair_makes_is_private(folder: Path) -> None:
    """As the store is, whatever the umask is."""
    damage(folder, "UPDATE schedule_counts SET value = 5 WHERE key = 'live'")
    before = os.umask(0)
    try:
        copy = Path(tools_of(folder).repair().kept)
    finally:
        os.umask(before)
    assert "0o700" == oct(copy.stat().st_mode & 0o777)
    assert {"0o600"} == {oct(path.stat().st_mode & 0o777) for path in copy.iterdir()}


def test_every_check_is_tried() -> None:
    """Each check has a damage in this file that it finds."""
    assert {rule.name for rule in RULES} == set().union(*(checks for checks, _ in DAMAGE.values()))


def test_a_wrong_index_is_rebuilt(folder: Path) -> None:
    """It is made from the table, so nothing is lost."""
    db = connect(folder / FILE_NAME, busy=0.0)
    (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'failed_at'").fetchone()
    db.execute("PRAGMA writable_schema = ON")
    db.execute("UPDATE sqlite_master SET sql = sql || ' WHERE seq < 0' WHERE name = 'failed_at'")
    db.execute("PRAGMA writable_schema = RESET")
    db.execute("REINDEX failed_at")  # now it is empty
    db.execute("PRAGMA writable_schema = ON")
    sql = "UPDATE sqlite_master SET sql = replace(sql, ' WHERE seq < 0', '') WHERE rootpage = ?"
    db.execute(sql, (page,))
    db.close()
    [finding] = tools_of(folder).check()
    assert (finding.check, finding.repairable) == ("indexes", True)
    assert "failed_at" in finding.found
    assert tools_of(folder).repair().left == []


def test_a_broken_page_is_named_with_its_table(folder: Path) -> None:
    """It cannot be repaired, and nothing is written."""
    path = folder / FILE_NAME
    db = connect(path, busy=0.0)
    db.execute("PRAGMA journal_mode = DELETE")
    (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'jobs'").fetchone()
    db.close()
    data = bytearray(path.read_bytes())
    data[(page - 1) * 4096 : page * 4096] = bytes(4096)
    path.write_bytes(data)
    findings = tools_of(folder).check()
    assert findings[0].check == "pages"
    assert "jobs" in findings[0].found
    assert not findings[0].repairable
    assert tools_of(folder).repair()[:2] == ("", [])
    assert path.read_bytes()[(page - 1) * 4096 : page * 4096] == bytes(4096)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data directory whose broker was killed: all that it did is in the log."""
    folder = tmp_path_factory.mktemp("killed")
    script = Script(folder / "live")
    run_script(script, 60)
    shutil.copytree(folder / "live", folder / "data")
    script.close()
    return folder / "data"


@pytest.fixture
def logged(killed: Path, tmp_path: Path) -> Path:
    return shutil.copytree(killed, tmp_path / "data")


def test_damage_in_the_middle_of_the_log_is_reported(logged: Path) -> None:
    """SQLite would ignore it, and with it all later commits and their receipts."""
    log = logged / f"{FILE_NAME}-wal"
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    with pytest.raises(StoreError, match=r"is damaged after \d+ pages, and \d+ commits"):
        SqliteStore(logged, FakeClock(), reserve=0).open()
    [finding] = tools_of(logged).check()
    assert (finding.check, finding.repairable) == ("log", True)
    repaired = tools_of(logged).repair()
    assert repaired.left == []
    assert (Path(repaired.kept) / f"{FILE_NAME}-wal").read_bytes() == data
    store = SqliteStore(logged, FakeClock(), reserve=0)
    store.open()
    store.close()


@pytest.mark.parametrize("flipped", range(0, 32, 5))
def test_the_header_of_the_log_is_checked_too(logged: Path, flipped: int) -> None:
    """With a damaged header SQLite takes the log for empty."""
    log = logged / f"{FILE_NAME}-wal"
    data = bytearray(log.read_bytes())
    data[flipped] ^= 4
    log.write_bytes(data)
    with pytest.raises(StoreError, match="is damaged after 0 pages"):
        SqliteStore(logged, FakeClock(), reserve=0).open()


def test_a_commit_that_was_cut_off_is_no_damage(logged: Path) -> None:
    """It had no receipt: the broker ended before its sync."""
    log = logged / f"{FILE_NAME}-wal"
    data = bytearray(log.read_bytes())
    data[-100] ^= 1  # of the last page
    log.write_bytes(data)
    assert tools_of(logged).check() == []
    store = SqliteStore(logged, FakeClock(), reserve=0)
    store.open()
    store.close()


# The command


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(program, ["fsck", *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def test_the_command_explains_findings_and_sets_its_exit_code(folder: Path) -> None:
    assert run(str(folder)) == (0, "the store is in order\n", "")
    assert run(str(folder), "--json")[:2] == (0, "[]\n")
    damage(folder, "UPDATE queues SET waiting = waiting + 3")
    code, output, _ = run(str(folder))
    assert code == 1
    assert output.startswith("counts (queues): 1 counts are wrong: queue default counts ")
    assert "remedy: eventmq fsck --repair puts it right" in output
    code, output, _ = run(str(folder), "--json")
    [row] = json.loads(output)
    assert (code, row["check"], row["repairable"]) == (1, "counts", True)
    code, output, errors = run(str(folder), "--repair")
    assert (code, output) == (0, "the store is in order\n")
    assert "repaired: counts: 1 counts are wrong" in errors


def test_a_repair_is_refused_while_a_broker_runs(folder: Path) -> None:
    """Only one process writes a store."""
    damage(folder, "UPDATE queues SET waiting = waiting + 3")
    store = SqliteStore(folder, FakeClock(), reserve=0)
    store.open()
    code, output, errors = run(str(folder), "--repair")
    store.close()
    assert (code, output) == (1, "")
    assert "in use by another broker" in errors
    assert [finding.check for finding in tools_of(folder).check()] == ["counts"]


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    assert run(str(tmp_path / "none"))[0] == 1
    assert not (tmp_path / "none").exists()
    (tmp_path / FILE_NAME).write_text("not a database, but a text of some length" * 99)
    assert "cannot read the store" in run(str(tmp_path))[2]
    assert "has no files" in run("--store", "memory")[2]


def test_damaged_table_names_are_reported(folder: Path) -> None:
    """The error of SQLite contains the damaged bytes, which Python cannot decode."""
    path = folder / FILE_NAME
    sound = path.read_bytes()
    damaged = sound.replace(b"tablechunkschunks", b"table\xcchunkschunks")
    damaged = damaged.replace(b"CREATE TABLE chunks", b"CRXATE TABLE chunks")
    assert damaged != sound
    path.write_bytes(damaged)
    with pytest.raises(StoreError, match="cannot open the store"):  # before fsck leaves a log
        SqliteStore(folder, FakeClock(), reserve=0).open()
    code, output, errors = run(str(folder))
    assert (code, output) == (1, "")
    assert "cannot read the store" in errors
    assert "restore a backup" in errors
    with pytest.raises(StoreError, match="cannot read the store"):
        SqliteEventLogReader(folder)
    with pytest.raises(StoreError, match="cannot open the store"):
        SqliteStore(folder, FakeClock(), reserve=0).open()


def test_a_check_is_quick(folder: Path) -> None:
    """It runs over stores of any size: no check compares each row with each other."""
    db = connect(folder / FILE_NAME, busy=0.0)
    db.execute("BEGIN")
    sql = """INSERT INTO jobs SELECT 1000000 + value, printf('%032d', value), queue, rank, 2, 1, 0,
             0, 0.0, 0.0, 1.0, 0.0, 0, 0, NULL, subqueue, headers, body FROM
             (SELECT * FROM jobs WHERE state = 2 LIMIT 1), (WITH RECURSIVE n(value) AS
             (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < 5000) SELECT value FROM n)"""
    db.execute(sql)
    db.execute("UPDATE queues SET waiting = waiting + 5000")
    add_checksums(db)
    db.execute(f"UPDATE jobs SET head_crc = {JOB_HEAD.format('jobs')} WHERE seq > 1000000")
    db.execute(f"UPDATE jobs SET crc = {JOB_CRC.format('jobs')} WHERE seq > 1000000")
    db.execute("COMMIT")
    db.close()
    start = time.process_time()
    assert tools_of(folder).check() == []
    assert time.process_time() - start < 3.0
