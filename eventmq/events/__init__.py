"""What happened to jobs: the row of an event and its kinds, how it is stored and where it is kept.

Pure: nothing here opens a file. The broker's store writes events in the commit of what they tell
of, a journal takes them out into files.
"""

from __future__ import annotations

from eventmq.events.columns import EventColumns, rows_of
from eventmq.events.files import HOUR_US, FileName, partition
from eventmq.events.schema import COLUMNS, ENDS, SCHEMA_VERSION, STATES, Column, EventKind

__all__ = [
    "COLUMNS",
    "ENDS",
    "HOUR_US",
    "SCHEMA_VERSION",
    "STATES",
    "Column",
    "EventColumns",
    "EventKind",
    "FileName",
    "partition",
    "rows_of",
]
