"""Files that are there whole or not at all, also after a power cut: written beside and renamed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["put_table", "write_whole"]


def write_whole(path: Path, content: Any) -> None:
    """Let a file take the place of one that may be there, whole.

    Args:
        path: Its place; the folder is made.
        content: Text, or bytes of any kind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"_{path.name}.draft")
    with draft.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def put_table(path: Path, table: Any) -> None:
    """Let a Parquet file take the place of one that may be there, whole.

    Args:
        path: Its place.
        table: A `pyarrow.Table`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    write_whole(path, sink.getvalue())
