"""Result backend ``postgresql``: keeps results in a table that all workers and clients share.

The broker's keys do not protect them: any database user who can read the table can read all
results.

A result expires when both the clock of the database and that of the machine have passed its time,
so that setting one of these clocks does not delete results early. Expired results are deleted when
others are stored.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.errors import ReadOnlySqlTransaction, UndefinedTable

from eventmq.sdk import ResultTooLarge, ResultUnavailable, StoreError
from eventmq_contrib.postgres.connection import (
    DatabaseUnavailable,
    connect,
    describe,
    making_tables,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from eventmq.sdk import Clock
    from eventmq_contrib.postgres.connection import Database

    Connection = psycopg.Connection[tuple[Any, ...]]

__all__ = ["PostgresResults"]

logger = logging.getLogger(__name__)

#: The comment of the table, which marks it as ours.
VERSION = "results of EventMQ, version 1"

#: Seconds between two searches for expired results.
PRUNE_EVERY = 30.0

#: Maximum number of results that one statement deletes.
SLICE = 500

#: Maximum seconds for which a result is kept, as timestamps of PostgreSQL are limited.
MAX_TTL = 100 * 365 * 86_400.0

#: Seconds before the second attempt, doubled before each further one, and their maximum.
FIRST_PAUSE, MAX_PAUSE = 0.1, 2.0

_FIND = """SELECT to_regclass('backend_results')::oid,
    obj_description(to_regclass('backend_results'), 'pg_class')"""

_DDL = f"""
CREATE TABLE backend_results (id text COLLATE "C" PRIMARY KEY, until timestamptz NOT NULL,
    data bytea NOT NULL);
CREATE INDEX backend_results_until ON backend_results (until);
COMMENT ON TABLE backend_results IS '{VERSION}'
"""

_PUT = """INSERT INTO backend_results (id, until, data)
VALUES (%s, clock_timestamp() + make_interval(secs => %s), %b)
ON CONFLICT (id) DO UPDATE SET until = excluded.until, data = excluded.data"""

_GET = """SELECT data FROM backend_results
WHERE id = %s AND until > least(clock_timestamp(), to_timestamp(%s))"""

#: Rows that another process is deleting are skipped.
_DELETE_EXPIRED = """DELETE FROM backend_results WHERE id IN (SELECT id FROM backend_results
WHERE until <= least(clock_timestamp(), to_timestamp(%s))
ORDER BY until LIMIT %s FOR UPDATE SKIP LOCKED)"""

T = TypeVar("T")


class _Pool:
    """Connections of one process, which must not be used after a fork. Thread-safe.

    Attributes:
        free: Number of connections that may still be used.
    """

    def __init__(self, free: threading.Semaphore) -> None:
        self.free = free
        self._idle: list[Connection] = []
        self._closed = False

    def take(self) -> Connection | None:
        """Return an idle connection, None if there is none."""
        with suppress(IndexError):
            return self._idle.pop()
        return None

    def put_back(self, connection: Connection) -> None:
        """Keep a connection for later use."""
        self._idle.append(connection)
        if self._closed:  # while the connection was in use
            self.close()

    def close(self, *, forever: bool = False) -> None:
        """Close the idle connections; with ``forever``, also those that are put back later."""
        self._closed |= forever
        while (connection := self.take()) is not None:
            connection.close()


class PostgresResults:
    """A `ResultBackend` in PostgreSQL. Connects at the first use, in each process.

    Args:
        database: The database of the table.
        clock: Reads time.
        durable: Whether a result is on the database's disk before its job ends. If not, a crash of
            the server may lose the last results.
        max_result: Maximum bytes of one result.
        connections: Maximum number of connections per process; further threads wait for one.
        timeout: Seconds for which a call is retried while the database cannot be reached.
    """

    inline = False
    local = False

    def __init__(
        self,
        database: Database,
        clock: Clock,
        *,
        durable: bool,
        max_result: int,
        connections: int,
        timeout: float,
    ) -> None:
        self._database = database
        self._clock = clock
        self._commit = "on" if durable else "off"
        self._max_result = max_result
        self._connections = connections
        self._timeout = timeout
        self._prune_at = 0.0
        #: Process id -> pool; a forked child neither uses nor closes inherited connections.
        self._pools: dict[int, _Pool] = {}

    def put(self, job_id: str, data: bytes, ttl: float) -> bytes:
        """Keep a result for ``ttl`` seconds; return its reference, made of the job's id.

        Raises:
            ResultTooLarge: The result is longer than ``max_result``.
            ResultUnavailable: The result cannot be written within the timeout.
        """
        if len(data) > self._max_result:
            raise ResultTooLarge(
                f"the result has {len(data)} bytes; the result backend 'postgresql' keeps "
                f"{self._max_result} at most: its option max_result"
            )
        _check_id(job_id)

        def write(connection: Connection) -> None:
            values = (job_id, min(ttl, MAX_TTL), data)
            try:
                connection.execute(_PUT, values)
            except UndefinedTable:
                self._make_table(connection)
                connection.execute(_PUT, values)

        self._call("written", write)
        if self._clock.monotonic() >= self._prune_at:
            self._prune()
        return job_id.encode()

    def get(self, reference: bytes) -> bytes:
        """Return a result that is still kept.

        Raises:
            ResultUnavailable: The result is not kept any more, or cannot be read within the
                timeout.
        """
        try:
            job_id = reference.decode()
            _check_id(job_id)
        except (UnicodeDecodeError, ResultUnavailable) as error:
            raise ResultUnavailable(
                "the reference of the result is not one of this backend"
            ) from error

        def read(connection: Connection) -> tuple[Any, ...] | None:
            with connection.cursor(binary=True) as cursor, suppress(UndefinedTable):
                return cursor.execute(_GET, (job_id, self._clock.now())).fetchone()
            return None

        row = self._call("read", read)
        if row is None:
            raise ResultUnavailable(
                f"{self._description} have none of job {job_id[:80]!r}: it has expired or was "
                "never stored"
            )
        return bytes(row[0])

    def close(self) -> None:
        """Close the connections of this process. Idempotent; the next use opens new ones."""
        pool = self._pools.pop(os.getpid(), None)
        if pool is not None:
            pool.close(forever=True)

    @property
    def _description(self) -> str:
        return f"the results in the schema {self._database.schema} of {self._database.name}"

    # The table

    def _make_table(self, connection: Connection) -> None:
        with making_tables(connection, self._database):
            if not self._has_table(connection):  # another process may have created it
                connection.execute(_DDL)

    def _has_table(self, connection: Connection) -> bool:
        """Return whether the table exists; raises `StoreError` if it is not EventMQ's."""
        row = connection.execute(_FIND).fetchone()
        assert row is not None  # noqa: S101 - it has one row
        oid, comment = row
        if oid is not None and comment != VERSION:
            raise StoreError(
                f"it has a table backend_results that this EventMQ does not know ({comment!r} and "
                f"not {VERSION!r}): name another schema, or use the EventMQ that made it"
            )
        return oid is not None

    def _prune(self) -> None:
        """Delete some expired results; an error is only logged, as the new result is stored."""
        now = self._clock.monotonic()
        self._prune_at = now + PRUNE_EVERY  # so that only one of several threads prunes
        try:
            with self._borrowed(now + self._timeout) as connection:
                count = connection.execute(_DELETE_EXPIRED, (self._clock.now(), SLICE)).rowcount
        except (psycopg.Error, StoreError) as error:
            logger.warning("%s cannot be removed: %s", self._description, describe(error))
        else:
            if count == SLICE:  # there may be more
                self._prune_at = now

    # Connections

    def _call(self, done: str, work: Callable[[Connection], T]) -> T:
        """Call ``work`` with a connection; repeat it if the connection is lost, until the timeout.

        So ``work`` may be carried out twice, if the answer to the first call was lost.
        """
        end = self._clock.monotonic() + self._timeout
        pause = FIRST_PAUSE
        while True:
            try:
                with self._borrowed(end) as connection:
                    return work(connection)
            except (DatabaseUnavailable, psycopg.OperationalError, ReadOnlySqlTransaction) as error:
                remaining = end - self._clock.monotonic()
                if remaining <= 0:
                    raise self._failed(done, error) from error
                logger.debug("%s: %s; trying again", self._description, describe(error))
                time.sleep(min(pause * random.uniform(0.5, 1.0), remaining))
                pause = min(2 * pause, MAX_PAUSE)
            except (psycopg.Error, StoreError) as error:
                raise self._failed(done, error) from error

    def _failed(self, done: str, error: Exception) -> ResultUnavailable:
        return ResultUnavailable(f"{self._description} cannot be {done}: {describe(error)}")

    @contextmanager
    def _borrowed(self, end: float) -> Iterator[Connection]:
        """Yield a connection that no other thread uses; it is closed after an error."""
        new_pool = _Pool(threading.Semaphore(self._connections))
        pool = self._pools.setdefault(os.getpid(), new_pool)
        if not pool.free.acquire(timeout=max(end - self._clock.monotonic(), 0.0)):
            raise DatabaseUnavailable(
                f"its option connections allows {self._connections}, and all are in use"
            )
        try:
            connection = pool.take() or self._connect()
            try:
                yield connection
            except BaseException:
                if connection.closed:  # the server may have restarted, and closed all others too
                    pool.close()
                connection.close()
                raise
            pool.put_back(connection)
        finally:
            pool.free.release()

    def _connect(self) -> Connection:
        connection = connect(self._database, "results", synchronous_commit=self._commit)
        try:
            self._has_table(connection)
        except BaseException:
            connection.close()
            raise
        return connection


def _check_id(job_id: str) -> None:
    """Raise `ResultUnavailable` for an id that PostgreSQL cannot store: NUL or a surrogate."""
    if not job_id or "\0" in job_id or job_id.encode(errors="replace").decode() != job_id:
        raise ResultUnavailable(f"no job has the id {job_id[:80]!r}")
