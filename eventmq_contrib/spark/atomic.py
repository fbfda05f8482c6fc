"""Atomic writes of tables: a new table is written beside the old one, synced and renamed."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from eventmq.errors import StoreError
from eventmq_contrib.atomic import replacing

__all__ = ["write_parquet", "write_table"]


def write_parquet(path: Path, schema: Any, tables: Iterable[Any]) -> None:
    """Write or replace a Parquet file, table by table.

    Args:
        path: Path of the file; the folder is made.
        schema: `pyarrow.Schema` of the file.
        tables: Tables of these columns, each a `pyarrow.Table`; one is in memory at a time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for table in tables:
            writer.write_table(table)


#: Spark writes it when a table is complete.
_COMPLETE = "_SUCCESS"


def write_table(table: DataFrame, out: str | Path) -> None:
    """Write a table as a folder of Parquet files; an old table is replaced by the complete new one.

    Args:
        table: The table.
        out: Folder, or an address that Spark knows; Spark itself replaces a table at an address.

    Raises:
        StoreError: The folder is not a table, or it cannot be written.
    """
    if "://" in str(out):
        table.write.mode("overwrite").parquet(str(out))
        return
    folder = Path(out).absolute()
    if (
        folder.exists()
        and not (folder / _COMPLETE).is_file()
        and any(folder.iterdir() if folder.is_dir() else [folder])
    ):
        raise StoreError(f"{folder} exists and is not a table: name another folder with --out")
    new = folder.with_name(f"_{folder.name}.tmp")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(new, ignore_errors=True)
        table.write.parquet(f"file://{new}")
        _replace(new, folder)
    except OSError as error:
        raise StoreError(f"cannot write {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _replace(new: Path, folder: Path) -> None:
    """Replace a folder, if it exists, by a new one."""
    old = folder.with_name(f"_{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
