"""Built-in schedule stores.

``broker``, the default, keeps schedules in the broker's own store. All beats and clients of a
broker share them, on any host.

``sqlite`` keeps them in a file that the beats of one host share. It refuses beats of a second host,
since SQLite's locks do not work across machines. If no beat of the first host has used the file for
a minute, another host may take over, as the file may have been moved.

``memory`` is the same without a file, for tests and for a beat whose schedules are in code. Its
schedules end with the process.

The latter two use the tables of `eventmq.engine.schedules`.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventmq.engine import MAX_SCHEDULES, SCHEDULE_TABLES, ScheduleTable, pack_row, read_rows
from eventmq.errors import PluginError, ProtocolError, QueueFull, StoreError
from eventmq.plugins.database import (
    UNREADABLE,
    SqliteRows,
    connect,
    definitions,
    definitions_hash,
    first_row,
    leave_log,
    use_log,
)
from eventmq.plugins.private_files import make_private_file, make_private_folder
from eventmq.schedule import Loaded, Saved, SchedulerLease
from eventmq.sdk import (
    LoadSchedules,
    hookimpl,
    read_options,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from eventmq.clock import Clock
    from eventmq.schedule import Progress, Schedule
    from eventmq.sdk import Factory, PluginContext, ScheduleStore

    Ask = Callable[[str, Mapping[str, Any]], Any]
    BeginAsk = Callable[[str, Mapping[str, Any]], Callable[[], Any]]

__all__ = ["BrokerSchedules", "SqliteSchedules", "eventmq_schedule_stores"]

# The file

#: Stored in ``PRAGMA user_version``.
SCHEMA_VERSION = 1

#: Stored in ``PRAGMA application_id``, marks the file as ours: "EVMS".
APPLICATION_ID = 0x45564D53

#: Seconds without use by a host after which another host may use the file.
HOST_SILENCE = 60.0

#: Seconds to wait for the transaction of another beat.
BUSY = 5.0

#: A limit above the number and bytes of schedules in any file.
_ALL = 1 << 62

_DDL = """CREATE TABLE IF NOT EXISTS beats (key TEXT PRIMARY KEY, value TEXT NOT NULL,
  until REAL NOT NULL) WITHOUT ROWID"""

_TABLES = [statement for table in SCHEDULE_TABLES for statement in definitions(table)]

#: Stored in ``beats``: distinguishes development versions, which share a version number.
SCHEMA_HASH = definitions_hash(_DDL, *_TABLES)


class SqliteSchedules:
    """A `ScheduleStore` in an SQLite file, or in memory if ``path`` is None.

    Args:
        path: Path of the file.
        clock: Reads time.
        host: Name of this machine, "" for its host name.

    Raises:
        StoreError: The file cannot be used, or a beat of another host uses it.
    """

    def __init__(self, path: Path | None, clock: Clock, *, host: str = "") -> None:
        #: App and beat may share one in-memory store, from two threads.
        self._lock = threading.RLock()
        self._clock = clock
        self._host = host or socket.gethostname()
        self._name = ":memory:" if path is None else str(path)
        try:
            if path is not None:
                make_private_folder(path.parent)
                make_private_file(path)
            self._db = connect(self._name, busy=BUSY)
            try:
                self._refuse_other()
                self._prepare()
            except BaseException:
                self._db.close()
                raise
        except (OSError, *UNREADABLE) as error:
            raise StoreError(f"cannot open the schedules {self._name}: {error}") from error

    def _refuse_other(self) -> None:
        """Refuse a file of another version or of another program, without writing to it."""
        db = self._db
        # Read in this order, since another beat may be creating the tables, together with the id.
        has_tables = first_row(db, "SELECT 1 FROM sqlite_master")
        application, version = db.pragma("application_id"), db.pragma("user_version")
        if not has_tables and application in {0, APPLICATION_ID}:
            return
        if application != APPLICATION_ID:
            raise StoreError(f"{self._name} is not a schedule file of EventMQ: name another file")
        has_beats = first_row(db, "SELECT 1 FROM sqlite_master WHERE name = 'beats'")
        stored_hash = self._value("schema")[0] if has_beats else ""
        if (version, stored_hash) != (SCHEMA_VERSION, SCHEMA_HASH):
            leave_log(db)
            tables = f"table definitions {stored_hash}" if stored_hash else "no hash of its tables"
            raise StoreError(
                f"{self._name} was made by another development version of EventMQ: it has version "
                f"{version} with {tables}, this EventMQ needs version {SCHEMA_VERSION} with table "
                f"definitions {SCHEMA_HASH}; use the EventMQ that made it, or name another file "
                "and define the schedules again"
            )

    def _prepare(self) -> None:
        db = self._db
        use_log(db, BUSY)
        db.execute("PRAGMA synchronous = FULL")
        self._table = ScheduleTable(SqliteRows(db, SCHEDULE_TABLES))
        with self._transaction():
            for statement in (_DDL, *_TABLES):
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            self._set_value("schema", SCHEMA_HASH, 0)
            sql = "INSERT OR IGNORE INTO beats VALUES ('identity', ?, 0)"
            db.execute(sql, (f"sqlite.{secrets.token_hex(8)}",))
            self.identity = str(self._value("identity")[0])
            self._check_host()

    # The table of beats

    def _value(self, key: str) -> tuple[Any, Any]:
        sql = "SELECT value, until FROM beats WHERE key = ?"
        return first_row(self._db, sql, (key,)) or ("", 0.0)

    def _set_value(self, key: str, value: str, until: float) -> None:
        self._db.execute("INSERT OR REPLACE INTO beats VALUES (?, ?, ?)", (key, value, until))

    def _check_host(self) -> None:
        host, until = self._value("host")
        if host not in {"", self._host} and 0 < until - self._clock.now() <= HOST_SILENCE:
            raise StoreError(
                f"the schedules {self._name} are used by a beat on host {host!r}, and this is "
                f"{self._host!r}: the store 'sqlite' is for the beats of one host; use the "
                "store 'broker', or stop the other and wait a minute"
            )

    @contextlib.contextmanager
    def _transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[ScheduleTable]:
        with self._lock:
            try:
                self._db.execute(begin)
                try:
                    yield self._table
                except BaseException:
                    self._db.execute("ROLLBACK")
                    raise
                self._db.execute("COMMIT")
            except UNREADABLE as error:
                raise StoreError(
                    f"the schedules {self._name} cannot be written: {error}"
                ) from error

    def lease(self, holder: str, seconds: float) -> SchedulerLease:
        """Acquire or renew the scheduler lease, unless another holder has it.

        All holders are on one machine, so a lease is measured by its boot time, not by its wall
        clock; a reboot ends it.
        """
        clock = self._clock
        now, boot_id = clock.boottime(), clock.boot_id()
        with self._transaction() as table:
            self._check_host()
            self._set_value("host", self._host, clock.now() + HOST_SILENCE)
            owner, until = self._value("lease")
            # Without a boot id, an end too far in the future is from an earlier boot.
            expired = self._value("boot")[0] != boot_id or not now < until <= now + 2 * seconds
            held = owner in {"", holder} or expired
            if held:
                self._set_value("boot", boot_id, 0.0)
                self._set_value("lease", holder, now + seconds)
            return SchedulerLease(held, table.revision)

    def release(self, holder: str) -> None:
        """Release the scheduler lease if ``holder`` has it."""
        with self._transaction():
            if self._value("lease")[0] == holder:
                self._set_value("lease", "", 0.0)

    # Schedules

    def load(self, after: int = 0) -> Loaded:
        """Return the schedules that changed after a revision."""
        with self._transaction("BEGIN") as table:
            page = table.load(LoadSchedules(after, _ALL, max_bytes=_ALL))
        return Loaded(page.revision, read_rows(page.rows), page.gone, page.whole)

    def find(self, name: str) -> Schedule | None:
        """Return the schedule with a name, None if there is none."""
        with self._lock:
            return self._table.find(name)

    def save(self, changes: Sequence[tuple[Schedule, int | None]]) -> Saved:
        """Store each schedule whose version is the expected one."""
        with self._transaction() as table:
            rows = [(pack_row(schedule.check()), version) for schedule, version in changes]
            codes, revision = table.save(rows)
            if "full" in codes:
                raise QueueFull(f"the store has {MAX_SCHEDULES} schedules; remove some")
            return Saved([code == "done" for code in codes], revision)

    def advance(self, rows: Sequence[Progress]) -> Saved:
        """Store the progress of schedules."""
        with self._transaction() as table:
            return Saved(*table.advance(rows))

    def remove(self, name: str, expected: int | None) -> bool:
        """Remove a schedule if its version is ``expected``."""
        with self._transaction() as table:
            return table.remove(name, expected)[0]

    def close(self) -> None:
        """Close the file."""
        self._db.close()


@dataclass(frozen=True, slots=True)
class SqliteOptions:
    """Options of the store.

    Attributes:
        path: Path of the file.
        url: ``sqlite:///path``, instead of a path.
        host: Name of this machine, "" for its host name.
    """

    path: str = ".eventmq/schedules.sqlite"
    url: str = ""
    host: str = ""


def make_sqlite_store(context: PluginContext) -> ScheduleStore:
    """Return the store ``sqlite``; raises `PluginError` for a wrong option."""
    options = read_options(context, SqliteOptions)
    url = options.url.partition("://")[2].removeprefix("/")
    return SqliteSchedules(Path(url or options.path), context.clock, host=options.host)


def make_memory_store(context: PluginContext) -> ScheduleStore:
    """Return the store ``memory``, which has no options."""
    read_options(context, object)
    return SqliteSchedules(None, context.clock)


# The store of the broker

#: Maximum number of rows in one message.
PAGE = 1000

#: Maximum bytes of definitions in one message, unless one definition alone has more.
PAGE_BYTES = 1024 * 1024


class BrokerSchedules:
    """A `ScheduleStore` that keeps schedules in the broker, by its CALLs.

    Args:
        ask: `EventMQ.ask`.
        begin_ask: `EventMQ.begin_ask`.
    """

    #: The same for all brokers: a broker gets the jobs of its own schedules only, so that ids made
    #: from this cannot collide.
    identity = "broker"

    def __init__(self, ask: Ask, begin_ask: BeginAsk) -> None:
        self._call = ask
        self._begin_call = begin_ask

    def _ask(self, name: str, arguments: Mapping[str, Any]) -> Any:
        return self._answer(lambda: self._call(name, arguments))

    @staticmethod
    def _answer(wait: Callable[[], Any]) -> Any:
        try:
            return wait()
        except ProtocolError as error:
            if error.code not in {"no-extension", "unknown-call"}:
                raise
            raise PluginError(
                "this broker keeps no schedules: choose another schedule_store, such as sqlite "
                f"({error})"
            ) from error

    def load(self, after: int = 0) -> Loaded:
        """Return the schedules that changed after a revision."""
        schedules: dict[str, Schedule] = {}
        removed_names: dict[str, None] = {}
        whole = scan = after == 0
        while True:
            page = self._ask("schedules.list", {"after": after, "scan": scan, "limit": PAGE})
            if page["whole"]:
                whole = scan = True
                schedules.clear()
                removed_names.clear()
            for schedule in read_rows(page["rows"]):
                schedules[schedule.name] = schedule
                removed_names.pop(schedule.name, None)
            for name in page["gone"]:
                schedules.pop(name, None)
                removed_names[name] = None
            after = page["revision"]
            if not page["more"]:
                return Loaded(after, list(schedules.values()), list(removed_names), whole)

    def find(self, name: str) -> Schedule | None:
        """Return the schedule with a name, None if there is none."""
        schedules = read_rows(self._ask("schedules.list", {"name": name})["rows"])
        return schedules[0] if schedules else None

    def save(self, changes: Sequence[tuple[Schedule, int | None]]) -> Saved:
        """Store each schedule whose version is the expected one."""
        rows = [(pack_row(schedule.check()), expected) for schedule, expected in changes]
        done: list[bool] = []
        revision, first = 0, 0
        while first < len(rows):
            size, last = 0, first
            while last < min(len(rows), first + PAGE) and (last == first or size < PAGE_BYTES):
                size += len(rows[last][0].definition)
                last += 1
            answer = self._ask("schedules.save", {"rows": rows[first:last]})
            done += answer["done"]
            revision, first = answer["revision"], last
        return Saved(done, revision)

    def advance(self, rows: Sequence[Progress]) -> Saved:
        """Store the progress of schedules."""
        return self.begin_advance(rows)()

    def begin_advance(self, rows: Sequence[Progress]) -> Callable[[], Saved]:
        """Begin to store the progress of schedules; return a function that waits for the result."""
        pages = [
            self._begin_call("schedules.advance", {"rows": rows[first : first + PAGE]})
            for first in range(0, len(rows), PAGE)
        ]
        return partial(self._advanced, pages)

    def _advanced(self, pages: Sequence[Callable[[], Any]]) -> Saved:
        done: list[bool] = []
        revision = 0
        for page in pages:
            answer = self._answer(page)
            done += answer["done"]
            revision = answer["revision"]
        return Saved(done, revision)

    def remove(self, name: str, expected: int | None) -> bool:
        """Remove a schedule if its version is ``expected``."""
        return bool(self._ask("schedules.remove", {"name": name, "version": expected}))

    def lease(self, holder: str, seconds: float) -> SchedulerLease:
        """Acquire or renew the scheduler lease, unless another holder has it."""
        return SchedulerLease(
            **self._ask("schedules.lease", {"holder": holder, "seconds": seconds})
        )

    def release(self, holder: str) -> None:
        """Release the scheduler lease if ``holder`` has it."""
        self._ask("schedules.lease", {"holder": holder, "seconds": 0.0})

    def close(self) -> None:
        """Do nothing, since the app owns the connection."""


def make_broker_store(context: PluginContext) -> ScheduleStore:
    """Return the store ``broker``, which has no options and needs an app."""
    read_options(context, object)
    if context.app is None:
        raise PluginError("it needs an app, to reach its broker")
    return BrokerSchedules(context.app.ask, context.app.begin_ask)


@hookimpl
def eventmq_schedule_stores() -> Mapping[str, Factory[ScheduleStore]]:
    """Provide ``broker``, ``sqlite`` and ``memory``."""
    return {
        "broker": make_broker_store,
        "sqlite": make_sqlite_store,
        "memory": make_memory_store,
    }
