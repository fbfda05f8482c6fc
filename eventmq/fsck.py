"""Checks the rows of a store that is no SQLite file: of a copy of them, by the same rules.

For the tools of a store that a plugin brings: what `eventmq.sdk.StoreTools.check` may return.
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

#: The table of single values, whose columns are ``key`` and ``value``.
VALUES = "meta"

#: Tables that a store in a file is made with some rows of: what has none elsewhere is 0.
_FILLED = (VALUES, "schedule_counts")

#: A template, whose tables are made as they come.
_PERIODIC = "outcomes"


class RowsOf(NamedTuple):
    """All rows of a table, as the engine declares it; or of `VALUES`."""

    table: str
    columns: Sequence[str]
    #: In portions, each of which is in memory at once.
    portions: Iterable[Sequence[tuple[Any, ...]]]


def check_copy(tables: Iterable[RowsOf], helps: str) -> list[Finding]:
    """Return what breaks the rules of a sound store in rows, all of them of one moment.

    They are copied into a database in a temporary folder that only this user can read (``TMPDIR``
    says where), and which is removed at the end.

    Args:
        tables: Taken one after the other, each to its end, before anything is checked.
        helps: What helps where rows cannot be made right by hand, and against what ``eventmq fsck
            --repair`` puts right in an SQLite store.

    Raises:
        StoreError: There is no room for the copy.
    """
    with tempfile.TemporaryDirectory(prefix="eventmq-fsck-") as folder:
        try:
            with closing(connect(path := Path(folder) / "rows.sqlite", busy=0.0)) as db:
                db.execute("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
                prepare(db, str(path))
                rows = SqliteRows(db, (*TABLES, *SCHEDULE_TABLES))
                db.execute("BEGIN")
                found = [finding for each in tables for finding in _copy(rows, each)]
                return [*found, *(_without_repair(each, helps) for each in check_rows(db))]
        except DISK_FULL as error:
            raise StoreError(
                f"there is no room for a copy of the rows in {Path(folder).parent}: name a folder "
                "that has some by TMPDIR"
            ) from error


def _copy(rows: SqliteRows, source: RowsOf) -> Iterator[Finding]:
    """Copy the rows of a table; yield that some have a key that others have, which are left out."""
    table, columns, portions = source
    if table.startswith(f"{_PERIODIC}_"):
        rows.make_period(_PERIODIC, int(table.removeprefix(f"{_PERIODIC}_")))
    verb = "REPLACE" if table in _FILLED else "IGNORE"
    marks = ", ".join("?" * len(columns))
    sql = f"INSERT OR {verb} INTO {quote(table)} ({names(columns)}) VALUES ({marks})"
    taken = sum(len(portion) - change_many(rows.db, sql, portion) for portion in portions)
    if taken:
        yield Finding(
            "unique", table, f"{taken} rows have the key of another row",
            "it is chance which of them the broker finds: jobs run twice, or never",
            "remove all but one of each and make the indexes of the table anew", repairable=False,
        )  # fmt: skip


def _without_repair(finding: Finding, helps: str) -> Finding:
    if finding.repairable or finding.help == RESTORE:
        return finding._replace(help=helps, repairable=False)
    return finding._replace(help=finding.help.partition(SALVAGE)[0])
