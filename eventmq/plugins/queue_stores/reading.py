"""Opens a store to read it, also while a broker writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.errors import StoreError
from eventmq.plugins.database import DAMAGED, UNREADABLE, connect, first_row
from eventmq.plugins.queue_stores.schema import APPLICATION_ID, SCHEMA_VERSION

if TYPE_CHECKING:
    from pathlib import Path

    import apsw

__all__ = ["open_to_read", "version_of"]

#: Seconds to wait where a broker that starts has the file for itself.
_PATIENCE = 5.0


def open_to_read(path: Path) -> apsw.Connection:
    """Return a connection that cannot write, to a store that a broker may have open.

    Where nobody may make the index of the log, and there is no log, the file does not change.

    Raises:
        apsw.Error, UnicodeDecodeError: The file cannot be read; see
            `eventmq.plugins.database.UNREADABLE`.
        StoreError: The SQLite library is one that can lose commits.
    """
    file = path.absolute()
    try:
        db = connect(file, busy=_PATIENCE, read_only=True)
        try:
            first_row(db, "SELECT 1 FROM sqlite_master")
        except BaseException:
            db.close()
            raise
    except UNREADABLE as error:
        if isinstance(error, DAMAGED) or path.with_name(f"{path.name}-wal").exists():
            raise
        db = connect(file, busy=_PATIENCE, immutable=True)
    return db


def version_of(db: apsw.Connection, path: Path) -> int:
    """Return the version of a store.

    Raises:
        StoreError: It is none, or of a newer version than this EventMQ knows.
    """
    (version,) = first_row(db, "PRAGMA user_version")
    (application,) = first_row(db, "PRAGMA application_id")
    if application != APPLICATION_ID:
        raise StoreError(f"{path} is not a store of EventMQ")
    if version > SCHEMA_VERSION:
        msg = (
            f"{path} has store version {version}, this EventMQ knows up to "
            f"{SCHEMA_VERSION}: use the newer EventMQ that wrote it"
        )
        raise StoreError(msg)
    return int(version)
