"""A journal at an address, whose files only Spark reaches: the same as in a folder.

The address is of Hadoop's ``viewfs``, which has folders of this machine under other names.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from eventmq.events import COLUMNS, HOUR_US, SCHEMA_VERSION
from eventmq_contrib.journal.catalog import JournalError
from eventmq_contrib.journal.compaction import Compaction
from eventmq_contrib.spark.analyses.audit import audit_journal
from eventmq_contrib.spark.command import spark as group
from eventmq_contrib.spark.journal import read_journal
from tests.contrib.spark.histories import START_US, write_journal
from tests.contrib.spark.test_damage import byte_flipped_in
from tests.contrib.spark.test_journal_read import keys, newer, numbered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

START = START_US / 1e6


@pytest.fixture
def far(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """The address of the folder of this test."""
    name = f"fs.viewfs.mounttable.{tmp_path.name}.link./far"
    spark.conf.set(name, tmp_path.as_uri())
    yield f"viewfs://{tmp_path.name}/far"
    spark.conf.unset(name)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Three hours of ten events, two files each."""
    rows = [
        row
        for hour in range(3)
        for row in numbered("b", range(hour * 10 + 1, hour * 10 + 11), at=START_US + hour * HOUR_US)
    ]
    write_journal(tmp_path / "a {b}*, 100%", rows, size=5, sealed=True)
    return tmp_path / "a {b}*, 100%"


@pytest.fixture
def address(far: str, journal: Path) -> str:
    return f"{far}/{journal.name}"


def test_an_address_has_the_same_rows_and_columns_as_the_folder(
    spark: SparkSession, journal: Path, address: str
) -> None:
    """None are made of the names of folders; events that two files have come once."""
    write_journal(journal, numbered("c", range(1, 9)), size=8)
    write_journal(journal, numbered("c", range(5, 12)), size=7)
    there, here = read_journal(spark, address), read_journal(spark, journal)
    assert there.columns == [column.name for column in COLUMNS]
    assert keys(there) == keys(here)
    assert sorted(map(tuple, there.collect())) == sorted(map(tuple, here.collect()))


def test_hours_outside_of_the_time_are_not_opened(
    spark: SparkSession, journal: Path, address: str
) -> None:
    """And without events in common nothing is compared: there is no shuffle."""
    [path] = journal.rglob("b-1-5.parquet")
    path.write_bytes(b"torn")
    events = read_journal(spark, address, since=START + 3600, until=START + 7200)
    assert keys(events) == [("b", n) for n in range(11, 21)]
    plan = events._jdf.queryExecution().toString()
    assert "Exchange" not in plan
    assert "hour=08" not in plan


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def row_cut(path: Path) -> None:
    pq.write_table(pq.ParquetFile(path).read()[:-1], path)


def newer_rows(path: Path) -> None:
    table = pq.ParquetFile(path).read()
    column = table.column_names.index("schema_version")
    versions = pa.array([SCHEMA_VERSION + 1] * table.num_rows, pa.int32())
    pq.write_table(table.set_column(column, table.schema.field(column), versions), path)
    newer(path)


def other_columns(path: Path) -> None:
    pq.write_table(pq.ParquetFile(path).read().drop_columns(["kind"]), path)


def renamed(path: Path) -> None:
    path.rename(path.with_name("part-0000.parquet"))


def removed(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (emptied, "b-1-5.parquet: it is empty or torn, or no file of a journal"),
        (torn, "b-1-5.parquet: it is empty or torn, or no file of a journal"),
        (row_cut, "b-1-5.parquet has 4 events, not 5 as its name says"),
        (newer_rows, "b-1-5.parquet is of a newer EventMQ: its events have schema version 3"),
        (other_columns, "b-1-5.parquet: it has no events, columns of them are missing"),
        (renamed, "part-0000.parquet is not a file of a journal, by its name"),
        (removed, "lacks its beginning: the events 1 to 5 of the broker b"),
    ],
)
def test_what_is_an_error_in_a_folder_is_one_at_an_address(
    spark: SparkSession, journal: Path, address: str, spoil: Callable[[Path], Any], expected: str
) -> None:
    [path] = journal.rglob("b-1-5.parquet")
    spoil(path)
    with pytest.raises(JournalError, match=expected):
        read_journal(spark, address)


def test_there_must_be_a_journal_with_events(spark: SparkSession, far: str, tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=f"no journal at {far}/none"):
        read_journal(spark, f"{far}/none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(JournalError, match="has no events yet"):
        read_journal(spark, f"{far}/empty")


def test_what_was_compacted_is_read_at_an_address_too(
    spark: SparkSession, journal: Path, address: str, tmp_path: Path
) -> None:
    """Even if the small files are missing; a stream there reads only those, and reports it."""
    assert Compaction(journal).run(START + 2 * 3600) == (4, 2)
    for path in journal.rglob("b-*.parquet"):
        if "hour=10" not in str(path):
            path.unlink()
    assert keys(read_journal(spark, address)) == [("b", n) for n in range(1, 31)]
    code, result = audited(address)
    assert (code, result["proven"], result["jobs"]) == (0, True, 30)
    given = ["stream", "--journal", address, "--out", str(tmp_path / "out"), "--once"]
    done = CliRunner().invoke(group, given, standalone_mode=False)
    assert "lacks its beginning: the events 1 to 20" in str(done.exception)


def audited(address: str) -> tuple[int, dict[str, Any]]:
    given = ["audit", "--journal", address, "--json"]
    done = CliRunner().invoke(group, given, standalone_mode=False)
    assert done.exception is None, done.output
    return done.return_value, json.loads(done.stdout)


def test_the_audit_looks_at_all_bytes_at_an_address(
    spark: SparkSession, journal: Path, address: str
) -> None:
    """By the seal logs there; without them nothing is proven."""
    assert audit_journal(spark, address).complete
    [path] = journal.rglob("b-11-15.parquet")
    whole = path.read_bytes()
    byte_flipped_in(path)
    code, result = audited(address)
    assert code == 1
    assert f"{address}/{path.relative_to(journal)} was altered" in " ".join(result["damage"])
    path.write_bytes(whole)
    (journal / "_seals" / "b.jsonl").unlink()
    code, result = audited(address)
    assert (code, result["proven"], result["damaged"]) == (1, False, 0)
