"""Writes a table as a folder of Parquet files, whole or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from eventmq.errors import StoreError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["write_table"]

#: Spark writes it when a table is complete.
_COMPLETE = "_SUCCESS"


def write_table(table: DataFrame, out: str | Path) -> None:
    """Write a table; one that is there already is replaced once the new one is complete.

    Args:
        table: What to write.
        out: Folder, or an address that Spark knows, which Spark itself then replaces.

    Raises:
        StoreError: There is something else, or it cannot be written.
    """
    if "://" in str(out):
        table.write.mode("overwrite").parquet(str(out))
        return
    folder = Path(out).absolute()
    if folder.exists() and not (folder / _COMPLETE).is_file() and any(_content(folder)):
        msg = f"{folder} is there and is no table: name another with --out"
        raise StoreError(msg)
    draft = folder.with_name(f"_{folder.name}.draft")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(draft, ignore_errors=True)
        table.write.parquet(f"file://{draft}")
        _put(draft, folder)
    except OSError as error:
        msg = f"cannot write {folder}: {error.strerror or error}"
        raise StoreError(msg) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _put(draft: Path, folder: Path) -> None:
    """Let a new folder take the place of one that may be there."""
    old = folder.with_name(f"_{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    draft.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _content(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else [folder]
