"""Events as Parquet: the schema of published rows, and functions that write and check files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from eventmq.sdk.events import COLUMNS, SCHEMA_VERSION

__all__ = ["arrow_schema", "encode_events", "is_whole", "write_tables"]

#: First and last bytes of a Parquet file.
_MAGIC = b"PAR1"

#: Columns of text with mostly different values.
_HIGH_CARDINALITY = frozenset({"job_id", "root_id", "parent_id", "trace_id", "arguments", "result"})

#: Columns with few different values.
_LOW_CARDINALITY = [
    column.name
    for column in COLUMNS
    if column.type == "string" and column.name not in _HIGH_CARDINALITY
]

#: Options of written files: each page has a checksum.
_OPTIONS = {
    "compression": "zstd", "use_dictionary": _LOW_CARDINALITY, "write_page_checksum": True,
}  # fmt: skip


def arrow_schema() -> Any:
    """Return the `pyarrow.Schema` of events."""
    fields = [pa.field(c.name, getattr(pa, c.type)(), nullable=c.nullable) for c in COLUMNS]
    return pa.schema(fields, metadata={"eventmq.schema_version": str(SCHEMA_VERSION)})


def encode_events(values: Mapping[str, Sequence[Any]]) -> memoryview:
    """Return columns of events as the bytes of one Parquet file, with a checksum of each page.

    Args:
        values: As in `eventmq.events.EventColumns`.
    """
    schema = arrow_schema()
    arrays = [pa.array(values[field.name], type=field.type) for field in schema]
    table = pa.Table.from_arrays(arrays, schema=schema)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **_OPTIONS)
    return memoryview(sink.getvalue())


def write_tables(path: Path, tables: Iterable[Any]) -> None:
    """Write tables of events as one synced Parquet file, with a checksum of each page.

    Args:
        path: Path of the file.
        tables: Tables with all columns in order, each a `pyarrow.Table`.
    """
    with path.open("wb") as file:
        with pq.ParquetWriter(file, arrow_schema(), **_OPTIONS) as writer:
            for table in tables:
                writer.write_table(table)
        file.flush()
        os.fsync(file.fileno())


def is_whole(path: Path) -> bool:
    """Return whether a file begins and ends like a Parquet file."""
    with path.open("rb") as file:
        if file.read(4) != _MAGIC:
            return False
        file.seek(-4, os.SEEK_END)
        return file.read(4) == _MAGIC
