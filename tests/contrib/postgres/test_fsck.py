"""``eventmq fsck`` on a store in PostgreSQL: its findings, and none on an undamaged store."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from zlib import crc32

import psycopg
import pytest
from click.testing import CliRunner

from eventmq import fsck as check
from eventmq.cli.program import program
from eventmq.interfaces import PluginContext
from eventmq.plugins.queue_stores.sqlite.tools.rules import RULES
from eventmq.sdk import Claimant, StoreError
from eventmq_contrib.postgres import eventmq_queue_stores, tools
from eventmq_contrib.postgres.connection import Database
from eventmq_contrib.postgres.tools import PostgresTools
from eventmq_contrib.postgres.upkeep import PostgresUpkeep
from tests.faults.script import Script, run_script


class PostgresScript(Script):
    """Jobs of all kinds, on a store whose URL is the path."""

    def make_store(self):
        make = eventmq_queue_stores()["postgresql"]
        store = make(PluginContext("postgresql", {"url": self.path}, self.clock))
        me = Claimant("me", "tcp://127.0.0.1:47291")
        assert store.ownership.claim(store.ownership.look(), me)
        return store


@pytest.fixture(scope="module")
def worked(postgres):
    """The name of a database with jobs that wait, that run, and that have ended."""
    with postgres.database() as url:
        script = PostgresScript(url)
        run_script(script, 200)
        script.close()
        yield url.rpartition("/")[2]


@pytest.fixture
def url(postgres, worked):
    """The URL of a copy of that database."""
    name = postgres.new_database(f"TEMPLATE {worked}")
    yield postgres.url(name)
    postgres.drop_database(name)


def tools_of(url):
    return PostgresTools(Database.of(url))


def damage(url, sql):
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET search_path = eventmq")
        for statement in filter(None, map(str.strip, sql.split(";"))):
            assert connection.execute(statement).rowcount != 0, "the store has none of these"


def checks_of(url):
    return {finding.check for finding in tools_of(url).check()}


def fsck(*arguments):
    return CliRunner().invoke(program, ["fsck", *arguments])


def test_an_undamaged_store_has_no_findings(url):
    """fsck reads each row, and changes none."""
    copied = {}
    make_copy = check._copy

    def copy(rows, source):
        findings = list(make_copy(rows, source))
        [(copied[source.table],)] = rows.db.execute(f'SELECT count(*) FROM "{source.table}"')
        return findings

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "_copy", copy)
        assert [] == tools_of(url).check()
    with psycopg.connect(url) as connection:
        names = connection.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r' "
            "AND relnamespace = 'eventmq'::regnamespace"
        ).fetchall()
        stored = {
            name: connection.execute(f'SELECT count(*) FROM eventmq."{name}"').fetchone()[0]
            for (name,) in names
        }
    for name in ("lease", "beats", "outcomes"):
        del stored[name]
    for name in ("meta", "schedule_counts"):  # a row that PostgreSQL lacks counts as 0
        assert copied.pop(name) >= stored.pop(name)
    assert stored == copied
    empty = {name for name, rows in stored.items() if not rows}
    assert empty <= {
        "bulk_operations", "limiters", "suspects", "schedules", "pending_work", "handlers",
        "deadlines", "inputs", "releasable_results", "member_results",
    }, "these have no rows here"  # fmt: skip
    result = fsck("--store", url)
    assert (0, "the store is in order\n") == (result.exit_code, result.output)


def test_a_store_that_no_broker_has_opened_is_in_order(database_url):
    PostgresUpkeep(Database.of(database_url), {}).init()
    assert [] == tools_of(database_url).check()


_A_JOB = "(SELECT min(seq) FROM jobs WHERE state = 2)"
_A_BLOCKED = "(SELECT max(seq) FROM jobs WHERE state = 0)"
_SUM = crc32(b"\x00", crc32(b"json", crc32(b"x")))

#: Damage -> the checks that find it.
DAMAGE = {
    "UPDATE queues SET waiting = waiting + 3": {"counts"},
    "UPDATE queues SET failed = 0": {"counts"},
    f"DELETE FROM jobs WHERE seq = {_A_JOB}": {"counts", "orphans"},
    "UPDATE meta SET integer_value = 7 WHERE name = 'failed_bytes'": {"bytes"},
    "DELETE FROM meta WHERE name = 'failed_bytes'": {"bytes"},
    "UPDATE jobs SET subqueue = 99 WHERE state = 2": {"subqueues"},
    "DELETE FROM subqueues": {"subqueues"},
    "UPDATE jobs SET unique_key = 'other' WHERE unique_key IS NOT NULL": {"keys"},
    "UPDATE jobs SET unique_key = NULL WHERE unique_key IS NOT NULL": {"keys"},
    "UPDATE failed SET unique_key = 'other' WHERE seq = (SELECT min(seq) FROM failed)": {"keys"},
    "UPDATE failed SET error = 'other' WHERE seq = (SELECT min(seq) FROM failed)": {"labels"},
    "INSERT INTO attempts (id, attempt, delivery, at, started, run_time, worker, content_type, "
    f"error, crc) VALUES ('x', 1, 1, 1, 1, 1, 1, 'json', '\\x00', {_SUM})": {"orphans"},
    "UPDATE graphs SET remaining = remaining + 1 WHERE ended = 0": {"graph-counts"},
    "DELETE FROM graphs WHERE ended = 0": {"graph-rows", "orphans"},
    "UPDATE joins SET remaining = remaining + 1": {"join-counts"},
    "DELETE FROM join_arguments": {"join-arguments"},
    "DELETE FROM joins": {"blocked", "orphans"},
    "UPDATE nodes SET output = 0 WHERE output > 0": {"stuck"},
    f"DELETE FROM nodes WHERE key = {_A_BLOCKED}": {"blocked"},
    f"UPDATE nodes SET id = 'x' WHERE key = {_A_BLOCKED}": {"graph-jobs"},
    f"UPDATE jobs SET state = 7 WHERE seq = {_A_JOB}": {"values", "counts"},
    f"UPDATE jobs SET queue = 9 WHERE seq = {_A_JOB}": {"checksums", "counts", "subqueues"},
    f"UPDATE jobs SET body = '\\x00' WHERE seq = {_A_JOB}": {"checksums"},
    f"UPDATE jobs SET crc = 7 WHERE seq = {_A_JOB}": {"checksums"},
    f"UPDATE jobs SET id = 'x' WHERE seq = {_A_JOB}": {"checksums", "orphans"},
    "UPDATE queues SET name = 'other' WHERE id = 1": {"checksums"},
    "UPDATE failed SET result = '\\x00' WHERE seq = (SELECT min(seq) FROM failed)": {"checksums"},
    "UPDATE attempts SET error = '\\x00'": {"checksums"},
    "UPDATE job_logs SET body = '\\x00'": {"checksums"},
    "UPDATE join_arguments SET crc = 7": {"checksums"},
    "DELETE FROM names": {"checksums"},
    "UPDATE events SET body = '\\xc1' WHERE first = 1": {"event-bodies"},
    "DELETE FROM events WHERE first = (SELECT first FROM events ORDER BY first LIMIT 1 OFFSET 2)": {
        "event-numbers"
    },
    "DELETE FROM meta WHERE name = 'store_id'": {"meta"},
    "UPDATE meta SET text_value = NULL WHERE name = 'store_id'": {"meta"},
    "UPDATE meta SET integer_value = 1 WHERE name = 'clock'": {"meta", "clock"},
    "UPDATE meta SET bytes_value = '\\xc1' WHERE name = 'clock'": {"clock"},
    "UPDATE chunks SET leases = '\\xc1'": {"chunks"},
    "INSERT INTO bulk_operations VALUES (1, 1, 1, 0, 0, 0, 'x', '\\xc1')": {"bulk-operations"},
    "INSERT INTO schedule_counts (key, value) VALUES ('live', 5)": {"schedule-counts"},
    "DELETE FROM lease": {"lease"},
    "DELETE FROM beats": {"lease"},
    "DROP INDEX jobs_delayed": {"indexes"},
    "ALTER TABLE nodes DROP COLUMN parent": {"rows"},
    f"""DROP INDEX jobs_id; UPDATE jobs SET id = (SELECT id FROM jobs WHERE seq = {_A_JOB})
        WHERE seq = (SELECT max(seq) FROM jobs WHERE state = 2)""": {
        "indexes", "unique", "counts",
    },
}  # fmt: skip


@pytest.mark.parametrize("sql", DAMAGE)
def test_damage_is_found(url, sql):
    """Each damage breaks the expected rules. No finding promises a repair."""
    damage(url, sql)
    findings = tools_of(url).check()
    assert {finding.check for finding in findings} == DAMAGE[sql], findings
    assert all(finding.found and finding.means and finding.help for finding in findings)
    for finding in findings:
        assert not finding.repairable
        assert "--repair" not in finding.help
        assert "--salvage" not in finding.help


def test_each_rule_has_a_damage_here():
    checks = set().union(*DAMAGE.values())
    assert {rule.name for rule in RULES} <= checks


def test_an_outcome_that_was_altered_is_found(url):
    """Outcomes are in the tables of periods."""
    with psycopg.connect(url) as connection:
        [(name,)] = connection.execute(
            "SELECT relname FROM pg_class WHERE relname ~ '^outcomes_[0-9]+$' AND relkind = 'r'"
        ).fetchall()
    damage(url, f"UPDATE {name} SET result = '\\x00' WHERE id = (SELECT min(id) FROM {name})")
    [finding] = tools_of(url).check()
    assert ("checksums", "outcomes") == (finding.check, finding.where)


def test_exit_codes_are_those_of_a_store_in_a_file(url, database_url):
    """The code is 0 without findings, and 1 with findings or without a readable store."""
    damage(url, "UPDATE queues SET waiting = waiting + 3")
    result = fsck("--store", url)
    assert 1 == result.exit_code
    assert result.output.startswith("counts (queues): 1 counts are wrong: queue default counts ")
    assert "remedy: correct the rows by SQL while no broker runs, or restore" in result.output
    [row] = json.loads(fsck("--store", url, "--json").output)
    assert ("counts", False) == (row["check"], row["repairable"])
    result = fsck("--store", database_url)
    assert 1 == result.exit_code
    assert "does not exist: name the schema of a broker" in result.output
    assert "version 7" not in result.output
    damage(url, "COMMENT ON TABLE meta IS 'queue store of EventMQ, version 7'")
    result = fsck("--store", url)
    assert 1 == result.exit_code
    assert "was made by another version of EventMQ" in result.output


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["fsck", "--repair"], "correct the rows by SQL while no broker runs"),
        (["fsck", "--salvage", "new"], "pg_dump"),
        (["backup", "new"], "pg_basebackup"),
    ],
)
def test_repairs_salvage_and_backups_name_the_tools_of_postgresql(url, tmp_path, arguments, word):
    folder = [str(tmp_path / name) if name == "new" else name for name in arguments]
    result = CliRunner().invoke(program, [*folder, "--store", url])
    assert 1 == result.exit_code
    [line] = result.output.splitlines()
    assert word in line
    assert "eventmq store accept-restore --store URL" in line
    assert not (tmp_path / "new").exists()


# Beside a broker


def test_fsck_and_a_working_broker_do_not_disturb_each_other(url, monkeypatch):
    """The broker commits between the tables, and between portions of one table."""
    monkeypatch.setattr(tools, "PORTION", 20)
    script = PostgresScript(url)
    work = threading.Lock()
    copy = check._copy
    commits = script.commits
    before = 0

    def run_more():
        nonlocal before
        before = len(script.promises.intended)
        run_script(script, before + 30)

    def copy_while_working(rows, source):
        def portions():
            for number, portion in enumerate(source.portions):
                if number < 2:
                    with work:
                        run_more()
                yield portion

        with work:
            run_more()
        return copy(rows, source._replace(portions=portions()))

    monkeypatch.setattr(check, "_copy", copy_while_working)
    try:
        assert [] == tools_of(url).check()
        assert script.commits > commits + 100
        assert before > 500
    finally:
        script.close()
    monkeypatch.setattr(check, "_copy", copy)
    assert [] == tools_of(url).check(), "the new rows are undamaged"


def test_several_snapshots_would_not_suffice(url, monkeypatch):
    """This proves that the test above would notice: each statement would see other rows."""
    script = PostgresScript(url)
    copy = check._copy

    def copy_while_working(rows, source):
        run_script(script, len(script.promises.intended) + 30)
        return copy(rows, source)

    monkeypatch.setattr(check, "_copy", copy_while_working)
    monkeypatch.setattr(tools, "ISOLATION", psycopg.IsolationLevel.READ_COMMITTED)
    try:
        assert checks_of(url)
    finally:
        script.close()


def test_a_period_is_not_dropped_while_it_is_read(url, monkeypatch):
    """A period that is dropped before it is locked is skipped by a new snapshot."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE eventmq.outcomes_1 (LIKE eventmq.outcomes INCLUDING ALL)")
    listed = tools._PERIODS

    dropped = []
    execute = psycopg.Connection.execute

    def drop(self, query, *arguments, **options):
        cursor = execute(self, query, *arguments, **options)
        if query == listed and not dropped:
            dropped.append(1)
            with psycopg.connect(url, autocommit=True) as connection:
                execute(connection, "DROP TABLE eventmq.outcomes_1")
        return cursor

    monkeypatch.setattr(psycopg.Connection, "execute", drop)
    assert [] == tools_of(url).check()
    assert dropped


# Unreadable pages and the copy of the rows


def test_a_page_that_the_server_cannot_read_is_found(postgres, url):
    """The finding names the table, and findings that follow from its missing rows are left out."""
    name = url.rpartition("/")[2]
    [(path,)] = postgres.sql("SELECT pg_relation_filepath('eventmq.nodes')", database=name)
    postgres.sql("CHECKPOINT")
    postgres.stop()
    file = postgres.folder / path
    data = file.read_bytes()
    file.write_bytes(b"\xff" * 8192 + data[8192:])
    postgres.start()
    [finding] = tools_of(postgres.url(name)).check()
    assert ("rows", "nodes") == (finding.check, finding.where)
    assert "rows cannot be read: invalid page in block 0" in finding.found


def test_a_folder_without_room_is_named(url, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    connect = check.connect

    damage(url, "UPDATE failed SET body = convert_to(repeat('x', 1000000), 'UTF8')")

    def small(*arguments, **options):
        db = connect(*arguments, **options)
        db.pragma("max_page_count", 100)
        return db

    monkeypatch.setattr(check, "connect", small)
    with pytest.raises(StoreError, match=f"no room for a copy of the rows in {tmp_path}: name a"):
        tools_of(url).check()
    assert [] == list(tmp_path.iterdir()), "nothing is left behind"


def test_the_copy_is_for_its_user_only(url, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    modes = []
    copy = check._copy

    def record_modes(rows, source):
        modes.extend(oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir())
        return copy(rows, source)

    monkeypatch.setattr(check, "_copy", record_modes)
    before = os.umask(0)
    try:
        assert [] == tools_of(url).check()
    finally:
        os.umask(before)
    assert {"0o700"} == set(modes)
    assert [] == list(Path(tmp_path).iterdir())
