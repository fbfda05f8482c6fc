"""Upkeep: checks that brokers of a store have equal settings, and that its server is the same.

A store contains the settings in which all its brokers must agree. It also contains the system
identifier and the timeline of its server. After a failover, which starts a new timeline, the last
commits may be lost: then events get a new id, and the epoch is raised above all that peers can have
seen. If the server was restored to an earlier time, brokers refuse the store until an operator has
accepted that.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from eventmq.sdk import Finding, StoreError
from eventmq_contrib.postgres.connection import DatabaseUnavailable, connect, describe
from eventmq_contrib.postgres.memory import SeenLease
from eventmq_contrib.postgres.pipeline import ConnectionLost
from eventmq_contrib.postgres.tables import ALL_TABLES, VALUES
from eventmq_contrib.postgres.versions import contract, expand, prepare

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from eventmq_contrib.postgres.connection import Database
    from eventmq_contrib.postgres.memory import SeenLeaseFile
    from eventmq_contrib.postgres.pipeline import Pipeline
    from eventmq_contrib.postgres.rowstore import PostgresRows

    Connection = psycopg.Connection[tuple[Any, ...]]

__all__ = ["GAUGES", "REPLICATED", "SHARED", "PostgresUpkeep", "shared_settings"]

logger = logging.getLogger(__name__)

#: The settings in which all brokers of a store must agree.
SHARED = (
    "durability", "dedupe_window", "result_ttl", "failed_ttl", "max_failed_bytes",
    "max_queue_length", "queue_limits", "priority_seconds", "unknown_task_grace",
)  # fmt: skip

#: The durability whose receipts survive a failover to a synchronous replica.
REPLICATED = "replicated"

#: Maximum number of beats, one per second, that a failover may lose; a loss of more is a restore.
MAX_LOST = 60

#: Command that accepts the reason for which a broker was refused.
_ACCEPT = "eventmq store accept-{} --store URL"

_SELECT_SERVER = """SELECT (SELECT system_identifier FROM pg_control_system())::text,
    left(pg_walfile_name(pg_current_wal_insert_lsn()), 8),
    (SELECT string_agg(name || '=' || setting, ' ' ORDER BY name) FROM pg_settings
     WHERE name ~ '^recovery_target(_lsn|_name|_time|_xid|)$' AND setting <> '')"""

_SELECT_VALUES = f"SELECT name, text_value FROM {VALUES.name} WHERE text_value IS NOT NULL"  # noqa: S608

_SELECT_SETTINGS = f"SELECT text_value FROM {VALUES.name} WHERE name = 'settings'"  # noqa: S608

_SELECT_LEASE = "SELECT epoch, (SELECT beat FROM beats) FROM lease"

#: See `PostgresUpkeep.next_epoch`.
_RAISE_EPOCH = "UPDATE lease SET epoch = greatest(epoch + 1, %s)"

_SET = f"""INSERT INTO {VALUES.name} (name, text_value) VALUES (%s, %s)
    ON CONFLICT (name) DO UPDATE SET text_value = excluded.text_value"""  # noqa: S608

#: The journal has events under numbers that other events get now.
_DELETE_JOURNAL = f"DELETE FROM {VALUES.name} WHERE name LIKE 'journal%'"  # noqa: S608

#: The names of tables of periods, and of the others.
_PERIOD = "^outcomes_[0-9]+$"
_NAMES = ", ".join(f"'{name}'" for name in ("lease", "beats", *(t.name for t in ALL_TABLES)))

#: Selects the user and the schema, both quoted; whether the user has all privileges there; and
#: another user who owns a table of a period, which only its owner can drop. Tables of result
#: backends do not count.
_SELECT_PRIVILEGES = f"""SELECT quote_ident(current_user), quote_ident(current_schema()),
    has_schema_privilege(current_schema(), 'USAGE')
    AND has_schema_privilege(current_schema(), 'CREATE')
    AND coalesce(bool_and(
        has_table_privilege(oid, 'SELECT') AND has_table_privilege(oid, 'INSERT')
        AND has_table_privilege(oid, 'UPDATE') AND has_table_privilege(oid, 'DELETE')), true),
    min(quote_ident(pg_get_userbyid(relowner)))
        FILTER (WHERE relname ~ '{_PERIOD}' AND NOT pg_has_role(relowner, 'USAGE'))
    FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'
    AND (relname IN ({_NAMES}) OR relname ~ '{_PERIOD}')"""  # noqa: S608

#: Selects the number of dead rows, and the age of the oldest transaction that keeps vacuum from
#: removing them. The age is the only value for which the server's clock is used. Sessions of other
#: users are visible only with the privileges of ``pg_monitor``.
GAUGES = """SELECT
    (SELECT coalesce(sum(n_dead_tup), 0)::int8 FROM pg_stat_user_tables
        WHERE schemaname = current_schema()),
    (SELECT coalesce(max(extract(epoch FROM clock_timestamp() - since)), 0)::int8 FROM (
        SELECT xact_start FROM pg_stat_activity
            WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
            AND pid <> pg_backend_pid() AND (datname IS NULL OR datname = current_database())
        UNION ALL SELECT prepared FROM pg_prepared_xacts WHERE database = current_database()
    ) AS held (since))"""

_SELECT_REPLICAS = "SELECT current_setting('synchronous_standby_names')"


class _Server(NamedTuple):
    """Identity and history of a server."""

    system: str
    #: Timeline of its WAL; each promotion starts a new one.
    timeline: str
    #: Recovery target in its settings, None if there is none.
    target: str | None


def shared_settings(app: Any) -> dict[str, Any]:
    """Return the settings of an app in which all brokers of a store must agree."""
    return {} if app is None else {name: getattr(app.settings, name) for name in SHARED}


class PostgresUpkeep:
    """An `eventmq.sdk.Upkeep`, with further checks for brokers.

    Args:
        database: The database of the store.
        settings: The settings in `SHARED`, by name; empty to compare none.
        memory: Leases that this broker saw in earlier runs; None to remember nothing.
    """

    def __init__(
        self, database: Database, settings: Mapping[str, Any], memory: SeenLeaseFile | None = None
    ) -> None:
        self._database = database
        self._memory = memory
        # In the form in which they are read from the store.
        self._settings: dict[str, Any] = json.loads(json.dumps(dict(settings)))
        #: The highest lease that this broker has seen, and the id of its store.
        self._seen = SeenLease()
        self._store_id = ""
        self._server: _Server | None = None

    # For brokers

    def admit(self, connection: Connection) -> None:
        """Check a new connection of a broker to a database that has the tables.

        Raises:
            ConnectionLost: Commits would be less durable than the settings require.
            StoreError: This broker must not use the store: other brokers have other settings, its
                user lacks privileges, or the store was restored.
        """
        try:
            self._check_privileges(connection)
            values, server = _values(connection), _server(connection)
            if "server" not in values or self._settings.keys() - _settings(values).keys():
                self._initialize(connection, server)
                values = _values(connection)
            self._refuse_difference(values)
            self._load_seen(values)
            is_known = tuple(json.loads(values["server"])) == server
            if not is_known or self._is_older_than_seen(connection):
                self._change_server(connection, server)
            [(replicas,)] = connection.execute(_SELECT_REPLICAS)
        except psycopg.Error as error:
            raise DatabaseUnavailable(
                f"cannot use {self._database.name}: {self._describe(error)}"
            ) from error
        self._server = server
        self._check_replicas(replicas)

    def check_session(self, pipeline: Pipeline) -> None:
        """Check what may have changed since a connection was admitted.

        Raises:
            ConnectionLost: Commits are now less durable than the settings require.
            StoreError: Other settings were stored as those of all brokers.
        """
        if self._settings:
            self._refuse_difference({"settings": pipeline.ask(_SELECT_SETTINGS)[0][0]})
        if self._settings.get("durability") == REPLICATED:
            [(replicas,)] = pipeline.ask(_SELECT_REPLICAS)
            self._check_replicas(replicas)

    def check_commits(self, rows: PostgresRows) -> None:
        """Let commits raise if the server may not have waited for its replica."""
        if self._settings.get("durability") == REPLICATED:

            def handle(result: Any) -> None:
                [(replicas,)] = rows.pipeline.rows(result)
                self._check_replicas(replicas)

            rows.commit_check = _SELECT_REPLICAS, handle

    def record_seen(self, epoch: int, beat: int) -> None:
        """Record a lease that was seen; a server with an earlier one was restored."""
        if self._server is not None and (epoch, beat) >= self._seen[:2]:
            self._seen = SeenLease(epoch, beat, self._server.system, self._server.timeline)
            self.save_seen()

    def next_epoch(self) -> int:
        """Return the minimum of the next epoch; the store may have a higher one.

        A restored store must not give an epoch twice. So the next one is above all that this broker
        has seen, and at least the Unix time of this machine, which grows faster than the number of
        claims.
        """
        return max(self._seen.epoch + 1, int(time.time()))

    def save_seen(self, *, now: bool = False) -> None:
        """Store the highest lease seen, for the next start; see `SeenLeaseFile.save`."""
        if self._memory is not None and self._store_id:
            self._memory.save(self._store_id, self._seen, now=now)

    def _load_seen(self, values: Mapping[str, str]) -> None:
        """Load the highest lease of the store that this broker saw in earlier runs."""
        if (store_id := values.get("store_id", "")) != self._store_id:
            self._store_id = store_id
            self._seen = self._memory.load(store_id) if self._memory else SeenLease()

    def _check_replicas(self, replicas: str) -> None:
        if self._settings.get("durability") == REPLICATED and not replicas.strip():
            raise ConnectionLost(
                f"commits of {self._database.name} wait for no replica, and durability is "
                f"{REPLICATED}: set synchronous_standby_names in the server, or durability = "
                "durable for all brokers"
            )

    def _initialize(self, connection: Connection, server: _Server) -> None:
        """Store settings and server if the store has none."""
        with self._exclusive(connection):
            values = _values(connection)
            settings = {**self._settings, **_settings(values)}
            connection.execute(_SET, ["settings", json.dumps(settings)])
            connection.execute(_SET, ["server", values.get("server", json.dumps(server))])

    def _refuse_difference(self, values: Mapping[str, str]) -> None:
        different = [f"{name} = {_shown(stored)} and not {_shown(own)}"
                     for name, stored, own in self._different(values)]  # fmt: skip
        if different:
            raise StoreError(
                f"the brokers of {self._description} have other settings than this one: "
                f"{'; '.join(different)}; set the same here, or take these over by "
                f"{_ACCEPT.format('settings')} and restart the others"
            )

    def _different(self, values: Mapping[str, str]) -> Iterator[tuple[str, Any, Any]]:
        """Yield (name, stored value, own value) for each setting that differs."""
        stored = _settings(values)
        for name, own in self._settings.items():
            if name in stored and stored[name] != own:
                yield name, stored[name], own

    def _is_older_than_seen(self, connection: Connection) -> bool:
        [row] = connection.execute(_SELECT_LEASE)
        return row < self._seen[:2]

    def _change_server(self, connection: Connection, server: _Server) -> None:
        """Continue after a failover, unless the store was restored."""
        with self._exclusive(connection):
            values = _values(connection)
            known = _Server(*json.loads(values["server"]))
            [(epoch, beat)] = connection.execute(_SELECT_LEASE)
            self._refuse_restored(known, server, epoch, beat)
            if known == server:  # another broker has done it
                return
            events_id = self._start_history(connection, server)
        logger.warning(
            "%s is served by another server since a failover, which may have lost the last "
            "commits: its events go on under the id %s, so begin another journal",
            self._description, events_id,
        )  # fmt: skip

    def _refuse_restored(self, known: _Server, server: _Server, epoch: int, beat: int) -> None:
        seen, reason = self._seen, ""
        is_older = (epoch, beat) < seen[:2]
        # The epoch may be of a claim just before a failover, which lost it.
        lost_too_much = is_older and beat < seen.beat - MAX_LOST
        # The values in the store may be from before a failover that this broker has already seen.
        same_server = server.timeline == known.timeline or server[:2] == seen[2:]
        if known.system != server.system:
            reason = "was copied or restored to another server"
        elif known.timeline != server.timeline and server.target not in {None, known.target}:
            reason = f"was recovered to an earlier time ({server.target})"
        elif lost_too_much or (is_older and same_server):
            reason = (
                f"was restored: epoch and beat of its owner are {epoch, beat}, and were {seen[:2]}"
            )
        if reason:
            raise StoreError(
                f"{self._description} {reason}; it lacks all later changes, so jobs may run again: "
                f"end the brokers that use another copy, and then go on with "
                f"{_ACCEPT.format('restore')}"
            )

    def _start_history(self, connection: Connection, server: _Server) -> str:
        """Give the events a new id, which is returned, and raise the epoch."""
        events_id = secrets.token_hex(8)
        connection.execute(_RAISE_EPOCH, [self.next_epoch()])
        connection.execute(_DELETE_JOURNAL)
        for name, value in (("server", json.dumps(server)), ("events_id", events_id)):
            connection.execute(_SET, [name, value])
        return events_id

    @contextmanager
    def _exclusive(self, connection: Connection) -> Iterator[None]:
        """Begin a transaction during which no other process changes these values."""
        with connection.transaction():
            lock = f"eventmq upkeep {self._database.schema}"
            connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [lock])
            yield

    def _check_privileges(self, connection: Connection) -> None:
        for _, problem, remedy in self._missing_privileges(connection):
            raise StoreError(f"cannot use {self._description}: {problem}; {remedy}")

    def _missing_privileges(self, connection: Connection) -> Iterator[tuple[str, str, str]]:
        """Yield (location, problem, remedy) for each privilege that the user lacks."""
        [(user, schema, allowed, owner)] = connection.execute(_SELECT_PRIVILEGES)
        if not allowed:
            tables = f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {user}"
            yield (
                f"the schema {self._database.schema}",
                f"{user} lacks privileges there",
                f"GRANT ALL ON SCHEMA {schema} TO {user}; {tables}",
            )
        if owner:
            role = f"GRANT {owner} TO {user}; ALTER ROLE {user} SET role = {owner}"
            yield (
                "outcomes",
                f"{owner} made tables of periods, which {user} cannot drop",
                f"let all brokers use one user, or a common role: {role}",
            )

    def _describe(self, error: psycopg.Error) -> str:
        if not isinstance(error, psycopg.errors.InsufficientPrivilege):
            return describe(error)
        user = self._database.parameters.get("user", "the user")
        tables = f"GRANT ALL ON ALL TABLES IN SCHEMA {self._database.schema} TO {user}"
        return f"{describe(error)}; let its owner {tables}, or use the owner's role"

    @property
    def _description(self) -> str:
        return f"the store in the schema {self._database.schema} of {self._database.name}"

    # For operators

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """Yield a connection to a store that exists."""
        with self._connection() as connection:
            if not _has_tables(connection):
                raise StoreError(
                    f"{self._description} does not exist: eventmq store init creates it"
                )
            prepare(connection, self._database)
            yield connection

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        with closing(connect(self._database, "upkeep")) as connection:
            try:
                yield connection
            except psycopg.Error as error:
                raise StoreError(
                    f"cannot use {self._description}: {self._describe(error)}"
                ) from error

    def init(self) -> Sequence[str]:
        """Create the tables, or add what an earlier version lacks, and store the settings."""
        done = []
        with self._connection() as connection:
            if version := expand(connection, self._database):
                done.append(
                    f"{self._description} was expanded for this version; brokers of version "
                    f"{version} can use it until eventmq store contract is run"
                )
            prepare(connection, self._database)
            if "server" not in _values(connection):
                self._initialize(connection, _server(connection))
                done.append(f"{self._description} was created, with the settings of this process")
        return done or [f"{self._description} exists: nothing to do"]

    def check(self) -> Sequence[Finding]:
        """Return the findings that keep brokers from using the store."""
        with self._connected() as connection:
            values, server = _values(connection), _server(connection)
            findings = [
                _finding(
                    "settings",
                    name,
                    f"brokers have {_shown(stored)}, this process has {_shown(own)}",
                    "a broker with the settings of this process is refused",
                    f"set the same, or {_ACCEPT.format('settings')}",
                )
                for name, stored, own in self._different(values)
            ]
            known = _Server(*json.loads(values.get("server", json.dumps(server))))
            if known != server:
                findings.append(_finding(
                    "server", "pg_control_system", f"it was {known}, and is {server}",
                    "it failed over or was restored; brokers log which when they start",
                    f"after a restore {_ACCEPT.format('restore')}",
                ))  # fmt: skip
            self._load_seen(values)
            if self._is_older_than_seen(connection):
                findings.append(_finding(
                    "restore", "lease", f"a broker with this data directory saw {self._seen}",
                    "the database was restored to an earlier time; that broker refuses it",
                    _ACCEPT.format("restore"),
                ))  # fmt: skip
            findings += [
                _finding("rights", location, problem, "brokers cannot use the store", remedy)
                for location, problem, remedy in self._missing_privileges(connection)
            ]
            [(replicas,)] = connection.execute(_SELECT_REPLICAS)
        try:
            self._check_replicas(replicas)
        except ConnectionLost as error:
            findings.append(_finding(
                "durability", "synchronous_standby_names", str(error), "no broker serves",
                "set synchronous_standby_names",
            ))  # fmt: skip
        return findings

    def contract(self) -> Sequence[str]:
        """Remove what only the previous release needed."""
        with self._connected() as connection:
            version = contract(connection, self._database)
        if version:
            return [
                f"{self._description} was contracted: brokers of version {version} are refused now"
            ]
        return [f"{self._description} has nothing that only an earlier release needs"]

    def accept_settings(self) -> Sequence[str]:
        """Store the settings of this process."""
        with self._connected() as connection, self._exclusive(connection):
            changed = [
                f"{name} = {_shown(own)}, before {_shown(stored)}"
                for name, stored, own in self._different(_values(connection))
            ]
            connection.execute(_SET, ["settings", json.dumps(self._settings)])
        return changed or ["the settings were the same: nothing to do"]

    def accept_restore(self) -> Sequence[str]:
        """Store the server as it is now."""
        with self._connected() as connection, self._exclusive(connection):
            self._load_seen(_values(connection))  # so that the epoch is above the last one seen
            events_id = self._start_history(connection, _server(connection))
        return [
            f"{self._description} was accepted as it is; a broker that owned it claims it again",
            f"its events have the id {events_id} from now on: begin another journal",
            "jobs that ended after the time of the copy are not known as ended: they may run again",
        ]


def _finding(check: str, where: str, problem: str, means: str, remedy: str) -> Finding:
    return Finding(check, where, problem, means, remedy, repairable=False)


def _has_tables(connection: Connection) -> bool:
    [(exists,)] = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [VALUES.name])
    return bool(exists)


def _values(connection: Connection) -> dict[str, str]:
    """Return the single values that are text."""
    return dict(connection.execute(_SELECT_VALUES).fetchall())


def _settings(values: Mapping[str, str]) -> dict[str, Any]:
    return dict(json.loads(values.get("settings", "{}")))


def _server(connection: Connection) -> _Server:
    [row] = connection.execute(_SELECT_SERVER)
    return _Server(*row)


def _shown(value: Any) -> str:
    """Return a setting in the form of a settings file."""
    return json.dumps(value)
