"""Store contract on PostgreSQL: see `eventmq.engine.RowStore`.

Writes are sent with the next read or with the commit. Each write is one statement, whatever its
number of rows. A commit takes two round trips: the first sends all statements and the fence and
checks their results, the second sends COMMIT.
"""

# ruff: noqa: S608 - the statements are built from declared names of tables and columns

from __future__ import annotations

import time
from functools import partial
from operator import itemgetter
from struct import error as StructError  # noqa: N812 - it is a class
from typing import TYPE_CHECKING, Any

from eventmq.engine import Mismatch, Schema, Statements, names, period_name, quote
from eventmq.sdk import Fenced, StoreError, Unknown
from eventmq_contrib.postgres.connection import IDLE, connect
from eventmq_contrib.postgres.pipeline import (
    CHUNK,
    ConnectionLost,
    InvalidValue,
    LockTimeout,
    Pipeline,
    Rows,
    TableChanged,
    UniqueViolation,
)
from eventmq_contrib.postgres.records import SQL_TYPES, Records, pack_array, pack_value
from eventmq_contrib.postgres.tables import ALL_TABLES, QUEUE_STORE, VALUES
from eventmq_contrib.postgres.versions import prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import psycopg

    from eventmq.engine import Request
    from eventmq_contrib.postgres.connection import Database
    from eventmq_contrib.postgres.tables import Layout

__all__ = ["PostgresRows"]

#: Settings of a session, which make the planner use the index that exists for each statement, even
#: if the statistics are of a time when the table was empty.
SETTINGS = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}

#: Milliseconds for which dropping a table waits for a vacuum of its TOAST table. It does not wait
#: for sessions that read the table, such as a dump.
DROP_WAIT = 50

#: Selects for each table its row type, and names and types of its present columns, including those
#: of a later release.
_ROW_TYPES = """SELECT relname::text, reltype::int8, array_agg(attname::text ORDER BY attnum),
    array_agg(atttypid::int8 ORDER BY attnum)
    FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
    WHERE relnamespace = current_schema()::regnamespace AND relname::text = ANY($1)
    AND relkind = 'r' AND attnum > 0 AND NOT attisdropped GROUP BY 1, 2"""

_PERIODS = """SELECT relname::text FROM pg_class
    WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'"""

_VALUES = [column.name for column in VALUES.columns]


class PostgresRows:
    """Rows of tables in a schema of a database.

    Args:
        connection: A connection with `SETTINGS`, without a transaction. This object owns it.
        name: Name of the database, for errors.
        limit: Maximum seconds of a transaction, None for no limit.
    """

    #: See `eventmq.engine.RowStore`.
    refusals: tuple[type[Exception], ...] = (
        InvalidValue,
        OverflowError,
        StructError,
        UnicodeEncodeError,
    )

    def __init__(
        self, connection: psycopg.Connection[Any], name: str, limit: float | None = None
    ) -> None:
        self.limit = limit
        #: First statement of each transaction, and its values. It returns a row if this broker may
        #: still write the store. None if the store has no owner.
        self.fence: tuple[str, Sequence[bytes]] | None = None
        #: Statement after each COMMIT, and the handler of its result, which raises if the commit is
        #: less durable than the settings require. None for no check.
        self.commit_check: tuple[str, Callable[[Any], None]] | None = None
        self.pipeline = Pipeline(connection, name)
        self.schema = Schema(ALL_TABLES)
        self._statements = Statements(self.schema)
        #: Table or template -> OID of its row type, names and type OIDs of its columns.
        self._row_types: dict[str, tuple[int, list[str], list[int]]] = {}
        #: Kind of call -> the statement for it, and what packs its parameters.
        self._texts: dict[Any, Any] = {}
        self._read_row_types()
        self._careful = True
        #: Whether `begin` was called, and whether BEGIN was sent.
        self._started = self._sent = False

    def _read_row_types(self) -> None:
        tables = pack_array("text", [table.name for table in self.schema.tables])
        rows = self.pipeline.ask(_ROW_TYPES, [tables])
        self._row_types = {name: (oid, names, types) for name, oid, names, types in rows}
        self._texts.clear()

    def close(self) -> None:
        """Close the connection, which rolls back an open transaction."""
        self.pipeline.close()

    @classmethod
    def open(
        cls, database: Database, limit: float | None = None, layout: Layout = QUEUE_STORE
    ) -> PostgresRows:
        """Connect to a database, and create the tables if it has none.

        Raises:
            DatabaseUnavailable: The database cannot be reached.
            StoreError: The database must not be used; the message says why.
        """
        connection = connect(database, "store", idle=IDLE, **SETTINGS)
        try:
            prepare(connection, database, layout)
            return cls(connection, database.name, limit)
        except BaseException:
            connection.close()
            raise

    # Transactions

    def begin(self, *, careful: bool = False) -> None:
        """Begin a transaction; BEGIN is sent with its first statement."""
        if not self._row_types:
            self._read_row_types()
        self._started, self._sent, self._careful = True, False, careful
        limit = self.limit
        self.pipeline.deadline = None if limit is None else time.monotonic() + limit

    def commit(self) -> None:
        """Send the collected statements, check all results, and then commit.

        Raises:
            Mismatch: A result that was returned earlier was wrong.
            Fenced: Another broker owns the store.
            Unknown: The connection was lost during the COMMIT, or the commit may be less durable
                than the settings require.
            StoreError: Nothing was stored.
        """
        if self._sent:
            if self.pipeline.waiting:
                self._trip()
            pipeline = self.pipeline
            pipeline.warnings.clear()
            pipeline.send("COMMIT", handle=_check_commit)
            if self.commit_check is not None:
                pipeline.send(self.commit_check[0], handle=self.commit_check[1])
            try:
                pipeline.trip()
            except ConnectionLost as error:
                raise Unknown(f"{error}; it was about to commit") from error
            if pipeline.warnings:  # such as that it did not wait for the replica
                pipeline.close()
                raise Unknown(f"{pipeline.name} has committed with: {pipeline.warnings[0]}")
        self._started = self._sent = False
        self.pipeline.deadline = None

    def rollback(self) -> None:
        """Roll a transaction back."""
        if self._sent:
            try:
                self.pipeline.discard_results()
                self.pipeline.send("ROLLBACK")
                self.pipeline.trip()
            except ConnectionLost:
                self.pipeline.close()  # the server rolls back
        self._started = self._sent = False
        self.pipeline.deadline = None

    def send(
        self, sql: str, values: Sequence[bytes] = (), handle: Callable[[Any], Any] | None = None
    ) -> None:
        """Send a statement in the transaction; see `Pipeline.send`."""
        self._send_begin()
        self.pipeline.send(sql, values, handle)

    def _send_begin(self) -> None:
        """Send BEGIN and the fence, if `begin` was called and they were not sent."""
        if self._started and not self._sent:
            self._sent = True
            self.pipeline.send("BEGIN")
            if self.fence is not None:
                self.pipeline.send(*self.fence, handle=_check_fence)

    def _trip(self) -> None:
        try:
            self.pipeline.trip()
        except (TableChanged, UniqueViolation) as error:
            if isinstance(error, TableChanged):
                self._row_types = {}
            if self._careful:
                raise
            raise Mismatch(str(error)) from error

    def ask(self, sql: str, values: Sequence[bytes] = ()) -> list[tuple[Any, ...]]:
        """Send a statement and wait for its result; return its rows."""
        rows: list[tuple[Any, ...]] = []
        self.send(sql, values, partial(self._fill, rows))
        self._trip()
        return rows

    # Writing

    def _layout(self, table: str) -> str:
        """Return the table whose row type the rows of a table have: itself or its template."""
        return table if table in self._row_types else table.rpartition("_")[0]

    def _records(self, table: str, columns: Sequence[str]) -> Records:
        layout = self._layout(table)
        return Records(self.schema.table(layout), columns, *self._row_types[layout])

    def _source(self, table: str) -> str:
        return f"unnest($1::{quote(self._layout(table))}[])"

    def _insertion(self, verb: str, table: str, columns: Sequence[str]) -> tuple[str, Records]:
        key = verb, table, *columns
        cached = self._texts.get(key)
        if cached is None:
            listed = names(columns)
            sql = (
                f"INSERT INTO {quote(table)} ({listed}) SELECT {listed} FROM {self._source(table)}"
            )
            declared = self.schema.table(table)
            if verb == "INSERT NEW":
                returned = self._identity(table, columns)
                sql += f" ON CONFLICT DO NOTHING RETURNING {names(returned)}"
            elif verb == "PUT":
                others = [
                    column.name for column in declared.columns if column.name not in declared.key
                ]
                new_values = {name: f"excluded.{quote(name)}" for name in columns}
                values = ", ".join(
                    f"{quote(name)} = {new_values.get(name, 'DEFAULT')}" for name in others
                )
                sql += f" ON CONFLICT ({names(declared.key)}) DO UPDATE SET {values}"
            cached = self._texts[key] = sql, self._records(table, columns)
        return cached

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert rows that do not exist yet."""
        if rows:
            sql, records = self._insertion("INSERT", table, columns)
            for packed in records.arrays(rows):
                self.send(sql, [packed])

    def insert_new(
        self, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]
    ) -> list[int]:
        """Insert rows that do not exist yet; return the positions of the others."""
        if not self._careful:
            self.insert(table, columns, rows)
            return []
        if not rows:
            return []
        sql, records = self._insertion("INSERT NEW", table, columns)
        key = _getter([columns.index(name) for name in self._identity(table, columns)])
        inserted = {row for packed in records.arrays(rows) for row in self.ask(sql, [packed])}
        existing = []
        for position, row in enumerate(rows):
            if key(row) in inserted:
                inserted.remove(key(row))
            else:
                existing.append(position)
        return existing

    def _identity(self, table: str, columns: Sequence[str]) -> Sequence[str]:
        """Return the columns of the primary key and of all unique indexes."""
        declared = self.schema.table(table)
        unique = [declared.key, *(index.columns for index in declared.indexes if index.unique)]
        return [name for keys in unique for name in keys if name in columns]

    def put(self, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert rows; each replaces the row with the same key."""
        if not self._careful and table not in self._row_types:
            # Rows of a period are mostly new, and a plain INSERT takes two thirds of the time.
            self.insert(table, columns, rows)
        elif rows:
            sql, records = self._insertion("PUT", table, columns)
            for packed in records.arrays(rows):
                self.send(sql, [packed])

    def update(self, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
        """Update columns of rows."""
        if not rows:
            return
        key = "UPDATE", table, *columns
        cached = self._texts.get(key)
        if cached is None:
            keys = self.schema.table(table).key
            values = ", ".join(f"{quote(name)} = v.{quote(name)}" for name in columns)
            is_key = " AND ".join(f"t.{quote(name)} = v.{quote(name)}" for name in keys)
            sql = (
                f"UPDATE {quote(table)} AS t SET {values} FROM {self._source(table)} AS v "
                f"WHERE {is_key}"
            )
            cached = self._texts[key] = sql, self._records(table, [*columns, *keys])
        sql, records = cached
        for packed in records.arrays(rows):
            self.send(sql, [packed])

    def delete(self, table: str, keys: Sequence[Any]) -> None:
        """Delete rows by primary key."""
        if keys:
            condition, pack = self._among(table, keys)
            self.send(f"DELETE FROM {quote(table)} WHERE {condition}", [pack(keys)])

    def _among(
        self, name: str, keys: Sequence[Any]
    ) -> tuple[str, Callable[[Sequence[Any]], bytes]]:
        """Return the condition that the first columns of an index equal one of the keys.

        Returns:
            The condition, and the function that packs the keys as its parameter.
        """
        width = len(keys[0]) if type(keys[0]) is tuple else 0
        cached = self._texts.get(("AMONG", name, width))
        if cached is None:
            table, index = self.schema.index(name)
            columns = index.columns[: width or 1]
            listed = names(columns)
            if len(columns) == 1:
                kind = next(column.type for column in table.columns if column.name == columns[0])
                condition = f"{listed} = ANY($1::{SQL_TYPES[kind]}[])"

                def pack(keys: Sequence[Any]) -> bytes:
                    return pack_array(kind, [key for (key,) in keys] if width else keys)
            else:
                condition = f"({listed}) IN (SELECT {listed} FROM {self._source(table.name)})"
                records = self._records(table.name, columns)

                def pack(keys: Sequence[Any]) -> bytes:
                    return records.array(keys)

            if index.where:
                condition += f" AND {index.where}"
            cached = self._texts["AMONG", name, width] = condition, pack
        return cached

    def delete_runs(self, table: str, runs: Sequence[tuple[int, int]], expected: int) -> int:
        """Delete rows by runs of keys; return the number of deleted rows."""
        if not runs:
            return 0
        single = len(runs) == 1
        sql = self._texts.get(("RUNS", table, single))
        if sql is None:
            key = names(self.schema.table(table).key)
            ends = ("$1::int8", "$2::int8") if single else ("r.low", "r.high")
            using = "" if single else " USING unnest($1::int8[], $2::int8[]) AS r(low, high)"
            sql = f"DELETE FROM {quote(table)}{using} WHERE {key} BETWEEN {ends[0]} AND {ends[1]}"
            self._texts["RUNS", table, single] = sql
        pack: Any = pack_value if single else pack_array
        low, high = runs[0] if single else zip(*runs, strict=True)
        count = expected

        def handle(result: Any) -> None:
            nonlocal count
            count = result.command_tuples
            if count != expected and not self._careful:
                raise Mismatch(f"{count} rows of {table} were deleted instead of {expected}")

        self.send(sql, [pack("integer", low), pack("integer", high)], handle)
        if self._careful:
            self._trip()
        return count

    def delete_range(
        self,
        index: str,
        prefix: Sequence[Any] = (),
        *,
        gt: Sequence[Any] = (),
        ge: Sequence[Any] = (),
        lt: Sequence[Any] = (),
        le: Sequence[Any] = (),
    ) -> None:
        """Delete the rows of a scan."""
        bounds = len(gt), len(ge), len(lt), len(le)
        key = "RANGE", index, len(prefix), bounds
        cached = self._texts.get(key)
        if cached is None:
            text = self._statements.delete_range(index, len(prefix), bounds)
            cached = self._texts[key] = _numbered(text), self._kinds(index, len(prefix), bounds)
        self.send(cached[0], list(map(pack_value, cached[1], (*prefix, *gt, *ge, *lt, *le))))

    # Reading

    def _kinds(self, name: str, prefix: int, bounds: Sequence[int], *more: str) -> list[str]:
        """Return the types of the parameters of a scan."""
        table, index = self.schema.index(name)
        types = {column.name: column.type for column in table.columns}
        kinds = [types[column] for column in index.columns]
        rest = kinds[prefix:]
        return [*kinds[:prefix], *(kind for count in bounds for kind in rest[:count]), *more]

    def get(
        self,
        table: str,
        columns: Sequence[str],
        keys: Sequence[Any],
        *,
        by: str = "",
        damaged: bool = False,
    ) -> list[tuple[Any, ...]]:
        """Return the rows that have one of the keys."""
        return self.get_all([(table, columns, keys, by)])[0]

    def get_all(self, requests: Sequence[Request]) -> list[list[tuple[Any, ...]]]:
        """Return what `get` returns for each request, in one round trip."""
        results: list[list[tuple[Any, ...]]] = [[] for _ in requests]
        sent = False
        for rows, (table, columns, keys, by) in zip(results, requests, strict=True):
            if not keys:
                continue
            condition, pack = self._among(by or table, keys)
            key = "GET", table, condition, *columns
            sql = self._texts.get(key)
            if sql is None:
                listed = self._statements.columns(self.schema.table(table), columns)
                sql = f"SELECT {listed} FROM {quote(table)} WHERE {condition}"
                self._texts[key] = sql
            self.send(sql, [pack(keys)], partial(self._fill, rows))
            sent = True
        if sent:
            self._trip()
        return results

    def _fill(self, rows: list[tuple[Any, ...]], result: Any) -> None:
        rows += self.pipeline.rows(result)

    def scan(
        self,
        index: str,
        columns: Sequence[str],
        prefix: Sequence[Any] = (),
        *,
        gt: Sequence[Any] = (),
        ge: Sequence[Any] = (),
        lt: Sequence[Any] = (),
        le: Sequence[Any] = (),
        limit: int | None = None,
        descending: bool = False,
        damaged: bool = False,
    ) -> Iterator[tuple[Any, ...]]:
        """Return rows in the order of an index."""
        bounds = len(gt), len(ge), len(lt), len(le)
        limited = limit is not None
        key = "SCAN", index, len(prefix), bounds, limited, descending, *columns
        cached = self._texts.get(key)
        if cached is None:
            text = self._statements.scan(
                index, columns, len(prefix), bounds, limited=limited, descending=descending
            )
            kinds = self._kinds(index, len(prefix), bounds, *(["integer"] * limited))
            cached = self._texts[key] = _numbered(text), kinds
        sql, kinds = cached
        values = (*prefix, *gt, *ge, *lt, *le)
        packed = list(map(pack_value, kinds, values if limit is None else (*values, limit)))
        if limit is not None and limit <= CHUNK:
            return Rows(iter([self.ask(sql, packed)]))
        self._send_begin()
        if self.pipeline.waiting:
            self._trip()
        return self.pipeline.stream(sql, packed)

    def heads(
        self,
        index: str,
        columns: Sequence[str],
        prefixes: Sequence[Sequence[Any]],
        *,
        descending: bool = False,
    ) -> list[tuple[Any, ...] | None]:
        """Return the first row, or the last one, for each prefix of an index."""
        first: list[tuple[Any, ...] | None] = [None] * len(prefixes)
        widths: dict[int, list[int]] = {}
        for position, prefix in enumerate(prefixes):
            widths.setdefault(len(prefix), []).append(position)
        for width, positions in widths.items():
            sql, kinds = self._heads(index, columns, width, descending=descending)
            values = [positions, *zip(*(prefixes[n] for n in positions), strict=True)]
            arrays = map(pack_array, kinds, values)
            self.send(sql, list(arrays), partial(self._fill_heads, first))
        if prefixes:
            self._trip()
        return first

    def _heads(
        self, index: str, columns: Sequence[str], width: int, *, descending: bool
    ) -> tuple[str, list[str]]:
        """Return the statement for the heads of prefixes of a width, and its parameter types."""
        key = "HEADS", index, width, descending, *columns
        cached = self._texts.get(key)
        if cached is None:
            text = self._statements.scan(
                index, columns, width, (0, 0, 0, 0), limited=False, descending=descending
            )
            for column in range(width):
                text = text.replace("?", f"p.p{column}", 1)
            kinds = ["integer", *self._kinds(index, width, ())]
            arrays = ", ".join(f"${n}::{SQL_TYPES[kind]}[]" for n, kind in enumerate(kinds, 1))
            listed = ", ".join(f"p{column}" for column in range(width))
            sql = (
                f"SELECT p.place, h.* FROM unnest({arrays}) AS p(place{listed and ', '}{listed}) "
                f"CROSS JOIN LATERAL ({text} LIMIT 1) AS h"
            )
            cached = self._texts[key] = sql, kinds
        return cached

    def _fill_heads(self, first: list[tuple[Any, ...] | None], result: Any) -> None:
        for position, *row in self.pipeline.rows(result):
            first[position] = tuple(row)

    def measure(
        self,
        index: str,
        columns: Sequence[str] = (),
        prefix: Sequence[Any] = (),
        *,
        gt: Sequence[Any] = (),
        ge: Sequence[Any] = (),
        lt: Sequence[Any] = (),
        le: Sequence[Any] = (),
    ) -> tuple[int, int]:
        """Return the number of rows that a scan returns, and the total bytes of some columns."""
        bounds = len(gt), len(ge), len(lt), len(le)
        key = "MEASURE", index, len(prefix), bounds, *columns
        cached = self._texts.get(key)
        if cached is None:
            table, declared = self.schema.index(index)
            size = " + ".join(f"coalesce(octet_length({quote(name)}), 0)" for name in columns)
            where = self._statements.where(declared, len(prefix), bounds)
            text = (
                f"SELECT count(*), coalesce(sum({size or '0'}), 0)::int8 FROM {quote(table.name)}"
                f"{where}"
            )
            cached = self._texts[key] = _numbered(text), self._kinds(index, len(prefix), bounds)
        values = map(pack_value, cached[1], (*prefix, *gt, *ge, *lt, *le))
        [(count, total)] = self.ask(cached[0], list(values))
        return count, total

    def tally(self, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return the combinations of values of columns, with the number of rows of each."""
        listed = names(columns)
        return self.ask(f"SELECT {listed}, count(*) FROM {quote(table)} GROUP BY {listed}")

    # Single values

    def values(self) -> dict[str, Any]:
        """Return all single values."""
        rows = self.scan(VALUES.name, _VALUES)
        return {name: next(v for v in values if v is not None) for name, *values in rows}

    def set_values(self, values: dict[str, Any]) -> None:
        """Write single values; None removes one."""
        rows = [
            (name, *(value if type(value) is kind else None for kind in (str, int, float, bytes)))
            for name, value in values.items()
            if value is not None
        ]
        self.put(VALUES.name, _VALUES, rows)
        self.delete(VALUES.name, [name for name, value in values.items() if value is None])

    # Tables of periods

    def periods(self, table: str) -> list[int]:
        """Return the numbers of the periods that have a table."""
        numbers = (
            name.removeprefix(f"{table}_")
            for (name,) in self.ask(_PERIODS)
            if name.startswith(f"{table}_")
        )
        return sorted(int(number) for number in numbers if number.isdigit())

    def make_period(self, table: str, number: int) -> None:
        """Create the table of a period."""
        self._send_begin()
        # LIKE includes the columns that a later release may have added to the template.
        name = quote(period_name(table, number))
        self.pipeline.send_once(
            f"CREATE TABLE IF NOT EXISTS {name} (LIKE {quote(table)} INCLUDING ALL)"
        )

    def drop_period(self, table: str, number: int) -> bool:
        """Drop the table of a period; return False if another session uses it."""
        name = quote(period_name(table, number))
        self.send("SAVEPOINT dropped")
        self.send(f"SET LOCAL lock_timeout = {DROP_WAIT}")
        self._trip()
        self.pipeline.send_once(f"LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE NOWAIT")
        self.pipeline.send_once(f"DROP TABLE {name}")
        try:
            self._trip()
        except LockTimeout:
            self.send("ROLLBACK TO SAVEPOINT dropped")
            return False
        self.send("SET LOCAL lock_timeout = 0")
        self.send("RELEASE SAVEPOINT dropped")
        self.pipeline.forget(name)
        return True


def _numbered(text: str) -> str:
    """Return a statement with ``$1``, ``$2`` ... in place of each ``?``."""
    head, *rest = text.split("?")
    return head + "".join(f"${number}{part}" for number, part in enumerate(rest, 1))


def _getter(positions: Sequence[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Return a function that returns the values of a row at some positions."""
    if len(positions) > 1:
        return itemgetter(*positions)
    [position] = positions
    return lambda row: (row[position],)


def _check_fence(result: Any) -> None:
    if not result.ntuples:
        raise Fenced("another broker owns the store by now: nothing of the batch was stored")


def _check_commit(result: Any) -> None:
    if result.command_status != b"COMMIT":
        raise StoreError("the database rolled the batch back: nothing of it was stored")
