"""Versions of the tables of a schema: creates, expands and contracts them.

The comment of the table `VALUES` contains the version of the tables, and the oldest version whose
brokers may use them. Between expanding and contracting, two releases can run at the same time. Each
session of a broker holds an advisory lock for its version, so that the tables are not contracted
while it needs them.
"""

from __future__ import annotations

import re
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from eventmq.engine import quote, steps_between
from eventmq.sdk import StoreError
from eventmq_contrib.postgres.connection import making_tables
from eventmq_contrib.postgres.tables import QUEUE_STORE, VALUES, definitions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from eventmq_contrib.postgres.connection import Database
    from eventmq_contrib.postgres.tables import Layout, Step

    Connection = psycopg.Connection[Any]

__all__ = ["COUNT_STANDBYS", "contract", "expand", "prepare"]

#: Milliseconds for which a change of a table waits for a lock, while other sessions wait behind it.
#: As this is less than ``deadlock_timeout``, one second, a deadlock with a broker never fails the
#: broker.
LOCK_TIMEOUT = 300

#: Number of attempts to change a table, and seconds between them.
TRIES, PAUSE = 20, 0.5

_COMMENT = re.compile(
    r"(?P<name>.*) of EventMQ, version (?P<version>\d+)"
    r"(?:, tables (?P<digest>\w+))?(?:, for brokers from version (?P<oldest>\d+) on)?"
)

#: Key of an advisory lock, two numbers: schema and version.
_KEY = "hashtext('eventmq version ' || %s), %s"

_LOCK_VERSION = f"SELECT pg_advisory_lock_shared({_KEY})"

_TRY_LOCK_VERSION = f"SELECT pg_try_advisory_xact_lock({_KEY})"

_SELECT_LOCK_HOLDERS = """SELECT DISTINCT application_name, host(client_addr), pid::int8
    FROM pg_locks LEFT JOIN pg_stat_activity USING (pid)
    WHERE locktype = 'advisory' AND granted AND classid::int8 = hashtext(%s)::int8 & 4294967295
    AND objsubid = 2 AND objid::int8 = %s
    AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())"""

#: Number of the brokers of any version that stand by, for a statement of the owner. All sessions of
#: an installation have the application name of the URL, if that has one.
COUNT_STANDBYS = """SELECT count(DISTINCT pid)::int8 FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE locktype = 'advisory' AND granted AND objsubid = 2 AND pid <> pg_backend_pid()
    AND classid::int8 = hashtext('eventmq version ' || current_schema())::int8 & 4294967295
    AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND application_name
        = replace(current_setting('application_name'), 'eventmq store', 'eventmq standby')"""

_CHANGE_KEY = "hashtextextended('eventmq expands ' || %s, 0)"

_SELECT_INVALID_INDEXES = """SELECT relname::text
    FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
    WHERE NOT indisvalid AND relnamespace = current_schema()::regnamespace"""

_SELECT_PERIODS = """SELECT relname::text FROM pg_class
    WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'
    AND relname ~ '^outcomes(_[0-9]+)?$' ORDER BY length(relname), relname"""


class Version(NamedTuple):
    """Version of the tables of a schema."""

    version: int
    #: `Layout.digest` of the tables; None if it is not known.
    digest: str | None
    #: The oldest version whose brokers may use the tables.
    oldest: int

    def comment(self, layout: Layout) -> str:
        """Return the comment with this version, which marks the tables as EventMQ's."""
        text = f"{layout.name} of EventMQ, version {self.version}"
        text += f", tables {self.digest}" if self.digest else ""
        if self.oldest < self.version:
            text += f", for brokers from version {self.oldest} on"
        return text


def _version_of(layout: Layout) -> Version:
    return Version(layout.version, layout.digest, layout.version)


def prepare(connection: Connection, database: Database, layout: Layout = QUEUE_STORE) -> None:
    """Check the version of the tables, or create them if the schema has none.

    Concurrent calls create them once. Until the connection is closed, the tables are not contracted
    to a version that this release cannot use.

    Raises:
        StoreError: The schema has tables of another version, or other tables with these names, or
            the user may not create tables. Nothing was created.
    """
    connection.execute(_LOCK_VERSION, [database.schema, layout.version])
    stored = _read_version(connection, database, layout)
    if stored is None:
        with making_tables(connection, database):
            stored = _read_version(connection, database, layout)
            if stored is None:
                _create(connection, database, layout)
                return
    if layout.version < stored.version and stored.oldest <= layout.version:
        return  # a later release has expanded the tables
    steps = _steps(stored, layout)
    if steps is None:
        raise _version_error(database, stored, layout)
    if steps:
        raise StoreError(
            f"the schema {database.schema} of {database.name} was made by an earlier version of "
            f"EventMQ: it has a {stored.comment(layout)}, and this EventMQ needs version "
            f"{layout.version}: run eventmq store init --store URL, which adds what is missing "
            "while brokers of the earlier version keep running"
        )


def expand(connection: Connection, database: Database, layout: Layout = QUEUE_STORE) -> int:
    """Add what tables of an earlier version lack; brokers may use them meanwhile.

    Returns:
        The version that the tables had, 0 if there was nothing to do.

    Raises:
        StoreError: Another process is changing the tables, or other sessions lock them for too
            long. Additions so far are harmless; the next call continues.
    """
    with _exclusive(connection, database):
        return _expand(connection, database, layout)


@contextmanager
def _exclusive(connection: Connection, database: Database) -> Iterator[None]:
    """Keep other processes from changing the tables or their comment during the context.

    Raises:
        StoreError: Another process is changing them.
    """
    values = [database.schema]
    # Do not wait for the lock: CREATE INDEX CONCURRENTLY waits for all waiting transactions.
    locked = connection.execute(f"SELECT pg_try_advisory_lock({_CHANGE_KEY})", values).fetchone()
    if locked != (True,):
        raise StoreError(
            f"another process expands or contracts the schema {database.schema} of "
            f"{database.name}: wait for it"
        )
    try:
        yield
    finally:
        with suppress(psycopg.Error):  # if the session has ended, so has its lock
            connection.execute(f"SELECT pg_advisory_unlock({_CHANGE_KEY})", values)


def _expand(connection: Connection, database: Database, layout: Layout) -> int:
    stored = _read_version(connection, database, layout)
    steps = _steps(stored, layout) if stored is not None else None
    if not steps:
        return 0
    assert stored is not None  # noqa: S101 - it has steps
    for (name,) in connection.execute(_SELECT_INVALID_INDEXES).fetchall():
        connection.execute(f"DROP INDEX CONCURRENTLY {quote(name)}".encode())
    for step in steps:
        for statement in step.expand:
            if "CONCURRENTLY" in statement:
                connection.execute(statement.encode())
            else:
                _change(connection, database, [statement])
    expanded = Version(layout.version, layout.digest, stored.oldest)
    connection.execute(f"COMMENT ON TABLE {VALUES.name} IS '{expanded.comment(layout)}'".encode())
    return stored.version


def contract(connection: Connection, database: Database, layout: Layout = QUEUE_STORE) -> int:
    """Remove what only brokers of earlier versions need; these are refused from then on.

    Returns:
        The oldest version whose brokers could use the tables, 0 if there was nothing to do.

    Raises:
        StoreError: A broker of an earlier version is connected, another process is changing the
            tables, or other sessions lock them for too long. Nothing was changed.
    """
    with _exclusive(connection, database):
        return _contract(connection, database, layout)


def _contract(connection: Connection, database: Database, layout: Layout) -> int:
    stored = _read_version(connection, database, layout)
    if stored is None or stored.oldest == stored.version:
        return 0
    if stored.version != layout.version:
        raise _version_error(database, stored, layout)
    steps = [layout.steps[version] for version in range(stored.oldest, stored.version)]
    statements = [statement for step in steps for statement in step.contract]
    comment = f"COMMENT ON TABLE {VALUES.name} IS '{_version_of(layout).comment(layout)}'"
    _change(
        connection,
        database,
        [*statements, comment],
        locked_out=range(stored.oldest, stored.version),
    )
    return stored.oldest


def _change(
    connection: Connection,
    database: Database,
    statements: Sequence[str],
    locked_out: Sequence[int] = (),
) -> None:
    """Run statements in one transaction, with retries if brokers hold locks.

    Args:
        connection: A connection without a transaction.
        database: The database, for errors.
        statements: Statements of a `Step`.
        locked_out: Versions whose brokers must not be connected, or connect before the end.
    """
    reason: Exception | None = None
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE)
        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT}".encode())
                for version in locked_out:
                    _lock_out(connection, database, version)
                for statement in statements:
                    for text in _statements_for(connection, statement):
                        connection.execute(text.encode())
            return
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            reason = error
    raise StoreError(
        f"the tables in the schema {database.schema} of {database.name} cannot be changed while "
        "another session, such as a dump, has them locked: try again when it has ended"
    ) from reason


def _lock_out(connection: Connection, database: Database, version: int) -> None:
    values = [database.schema, version]
    if connection.execute(_TRY_LOCK_VERSION, values).fetchone() != (True,):
        rows = connection.execute(
            _SELECT_LOCK_HOLDERS, [f"eventmq version {database.schema}", version]
        )
        shown = "; ".join(
            f"{name or 'a session'} from {host or 'another host'} (pid {pid})"
            for name, host, pid in rows
        )
        raise StoreError(
            f"brokers of version {version} use the store in the schema {database.schema} of "
            f"{database.name}: stop or upgrade them first: {shown}"
        )


def _statements_for(connection: Connection, statement: str) -> Iterator[str]:
    """Yield a statement for each table that it is for."""
    if "{outcomes}" not in statement:
        yield statement
        return
    # First for the template, whose lock then keeps brokers from creating tables of periods.
    yield statement.replace("{outcomes}", "outcomes")
    for (name,) in connection.execute(_SELECT_PERIODS).fetchall()[1:]:
        yield statement.replace("{outcomes}", name)


def _steps(stored: Version | None, layout: Layout) -> list[Step] | None:
    if stored is None:
        return None
    return steps_between(
        layout.steps, stored[:2], _version_of(layout)[:2], lambda step: step.digest
    )


def _create(connection: Connection, database: Database, layout: Layout) -> None:
    for table in layout.tables:
        row = connection.execute("SELECT to_regclass(%s)", [quote(table.name)]).fetchone()
        if row != (None,):
            raise _foreign_table_error(database, table.name)
        for statement in definitions(table):
            connection.execute(statement.encode())
    for text in layout.rest:
        connection.execute(text.encode())
    comment = _version_of(layout).comment(layout)
    connection.execute(f"COMMENT ON TABLE {VALUES.name} IS '{comment}'".encode())


def _read_version(connection: Connection, database: Database, layout: Layout) -> Version | None:
    """Return the version of the tables, None if there are none.

    Raises:
        StoreError: The tables are not EventMQ's, or belong to another layout.
    """
    name = quote(VALUES.name)
    row = connection.execute(
        "SELECT to_regclass(%s)::oid, obj_description(to_regclass(%s), 'pg_class')", [name, name]
    ).fetchone()
    assert row is not None  # noqa: S101 - it has one row
    oid, comment = row
    if oid is None:
        return None
    match = _COMMENT.fullmatch(comment or "")
    if match is None or match["name"] != layout.name:
        raise _foreign_table_error(database, VALUES.name, str(comment or ""))
    version = int(match["version"])
    return Version(version, match["digest"], int(match["oldest"] or version))


def _version_error(database: Database, stored: Version, layout: Layout) -> StoreError:
    """Return the error for tables of a version that this one cannot use."""
    remedy = "work off its jobs with the EventMQ that made it, or name another schema"
    if stored.version > layout.version:
        remedy = "start the later EventMQ in the place of this one"
    return StoreError(
        f"the schema {database.schema} of {database.name} was made by another version of "
        f"EventMQ: it has a {stored.comment(layout)}, and this EventMQ needs a "
        f"{_version_of(layout).comment(layout)}; {remedy}"
    )


def _foreign_table_error(database: Database, table: str, comment: str = "") -> StoreError:
    description = (
        f"is that of a {comment}" if "of EventMQ, version" in comment else "is not EventMQ's"
    )
    return StoreError(
        f"the schema {database.schema} of {database.name} has a table {table} that {description}: "
        "name another schema"
    )
