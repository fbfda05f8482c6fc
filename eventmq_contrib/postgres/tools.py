"""Checks a store in PostgreSQL: the `eventmq.sdk.StoreTools` behind ``eventmq fsck --store URL``.

All rows are read in one snapshot, beside brokers that write, and are held against the rules of a
sound store. Files, pages and their checksums are the server's own matter.
"""

# ruff: noqa: S608 - the texts are put together of names that are declared or come from the catalog

from __future__ import annotations

from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

import psycopg

from eventmq.engine import names, quote
from eventmq.fsck import VALUES as COPIED_VALUES
from eventmq.fsck import RowsOf, check_copy
from eventmq.sdk import Finding, StoreError
from eventmq_contrib.postgres.connection import connect, describe
from eventmq_contrib.postgres.records import SQL_TYPES
from eventmq_contrib.postgres.tables import ALL_TABLES, VALUES
from eventmq_contrib.postgres.versions import prepare

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from eventmq.engine import Table
    from eventmq_contrib.postgres.connection import Database

    Connection = psycopg.Connection[tuple[Any, ...]]

__all__ = ["PostgresTools"]

#: Rows that are in memory at once, and bytes after which a portion of them ends.
PORTION, PORTION_BYTES = 1000, 8 * 1024 * 1024

#: Seconds that a snapshot may wait for what is done with the rows of it.
IDLE = 60.0

#: All statements see the same rows.
ISOLATION = psycopg.IsolationLevel.REPEATABLE_READ

#: How often the tables are listed anew, when one of a period was dropped meanwhile.
TRIES = 5

#: Milliseconds that the reader waits for a change of a table, which is rare and quick.
LOCK_TIMEOUT = 10_000

_RESTORE = (
    "restore a backup of the database, by pg_restore or point-in-time recovery, and then run "
    "eventmq store accept-restore --store URL"
)

_HELPS = f"correct the rows by SQL while no broker runs, or {_RESTORE}"

_PERIODS = """SELECT relname::text FROM pg_class
    WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'
    AND relname ~ '^outcomes_[0-9]+$' ORDER BY length(relname), relname"""

_INDEXES = """SELECT c.relname::text FROM pg_index JOIN pg_class c ON c.oid = indexrelid
    WHERE c.relnamespace = current_schema()::regnamespace AND indisvalid AND indisready"""

#: One row each, without which no broker claims the store.
_SINGLE = ("lease", "beats")


class _Unreadable(Exception):
    """Not all rows can be read, so that nothing is known of what they mean together."""


class PostgresTools:
    """Checks the rows of a store in a schema of a database; see `eventmq.sdk.StoreTools`.

    Args:
        database: Where the store is.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._found: list[Finding] = []

    def check(self) -> list[Finding]:
        """See `StoreTools.check`."""
        self._found = []
        with closing(connect(self._database, "fsck", idle=IDLE)) as connection:
            try:
                self._must_exist(connection)
                prepare(connection, self._database)
                connection.isolation_level = ISOLATION
                connection.read_only = True
                copied = check_copy(self._tables(connection), _HELPS)
            except _Unreadable:
                copied = []
            except psycopg.Error as error:
                raise StoreError(f"cannot read {self._where}: {describe(error)}") from error
        return [*self._found, *copied]

    @property
    def _where(self) -> str:
        return f"the store in the schema {self._database.schema} of {self._database.name}"

    def _must_exist(self, connection: Connection) -> None:
        if connection.execute("SELECT to_regclass(%s)", [VALUES.name]).fetchone() == (None,):
            raise StoreError(f"{self._where} is not there: name the one of a broker")

    # What check_copy takes

    def _tables(self, connection: Connection) -> Iterator[RowsOf]:
        """Yield the tables with their rows, in one transaction that ends behind the last."""
        for tries_left in reversed(range(TRIES)):
            try:
                with connection.transaction():
                    tables = self._locked(connection)
                    self._check_indexes(connection)
                    yield self._values(connection)
                    for table in tables:
                        columns = [column.name for column in table.columns]
                        yield RowsOf(table.name, columns, self._rows(connection, table))
                break
            except psycopg.errors.UndefinedTable:  # one of a period, before it was locked
                self._found.clear()
                if not tries_left:
                    raise
        connection.close()  # rows that are dead by now may go while the copy is looked at
        if any(finding.check == "rows" for finding in self._found):
            raise _Unreadable

    def _locked(self, connection: Connection) -> list[Table]:
        """Return the tables of the snapshot, which nobody drops before it ends."""
        periods = [name for (name,) in connection.execute(_PERIODS)]
        tables = [table for table in ALL_TABLES if table.name != VALUES.name]
        [template] = [table for table in tables if table.periodic]
        tables.remove(template)
        tables += [template._replace(name=name) for name in periods]
        connection.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT}".encode())
        listed = ", ".join(quote(name) for name in (*periods, template.name))
        connection.execute(f"LOCK TABLE {listed} IN ACCESS SHARE MODE".encode())
        return tables

    def _values(self, connection: Connection) -> RowsOf:
        """Return the single values; the epoch is that of the lease, which brokers claim by."""
        listed = names([column.name for column in VALUES.columns])
        values = {}
        for name, *kinds in connection.execute(f"SELECT {listed} FROM {VALUES.name}".encode()):
            found = [value for value in kinds if value is not None]
            if len(found) != 1:
                self._add("meta", VALUES.name, f"the entry {name!r} has {len(found)} values")
            values[name] = next(iter(found), None)
        for name in _SINGLE:
            rows = connection.execute(f"SELECT * FROM {name}".encode()).fetchall()
            if len(rows) != 1:
                self._add("lease", name, f"the table has {len(rows)} rows and not one")
            elif name == "lease":
                values["epoch"] = rows[0][1]
        return RowsOf(COPIED_VALUES, ("key", "value"), [list(values.items())])

    def _rows(self, connection: Connection, table: Table) -> Iterator[Sequence[tuple[Any, ...]]]:
        """Yield the rows of a table, in any order: the way over an index may miss some."""
        columns = names([column.name for column in table.columns])
        sql = f"COPY (SELECT {columns} FROM {quote(table.name)}) TO STDOUT (FORMAT BINARY)"
        try:
            with (
                connection.transaction(), connection.cursor() as cursor,
                cursor.copy(sql.encode()) as copy,
            ):  # fmt: skip
                copy.set_types([SQL_TYPES[column.type] for column in table.columns])
                rows = copy.rows()
                while portion := list(_some(rows)):
                    yield portion
        except psycopg.Error as error:
            if connection.closed:
                raise
            self._add("rows", table.name, f"rows cannot be read: {describe(error)}")

    def _check_indexes(self, connection: Connection) -> None:
        sound = {name for (name,) in connection.execute(_INDEXES)}
        for table in ALL_TABLES:
            lost = [index for index in table.indexes if index.name not in sound]
            for index in lost:
                what = "or a key may be there twice" if index.unique else "and what needs it waits"
                self._found.append(Finding(
                    "indexes", table.name, f"the index {index.name} is missing or not valid",
                    f"each commit reads the whole table, {what}",
                    f"CREATE {'UNIQUE ' * index.unique}INDEX {index.name} ON "
                    f"{self._database.schema}.{table.name} ({', '.join(index.columns)})"
                    f"{' WHERE ' * bool(index.where)}{index.where}, without one of that name",
                    repairable=False,
                ))  # fmt: skip

    def _add(self, check: str, where: str, found: str) -> None:
        means = "no broker can use this store, or go on with what is there"
        self._found.append(Finding(check, where, found, means, _HELPS, repairable=False))

    # What the server's own programs do

    def repair(self) -> NoReturn:
        """Raise `StoreError`: rows are only read here."""
        raise StoreError(f"fsck changes nothing in a database: to repair {self._where}, {_HELPS}")

    def backup(self, destination: Path, *, replace: bool) -> NoReturn:
        """Raise `StoreError`: a backup is made by the server's own programs."""
        raise StoreError(
            f"back {self._where} up as any database: with pg_dump, or with pg_basebackup and "
            "archived WAL for point-in-time recovery; after a restore run eventmq store "
            "accept-restore --store URL"
        )

    def salvage(self, destination: Path) -> NoReturn:
        """Raise `StoreError`: what can be read is copied by the server's own programs."""
        raise StoreError(
            f"what can be read of {self._where} is copied by pg_dump, table by table with "
            f"--table; to go on, {_RESTORE}"
        )


def _some(rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Yield the next rows, as many as may be in memory together."""
    size = 0
    for row in islice(rows, PORTION):
        yield row
        size += sum(len(value) for value in row if type(value) is bytes)
        if size > PORTION_BYTES:
            return
