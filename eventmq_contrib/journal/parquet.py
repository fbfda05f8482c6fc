"""Events as Parquet: the schema of the published row, and how a file is written and read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, BinaryIO

from eventmq.sdk.events import COLUMNS, SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

__all__ = ["arrow_schema", "encode_events", "is_whole", "read_rows", "write_events", "write_tables"]

#: First and last bytes of a Parquet file.
_MAGIC = b"PAR1"

#: Columns of text in which most values differ.
_HIGH_CARDINALITY = frozenset({"job_id", "root_id", "parent_id", "trace_id", "arguments", "result"})

#: Columns in which most values are the same, or of few.
_LOW_CARDINALITY = [
    column.name
    for column in COLUMNS
    if column.type == "string" and column.name not in _HIGH_CARDINALITY
]


def arrow_schema() -> Any:
    """Return the `pyarrow.Schema` of events."""
    import pyarrow as pa

    types = {"string": pa.string(), "int32": pa.int32(), "int64": pa.int64()}
    fields = [pa.field(c.name, types[c.type], nullable=c.nullable) for c in COLUMNS]
    return pa.schema(fields, metadata={"eventmq.schema_version": str(SCHEMA_VERSION)})


def encode_events(values: Mapping[str, Sequence[Any]]) -> memoryview:
    """Return columns of events as the bytes of one Parquet file, with a checksum of each page.

    Args:
        values: As in `eventmq.events.EventColumns`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = arrow_schema()
    arrays = [pa.array(values[field.name], type=field.type) for field in schema]
    table = pa.Table.from_arrays(arrays, schema=schema)
    sink = pa.BufferOutputStream()
    pq.write_table(
        table, sink, compression="zstd", use_dictionary=_LOW_CARDINALITY, write_page_checksum=True
    )
    return memoryview(sink.getvalue())


def write_events(file: BinaryIO, values: Mapping[str, Sequence[Any]]) -> None:
    """Write columns of events as one Parquet file.

    Args:
        file: Open for writing; it stays open.
        values: As in `eventmq.events.EventColumns`.
    """
    file.write(encode_events(values))


def write_tables(path: Path, tables: Iterable[Any]) -> None:
    """Write tables of events as one synced Parquet file, with a checksum of each page.

    Args:
        path: Of the file.
        tables: Each a `pyarrow.Table` with all columns, in their order.
    """
    import pyarrow.parquet as pq

    with path.open("wb") as file:
        with pq.ParquetWriter(
            file,
            arrow_schema(),
            compression="zstd",
            use_dictionary=_LOW_CARDINALITY,
            write_page_checksum=True,
        ) as writer:
            for table in tables:
                writer.write_table(table)
        file.flush()
        os.fsync(file.fileno())


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file, for tests and small files."""
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = pq.ParquetFile(path).read().to_pylist()
    return rows


def is_whole(path: Path) -> bool:
    """Return whether a file begins and ends as a Parquet file does."""
    with path.open("rb") as file:
        if file.read(4) != _MAGIC:
            return False
        file.seek(-4, 2)
        return file.read(4) == _MAGIC
