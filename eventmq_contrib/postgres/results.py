"""Result backend ``postgresql``: results in a table that workers and clients of all hosts share.

The broker's keys do not protect them: whoever may read the table can read every result in it.

A result is over when both the database's clock and that of the machine say so: neither a database
nor a machine whose clock was set makes results go early. What is over goes while others are put.
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
from eventmq_contrib.postgres.connection import Away, connect, describe, making_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from eventmq.sdk import Clock
    from eventmq_contrib.postgres.connection import Database

    Connection = psycopg.Connection[tuple[Any, ...]]

__all__ = ["PostgresResults"]

logger = logging.getLogger(__name__)

#: The comment of the table, which marks it as ours.
VERSION = "results of EventMQ, version 1"

#: Seconds between two looks for results whose time is up.
EVERY = 30.0

#: Results that one statement forgets at most.
SLICE = 500

#: Seconds that a result is kept at most: PostgreSQL's timestamps end.
LONGEST = 100 * 365 * 86_400.0

#: Seconds before the second attempt; twice as many before each further one, up to the most.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0

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

#: Each row by one process: others do not wait for it.
_FORGET = """DELETE FROM backend_results WHERE id IN (SELECT id FROM backend_results
WHERE until <= least(clock_timestamp(), to_timestamp(%s))
ORDER BY until LIMIT %s FOR UPDATE SKIP LOCKED)"""

T = TypeVar("T")


class _Pool:
    """Connections of one process: they must not be carried over a fork. Thread-safe.

    Attributes:
        free: As many as may be in use.
    """

    def __init__(self, free: threading.Semaphore) -> None:
        self.free = free
        self._idle: list[Connection] = []
        self._closed = False

    def take(self) -> Connection | None:
        """Return a connection that is idle, None if there is none."""
        with suppress(IndexError):
            return self._idle.pop()
        return None

    def give(self, connection: Connection) -> None:
        """Keep a connection for the next user."""
        self._idle.append(connection)
        if self._closed:  # in the meantime
            self.close()

    def close(self, *, forever: bool = False) -> None:
        """Close the idle connections, and with ``forever`` those that come back."""
        self._closed |= forever
        while (connection := self.take()) is not None:
            connection.close()


class PostgresResults:
    """A `ResultBackend` in PostgreSQL. Connects at the first use, in each process.

    Args:
        database: Where the table is.
        clock: Reads time.
        durable: A result is on the database's disk before its job has ended; else the last ones
            may be lost with the server.
        max_result: Bytes of one result.
        connections: Of a process, at most; further threads wait for one.
        timeout: Seconds that a call goes on while the database is away.
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
        self._look_at = 0.0
        #: By process: connections that a forked child inherited are neither used nor closed there.
        self._pools: dict[int, _Pool] = {}

    def put(self, job_id: str, data: bytes, ttl: float) -> bytes:
        """Keep a result for ``ttl`` seconds; return its reference, made of the job's id.

        Raises:
            ResultTooLarge: It is longer than ``max_result``.
            ResultUnavailable: It cannot be written, or not in time.
        """
        if len(data) > self._max_result:
            raise ResultTooLarge(
                f"the result has {len(data)} bytes; the result backend 'postgresql' keeps "
                f"{self._max_result} at most: its option max_result"
            )
        _check_id(job_id)

        def write(connection: Connection) -> None:
            values = (job_id, min(ttl, LONGEST), data)
            try:
                connection.execute(_PUT, values)
            except UndefinedTable:
                self._make_table(connection)
                connection.execute(_PUT, values)

        self._call("written", write)
        if self._clock.monotonic() >= self._look_at:
            self._prune()
        return job_id.encode()

    def get(self, reference: bytes) -> bytes:
        """Return a result that is still kept.

        Raises:
            ResultUnavailable: It is not, or cannot be read, or not in time.
        """
        try:
            job_id = reference.decode()
            _check_id(job_id)
        except (UnicodeDecodeError, ResultUnavailable) as error:
            raise ResultUnavailable("the reference of the result is none of ours") from error

        def read(connection: Connection) -> tuple[Any, ...] | None:
            with connection.cursor(binary=True) as cursor, suppress(UndefinedTable):
                return cursor.execute(_GET, (job_id, self._clock.now())).fetchone()
            return None

        found = self._call("read", read)
        if found is None:
            raise ResultUnavailable(
                f"the result of job {job_id[:80]!r} is not among {self._where}, or no more"
            )
        return bytes(found[0])

    def close(self) -> None:
        """Close the connections of this process. Idempotent; the next use makes new ones."""
        pool = self._pools.pop(os.getpid(), None)
        if pool is not None:
            pool.close(forever=True)

    @property
    def _where(self) -> str:
        return f"the results in the schema {self._database.schema} of {self._database.name}"

    # The table

    def _make_table(self, connection: Connection) -> None:
        with making_tables(connection, self._database):
            if not self._has_table(connection):  # others may have made it
                connection.execute(_DDL)

    def _has_table(self, connection: Connection) -> bool:
        """Return whether the table is there; raises `StoreError` if it is not ours."""
        found = connection.execute(_FIND).fetchone()
        assert found is not None  # noqa: S101 - it has one row
        oid, comment = found
        if oid is not None and comment != VERSION:
            raise StoreError(
                f"it has a table backend_results that this EventMQ does not know ({comment!r} and "
                f"not {VERSION!r}): name another schema, or use the EventMQ that made it"
            )
        return oid is not None

    def _prune(self) -> None:
        """Forget some results that are over. What was put before is kept, whatever happens."""
        now = self._clock.monotonic()
        self._look_at = now + EVERY  # of several threads one
        try:
            with self._lent(now + self._timeout) as connection:
                count = connection.execute(_FORGET, (self._clock.now(), SLICE)).rowcount
        except (psycopg.Error, StoreError) as error:
            logger.warning("%s cannot be removed: %s", self._where, describe(error))
        else:
            if count == SLICE:  # there may be more
                self._look_at = now

    # Connections

    def _call(self, done: str, work: Callable[[Connection], T]) -> T:
        """Do something with a connection, again where it was lost, until the time is up.

        So ``work`` may be done twice: of what was not answered no one knows whether it was done.
        """
        end = self._clock.monotonic() + self._timeout
        pause = FIRST_PAUSE
        while True:
            try:
                with self._lent(end) as connection:
                    return work(connection)
            except (Away, psycopg.OperationalError, ReadOnlySqlTransaction) as error:
                left = end - self._clock.monotonic()
                if left <= 0:
                    raise self._failed(done, error) from error
                logger.debug("%s: %s; trying again", self._where, describe(error))
                time.sleep(min(pause * random.uniform(0.5, 1.0), left))
                pause = min(2 * pause, LONGEST_PAUSE)
            except (psycopg.Error, StoreError) as error:
                raise self._failed(done, error) from error

    def _failed(self, done: str, error: Exception) -> ResultUnavailable:
        return ResultUnavailable(f"{self._where} cannot be {done}: {describe(error)}")

    @contextmanager
    def _lent(self, end: float) -> Iterator[Connection]:
        """Yield a connection that no other thread uses. After an error it is closed."""
        new = _Pool(threading.Semaphore(self._connections))
        pool = self._pools.setdefault(os.getpid(), new)
        if not pool.free.acquire(timeout=max(end - self._clock.monotonic(), 0.0)):
            raise Away(f"its option connections allows {self._connections}, and all are in use")
        try:
            connection = pool.take() or self._connect()
            try:
                yield connection
            except BaseException:
                if connection.closed:  # and so are the others, if the server was restarted
                    pool.close()
                connection.close()
                raise
            pool.give(connection)
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
    """Raise `ResultUnavailable` for what is no text of PostgreSQL's: NUL, or half a character."""
    if not job_id or "\0" in job_id or job_id.encode(errors="replace").decode() != job_id:
        raise ResultUnavailable(f"no job has the id {job_id[:80]!r}")
