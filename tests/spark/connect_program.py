"""Reads a journal in three ways as a client of Spark Connect, and prints what it found.

python -m tests.spark.connect_program ADDRESS JOURNAL
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from eventmq_contrib.spark import EventMQDataSource, read_journal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read(spark: SparkSession, journal: str) -> dict[str, Any]:
    """Return the kind of session, and the number of events by reader."""
    spark.dataSource.register(EventMQDataSource)
    stream = spark.readStream.format("eventmq").option("journal", journal).load()
    query = stream.writeStream.format("memory").queryName("seen").trigger(availableNow=True).start()
    found = {
        "kind": type(spark).__module__,
        "source": spark.read.format("eventmq").load(journal).count(),
        "journal": read_journal(spark, journal).count(),
    }
    query.awaitTermination()
    return {**found, "stream": spark.table("seen").count()}


def main(address: str, journal: str) -> None:
    """Be a client of a server."""
    from pyspark.sql import SparkSession

    session = SparkSession.builder.remote(address).getOrCreate()
    print(json.dumps(read(session, journal)))
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
