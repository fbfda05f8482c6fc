"""Copies of a store: of the raw files before a repair, and backups while a broker runs."""

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

#: Files that go with a database.
_BESIDE = ("-wal", "-shm")


def copy_files(path: Path, name: str) -> Path:
    """Copy a database and its log, as they are, into a new folder beside them; return that.

    Raises:
        StoreError: There is no room, or the folder cannot be written.
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
    """Write what a connection sees into a folder, all of it or nothing.

    Raises:
        StoreError: There is a store already, or the folder cannot be written.
    """
    final = folder / path.name
    if final.exists() and not replace:
        raise StoreError(
            f"there is a store in {folder} already: name another folder, or say --replace"
        )
    home = DataDirectory(folder, 0)
    home.open()  # what is replaced may not be open
    draft = folder / f".{path.name}.{os.getpid()}.tmp"
    try:
        _must_be_closed(final)
        size = _copy(db, draft)
        _put_in_place(draft, final)
    except (OSError, *UNREADABLE) as error:
        raise StoreError(
            f"cannot write the backup to {folder}: {error}; nothing is there that was not before"
        ) from error
    finally:
        for name in ("", "-journal", *_BESIDE):
            draft.with_name(draft.name + name).unlink(missing_ok=True)
        home.close()
    return BackedUp(str(final), size)


def _must_be_closed(final: Path) -> None:
    """See that a store that is to be replaced is one file: two cannot be replaced at once."""
    log = final.with_name(f"{final.name}-wal")
    if log.exists() and log.stat().st_size:
        raise StoreError(f"{final} was in use and has a log: name another folder, or remove both")


def _copy(db: apsw.Connection, draft: Path) -> int:
    make_private_file(draft)
    with contextlib.closing(
        connect(draft, busy=BUSY_TIMEOUT, page_checksums=has_page_checksums(db))
    ) as copy:
        copy.execute("PRAGMA synchronous = OFF")  # it is synced as a whole
        copy_database(db, copy)
        # A store of its own: it has another future than the one that it was copied from.
        copy.execute("PRAGMA journal_mode = DELETE")
        copy.execute("BEGIN")
        copy.execute("DELETE FROM meta WHERE key GLOB 'journal*' OR key = 'addresses'")
        copy.execute(
            "INSERT OR REPLACE INTO meta SELECT 'copied_from', value FROM meta "
            "WHERE key = 'store_id' AND NOT EXISTS (SELECT 1 FROM meta WHERE key = 'copied')"
        )
        made = (("store_id", secrets.token_hex(8)), ("copied", time.time()))
        copy.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", made)
        copy.execute("COMMIT")
    return draft.stat().st_size


def _put_in_place(draft: Path, final: Path) -> None:
    """Give a whole copy its name; a log of the one before must not be taken for its own."""
    sync(draft)
    for name in _BESIDE:
        final.with_name(final.name + name).unlink(missing_ok=True)
    draft.replace(final)
    sync(final.parent)


def sync(path: Path) -> None:
    """Make sure that a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
