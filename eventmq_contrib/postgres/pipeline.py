"""Statements of one connection: collected, sent together, and answered in one trip.

psycopg's own cursors take 20 to 40 us a statement; what is here talks to libpq as psycopg shows it
(`psycopg.pq`), in libpq's pipeline mode.
"""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer

from eventmq.sdk import EventMQError, QueueFull, StoreError, Unknown
from eventmq_contrib.postgres.connection import Away

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = [
    "CHUNK",
    "Changed",
    "ConnectionLost",
    "Denied",
    "Locked",
    "Pipeline",
    "Refused",
    "Rows",
    "Taken",
]

#: Rows that are taken off the connection at a time where they may be many.
CHUNK = 1000

#: The version of libpq that can do that; with an earlier one all are read at once.
_CHUNKED = 170_000

_STATUS = pq.ExecStatus

_FAILED = {_STATUS.FATAL_ERROR, _STATUS.BAD_RESPONSE}

#: Classes of errors after which the connection is given up and the state read anew: the server
#: shuts down, is not the primary, or has no memory or connection left; the statement was cancelled,
#: or the transaction was rolled back for a deadlock.
_AWAY = ("57P", "57014", "25006", "25P03", "08", "53", "40")

#: Classes of errors over what a statement says: a value is out of range, or of another form, breaks
#: a constraint, or is beyond a limit of the server.
_REFUSED = ("22", "23", "54")

_UNIQUE, _DISK_FULL, _LOCK, _OTHER_TYPE, _DENIED = "23505", "53100", "55P03", "42804", "42501"

#: Seconds of silence after which a server is given up that may take its time.
SILENCE = 60.0

#: Seconds of silence after which `Pipeline.meanwhile` is called.
MEANWHILE = 0.5


class ConnectionLost(Away, Unknown):
    """The connection was lost, so that what was not committed is not stored."""


class Refused(StoreError):
    """The server cannot keep a value."""


class Taken(Refused):
    """A key of a row that was inserted is taken."""


class Changed(ConnectionLost):
    """A table was changed by a later release since this session has read which columns it has."""


class Locked(StoreError):
    """Another transaction had a row for longer than this one waits."""


class Denied(StoreError):
    """The user lacks a right."""


class Pipeline:
    """Sends statements over a connection, which it has for itself. One thread.

    Args:
        connection: Open, in no transaction. It is closed where it fails.
        name: Of the database, for errors.
    """

    def __init__(self, connection: psycopg.Connection[Any], name: str) -> None:
        self.name = name
        self._connection = connection
        self._pg = connection.pgconn
        self._pg.enter_pipeline_mode()
        self._read, self._write = select.poll(), select.poll()
        self._read.register(self._pg.socket, select.POLLIN)
        self._write.register(self._pg.socket, select.POLLIN | select.POLLOUT)
        #: Text of a statement -> its name in the session.
        self._names: dict[str, bytes] = {}
        #: Texts of those that the server has not confirmed yet.
        self._fresh: list[str] = []
        self._made = 0
        #: Of each statement that was sent since the last trip: what looks at its result.
        self._sent: list[Callable[[pq.abc.PGresult], Any] | None] = []
        #: Rows that a `stream` has not taken off the connection yet.
        self._stream: Rows | None = None
        #: Monotonic time at which waiting ends; None: after so much silence.
        self.deadline: float | None = None
        #: Called with each result that has rows, and in silences, where reading takes long.
        self.meanwhile: Callable[[], None] | None = None
        #: Warnings of the server, beside what it answers.
        self.warnings: list[str] = []
        connection.add_notice_handler(self._noted)

    def _noted(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        if diagnostic.severity_nonlocalized == "WARNING":
            self.warnings.append(diagnostic.message_primary or "")

    # Sending

    @property
    def waiting(self) -> bool:
        """Whether something was sent since the last trip."""
        return bool(self._sent)

    @property
    def is_open(self) -> bool:
        """Whether the connection can still be used."""
        return not self._connection.closed

    @property
    def in_transaction(self) -> bool:
        """Whether one was begun, as far as the server has said."""
        return self._pg.transaction_status != pq.TransactionStatus.IDLE

    def send(
        self, sql: str, values: Sequence[bytes] = (), look: Callable[[Any], Any] | None = None
    ) -> None:
        """Send a statement, at the latest with the next trip.

        Args:
            sql: With parameters ``$1``. It is prepared, and remembered.
            values: In binary format.
            look: Called with the result; it may raise.
        """
        self._settle()
        try:
            name = self._names.get(sql) or self._prepare(sql)
            self._pg.send_query_prepared(name, values, [1] * len(values), 1)
        except psycopg.Error as error:
            raise self._lost(error) from error
        self._sent.append(look)

    def _prepare(self, sql: str) -> bytes:
        self._made += 1
        name = b"s%d" % self._made
        self._pg.send_prepare(name, sql.encode())
        self._sent.append(None)
        self._names[sql] = name
        self._fresh.append(sql)
        return name

    def send_once(self, sql: str) -> None:
        """Send a statement that is not sent again, without parameters."""
        self._settle()
        try:
            self._pg.send_query_params(sql.encode(), None, result_format=1)
        except psycopg.Error as error:
            raise self._lost(error) from error
        self._sent.append(None)

    def forget(self, word: str) -> None:
        """Drop the prepared statements whose text has this in it."""
        for sql in [sql for sql in self._names if word in sql]:
            self.send_once(f"DEALLOCATE {self._names.pop(sql).decode()}")

    def ask(self, sql: str, values: Sequence[bytes] = ()) -> list[tuple[Any, ...]]:
        """Send a statement, and what was sent before; return its rows."""
        rows: list[tuple[Any, ...]] = []
        self.send(sql, values, lambda result: rows.extend(self.rows(result)))
        self.trip()
        return rows

    def stream(self, sql: str, values: Sequence[bytes] = ()) -> Iterator[tuple[Any, ...]]:
        """Return the rows of a statement, which are taken off the connection as they are read.

        What is used in between reads the rest first, into memory.
        """
        self._settle()
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

    def _settle(self) -> None:
        if self._stream is not None:
            self._stream.buffer()

    # Trips

    def trip(self) -> None:
        """Send what was not sent yet, wait for all results and have them looked at.

        Raises:
            ConnectionLost: The connection was lost.
            StoreError: A statement failed; those after it were not carried out.
        """
        self._settle()
        looks, self._sent = self._sent, []
        self._sync()
        error: Exception | None = None
        place = 0
        try:
            while (result := self._next()) is None or result.status != _STATUS.PIPELINE_SYNC:
                if result is None:
                    place += 1
                elif error is None:
                    # Behind them all may come that the session was ended.
                    error = self._seen(result, looks[place] if place < len(looks) else None)
        except ConnectionLost as lost:
            error = error or lost
        if error is not None:
            self._drop_fresh()
            raise error
        self._fresh.clear()

    def _seen(self, result: Any, look: Callable[[Any], Any] | None) -> Exception | None:
        """Return what is wrong with a result, None if it is right."""
        if result.status in _FAILED:
            return self._error(result)
        try:
            if look is not None:
                look(result)
        except Exception as error:  # noqa: BLE001 - raised when the other results were read
            return error
        return None

    def give_up(self) -> None:
        """Wait for what was sent, whatever comes of it.

        Raises:
            ConnectionLost: The connection was lost.
        """
        self._settle()
        if self._sent:
            self._sent = []
            self._sync()
            while (result := self._next()) is None or result.status != _STATUS.PIPELINE_SYNC:
                pass
            self._drop_fresh()

    def _drop_fresh(self) -> None:
        """Forget statements that may not be prepared, as one before them failed."""
        for sql in self._fresh:
            self._names.pop(sql, None)
        self._fresh.clear()

    def close(self) -> None:
        """Close the connection; again it does nothing."""
        self._connection.close()

    def _sync(self) -> None:
        """Send all, and let the server answer."""
        pg = self._pg
        try:
            pg.pipeline_sync()
            while pg.flush():
                self._wait(self._write)
                pg.consume_input()
        except psycopg.Error as error:
            raise self._lost(error) from error

    def _next(self) -> Any:
        """Return the next result; None ends those of a statement."""
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
        end = now + SILENCE if self.deadline is None else self.deadline
        try:
            while end > now:
                step = end - now if self.meanwhile is None else min(end - now, MEANWHILE)
                if poll.poll(step * 1000):
                    return
                if self.meanwhile is not None:
                    self.meanwhile()
                now = time.monotonic()
            raise psycopg.OperationalError("it did not answer in time")
        except BaseException:
            self._connection.close()  # what it was about to say belongs to nothing any more
            raise

    # Results

    def rows(self, result: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a result."""
        if self.meanwhile is not None:
            self.meanwhile()
        transformer = Transformer(self._connection)
        transformer.set_pgresult(result)
        return transformer.load_rows(0, result.ntuples, tuple)

    def _lost(self, error: BaseException) -> ConnectionLost:
        self._connection.close()
        reason = " ".join(str(error).split())
        return ConnectionLost(f"the connection to {self.name} was lost: {reason}")

    def _error(self, result: Any) -> EventMQError:
        """Return the error of a result, without the values that its details may show."""
        code, text = (
            (result.error_field(field) or b"").decode(errors="replace")
            for field in (pq.DiagnosticField.SQLSTATE, pq.DiagnosticField.MESSAGE_PRIMARY)
        )
        message = f"{self.name}: {text or result.error_message.decode(errors='replace').strip()}"
        if code == _UNIQUE:
            return Taken(message)
        if code == _LOCK:
            return Locked(message)
        if code == _DENIED:
            return Denied(message)
        if code == _DISK_FULL:
            return QueueFull(f"the disk of the database is full: {message}")
        if code == _OTHER_TYPE:
            return Changed(message)
        if code.startswith(_REFUSED):
            return Refused(message)
        return (
            ConnectionLost(message) if not code or code.startswith(_AWAY) else StoreError(message)
        )


class Rows:
    """Rows of one statement; an iterator that may be closed before its end."""

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
        """Take the rest off the connection."""
        rest = [row for chunk in self._chunks for row in chunk]
        self._rows = rest[::-1] + self._rows

    def close(self) -> None:
        """Drop what was not read."""
        for _ in self._chunks:
            pass
        self._rows.clear()
