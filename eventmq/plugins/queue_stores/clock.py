"""The clocks of the SQLite queue store, a row of ``meta``: what its time goes on from.

It is not believed without its checksum, since a flipped bit in it would let everything become old.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zlib import crc32

from eventmq.errors import ProtocolError
from eventmq.plugins.database import first_row
from eventmq.timekeeping import ClockRecord
from eventmq.wire.bulk import pack, unpack

if TYPE_CHECKING:
    import apsw

__all__ = ["load_clock", "read_clock", "save_clock"]


def save_clock(db: apsw.Connection, record: ClockRecord) -> None:
    """Write what the clocks show."""
    values = list(record)
    row = pack([values, crc32(pack(values))])
    db.execute("INSERT OR REPLACE INTO meta VALUES ('clock', ?)", (row,))


def load_clock(db: apsw.Connection) -> ClockRecord | None:
    """Return what was written last, None in a store that never had it.

    Raises:
        ProtocolError: It is damaged.
    """
    row = first_row(db, "SELECT value FROM meta WHERE key = 'clock'")
    return None if row is None else read_clock(row[0])


def read_clock(packed: Any) -> ClockRecord:
    """Return the record of a row.

    Raises:
        ProtocolError: It is damaged.
    """
    try:
        values, checksum = unpack(packed, "the row of the clocks")
        record = ClockRecord.of(values)
    except (TypeError, ValueError) as error:
        msg = "the row of the clocks cannot be read"
        raise ProtocolError(msg, code="bad-store") from error
    if checksum != crc32(pack(values)):
        raise ProtocolError("the row of the clocks does not fit its checksum", code="bad-store")
    return record
