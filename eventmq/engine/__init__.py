"""The engine: what each write of a batch means, in rows of a store.

A broker decides and fills a batch of writes (`eventmq.store.writes`); the engine carries it out in
one transaction of a `RowStore`, which a store plugin brings: all stores mean the same by a write.

Names load when they are first used, so that a module of this package can be imported alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eventmq.engine.contract import Mismatch, Request, RowStore
    from eventmq.engine.engine import CannotUndo, Engine, EventLog
    from eventmq.engine.identity import check_expected
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
    from eventmq.store.reads import ReadEvents

__all__ = [
    "MAX_SCHEDULES",
    "SCHEDULE_TABLES",
    "TABLES",
    "CannotUndo",
    "Column",
    "Engine",
    "EventLog",
    "Index",
    "Mismatch",
    "ReadEvents",
    "Request",
    "RowStore",
    "ScheduleTable",
    "Schema",
    "Statements",
    "Table",
    "check_expected",
    "names",
    "pack_row",
    "period_name",
    "quote",
    "read_rows",
    "steps_between",
]

_WHERE = {
    "Mismatch": "contract", "Request": "contract", "RowStore": "contract",
    "CannotUndo": "engine", "Engine": "engine", "EventLog": "engine",
    "check_expected": "identity",
    "MAX_SCHEDULES": "schedules", "ScheduleTable": "schedules", "pack_row": "schedules",
    "read_rows": "schedules",
    "Statements": "sql", "names": "sql", "quote": "sql", "steps_between": "sql",
    "SCHEDULE_TABLES": "tables", "TABLES": "tables", "Column": "tables", "Index": "tables",
    "Schema": "tables", "Table": "tables", "period_name": "tables",
    "ReadEvents": "engine",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
