"""A store that several brokers share, in memory: a model of a database with a lease and a fence.

A `SharedDatabase` has the lease row, the jobs (in the real store, on a database in memory) and the
faults; each broker has a `SharedStore` on it. An operation that a database does under locks is one
step here: a batch is either stored completely before a claim, or not at all.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import apsw

from eventmq.clock import SystemClock
from eventmq.errors import Fenced, StoreError, Unknown
from eventmq.plugins.queue_stores.sqlite.store import STATEMENTS, SqliteStore
from eventmq.store.lease import LeaseRow
from eventmq.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eventmq.store import Write
    from eventmq.store.lease import Claimant
    from eventmq.store.recovery import Recovered

__all__ = ["SharedDatabase", "SharedLease", "SharedStore", "Violated"]

AWAY = "the database cannot be reached"


class Violated(AssertionError):
    """A batch was stored that the fence must refuse."""


class _Persistent(apsw.Connection):
    """A connection that survives `close`, since the store of the next owner uses it too."""

    def close(self, force: bool = False) -> None:
        if self.in_transaction:
            self.execute("ROLLBACK")


class _SqliteStore(SqliteStore):
    """The real store on a persistent connection."""

    def __init__(self, file: apsw.Connection, clock: Any) -> None:
        super().__init__(None, clock, durability="memory")
        self._file = file

    def _connect(self) -> apsw.Connection:
        return self._file


class SharedDatabase:
    """The database: its owner, its content and its faults.

    Args:
        store_id: Id of the store.
        fenced: Whether batches of an overtaken claim are refused; False only to show that such a
            batch is noticed.
    """

    def __init__(self, store_id: str = "shared", *, fenced: bool = True) -> None:
        self.row = LeaseRow(store_id)
        self.file = _Persistent(":memory:", statementcachesize=STATEMENTS)
        self.fenced = fenced
        #: Whether the database cannot be reached: set by `go_away`.
        self.down = False
        #: Faults of the next batches, the first of them first: "" for none; the connection is lost
        #: ``before`` it was stored, or ``after``.
        self.faults: list[str] = []
        #: The epoch of each stored batch, in order.
        self.epochs: list[int] = []
        self.leases: list[SharedLease] = []
        self.lock = threading.RLock()

    def store(self, clock: Any = None) -> SharedStore:
        """Return the store of another broker."""
        return SharedStore(self, lambda: _SqliteStore(self.file, clock or SystemClock()))

    def go_away(self) -> None:
        """Lose all connections, and refuse new ones until ``down`` is False again."""
        self.down = True
        for lease in self.leases:
            lease.disconnect()

    def lease_of(self, owner: str) -> SharedLease | None:
        return next((lease for lease in self.leases if lease.id == owner), None)


class SharedLease:
    """The ownership of one broker's store; see `eventmq.interfaces.Ownership`."""

    def __init__(self, database: SharedDatabase) -> None:
        self._database = database
        self.id = ""
        self.epoch = 0
        #: What the claim that succeeded last had seen.
        self.claimed = LeaseRow("")
        self.connected = False
        #: Called when `freed` has something to say.
        self.on_freed: Callable[[], None] = lambda: None
        self._freed = False
        self._wakeup: Wakeup | None = None
        database.leases.append(self)

    def look(self) -> LeaseRow:
        database = self._database
        with database.lock:
            self._connect()
            owner = database.lease_of(database.row.owner)
            return database.row._replace(connected=owner is not None and owner.connected)

    def claim(self, seen: LeaseRow, me: Claimant) -> int:
        database = self._database
        with database.lock:
            self._connect()
            row = database.row
            if row.epoch != seen.epoch:
                return 0
            recorded = database.lease_of(row.owner)
            if recorded is not None and recorded is not self:
                recorded.disconnect()
            self.id, self.epoch, self.claimed = me.id, row.epoch + 1, seen
            database.row = LeaseRow(row.store_id, self.epoch, me.id, me.address, me.key)
            return self.epoch

    def renew(self) -> None:
        with self._database.lock:
            self.check()
            row = self._database.row
            self._database.row = row._replace(beat=row.beat + 1)

    def release(self) -> None:
        with self._database.lock:
            row = self._database.row
            if self.connected and row.epoch == self.epoch and row.owner == self.id:
                self._database.row = LeaseRow(row.store_id, row.epoch)
                self.disconnect()

    def fileno(self) -> int | None:
        if self._wakeup is None:
            self._wakeup = Wakeup()
        return self._wakeup.fd

    def freed(self) -> bool:
        with self._database.lock:
            if self._wakeup is not None:
                self._wakeup.clear()
            freed, self._freed = self._freed, False
            return freed

    # The connection

    def _connect(self) -> None:
        if self._database.down:
            raise StoreError(AWAY)
        self.connected = True

    def check(self) -> None:
        """Raise the error with which a batch of this broker would fail."""
        if not self.connected:
            raise Unknown("the connection to the database was lost")
        row = self._database.row
        if self._database.fenced and row.epoch != self.epoch:
            raise Fenced(f"{row.address} owns the store since epoch {row.epoch}")

    def disconnect(self) -> None:
        """Lose the connection; other brokers notice it if it was the owner's."""
        database = self._database
        with database.lock:
            owned = self.connected and database.row.owner in {self.id, ""}
            self.connected = False
            for other in database.leases if owned else ():
                if other is not self and not database.down:
                    other._freed = True
                    other.on_freed()
                    if other._wakeup is not None:
                        other._wakeup.set()

    def close(self) -> None:
        self.disconnect()
        if self in self._database.leases:
            self._database.leases.remove(self)
        if self._wakeup is not None:
            self._wakeup.close()
            self._wakeup = None


class SharedStore:
    """A `QueueStore` on a `SharedDatabase`.

    Args:
        database: Database, which is shared with the stores of other brokers.
        make: Returns the real store on the content of the database, not opened.
    """

    tools = None
    upkeep = None

    def __init__(self, database: SharedDatabase, make: Callable[[], SqliteStore]) -> None:
        self._database = database
        self._make = make
        self.ownership = SharedLease(database)
        self._store: SqliteStore | None = None
        self._results: list[Sequence[Any] | Exception] = []

    def event_log(self) -> None:
        return None

    def reader(self) -> None:
        return None

    def open(self) -> Recovered:
        with self._database.lock:
            self.ownership.check()
            self._store = store = self._make()
            store.engine.open = partial(store.engine.open, passed=self.ownership.claimed.passed)
            recovered = store.open()
        recovered.store_id, recovered.epoch = self._database.row.store_id, self.ownership.epoch
        return recovered

    def submit(self, batch: Sequence[Write]) -> None:
        with self._database.lock:
            self._results.append(self._commit(batch))

    def _commit(self, batch: Sequence[Write]) -> Sequence[Any] | Exception:
        database, lease = self._database, self.ownership
        assert self._store is not None, "the store is not open"
        fault = database.faults.pop(0) if database.faults else ""
        if fault == "before":
            lease.disconnect()
        try:
            lease.check()
        except (Fenced, Unknown) as error:
            return error
        self._store.submit(batch)
        [result] = self._store.finished()
        database.epochs.append(lease.epoch)
        if database.epochs[-1] < max(database.epochs):
            raise Violated(f"epoch {lease.epoch} has stored after epoch {max(database.epochs)}")
        if fault == "after":
            lease.disconnect()
            return Unknown("the connection to the database was lost during COMMIT")
        return result

    def finished(self) -> list[Sequence[Any] | Exception]:
        results, self._results = self._results, []
        return results

    def verify(self) -> None:
        pass

    def gauges(self) -> dict[str, float]:
        return {}

    def fileno(self) -> int | None:
        return None

    def close(self) -> None:
        self.ownership.close()
