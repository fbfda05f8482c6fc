"""Schema of events in Spark, made from the published columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.sdk.events import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    #: Type of a row of events; its first use loads pyspark.
    EVENTS: StructType

__all__ = ["EVENTS", "events_type"]


def events_type() -> StructType:
    """Return the type of a row of events: all columns, in their order."""
    from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

    types = {"string": StringType(), "int32": IntegerType(), "int64": LongType()}
    return StructType([StructField(c.name, types[c.type], c.nullable) for c in COLUMNS])


def __getattr__(name: str) -> Any:
    """Make ``EVENTS`` when it is first used."""
    if name != "EVENTS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = events_type()
    return value
