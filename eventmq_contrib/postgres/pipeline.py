"""Pipeline: collects the statements of one connection and sends them in one round trip.

psycopg's own cursors take 20 to 40 us per statement. This module calls libpq directly, through
`psycopg.pq`, in libpq's pipeline mode.
"""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer

from eventmq.sdk import EventMQError, QueueFull, StoreError, Unknown
from eventmq_contrib.postgres.connection import DatabaseUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = [
    "CHUNK",
    "ConnectionLost",
    "InvalidValue",
    "LockTimeout",
    "PermissionDenied",
    "Pipeline",
    "Rows",
    "TableChanged",
    "UniqueViolation",
]

#: Number of rows that a stream reads from the connection at once.
CHUNK = 1000

#: The first version of libpq that can do that; with earlier ones all rows are read at once.
_CHUNKED = 170_000

_STATUS = pq.ExecStatus

_FAILED = {_STATUS.FATAL_ERROR, _STATUS.BAD_RESPONSE}

#: Prefixes of SQLSTATEs after which the connection is closed and the state is read again: the
#: server shuts down, is not the primary, or is out of memory or connections; the statement was
#: cancelled; the transaction was rolled back because of a deadlock.
_UNAVAILABLE = ("57P", "57014", "25006", "25P03", "08", "53", "40")

#: Prefixes of SQLSTATEs about values: a value is out of range or malformed, violates a constraint,
#: or exceeds a limit of the server.
_INVALID_VALUE = ("22", "23", "54")

_UNIQUE_VIOLATION, _DISK_FULL, _LOCK_TIMEOUT, _TYPE_MISMATCH, _PERMISSION_DENIED = (
    "23505",
    "53100",
    "55P03",
    "42804",
    "42501",
)

#: Seconds without an answer after which the connection is closed if there is no deadline.
SILENCE_TIMEOUT = 60.0

#: Seconds of waiting after which `Pipeline.while_reading` is called.
CALL_EVERY = 0.5


class ConnectionLost(DatabaseUnavailable, Unknown):
    """The connection was lost; a transaction that was not committed is not stored."""


class InvalidValue(StoreError):
    """The server cannot keep a value."""


class UniqueViolation(InvalidValue):
    """An inserted row has a key that another row has."""


class TableChanged(ConnectionLost):
    """A later release changed a table after this session read its columns."""


class LockTimeout(StoreError):
    """Another transaction held a lock for longer than the lock timeout."""


class PermissionDenied(StoreError):
    """The database user lacks a privilege."""


class Pipeline:
    """Sends statements over a connection, which nothing else uses. Used by one thread.

    Args:
        connection: An open connection without a transaction. It is closed when it fails.
        name: Name of the database, for errors.
    """

    def __init__(self, connection: psycopg.Connection[Any], name: str) -> None:
        self.name = name
        self._connection = connection
        self._pg = connection.pgconn
        self._pg.enter_pipeline_mode()
        self._read, self._write = select.poll(), select.poll()
        self._read.register(self._pg.socket, select.POLLIN)
        self._write.register(self._pg.socket, select.POLLIN | select.POLLOUT)
        #: Text of a prepared statement -> its name in the session.
        self._names: dict[str, bytes] = {}
        #: Texts of prepared statements that the server has not confirmed yet.
        self._unconfirmed: list[str] = []
        self._prepared = 0
        #: Handler of the result of each statement that was sent since the last round trip.
        self._sent: list[Callable[[pq.abc.PGresult], Any] | None] = []
        #: The `stream` whose rows are not all read from the connection yet.
        self._stream: Rows | None = None
        #: Monotonic time at which waiting ends; None for `SILENCE_TIMEOUT` after the last answer.
        self.deadline: float | None = None
        #: Called during long reads: at each result with rows, and every `CALL_EVERY` of waiting.
        self.while_reading: Callable[[], None] | None = None
        #: Warnings that the server has sent.
        self.warnings: list[str] = []
        connection.add_notice_handler(self._record_notice)

    def _record_notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        if diagnostic.severity_nonlocalized == "WARNING":
            self.warnings.append(diagnostic.message_primary or "")

    # Sending

    @property
    def waiting(self) -> bool:
        """Whether statements were sent since the last round trip."""
        return bool(self._sent)

    @property
    def is_open(self) -> bool:
        """Whether the connection can still be used."""
        return not self._connection.closed

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction was begun, by the last answer of the server."""
        return self._pg.transaction_status != pq.TransactionStatus.IDLE

    def send(
        self, sql: str, values: Sequence[bytes] = (), handle: Callable[[Any], Any] | None = None
    ) -> None:
        """Send a statement; it reaches the server with the next `trip` at the latest.

        Args:
            sql: The statement, with parameters ``$1``. It is prepared once per session.
            values: The parameters, in binary format.
            handle: Called with the result; may raise.
        """
        self._buffer_stream()
        try:
            name = self._names.get(sql) or self._prepare(sql)
            self._pg.send_query_prepared(name, values, [1] * len(values), 1)
        except psycopg.Error as error:
            raise self._lost(error) from error
        self._sent.append(handle)

    def _prepare(self, sql: str) -> bytes:
        self._prepared += 1
        name = b"s%d" % self._prepared
        self._pg.send_prepare(name, sql.encode())
        self._sent.append(None)
        self._names[sql] = name
        self._unconfirmed.append(sql)
        return name

    def send_once(self, sql: str) -> None:
        """Send a statement without parameters that is not worth preparing."""
        self._buffer_stream()
        try:
            self._pg.send_query_params(sql.encode(), None, result_format=1)
        except psycopg.Error as error:
            raise self._lost(error) from error
        self._sent.append(None)

    def forget(self, word: str) -> None:
        """Deallocate the prepared statements whose text contains a word."""
        for sql in [sql for sql in self._names if word in sql]:
            self.send_once(f"DEALLOCATE {self._names.pop(sql).decode()}")

    def ask(self, sql: str, values: Sequence[bytes] = ()) -> list[tuple[Any, ...]]:
        """Send a statement and wait for its result; return its rows."""
        rows: list[tuple[Any, ...]] = []
        self.send(sql, values, lambda result: rows.extend(self.rows(result)))
        self.trip()
        return rows

    def stream(self, sql: str, values: Sequence[bytes] = ()) -> Iterator[tuple[Any, ...]]:
        """Return an iterator over the rows of a statement, which reads them from the connection.

        If another method is used before its end, the remaining rows are read into memory first.
        """
        self._buffer_stream()
        try:
            name = self._names.get(sql) or self._prepare(sql)
            if self._sent:
                self.trip()
            self._pg.send_query_prepared(name, values, [1] * len(values), 1)
            if pq.version() >= _CHUNKED:
                self._pg.set_chunked_rows_mode(CHUNK)
        except psycopg.Error as error:
            raise self._lost(error) from error
        self._sync()
        self._stream = Rows(self._chunks())
        return self._stream

    def _chunks(self) -> Iterator[list[tuple[Any, ...]]]:
        error = None
        while (result := self._next()) is None or result.status != _STATUS.PIPELINE_SYNC:
            if result is not None and result.status in _FAILED:
                error = self._error(result)
            elif result is not None:
                yield self.rows(result)
        self._stream = None
        if error is not None:
            raise error

    def _buffer_stream(self) -> None:
        if self._stream is not None:
            self._stream.buffer()

    # Round trips

    def trip(self) -> None:
        """Send all statements, wait for their results and call their handlers.

        Raises:
            ConnectionLost: The connection was lost.
            StoreError: A statement failed; those after it were not carried out.
        """
        self._buffer_stream()
        handlers, self._sent = self._sent, []
        self._sync()
        error: Exception | None = None
        number = 0
        try:
            while (result := self._next()) is None or result.status != _STATUS.PIPELINE_SYNC:
                if result is None:
                    number += 1
                elif error is None:
                    # Read on after an error: the server may also report that it ended the session.
                    error = self._handle(
                        result, handlers[number] if number < len(handlers) else None
                    )
        except ConnectionLost as lost:
            error = error or lost
        if error is not None:
            self._drop_unconfirmed()
            raise error
        self._unconfirmed.clear()

    def _handle(self, result: Any, handle: Callable[[Any], Any] | None) -> Exception | None:
        """Call the handler of a result; return the error of the result or handler, else None."""
        if result.status in _FAILED:
            return self._error(result)
        try:
            if handle is not None:
                handle(result)
        except Exception as error:  # noqa: BLE001 - raised after all results are read
            return error
        return None

    def discard_results(self) -> None:
        """Wait for the results of all statements that were sent, and ignore them.

        Raises:
            ConnectionLost: The connection was lost.
        """
        self._buffer_stream()
        if self._sent:
            self._sent = []
            self._sync()
            while (result := self._next()) is None or result.status != _STATUS.PIPELINE_SYNC:
                pass
            self._drop_unconfirmed()

    def _drop_unconfirmed(self) -> None:
        """Forget statements that may not be prepared, because an earlier statement failed."""
        for sql in self._unconfirmed:
            self._names.pop(sql, None)
        self._unconfirmed.clear()

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._connection.close()

    def _sync(self) -> None:
        """Flush all statements, and request their results from the server."""
        pg = self._pg
        try:
            pg.pipeline_sync()
            while pg.flush():
                self._wait(self._write)
                pg.consume_input()
        except psycopg.Error as error:
            raise self._lost(error) from error

    def _next(self) -> Any:
        """Return the next result; None after the last result of a statement."""
        pg = self._pg
        try:
            while pg.is_busy():
                self._wait(self._read)
                pg.consume_input()
            result = pg.get_result()
            if result is None and pg.status != pq.ConnStatus.OK:
                raise psycopg.OperationalError("the server closed it")
            return result
        except psycopg.Error as error:
            raise self._lost(error) from error

    def _wait(self, poll: select.poll) -> None:
        now = time.monotonic()
        end = now + SILENCE_TIMEOUT if self.deadline is None else self.deadline
        try:
            while end > now:
                step = end - now if self.while_reading is None else min(end - now, CALL_EVERY)
                if poll.poll(step * 1000):
                    return
                if self.while_reading is not None:
                    self.while_reading()
                now = time.monotonic()
            raise psycopg.OperationalError("it did not answer in time")
        except BaseException:
            self._connection.close()  # a late answer must not be read as that of a later statement
            raise

    # Results

    def rows(self, result: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a result."""
        if self.while_reading is not None:
            self.while_reading()
        transformer = Transformer(self._connection)
        transformer.set_pgresult(result)
        return transformer.load_rows(0, result.ntuples, tuple)

    def _lost(self, error: BaseException) -> ConnectionLost:
        self._connection.close()
        reason = " ".join(str(error).split())
        return ConnectionLost(f"the connection to {self.name} was lost: {reason}")

    def _error(self, result: Any) -> EventMQError:
        """Return the error in a result, without its DETAIL, which may show values of rows."""
        code, text = (
            (result.error_field(field) or b"").decode(errors="replace")
            for field in (pq.DiagnosticField.SQLSTATE, pq.DiagnosticField.MESSAGE_PRIMARY)
        )
        message = f"{self.name}: {text or result.error_message.decode(errors='replace').strip()}"
        if code == _UNIQUE_VIOLATION:
            return UniqueViolation(message)
        if code == _LOCK_TIMEOUT:
            return LockTimeout(message)
        if code == _PERMISSION_DENIED:
            return PermissionDenied(message)
        if code == _DISK_FULL:
            return QueueFull(f"the disk of the database is full: {message}")
        if code == _TYPE_MISMATCH:
            return TableChanged(message)
        if code.startswith(_INVALID_VALUE):
            return InvalidValue(message)
        return (
            ConnectionLost(message)
            if not code or code.startswith(_UNAVAILABLE)
            else StoreError(message)
        )


class Rows:
    """Iterator over the rows of one statement; it may be closed before its end."""

    def __init__(self, chunks: Iterator[list[tuple[Any, ...]]]) -> None:
        self._chunks = chunks
        self._rows: list[tuple[Any, ...]] = []

    def __iter__(self) -> Rows:
        return self

    def __next__(self) -> tuple[Any, ...]:
        while not self._rows:
            self._rows = next(self._chunks)[::-1]
        return self._rows.pop()

    def buffer(self) -> None:
        """Read the remaining rows from the connection into memory."""
        rest = [row for chunk in self._chunks for row in chunk]
        self._rows = rest[::-1] + self._rows

    def close(self) -> None:
        """Drop the remaining rows."""
        for _ in self._chunks:
            pass
        self._rows.clear()
