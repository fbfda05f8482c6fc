"""Writers of the data source: one job per row, or one replay of a failed job per row.

A task of Spark that is retried, and a program that is started again, write the same ids, and the
broker has each job once. Nothing is undone when a write is aborted: what was confirmed stays, and
the write can be done again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

    from eventmq_contrib.spark.source.options import Writing
    from eventmq_contrib.spark.source.sending import Shape

__all__ = ["JobWriter", "StreamJobWriter"]


def write(options: Writing, shape: Shape, batches: Iterator[Any]) -> WriterCommitMessage:
    """Send the rows of one Spark task to the broker; return when all are confirmed.

    Returns:
        With ``counts``: ``jobs``, or of a replay what became of them.

    Raises:
        BatchError: Some jobs were not confirmed.
        BrokerUnavailable: The broker does not answer.
        SettingsError: A row has no id.
    """
    from pyspark.sql.datasource import WriterCommitMessage

    from eventmq_contrib.spark.source.connect import connected
    from eventmq_contrib.spark.source.sending import replay, submit

    written = WriterCommitMessage()
    send = replay if options.action == "replay" else submit
    with connected(options) as app:
        vars(written)["counts"] = send(app, options, shape, batches)
    return written


class JobWriter:
    """Writes a DataFrame.

    Raises:
        SettingsError: The columns do not fit the options; nothing was sent.
    """

    def __init__(self, options: Writing, schema: StructType) -> None:
        from eventmq_contrib.spark.source.sending import Shape

        self.options = options
        self.shape = Shape.of(options, schema.fieldNames())

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write the rows of one Spark task."""
        return write(self.options, self.shape, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Write the report, where one is wanted: all rows are with the broker."""
        if self.options.report is None:
            return
        from eventmq_contrib.spark.atomic import write_whole
        from eventmq_contrib.spark.source.sending import total

        counts = total(vars(each)["counts"] for each in messages if each is not None)
        write_whole(Path(self.options.report), json.dumps(counts))


class StreamJobWriter:
    """Writes the batches of a stream; as `JobWriter`."""

    def __init__(self, options: Writing, schema: StructType) -> None:
        from eventmq_contrib.spark.source.sending import Shape

        self.options = options
        self.shape = Shape.of(options, schema.fieldNames())

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write the rows of one Spark task."""
        return write(self.options, self.shape, iterator)
