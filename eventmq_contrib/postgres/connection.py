"""Connections to PostgreSQL: opened and checked here, and nowhere else.

A URL is one of libpq's, ``postgresql://USER:PASSWORD@HOST:PORT/DATABASE?NAME=VALUE``, so that
``~/.pgpass``, services and ``PG*`` variables count as well. The tables are in a schema of their
own. What would lose data or could not work is refused with one sentence, which never has the
password in it.
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
    "Away",
    "Database",
    "connect",
    "describe",
    "is_schema",
    "limited",
    "making_tables",
    "split_url",
]

#: The schema of the tables, unless told.
SCHEMA = "eventmq"

#: The first version that is supported, as ``server_version_num`` has it.
OLDEST = 140_000

#: Seconds that a transaction may wait for its client: one whose machine is gone holds no locks.
IDLE = 2.0

#: Seconds that the server may take for the first statements of a session.
SETUP = 5.0

#: Parameters of libpq, for what the URL does not say. A machine that is gone without a word is
#: noticed in 5 s where nothing was sent to it, else in 10 s: a slow server may stop reading.
PARAMETERS: Mapping[str, str] = {
    "connect_timeout": "5",
    "keepalives_idle": "2",
    "keepalives_interval": "1",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}

#: Settings of every session, whatever server, database or role have: a commit has reached the disk
#: (and the synchronous replica, where there is one) when it returns. Small statements, of which
#: none is worth compiling.
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

#: 63 is the most that PostgreSQL takes. Names of ``pg_`` are its own.
_SCHEMA_NAME = re.compile(r"(?!pg_|information_schema$)[a-z_][a-z0-9_]{0,62}")

_FORM = "postgresql://USER:PASSWORD@HOST:PORT/DATABASE"

#: What libpq or the server say, in English, of what waiting does not mend, and what would be right.
#: In another language the text alone has to do, and is tried again.
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

#: How psycopg lists the hosts that it tried.
_ONE_OF_SEVERAL = re.compile(r"- host: '([^']*)', port: '([^']*)'(?:, hostaddr: '[^']*')?: (.*)")


class Away(StoreError):
    """The database cannot be reached or takes no writes now; that may pass without any change."""


@dataclass(frozen=True, slots=True)
class Database:
    """Where tables are: a database, and a schema of it.

    Attributes:
        name: The URL without password and options, for messages.
        parameters: Of the connection, as libpq names them; the password is one.
        schema: Of the tables.
    """

    name: str
    parameters: Mapping[str, str] = field(repr=False)
    schema: str = SCHEMA

    @classmethod
    def of(cls, url: str, schema: str = SCHEMA) -> Database:
        """Read a URL of libpq; it may name several hosts.

        Raises:
            PluginError: It is none, or the schema has no name of one.
        """
        if not is_schema(schema):
            raise PluginError(
                "the name of a schema has small letters, digits and _, 63 characters at most, no "
                f"digit and no pg_ at its beginning: {SCHEMA}"
            )
        try:
            parameters = {k: str(v) for k, v in conninfo_to_dict(url).items() if v is not None}
        except psycopg.ProgrammingError:
            parameters = {"port": "no port"}
        # A password with a slash or @ in it ends in the wrong places, so nothing is quoted here.
        ports = parameters.get("port", "").split(",")
        places = parameters.get("host", "") + parameters.get("dbname", "")
        if "@" in places or not all(port.isdigit() for port in filter(None, ports)):
            raise PluginError(
                f"the URL is none that PostgreSQL's library reads: {_FORM}?OPTION=VALUE, in which "
                "characters of a password such as / ? # @ % are written as %2F %3F %23 %40 %25"
            )
        if "," in parameters.get("host", ""):
            parameters.setdefault("target_session_attrs", "primary")
        return cls(_name(parameters), {**PARAMETERS, **parameters}, schema)


def is_schema(name: str) -> bool:
    """Return whether a schema may have this name: it is the same in quotes and without."""
    return _SCHEMA_NAME.fullmatch(name) is not None


def _name(parameters: Mapping[str, str]) -> str:
    user = parameters.get("user", "")
    hosts = parameters.get("host", parameters.get("hostaddr", "")).split(",")
    ports = parameters.get("port", "").split(",")
    ports = ports if len(ports) == len(hosts) else ports[:1] * len(hosts)
    places = (f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=True))
    shown = f"postgresql://{user}{'@' if user else ''}{','.join(places)}"
    return f"{shown}/{parameters.get('dbname', user)}"


def split_url(url: str, own: Collection[str]) -> tuple[str, dict[str, str]]:
    """Take the options of a plugin out of a URL, which leaves those of libpq.

    Args:
        url: As a setting has it.
        own: Names of the options of the plugin.

    Returns:
        The URL without them, and their values.

    Raises:
        PluginError: An option is neither the plugin's nor libpq's.
    """
    rest = url.partition("://")[2]
    # As libpq does it: the user ends at an @ before the first slash.
    at = rest.partition("/")[0].find("@") + 1
    query = rest[at:].partition("?")[2]
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    found, left = {}, []
    for pair in filter(None, query.split("&")):
        name, _, value = pair.partition("=")
        if name in own:
            found[name] = unquote(value)
        elif name in known or name == "ssl":  # the latter is of JDBC, and libpq reads it
            left.append(pair)
        else:
            # What has an @ in it may be the end of a password.
            shown = "" if "@" in query else f" {name!r}"
            near = did_you_mean("" if "@" in query else name, known | {*own})
            raise PluginError(f"the URL has an unknown option{shown}; {near}")
    plain = url[: len(url) - len(query)].rstrip("?") if query else url
    return plain + ("?" + "&".join(left) if left else ""), found


class _Session(NamedTuple):
    """What a new session says of itself and its server."""

    pid: int
    recovery: bool
    read_only: str
    fsync: str
    full_page_writes: str
    encoding: str
    #: Of the schema; None where it is not there.
    usage: bool | None


_ASK = """SELECT pg_backend_pid(), pg_is_in_recovery(), current_setting('transaction_read_only'),
    current_setting('fsync'), current_setting('full_page_writes'),
    current_setting('server_encoding'),
    (SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = %s)"""


def connect(
    database: Database, user: str, *, idle: float = IDLE, **settings: str
) -> psycopg.Connection[tuple[Any, ...]]:
    """Open a connection that commits each statement by itself, and check the server.

    Args:
        database: What to connect to.
        user: What uses it, which is shown in ``pg_stat_activity``: ``results``.
        idle: Seconds that a transaction may wait for the next statement.
        **settings: Settings of the session that differ from `SETTINGS`.

    Raises:
        Away: It cannot be reached, or is a replica; the message says what would be right.
        StoreError: It must not be used, or not by this user.
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
        raise _refused(database, error) from None  # which has parameters in its traceback
    values = {
        **SETTINGS,
        "idle_in_transaction_session_timeout": str(round(idle * 1000)),
        # Temporary tables of others come last, not first.
        "search_path": f'"{database.schema}", pg_temp',
        **settings,
    }
    calls = ", ".join(["set_config(%s, %s, false)"] * len(values))
    try:
        with limited(connection, database, SETUP):
            # First, as older ones do not know what is asked.
            _check_version(database, connection)
            found = connection.execute(_ASK, [database.schema]).fetchone()
            assert found is not None  # noqa: S101 - it has one row
            _check(database, connection, _Session(*found))
            connection.execute(f"SELECT {calls}", [*chain(*values.items())])
    except psycopg.Error as error:
        connection.close()
        raise Away(f"cannot use {database.name}: {describe(error)}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def _open(parameters: Mapping[str, str]) -> psycopg.Connection[tuple[Any, ...]]:
    """Connect to the first of the hosts that answers; all together have ``connect_timeout``.

    psycopg gives each of them that much, and 2 s at least.
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
    for place in range(count):
        one = {name: values[place % len(values)] for name, values in lists.items()}
        now = time.monotonic()
        try:
            return _open_by({**parameters, **one}, now + (end - now) / (count - place))
        except psycopg.OperationalError as error:
            host, port = (one.get(name, "") for name in ("host", "port"))
            errors.append(f"- host: '{host}', port: '{port}': {error}".partition("\n")[0])
    raise psycopg.OperationalError("\n".join(errors))


def _open_by(parameters: Mapping[str, str], end: float) -> psycopg.Connection[tuple[Any, ...]]:
    """Connect to one host until a monotonic time."""
    pg = pq.PGconn.connect_start(make_conninfo(**parameters).encode())
    while (state := pg.connect_poll()) != pq.PollingStatus.OK:
        left = end - time.monotonic()
        if state == pq.PollingStatus.FAILED:
            text = pg.error_message.decode(errors="replace")
        elif left > 0:
            waiting = select.poll()
            reads = state == pq.PollingStatus.READING
            waiting.register(pg.socket, select.POLLIN if reads else select.POLLOUT)
            waiting.poll(left * 1000)
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
    """End a connection whose server is silent for too long: psycopg waits for any time.

    Raises:
        Away: What was asked in here was not answered in time.
    """
    silent = threading.Event()

    def end() -> None:
        silent.set()
        # Which ends what waits for it, and is harmless where the server has closed it already.
        with suppress(OSError):
            own.shutdown(socket.SHUT_RDWR)

    with socket.socket(fileno=os.dup(connection.pgconn.socket)) as own:
        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        except psycopg.Error as error:
            if silent.is_set():
                raise Away(f"{database.name} did not answer within {seconds:.0f} s") from error
            raise
        finally:
            timer.cancel()
            timer.join()


def _refused(database: Database, error: Exception) -> StoreError:
    """Return the error for a server that was not reached: it is over only if all hosts refuse."""
    reasons = _reasons(error)
    found = [_remedy(reason) for reason in reasons.values()]
    kind = StoreError if all(permanent for permanent, _ in found) else Away
    shown = [f"{host}{': ' if host else ''}{reason}" for host, reason in reasons.items()]
    remedies = dict.fromkeys(remedy for _, remedy in found if remedy)
    return kind(f"cannot connect to {database.name}: {'; '.join([*shown, *remedies])}")


def _remedy(reason: str) -> tuple[bool, str]:
    """Return whether waiting does not help, and what would be right, "" where it is not known."""
    for permanent, texts in ((True, _PERMANENT), (False, _TRANSIENT)):
        for text, remedy in texts.items():
            if text in reason:
                return permanent, remedy
    return False, ""


def _reasons(error: Exception) -> dict[str, str]:
    """Return host -> why it was not reached; of a single one the host is ""."""
    lines = str(error).splitlines()
    several = [match for line in lines if (match := _ONE_OF_SEVERAL.match(line))]
    return {f"{m[1]}:{m[2]}": _clean(m[3]) for m in several} or {"": describe(error)}


def _check_version(database: Database, connection: psycopg.Connection[Any]) -> None:
    version = connection.info.server_version
    if version < OLDEST:
        shown = f"{version // 10_000}.{version % 10_000}"
        raise StoreError(
            f"{database.name} is PostgreSQL {shown}; EventMQ needs {OLDEST // 10_000} or later"
        )


def _check(database: Database, connection: psycopg.Connection[Any], session: _Session) -> None:
    """Raise `StoreError` for what must not be used."""
    name, schema = database.name, database.schema
    if session.pid != connection.info.backend_pid:
        raise StoreError(
            f"{name} is a pooler, behind which each transaction may have another session: name the "
            "server itself"
        )
    if session.recovery:
        raise Away(
            f"{name} is a replica, which takes no writes: name the primary, or all of them, as in "
            "postgresql://HOST,HOST/DATABASE"
        )
    if session.read_only != "off":
        raise Away(f"{name} takes no writes: set default_transaction_read_only = off")
    for setting in ("fsync", "full_page_writes"):
        if getattr(session, setting) != "on":
            act = "restart" if setting == "fsync" else "reload"
            raise StoreError(
                f"the server of {name} may lose what was committed, since it runs without "
                f"{setting}: set {setting} = on in postgresql.conf and {act} it"
            )
    if session.encoding != "UTF8":
        raise StoreError(
            f"{name} has the encoding {session.encoding}, which has not all characters: make one "
            "with CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0"
        )
    if session.usage is False:
        raise StoreError(
            f"{connection.info.user} may not use the schema {schema} of {name}: GRANT USAGE, CREATE"
            f" ON SCHEMA {schema} TO {connection.info.user}, or name another schema"
        )


@contextmanager
def making_tables(connection: psycopg.Connection[Any], database: Database) -> Iterator[None]:
    """Make tables in one transaction, alone; the schema is made where it is not there.

    Raises:
        StoreError: The user may make neither; the message has what to grant. Nothing was made.
    """
    schema, user = database.schema, connection.info.user
    with connection.transaction():
        # Two that make the same at once would fail, "IF NOT EXISTS" or not.
        connection.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"eventmq {schema}"]
        )
        found = connection.execute(
            """SELECT current_database(), has_database_privilege(current_database(), 'CREATE'),
            (SELECT has_schema_privilege(oid, 'USAGE') AND has_schema_privilege(oid, 'CREATE')
             FROM pg_namespace WHERE nspname = %s)""",
            [schema],
        ).fetchone()
        assert found is not None  # noqa: S101 - it has one row
        name, may_make_schema, may_make_tables = found
        if may_make_tables is False:
            raise StoreError(
                f"{user} may make no tables in the schema {schema} of {database.name}: GRANT "
                f"USAGE, CREATE ON SCHEMA {schema} TO {user}, or name another schema"
            )
        if may_make_tables is None and not may_make_schema:
            raise StoreError(
                f"{database.name} has no schema {schema}, and {user} may make none: CREATE SCHEMA "
                f"{schema} AUTHORIZATION {user}, or GRANT CREATE ON DATABASE {name} TO {user}"
            )
        if may_make_tables is None:
            connection.execute(f'CREATE SCHEMA "{schema}"')
        yield


def describe(error: BaseException) -> str:
    """Return what an error of psycopg says, in one line and without what libpq puts before it.

    Without its DETAIL, which may show values of rows.
    """
    if isinstance(error, psycopg.Error) and error.diag.message_primary:
        parts = (error.diag.message_primary, error.diag.message_hint)
        return "; ".join(" ".join(part.split()) for part in parts if part)
    return _clean(str(error)) or repr(error)


def _clean(text: str) -> str:
    """Return the last part of the first line: what it is about stands before it."""
    first = text.strip().partition("\n")[0].rpartition(" failed: ")[2]
    for start in ("connection is bad: ", "FATAL:"):
        first = first.removeprefix(start)
    return " ".join(first.split())
