"""Opens a store to read it, also while a broker writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.plugins.database import DAMAGED, UNREADABLE, connect, first_row

if TYPE_CHECKING:
    from pathlib import Path

    import apsw

__all__ = ["open_to_read"]

#: Seconds to wait where a broker that starts has the file for itself.
_BUSY_TIMEOUT = 5.0


def open_to_read(path: Path) -> apsw.Connection:
    """Return a connection that cannot write, to a store that a broker may have open.

    Where the index of the log cannot be made, and there is no log, the file does not change.

    Raises:
        apsw.Error, UnicodeDecodeError: The file cannot be read; see
            `eventmq.plugins.database.UNREADABLE`.
        StoreError: The SQLite library is one that can lose commits.
    """
    file = path.absolute()
    try:
        db = connect(file, busy=_BUSY_TIMEOUT, read_only=True)
        try:
            first_row(db, "SELECT 1 FROM sqlite_master")
        except BaseException:
            db.close()
            raise
    except UNREADABLE as error:
        if isinstance(error, DAMAGED) or path.with_name(f"{path.name}-wal").exists():
            raise
        db = connect(file, busy=_BUSY_TIMEOUT, immutable=True)
    return db
