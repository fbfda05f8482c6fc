"""The outbox table, and databases with it, as the relay and the commands use them."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote

from eventmq.errors import PluginError, StoreError
from eventmq_contrib.extras import need

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["DDL", "NEW", "TABLE", "Database", "Row", "among", "connect"]

#: Name of the table, and of the channel on which PostgreSQL announces rows at their commit.
TABLE = "eventmq_outbox"

#: A relay fills ``sends``, how often a row may have been sent, ``sent``, when that was first, and
#: ``error``, why it keeps the row.
_TABLE = f"""CREATE TABLE IF NOT EXISTS {TABLE} (
    seq %s, job_id VARCHAR(255) NOT NULL, queue VARCHAR(255) NOT NULL, headers %s NOT NULL,
    body %s NOT NULL, ordering_key VARCHAR(255) NOT NULL DEFAULT '',
    created DOUBLE PRECISION NOT NULL, sends INTEGER NOT NULL DEFAULT 0, sent DOUBLE PRECISION,
    error VARCHAR(1000) NOT NULL DEFAULT '' %s"""

_INDEX = f"""CREATE INDEX IF NOT EXISTS {TABLE}_key ON {TABLE} (ordering_key, seq)
    WHERE ordering_key <> ''"""

#: Kind of database, as in the attribute ``vendor`` of Django's connections -> the statements that
#: make the table and its index. They do nothing where these exist.
DDL: Mapping[str, tuple[str, ...]] = {
    "postgresql": (_TABLE % (
        "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "TEXT", "BYTEA",
        ") WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000)",
    ), _INDEX),
    "sqlite": (_TABLE % ("INTEGER PRIMARY KEY AUTOINCREMENT", "TEXT", "BLOB", ")"), _INDEX),
    "mysql": (_TABLE % (
        "BIGINT AUTO_INCREMENT PRIMARY KEY", "MEDIUMTEXT", "LONGBLOB",
        f", KEY {TABLE}_key (ordering_key, seq)) ENGINE = InnoDB COLLATE = utf8mb4_bin",
    ),),
}  # fmt: skip

#: Bytes of bodies that are read at a time, unless one body alone has more.
BYTES = 8 * 1024 * 1024

#: Settings of a session of MySQL, and of a transaction of PostgreSQL, whose sessions a pooler gives
#: to others. A relay that does nothing for a minute gives its rows back. PostgreSQL would compile
#: the statements, or read all rows of a key for each of them, before an ANALYZE.
_MYSQL_SETTINGS = (
    "SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", "SESSION wait_timeout = 60",
)  # fmt: skip
_POSTGRESQL_SETTINGS = (
    "jit = off", "enable_seqscan = off", "enable_bitmapscan = off", "enable_sort = off",
    "idle_in_transaction_session_timeout = '60s'",
)  # fmt: skip

#: Of the rows of a key only the first: its lock is the claim of the key, with all of its rows.
_CLAIM = f"""SELECT seq, length(body), ordering_key FROM {TABLE} AS o WHERE error = '' AND
    (ordering_key = '' OR seq = (SELECT e.seq FROM {TABLE} AS e WHERE e.ordering_key <> ''
        AND e.ordering_key = o.ordering_key AND e.error = '' ORDER BY e.seq LIMIT 1))"""  # noqa: S608

_MARK = f"UPDATE {TABLE} SET sends = sends + 1, sent = COALESCE(sent, %s)"  # noqa: S608

#: What a row has that was never sent.
NEW = "sends = 0, sent = NULL"

#: User, password, host, port and name.
_MYSQL = re.compile(r"(?:([^:@/]*)(?::([^@/]*))?@)?(\[[^]]+]|[^:@/]*)(?::(\d+))?/([^?/]+)(?:\?.*)?")


class Row(NamedTuple):
    """A row of the table, with how often it may have been sent from now on, and since when."""

    seq: int
    sends: int
    sent: float
    ordering_key: str
    job_id: str
    queue: str
    headers: str
    body: bytes


class Database:
    """A connection in autocommit mode, made when it is first used and again after an error.

    Args:
        vendor: A key of `eventmq_contrib.outbox.DDL`.
        name: The URL without password.
        open_: Connects.
        error: Base class of the driver's exceptions.
    """

    def __init__(
        self, vendor: str, name: str, open_: Callable[[], Any], error: type[Exception]
    ) -> None:
        self.vendor, self.name, self._open, self._error = vendor, name, open_, error
        self._connection: Any = None
        #: SQLite claims nothing: the transaction of a relay would stop the writers.
        self._lock = "" if vendor == "sqlite" else " FOR UPDATE SKIP LOCKED"

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """Execute a statement and return its rows; after a `StoreError` nothing is committed."""
        try:
            if self._connection is None:
                self._connection = self._open()
                for setting in _MYSQL_SETTINGS if self.vendor == "mysql" else ():
                    self._connection.cursor().execute(f"SET {setting}")
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

    def check(self) -> None:
        """Raise `StoreError` if the table, one of its columns, or the right to lock rows lacks."""
        names = ", ".join([*Row._fields, "created", "error"])
        self.execute(f"SELECT {names} FROM {TABLE} LIMIT 1{self._lock}")  # noqa: S608

    def claim(self, limit: int, without: Sequence[str] = ()) -> list[Row]:
        """Begin a transaction, and return rows that no other relay gets until its end, by seq.

        Before, a transaction of its own records that they may be sent from now on. Rows of the
        queues ``without`` are left.
        """
        marks = ", ".join(["%s"] * len(without))
        sql = f"{_CLAIM} AND queue NOT IN ({marks})" if without else _CLAIM
        self._transaction("BEGIN")
        found = self.execute(f"{sql} ORDER BY seq LIMIT {limit}{self._lock}", without)
        sizes = {seq: size for seq, size, _ in found}
        firsts = {key: seq for seq, _, key in found if key}
        if firsts:
            marks = ", ".join(["%s"] * len(firsts))
            sql = f"SELECT seq, length(body) FROM {TABLE} WHERE error = '' AND ordering_key IN"  # noqa: S608
            sizes.update(self.execute(f"{sql} ({marks}) ORDER BY seq LIMIT {limit}", [*firsts]))
        if not sizes:
            return []
        total = dict(zip(sizes, accumulate(sizes.values()), strict=True))
        chosen = among([seq for seq in sizes if total[seq] <= BYTES] or [*sizes][:1])
        self.execute(f"{_MARK} WHERE {chosen}", (time.time(),))
        self._transaction("COMMIT AND CHAIN")
        # What another relay has claimed meanwhile is left to it, with its first row a whole key.
        sql = f"SELECT {', '.join(Row._fields)} FROM {TABLE} WHERE {chosen} AND error = ''"  # noqa: S608
        rows = [Row(*row) for row in self.execute(f"{sql} ORDER BY seq{self._lock}")]
        claimed = {row.seq for row in rows}
        return [r for r in rows if not r.ordering_key or firsts[r.ordering_key] in claimed]

    def finish(
        self, sent: Sequence[int], kept: Sequence[tuple[int, str]], unsent: Sequence[int]
    ) -> None:
        """End a claim: delete rows that were sent, record why others are kept, and commit.

        Those that the broker did not get, ``unsent``, are as before, unless others had them too.
        """
        if sent:
            self.execute(f"DELETE FROM {TABLE} WHERE {among(sent)}")  # noqa: S608
        if unsent:
            self.execute(f"UPDATE {TABLE} SET {NEW} WHERE sends = 1 AND {among(unsent)}")  # noqa: S608
        for seq, why in kept:
            self.execute(f"UPDATE {TABLE} SET error = %s WHERE seq = %s", (why[:1000], seq))  # noqa: S608
        self._transaction("COMMIT")

    def _transaction(self, statement: str) -> None:
        if self.vendor == "postgresql" and statement != "COMMIT":
            begin = statement.replace("BEGIN", "BEGIN ISOLATION LEVEL READ COMMITTED")
            statement = "; SET LOCAL ".join([begin, *_POSTGRESQL_SETTINGS])  # in one trip
        if self._lock:
            self.execute(statement)

    def wait(self, seconds: float) -> None:
        """Wait for a time, or until PostgreSQL announces rows."""
        if self.vendor != "postgresql" or self._connection is None:
            time.sleep(seconds)
        else:
            self.execute(f"LISTEN {TABLE}")
            with suppress(self._error):  # which the next statement has as well
                list(self._connection.notifies(timeout=seconds, stop_after=1))

    def close(self) -> None:
        """Close the connection, which rolls back. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(self._error):
                connection.close()


def among(seqs: Sequence[int]) -> str:
    """Return the condition for rows."""
    return f"seq IN ({', '.join(map(str, seqs))})"


class _NotUTF8(bytes):
    """A text of SQLite that cannot be decoded, and is no blob; an error would stop the relay."""


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return _NotUTF8(value)


def connect(url: str, *, create: bool = False) -> Database:
    """Return the database of a URL, as libpq or SQLAlchemy writes it; it is not connected yet.

    A missing file of SQLite is made if ``create`` is true. Raise `PluginError` if the URL is not
    valid, or the driver is missing.
    """
    scheme, _, rest = url.partition("://")
    vendor = {"postgres": "postgresql", "mariadb": "mysql"}.get(scheme, scheme.partition("+")[0])
    if vendor == "postgresql" and rest:
        need("psycopg", user="the outbox of PostgreSQL", extra="outbox")
        import psycopg
        from psycopg.conninfo import make_conninfo

        from eventmq_contrib.postgres.connection import Database as Parameters

        parsed = Parameters.of(f"postgresql://{rest}")
        info = make_conninfo(fallback_application_name="eventmq outbox", **parsed.parameters)
        open_ = partial(psycopg.connect, info, autocommit=True, prepare_threshold=None)
        return Database(vendor, parsed.name, open_, psycopg.Error)
    if vendor == "mysql" and (found := _MYSQL.fullmatch(rest)):
        need("pymysql", user="the outbox of MySQL", extra="outbox")
        import pymysql

        user, password, host, port, name = map(unquote, found.groups(""))
        shown = f"mysql://{user}@{host}:{port or 3306}/{name}"
        open_ = partial(
            pymysql.connect, host=host.strip("[]") or "127.0.0.1", port=int(port or 3306),
            user=user, password=password, database=name, charset="utf8mb4", autocommit=True,
            connect_timeout=5, read_timeout=60,
        )  # fmt: skip
        return Database(vendor, shown, open_, pymysql.MySQLError)
    path = rest.partition("?")[0][1:]
    if vendor == "sqlite" and path and rest.startswith("/"):
        import sqlite3

        uri = f"file:{quote(path)}?mode={'rwc' if create else 'rw'}"

        def file() -> Any:
            connection = sqlite3.connect(uri, uri=True, timeout=10.0, isolation_level=None)
            connection.text_factory = _text
            return connection

        return Database(vendor, f"sqlite:///{path}", file, sqlite3.Error)
    raise PluginError(
        "the URL of the database has none of the forms postgresql://USER@HOST/NAME, "
        "mysql://USER:PASSWORD@HOST/NAME or sqlite:///PATH"
    )
