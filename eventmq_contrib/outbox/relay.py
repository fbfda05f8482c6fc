"""The relay: submits the rows of an outbox table, and deletes them after their receipts.

Whatever dies, a row that was not deleted is sent again, and the broker refuses the id of a job that
it knows. It knows it for the dedupe window after the job's end. So rows are marked before they are
sent, and one that may have been sent longer ago, whose job might run a second time, is kept and
reported. Rows are read without a cursor, since those of a long transaction appear late.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import TYPE_CHECKING

from eventmq import errors
from eventmq.sdk import parse_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eventmq import EventMQ
    from eventmq_contrib.outbox.database import Database, Row

    Ends = dict[int, Exception | None]

__all__ = ["POLL", "Relay"]

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

#: Errors that may pass, so that the row waits.
_WAITING = (errors.BrokerUnavailable, errors.QueueFull, errors.RateLimited)


class Relay:
    """Relay of one database and one broker.

    Args:
        database: Has the outbox table.
        app: Client of the broker.
        window: The broker's dedupe window, in seconds.
        resend_older: Whether rows that may have been sent before the window are sent again.
        active: Returns whether `run` may read the table now.
    """

    def __init__(
        self, database: Database, app: EventMQ, *, window: float, resend_older: bool = False,
        active: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        self._database = database
        self._app = app
        self._active = active
        self._max_age = float("inf") if resend_older else max(window - SKEW, 0.0)
        #: Full queue -> monotonic time until which its rows are left.
        self._full: dict[str, float] = {}
        self._pause = 0.0
        self._stopping = False

    def stop(self, *_: object) -> None:
        """Make `run` return after the rows at hand; for signal handlers as well."""
        self._stopping = True

    def run(self) -> None:
        """Send rows until `stop`, and wait out failures of database and broker."""
        while not self._stopping:
            if not self._active():
                self._database.close()
                self._sleep(POLL)
                continue
            try:
                if not self.step():
                    self._database.wait(POLL)
            except (errors.StoreError, errors.BrokerUnavailable, errors.RateLimited) as error:
                if not self._pause:
                    logger.warning("the outbox waits, and keeps its rows: %s", error)
                self._pause = min(self._pause * 2 or RETRY, MAX_RETRY)
                self._sleep(self._pause)
        self._database.close()

    def _sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._stopping and time.monotonic() < end:
            time.sleep(POLL)

    def step(self) -> int:
        """Send the next rows; return how many need no further attempt.

        Raises:
            StoreError: The database failed; rows that were sent will be sent again.
            BrokerUnavailable: Some rows have no receipt; those that have are deleted.
            RateLimited: The same, for a broker that wants fewer messages.
        """
        now = time.monotonic()
        self._full = {queue: until for queue, until in self._full.items() if until > now}
        rows = self._database.claim(BATCH, list(self._full))
        ends = self._send(rows)
        sent: list[int] = []
        kept: list[tuple[int, str]] = []
        later: Exception | None = None
        for row in (row for row in rows if row.seq in ends):
            error = ends[row.seq]
            if error is None or isinstance(error, errors.DuplicateJob):
                sent.append(row.seq)
                if error is not None:
                    logger.info("job %s is not submitted: %s", row.job_id, error)
            elif isinstance(error, errors.QueueFull):
                if row.queue not in self._full:
                    logger.warning("rows of a full queue wait in the outbox: %s", error)
                self._full[row.queue] = now + MAX_RETRY
            elif isinstance(error, _WAITING):
                later = error
            else:
                kept.append((row.seq, f"{type(error).__name__}: {error}"))
                logger.error("job %s is kept in the outbox: %s", row.job_id, kept[-1][1])
        unknown = [row.seq for row in rows if row.sent is None and _is_unknown(ends.get(row.seq))]
        self._database.finish(sent, kept, unknown)
        if later is not None:
            raise later
        if self._pause and rows:
            logger.warning("the outbox goes on")
            self._pause = 0.0
        return len(sent) + len(kept)

    def _send(self, rows: Sequence[Row]) -> Ends:
        """Submit rows; return for each that was tried the error, or None for a receipt.

        A row of a key is submitted after the receipt for the one before, in the next round.
        """
        ends: Ends = {}
        rounds: dict[int, list[Row]] = {}
        before: Counter[str] = Counter()
        for row in rows:
            rounds.setdefault(before[row.ordering_key], []).append(row)
            before[row.ordering_key] += bool(row.ordering_key)
        waiting: set[str] = set()  # keys of which a row waits
        end = time.monotonic() + MAX_SEND
        for number in sorted(rounds):
            if number and (self._stopping or time.monotonic() > end):
                break
            tried = [r for r in rounds[number] if r.ordering_key not in waiting]
            tried = [r for r in tried if r.queue not in self._full]
            ends.update((row.seq, self._check(row)) for row in tried)
            self._submit([row for row in tried if ends[row.seq] is None], ends)
            gone = {row.ordering_key for row in tried if not isinstance(ends[row.seq], _WAITING)}
            waiting |= {row.ordering_key for row in rounds[number]} - gone - {""}
            if any(isinstance(ends[row.seq], errors.BrokerUnavailable) for row in tried):
                break
        return ends

    def _check(self, row: Row) -> Exception | None:
        """Return why a row must not be sent, None if it may be."""
        age = 0.0 if row.sent is None else time.time() - row.sent
        if age > self._max_age:
            return errors.NotAllowed(
                f"the row may have been sent {age / 3600:.1f} hours ago, which the broker forgets: "
                f"eventmq outbox retry {row.job_id} sends it, perhaps a second time"
            )
        try:
            parse_headers(row.headers)
        except errors.EventMQError as error:
            return error
        return None

    def _submit(self, rows: Sequence[Row], ends: Ends) -> None:
        """Submit rows, and enter an error for each that the broker has not confirmed."""
        graphs = [row for row in rows if row.headers.startswith("nodes:")]
        others = [row for row in rows if not row.headers.startswith("nodes:")]
        try:
            with self._app.batch():
                for row in others:
                    self._app.send_encoded(*row[3:])
        except errors.BatchError as batch:
            for row, (_, status, error) in zip(others, batch.jobs, strict=True):
                if status != "confirmed":
                    ends[row.seq] = error or errors.BrokerUnavailable(str(batch))
        # One job may be the reason why a message with many was refused.
        final = (type(None), errors.DuplicateJob, *_WAITING)
        refused = [row for row in others if not isinstance(ends[row.seq], final)]
        away = next((e for e in ends.values() if isinstance(e, errors.BrokerUnavailable)), None)
        for row in [*graphs, *refused]:
            try:
                if away is None:
                    self._app.send_encoded(*row[3:])
                ends[row.seq] = away
            except errors.EventMQError as error:
                ends[row.seq] = error
                away = error if isinstance(error, errors.BrokerUnavailable) else None


def _is_unknown(error: Exception | None) -> bool:
    """Return whether the broker may have stored the job after an error."""
    return isinstance(error, errors.BrokerUnavailable) and error.maybe_accepted
