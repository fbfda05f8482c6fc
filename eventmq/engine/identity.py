"""Identity of a store: its id, its epoch and the record of its clocks, kept as single values."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any
from zlib import crc32

from eventmq.errors import ProtocolError, StoreError
from eventmq.timekeeping import ClockRecord
from eventmq.wire.batches import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.engine.contract import RowStore

__all__ = ["check_expected", "identify", "read_clock", "save_clock"]


def identify(store: RowStore, now: float, epoch: int | None = None) -> tuple[str, int]:
    """Return and store the id and the epoch of a store that a broker opens.

    A backup gets an id of its own when a broker first opens it, since messages that peers send
    again, and the journal, belong to the store that was copied. Its epoch is higher than any that
    peers can have seen, since the copied store may still be in use.

    Args:
        store: The rows, in a transaction.
        now: Unix time.
        epoch: Number of this opening; None for one more than the last.

    Raises:
        ProtocolError: The stored id or epoch is damaged.
    """
    values = store.values()
    for key, kind in (("store_id", str), ("epoch", int)):
        if not isinstance(value := values.get(key, kind()), kind):
            raise ProtocolError(
                f"its {key} in the table meta is {value!r:.40}, of the type {type(value).__name__} "
                f"and not {kind.__name__}; eventmq fsck --repair gives it another one",
                code="bad-store",
            )
    store_id = values.get("store_id")
    if epoch is None:
        epoch = values.get("epoch", 0) + 1
    if "copied" in values:
        store_id, epoch = None, max(epoch, int(now))
    store_id = store_id or secrets.token_hex(8)
    store.set_values({"copied": None, "store_id": store_id, "epoch": epoch})
    return store_id, epoch


def check_expected(values: Mapping[str, Any], path: str, expected: str) -> None:
    """Refuse a store that does not have the expected id.

    Args:
        values: The single values of the store, before anything is written.
        path: Location of the store, for the error.
        expected: The id; "" to accept any.

    Raises:
        StoreError: The store has another id, or will get one because it is a backup or was
            salvaged.
    """
    if not expected:
        return
    store_id, restored = values.get("store_id"), values.get("copied_from")
    if "copied" in values:
        of = f" of the store {restored}" if restored else ""
        raise StoreError(
            f"the store {path} is a copy{of}, which gets an id of its own when a broker first "
            f"opens it: start the broker once without expect_store ({expected}), and then expect "
            "the id that its ready line says"
        )
    if store_id != expected:
        actual = f"the id {store_id}" if store_id else "no id"
        of = f" (it was a copy of the store {restored})" if restored else ""
        raise StoreError(
            f"the store {path} has {actual}{of}, and expect_store says {expected}: see that the "
            "right disk is mounted and --data-dir is right, or expect this id"
        )


def save_clock(store: RowStore, record: ClockRecord) -> None:
    """Store the readings of the clocks."""
    values = list(record)
    store.set_values({"clock": pack([values, crc32(pack(values))])})


def read_clock(packed: Any) -> ClockRecord | None:
    """Return the record of the clocks from the single value ``clock``; None if there is none.

    Raises:
        ProtocolError: The value is damaged.
    """
    if packed is None:
        return None
    try:
        values, checksum = unpack(packed, "the record of the clocks")
        record = ClockRecord.of(values)
    except (TypeError, ValueError) as error:
        raise ProtocolError("the record of the clocks cannot be read", code="bad-store") from error
    if checksum != crc32(pack(values)):
        raise ProtocolError("the checksum of the record of the clocks is wrong", code="bad-store")
    return record
