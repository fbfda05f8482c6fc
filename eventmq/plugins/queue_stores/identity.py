"""What a store says of itself: the id that peers know it by, and how often it was opened."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from eventmq.errors import StoreError
from eventmq.plugins.database import all_rows, first_row

if TYPE_CHECKING:
    import apsw

__all__ = ["check_expected", "identify"]


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


def check_expected(db: apsw.Connection, where: str, expected: str) -> None:
    """Refuse a store that has another id than the expected one; "" expects none.

    Args:
        db: A connection that has written nothing yet.
        where: Path of the file, for the error.
        expected: The id.

    Raises:
        StoreError: It has another id, or will get one because it is a backup or was salvaged.
    """
    if not expected:
        return
    made = first_row(db, "SELECT 1 FROM sqlite_master WHERE name = 'meta'")
    meta = dict(all_rows(db, "SELECT key, value FROM meta")) if made else {}
    found, restored = meta.get("store_id"), meta.get("copied_from")
    if "copied" in meta:
        of = f" of the store {restored}" if restored else ""
        msg = (
            f"the store {where} is a copy{of}, which gets an id of its own when a broker first "
            f"opens it: start the broker once without expect_store ({expected}), and then expect "
            "the id that its ready line says"
        )
        raise StoreError(msg)
    if found != expected:
        has = f"the id {found}" if found else "no id"
        of = f" (it was a copy of the store {restored})" if restored else ""
        msg = (
            f"the store {where} has {has}{of}, and expect_store says {expected}: see that the "
            "right disk is mounted and --data-dir is right, or expect this id"
        )
        raise StoreError(msg)
