"""Engine: carries out the writes of a broker's batch as changes to the rows of a store.

A broker fills a batch of writes (`eventmq.store.writes`). The engine carries the batch out in one
transaction of a `RowStore`, which a store plugin provides, so that a write has the same effect in
every store.

Names load at their first use, so that a module of this package can be imported alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.lazy import load_names

if TYPE_CHECKING:
    from eventmq.engine.contract import Mismatch, Request, RowStore
    from eventmq.engine.engine import EVENTS_CAP, EVENTS_RING, CannotUndo, Engine, EventLog
    from eventmq.engine.identity import check_expected, read_clock
    from eventmq.engine.listings import Reader
    from eventmq.engine.rows import WRONG_CHECKSUM, error_label
    from eventmq.engine.schedules import MAX_SCHEDULES, ScheduleTable, pack_row, read_rows
    from eventmq.engine.sql import Statements, names, quote, steps_between
    from eventmq.engine.tables import (
        SCHEDULE_TABLES,
        TABLES,
        Column,
        Index,
        Schema,
        Table,
        period_name,
    )
    from eventmq.graph import refs_of
    from eventmq.store.reads import ReadEvents
    from eventmq.store.writes import Operation, subqueue_of, unique_rule

__all__ = [
    "EVENTS_CAP",
    "EVENTS_RING",
    "MAX_SCHEDULES",
    "SCHEDULE_TABLES",
    "TABLES",
    "WRONG_CHECKSUM",
    "CannotUndo",
    "Column",
    "Engine",
    "EventLog",
    "Index",
    "Mismatch",
    "Operation",
    "ReadEvents",
    "Reader",
    "Request",
    "RowStore",
    "ScheduleTable",
    "Schema",
    "Statements",
    "Table",
    "check_expected",
    "error_label",
    "names",
    "pack_row",
    "period_name",
    "quote",
    "read_clock",
    "read_rows",
    "refs_of",
    "steps_between",
    "subqueue_of",
    "unique_rule",
]

__getattr__ = load_names(__name__, {
    "Mismatch": ".contract", "Request": ".contract", "RowStore": ".contract",
    "EVENTS_CAP": ".engine", "EVENTS_RING": ".engine", "CannotUndo": ".engine",
    "Engine": ".engine", "EventLog": ".engine",
    "check_expected": ".identity", "read_clock": ".identity",
    "Reader": ".listings",
    "WRONG_CHECKSUM": ".rows", "error_label": ".rows",
    "MAX_SCHEDULES": ".schedules", "ScheduleTable": ".schedules", "pack_row": ".schedules",
    "read_rows": ".schedules",
    "Statements": ".sql", "names": ".sql", "quote": ".sql", "steps_between": ".sql",
    "SCHEDULE_TABLES": ".tables", "TABLES": ".tables", "Column": ".tables", "Index": ".tables",
    "Schema": ".tables", "Table": ".tables", "period_name": ".tables",
    "refs_of": "eventmq.graph",
    "ReadEvents": "eventmq.store.reads",
    "Operation": "eventmq.store.writes", "subqueue_of": "eventmq.store.writes",
    "unique_rule": "eventmq.store.writes",
})  # fmt: skip
