"""Copies of a store: of its files before a repair, and backups while a broker runs."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from typing import TYPE_CHECKING

from eventmq.errors import StoreError
from eventmq.plugins.database import UNREADABLE, connect, copy_database, has_page_checksums
from eventmq.plugins.private_files import make_private_file
from eventmq.plugins.queue_stores.sqlite.disk import DataDirectory
from eventmq.plugins.queue_stores.sqlite.wal import BUSY_TIMEOUT
from eventmq.sdk import BackedUp

if TYPE_CHECKING:
    from pathlib import Path

    import apsw

__all__ = ["back_up", "copy_files", "sync"]

#: Suffixes of the log of a database and of its index.
_LOG_SUFFIXES = ("-wal", "-shm")


def copy_files(path: Path, name: str) -> Path:
    """Copy the files of a database and its log into a new folder next to them; return the folder.

    Raises:
        StoreError: The disk is full, or the folder cannot be written.
    """
    folder = path.parent / name
    try:
        folder.mkdir(0o700)
        for source in (path, path.with_name(f"{path.name}-wal")):
            if source.exists():
                make_private_file(folder / source.name)
                shutil.copyfile(source, folder / source.name)
                sync(folder / source.name)
        sync(folder)
        sync(path.parent)
    except OSError as error:
        raise StoreError(
            f"cannot copy the store to {folder}: {error.strerror or error}; nothing was changed"
        ) from error
    return folder


def back_up(db: apsw.Connection, path: Path, folder: Path, *, replace: bool) -> BackedUp:
    """Write the database that a connection sees into a folder, atomically.

    Raises:
        StoreError: The folder has a store already, or cannot be written.
    """
    final = folder / path.name
    if final.exists() and not replace:
        raise StoreError(
            f"there is a store in {folder} already: name another folder, or use --replace"
        )
    directory = DataDirectory(folder, 0)
    directory.open()  # no broker may have the replaced store open
    partial = folder / f".{path.name}.{os.getpid()}.tmp"
    try:
        _check_closed(final)
        size = _copy(db, partial)
        _put_in_place(partial, final)
    except (OSError, *UNREADABLE) as error:
        raise StoreError(
            f"cannot write the backup to {folder}: {error}; nothing was written"
        ) from error
    finally:
        for name in ("", "-journal", *_LOG_SUFFIXES):
            partial.with_name(partial.name + name).unlink(missing_ok=True)
        directory.close()
    return BackedUp(str(final), size)


def _check_closed(final: Path) -> None:
    """Refuse to replace a store that has a log: two files cannot be replaced atomically."""
    log = final.with_name(f"{final.name}-wal")
    if log.exists() and log.stat().st_size:
        raise StoreError(f"{final} was in use and has a log: name another folder, or remove both")


def _copy(db: apsw.Connection, partial: Path) -> int:
    make_private_file(partial)
    with contextlib.closing(
        connect(partial, busy=BUSY_TIMEOUT, page_checksums=has_page_checksums(db))
    ) as copy:
        copy.execute("PRAGMA synchronous = OFF")  # the whole file is synced at the end
        copy_database(db, copy)
        # The backup becomes a store of its own, since its source goes on separately.
        copy.execute("PRAGMA journal_mode = DELETE")
        copy.execute("BEGIN")
        copy.execute("DELETE FROM meta WHERE key GLOB 'journal*' OR key = 'addresses'")
        copy.execute(
            "INSERT OR REPLACE INTO meta SELECT 'copied_from', value FROM meta "
            "WHERE key = 'store_id' AND NOT EXISTS (SELECT 1 FROM meta WHERE key = 'copied')"
        )
        identity = (("store_id", secrets.token_hex(8)), ("copied", time.time()))
        copy.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", identity)
        copy.execute("COMMIT")
    return partial.stat().st_size


def _put_in_place(partial: Path, final: Path) -> None:
    """Give a complete copy its final name, after removing the log of the replaced store."""
    sync(partial)
    for name in _LOG_SUFFIXES:
        final.with_name(final.name + name).unlink(missing_ok=True)
    partial.replace(final)
    sync(final.parent)


def sync(path: Path) -> None:
    """Sync a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
