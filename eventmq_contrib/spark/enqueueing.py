"""Submits jobs from the batches of a stream: ``writeStream.foreachBatch(enqueue("shop.send"))``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.errors import SettingsError
from eventmq_contrib.spark.source.ids import EPOCH

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Enqueue", "enqueue"]

#: Options for writing values that determine ids, without loss of precision.
_EXACT = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}

#: Intermediate columns.
_CONTENT, _ORDINAL, _DIGEST = "_eventmq_content", "_eventmq_ordinal", "_eventmq_digest"


def enqueue(task: str, *, query_id: str | None = None, **options: object) -> Enqueue:
    """Return a function for ``foreachBatch`` that submits one job per row, each once.

    A batch that is repeated after a kill or an error submits nothing twice: the id of a job is
    derived from the id of the query, the number of the batch, the content of the row, and its
    ordinal among equal rows. The id of a query is kept in its checkpoint. The rows must be the same
    when a batch is repeated; columns such as ``rand()`` change them.

    Args:
        task: Name of the task.
        query_id: Replaces the id of the query, for Spark Connect, which does not reveal it, and to
            continue with another checkpoint.
        **options: Options of the writer, such as ``broker``, ``argColumns``, ``queue`` and
            ``rate``, except those about ids.

    Returns:
        A function of a DataFrame and the number of a batch.

    Raises:
        SettingsError: An option is about ids.
    """
    return Enqueue(task, query_id=query_id, **options)


class Enqueue:
    """Submits the rows of a batch; see `enqueue`. It can be pickled."""

    def __init__(self, task: str, *, query_id: str | None = None, **options: object) -> None:
        for name in options:
            if name.lower() in {"idcolumns", "idspace", "idtime", "action"}:
                raise SettingsError(f"enqueue makes ids itself: it takes no option {name!r}")
        self.task = task
        self.query_id = query_id
        self.options = {name: str(value) for name, value in options.items()}

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Submit the rows of a batch, and return when the broker has confirmed all.

        Args:
            rows: Rows of the batch.
            batch: Number of the batch.

        Raises:
            SettingsError: The id of the query is not known, or there is a column job_id.
            PySparkException: A job was not confirmed; the query can be started again.
        """
        from eventmq_contrib.spark.source import EventMQDataSource

        if "job_id" in rows.columns:
            raise SettingsError("enqueue makes ids itself: rename or drop the column job_id")
        query = self.query_id or _query_of(rows)
        rows.sparkSession.dataSource.register(EventMQDataSource)
        writer = with_ids(rows, f"{query}|{batch}|{self.task}", EPOCH + batch).write
        writer.format("eventmq").options(**self.options, task=self.task).mode("append").save()


def _query_of(rows: DataFrame) -> str:
    """Return the id of the running query, which its checkpoint keeps."""
    context = getattr(rows.sparkSession, "_sc", None)
    query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
    if not query:
        msg = "Spark does not say the id of the query here: enqueue(..., query_id=...), which must "
        raise SettingsError(msg + "be the same whenever the query is started again")
    return str(query)


def with_ids(rows: DataFrame, space: str, ms: int) -> DataFrame:
    """Return rows with a column ``job_id``, the same for the same rows.

    Args:
        rows: Rows of one batch.
        space: Name space of the ids.
        ms: Milliseconds with which the ids begin.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    content = f.sha2(f.to_json(f.struct(*rows.columns), _EXACT), 256)
    equal = Window.partitionBy(_CONTENT).orderBy(_CONTENT)
    text = f.concat_ws("|", f.lit(space), _CONTENT, f.col(_ORDINAL).cast("string"))
    # The variant of RFC 9562 is in two bits; the other two of the digit are of the digest.
    digit = f.conv(f.substring(_DIGEST, 4, 1), 16, 10).cast("int").bitwiseAND(3) + 8
    job_id = f.concat(
        f.lit(f"{ms:012x}7"), f.substring(_DIGEST, 1, 3), f.lower(f.hex(digit)),
        f.substring(_DIGEST, 5, 15),
    )  # fmt: skip
    return (
        rows.withColumn(_CONTENT, content)
        .withColumn(_ORDINAL, f.row_number().over(equal))
        .withColumn(_DIGEST, f.sha2(text, 256))
        .withColumn("job_id", job_id)
        .drop(_CONTENT, _ORDINAL, _DIGEST)
    )
