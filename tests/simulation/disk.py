"""Disk of the broker: the real store on a database in memory that outlives the broker.

After a crash of the broker the database is as the last commit left it. With ``relaxed`` durability
a crash of the machine undoes the commits since the last sync. On a full disk SQLite itself fails:
the database is allowed no further page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw

from eventmq.errors import StoreError
from eventmq.plugins.database import copy_database
from eventmq.plugins.queue_stores.sqlite.store import STATEMENTS, SqliteStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.interfaces import QueueStore
    from eventmq.store import Write
    from tests.simulation.world import HostClock, World

__all__ = ["Crash", "Disk", "open_store"]

#: Most pages of the database while the disk is not full.
MAX_PAGES = 1 << 30


class Crash(BaseException):
    """The broker was killed; no handler of the code under test may catch this."""


class _PersistentConnection(apsw.Connection):
    """Connection that survives `close`, since the next broker uses the same database."""

    def close(self, force: bool = False) -> None:
        if self.in_transaction:
            self.execute("ROLLBACK")

    def really_close(self) -> None:
        super().close()


class Disk:
    """Database of the broker, and the faults of its disk.

    Args:
        world: Event queue and clock.
        relaxed: Seconds between two syncs of ``relaxed`` durability; 0.0 for ``durable``.
    """

    def __init__(self, world: World, *, relaxed: float = 0.0) -> None:
        self.world = world
        self.relaxed = relaxed
        self.file = _copy(_empty(), _PersistentConnection)
        self.synced = _copy(self.file, apsw.Connection) if relaxed else None
        self.sync_due = relaxed
        self.commits = 0
        #: Number of a commit -> its fault: the broker dies ``before`` or ``after`` it, or the disk
        #: gives an ``error``.
        self.crashes: dict[int, str] = {}
        self.low_until = 0.0
        self.full_until = 0.0
        self._limited = False

    def committing(self) -> None:
        """Apply the faults that come before a commit: a full disk, or a crash."""
        self.commits += 1
        if self.crashes.get(self.commits) == "before":
            raise Crash
        full = self.full_until > self.world.now
        if full is not self._limited:
            self._limited = full
            self.file.execute(f"PRAGMA max_page_count = {1 if full else MAX_PAGES}")

    def committed(self) -> None:
        """Sync if it is time, and crash if this commit has such a fault."""
        if self.synced is not None and self.world.now >= self.sync_due:
            self.sync_due = self.world.now + self.relaxed
            copy_database(self.file, self.synced)
        if self.crashes.get(self.commits) == "after":
            raise Crash

    def lose_power(self) -> None:
        """Undo the commits that were not synced."""
        if self.synced is not None:
            self.file.close()
            copy_database(self.synced, self.file)

    def close(self) -> None:
        self.file.really_close()
        if self.synced is not None:
            self.synced.close()


class SimStore(SqliteStore):
    """SQLite store on a `Disk`."""

    def __init__(self, disk: Disk, clock: HostClock) -> None:
        super().__init__(None, clock, durability="memory")
        self._disk = disk

    def _connect(self) -> apsw.Connection:
        return self._disk.file

    def submit(self, batch: Sequence[Write]) -> None:
        disk = self._disk
        disk.committing()
        if disk.crashes.get(disk.commits) == "error":
            self._write_results.append(StoreError("the disk gave an I/O error"))
            return
        self.engine.refuse(new_jobs=disk.low_until > disk.world.now)
        super().submit(batch)
        disk.committed()


def open_store(disk: Disk, clock: HostClock) -> QueueStore:
    """Return the store of a broker, not opened."""
    return SimStore(disk, clock)


def _copy(db: apsw.Connection, kind: type[apsw.Connection]) -> apsw.Connection:
    made = kind(":memory:", statementcachesize=STATEMENTS)
    copy_database(db, made)
    return made


_templates: list[apsw.Connection] = []


def _empty() -> apsw.Connection:
    """Return a database with the tables of a store, made once: that takes longer than a run."""
    if not _templates:
        from tests.simulation.world import HostClock, World

        store = SqliteStore(None, HostClock(World(0)), durability="memory")
        store.open()
        assert store._db is not None
        store._db.execute("UPDATE meta SET value = 'simulated' WHERE key = 'store_id'")
        store._db.execute("UPDATE meta SET value = 0 WHERE key = 'epoch'")
        _templates.append(store._db)
    return _templates[0]
