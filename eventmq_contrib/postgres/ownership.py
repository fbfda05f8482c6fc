"""Which of several brokers owns a store in PostgreSQL: see `eventmq.sdk.Ownership`.

The *lease* is a row with an epoch. Each commit of the owner locks it FOR SHARE as it was claimed,
and a claim changes it: so a claim waits for the commit that is under way, after which no commit of
an earlier claim finds its row. The owner's session has an advisory lock, for which a standby waits
to be woken; nothing is safe because of that one.
"""

# ruff: noqa: S608 - the texts are put together of constants

from __future__ import annotations

import logging
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import pq

from eventmq.sdk import Fenced, LeaseRow, QueueFull, StoreError, Unknown
from eventmq_contrib.postgres.connection import IDLE, Away, connect, limited
from eventmq_contrib.postgres.pipeline import ConnectionLost, Denied, Locked, Pipeline
from eventmq_contrib.postgres.records import pack_value
from eventmq_contrib.postgres.rowstore import SETTINGS, PostgresRows
from eventmq_contrib.postgres.tables import VALUES
from eventmq_contrib.postgres.upkeep import GAUGES, PostgresUpkeep
from eventmq_contrib.postgres.versions import prepare

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventmq.sdk import Claimant
    from eventmq_contrib.postgres.connection import Database

__all__ = ["PostgresOwnership"]

logger = logging.getLogger(__name__)

#: Seconds that each call may take once it is connected.
LOOK, CLAIM, COMMIT, RELEASE = 2.0, 5.0, 5.0, 2.0

#: Seconds that may be needed before: tables may have to be made, by one broker at a time.
PREPARE = 10.0

#: Milliseconds that a session waits for the owner's lock at once. While it waits it keeps a
#: snapshot, beside which no row that was deleted since can be cleared away.
WAIT = 5000

#: Seconds between two beats of an owner that reads what is stored.
BEAT_EVERY = 1.0

#: The key of the advisory lock.
_KEY = "hashtextextended('eventmq owner ' || current_schema(), 0)"

#: A session as the lease records it.
_BACKEND = "pid || '/' || extract(epoch FROM backend_start)"

#: The recorded session, if it is still there; of other users its start is not shown.
_RECORDED = """SELECT FROM pg_stat_activity WHERE pid::text = split_part(backend, '/', 1)
    AND coalesce(extract(epoch FROM backend_start)::text = split_part(backend, '/', 2), true)"""

#: The message is WAL, which the commit brings to disk, and nothing else.
_LOOK = f"""SELECT (SELECT text_value FROM {VALUES.name} WHERE name = 'store_id'), epoch, owner,
    address, key, (SELECT beat FROM beats WHERE beats.id = 1), backend, EXISTS ({_RECORDED}),
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

_WAIT = f"SELECT pg_advisory_lock_shared({_KEY})"

_FENCE = "SELECT 1 FROM lease WHERE id = 1 AND epoch = $1 FOR SHARE"

_BEAT = """UPDATE beats SET beat = beat + 1 WHERE id = 1
    AND EXISTS (SELECT FROM lease WHERE lease.id = 1 AND epoch = $1) RETURNING beat"""

_IDLE_FOR = "SELECT set_config('idle_in_transaction_session_timeout', $1, false)"

_RELEASE = "UPDATE lease SET owner = '', address = '', key = '', backend = '' WHERE id = 1"


#: Seconds between two looks at them.
GAUGE_EVERY = 10.0


@contextmanager
def _no_room_is_away() -> Iterator[None]:
    """Give up the connection where the disk is full: only for a batch of jobs is that an answer."""
    try:
        yield
    except QueueFull as error:
        raise ConnectionLost(str(error)) from error


class PostgresOwnership:
    """The ownership of one broker's store. One thread.

    Args:
        database: Where the store is.
        upkeep: Of the store; it admits each connection.
    """

    def __init__(self, database: Database, upkeep: PostgresUpkeep | None = None) -> None:
        self._upkeep = upkeep or PostgresUpkeep(database, {})
        # A server that does not answer is waited for no longer than a look may take.
        limited = {**database.parameters, "connect_timeout": f"{LOOK:.0f}"}
        self._database = replace(database, parameters=limited)
        #: The rows of the claim that succeeded last, for the store to open.
        self.rows: PostgresRows | None = None
        self.epoch = self._beat = 0
        #: What it had seen.
        self.claimed = LeaseRow("")
        #: What looks, and what waits for the owner's lock to be free.
        self._looking: Pipeline | None = None
        self._waiting: psycopg.Connection[Any] | None = None
        #: Whether the session of the rows has the advisory lock.
        self._locked = False
        #: Whether it was said that sessions of others cannot be ended.
        self._denied = False
        #: Monotonic time before which the store is not claimed.
        self._claim_at = 0.0
        #: What was measured last; nothing while this broker does not own the store.
        self.gauges: dict[str, float] = {}
        self._gauges_due = 0.0

    # Standbys

    def look(self) -> LeaseRow:
        """Read the lease, and commit something beside it."""
        looking = self._connected()
        looking.deadline = time.monotonic() + LOOK
        with _no_room_is_away():
            [(*row, locked)] = looking.ask(_LOOK)
        if locked and self._waiting is None:
            self._wait()
        self._upkeep.promise(looking)
        found = LeaseRow(*row)
        self._upkeep.saw(found.epoch, found.beat)
        return found

    def _connected(self) -> Pipeline:
        if self._looking is None or not self._looking.is_open:
            connection = connect(self._database, "standby")
            try:
                self._check(connection)
            except BaseException:
                connection.close()
                raise
            self._looking = Pipeline(connection, self._database.name)
        return self._looking

    def _check(self, connection: psycopg.Connection[Any]) -> None:
        """Raise what speaks against the use of a new connection; make tables where none are."""
        with limited(connection, self._database, PREPARE):
            prepare(connection, self._database)
            self._upkeep.admit(connection)

    def _wait(self) -> None:
        """Begin to wait for the lock of the owner, in a session of its own."""
        self._waiting = connect(self._database, "standby", lock_timeout=str(WAIT))
        self._waiting.pgconn.send_query(_WAIT.encode())
        self._waiting.pgconn.flush()

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.close()
            self._waiting = None

    def fileno(self) -> int | None:
        """Return the socket of the session that waits for the owner's lock."""
        return None if self._waiting is None else self._waiting.fileno()

    def freed(self) -> bool:
        """Return whether the lock was free: the owner's session has ended."""
        if self._waiting is None:
            return False
        waiting, freed = self._waiting.pgconn, False
        try:
            waiting.consume_input()
            if waiting.is_busy():
                return False
            result = waiting.get_result()
            freed = result is not None and result.status == pq.ExecStatus.TUPLES_OK
        except psycopg.Error:  # the server is away, which looks find out
            pass
        self._stop_waiting()
        return freed

    # Claims

    def claim(self, seen: LeaseRow, me: Claimant) -> int:
        """Take the store over; return the epoch, 0 where another broker was faster."""
        self.drop()
        if time.monotonic() < self._claim_at:
            raise Away(f"{self._database.name} is claimed again later: commits have failed there")
        connection = connect(self._database, "store", idle=IDLE, **SETTINGS)
        try:
            # It may be another server than a look has found.
            self._check(connection)
            with _no_room_is_away():
                rows = PostgresRows(connection, self._database.name, COMMIT)
                self._upkeep.promise_of_commits(rows)
                epoch = self._claim(rows.pipeline, seen, me)
        except BaseException:
            connection.close()
            raise
        if not epoch:
            connection.close()
            return 0
        rows.fence = _FENCE, [pack_value("integer", epoch)]
        self.rows, self.epoch, self.claimed = rows, epoch, seen
        self._upkeep.saw(epoch, self._beat)
        self._stop_waiting()
        if self._looking is not None:
            self._looking.close()
        return epoch

    def _claim(self, pipeline: Pipeline, seen: LeaseRow, me: Claimant) -> int:
        pipeline.deadline = time.monotonic() + CLAIM
        try:
            pipeline.ask(_TERMINATE, [seen.backend.encode()])
        except Denied as error:
            if not self._denied:
                logger.warning(
                    "the session of the owner before this one is not ended, only fenced: %s; all "
                    "brokers should have the same user", error,
                )  # fmt: skip
            self._denied = True
        least = pack_value("integer", self._upkeep.next_epoch())
        values = [pack_value("integer", seen.epoch), *map(str.encode, me), least]
        pipeline.send("SET lock_timeout = 1000")
        try:
            rows = pipeline.ask(_CLAIM, values)
        except Locked:
            return 0
        pipeline.send("SET lock_timeout = 0")
        [(self._locked,)] = pipeline.ask(_LOCK)
        epoch, self._beat = rows[0] if rows else (0, 0)
        return int(epoch)

    def renew(self) -> None:
        """Raise the beat, under the fence."""
        rows = self.rows
        if rows is None:
            raise ConnectionLost(f"the connection to {self._database.name} was lost")
        rows.begin()
        try:
            with _no_room_is_away():
                beat = self._renew(rows)
        except (Fenced, Unknown):
            self.drop()
            raise
        except BaseException:
            rows.rollback()
            raise
        self._beat = beat
        self._upkeep.saw(self.epoch, beat)

    def _renew(self, rows: PostgresRows) -> int:
        beat = self._raise_beat(rows)
        if not self._locked:
            [(self._locked,)] = rows.ask(_LOCK)
        if (now := time.monotonic()) >= self._gauges_due:
            self._gauges_due = now + GAUGE_EVERY
            [row] = rows.ask(GAUGES)
            self.gauges = dict(zip(("dead_rows", "oldest_snapshot_seconds"), row, strict=True))
        rows.commit()
        return beat

    def _raise_beat(self, session: PostgresRows | Pipeline) -> int:
        """Raise the beat, which nobody else does; return what it is then.

        Raises:
            ConnectionLost: It was another one than this owner left: the database was put back, or
                is a copy.
        """
        found = session.ask(_BEAT, [pack_value("integer", self.epoch)])
        beat = self._beat + 1
        if found != [(beat,)]:
            now = f"is {found[0][0]} and not {beat}" if found else "is of another owner"
            raise ConnectionLost(
                f"the beat in {self._database.name} {now}: what it has is read anew"
            )
        return beat

    @contextmanager
    def recovering(self, rows: PostgresRows) -> Iterator[None]:
        """Let a transaction that reads much take its time; the beat goes on, in another session."""
        beat_at = time.monotonic() + BEAT_EVERY

        def beat() -> None:
            nonlocal beat_at
            if time.monotonic() >= beat_at:
                beside = self._connected()
                beside.deadline = time.monotonic() + LOOK
                with _no_room_is_away():
                    self._beat = self._raise_beat(beside)
                beat_at = time.monotonic() + BEAT_EVERY

        rows.limit = None
        rows.send(_IDLE_FOR, [b"60000"])
        rows.pipeline.meanwhile = beat
        yield
        rows.pipeline.meanwhile = None
        rows.ask(_IDLE_FOR, [b"%d" % (IDLE * 1000)])
        rows.limit = COMMIT
        if self._looking is not None:
            self._looking.close()

    def release(self) -> None:
        """Give the store up."""
        if self.rows is not None and self.rows.pipeline.is_open:
            with suppress(StoreError, QueueFull):
                self.rows.limit = RELEASE
                self.rows.begin()
                self.rows.send(_RELEASE)
                self.rows.commit()
        self.drop()

    def wait(self, seconds: float) -> None:
        """Leave the store to another broker for some time: commits of this one have failed."""
        self._claim_at = time.monotonic() + seconds

    def drop(self) -> None:
        """Close the session of the last claim, which is not used any more. Idempotent."""
        if self.rows is not None:
            self.rows.close()
            self.rows = None
        self.gauges, self._gauges_due = {}, 0.0

    def close(self) -> None:
        """Close all sessions. Idempotent."""
        self._upkeep.remember(now=True)
        self.drop()
        self._stop_waiting()
        if self._looking is not None:
            self._looking.close()
