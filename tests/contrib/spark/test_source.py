"""The data source ``eventmq`` on Spark: brokers and journals are read, rows become jobs."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from eventmq_contrib.spark.source import EventMQDataSource, enqueue
from eventmq_contrib.spark.source.ids import with_ids
from eventmq_contrib.spark.source.reader import job_rows
from tests.support.system import System, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from eventmq import EventMQ


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """A broker with a worker; tests keep apart by their queues and tasks."""
    system = System(tmp_path_factory.mktemp("system"))
    system.broker()
    yield system
    system.stop()


@pytest.fixture(scope="module")
def app(system: System) -> EventMQ:
    return system.app()


@pytest.fixture
def write(spark: SparkSession, system: System) -> Callable[..., None]:
    spark.dataSource.register(EventMQDataSource)

    def write(rows: DataFrame, **options: Any) -> None:
        given = {"broker": system.address, "task": "survivor.work", **options}
        rows.write.format("eventmq").options(**given).mode("append").save()

    return write


@pytest.fixture
def read(spark: SparkSession, system: System) -> Callable[..., DataFrame]:
    spark.dataSource.register(EventMQDataSource)

    def read(table: str, **options: Any) -> DataFrame:
        reader = spark.read.format("eventmq").option("table", table)
        return reader.options(broker=system.address, **options).load()

    return read


def listed(app: EventMQ, queue: str) -> list[str]:
    return [row[0] for row in job_rows(app, "jobs", {"queue": queue})]


def test_each_row_is_one_job_however_often_it_is_written(
    spark: SparkSession, system: System, app: EventMQ, write: Callable[..., None]
) -> None:
    """With its columns as arguments; the result of the worker proves it."""
    rows = spark.range(300).select(f.col("id").alias("number"))
    worker = system.worker("-Q", "once")
    for _ in range(2):
        write(rows, queue="once", idColumns="number", argColumns="number", maxInFlight=100)
    until(lambda: system.has_started(300), "300 jobs are done")
    # Done a second time they would be there before this one.
    app.send("survivor.work", ("last",), queue="once").get(timeout=30)
    worker.terminate()
    assert worker.wait(20) == 0
    assert system.executed() == Counter([*map(str, range(300)), "last"])


def test_a_write_without_ids_is_refused_before_the_first_job(
    spark: SparkSession, app: EventMQ, write: Callable[..., None]
) -> None:
    rows = spark.range(3)
    for options, words in (
        ({}, "no column has the ids of jobs"),
        ({"idColumns": "idd"}, "did you mean 'id'"),
        ({"idColumn": "id"}, "did you mean 'idColumns'"),
    ):
        with pytest.raises(PySparkException, match=words):
            write(rows, queue="refused", **options)
    assert listed(app, "refused") == []


def test_the_tables_of_a_broker_are_read(
    spark: SparkSession, app: EventMQ, write: Callable[..., None], read: Callable[..., DataFrame]
) -> None:
    """With the ids of a column job_id, which are taken as they are."""
    rows = spark.range(5).select(f.format_string("shelf-%d", "id").alias("job_id"), "id")
    write(rows, queue="shelf", priority=7, idTime="2026-01-31T12:00Z")
    app.cancel("shelf-4", "not wanted")
    jobs = read("jobs", queue="shelf").orderBy("id").collect()
    assert [(row.id, row.state, row.priority) for row in jobs] == [
        *((f"shelf-{n}", "queued", 7) for n in range(4)),
        # Of a job that has ended the broker keeps its outcome.
        ("shelf-4", "cancelled", 0),
    ]
    assert {row.task for row in jobs} == {"survivor.work"}
    assert all(row.created is not None and row.started is None for row in jobs)
    [ended] = read("outcomes", queue="shelf").collect()
    assert (ended.id, ended.state, ended.error) == ("shelf-4", "cancelled", "not wanted")
    assert read("failed", queue="shelf").count() == 0
    [queue] = [row for row in read("queues").collect() if row.name == "shelf"]
    assert (queue.waiting, queue.paused, queue.workers) == (4, False, 0)
    kinds = read("events").where("queue = 'shelf'").groupBy("kind").count()
    assert {row.kind: row["count"] for row in kinds.collect()} == {"enqueued": 5, "cancelled": 1}


def sealed(system: System, out: Path) -> None:
    """Seal all that the broker has."""
    data = str(system.folder / "data")
    process, _ = system.start("journal", "--data-dir", data, "--out", str(out), "--once")
    assert process.wait(30) == 0


def test_a_stream_of_a_journal_goes_on_where_it_was(
    spark: SparkSession, system: System, app: EventMQ, write: Callable[..., None], tmp_path: Path
) -> None:
    """And it submits each job once, even if a batch is repeated."""
    spark.dataSource.register(EventMQDataSource)
    journal, checkpoint = system.folder / "journal", tmp_path / "checkpoint"
    seen: list[int] = []
    submit = enqueue("survivor.work", broker=system.address, queue="again", argColumns="of")

    def take(rows: DataFrame, batch: int) -> None:
        jobs = rows.where("queue = 'source'").select(f.col("job_id").alias("of"))
        seen.append(rows.count())
        submit(jobs, batch)

    def run() -> None:
        source = spark.readStream.format("eventmq").option("journal", str(journal))
        stream = source.option("maxEventsPerTrigger", 500).load().writeStream.foreachBatch(take)
        query = stream.option("checkpointLocation", str(checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()

    rows = spark.range(30).select(f.col("id").alias("number"))
    write(rows, queue="source", idColumns="number", argColumns="number", idSpace="source")
    sealed(system, journal)
    run()
    assert max(seen) <= 500
    before = sum(seen)
    others = rows.select((f.col("number") + 30).alias("number"))
    write(others, queue="source", idColumns="number", argColumns="number", idSpace="source")
    sealed(system, journal)
    # As a driver that was killed before it noted the last batch.
    last = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink()
    again = seen[-1]
    run()
    events = spark.read.format("eventmq").load(str(journal))
    assert sum(seen) == events.count() + again
    assert sum(seen) > before + again
    assert len(listed(app, "source")) == len(listed(app, "again")) == 60


def test_equal_rows_are_as_many_jobs(spark: SparkSession) -> None:
    """Each by its ordinal; another batch or query makes others; the order is of no matter."""
    rows = spark.createDataFrame([("a", 1)] * 3 + [("a", None), (None, 1)], "x string, y int")

    def ids(rows: DataFrame, space: str = "q|1|t") -> list[str]:
        return sorted(row.job_id for row in with_ids(rows, space, 946_684_800_001).collect())

    actual = ids(rows)
    assert len(set(actual)) == 5
    assert ids(rows.orderBy(f.desc("x")).repartition(3)) == actual
    assert not set(ids(rows, "q|2|t")) & set(actual)
    layout = r"^00dc6acfac017[0-9a-f]{3}[89ab][0-9a-f]{15}$"
    assert (
        with_ids(rows, "q|1|t", 946_684_800_001).where(f.rlike("job_id", f.lit(layout))).count()
        == 5
    )


def test_a_stream_is_written_by_its_keys(
    spark: SparkSession, system: System, app: EventMQ, tmp_path: Path
) -> None:
    """``df.writeStream``: started again without its checkpoint, it submits the same jobs."""
    spark.dataSource.register(EventMQDataSource)
    spark.range(20).write.parquet(str(tmp_path / "in"))
    for _ in range(2):
        rows = spark.readStream.schema("id bigint").parquet(str(tmp_path / "in"))
        writer = rows.writeStream.format("eventmq").outputMode("append").options(
            broker=system.address, task="survivor.work", queue="streamed", idColumns="id",
            idSpace="streamed",
            checkpointLocation=str(tmp_path / "checkpoint"),
        )  # fmt: skip
        writer.trigger(availableNow=True).start().awaitTermination()
        shutil.rmtree(tmp_path / "checkpoint")
    assert len(listed(app, "streamed")) == 20


def test_bad_input_is_named(
    spark: SparkSession, read: Callable[..., DataFrame], tmp_path: Path
) -> None:
    with pytest.raises(PySparkException, match="there is no journal in"):
        spark.read.format("eventmq").load(str(tmp_path / "none")).count()
    with pytest.raises(PySparkException, match="a journal has no table 'jobs'"):
        spark.read.format("eventmq").option("table", "jobs").load(str(tmp_path)).count()
    with pytest.raises(PySparkException, match="has no events yet"):
        spark.read.format("eventmq").load(str(tmp_path)).count()
    with pytest.raises(PySparkException, match="the format reads folders, not s3a"):
        spark.read.format("eventmq").load("s3a://bucket/journal").count()
    nowhere = {"broker": "tcp://127.0.0.1:9", "timeout": "0.2", "table": "queues"}
    with pytest.raises(PySparkException, match="no broker could be reached in time"):
        spark.read.format("eventmq").options(**nowhere).load().count()
    with pytest.raises(PySparkException, match="queue and task choose among jobs"):
        read("queues", queue="q").count()
