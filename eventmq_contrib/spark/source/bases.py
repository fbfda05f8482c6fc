"""Puts classes of this package together with those of pyspark that they implement.

A module here can be imported where pyspark is missing, so that none of them names it at its top.
"""

from __future__ import annotations

import types
from functools import lru_cache
from typing import Any

__all__ = ["on"]


@lru_cache(maxsize=32)
def on(kind: type, *names: str) -> Any:
    """Return a class that is both: ours, and those of pyspark.

    Spark pickles it by value, and what is in ``kind`` by its name.

    Args:
        kind: Ours; its methods come first.
        *names: Of classes in `pyspark.sql.datasource`, or in its module of streams.
    """
    from pyspark.sql import datasource
    from pyspark.sql.streaming import datasource as streaming

    bases = [getattr(datasource, name, None) or getattr(streaming, name) for name in names]
    return types.new_class(f"Spark{kind.__name__}", (kind, *bases))
