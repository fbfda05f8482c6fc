"""The outbox table, and the writing of its rows through connections of the application.

A driver is recognised by the class of the connection. Nothing is committed or sent here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from eventmq.errors import SettingsError

__all__ = ["COLUMNS", "DDL", "SENT", "TABLE", "adelay", "asend", "delay", "send"]

#: Name of the table, and of the channel on which PostgreSQL announces rows at their commit.
TABLE = "eventmq_outbox"

#: Name of the table in which relays record runs of rows before they send them, with the time.
SENT = f"{TABLE}_sent"

#: Columns that a writer fills. ``headers`` is text as on the wire, ``created`` Unix time. The relay
#: fills ``error``: why it keeps the row; empty for a row to be sent.
COLUMNS = ("job_id", "queue", "headers", "body", "ordering_key", "created")

_POSTGRESQL = f"""CREATE TABLE IF NOT EXISTS {TABLE} (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, job_id TEXT NOT NULL, queue TEXT NOT NULL,
    headers TEXT NOT NULL, body BYTEA NOT NULL, ordering_key TEXT NOT NULL DEFAULT '',
    created DOUBLE PRECISION NOT NULL, error TEXT NOT NULL DEFAULT ''
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000)"""

_SQLITE = f"""CREATE TABLE IF NOT EXISTS {TABLE} (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, job_id TEXT NOT NULL, queue TEXT NOT NULL,
    headers TEXT NOT NULL, body BLOB NOT NULL, ordering_key TEXT NOT NULL DEFAULT '',
    created REAL NOT NULL, error TEXT NOT NULL DEFAULT ''
)"""

_MYSQL = f"""CREATE TABLE IF NOT EXISTS {TABLE} (
    seq BIGINT AUTO_INCREMENT PRIMARY KEY, job_id VARCHAR(255) NOT NULL,
    queue VARCHAR(255) NOT NULL, headers MEDIUMTEXT NOT NULL, body LONGBLOB NOT NULL,
    ordering_key VARCHAR(255) NOT NULL DEFAULT '', created DOUBLE NOT NULL,
    error VARCHAR(1000) NOT NULL DEFAULT '', KEY {TABLE}_key (ordering_key, seq)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin"""

_INDEX = f"""CREATE INDEX IF NOT EXISTS {TABLE}_key ON {TABLE} (ordering_key, seq)
    WHERE ordering_key <> ''"""

_SENT = f"""CREATE TABLE IF NOT EXISTS {SENT} (
    seq BIGINT PRIMARY KEY, last_seq BIGINT NOT NULL, sent DOUBLE PRECISION NOT NULL)"""

#: Kind of database, as in the attribute ``vendor`` of Django's connections -> the statements that
#: make the tables and an index. They do nothing where these exist.
DDL: Mapping[str, tuple[str, ...]] = {
    "postgresql": (_POSTGRESQL, _INDEX, _SENT), "sqlite": (_SQLITE, _INDEX, _SENT),
    "mysql": (_MYSQL, _SENT),
}  # fmt: skip

#: Library -> what a connection of it is called in messages.
_LIBRARIES = {
    "psycopg": "psycopg 3", "sqlite3": "sqlite3", "apsw": "apsw", "aiosqlite": "aiosqlite",
    "pymysql": "PyMySQL", "sqlalchemy": "SQLAlchemy 2", "django": "Django",
}  # fmt: skip

#: As many characters as MySQL's column has.
_MAX_KEY = 255


def delay(connection: Any, task: Any, *args: Any, **kwargs: Any) -> Any:
    """Write a job into the outbox table, in the transaction of a connection.

    Args:
        connection: A connection, or session, of the application; for Django also its alias.
        task: A task, or ``task.options(...)``.
        *args: Positional arguments of the task.
        **kwargs: Keyword arguments of the task.

    Returns:
        The handle that ``task.delay()`` returns. Until the relay has sent the job, the broker does
        not know it: the handle raises `JobNotFound`.

    Raises:
        TypeError: The function does not accept these arguments.
        SerializationError: They cannot be encoded.
        SettingsError: The connection is of an unknown kind.
        Exception: An error of the driver; for example, the database has no outbox table.
    """
    return send(connection, task.s(*args, **kwargs))


def send(connection: Any, signature: Any, *, key: str = "") -> Any:
    """Write a signature, chain, group or chord into the outbox table; otherwise like `delay`.

    Args:
        connection: As for `delay`.
        signature: Such as ``task.s(1)``, or ``app.signature("shop.mail", 1)``.
        key: Ordering key, at most 255 characters. Jobs with the same key are submitted in the order
            of their rows. This is the order of the commits only if transactions with the same key
            wait for each other, for example by locking a row.
    """
    write, is_async = _writer(connection)
    if is_async:
        raise SettingsError(f"{_name(connection)} is asynchronous: use await outbox.asend()")
    job, values = _encode(signature, key)
    write(values)
    return job


async def adelay(connection: Any, task: Any, *args: Any, **kwargs: Any) -> Any:
    """Do the same as `delay`, with an asynchronous connection."""
    return await asend(connection, task.s(*args, **kwargs))


async def asend(connection: Any, signature: Any, *, key: str = "") -> Any:
    """Do the same as `send`, with an asynchronous connection."""
    write, is_async = _writer(connection)
    if not is_async:
        raise SettingsError(f"{_name(connection)} blocks: use outbox.send() in a thread")
    job, values = _encode(signature, key)
    await write(values)
    return job


def _encode(signature: Any, key: str) -> tuple[Any, Sequence[Any]]:
    """Return the handle of a job and the values of its row."""
    if type(key) is not str or len(key) > _MAX_KEY or "\0" in key:
        raise SettingsError(f"a key is text of at most {_MAX_KEY} characters, not {key!r:.80}")
    job, (job_id, queue, headers, body) = signature.encode()
    now, name = time.time(), "countdown:"  # which would begin when the relay sends the job
    pairs = [
        f"eta:{now + float(pair.removeprefix(name))!r}" if pair.startswith(name) else pair
        for pair in headers.split(",")
    ]
    return job, (job_id, queue, ",".join(pairs), body, key, now)


def _writer(connection: Any) -> tuple[Callable[[Sequence[Any]], Any], bool]:
    """Return a function that writes a row, and whether it is a coroutine function."""
    if isinstance(connection, str):
        from django.db import connections

        connection = connections[connection]
    classes = type(connection).__mro__
    libraries = [each.__module__.partition(".")[0] for each in classes]
    library = next(filter(_LIBRARIES.__contains__, libraries), "")
    is_async = library == "aiosqlite" or any("async" in c.__name__.lower() for c in classes)
    if library in {"django", "pymysql"} and hasattr(connection, "cursor"):
        sql = _insert("mysql" if library == "pymysql" else connection.vendor, "%s")
        return lambda values: _execute(connection, sql, values), False
    if not library or not hasattr(connection, "execute"):
        known = ", ".join(_LIBRARIES.values())
        raise SettingsError(f"{_name(connection)} is not a connection or session of {known}")
    if library == "sqlalchemy":
        from sqlalchemy import text

        found = connection if hasattr(connection, "dialect") else connection.get_bind()
        named = text(_insert(found.dialect.name, ":{}"))
        return lambda v: connection.execute(named, dict(zip(COLUMNS, v, strict=True))), is_async
    sql = _insert("postgresql", "%s") if library == "psycopg" else _insert("sqlite", "?")
    return lambda values: connection.execute(sql, values), is_async


def _execute(connection: Any, sql: str, values: Sequence[Any]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)


def _insert(vendor: str, mark: str) -> str:
    """Return the statement that writes a row, with placeholders in the style of the driver."""
    if vendor not in {*DDL, "mariadb"}:
        raise SettingsError(f"the outbox cannot be in {vendor}; it can be in {', '.join(DDL)}")
    marks = ", ".join(mark.format(name) for name in COLUMNS)
    sql = f"INSERT INTO {TABLE} ({', '.join(COLUMNS)}) VALUES ({marks})"  # noqa: S608
    if vendor != "postgresql":
        return sql
    # In one trip with the notification, which is sent at the commit.
    return f"WITH row AS ({sql} RETURNING 1) SELECT pg_notify('{TABLE}', '') FROM row"  # noqa: S608


def _name(connection: Any) -> str:
    return f"{type(connection).__module__}.{type(connection).__qualname__}"
