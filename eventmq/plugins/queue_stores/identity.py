"""What a store says of itself: the id that peers know it by, and how often it was opened."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import apsw

__all__ = ["identify"]


def identify(db: apsw.Connection, now: float) -> tuple[str, int]:
    """Return id and epoch of a store that a broker opens, and write them.

    A backup gets an id of its own each time that a broker opens it anew: what is sent again, and
    the journal, belong to the store that it was copied from. Its epoch is above all that peers
    can have seen, since that store may have gone on.

    Args:
        db: In a transaction.
        now: Unix time.
    """
    meta = dict(db.execute("SELECT key, value FROM meta"))
    store_id, epoch = meta.get("store_id"), meta.get("epoch", 0) + 1
    if "copied" in meta:
        store_id, epoch = None, max(epoch, int(now))
        db.execute("DELETE FROM meta WHERE key = 'copied'")
    store_id = store_id or secrets.token_hex(8)
    for item in (("store_id", store_id), ("epoch", epoch)):
        db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", item)
    return store_id, epoch
