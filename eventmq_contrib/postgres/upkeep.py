"""What brokers of a store in PostgreSQL agree on, and what has become of its server.

A store has the settings that all its brokers must have alike. It knows its server too, by the
system identifier and the timeline. After a failover, which begins a timeline, the last commits may
be missing: events get a new id, and the epoch grows beyond all that peers can have seen. A server
that was put back to an earlier time serves no broker before someone has said that this is meant.
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
from eventmq_contrib.postgres.connection import Away, connect, describe
from eventmq_contrib.postgres.memory import Seen
from eventmq_contrib.postgres.pipeline import ConnectionLost
from eventmq_contrib.postgres.tables import ALL_TABLES, VALUES
from eventmq_contrib.postgres.versions import contract, expand, prepare

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from eventmq_contrib.postgres.connection import Database
    from eventmq_contrib.postgres.memory import Memory
    from eventmq_contrib.postgres.pipeline import Pipeline
    from eventmq_contrib.postgres.rowstore import PostgresRows

    Connection = psycopg.Connection[tuple[Any, ...]]

__all__ = ["GAUGES", "REPLICATED", "SHARED", "PostgresUpkeep", "shared_settings"]

logger = logging.getLogger(__name__)

#: The settings that all brokers of a store must have alike.
SHARED = (
    "durability", "dedupe_window", "result_ttl", "failed_ttl", "max_failed_bytes",
    "max_queue_length", "queue_limits", "priority_seconds", "unknown_task_grace",
)  # fmt: skip

#: The durability with which receipts survive a failover to a synchronous replica.
REPLICATED = "replicated"

#: Beats, one a second, that a failover may lose; what is more was put back.
MAX_LOST = 60

#: What accepts what a broker is refused for.
_ACCEPT = "eventmq store accept-{} --store URL"

_ASK_SERVER = """SELECT (SELECT system_identifier FROM pg_control_system())::text,
    left(pg_walfile_name(pg_current_wal_insert_lsn()), 8),
    (SELECT string_agg(name || '=' || setting, ' ' ORDER BY name) FROM pg_settings
     WHERE name ~ '^recovery_target(_lsn|_name|_time|_xid|)$' AND setting <> '')"""

_ASK_VALUES = f"SELECT name, text_value FROM {VALUES.name} WHERE text_value IS NOT NULL"  # noqa: S608

_ASK_SETTINGS = f"SELECT text_value FROM {VALUES.name} WHERE name = 'settings'"  # noqa: S608

_ASK_LEASE = "SELECT epoch, (SELECT beat FROM beats) FROM lease"

#: See `PostgresUpkeep.next_epoch`.
_RAISE_EPOCH = "UPDATE lease SET epoch = greatest(epoch + 1, %s)"

_SET = f"""INSERT INTO {VALUES.name} (name, text_value) VALUES (%s, %s)
    ON CONFLICT (name) DO UPDATE SET text_value = excluded.text_value"""  # noqa: S608

#: It has numbers of events that others get now.
_FORGET_JOURNAL = f"DELETE FROM {VALUES.name} WHERE name LIKE 'journal%'"  # noqa: S608

#: The names of tables of periods, and of the others.
_PERIOD = "^outcomes_[0-9]+$"
_NAMES = ", ".join(f"'{name}'" for name in ("lease", "beats", *(t.name for t in ALL_TABLES)))

#: Who asks, the schema (both as SQL has them), whether the user has all rights there, and who else
#: made a table of a period, which only its owner can drop. Tables of result backends don't count.
_ASK_RIGHTS = f"""SELECT quote_ident(current_user), quote_ident(current_schema()),
    has_schema_privilege(current_schema(), 'USAGE')
    AND has_schema_privilege(current_schema(), 'CREATE')
    AND coalesce(bool_and(
        has_table_privilege(oid, 'SELECT') AND has_table_privilege(oid, 'INSERT')
        AND has_table_privilege(oid, 'UPDATE') AND has_table_privilege(oid, 'DELETE')), true),
    min(quote_ident(pg_get_userbyid(relowner)))
        FILTER (WHERE relname ~ '{_PERIOD}' AND NOT pg_has_role(relowner, 'USAGE'))
    FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'
    AND (relname IN ({_NAMES}) OR relname ~ '{_PERIOD}')"""  # noqa: S608

#: Rows that vacuum has not cleared away, and for how long a transaction has been open beside which
#: it cannot, by the clock of the server: the only thing that it is good for here. Sessions of other
#: users are seen with the rights of ``pg_monitor`` only.
GAUGES = """SELECT
    (SELECT coalesce(sum(n_dead_tup), 0)::int8 FROM pg_stat_user_tables
        WHERE schemaname = current_schema()),
    (SELECT coalesce(max(extract(epoch FROM clock_timestamp() - since)), 0)::int8 FROM (
        SELECT xact_start FROM pg_stat_activity
            WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
            AND pid <> pg_backend_pid() AND (datname IS NULL OR datname = current_database())
        UNION ALL SELECT prepared FROM pg_prepared_xacts WHERE database = current_database()
    ) AS held (since))"""

_ASK_REPLICAS = "SELECT current_setting('synchronous_standby_names')"


class _Server(NamedTuple):
    """Which server it is, and how it came to be."""

    system: str
    #: Of its log: another one after each promotion.
    timeline: str
    #: To what it was recovered, as its settings say; None where they don't.
    target: str | None


def shared_settings(app: Any) -> dict[str, Any]:
    """Return the settings of an app that all brokers of a store must have alike."""
    return {} if app is None else {name: getattr(app.settings, name) for name in SHARED}


class PostgresUpkeep:
    """An `eventmq.sdk.Upkeep`, and what a broker asks of it.

    Args:
        database: Where the store is.
        settings: Those of `SHARED`, by name; none of them: they are not compared.
        memory: What this broker has seen before it was started.
    """

    def __init__(
        self, database: Database, settings: Mapping[str, Any], memory: Memory | None = None
    ) -> None:
        self._database = database
        self._memory = memory
        # As they come back out of the store.
        self._settings: dict[str, Any] = json.loads(json.dumps(dict(settings)))
        #: The highest epoch and beat that this broker has seen, and of which store.
        self._seen = Seen()
        self._store_id = ""
        self._server: _Server | None = None

    # For brokers

    def admit(self, connection: Connection) -> None:
        """Check a new connection of a broker, to a database that has the tables.

        Raises:
            ConnectionLost: Commits would not be as durable as the setting says.
            StoreError: This broker must not use the store: others have other settings, its user
                lacks rights, or the store was put back.
        """
        try:
            self._refuse_rights(connection)
            values, server = _values(connection), _server(connection)
            if "server" not in values or self._settings.keys() - _settings(values).keys():
                self._adopt(connection, server)
                values = _values(connection)
            self._refuse_difference(values)
            self._recall(values)
            if tuple(json.loads(values["server"])) != server or self._is_back(connection):
                self._change_server(connection, server)
            [(replicas,)] = connection.execute(_ASK_REPLICAS)
        except psycopg.Error as error:
            raise Away(f"cannot use {self._database.name}: {self._describe(error)}") from error
        self._server = server
        self._check_replicas(replicas)

    def promise(self, pipeline: Pipeline) -> None:
        """Check what may have changed since a connection was admitted.

        Raises:
            ConnectionLost: Commits are not as durable as the setting says any more.
            StoreError: Other settings were accepted as those of all brokers.
        """
        if self._settings:
            self._refuse_difference({"settings": pipeline.ask(_ASK_SETTINGS)[0][0]})
        if self._settings.get("durability") == REPLICATED:
            [(replicas,)] = pipeline.ask(_ASK_REPLICAS)
            self._check_replicas(replicas)

    def promise_of_commits(self, rows: PostgresRows) -> None:
        """Let each commit fail as `Unknown` that the server may not have waited with."""
        if self._settings.get("durability") == REPLICATED:

            def look(result: Any) -> None:
                [(replicas,)] = rows.pipeline.rows(result)
                self._check_replicas(replicas)

            rows.promise = _ASK_REPLICAS, look

    def saw(self, epoch: int, beat: int) -> None:
        """Take what was seen of the lease: a server that has less was put back."""
        if self._server is not None and (epoch, beat) >= self._seen[:2]:
            self._seen = Seen(epoch, beat, self._server.system, self._server.timeline)
            self.remember()

    def next_epoch(self) -> int:
        """Return the least epoch that comes next, where the store does not know a higher one.

        One that was put back must not give an epoch again. So it is above those that this broker
        has seen, and at least the Unix time of this machine, which passes more quickly than brokers
        claim a store.
        """
        return max(self._seen.epoch + 1, int(time.time()))

    def remember(self, *, now: bool = False) -> None:
        """Write what was seen, for the next start of this broker; see `Memory.save`."""
        if self._memory is not None and self._store_id:
            self._memory.save(self._store_id, self._seen, now=now)

    def _recall(self, values: Mapping[str, str]) -> None:
        """Take what this broker had seen of the store when it was started the last times."""
        if (store_id := values.get("store_id", "")) != self._store_id:
            self._store_id = store_id
            self._seen = self._memory.load(store_id) if self._memory else Seen()

    def _check_replicas(self, replicas: str) -> None:
        if self._settings.get("durability") == REPLICATED and not replicas.strip():
            raise ConnectionLost(
                f"commits of {self._database.name} wait for no replica, and durability is "
                f"{REPLICATED}: set synchronous_standby_names in the server, or durability = "
                "durable for all brokers"
            )

    def _adopt(self, connection: Connection, server: _Server) -> None:
        """Store settings and server where there are none."""
        with self._alone(connection):
            values = _values(connection)
            settings = {**self._settings, **_settings(values)}
            connection.execute(_SET, ["settings", json.dumps(settings)])
            connection.execute(_SET, ["server", values.get("server", json.dumps(server))])

    def _refuse_difference(self, values: Mapping[str, str]) -> None:
        different = [f"{name} = {_shown(other)} and not {_shown(own)}"
                     for name, other, own in self._different(values)]  # fmt: skip
        if different:
            raise StoreError(
                f"the brokers of {self._where} have other settings than this one: "
                f"{'; '.join(different)}; set the same here, or take these over by "
                f"{_ACCEPT.format('settings')} and restart the others"
            )

    def _different(self, values: Mapping[str, str]) -> Iterator[tuple[str, Any, Any]]:
        """Yield each setting that differs: its name, the stored value and that of this process."""
        stored = _settings(values)
        for name, own in self._settings.items():
            if name in stored and stored[name] != own:
                yield name, stored[name], own

    def _is_back(self, connection: Connection) -> bool:
        [row] = connection.execute(_ASK_LEASE)
        return row < self._seen[:2]

    def _change_server(self, connection: Connection, server: _Server) -> None:
        """Go on after a failover, unless the store was put back."""
        with self._alone(connection):
            values = _values(connection)
            known = _Server(*json.loads(values["server"]))
            [(epoch, beat)] = connection.execute(_ASK_LEASE)
            self._refuse_restored(known, server, epoch, beat)
            if known == server:  # another broker was faster
                return
            events_id = self._begin_anew(connection, server)
        logger.warning(
            "%s is served by another server since a failover, which may have lost the last "
            "commits: its events go on under the id %s, so begin another journal",
            self._where, events_id,
        )  # fmt: skip

    def _refuse_restored(self, known: _Server, server: _Server, epoch: int, beat: int) -> None:
        seen, reason = self._seen, ""
        back = (epoch, beat) < seen[:2]
        # The epoch may be one that was claimed just before a failover.
        far = back and beat < seen.beat - MAX_LOST
        # The rows may be older than a failover after which this broker has seen others.
        same = server.timeline == known.timeline or server[:2] == seen[2:]
        if known.system != server.system:
            reason = "was copied or restored to another server"
        elif known.timeline != server.timeline and server.target not in {None, known.target}:
            reason = f"was recovered to an earlier time ({server.target})"
        elif far or (back and same):
            reason = (
                f"went back: epoch and beat of its owner are {epoch, beat}, and were {seen[:2]}"
            )
        if reason:
            raise StoreError(
                f"{self._where} {reason}; what was done since then is not known to it, so jobs may "
                f"run again: end the brokers that use another copy, and then go on with "
                f"{_ACCEPT.format('restore')}"
            )

    def _begin_anew(self, connection: Connection, server: _Server) -> str:
        """Give events a new id and brokers a new epoch; return the former."""
        events_id = secrets.token_hex(8)
        connection.execute(_RAISE_EPOCH, [self.next_epoch()])
        connection.execute(_FORGET_JOURNAL)
        for name, value in (("server", json.dumps(server)), ("events_id", events_id)):
            connection.execute(_SET, [name, value])
        return events_id

    @contextmanager
    def _alone(self, connection: Connection) -> Iterator[None]:
        """Begin a transaction in which no other process changes these values."""
        with connection.transaction():
            lock = f"eventmq upkeep {self._database.schema}"
            connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [lock])
            yield

    def _refuse_rights(self, connection: Connection) -> None:
        for _, found, helps in self._missing_rights(connection):
            raise StoreError(f"cannot use {self._where}: {found}; {helps}")

    def _missing_rights(self, connection: Connection) -> Iterator[tuple[str, str, str]]:
        """Yield what the user of a connection lacks: where, what is found, and what helps."""
        [(user, schema, allowed, owner)] = connection.execute(_ASK_RIGHTS)
        if not allowed:
            tables = f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {user}"
            yield (
                f"the schema {self._database.schema}",
                f"{user} has not all rights there",
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
    def _where(self) -> str:
        return f"the store in the schema {self._database.schema} of {self._database.name}"

    # For those who operate it

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """Yield a connection to a store that is there already."""
        with self._used() as connection:
            if not _is_made(connection):
                raise StoreError(f"{self._where} is not there: eventmq store init makes it")
            prepare(connection, self._database)
            yield connection

    @contextmanager
    def _used(self) -> Iterator[Connection]:
        with closing(connect(self._database, "upkeep")) as connection:
            try:
                yield connection
            except psycopg.Error as error:
                raise StoreError(f"cannot use {self._where}: {self._describe(error)}") from error

    def init(self) -> Sequence[str]:
        """Make the tables, or what those of an earlier version lack, and store the settings."""
        done = []
        with self._used() as connection:
            if version := expand(connection, self._database):
                done.append(
                    f"{self._where} has what this version needs; brokers of version {version} may "
                    "go on until eventmq store contract is run"
                )
            prepare(connection, self._database)
            if "server" not in _values(connection):
                self._adopt(connection, _server(connection))
                done.append(f"{self._where} is made, with the settings of here")
        return done or [f"{self._where} is there: nothing to do"]

    def check(self) -> Sequence[Finding]:
        """Return what keeps brokers from using the store."""
        with self._connected() as connection:
            values, server = _values(connection), _server(connection)
            found = [
                _finding(
                    "settings",
                    name,
                    f"brokers have {_shown(other)}, here it is {_shown(own)}",
                    "a broker with the settings of here is refused",
                    f"set the same, or {_ACCEPT.format('settings')}",
                )
                for name, other, own in self._different(values)
            ]
            known = _Server(*json.loads(values.get("server", json.dumps(server))))
            if known != server:
                found.append(_finding(
                    "server", "pg_control_system", f"it was {known}, and is {server}",
                    "it failed over, or was restored; brokers say which when they start",
                    f"after a restore {_ACCEPT.format('restore')}",
                ))  # fmt: skip
            self._recall(values)
            if self._is_back(connection):
                found.append(_finding(
                    "restore", "lease", f"a broker with this data directory saw {self._seen}",
                    "the database was put back to an earlier time; that broker refuses it",
                    _ACCEPT.format("restore"),
                ))  # fmt: skip
            found += [
                _finding("rights", where, what, "brokers cannot use the store", helps)
                for where, what, helps in self._missing_rights(connection)
            ]
            [(replicas,)] = connection.execute(_ASK_REPLICAS)
        try:
            self._check_replicas(replicas)
        except ConnectionLost as error:
            found.append(_finding(
                "durability", "synchronous_standby_names", str(error), "no broker serves",
                "set synchronous_standby_names",
            ))  # fmt: skip
        return found

    def contract(self) -> Sequence[str]:
        """Remove what only the release before this one needed."""
        with self._connected() as connection:
            version = contract(connection, self._database)
        if version:
            return [f"{self._where} is contracted: brokers of version {version} are refused now"]
        return [f"{self._where} has nothing that only an earlier release needs"]

    def accept_settings(self) -> Sequence[str]:
        """Store the settings of this process."""
        with self._connected() as connection, self._alone(connection):
            changed = [
                f"{name} = {_shown(own)}, before {_shown(other)}"
                for name, other, own in self._different(_values(connection))
            ]
            connection.execute(_SET, ["settings", json.dumps(self._settings)])
        return changed or ["the settings were the same: nothing to do"]

    def accept_restore(self) -> Sequence[str]:
        """Take the server as it is now."""
        with self._connected() as connection, self._alone(connection):
            self._recall(_values(connection))  # an epoch above what is known here
            events_id = self._begin_anew(connection, _server(connection))
        return [
            f"{self._where} goes on as it is; a broker that owned it claims it anew",
            f"its events have the id {events_id} from now on: begin another journal",
            "the ids of jobs that ended since the time of the copy are gone: they may run again",
        ]


def _finding(check: str, where: str, found: str, means: str, what_helps: str) -> Finding:
    return Finding(check, where, found, means, what_helps, repairable=False)


def _is_made(connection: Connection) -> bool:
    [(found,)] = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [VALUES.name])
    return bool(found)


def _values(connection: Connection) -> dict[str, str]:
    """Return the single values that are text."""
    return dict(connection.execute(_ASK_VALUES).fetchall())


def _settings(values: Mapping[str, str]) -> dict[str, Any]:
    return dict(json.loads(values.get("settings", "{}")))


def _server(connection: Connection) -> _Server:
    [row] = connection.execute(_ASK_SERVER)
    return _Server(*row)


def _shown(value: Any) -> str:
    """Return a setting as a file of settings has it."""
    return json.dumps(value)
