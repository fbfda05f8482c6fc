"""Ownership: decides which of several brokers owns a store; see `eventmq.sdk.Ownership`.

The *lease* is a row with an epoch. Each commit of the owner selects the row with its own epoch FOR
SHARE, and a claim updates the row. So a claim waits until a commit in progress has ended, and later
commits of the previous owner find no row with their epoch and fail. The session of the owner also
holds an advisory lock. Standbys wait for it, to learn soon that the session has ended; safety does
not depend on it.
"""

# ruff: noqa: S608 - the statements are built from constants

from __future__ import annotations

import logging
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import pq

from eventmq.sdk import Fenced, LeaseRow, QueueFull, StoreError, Unknown
from eventmq_contrib.postgres.connection import IDLE, DatabaseUnavailable, connect, limited
from eventmq_contrib.postgres.pipeline import (
    ConnectionLost,
    LockTimeout,
    PermissionDenied,
    Pipeline,
)
from eventmq_contrib.postgres.records import pack_value
from eventmq_contrib.postgres.rowstore import SETTINGS, PostgresRows
from eventmq_contrib.postgres.tables import VALUES
from eventmq_contrib.postgres.upkeep import GAUGES, PostgresUpkeep
from eventmq_contrib.postgres.versions import COUNT_STANDBYS, prepare

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventmq.sdk import Claimant
    from eventmq_contrib.postgres.connection import Database

__all__ = ["PostgresOwnership"]

logger = logging.getLogger(__name__)

#: Maximum seconds of each call once it is connected.
LOOK_TIMEOUT, CLAIM_TIMEOUT, COMMIT_TIMEOUT, RELEASE_TIMEOUT = 2.0, 5.0, 5.0, 2.0

#: Maximum seconds to prepare a connection; one broker at a time may have to create the tables.
PREPARE_TIMEOUT = 10.0

#: Milliseconds for which one statement waits for the owner's lock. While it waits, its snapshot
#: keeps vacuum from removing rows that were deleted since.
LOCK_WAIT = 5000

#: Seconds between two beats of an owner that reads the stored state.
BEAT_EVERY = 1.0

#: The key of the advisory lock.
_KEY = "hashtextextended('eventmq owner ' || current_schema(), 0)"

#: Text by which the lease identifies a session.
_BACKEND = "pid || '/' || extract(epoch FROM backend_start)"

#: Selects the session in the lease if it still exists. Other users cannot see when it started.
_OWNER_SESSION = """SELECT FROM pg_stat_activity WHERE pid::text = split_part(backend, '/', 1)
    AND coalesce(extract(epoch FROM backend_start)::text = split_part(backend, '/', 2), true)"""

#: The emitted message writes only WAL, so that the commit has to reach the disk.
_SELECT_LEASE = f"""SELECT
    (SELECT text_value FROM {VALUES.name} WHERE name = 'store_id'), epoch, owner, address, key,
    (SELECT beat FROM beats WHERE beats.id = 1), backend, EXISTS ({_OWNER_SESSION}),
    pg_logical_emit_message(true, 'eventmq', 'look') IS NOT NULL AND EXISTS (
        SELECT FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted
        AND pid::text = split_part(backend, '/', 1))
    FROM lease WHERE id = 1"""

_TERMINATE = f"""SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE {_BACKEND} = $1 AND pid <> pg_backend_pid()"""

_CLAIM = f"""UPDATE lease SET epoch = greatest(epoch + 1, $5), owner = $2, address = $3, key = $4,
    backend = (SELECT {_BACKEND} FROM pg_stat_activity WHERE pid = pg_backend_pid())
    WHERE id = 1 AND epoch = $1 RETURNING epoch, (SELECT beat FROM beats WHERE beats.id = 1)"""

_LOCK = f"SELECT pg_try_advisory_lock({_KEY})"

_AWAIT_LOCK = f"SELECT pg_advisory_lock_shared({_KEY})"

_FENCE = "SELECT 1 FROM lease WHERE id = 1 AND epoch = $1 FOR SHARE"

_BEAT = f"""UPDATE beats SET beat = beat + 1 WHERE id = 1
    AND EXISTS (SELECT FROM lease WHERE lease.id = 1 AND epoch = $1)
    RETURNING beat, ({COUNT_STANDBYS})"""

_SET_IDLE_TIMEOUT = "SELECT set_config('idle_in_transaction_session_timeout', $1, false)"

_RELEASE = "UPDATE lease SET owner = '', address = '', key = '', backend = '' WHERE id = 1"

#: Seconds between two measurements of the gauges.
GAUGE_EVERY = 10.0


@contextmanager
def _full_disk_as_lost() -> Iterator[None]:
    """Raise `ConnectionLost` if the disk is full: `QueueFull` is a result of batches only."""
    try:
        yield
    except QueueFull as error:
        raise ConnectionLost(str(error)) from error


class PostgresOwnership:
    """Ownership of the store of one broker. Used by one thread.

    Args:
        database: The database of the store.
        upkeep: Upkeep of the store, which checks each new connection.
    """

    def __init__(self, database: Database, upkeep: PostgresUpkeep | None = None) -> None:
        self._upkeep = upkeep or PostgresUpkeep(database, {})
        # The timeout for connecting is that of `look`.
        limited = {**database.parameters, "connect_timeout": f"{LOOK_TIMEOUT:.0f}"}
        self._database = replace(database, parameters=limited)
        #: Rows on the session of the last successful claim, for the store to open.
        self.rows: PostgresRows | None = None
        self.epoch = self._beat = 0
        #: The lease before that claim, and the address of this broker.
        self.claimed, self.address = LeaseRow(""), ""
        #: Session that reads the lease, and session that waits for the owner's lock.
        self._reader: Pipeline | None = None
        self._lock_waiter: psycopg.Connection[Any] | None = None
        #: Whether the session of `rows` holds the advisory lock.
        self._has_lock = False
        #: Whether a warning was logged that sessions of other users cannot be ended.
        self._warned_denied = False
        #: Monotonic time before which the store is not claimed.
        self._claim_at = 0.0
        #: The last measurements; empty while this broker does not own the store.
        self.gauges: dict[str, float] = {}
        self._gauges_at = 0.0

    # Standbys

    def look(self) -> LeaseRow:
        """Read the lease, and commit something; see `Ownership.look`."""
        reader = self._connect_reader()
        reader.deadline = time.monotonic() + LOOK_TIMEOUT
        with _full_disk_as_lost():
            [(*row, lock_held)] = reader.ask(_SELECT_LEASE)
        if lock_held and self._lock_waiter is None:
            self._await_lock()
        self._upkeep.check_session(reader)
        lease = LeaseRow(*row)
        self._upkeep.record_seen(lease.epoch, lease.beat)
        return lease

    def _connect_reader(self) -> Pipeline:
        if self._reader is None or not self._reader.is_open:
            connection = connect(self._database, "standby")
            try:
                self._admit(connection)
            except BaseException:
                connection.close()
                raise
            self._reader = Pipeline(connection, self._database.name)
        return self._reader

    def _admit(self, connection: psycopg.Connection[Any]) -> None:
        """Check a new connection, and create the tables if there are none."""
        with limited(connection, self._database, PREPARE_TIMEOUT):
            prepare(connection, self._database)
            self._upkeep.admit(connection)

    def _await_lock(self) -> None:
        """Begin to wait for the owner's lock, in a separate session."""
        self._lock_waiter = connect(self._database, "standby", lock_timeout=str(LOCK_WAIT))
        self._lock_waiter.pgconn.send_query(_AWAIT_LOCK.encode())
        self._lock_waiter.pgconn.flush()

    def _stop_lock_waiter(self) -> None:
        if self._lock_waiter is not None:
            self._lock_waiter.close()
            self._lock_waiter = None

    def fileno(self) -> int | None:
        """Return the socket of the session that waits for the owner's lock."""
        return None if self._lock_waiter is None else self._lock_waiter.fileno()

    def freed(self) -> bool:
        """Return whether the lock was acquired, that is, whether the owner's session has ended."""
        if self._lock_waiter is None:
            return False
        connection, acquired = self._lock_waiter.pgconn, False
        try:
            connection.consume_input()
            if connection.is_busy():
                return False
            result = connection.get_result()
            acquired = result is not None and result.status == pq.ExecStatus.TUPLES_OK
        except psycopg.Error:  # `look` reports that the server is not reachable
            pass
        self._stop_lock_waiter()
        return acquired

    # Claims

    def claim(self, seen: LeaseRow, me: Claimant) -> int:
        """Claim the store; return the epoch, 0 if another broker was faster."""
        self.drop()
        if time.monotonic() < self._claim_at:
            raise DatabaseUnavailable(
                f"{self._database.name} is claimed again later: commits have failed there"
            )
        connection = connect(self._database, "store", idle=IDLE, **SETTINGS)
        try:
            # This may be another server than `look` has read from.
            self._admit(connection)
            with _full_disk_as_lost():
                rows = PostgresRows(connection, self._database.name, COMMIT_TIMEOUT)
                self._upkeep.check_commits(rows)
                epoch = self._claim(rows.pipeline, seen, me)
        except BaseException:
            connection.close()
            raise
        if not epoch:
            connection.close()
            return 0
        rows.fence = _FENCE, [pack_value("integer", epoch)]
        self.rows, self.epoch, self.claimed, self.address = rows, epoch, seen, me.address
        self._upkeep.record_seen(epoch, self._beat)
        self._stop_lock_waiter()
        if self._reader is not None:
            self._reader.close()
        return epoch

    def _claim(self, pipeline: Pipeline, seen: LeaseRow, me: Claimant) -> int:
        pipeline.deadline = time.monotonic() + CLAIM_TIMEOUT
        try:
            pipeline.ask(_TERMINATE, [seen.backend.encode()])
        except PermissionDenied as error:
            if not self._warned_denied:
                logger.warning(
                    "the session of the previous owner cannot be ended, only fenced: %s; let all "
                    "brokers use the same user", error,
                )  # fmt: skip
            self._warned_denied = True
        min_epoch = pack_value("integer", self._upkeep.next_epoch())
        values = [pack_value("integer", seen.epoch), *map(str.encode, me), min_epoch]
        pipeline.send("SET lock_timeout = 1000")
        try:
            rows = pipeline.ask(_CLAIM, values)
        except LockTimeout:
            return 0
        pipeline.send("SET lock_timeout = 0")
        [(self._has_lock,)] = pipeline.ask(_LOCK)
        epoch, self._beat = rows[0] if rows else (0, 0)
        return int(epoch)

    def renew(self) -> None:
        """Raise the beat, in a commit with the fence."""
        rows = self.rows
        if rows is None:
            raise ConnectionLost(f"the connection to {self._database.name} was lost")
        rows.begin()
        try:
            with _full_disk_as_lost():
                beat = self._renew(rows)
        except (Fenced, Unknown):
            self.drop()
            raise
        except BaseException:
            rows.rollback()
            raise
        self._beat = beat
        self._upkeep.record_seen(self.epoch, beat)

    def _renew(self, rows: PostgresRows) -> int:
        beat = self._raise_beat(rows)
        if not self._has_lock:
            [(self._has_lock,)] = rows.ask(_LOCK)
        if (now := time.monotonic()) >= self._gauges_at:
            self._gauges_at = now + GAUGE_EVERY
            [row] = rows.ask(GAUGES)
            names = "dead_rows", "oldest_snapshot_seconds"
            self.gauges = {**self.gauges, **dict(zip(names, row, strict=True))}
        rows.commit()
        return beat

    def _raise_beat(self, session: PostgresRows | Pipeline) -> int:
        """Raise the beat, which only the owner does; return the new beat.

        Raises:
            ConnectionLost: The beat is not the last one of this owner: the database was restored,
                or is a copy.
        """
        rows = session.ask(_BEAT, [pack_value("integer", self.epoch)])
        beat = self._beat + 1
        stored, standbys = rows[0] if rows else (None, 0)
        if stored != beat:
            reason = f"is {stored} and not {beat}" if rows else "is of another owner"
            raise ConnectionLost(
                f"the beat in {self._database.name} {reason}: its state is read again"
            )
        self.gauges = {**self.gauges, "standbys": standbys}
        return beat

    @contextmanager
    def recovering(self, rows: PostgresRows) -> Iterator[None]:
        """Remove the time limit of a long read; raise the beat in another session meanwhile."""
        beat_at = time.monotonic() + BEAT_EVERY

        def beat() -> None:
            nonlocal beat_at
            if time.monotonic() >= beat_at:
                reader = self._connect_reader()
                reader.deadline = time.monotonic() + LOOK_TIMEOUT
                with _full_disk_as_lost():
                    self._beat = self._raise_beat(reader)
                beat_at = time.monotonic() + BEAT_EVERY

        rows.limit = None
        rows.send(_SET_IDLE_TIMEOUT, [b"60000"])
        rows.pipeline.while_reading = beat
        yield
        rows.pipeline.while_reading = None
        rows.ask(_SET_IDLE_TIMEOUT, [b"%d" % (IDLE * 1000)])
        rows.limit = COMMIT_TIMEOUT
        if self._reader is not None:
            self._reader.close()

    def release(self) -> None:
        """Release the lease."""
        if self.rows is not None and self.rows.pipeline.is_open:
            with suppress(StoreError, QueueFull):
                self.rows.limit = RELEASE_TIMEOUT
                self.rows.begin()
                self.rows.send(_RELEASE)
                self.rows.commit()
        self.drop()

    def delay_claim(self, seconds: float) -> None:
        """Do not claim the store for some time, because commits of this broker have failed."""
        self._claim_at = time.monotonic() + seconds

    def drop(self) -> None:
        """Close the session of the last claim. Idempotent."""
        if self.rows is not None:
            self.rows.close()
            self.rows = None
        self.gauges, self._gauges_at = {}, 0.0

    def close(self) -> None:
        """Close all sessions. Idempotent."""
        self._upkeep.save_seen(now=True)
        self.drop()
        self._stop_lock_waiter()
        if self._reader is not None:
            self._reader.close()
