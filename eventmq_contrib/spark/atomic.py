"""Files that are there whole or not at all, also after a power cut: written beside and renamed."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import BinaryIO

__all__ = ["put_table", "put_tables", "write_whole"]


@contextlib.contextmanager
def _draft(path: Path) -> Iterator[BinaryIO]:
    """Give a file that takes its place at the end; the folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"_{path.name}.draft")
    with draft.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def write_whole(path: Path, content: Any) -> None:
    """Let a file take the place of one that may be there, whole.

    Args:
        path: Its place; the folder is made.
        content: Text, or bytes of any kind.
    """
    with _draft(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def put_table(path: Path, table: Any) -> None:
    """Let a Parquet file take the place of one that may be there, whole.

    Args:
        path: Its place.
        table: A `pyarrow.Table`.
    """
    put_tables(path, table.schema, [table])


def put_tables(path: Path, schema: Any, tables: Iterable[Any]) -> None:
    """Write tables one after the other as one Parquet file, which is there whole or not at all.

    Args:
        path: Its place.
        schema: Of the file, as a `pyarrow.Schema`.
        tables: `pyarrow.Table` of these columns, of which one is in memory at a time.
    """
    import pyarrow.parquet as pq

    with _draft(path) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for table in tables:
            writer.write_table(table)
