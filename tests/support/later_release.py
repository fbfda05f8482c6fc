"""A made-up later release, whose tables in PostgreSQL have more: see `later`.

As a program it runs what follows, ``PYTHON -m eventmq ...``, as that release.
"""

from __future__ import annotations

import runpy
import sys
from typing import TYPE_CHECKING, Any

from eventmq.engine import Column, Index, Table
from eventmq_contrib.postgres import tables
from eventmq_contrib.postgres.records import with_ordered_columns
from eventmq_contrib.postgres.tables import Layout, Step

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["STEP", "later"]

#: Table -> a column that it has in addition, and what a row gets there.
MORE: dict[str, tuple[Column, Callable[[dict[str, Any]], Any]]] = {
    "jobs": (Column("size", "integer", default=0), lambda row: len(row["body"])),
    "outcomes": (Column("note", "text", null=True), lambda _: "later"),
}

#: The earlier release cannot insert a job any more once this one needs its sizes.
STEP = Step(
    tables.QUEUE_STORE.digest,
    (
        'ALTER TABLE jobs ADD COLUMN IF NOT EXISTS "size" int8 NOT NULL DEFAULT 0',
        "ALTER TABLE {outcomes} ADD COLUMN IF NOT EXISTS note text",
        "CREATE TABLE IF NOT EXISTS notes (id int8 PRIMARY KEY, note text NOT NULL)",
        'CREATE INDEX CONCURRENTLY IF NOT EXISTS jobs_size ON jobs ("size")',
    ),
    ("ALTER TABLE jobs ALTER size DROP DEFAULT", "DROP INDEX IF EXISTS jobs_expires"),
)


def later(layout: Layout = tables.QUEUE_STORE) -> Layout:
    """Return the tables of the later release."""
    made = [
        with_ordered_columns(table._replace(
            columns=(*table.columns, *(MORE[table.name][:1] if table.name in MORE else ())),
            indexes=(*table.indexes, Index("jobs_size", ("size",))) if table.name == "jobs"
            else table.indexes,
        ))
        for table in layout.tables
    ]  # fmt: skip
    notes = Table("notes", (Column("id", "integer"), Column("note", "text")), ("id",))
    return layout._replace(tables=(*made, notes), version=2, steps={1: STEP})


def become() -> None:
    """Make this process one of the later release."""
    tables.QUEUE_STORE = later()
    tables.ALL_TABLES = tables.QUEUE_STORE.tables
    from eventmq_contrib.postgres.rowstore import PostgresRows

    def fill(write: Callable[..., Any]) -> Callable[..., Any]:
        def filled(rows: PostgresRows, table: str, columns: Any, values: Any) -> Any:
            template = table if table in MORE else table.rpartition("_")[0]
            if template in MORE and MORE[template][0].name not in columns:
                column, value = MORE[template]
                given = columns
                columns = (*given, column.name)
                values = [(*row, value(dict(zip(given, row, strict=True)))) for row in values]
            return write(rows, table, columns, values)

        return filled

    PostgresRows.insert = fill(PostgresRows.insert)  # type: ignore[method-assign]
    # Where a batch is repeated carefully it does not go through `insert`.
    PostgresRows.insert_new = fill(PostgresRows.insert_new)  # type: ignore[method-assign]
    PostgresRows.put = fill(PostgresRows.put)  # type: ignore[method-assign]


if __name__ == "__main__":
    become()
    # Its own name, the interpreter and -m come first.
    sys.argv = sys.argv[3:]
    runpy.run_module("eventmq", run_name="__main__", alter_sys=True)
