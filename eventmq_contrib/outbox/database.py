"""Databases with an outbox table, as the relay and the commands use them."""

from __future__ import annotations

import sqlite3
import time
from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from eventmq.errors import PluginError, StoreError
from eventmq_contrib.extras import need
from eventmq_contrib.outbox.writing import SENT, TABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["FORGET", "Database", "Row", "connect"]

#: Bytes of bodies that are read at a time, unless one body alone has more.
BYTES = 8 * 1024 * 1024

_FORMS = "postgresql://USER@HOST/NAME, mysql://USER:PASSWORD@HOST/NAME or sqlite:///PATH"

#: Of the rows of a key only the first: its lock is the claim of the key.
_CLAIM = f"""SELECT seq, length(body), ordering_key FROM {TABLE} AS o WHERE error = '' AND
    (ordering_key = '' OR seq = (SELECT e.seq FROM {TABLE} AS e WHERE e.ordering_key <> ''
        AND e.ordering_key = o.ordering_key AND e.error = '' ORDER BY e.seq LIMIT 1))"""  # noqa: S608

_LOCKS = {
    "postgresql": " FOR UPDATE OF o SKIP LOCKED", "mysql": " FOR UPDATE SKIP LOCKED", "sqlite": ""
}  # fmt: skip


class Row(NamedTuple):
    """A row of the table; ``sent`` is when it may have been sent first, None if it never was."""

    seq: int
    sent: float | None
    ordering_key: str
    job_id: str
    queue: str
    headers: str
    body: bytes


_ROWS = f"""SELECT seq, (SELECT MIN(s.sent) FROM {SENT} AS s WHERE s.seq <= o.seq
    AND s.last_seq >= o.seq), ordering_key, job_id, queue, headers, body FROM {TABLE} AS o"""  # noqa: S608

#: Deletes the marks of rows that are gone.
FORGET = f"""DELETE FROM {SENT} WHERE NOT EXISTS (SELECT 1 FROM {TABLE} AS o
    WHERE o.seq >= {SENT}.seq AND o.seq <= {SENT}.last_seq)"""  # noqa: S608


class Database:
    """A connection in autocommit mode, made when it is first used and again after an error.

    Args:
        vendor: A key of `eventmq_contrib.outbox.writing.DDL`.
        name: The URL without password.
        open_: Connects.
        error: Base class of the driver's exceptions.
    """

    def __init__(
        self, vendor: str, name: str, open_: Callable[[], Any], error: type[Exception]
    ) -> None:
        self.vendor, self.name, self._open, self._error = vendor, name, open_, error
        self._connection: Any = None
        self._marks: Database | None = None
        #: Runs of rows of the claim that were marked, and when; and whether others were before.
        self._marked: tuple[Sequence[tuple[int, int]], float] = [], 0.0
        self._had_marks = False

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """Execute a statement and return its rows; after a `StoreError` nothing is committed."""
        try:
            self._connection = self._connection or self._open()
            cursor = self._connection.cursor()
            cursor.execute(sql.replace("%s", "?") if self.vendor == "sqlite" else sql, values)
            return list(cursor.fetchall()) if cursor.description else []
        except self._error as error:
            self.close()
            text = " ".join(str(error).split())
            missing = getattr(error, "sqlstate", "") == "42P01" or error.args[:1] == (1146,)
            if missing or "no such table" in text:
                text += f"; make the table with: eventmq outbox init --database {self.name}"
            raise StoreError(f"{self.name}: {text}") from error

    def claim(self, limit: int, without: Sequence[str] = ()) -> list[Row]:
        """Begin a transaction, and return rows that no other relay gets until its end, by seq.

        From now on they may have been sent: this is recorded, but not in their ``sent``. With
        SQLite others may get them too: a transaction would stop the writers meanwhile.

        Args:
            limit: Maximum number of rows.
            without: Queues whose rows are left, unless they follow another of the same key.
        """
        marks = ", ".join(["%s"] * len(without))
        sql = f"{_CLAIM} AND queue NOT IN ({marks})" if without else _CLAIM
        if self.vendor != "sqlite":
            self.execute("BEGIN")
        sql = f"{sql} ORDER BY seq LIMIT {limit}{_LOCKS[self.vendor]}"
        claimed = self.execute(sql, without)
        keys = [row[2] for row in claimed if row[2]]
        if keys:  # the rest of each key belongs to the claim
            sql = (
                f"SELECT seq, length(body) FROM {TABLE} WHERE error = '' AND ordering_key IN "  # noqa: S608
                f"({', '.join(['%s'] * len(keys))}) ORDER BY seq LIMIT {limit}"
            )
            claimed += self.execute(sql, keys)
        sizes = {row[0]: row[1] for row in claimed}
        total = dict(zip(sizes, accumulate(sizes.values()), strict=True))
        seqs = [seq for seq in sizes if total[seq] <= BYTES] or list(sizes)[:1]
        found = self.execute(f"{_ROWS} WHERE {_among(seqs)} ORDER BY seq") if seqs else []
        rows = [Row(*row) for row in found]
        new = [row.seq for row in rows if row.sent is None]
        self._had_marks = len(new) < len(rows)
        self._mark(new)
        return rows

    def _mark(self, seqs: Sequence[int]) -> None:
        """Record, in a commit of its own, that rows may have been sent from now on."""
        if self._marks is None:
            self._marks = Database(self.vendor, self.name, self._open, self._error)
        self._marked = _runs(seqs), time.time()
        try:
            self._marks.insert(*self._marked)
        except StoreError:
            self.close()
            raise

    def insert(self, runs: Sequence[tuple[int, int]], sent: float) -> None:
        """Insert marks."""
        if runs:
            # With SQLite another relay may have inserted them.
            verb = "INSERT OR IGNORE" if self.vendor == "sqlite" else "INSERT"
            values = ", ".join(f"({first}, {last}, {sent!r})" for first, last in runs)
            self.execute(f"{verb} INTO {SENT} VALUES {values}")

    def finish(
        self, sent: Sequence[int], kept: Sequence[tuple[int, str]], unknown: Sequence[int] = ()
    ) -> None:
        """End a claim: delete rows that were sent, record why others are kept, and commit.

        Args:
            sent: The rows that were sent.
            kept: Rows with the reasons.
            unknown: Rows that may have been sent.
        """
        runs, now = self._marked
        if self.vendor == "sqlite":
            self.execute("BEGIN IMMEDIATE" if sent or kept or runs else "BEGIN")
        if sent:
            self.execute(f"DELETE FROM {TABLE} WHERE {_among(sent)}")  # noqa: S608
        if runs:
            firsts = _among([first for first, _ in runs])
            self.execute(f"DELETE FROM {SENT} WHERE {firsts}")  # noqa: S608
            self.insert(_runs(unknown), now)
        if self._had_marks:
            self.execute(FORGET)
        for seq, why in kept:
            self.execute(f"UPDATE {TABLE} SET error = %s WHERE seq = %s", (why[:1000], seq))  # noqa: S608
        self.execute("COMMIT")

    def wait(self, seconds: float) -> None:
        """Wait for a time, or until PostgreSQL announces rows."""
        if self.vendor != "postgresql" or self._connection is None:
            time.sleep(seconds)
            return
        try:
            self._connection.execute(f"LISTEN {TABLE}")
            list(self._connection.notifies(timeout=seconds, stop_after=1))
        except self._error:
            self.close()

    def close(self) -> None:
        """Close the connection, which rolls back. Idempotent."""
        if self._marks is not None:
            self._marks.close()
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(self._error):
                connection.close()


def _among(seqs: Sequence[int]) -> str:
    return f"seq IN ({', '.join(map(str, seqs))})"


def _runs(seqs: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first and the last of each run of consecutive numbers."""
    every = set(seqs)
    firsts = [seq for seq in seqs if seq - 1 not in every]
    return [*zip(firsts, [seq for seq in seqs if seq + 1 not in every], strict=True)]


def connect(url: str, *, create: bool = False) -> Database:
    """Return the database of a URL, as libpq or SQLAlchemy writes it; it is not connected yet.

    Args:
        url: The URL.
        create: Whether a missing file of SQLite is made.

    Raises:
        PluginError: The URL is not valid, or the driver is missing.
    """
    scheme, separator, rest = url.partition("://")
    vendor = {"postgres": "postgresql", "mariadb": "mysql"}.get(scheme, scheme.partition("+")[0])
    if separator and vendor == "postgresql":
        return _postgresql(f"postgresql://{rest}")
    if separator and vendor == "mysql":
        return _mysql(url)
    path = rest.partition("?")[0][1:]
    if vendor != "sqlite" or not path or not rest.startswith("/"):
        raise PluginError(f"the URL of the database has none of the forms {_FORMS}")
    uri = f"file:{quote(path)}?mode={'rwc' if create else 'rw'}"

    def open_() -> sqlite3.Connection:
        return sqlite3.connect(uri, uri=True, timeout=10.0, isolation_level=None)

    return Database("sqlite", f"sqlite:///{path}", open_, sqlite3.Error)


def _postgresql(url: str) -> Database:
    need("psycopg", user="the outbox of PostgreSQL", extra="outbox")
    import psycopg
    from psycopg.conninfo import make_conninfo

    from eventmq_contrib.postgres.connection import Database as Parameters

    parameters = Parameters.of(url)
    conninfo = make_conninfo(fallback_application_name="eventmq outbox", **parameters.parameters)

    def open_() -> Any:
        connection = psycopg.connect(conninfo, autocommit=True, prepare_threshold=None)
        # A relay that was stopped gives its rows back. Before the table's first ANALYZE the planner
        # would compile the statements, or read all rows of a key for each of them.
        connection.execute(
            "SET default_transaction_isolation = 'read committed'; SET jit = off; "
            "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off; "
            "SET idle_in_transaction_session_timeout = '60s'"
        )
        return connection

    return Database("postgresql", parameters.name, open_, psycopg.Error)


def _mysql(url: str) -> Database:
    need("pymysql", user="the outbox of MySQL", extra="outbox")
    import pymysql

    parts = urlsplit(url)
    user, name = unquote(parts.username or ""), unquote(parts.path[1:])
    try:
        host, port = parts.hostname or "127.0.0.1", parts.port or 3306
    except ValueError as error:
        raise PluginError(f"the URL of the database has none of the forms {_FORMS}") from error

    def open_() -> Any:
        connection = pymysql.connect(
            host=host, port=port, user=user, password=unquote(parts.password or ""), database=name,
            charset="utf8mb4", autocommit=True, connect_timeout=5, read_timeout=60,
            init_command="SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        )  # fmt: skip
        connection.query("SET SESSION wait_timeout = 60")
        return connection

    return Database("mysql", f"mysql://{user}@{host}:{port}/{name}", open_, pymysql.MySQLError)
