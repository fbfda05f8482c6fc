"""Rules of the store's auditor, beyond checksums and counts."""

from __future__ import annotations

import shutil
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from eventmq.plugins.database import change, connect
from eventmq.plugins.queue_stores.sqlite.checksums import add_checksums
from eventmq.plugins.queue_stores.sqlite.disk import FILE_NAME
from eventmq.plugins.queue_stores.sqlite.schema import bucket_name, buckets
from tests.faults.script import Script, run_script
from tests.support.store_rules import RULES, audit

if TYPE_CHECKING:
    from pathlib import Path


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


_A_JOB = "(SELECT min(seq) FROM jobs WHERE state = 2)"
_A_BLOCKED_JOB = "(SELECT max(seq) FROM jobs WHERE state = 0)"

#: SQL statement -> the rule that it violates.
BROKEN = {
    "INSERT INTO inputs VALUES ('gone', 1, 1, 1, 9)": "inputs",
    f"DELETE FROM nodes WHERE key = {_A_BLOCKED_JOB}": "graph-nodes",
    f"UPDATE jobs SET queue = 9 WHERE seq = {_A_JOB}": "queues",
    f"UPDATE jobs SET headers = 'unique:a,unique-mode:x' WHERE seq = {_A_JOB}": "headers",
    "INSERT INTO failed SELECT seq + 50000, id, queue, 1, 5, 1, 1, 0, 1.0, 1.0, 1.0, 0.0, "
    "head_crc, crc, data_crc(head_crc, 'json', x'00'), 1.0, 'json', 1.0, 1.0, 1, 0, NULL, '', '', "
    "headers, body, x'00' FROM jobs LIMIT 1": "twice",
    "DELETE FROM names": "names",
    "UPDATE events SET body = x'c1' WHERE first = 1": "event-sizes",
    "INSERT INTO meta VALUES ('journal_sealed', 99999)": "journal",
    "UPDATE chunks SET epoch = 99": "epochs",
    "INSERT INTO chunks SELECT 'x', number, epoch, leases, leased FROM chunks": "leases",
    "INSERT INTO schedules VALUES ('x', 1, 1, 0, '', NULL, NULL, '', x'c1', 7)": "schedules",
    f"UPDATE failed SET seq = {_A_JOB} WHERE seq = (SELECT min(seq) FROM failed)": "numbers",
    "UPDATE BUCKET SET state = 2 WHERE id = (SELECT min(id) FROM BUCKET)": "ends",
}  # fmt: skip


def test_nothing_is_found_where_nothing_is(folder: Path) -> None:
    assert audit(folder) == []


@pytest.mark.parametrize("sql", BROKEN)
def test_a_rule_that_is_broken_is_named(folder: Path, sql: str) -> None:
    with closing(connect(folder / FILE_NAME, busy=0.0)) as db:
        add_checksums(db)
        [bucket] = map(bucket_name, buckets(db))
        assert change(db, sql.replace("BUCKET", bucket)) > 0, "the store has none of these"
    problems = audit(folder)
    assert BROKEN[sql] in {finding.check for finding in problems}
    assert all(finding.found and finding.means for finding in problems)


def test_every_rule_is_tried() -> None:
    """A rule that nothing shows to work is worth nothing."""
    assert {rule.name for rule in RULES} == set(BROKEN.values())
