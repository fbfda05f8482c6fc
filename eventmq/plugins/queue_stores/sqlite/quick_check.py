"""The look at a store before a broker serves it: what is damaged is said before ``ready``.

Each table is read with its indexes, page by page, those first that every store needs. It takes
0.8 s for a million waiting jobs of 300 bytes that are in the system's memory; where the disk is
slow it ends after `SECONDS`, and says what it has not looked at.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from eventmq.errors import StoreError
from eventmq.plugins.queue_stores.sqlite.tools.files import read_answer

if TYPE_CHECKING:
    from pathlib import Path

    import apsw

__all__ = ["SECONDS", "check_quickly"]

logger = logging.getLogger("eventmq.store")

#: Seconds that it may take: a broker that was killed with a million waiting jobs serves again
#: within two.
SECONDS = 1.0

#: What is looked at last: it is large, and nothing waits for it.
_LAST = ("jobs", "member_results", "failed", "attempts", "outcomes", "events")

#: Steps of SQLite's machine between two looks at the clock.
_STEPS = 10_000


def check_quickly(db: apsw.Connection, path: Path, seconds: float = SECONDS) -> None:
    """Refuse a store that is damaged.

    Args:
        db: Open; it has no transaction.
        path: Of its file.
        seconds: That this may take.

    Raises:
        StoreError: A page of it cannot be used, or an index does not agree with its table.
    """
    end = time.monotonic() + seconds
    timed_out = False

    def is_late() -> bool:
        nonlocal timed_out
        timed_out = time.monotonic() > end
        return timed_out

    tables = _tables(db)
    db.set_progress_handler(is_late, _STEPS)
    try:
        for index, table in enumerate(tables):
            damaged, indexes = read_answer(db, f"PRAGMA integrity_check({table})")
            if damaged or indexes:
                raise StoreError(_sentence(path, table, damaged, indexes))
            if timed_out:
                message = "the check of the store %s ended after %g s, before %s: run eventmq fsck"
                logger.info(message, path, seconds, ", ".join(tables[index:]))
                return
    finally:
        db.set_progress_handler(None, 0)


def _tables(db: apsw.Connection) -> list[str]:
    """Return the names of all tables, the small ones first, of outcomes the newest first."""
    rows = db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name DESC")
    names = [name for (name,) in rows if not name.startswith("sqlite_")]
    return sorted(
        names, key=lambda name: _LAST.index(kind) if (kind := _kind(name)) in _LAST else -1
    )


def _kind(table: str) -> str:
    return table.partition("_")[0] if table.startswith("outcomes_") else table


def _sentence(path: Path, table: str, damaged: list[str], indexes: list[str]) -> str:
    if damaged:
        return (
            f"the store {path} is damaged in its table {table}: {damaged[0]}; copy what can be "
            "read into a new store with eventmq fsck --salvage DEST, or restore a backup"
        )
    return (
        f"the store {path} is damaged: the index {indexes[0]} does not agree with its table; "
        "eventmq fsck --repair makes it anew"
    )
