"""Events for plugins: the published columns, how events are stored, and rows of an event log.

`eventmq.sdk.EventLogReader` returns stored rows, from ``app.event_log()``; `EventColumns` converts
them to columns, `unpack_blocks` to the stored blocks.

Example::

    columns = EventColumns()
    for row in rows:
        columns.add(reader.store_id, row.first, row.body)
    kinds = columns.values["kind"]
"""

from __future__ import annotations

from eventmq.events import (
    COLUMNS,
    ENDS,
    HOUR_US,
    SCHEMA_VERSION,
    STATES,
    Block,
    EventColumn,
    EventColumns,
    EventKind,
    Field,
    FileName,
    partition,
    rows_of,
    unpack_blocks,
)
from eventmq.store.reads import EventLogHead, EventRow

__all__ = [
    "COLUMNS",
    "ENDS",
    "HOUR_US",
    "SCHEMA_VERSION",
    "STATES",
    "Block",
    "EventColumn",
    "EventColumns",
    "EventKind",
    "EventLogHead",
    "EventRow",
    "Field",
    "FileName",
    "partition",
    "rows_of",
    "unpack_blocks",
]
