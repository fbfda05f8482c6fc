"""Transactional outbox: jobs are rows in the application's own transaction, until they are sent.

`delay` and `send` write a row through a connection of the application and send nothing; ``eventmq
outbox relay`` submits the rows that were committed. Jobs of a transaction that is rolled back are
never sent, and those of a committed one are sent at least once, also if the broker was away.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from eventmq import hookimpl
from eventmq.errors import SettingsError
from eventmq_contrib.outbox.database import DDL, TABLE

if TYPE_CHECKING:
    import click

__all__ = ["DDL", "TABLE", "adelay", "asend", "delay", "eventmq_add_commands", "send"]

#: Columns that a writer fills. ``headers`` is text as on the wire, ``created`` Unix time.
_COLUMNS = ("job_id", "queue", "headers", "body", "ordering_key", "created")

#: Library -> the kind of its databases, "" for several, and its placeholder for a column.
_LIBRARIES = {
    "psycopg": ("postgresql", "%s"), "sqlite3": ("sqlite", "?"), "apsw": ("sqlite", "?"),
    "aiosqlite": ("sqlite", "?"), "pymysql": ("mysql", "%s"), "sqlalchemy": ("", ":{}"),
    "django": ("", "%s"),
}  # fmt: skip

#: As many characters as the column has.
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
    return _write(connection, signature, key, is_async=False)[0]


async def adelay(connection: Any, task: Any, *args: Any, **kwargs: Any) -> Any:
    """Do the same as `delay`, with an asynchronous connection."""
    return await asend(connection, task.s(*args, **kwargs))


async def asend(connection: Any, signature: Any, *, key: str = "") -> Any:
    """Do the same as `send`, with an asynchronous connection."""
    job, written = _write(connection, signature, key, is_async=True)
    await written
    return job


def _write(connection: Any, signature: Any, key: str, *, is_async: bool) -> tuple[Any, Any]:
    """Write a row; return the handle, and what the driver returned, to be awaited if it is async.

    A driver is recognised by the class of the connection. Nothing is committed.
    """
    if type(key) is not str or len(key) > _MAX_KEY or "\0" in key:
        raise SettingsError(f"a key is text of at most {_MAX_KEY} characters, not {key!r:.80}")
    if isinstance(connection, str):
        from django.db import connections

        connection = connections[connection]
    connection = getattr(connection, "driver_connection", connection)  # in SQLAlchemy's pool
    classes = type(connection).__mro__
    name = f"{classes[0].__module__}.{classes[0].__qualname__}"
    libraries = [each.__module__.partition(".")[0] for each in classes]
    library = next(filter(_LIBRARIES.__contains__, libraries), "")
    if not library or not (hasattr(connection, "execute") or hasattr(connection, "cursor")):
        raise SettingsError(f"{name} is not a connection or session of {', '.join(_LIBRARIES)}")
    awaits = library == "aiosqlite" or any("async" in each.__name__.lower() for each in classes)
    if awaits and not is_async:
        raise SettingsError(f"{name} is asynchronous: use await outbox.asend()")
    if is_async and not awaits:
        raise SettingsError(f"{name} blocks: use outbox.send() in a thread")
    job, (job_id, queue, headers, body) = signature.encode()
    now, start = time.time(), "countdown:"  # which would begin when the relay sends the job
    pairs = [
        f"eta:{now + float(pair.removeprefix(start))!r}" if pair.startswith(start) else pair
        for pair in headers.split(",")
    ]
    values = (job_id, queue, ",".join(pairs), body, key, now)
    vendor, mark = _LIBRARIES[library]
    if library == "sqlalchemy":
        from sqlalchemy import text

        found = connection if hasattr(connection, "dialect") else connection.get_bind()
        sql = text(_insert(found.dialect.name, mark))
        return job, connection.execute(sql, dict(zip(_COLUMNS, values, strict=True)))
    executes = connection if hasattr(connection, "execute") else connection.cursor()
    return job, executes.execute(_insert(vendor or connection.vendor, mark), values)


def _insert(vendor: str, mark: str) -> str:
    """Return the statement that writes a row, with placeholders in the style of the driver."""
    if vendor not in {*DDL, "mariadb"}:
        raise SettingsError(f"the outbox cannot be in {vendor}; it can be in {', '.join(DDL)}")
    marks = ", ".join(mark.format(name) for name in _COLUMNS)
    sql = f"INSERT INTO {TABLE} ({', '.join(_COLUMNS)}) VALUES ({marks})"  # noqa: S608
    if vendor != "postgresql":
        return sql
    # In one trip with the notification, which is sent at the commit.
    return f"WITH row AS ({sql} RETURNING 1) SELECT pg_notify('{TABLE}', '') FROM row"  # noqa: S608


@hookimpl
def eventmq_add_commands(cli: click.Group) -> None:
    """Add ``eventmq outbox``."""
    from eventmq_contrib.outbox.command import outbox

    cli.add_command(outbox)
