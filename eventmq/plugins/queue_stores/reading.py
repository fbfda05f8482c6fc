"""Opens a store to read it, also while a broker writes it."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING
from urllib.parse import quote

from eventmq.errors import StoreError
from eventmq.plugins.queue_stores.schema import APPLICATION_ID, SCHEMA_VERSION

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["UNREADABLE", "open_to_read", "version_of"]

#: What may be raised over a file that is damaged: `sqlite3` decodes the words of an error, and
#: these may have bytes of the damage in them.
UNREADABLE = (sqlite3.Error, UnicodeDecodeError)

#: Seconds to wait where a broker that starts has the file for itself.
_PATIENCE = 5.0


def open_to_read(path: Path) -> sqlite3.Connection:
    """Return a connection that cannot write, to a store that a broker may have open.

    Where nobody may make the index of the log, and there is no log, the file does not change.

    Raises:
        sqlite3.Error, UnicodeDecodeError: The file cannot be read; see `UNREADABLE`.
    """
    name = quote(str(path.absolute()))
    db = _connect(f"file:{name}?mode=ro")
    try:
        db.execute("SELECT 1 FROM sqlite_master")
    except sqlite3.OperationalError:
        db.close()
        if path.with_name(f"{path.name}-wal").exists():
            raise
        db = _connect(f"file:{name}?mode=ro&immutable=1")
    except UNREADABLE:
        db.close()
        raise
    return db


def _connect(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(
        uri, uri=True, isolation_level=None, timeout=_PATIENCE, check_same_thread=False
    )


def version_of(db: sqlite3.Connection, path: Path) -> int:
    """Return the version of a store.

    Raises:
        StoreError: It is none, or of a newer version than this EventMQ knows.
    """
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (application,) = db.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        raise StoreError(f"{path} is not a store of EventMQ")
    if version > SCHEMA_VERSION:
        msg = (
            f"{path} has store version {version}, this EventMQ knows up to "
            f"{SCHEMA_VERSION}: use the newer EventMQ that wrote it"
        )
        raise StoreError(msg)
    return int(version)
