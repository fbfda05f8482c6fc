"""The data source ``eventmq`` of Spark: reads journals and brokers, writes jobs.

Spark pickles what is here for its executors, which need EventMQ installed as well. Modules of this
package can be imported where pyspark is missing: the classes that inherit from those of pyspark are
made when they are first used, and everything else is imported inside methods, so that a Spark task
loads only what it uses.
"""

from __future__ import annotations

import types
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from pyspark.sql.datasource import (
        DataSource,
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    #: ``spark.read``, ``spark.readStream``, ``df.write`` and ``df.writeStream`` of ``eventmq``.
    #: Register it once per session: ``spark.dataSource.register(EventMQDataSource)``. It is made
    #: when it is first used, with pyspark.
    EventMQDataSource: type[DataSource]

__all__ = ["EventMQDataSource", "spark_class"]


def __getattr__(name: str) -> Any:
    """Make the class when it is first used; Spark's processes find it here by its name, too."""
    if name != "EventMQDataSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = spark_class(Format, "DataSource")
    made.__module__, made.__name__, made.__qualname__ = __name__, name, name
    globals()[name] = made
    return made


class Format:
    """Methods of `EventMQDataSource`, as pyspark's ``DataSource`` defines them."""

    options: MutableMapping[str, str]

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "eventmq"

    def schema(self) -> StructType | str:
        """Return the columns of a table.

        Raises:
            SettingsError: An option is unknown, or its value is not allowed.
        """
        from eventmq_contrib.spark.schema import events_type
        from eventmq_contrib.spark.source.reader import OF_BROKER

        # A stream is of events; its options are checked by its reader.
        table = self.options.get("table", "events").lower()
        of_journal = "journal" in self.options or "path" in self.options
        return events_type() if of_journal else OF_BROKER.get(table, events_type())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a table."""
        from eventmq_contrib.spark.source.options import Reading, read_options
        from eventmq_contrib.spark.source.reader import BrokerReader, JournalReader

        options = read_options(Reading, self.options, subject="a reader")
        kind = JournalReader if options.journal else BrokerReader
        return spark_class(kind, "DataSourceReader")(options, schema)  # type: ignore[no-any-return]

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a journal that grows."""
        from eventmq_contrib.spark.source.options import Streaming, read_options
        from eventmq_contrib.spark.source.stream import JournalStream

        options = read_options(Streaming, self.options, subject="a stream reader")
        kind = spark_class(JournalStream, "DataSourceStreamReader", "SupportsTriggerAvailableNow")
        return kind(options, schema)  # type: ignore[no-any-return]

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's
        """Return the writer of jobs."""
        from eventmq_contrib.spark.source.writer import JobWriter

        kind = spark_class(JobWriter, "DataSourceArrowWriter")
        return kind(self._writing(overwrite=overwrite), schema)  # type: ignore[no-any-return]

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802, FBT001 - Spark's
        """Return the writer of the jobs of a stream."""
        from eventmq_contrib.spark.source.writer import StreamJobWriter

        kind = spark_class(StreamJobWriter, "DataSourceStreamArrowWriter")
        return kind(self._writing(overwrite=overwrite), schema)  # type: ignore[no-any-return]

    def _writing(self, *, overwrite: bool) -> Any:
        from eventmq.errors import SettingsError
        from eventmq_contrib.spark.source.options import Writing, read_options

        if overwrite:
            raise SettingsError('jobs cannot be overwritten; allowed is: mode("append")')
        # Spark's own, for what it keeps of a stream.
        own = {k: v for k, v in self.options.items() if k.lower() != "checkpointlocation"}
        return read_options(Writing, own, subject="a writer")


@lru_cache(maxsize=32)
def spark_class(kind: type, *names: str) -> Any:
    """Return a class that inherits from one of ours and from classes of pyspark.

    Spark pickles it by value, and the methods of ``kind`` by name.

    Args:
        kind: Our class; its methods come first.
        *names: Classes in `pyspark.sql.datasource`, or in its module of streams.
    """
    from pyspark.sql import datasource
    from pyspark.sql.streaming import datasource as streaming

    bases = [getattr(datasource, name, None) or getattr(streaming, name) for name in names]
    return types.new_class(f"Spark{kind.__name__}", (kind, *bases))
