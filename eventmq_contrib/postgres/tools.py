"""Store tools: check a store in PostgreSQL, for ``eventmq fsck --store URL``.

All rows are read in one snapshot, while brokers may write, and checked against the rules of a sound
store. The server itself checks files, pages and their checksums.
"""

# ruff: noqa: S608 - the statements are built from names that are declared or in the catalog

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

#: Maximum number of rows in memory at once, and bytes after which a portion of rows ends.
PORTION, PORTION_BYTES = 1000, 8 * 1024 * 1024

#: Seconds for which the transaction may wait between reads, while rows are copied.
IDLE = 60.0

#: Isolation level in which all statements see the same rows.
ISOLATION = psycopg.IsolationLevel.REPEATABLE_READ

#: Number of attempts to list the tables, if one of a period is dropped before it is locked.
TRIES = 5

#: Milliseconds for which the reader waits for a change of a table.
LOCK_TIMEOUT = 10_000

_RESTORE = (
    "restore a backup of the database, by pg_restore or point-in-time recovery, and then run "
    "eventmq store accept-restore --store URL"
)

_REMEDY = f"correct the rows by SQL while no broker runs, or {_RESTORE}"

_PERIODS = """SELECT relname::text FROM pg_class
    WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'
    AND relname ~ '^outcomes_[0-9]+$' ORDER BY length(relname), relname"""

_INDEXES = """SELECT c.relname::text FROM pg_index JOIN pg_class c ON c.oid = indexrelid
    WHERE c.relnamespace = current_schema()::regnamespace AND indisvalid AND indisready"""

#: Tables that must have exactly one row, else no broker can claim the store.
_SINGLE_ROW = ("lease", "beats")


class _Unreadable(Exception):
    """Some rows cannot be read, so the rules that relate rows cannot be checked."""


class PostgresTools:
    """Checks the rows of a store in a schema of a database; see `eventmq.sdk.StoreTools`.

    Args:
        database: The database of the store.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._findings: list[Finding] = []

    def check(self) -> list[Finding]:
        """See `StoreTools.check`."""
        self._findings = []
        with closing(connect(self._database, "fsck", idle=IDLE)) as connection:
            try:
                self._must_exist(connection)
                prepare(connection, self._database)
                connection.isolation_level = ISOLATION
                connection.read_only = True
                copied = check_copy(self._tables(connection), _REMEDY)
            except _Unreadable:
                copied = []
            except psycopg.Error as error:
                raise StoreError(f"cannot read {self._description}: {describe(error)}") from error
        return [*self._findings, *copied]

    @property
    def _description(self) -> str:
        return f"the store in the schema {self._database.schema} of {self._database.name}"

    def _must_exist(self, connection: Connection) -> None:
        if connection.execute("SELECT to_regclass(%s)", [VALUES.name]).fetchone() == (None,):
            raise StoreError(f"{self._description} does not exist: name the schema of a broker")

    # Tables for `check_copy`

    def _tables(self, connection: Connection) -> Iterator[RowsOf]:
        """Yield the tables with their rows, in one transaction that ends after the last row."""
        for tries_left in reversed(range(TRIES)):
            try:
                with connection.transaction():
                    tables = self._lock_tables(connection)
                    self._check_indexes(connection)
                    yield self._values(connection)
                    for table in tables:
                        columns = [column.name for column in table.columns]
                        yield RowsOf(table.name, columns, self._rows(connection, table))
                break
            except psycopg.errors.UndefinedTable:  # a table was dropped before it was locked
                self._findings.clear()
                if not tries_left:
                    raise
        connection.close()  # end the snapshot before the copy is checked, so that vacuum can run
        if any(finding.check == "rows" for finding in self._findings):
            raise _Unreadable

    def _lock_tables(self, connection: Connection) -> list[Table]:
        """Return the tables of the snapshot, locked so that they are not dropped before it ends."""
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
        """Return the single values; the epoch is the one in the lease, by which brokers claim."""
        listed = names([column.name for column in VALUES.columns])
        values = {}
        for name, *candidates in connection.execute(f"SELECT {listed} FROM {VALUES.name}".encode()):
            present = [value for value in candidates if value is not None]
            if len(present) != 1:
                self._add_finding(
                    "meta", VALUES.name, f"the entry {name!r} has {len(present)} values"
                )
            values[name] = next(iter(present), None)
        for name in _SINGLE_ROW:
            rows = connection.execute(f"SELECT * FROM {name}".encode()).fetchall()
            if len(rows) != 1:
                self._add_finding("lease", name, f"the table has {len(rows)} rows and not one")
            elif name == "lease":
                values["epoch"] = rows[0][1]
        return RowsOf(COPIED_VALUES, ("key", "value"), [list(values.items())])

    def _rows(self, connection: Connection, table: Table) -> Iterator[Sequence[tuple[Any, ...]]]:
        """Yield the rows of a table in any order, without an index, which might miss some."""
        columns = names([column.name for column in table.columns])
        sql = f"COPY (SELECT {columns} FROM {quote(table.name)}) TO STDOUT (FORMAT BINARY)"
        try:
            with (
                connection.transaction(), connection.cursor() as cursor,
                cursor.copy(sql.encode()) as copy,
            ):  # fmt: skip
                copy.set_types([SQL_TYPES[column.type] for column in table.columns])
                rows = copy.rows()
                while portion := list(_next_portion(rows)):
                    yield portion
        except psycopg.Error as error:
            if connection.closed:
                raise
            self._add_finding("rows", table.name, f"rows cannot be read: {describe(error)}")

    def _check_indexes(self, connection: Connection) -> None:
        valid = {name for (name,) in connection.execute(_INDEXES)}
        for table in ALL_TABLES:
            missing = [index for index in table.indexes if index.name not in valid]
            for index in missing:
                consequence = "and a key may occur twice" if index.unique else "so commits are slow"
                self._findings.append(Finding(
                    "indexes", table.name, f"the index {index.name} is missing or not valid",
                    f"each commit reads the whole table, {consequence}",
                    f"CREATE {'UNIQUE ' * index.unique}INDEX {index.name} ON "
                    f"{self._database.schema}.{table.name} ({', '.join(index.columns)})"
                    f"{' WHERE ' * bool(index.where)}{index.where}, without one of that name",
                    repairable=False,
                ))  # fmt: skip

    def _add_finding(self, check: str, where: str, problem: str) -> None:
        means = "no broker can use this store"
        self._findings.append(Finding(check, where, problem, means, _REMEDY, repairable=False))

    # Left to PostgreSQL's own programs

    def repair(self) -> NoReturn:
        """Raise `StoreError`, since this class only reads rows."""
        raise StoreError(
            f"fsck changes nothing in a database: to repair {self._description}, {_REMEDY}"
        )

    def backup(self, destination: Path, *, replace: bool) -> NoReturn:
        """Raise `StoreError`, since PostgreSQL's own programs make backups."""
        raise StoreError(
            f"back {self._description} up as any database: with pg_dump, or with pg_basebackup and "
            "archived WAL for point-in-time recovery; after a restore run eventmq store "
            "accept-restore --store URL"
        )

    def salvage(self, destination: Path) -> NoReturn:
        """Raise `StoreError`, since PostgreSQL's own programs copy readable rows."""
        raise StoreError(
            f"copy the readable tables of {self._description} with pg_dump --table, one by one; to "
            f"go on, {_RESTORE}"
        )


def _next_portion(rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Yield the next rows, up to the limits of a portion."""
    size = 0
    for row in islice(rows, PORTION):
        yield row
        size += sum(len(value) for value in row if type(value) is bytes)
        if size > PORTION_BYTES:
            return
