"""Reads a journal in several ways as a client of Spark Connect, and prints the results.

The folder of the journal is also at an address that only Spark knows.

python -m tests.contrib.spark.connect_program ADDRESS JOURNAL
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventmq_contrib.spark import EventMQDataSource, read_journal
from eventmq_contrib.spark.journal import gather

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read(spark: SparkSession, journal: str) -> dict[str, Any]:
    """Return the kind of session, and the number of events by reader."""
    spark.dataSource.register(EventMQDataSource)
    stream = spark.readStream.format("eventmq").option("journal", journal).load()
    query = stream.writeStream.format("memory").queryName("seen").trigger(availableNow=True).start()
    results = {
        "kind": type(spark).__module__,
        "source": spark.read.format("eventmq").load(journal).count(),
        "journal": read_journal(spark, journal).count(),
    }
    spark.conf.set("fs.viewfs.mounttable.connect.link./far", Path(journal).parent.as_uri())
    address = f"viewfs://connect/far/{Path(journal).name}"
    results["address"] = read_journal(spark, address).count()
    results["proven"] = gather(spark, address).files.unproven == []
    query.awaitTermination()
    return {**results, "stream": spark.table("seen").count()}


def main(address: str, journal: str) -> None:
    """Be a client of a server."""
    from pyspark.sql import SparkSession

    session = SparkSession.builder.remote(address).getOrCreate()
    print(json.dumps(read(session, journal)))
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
