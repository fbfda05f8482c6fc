"""The data source ``eventmq`` of Spark: reads journals and brokers, writes jobs.

Spark pickles these classes for its executors, which need EventMQ installed as well. Readers and
writers are imported inside methods, so that a Spark task loads only what it uses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from eventmq.errors import SettingsError
from eventmq_contrib.spark.source.ids import EPOCH, with_ids
from eventmq_contrib.spark.source.options import (
    ReadOptions,
    StreamOptions,
    WriteOptions,
    read_options,
)

__all__ = ["EventMQDataSource", "enqueue"]


class EventMQDataSource(DataSource):
    """``spark.read``, ``spark.readStream``, ``df.write`` and ``df.writeStream`` of ``eventmq``.

    Register it once per session: ``spark.dataSource.register(EventMQDataSource)``.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "eventmq"

    def schema(self) -> StructType | str:
        """Return the columns of a table.

        Raises:
            SettingsError: An option is unknown, or its value is not allowed.
        """
        from eventmq_contrib.spark.source.reader import EVENTS, OF_BROKER

        # A stream is of events; its options are checked by its reader.
        table = self.options.get("table", "events").lower()
        of_journal = "journal" in self.options or "path" in self.options
        return EVENTS if of_journal else OF_BROKER.get(table, EVENTS)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a table."""
        from eventmq_contrib.spark.source.reader import BrokerReader, JournalReader

        options = read_options(ReadOptions, self.options, subject="a reader")
        return (JournalReader if options.journal else BrokerReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a journal that grows."""
        from eventmq_contrib.spark.source.stream import JournalStream

        options = read_options(StreamOptions, self.options, subject="a stream reader")
        return JournalStream(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's
        """Return the writer of jobs."""
        from eventmq_contrib.spark.source.writer import JobWriter

        return JobWriter(self._writing(overwrite=overwrite), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802, FBT001 - Spark's name
        """Return the writer of the jobs of a stream."""
        from eventmq_contrib.spark.source.writer import StreamJobWriter

        return StreamJobWriter(self._writing(overwrite=overwrite), schema)

    def _writing(self, *, overwrite: bool) -> WriteOptions:
        if overwrite:
            raise SettingsError('jobs cannot be overwritten; allowed is: mode("append")')
        # The option checkpointLocation is for Spark itself.
        writer_options = {
            k: v for k, v in self.options.items() if k.lower() != "checkpointlocation"
        }
        return read_options(WriteOptions, writer_options, subject="a writer")


def enqueue(
    task: str, *, query_id: str | None = None, **options: object
) -> Callable[[DataFrame, int], None]:
    """Return a function for ``foreachBatch`` that submits one job per row, exactly once.

    A batch that is repeated after a kill or an error submits no job twice: the id of a job is
    derived from the id of the query, the number of the batch, the content of the row, and its
    ordinal among equal rows. The checkpoint of a query keeps its id. A repeated batch must have the
    same rows; columns such as ``rand()`` change them.

    Args:
        task: Name of the task.
        query_id: Replaces the id of the query, for Spark Connect, which does not reveal it, and to
            continue with another checkpoint.
        **options: Options of the writer, such as ``broker``, ``argColumns``, ``queue`` and
            ``rate``, except those about ids.

    Returns:
        A function of a DataFrame and the number of a batch, which can be pickled. It returns when
        the broker has confirmed all jobs of the batch.

    Raises:
        SettingsError: An option is about ids.
    """
    for name in options:
        if name.lower() in {"idcolumns", "idspace", "idtime", "action"}:
            raise SettingsError(f"enqueue makes ids itself: it takes no option {name!r}")
    texts = {name: str(value) for name, value in options.items()}
    return functools.partial(_submit, task=task, query_id=query_id, options=texts)


def _submit(
    rows: DataFrame, batch: int, *, task: str, query_id: str | None, options: dict[str, str]
) -> None:
    """Submit the rows of a batch, and return when the broker has confirmed all.

    Args:
        rows: Rows of the batch.
        batch: Number of the batch.
        task: As for `enqueue`.
        query_id: As for `enqueue`.
        options: As for `enqueue`, as texts.

    Raises:
        SettingsError: The id of the query is not known, or there is a column job_id.
        PySparkException: A job was not confirmed; the query can be started again.
    """
    if "job_id" in rows.columns:
        raise SettingsError("enqueue makes ids itself: rename or drop the column job_id")
    query = query_id or _query_of(rows)
    rows.sparkSession.dataSource.register(EventMQDataSource)
    writer = with_ids(rows, f"{query}|{batch}|{task}", EPOCH + batch).write
    writer.format("eventmq").options(**options, task=task).mode("append").save()


def _query_of(rows: DataFrame) -> str:
    """Return the id of the running query, which its checkpoint keeps."""
    context = getattr(rows.sparkSession, "_sc", None)
    query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
    if not query:
        raise SettingsError(
            "Spark does not reveal the id of the query here: use enqueue(..., query_id=...), the "
            "same whenever the query is started again"
        )
    return str(query)
