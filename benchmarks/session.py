"""The Spark session in which a row is measured, with two cores on any machine."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from benchmarks.figures import Figures

__all__ = ["measured_on"]


@contextlib.contextmanager
def measured_on(
    figures: Figures, config: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Yield a session that ends with the row, and record the versions of Spark and Java.

    Args:
        figures: Figures of the row.
        config: Settings of Spark.
    """
    from eventmq_contrib.spark.java import find_java
    from eventmq_contrib.spark.session import spark_session

    session = spark_session("benchmarks", master="local[2]", config=config)
    figures.more |= {"spark": session.version, "java": find_java().version}
    try:
        yield session
    finally:
        session.stop()
