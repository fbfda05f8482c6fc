"""Checks the rows of a store that is not an SQLite file: copies them, and applies the same rules.

Plugins with their own store use it to implement `eventmq.sdk.StoreTools.check`.
"""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.engine import SCHEDULE_TABLES, TABLES, names, quote
from eventmq.errors import StoreError
from eventmq.plugins.database import DISK_FULL, SqliteRows, change_many, connect
from eventmq.plugins.queue_stores.sqlite.schema import prepare
from eventmq.plugins.queue_stores.sqlite.tools.fsck import check_rows
from eventmq.plugins.queue_stores.sqlite.tools.rules import RESTORE, SALVAGE
from eventmq.sdk import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["VALUES", "RowsOf", "check_copy"]

#: The table of single values, with the columns ``key`` and ``value``.
VALUES = "meta"

#: Tables in which a new SQLite store has rows; a row that another store lacks counts as 0.
_FILLED = (VALUES, "schedule_counts")

#: Name of the template whose tables are created as they are needed.
_PERIODIC = "outcomes"


class RowsOf(NamedTuple):
    """All rows of a table that the engine declares, or of `VALUES`."""

    table: str
    columns: Sequence[str]
    #: Portions of the rows; one portion at a time is in memory.
    portions: Iterable[Sequence[tuple[Any, ...]]]


def check_copy(tables: Iterable[RowsOf], helps: str) -> list[Finding]:
    """Return the findings about the rows of a store, all of which belong to one snapshot.

    The rows are copied into a database in a temporary folder (see ``TMPDIR``) that only this user
    can read and that is removed at the end.

    Args:
        tables: Read one after the other, each to its end, before the check starts.
        helps: Remedy for rows that cannot be repaired by hand; it replaces the advice of an SQLite
            store to use ``eventmq fsck --repair``.

    Raises:
        StoreError: There is no disk space for the copy.
    """
    with tempfile.TemporaryDirectory(prefix="eventmq-fsck-") as folder:
        try:
            with closing(connect(path := Path(folder) / "rows.sqlite", busy=0.0)) as db:
                db.execute("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
                prepare(db, str(path))
                rows = SqliteRows(db, (*TABLES, *SCHEDULE_TABLES))
                db.execute("BEGIN")
                findings = [finding for each in tables for finding in _copy(rows, each)]
                return [*findings, *(_without_repair(each, helps) for each in check_rows(db))]
        except DISK_FULL as error:
            raise StoreError(
                f"there is no room for a copy of the rows in {Path(folder).parent}: name a folder "
                "with enough space in TMPDIR"
            ) from error


def _copy(rows: SqliteRows, source: RowsOf) -> Iterator[Finding]:
    """Copy the rows of a table; yield a finding about duplicate keys, whose rows are left out."""
    table, columns, portions = source
    if table.startswith(f"{_PERIODIC}_"):
        rows.make_period(_PERIODIC, int(table.removeprefix(f"{_PERIODIC}_")))
    verb = "REPLACE" if table in _FILLED else "IGNORE"
    marks = ", ".join("?" * len(columns))
    sql = f"INSERT OR {verb} INTO {quote(table)} ({names(columns)}) VALUES ({marks})"
    duplicates = sum(len(portion) - change_many(rows.db, sql, portion) for portion in portions)
    if duplicates:
        yield Finding(
            "unique", table, f"{duplicates} rows have the key of another row",
            "it is chance which of them the broker finds: jobs run twice, or never",
            "remove all but one of each and rebuild the indexes of the table", repairable=False,
        )  # fmt: skip


def _without_repair(finding: Finding, helps: str) -> Finding:
    if finding.repairable or finding.help == RESTORE:
        return finding._replace(help=helps, repairable=False)
    return finding._replace(help=finding.help.partition(SALVAGE)[0])
