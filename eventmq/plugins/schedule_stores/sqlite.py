"""Schedule store ``sqlite``: a file beside the beats of one host.

It refuses a second host, since SQLite's locks do not hold across machines. After a minute without a
sign of the first host another one may take over, for the file may have been moved.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventmq.errors import EventMQError, QueueFull, StoreError
from eventmq.plugins.database import (
    UNREADABLE,
    connect,
    definitions_hash,
    first_row,
    leave_log,
    use_log,
)
from eventmq.plugins.private_files import make_private_file, make_private_folder
from eventmq.plugins.schedule_stores.table import (
    MAX_SCHEDULES,
    TABLES,
    ScheduleTable,
    pack_row,
    read_row,
)
from eventmq.schedule import Loaded, Saved, SchedulerLease
from eventmq.sdk import LoadSchedules, hookimpl, read_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from eventmq.clock import Clock
    from eventmq.schedule import Progress, Schedule
    from eventmq.sdk import Factory, PluginContext, ScheduleStore

__all__ = ["SqliteSchedules", "eventmq_schedule_stores", "read_rows"]

logger = logging.getLogger(__name__)

#: Stored in ``PRAGMA user_version``.
SCHEMA_VERSION = 1

#: Stored in ``PRAGMA application_id``, marks the file as ours: "EVMS".
APPLICATION_ID = 0x45564D53

#: Seconds after which a host that was not heard of does not count any more.
HOST_SILENCE = 60.0

#: Seconds to wait for another beat's transaction.
BUSY = 5.0

#: More schedules, or bytes, than a file can have.
_ALL = 1 << 62

_DDL = """CREATE TABLE IF NOT EXISTS beats (key TEXT PRIMARY KEY, value TEXT NOT NULL,
  until REAL NOT NULL) WITHOUT ROWID"""

#: Kept in ``beats``: tells apart files of development versions, which share a version number.
SCHEMA_HASH = definitions_hash(_DDL, *TABLES)


def read_rows(rows: Sequence[Sequence[Any]]) -> list[Schedule]:
    """Return the schedules of rows; one that cannot be read is logged, the others go on."""
    found = []
    for row in rows:
        try:
            found.append(read_row(row))
        except (EventMQError, TypeError, ValueError) as error:
            logger.error("schedule %r cannot be read: %s", row[0], error)  # noqa: TRY400
    return found


class SqliteSchedules:
    """A `ScheduleStore` in an SQLite file, or in memory where ``path`` is None.

    Args:
        path: Of the file.
        clock: Reads time.
        host: Name of this machine.

    Raises:
        StoreError: The file cannot be used, or a beat of another host uses it.
    """

    def __init__(self, path: Path | None, clock: Clock, *, host: str = "") -> None:
        #: App and beat may share one in-memory store, from two threads.
        self._lock = threading.RLock()
        self._clock = clock
        self._host = host or socket.gethostname()
        self._where = ":memory:" if path is None else str(path)
        try:
            if path is not None:
                make_private_folder(path.parent)
                make_private_file(path)
            self._db = connect(self._where, busy=BUSY)
            try:
                self._refuse_other()
                self._prepare()
            except BaseException:
                self._db.close()
                raise
        except (OSError, *UNREADABLE) as error:
            raise StoreError(f"cannot open the schedules {self._where}: {error}") from error

    def _refuse_other(self) -> None:
        """Refuse a file of another version, or of something else; nothing is written to it."""
        db = self._db
        # Read in this order: another beat may be making the tables, and sets the id with them.
        there = first_row(db, "SELECT 1 FROM sqlite_master")
        (application,) = first_row(db, "PRAGMA application_id")
        (version,) = first_row(db, "PRAGMA user_version")
        if not there and application in {0, APPLICATION_ID}:
            return
        if application != APPLICATION_ID:
            raise StoreError(f"{self._where} is no schedule file of EventMQ: name another file")
        made = first_row(db, "SELECT 1 FROM sqlite_master WHERE name = 'beats'")
        found = self._fact("schema")[0] if made else ""
        if (version, found) != (SCHEMA_VERSION, SCHEMA_HASH):
            leave_log(db)
            tables = f"table definitions {found}" if found else "no hash of its tables"
            msg = (
                f"{self._where} was made by another development version of EventMQ: it has version "
                f"{version} with {tables}, this EventMQ needs version {SCHEMA_VERSION} with table "
                f"definitions {SCHEMA_HASH}; use the EventMQ that made it, or name another file "
                "and define the schedules again"
            )
            raise StoreError(msg)

    def _prepare(self) -> None:
        db = self._db
        use_log(db, BUSY)
        db.execute("PRAGMA synchronous = FULL")
        with self._transaction():
            self._table = ScheduleTable(db)
            db.execute(_DDL)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            self._store_fact("schema", SCHEMA_HASH, 0)
            made = "INSERT OR IGNORE INTO beats VALUES ('identity', ?, 0)"
            db.execute(made, (f"sqlite.{secrets.token_hex(8)}",))
            self.identity = str(self._fact("identity")[0])
            self._check_host()

    # Who uses it

    def _fact(self, key: str) -> tuple[Any, Any]:
        sql = "SELECT value, until FROM beats WHERE key = ?"
        return first_row(self._db, sql, (key,)) or ("", 0.0)

    def _store_fact(self, key: str, value: str, until: float) -> None:
        self._db.execute("INSERT OR REPLACE INTO beats VALUES (?, ?, ?)", (key, value, until))

    def _check_host(self) -> None:
        host, until = self._fact("host")
        if host not in {"", self._host} and 0 < until - self._clock.now() <= HOST_SILENCE:
            msg = f"the schedules {self._where} are used by a beat on host {host!r}, and this is "
            msg += f"{self._host!r}: the store 'sqlite' is for the beats of one host; use the "
            raise StoreError(msg + "store 'broker', or stop the other and wait a minute")

    @contextmanager
    def _transaction(self) -> Iterator[ScheduleTable]:
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    yield getattr(self, "_table", None)  # type: ignore[misc]  # the first transaction makes it
                except BaseException:
                    self._db.execute("ROLLBACK")
                    raise
                self._db.execute("COMMIT")
            except UNREADABLE as error:
                msg = f"the schedules {self._where} cannot be written: {error}"
                raise StoreError(msg) from error

    def lease(self, holder: str, seconds: float) -> SchedulerLease:
        """Ask to be the one who fires.

        All who ask are on one machine: a lease lasts by the machine's boot time, whatever its wall
        clock does; a reboot ends it.
        """
        clock = self._clock
        now, boot_id = clock.boottime(), clock.boot_id()
        with self._transaction() as table:
            self._check_host()
            self._store_fact("host", self._host, clock.now() + HOST_SILENCE)
            owner, until = self._fact("lease")
            # Without a boot id, an end too far ahead is from an earlier boot.
            over = self._fact("boot")[0] != boot_id or not now < until <= now + 2 * seconds
            held = owner in {"", holder} or over
            if held:
                self._store_fact("boot", boot_id, 0.0)
                self._store_fact("lease", holder, now + seconds)
            return SchedulerLease(held, table.revision)

    def release(self, holder: str) -> None:
        """Give the lease back."""
        with self._transaction():
            if self._fact("lease")[0] == holder:
                self._store_fact("lease", "", 0.0)

    # Schedules

    def load(self, after: int = 0) -> Loaded:
        """Return what changed after a revision."""
        with self._lock:
            page = self._table.load(LoadSchedules(after, _ALL, max_bytes=_ALL))
        return Loaded(page.revision, read_rows(page.rows), page.gone, page.whole)

    def find(self, name: str) -> Schedule | None:
        """Return a schedule by its name."""
        with self._lock:
            return self._table.find(name)

    def save(self, changes: Sequence[tuple[Schedule, int | None]]) -> Saved:
        """Store each schedule whose version is the expected one."""
        with self._transaction() as table:
            codes = [table.save(pack_row(made.check()), version) for made, version in changes]
            if "full" in codes:
                raise QueueFull(f"the store has {MAX_SCHEDULES} schedules; remove some")
            return Saved([code == "done" for code in codes], table.revision)

    def advance(self, rows: Sequence[Progress]) -> Saved:
        """Store the steps of schedules."""
        with self._transaction() as table:
            return Saved(table.advance(rows), table.revision)

    def remove(self, name: str, expected: int | None) -> bool:
        """Remove it if its version is ``expected``."""
        with self._transaction() as table:
            return table.remove(name, expected)

    def close(self) -> None:
        """Close the file."""
        self._db.close()


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the store.

    Attributes:
        path: The file.
        url: ``sqlite:///path``, instead of a path.
        host: Name of this machine, "" for what it calls itself.
    """

    path: str = ".eventmq/schedules.sqlite"
    url: str = ""
    host: str = ""


def make_store(context: PluginContext) -> ScheduleStore:
    """Return a store; raises `PluginError` for a wrong option."""
    options = read_options(context, Options)
    url = options.url.partition("://")[2].removeprefix("/")
    return SqliteSchedules(Path(url or options.path), context.clock, host=options.host)


@hookimpl
def eventmq_schedule_stores() -> Mapping[str, Factory[ScheduleStore]]:
    """Provide ``sqlite``."""
    return {"sqlite": make_store}
