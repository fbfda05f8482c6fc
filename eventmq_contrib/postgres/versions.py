"""Versions of the tables of a schema: made, expanded for a later release, and contracted again.

The comment of the table `VALUES` says which version the tables have, and from which one on brokers
may use them: two releases run side by side on tables that are expanded and not contracted yet. Each
session of a broker holds a lock in the name of its version, so that nobody contracts beside it.
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

__all__ = ["contract", "expand", "prepare"]

#: Milliseconds that a change of a table waits for those who use it, who wait behind it. A deadlock
#: with a broker is given up by this side, as the server looks for one after a second.
LOCK_TIMEOUT = 300

#: How often it is tried, and seconds in between.
TRIES, PAUSE = 20, 0.5

_COMMENT = re.compile(
    r"(?P<name>.*) of EventMQ, version (?P<version>\d+)"
    r"(?:, tables (?P<digest>\w+))?(?:, for brokers from version (?P<oldest>\d+) on)?"
)

#: Two numbers: the schema, and a version.
_KEY = "hashtext('eventmq version ' || %s), %s"

_HOLD = f"SELECT pg_advisory_lock_shared({_KEY})"

_BAR = f"SELECT pg_try_advisory_xact_lock({_KEY})"

_HOLDERS = """SELECT DISTINCT application_name, host(client_addr), pid::int8
    FROM pg_locks LEFT JOIN pg_stat_activity USING (pid)
    WHERE locktype = 'advisory' AND granted AND classid::int8 = hashtext(%s)::int8 & 4294967295
    AND objsubid = 2 AND objid::int8 = %s
    AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())"""

_CHANGING = "hashtextextended('eventmq expands ' || %s, 0)"

_UNFINISHED = """SELECT relname::text FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
    WHERE NOT indisvalid AND relnamespace = current_schema()::regnamespace"""

_PERIODS = """SELECT relname::text FROM pg_class
    WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'
    AND relname ~ '^outcomes(_[0-9]+)?$' ORDER BY length(relname), relname"""


class Version(NamedTuple):
    """What tables are."""

    version: int
    #: Of `Layout.digest`; None where it is not known.
    digest: str | None
    #: The first version whose brokers may use them.
    oldest: int

    def comment(self, layout: Layout) -> str:
        """Return the comment that says it, and marks the tables as ours."""
        text = f"{layout.name} of EventMQ, version {self.version}"
        text += f", tables {self.digest}" if self.digest else ""
        if self.oldest < self.version:
            text += f", for brokers from version {self.oldest} on"
        return text


def _own(layout: Layout) -> Version:
    return Version(layout.version, layout.digest, layout.version)


def prepare(connection: Connection, database: Database, layout: Layout = QUEUE_STORE) -> None:
    """Make the tables in a schema that has none of them; several at once make them once.

    Until the connection is closed they are not contracted to a version that this one cannot use.

    Raises:
        StoreError: The schema has tables of another version, or others of these names, or the user
            may not make them. Nothing was made.
    """
    connection.execute(_HOLD, [database.schema, layout.version])
    found = _find(connection, database, layout)
    if found is None:
        with making_tables(connection, database):
            found = _find(connection, database, layout)
            if found is None:
                _make(connection, database, layout)
                return
    if layout.version < found.version and found.oldest <= layout.version:
        return  # a later release has expanded it
    steps = _steps(found, layout)
    if steps is None:
        raise _refused(database, found, layout)
    if steps:
        raise StoreError(
            f"the schema {database.schema} of {database.name} was made by an earlier version of "
            f"EventMQ: it has a {found.comment(layout)}, and this EventMQ needs version "
            f"{layout.version}: eventmq store init --store URL adds what it lacks, while brokers "
            "of the earlier one go on"
        )


def expand(connection: Connection, database: Database, layout: Layout = QUEUE_STORE) -> int:
    """Add what tables of an earlier version lack; brokers may use them meanwhile.

    Returns:
        The version that they had, 0 where there is nothing to do.

    Raises:
        StoreError: Another process changes them too, or they are used for too long by others. What
            was added harms nobody; the next time goes on.
    """
    with _alone(connection, database):
        return _expand(connection, database, layout)


@contextmanager
def _alone(connection: Connection, database: Database) -> Iterator[None]:
    """Let no other process change the tables, nor what their comment says, meanwhile.

    Raises:
        StoreError: Another one does.
    """
    values = [database.schema]
    # No lock that waits: making an index waits for all who do.
    locked = connection.execute(f"SELECT pg_try_advisory_lock({_CHANGING})", values).fetchone()
    if locked != (True,):
        raise StoreError(
            f"another process expands or contracts the schema {database.schema} of "
            f"{database.name}: wait for it"
        )
    try:
        yield
    finally:
        with suppress(psycopg.Error):  # a session that has ended has it no more
            connection.execute(f"SELECT pg_advisory_unlock({_CHANGING})", values)


def _expand(connection: Connection, database: Database, layout: Layout) -> int:
    found = _find(connection, database, layout)
    steps = _steps(found, layout) if found is not None else None
    if not steps:
        return 0
    assert found is not None  # noqa: S101 - it has steps
    for (name,) in connection.execute(_UNFINISHED).fetchall():
        connection.execute(f"DROP INDEX CONCURRENTLY {quote(name)}".encode())
    for step in steps:
        for statement in step.expand:
            if "CONCURRENTLY" in statement:
                connection.execute(statement.encode())
            else:
                _change(connection, database, [statement])
    now = Version(layout.version, layout.digest, found.oldest)
    connection.execute(f"COMMENT ON TABLE {VALUES.name} IS '{now.comment(layout)}'".encode())
    return found.version


def contract(connection: Connection, database: Database, layout: Layout = QUEUE_STORE) -> int:
    """Remove what only brokers of earlier versions needed, which are refused from then on.

    Returns:
        The oldest version whose brokers could use the tables, 0 where there is nothing to do.

    Raises:
        StoreError: Such a broker is connected, another process changes the tables too, or they are
            used for too long by others. Nothing was done.
    """
    with _alone(connection, database):
        return _contract(connection, database, layout)


def _contract(connection: Connection, database: Database, layout: Layout) -> int:
    found = _find(connection, database, layout)
    if found is None or found.oldest == found.version:
        return 0
    if found.version != layout.version:
        raise _refused(database, found, layout)
    steps = [layout.steps[version] for version in range(found.oldest, found.version)]
    statements = [statement for step in steps for statement in step.contract]
    comment = f"COMMENT ON TABLE {VALUES.name} IS '{_own(layout).comment(layout)}'"
    _change(connection, database, [*statements, comment], bar=range(found.oldest, found.version))
    return found.oldest


def _change(
    connection: Connection,
    database: Database,
    statements: Sequence[str],
    bar: Sequence[int] = (),
) -> None:
    """Carry out statements in one transaction, between those of brokers.

    Args:
        connection: Without a transaction.
        database: For errors.
        statements: As of a `Step`.
        bar: Versions of which no broker may be connected, nor connect before the end.
    """
    reason: Exception | None = None
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE)
        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT}".encode())
                for version in bar:
                    _bar(connection, database, version)
                for statement in statements:
                    for text in _texts(connection, statement):
                        connection.execute(text.encode())
            return
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            reason = error
    raise StoreError(
        f"the tables in the schema {database.schema} of {database.name} cannot be changed while "
        "another session has them for so long, as a dump does: try again when it has ended"
    ) from reason


def _bar(connection: Connection, database: Database, version: int) -> None:
    values = [database.schema, version]
    if connection.execute(_BAR, values).fetchone() != (True,):
        rows = connection.execute(_HOLDERS, [f"eventmq version {database.schema}", version])
        shown = "; ".join(
            f"{name or 'a session'} from {host or 'another host'} (pid {pid})"
            for name, host, pid in rows
        )
        raise StoreError(
            f"brokers of version {version} use the store in the schema {database.schema} of "
            f"{database.name}: end them first, or replace them: {shown}"
        )


def _texts(connection: Connection, statement: str) -> Iterator[str]:
    """Yield a statement once for each table that it is for."""
    if "{outcomes}" not in statement:
        yield statement
        return
    # First for the template, beside which no table of a period is made then.
    yield statement.replace("{outcomes}", "outcomes")
    for (name,) in connection.execute(_PERIODS).fetchall()[1:]:
        yield statement.replace("{outcomes}", name)


def _steps(found: Version | None, layout: Layout) -> list[Step] | None:
    if found is None:
        return None
    return steps_between(layout.steps, found[:2], _own(layout)[:2], lambda step: step.digest)


def _make(connection: Connection, database: Database, layout: Layout) -> None:
    for table in layout.tables:
        found = connection.execute("SELECT to_regclass(%s)", [quote(table.name)]).fetchone()
        if found != (None,):
            raise _foreign(database, table.name)
        for statement in definitions(table):
            connection.execute(statement.encode())
    for text in layout.rest:
        connection.execute(text.encode())
    comment = _own(layout).comment(layout)
    connection.execute(f"COMMENT ON TABLE {VALUES.name} IS '{comment}'".encode())


def _find(connection: Connection, database: Database, layout: Layout) -> Version | None:
    """Return what the tables are, None where there are none.

    Raises:
        StoreError: They are not EventMQ's, or something else of it.
    """
    name = quote(VALUES.name)
    found = connection.execute(
        "SELECT to_regclass(%s)::oid, obj_description(to_regclass(%s), 'pg_class')", [name, name]
    ).fetchone()
    assert found is not None  # noqa: S101 - it has one row
    oid, comment = found
    if oid is None:
        return None
    said = _COMMENT.fullmatch(comment or "")
    if said is None or said["name"] != layout.name:
        raise _foreign(database, VALUES.name, str(comment or ""))
    version = int(said["version"])
    return Version(version, said["digest"], int(said["oldest"] or version))


def _refused(database: Database, found: Version, layout: Layout) -> StoreError:
    """Return the error for tables of a version that this one cannot use."""
    what_helps = "work off its jobs with the EventMQ that made it, or name another schema"
    if found.version > layout.version:
        what_helps = "start the later EventMQ in the place of this one"
    return StoreError(
        f"the schema {database.schema} of {database.name} was made by another version of "
        f"EventMQ: it has a {found.comment(layout)}, and this EventMQ needs a "
        f"{_own(layout).comment(layout)}; {what_helps}"
    )


def _foreign(database: Database, table: str, comment: str = "") -> StoreError:
    found = f"is that of a {comment}" if "of EventMQ, version" in comment else "is not EventMQ's"
    return StoreError(
        f"the schema {database.schema} of {database.name} has a table {table} that {found}: name "
        "another schema"
    )
