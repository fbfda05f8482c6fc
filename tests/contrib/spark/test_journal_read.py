"""A journal as one DataFrame: each event once, and foreign files are reported."""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eventmq.events import COLUMNS, HOUR_US, SCHEMA_VERSION
from eventmq_contrib.journal.compaction import Compaction
from eventmq_contrib.spark import EventMQDataSource
from eventmq_contrib.spark.journal import EVENTS, JournalError, journal_files, read_journal
from eventmq_contrib.spark.source.files import plan, sealed_files
from tests.contrib.spark.histories import START_US, frame, story, write_journal

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

Row = dict[str, Any]
START = START_US / 1e6


def keys(events: DataFrame) -> list[tuple[str, int]]:
    return sorted((row.broker_id, row.seq) for row in events.select("broker_id", "seq").collect())


def keys_of(rows: list[Row]) -> list[tuple[str, int]]:
    return sorted((row["broker_id"], row["seq"]) for row in rows)


def numbered(broker: str, numbers: range, *, at: int = START_US) -> list[Row]:
    """Return rows with little in them."""
    return [
        {
            "broker_id": broker, "seq": seq, "ts_us": at, "kind": "enqueued", "job_id": f"j{seq}",
            "queue": f"q{seq % 2}", "task": f"t{seq % 3}", "schema_version": 1,
        }
        for seq in numbers
    ]  # fmt: skip


def test_the_type_of_a_row_is_that_of_the_published_columns() -> None:
    assert [(f.name, f.dataType.simpleString()) for f in EVENTS] == [
        (c.name, {"int32": "int", "int64": "bigint"}.get(c.type, c.type)) for c in COLUMNS
    ]


def test_all_events_of_all_brokers_are_there_with_all_columns(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As the files have them; the folders' names make no columns."""
    rows = [row for n in range(3) for row in story(Random(n), f"b{n}", damage=False).rows]
    journal = tmp_path / "a {journal}*, 100%"
    write_journal(journal, rows, size=40)
    events = read_journal(spark, journal)
    assert events.columns == [column.name for column in COLUMNS]
    by_file = {
        (row.broker_id, row.seq): {k: v for k, v in row.asDict().items() if v is not None}
        for row in events.collect()
    }
    assert by_file == {(row["broker_id"], row["seq"]): row for row in rows}
    assert sorted(map(tuple, frame(spark, rows).collect())) == sorted(map(tuple, events.collect()))


def test_events_that_are_in_two_files_are_there_once(spark: SparkSession, tmp_path: Path) -> None:
    """As after a restored store, or a folder that was copied into another."""
    for numbers in (range(1, 101), range(50, 60), range(90, 120), range(200, 210)):
        write_journal(tmp_path, numbered("b", numbers))
    write_journal(tmp_path, numbered("other", range(95, 100)))
    keys_read = keys(read_journal(spark, tmp_path))
    assert keys_read == keys_of([
        *numbered("b", range(1, 120)), *numbered("b", range(200, 210)),
        *numbered("other", range(95, 100)),
    ])  # fmt: skip


def test_compacted_files_stand_for_those_they_were_made_of(
    spark: SparkSession, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    for hour in range(3):
        first = hour * 100 + 1
        rows = numbered("b", range(first, first + 100), at=START_US + hour * HOUR_US)
        write_journal(journal, rows, size=10)
    assert Compaction(journal, tmp_path / "compacted").run(START + 7200) == (20, 2)
    files = journal_files(journal)
    assert len(files) == 12
    assert sum("/compacted/" in file.path for file in files) == 2
    assert keys(read_journal(spark, journal)) == [("b", n) for n in range(1, 301)]
    only = read_journal(spark, tmp_path / "compacted")
    assert keys(only) == [("b", n) for n in range(1, 201)]


def test_each_way_to_read_takes_what_was_compacted(spark: SparkSession, tmp_path: Path) -> None:
    """If the small files are missing, and even if a stream had started with them."""
    journal, out = tmp_path / "journal", tmp_path / "live"
    for hour in range(3):
        first = hour * 100 + 1
        rows = numbered("b", range(first, first + 100), at=START_US + hour * HOUR_US)
        write_journal(journal, rows, size=10)
    seen: list[int] = []

    def stream() -> int:
        source = spark.readStream.format("eventmq").option("maxEventsPerTrigger", "130")
        query = source.load(str(journal)).writeStream.option("checkpointLocation", str(out))
        query = query.foreachBatch(lambda rows, _: seen.extend(row.seq for row in rows.collect()))
        query.trigger(availableNow=True).start().awaitTermination()
        return len(seen)

    spark.dataSource.register(EventMQDataSource)
    for path in journal.rglob("hour=10/*"):
        path.rename(tmp_path / path.name)
    assert stream() == 200
    for path in tmp_path.glob("b-*.parquet"):
        (journal / "date=2026-11-21" / "hour=10").mkdir(exist_ok=True)
        path.rename(journal / "date=2026-11-21" / "hour=10" / path.name)
    assert Compaction(journal).run(START + 3 * 3600) == (30, 3)
    for path in journal.rglob("*.parquet"):
        if path.name != "b-291-300.parquet":
            path.unlink()
    everything = [("b", n) for n in range(1, 301)]
    assert keys(read_journal(spark, journal)) == everything
    assert keys(spark.read.format("eventmq").load(str(journal))) == everything
    assert [(p.first, p.last) for p in plan(sealed_files(str(journal)), {"b": 150})] == [
        (151, 200), (201, 300),
    ]  # fmt: skip
    assert stream() == 300
    assert sorted(seen) == list(range(1, 301))


def test_compacted_files_of_another_journal_do_not_count(tmp_path: Path) -> None:
    """Two journals beside each other may share the folder."""
    for name, broker in (("one", "b"), ("other", "c")):
        for hour in range(2):
            rows = numbered(
                broker, range(hour * 9 + 1, hour * 9 + 10), at=START_US + hour * HOUR_US
            )
            write_journal(tmp_path / name, rows, size=3)
        Compaction(tmp_path / name, tmp_path / "compacted").run(START + 9999)
    assert {file.broker for file in journal_files(tmp_path / "one")} == {"b"}


def test_a_file_in_no_folder_of_an_hour_is_named(tmp_path: Path) -> None:
    write_journal(tmp_path, numbered("b", range(1, 4)))
    [file] = tmp_path.glob("date=*/hour=*/*.parquet")
    file.parent.rename(file.parent.with_name("hour=noon"))
    with pytest.raises(JournalError, match=r"hour=noon/b-1-3.* is not in the folder of an hour"):
        journal_files(tmp_path)


def test_time_queue_and_task_choose(spark: SparkSession, tmp_path: Path) -> None:
    """Hours that have nothing of the time are not opened."""
    for hour in range(4):
        first = hour * 10 + 1
        write_journal(
            tmp_path, numbered("b", range(first, first + 10), at=START_US + hour * HOUR_US)
        )
    since, until = START + 3600, START + 3 * 3600
    assert len(journal_files(tmp_path, since=since, until=until)) == 2
    events = read_journal(spark, tmp_path, since=since, until=until)
    assert [seq for _, seq in keys(events)] == list(range(11, 31))
    events = read_journal(spark, tmp_path, since=since + 1)
    assert [seq for _, seq in keys(events)] == list(range(21, 41))
    events = read_journal(spark, tmp_path, queue="q1", task="t0")
    assert [seq for _, seq in keys(events)] == [seq for seq in range(1, 41) if seq % 6 == 3]
    assert read_journal(spark, tmp_path, since=START + 90_000).count() == 0


def test_columns_that_an_earlier_version_did_not_have_are_null(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Beside files that have them."""
    write_journal(tmp_path, numbered("b", range(1, 4)))
    new = {"leased_us": 7, "arguments": '{"n":1}', "result": "2"}
    write_journal(tmp_path, [{**row, **new} for row in numbered("b", range(4, 6))])
    [path] = tmp_path.rglob("b-1-3.parquet")
    missing = ["leased_us", "gap_first", "gap_last", "arguments", "result"]
    table = pq.ParquetFile(path).read().drop_columns(missing)
    pq.write_table(table.replace_schema_metadata({"eventmq.schema_version": "0"}), path)
    rows = read_journal(spark, tmp_path).orderBy("seq").collect()
    assert [row.leased_us for row in rows] == [None, None, None, 7, 7]
    values = [(row.arguments, row.result) for row in rows]
    assert values == [(None, None)] * 3 + [('{"n":1}', "2")] * 2


def test_what_a_redactor_let_through_is_there_by_each_reader(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As JSON that Spark can parse; also from compacted files, and beside files without it."""
    journal = tmp_path / "journal"
    for hour in range(2):
        rows = numbered("b", range(hour * 4 + 1, hour * 4 + 5), at=START_US + hour * HOUR_US)
        for row in rows[::2]:
            row["arguments"] = json.dumps({"args": [row["seq"]], "note": "ü€😀"})
        rows[1] |= {"kind": "succeeded", "result": '{"total":7}'}
        write_journal(journal, rows, size=2)
    [path] = journal.rglob("b-3-4.parquet")
    table = pq.ParquetFile(path).read()
    pq.write_table(table.drop_columns(["arguments", "result"]), path)
    assert Compaction(journal, tmp_path / "compacted").run(START + 3600) == (2, 1)
    spark.dataSource.register(EventMQDataSource)
    source = spark.read.format("eventmq").load(str(journal))
    for events in (read_journal(spark, journal), source):
        lines = events.orderBy("seq").selectExpr(
            "get_json_object(arguments, '$.args[0]')", "get_json_object(arguments, '$.note')",
            "get_json_object(result, '$.total')",
        )  # fmt: skip
        nothing = (None, None, None)
        assert list(map(tuple, lines.collect())) == [
            ("1", "ü€😀", None), (None, None, "7"), nothing, nothing,
            ("5", "ü€😀", None), (None, None, "7"), ("7", "ü€😀", None), nothing,
        ]  # fmt: skip


# Errors


def test_a_journal_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=f"no journal in {tmp_path}/none: name its folder"):
        journal_files(tmp_path / "none")


def test_an_empty_journal_is_named(tmp_path: Path) -> None:
    """Files that are being written do not count."""
    folder = tmp_path / "date=2026-11-21" / "hour=08"
    folder.mkdir(parents=True)
    (folder / "_b-1-2.parquet").write_bytes(b"PAR1")
    with pytest.raises(JournalError, match="has no events yet"):
        journal_files(tmp_path)


def spoil_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def spoil_all(path: Path) -> None:
    path.write_bytes(b"")


def spoil_footer(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:200] + b"PAR1")


def other_columns(path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), path)


def other_types(path: Path) -> None:
    table = pq.ParquetFile(path).read()
    column = table.column_names.index("seq")
    pq.write_table(table.set_column(column, "seq", table["seq"].cast("string")), path)


def newer(path: Path) -> None:
    table = pq.ParquetFile(path).read()
    metadata = {"eventmq.schema_version": f"{SCHEMA_VERSION + 1}"}
    pq.write_table(table.replace_schema_metadata(metadata), path)


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (spoil_end, "torn"),
        (spoil_all, "torn"),
        (spoil_footer, "torn"),
        (other_columns, "lacks the column broker_id"),
        (other_types, "column seq as string, not int64"),
        (newer, "schema version 3, this one knows up to 2; update"),
    ],
)
def test_a_torn_or_foreign_file_is_named(tmp_path: Path, spoil: Any, expected: str) -> None:
    """By its path, before Spark reads anything."""
    write_journal(tmp_path, numbered("b", range(1, 301)), size=100)
    [path] = tmp_path.rglob("b-101-200.parquet")
    spoil(path)
    with pytest.raises(JournalError, match=expected) as caught:
        read_journal(None, tmp_path)  # type: ignore[arg-type] # it does not come to that
    assert str(path) in str(caught.value)


def test_a_file_of_another_name_is_named(tmp_path: Path) -> None:
    write_journal(tmp_path, numbered("b", range(1, 3)))
    [path] = tmp_path.rglob("b-1-2.parquet")
    path.with_name("part-00000.snappy.parquet").write_bytes(path.read_bytes())
    with pytest.raises(JournalError, match=r"part-00000.snappy.parquet is not a file of a journal"):
        journal_files(tmp_path)


#: All that an entry has but the checksum.
ENTRY = {"path": "x", "hour": "h", "broker": "b", "first": 1, "last": 2, "of": [[1, 2]], "bytes": 9}


@pytest.mark.parametrize("text", ["", "[]", json.dumps({"files": [ENTRY]})])
def test_a_manifest_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    write_journal(tmp_path / "journal", numbered("b", range(1, 3)))
    (tmp_path / "compacted").mkdir()
    (tmp_path / "compacted" / "manifest.json").write_text(text, encoding="utf-8")
    with pytest.raises(JournalError, match="is not the manifest of a compaction"):
        journal_files(tmp_path / "journal")
