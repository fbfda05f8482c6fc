"""Connections to PostgreSQL: the only module that opens and checks them.

URLs are those of libpq, ``postgresql://USER:PASSWORD@HOST:PORT/DATABASE?NAME=VALUE``, so
``~/.pgpass``, services and ``PG*`` variables work as well. The tables are in a schema of their own.
A server or setting that would lose data, or cannot work, is refused with a message of one sentence.
Messages never contain the password.
"""

from __future__ import annotations

import os
import re
import select
import socket
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from eventmq.errors import PluginError, StoreError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

__all__ = [
    "SCHEMA",
    "Database",
    "DatabaseUnavailable",
    "connect",
    "describe",
    "is_schema",
    "limited",
    "making_tables",
    "split_url",
]

#: Default schema of the tables.
SCHEMA = "eventmq"

#: The first supported version, in the form of ``server_version_num``.
OLDEST = 140_000

#: Seconds for which a transaction may wait for its client, so that a lost client holds no locks.
IDLE = 2.0

#: Maximum seconds for the first statements of a session.
SETUP = 5.0

#: Default parameters of the connection. A machine that disappears is noticed within 5 s, or within
#: 10 s if data was sent to it, since a slow server may stop reading for some time.
PARAMETERS: Mapping[str, str] = {
    "connect_timeout": "5",
    "keepalives_idle": "2",
    "keepalives_interval": "1",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}

#: Settings of every session, which override those of server, database and role. A commit returns
#: when it is on disk, and on the synchronous replica if there is one. JIT compilation does not pay
#: off for small statements.
SETTINGS: Mapping[str, str] = {
    "synchronous_commit": "on",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_session_timeout": "0",
    "client_min_messages": "warning",
    "jit": "off",
    "timezone": "UTC",
}

#: PostgreSQL allows 63 characters, and reserves names that begin with ``pg_``.
_SCHEMA_NAME = re.compile(r"(?!pg_|information_schema$)[a-z_][a-z0-9_]{0,62}")

_FORM = "postgresql://USER:PASSWORD@HOST:PORT/DATABASE"

#: Part of an English message of libpq or the server about a permanent error -> remedy. A message in
#: another language is shown without a remedy, and counts as transient.
_PERMANENT = {
    "password authentication failed": "check user and password of the URL",
    "no password supplied": "name it in the URL, in ~/.pgpass or in PGPASSWORD",
    "no pg_hba.conf entry": "allow user and address in pg_hba.conf of the server",
    "permission denied for database": "GRANT CONNECT ON DATABASE to the user",
    "does not exist": "make it, or name another in the URL",
    "unsupported startup parameter": "connect to the server itself, not to a pooler",
    "does not support SSL": "leave sslmode out of the URL, or set ssl on in the server",
    "invalid ": "correct the option of the URL",
    "certificate": "check sslmode and sslrootcert of the URL",
}

#: The same for errors that may pass.
_TRANSIENT = {
    "Connection refused": "start the server, or check listen_addresses and the port",
    "failed to resolve": "check the name of the host",
    "could not translate host name": "check the name of the host",
    "timeout expired": "check the address, and the firewalls before it",
    "starting up": "wait until it has recovered",
    "too many": "raise max_connections, or close other connections",
    "connection slots": "raise max_connections, or close other connections",
    "read-only": "name the primary too: HOST,HOST",
    "hot standby mode": "name the primary too: HOST,HOST",
}

#: Line of a psycopg message about one of several hosts.
_HOST_ERROR = re.compile(r"- host: '([^']*)', port: '([^']*)'(?:, hostaddr: '[^']*')?: (.*)")


class DatabaseUnavailable(StoreError):
    """The database cannot be reached or takes no writes; this may pass without any change."""


@dataclass(frozen=True, slots=True)
class Database:
    """A database, and the schema of the tables in it.

    Attributes:
        name: The URL without password and options, for messages.
        parameters: Parameters of libpq for the connection, including the password.
        schema: Name of the schema.
    """

    name: str
    parameters: Mapping[str, str] = field(repr=False)
    schema: str = SCHEMA

    @classmethod
    def of(cls, url: str, schema: str = SCHEMA) -> Database:
        """Parse a URL of libpq, which may name several hosts.

        Raises:
            PluginError: The URL or the name of the schema is not valid.
        """
        if not is_schema(schema):
            raise PluginError(
                "the name of a schema has at most 63 lower-case letters, digits and _, and begins "
                f"with no digit and not with pg_: {SCHEMA}"
            )
        try:
            parameters = {k: str(v) for k, v in conninfo_to_dict(url).items() if v is not None}
        except psycopg.ProgrammingError:
            parameters = {"port": "no port"}
        # A password with a slash or @ would end up in these, so the message quotes nothing.
        ports = parameters.get("port", "").split(",")
        host_and_name = parameters.get("host", "") + parameters.get("dbname", "")
        if "@" in host_and_name or not all(port.isdigit() for port in filter(None, ports)):
            raise PluginError(
                f"PostgreSQL's library cannot read the URL: write {_FORM}?OPTION=VALUE, in which "
                "characters of a password such as / ? # @ % are written as %2F %3F %23 %40 %25"
            )
        if "," in parameters.get("host", ""):
            parameters.setdefault("target_session_attrs", "primary")
        return cls(_name(parameters), {**PARAMETERS, **parameters}, schema)


def is_schema(name: str) -> bool:
    """Return whether a schema may have a name: one that needs no quotes in SQL."""
    return _SCHEMA_NAME.fullmatch(name) is not None


def _name(parameters: Mapping[str, str]) -> str:
    user = parameters.get("user", "")
    hosts = parameters.get("host", parameters.get("hostaddr", "")).split(",")
    ports = parameters.get("port", "").split(",")
    ports = ports if len(ports) == len(hosts) else ports[:1] * len(hosts)
    addresses = (
        f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=True)
    )
    shown = f"postgresql://{user}{'@' if user else ''}{','.join(addresses)}"
    return f"{shown}/{parameters.get('dbname', user)}"


def split_url(url: str, own: Collection[str]) -> tuple[str, dict[str, str]]:
    """Split the options of a plugin from a URL, leaving those of libpq.

    Args:
        url: The URL of a setting.
        own: Names of the options of the plugin.

    Returns:
        The URL without the options of the plugin, and their values.

    Raises:
        PluginError: An option is neither the plugin's nor libpq's.
    """
    rest = url.partition("://")[2]
    # Like in libpq, the user ends at an @ before the first slash.
    at = rest.partition("/")[0].find("@") + 1
    query = rest[at:].partition("?")[2]
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    options, remaining = {}, []
    for pair in filter(None, query.split("&")):
        name, _, value = pair.partition("=")
        if name in own:
            options[name] = unquote(value)
        elif name in known or name == "ssl":  # ssl is an option of JDBC that libpq accepts
            remaining.append(pair)
        else:
            # An option with an @ may be the end of a password.
            shown = "" if "@" in query else f" {name!r}"
            near = did_you_mean("" if "@" in query else name, known | {*own})
            raise PluginError(f"the URL has an unknown option{shown}; {near}")
    plain = url[: len(url) - len(query)].rstrip("?") if query else url
    return plain + ("?" + "&".join(remaining) if remaining else ""), options


class _Session(NamedTuple):
    """Properties of a new session and its server."""

    pid: int
    recovery: bool
    read_only: str
    fsync: str
    full_page_writes: str
    encoding: str
    #: Whether the user may use the schema; None if it does not exist.
    usage: bool | None


_SELECT_SESSION = """SELECT pg_backend_pid(), pg_is_in_recovery(),
    current_setting('transaction_read_only'), current_setting('fsync'),
    current_setting('full_page_writes'), current_setting('server_encoding'),
    (SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = %s)"""


def connect(
    database: Database, user: str, *, idle: float = IDLE, **settings: str
) -> psycopg.Connection[tuple[Any, ...]]:
    """Open a connection in autocommit mode, and check the server.

    Args:
        database: The database to connect to.
        user: The part of EventMQ that uses it, shown in ``pg_stat_activity``, such as ``results``.
        idle: Seconds for which a transaction may wait for its next statement.
        **settings: Settings of the session that differ from `SETTINGS`.

    Raises:
        DatabaseUnavailable: The database cannot be reached, or is a replica; the message says what
            to do.
        StoreError: The database must not be used, or not by this user.
    """
    try:
        connection = _open(
            {
                "fallback_application_name": f"eventmq {user}",
                **database.parameters,
                "client_encoding": "UTF8",
            }
        )
    except (psycopg.Error, UnicodeError) as error:
        raise _connection_error(database, error) from None  # its traceback shows parameters
    values = {
        **SETTINGS,
        "idle_in_transaction_session_timeout": str(round(idle * 1000)),
        # Temporary tables come last, not first, so that they hide no table.
        "search_path": f'"{database.schema}", pg_temp',
        **settings,
    }
    calls = ", ".join(["set_config(%s, %s, false)"] * len(values))
    try:
        with limited(connection, database, SETUP):
            # Check the version first, as older servers do not know all settings.
            _check_version(database, connection)
            row = connection.execute(_SELECT_SESSION, [database.schema]).fetchone()
            assert row is not None  # noqa: S101 - it has one row
            _check(database, connection, _Session(*row))
            connection.execute(f"SELECT {calls}", [*chain(*values.items())])
    except psycopg.Error as error:
        connection.close()
        raise DatabaseUnavailable(f"cannot use {database.name}: {describe(error)}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def _open(parameters: Mapping[str, str]) -> psycopg.Connection[tuple[Any, ...]]:
    """Connect to the first host that answers; ``connect_timeout`` is for all hosts together.

    psycopg would apply it to each host, with a minimum of 2 s.
    """
    lists = {
        name: parameters[name].split(",")
        for name in ("host", "hostaddr", "port")
        if parameters.get(name)
    }
    count = max(map(len, lists.values()), default=1)
    seconds = parameters["connect_timeout"]
    if count == 1 or not seconds.isdigit() or any(len(v) not in {1, count} for v in lists.values()):
        return psycopg.connect(make_conninfo(**parameters), autocommit=True)
    end, errors = time.monotonic() + int(seconds), []
    for index in range(count):
        single = {name: values[index % len(values)] for name, values in lists.items()}
        now = time.monotonic()
        try:
            return _open_by({**parameters, **single}, now + (end - now) / (count - index))
        except psycopg.OperationalError as error:
            host, port = (single.get(name, "") for name in ("host", "port"))
            errors.append(f"- host: '{host}', port: '{port}': {error}".partition("\n")[0])
    raise psycopg.OperationalError("\n".join(errors))


def _open_by(parameters: Mapping[str, str], end: float) -> psycopg.Connection[tuple[Any, ...]]:
    """Connect to one host; fail at a monotonic time."""
    pg = pq.PGconn.connect_start(make_conninfo(**parameters).encode())
    while (state := pg.connect_poll()) != pq.PollingStatus.OK:
        remaining = end - time.monotonic()
        if state == pq.PollingStatus.FAILED:
            text = pg.error_message.decode(errors="replace")
        elif remaining > 0:
            poller = select.poll()
            reads = state == pq.PollingStatus.READING
            poller.register(pg.socket, select.POLLIN if reads else select.POLLOUT)
            poller.poll(remaining * 1000)
            continue
        else:
            text = "timeout expired"
        pg.finish()
        raise psycopg.OperationalError(text)
    pg.nonblocking = 1
    connection = psycopg.Connection(pg)
    connection.autocommit = True
    return connection


@contextmanager
def limited(
    connection: psycopg.Connection[Any], database: Database, seconds: float
) -> Iterator[None]:
    """Limit the time of the statements in the context, since psycopg waits without limit.

    Raises:
        DatabaseUnavailable: The server did not answer in time; the connection was closed.
    """
    timed_out = threading.Event()

    def end() -> None:
        timed_out.set()
        # This ends the statement that waits; it does nothing if the server closed the connection.
        with suppress(OSError):
            own.shutdown(socket.SHUT_RDWR)

    with socket.socket(fileno=os.dup(connection.pgconn.socket)) as own:
        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        except psycopg.Error as error:
            if timed_out.is_set():
                raise DatabaseUnavailable(
                    f"{database.name} did not answer within {seconds:.0f} s"
                ) from error
            raise
        finally:
            timer.cancel()
            timer.join()


def _connection_error(database: Database, error: Exception) -> StoreError:
    """Return the error for a failed connection; it is permanent only if it is for all hosts."""
    reasons = _reasons(error)
    remedies_of = [_remedy(reason) for reason in reasons.values()]
    error_class = (
        StoreError if all(permanent for permanent, _ in remedies_of) else DatabaseUnavailable
    )
    shown = [f"{host}{': ' if host else ''}{reason}" for host, reason in reasons.items()]
    remedies = dict.fromkeys(remedy for _, remedy in remedies_of if remedy)
    return error_class(f"cannot connect to {database.name}: {'; '.join([*shown, *remedies])}")


def _remedy(reason: str) -> tuple[bool, str]:
    """Return whether an error is permanent, and its remedy, "" if it is not known."""
    for permanent, texts in ((True, _PERMANENT), (False, _TRANSIENT)):
        for text, remedy in texts.items():
            if text in reason:
                return permanent, remedy
    return False, ""


def _reasons(error: Exception) -> dict[str, str]:
    """Return host -> reason of the failure; a single host is ""."""
    lines = str(error).splitlines()
    several = [match for line in lines if (match := _HOST_ERROR.match(line))]
    return {f"{m[1]}:{m[2]}": _clean(m[3]) for m in several} or {"": describe(error)}


def _check_version(database: Database, connection: psycopg.Connection[Any]) -> None:
    version = connection.info.server_version
    if version < OLDEST:
        shown = f"{version // 10_000}.{version % 10_000}"
        raise StoreError(
            f"{database.name} is PostgreSQL {shown}; EventMQ needs {OLDEST // 10_000} or later"
        )


def _check(database: Database, connection: psycopg.Connection[Any], session: _Session) -> None:
    """Raise `StoreError` for a session or server that must not be used."""
    name, schema = database.name, database.schema
    if session.pid != connection.info.backend_pid:
        raise StoreError(
            f"{name} is a pooler, behind which each transaction may have another session: name the "
            "server itself"
        )
    if session.recovery:
        raise DatabaseUnavailable(
            f"{name} is a replica, which takes no writes: name the primary, or all of them, as in "
            "postgresql://HOST,HOST/DATABASE"
        )
    if session.read_only != "off":
        raise DatabaseUnavailable(
            f"{name} takes no writes: set default_transaction_read_only = off"
        )
    for setting in ("fsync", "full_page_writes"):
        if getattr(session, setting) != "on":
            act = "restart" if setting == "fsync" else "reload"
            raise StoreError(
                f"the server of {name} may lose what was committed, since it runs without "
                f"{setting}: set {setting} = on in postgresql.conf and {act} it"
            )
    if session.encoding != "UTF8":
        raise StoreError(
            f"{name} has the encoding {session.encoding}, which lacks characters: create one "
            "with CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0"
        )
    if session.usage is False:
        raise StoreError(
            f"{connection.info.user} may not use the schema {schema} of {name}: GRANT USAGE, CREATE"
            f" ON SCHEMA {schema} TO {connection.info.user}, or name another schema"
        )


@contextmanager
def making_tables(connection: psycopg.Connection[Any], database: Database) -> Iterator[None]:
    """Begin an exclusive transaction to create tables; create the schema if it does not exist.

    Raises:
        StoreError: The user lacks the privileges; the message says what to grant. Nothing was
            created.
    """
    schema, user = database.schema, connection.info.user
    with connection.transaction():
        # Two sessions that create the same at once would fail, even with "IF NOT EXISTS".
        connection.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"eventmq {schema}"]
        )
        row = connection.execute(
            """SELECT current_database(), has_database_privilege(current_database(), 'CREATE'),
            (SELECT has_schema_privilege(oid, 'USAGE') AND has_schema_privilege(oid, 'CREATE')
             FROM pg_namespace WHERE nspname = %s)""",
            [schema],
        ).fetchone()
        assert row is not None  # noqa: S101 - it has one row
        name, may_make_schema, may_make_tables = row
        if may_make_tables is False:
            raise StoreError(
                f"{user} may not create tables in the schema {schema} of {database.name}: GRANT "
                f"USAGE, CREATE ON SCHEMA {schema} TO {user}, or name another schema"
            )
        if may_make_tables is None and not may_make_schema:
            raise StoreError(
                f"{database.name} has no schema {schema}, and {user} may not create it: CREATE "
                f"SCHEMA {schema} AUTHORIZATION {user}, or GRANT CREATE ON DATABASE {name} TO "
                f"{user}"
            )
        if may_make_tables is None:
            connection.execute(f'CREATE SCHEMA "{schema}"')
        yield


def describe(error: BaseException) -> str:
    """Return the message of a psycopg error in one line, without the prefix of libpq.

    The DETAIL is left out, since it may show values of rows.
    """
    if isinstance(error, psycopg.Error) and error.diag.message_primary:
        parts = (error.diag.message_primary, error.diag.message_hint)
        return "; ".join(" ".join(part.split()) for part in parts if part)
    return _clean(str(error)) or repr(error)


def _clean(text: str) -> str:
    """Return the last part of the first line of a message, without the prefixes of libpq."""
    first = text.strip().partition("\n")[0].rpartition(" failed: ")[2]
    for start in ("connection is bad: ", "FATAL:"):
        first = first.removeprefix(start)
    return " ".join(first.split())
