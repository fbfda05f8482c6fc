"""The relay: submits the rows of an outbox table, and deletes them after their receipts.

Whatever dies, a row that was not deleted is sent again, and the broker refuses the id of a job that
it knows. It knows it for the dedupe window after the job's end. So rows are marked before they are
sent, and one that may have been sent longer ago, whose job might run a second time, is kept and
reported. Rows are read without a cursor, since those of a long transaction appear late.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from eventmq import EventMQ, errors
from eventmq_contrib.outbox.database import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eventmq_contrib.outbox.database import Database, Row

    Ends = dict[int, Exception | None]

__all__ = ["POLL", "Inbox", "Relay"]

logger = logging.getLogger("eventmq.outbox")

#: Maximum number of rows that are claimed at a time: as many as travel in one message.
BATCH = 1000

#: Seconds between two looks at a table without rows; PostgreSQL announces rows at once.
POLL = 0.2

#: Seconds before the next attempt after an error, doubled up to the maximum.
RETRY, MAX_RETRY = 0.5, 8.0

#: Seconds for the rows of one claim: its transaction must not be open for long.
MAX_SEND = 5.0

#: Seconds by which the clocks of relay and broker may differ.
SKEW = 60.0

#: Seconds that a submission of an inbox may take, by which the end of its broker may be delayed.
SUBMIT_TIMEOUT = 2.0

#: Maximum number of characters of an id: the broker answers no message with a longer one.
MAX_ID = 255

#: Errors that may pass, so that the row waits.
_WAITING = (errors.BrokerUnavailable, errors.QueueFull, errors.RateLimited)


class Relay:
    """Relay of one database and one broker.

    Args:
        database: Has the outbox table.
        app: Client of the broker.
        window: The broker's dedupe window, in seconds.
        active: Returns whether `run` may read the table now.
    """

    def __init__(
        self, database: Database, app: EventMQ, *, window: float,
        active: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        self._database, self._app, self._active = database, app, active
        self._max_age = max(window - SKEW, 0.0)
        #: Full queue -> monotonic time until which its rows are left.
        self._full: dict[str, float] = {}
        #: Seconds of the wait after the last error, and monotonic time of its end.
        self._pause = self._resume = 0.0
        self._stopping = False

    def stop(self, *_: object) -> None:
        """Make `run` return after the rows at hand; for signal handlers as well."""
        self._stopping = True

    def run(self) -> None:
        """Send rows until `stop`, and wait out failures of database and broker."""
        while not self._stopping:
            try:
                if not self._active():
                    self._database.close()
                elif time.monotonic() >= self._resume and self.step():
                    continue
                self._database.wait(POLL)
            except (errors.StoreError, errors.BrokerUnavailable, errors.RateLimited) as error:
                if not self._pause:
                    logger.warning("the outbox waits, and keeps its rows: %s", error)
                self._pause = min(self._pause * 2 or RETRY, MAX_RETRY)
                self._resume = time.monotonic() + self._pause
        self._database.close()

    def step(self) -> int:
        """Send the next rows; return how many need no further attempt.

        Raise `StoreError` if the database failed, so that rows will be sent again, and
        `BrokerUnavailable` or `RateLimited` if some have no receipt; those that have are deleted.
        """
        now = time.monotonic()
        self._full = {queue: until for queue, until in self._full.items() if until > now}
        # One shows whether the broker is back.
        rows = self._database.claim(1 if self._pause else BATCH, [*self._full])
        ends = self._send(rows)
        sent: list[int] = []
        kept: list[tuple[int, str]] = []
        unsent: list[int] = []
        later: Exception | None = None
        for row in rows:
            error = ends.get(row.seq)
            if row.seq not in ends:
                unsent.append(row.seq)
            elif error is None or isinstance(error, errors.DuplicateJob):
                sent.append(row.seq)
                if error is not None:
                    logger.info("job %s is not submitted: %s", row.job_id, error)
            elif not isinstance(error, _WAITING):
                kept.append((row.seq, f"{type(error).__name__}: {error}"))
                logger.error("job %.255s is kept in the outbox: %s", row.job_id, kept[-1][1])
            else:
                if not isinstance(error, errors.BrokerUnavailable) or not error.maybe_accepted:
                    unsent.append(row.seq)
                if not isinstance(error, errors.QueueFull):
                    later = error
                elif row.queue not in self._full:
                    logger.warning("rows of a full queue wait in the outbox: %s", error)
                    self._full[row.queue] = now + MAX_RETRY
        self._database.finish(sent, kept, unsent)
        if later is not None:
            raise later
        if self._pause and rows:
            logger.warning("the outbox continues")
            self._pause = 0.0
        return len(sent) + len(kept)

    def _send(self, rows: Sequence[Row]) -> Ends:
        """Submit rows, of a key each after the receipt of the one before.

        Return the error of each row that was tried, None for a receipt.
        """
        ends: Ends = {}
        end = time.monotonic() + MAX_SEND
        while rows and (not ends or (not self._stopping and time.monotonic() < end)):
            of_keys: dict[str | int, Row] = {}
            for row in rows:
                of_keys.setdefault(row.ordering_key or row.seq, row)
            firsts = [*of_keys.values()]
            ends.update((row.seq, self._check(row)) for row in firsts)
            self._submit([row for row in firsts if ends[row.seq] is None], ends)
            waiting = {r.ordering_key for r in firsts if isinstance(ends[r.seq], _WAITING)}
            rows = [r for r in rows if r.seq not in ends and r.ordering_key not in waiting]
        return ends

    def _check(self, row: Row) -> Exception | None:
        """Return why a row must not be sent, None if it may be."""
        # SQLite keeps any type, text of any length, and text that is not UTF-8.
        if [type(value) for value in row[2:]] != [float, str, str, str, str, bytes]:
            return errors.ProtocolError(
                "sent is a number, ordering_key, job_id, queue and headers are text in UTF-8, and "
                "body is a blob"
            )
        if len(row.job_id) > MAX_ID:
            return errors.ProtocolError(f"job_id has at most {MAX_ID} characters")
        age = time.time() - row.sent if row.sends > 1 else 0.0
        if age <= self._max_age:
            return None
        return errors.NotAllowed(
            f"the row may have been sent {age / 3600:.1f} hours ago, which the broker forgets: "
            f"eventmq outbox retry {row.job_id} sends it, perhaps a second time"
        )

    def _submit(self, rows: Sequence[Row], ends: Ends) -> None:
        """Submit rows, and enter an error for each that the broker has not confirmed."""
        graphs = [row for row in rows if row.headers.startswith("nodes:")]
        others = [row for row in rows if not row.headers.startswith("nodes:")]
        try:
            with self._app.batch():
                for row in others:
                    self._app.send_encoded(*row[4:])
        except errors.BatchError as batch:
            for row, (_, status, error) in zip(others, batch.jobs, strict=True):
                if status != "confirmed":
                    ends[row.seq] = error or errors.BrokerUnavailable(str(batch))
        # One job may be the reason why a message with many was refused.
        final = (type(None), errors.DuplicateJob, *_WAITING)
        refused = [row for row in others if not isinstance(ends[row.seq], final)]
        away = any(isinstance(end, errors.BrokerUnavailable) for end in ends.values())
        for row in [*graphs, *refused]:
            try:
                if away:  # each would wait for its time
                    raise errors.BrokerUnavailable("the broker is away")
                self._app.send_encoded(*row[4:])
                ends[row.seq] = None
            except errors.EventMQError as error:
                ends[row.seq] = error
                away = isinstance(error, errors.BrokerUnavailable)


class Inbox:
    """Relay on a thread of a broker, for an outbox table in the database of its store.

    It is a client like any other: nothing is written into the tables of the store.

    Args:
        url: URL of the database.
        app: The app of the broker: its keys and its dedupe window count.
        owns: Returns whether the broker owns the store now; called from another thread.
    """

    def __init__(self, url: str, app: EventMQ, owns: Callable[[], bool]) -> None:
        self._database, self._owns, self._settings = connect(url), owns, app.settings
        self._running: tuple[Relay, threading.Thread, EventMQ] | None = None

    def start(self, address: str) -> None:
        """Begin to read, while the broker at this address owns the store. Idempotent."""
        if self._running is None:
            own = self._settings
            app = EventMQ(
                "inbox", broker=address, submit_timeout=SUBMIT_TIMEOUT,
                key_file=own.key_file, broker_key_file=own.broker_key_file,
            )  # fmt: skip
            relay = Relay(self._database, app, window=own.dedupe_window, active=self._owns)
            thread = threading.Thread(target=relay.run, name="eventmq-inbox", daemon=True)
            thread.start()
            self._running = relay, thread, app

    def close(self) -> None:
        """End the thread after the rows at hand. Idempotent."""
        if self._running is not None:
            relay, thread, app = self._running
            relay.stop()
            thread.join(2 * SUBMIT_TIMEOUT)
            app.close()
