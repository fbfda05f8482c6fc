"""Copies events from a source into a journal's folder, each exactly once, despite any kill.

Events that were read but not sealed are lost with the process and read again. Sealed events are
never read again, since the names of the files have their numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from eventmq.sdk.events import HOUR_US, EventColumns, EventRow
from eventmq_contrib.journal.sources import Source, check

if TYPE_CHECKING:
    from eventmq.sdk import Clock
    from eventmq_contrib.journal.folder import JournalFolder
    from eventmq_contrib.journal.redactor import Redactor

__all__ = ["AGE", "ROWS", "Drain"]

logger = logging.getLogger("eventmq.journal")

#: Maximum number of events in a file.
ROWS = 65_536

#: Bytes of redacted values after which the events are sealed.
TEXT = 64 * 1024 * 1024

#: Seconds after which events are sealed.
AGE = 60.0

#: Bytes that are read at a time: a few milliseconds.
READ_BYTES = 4 * 1024 * 1024

#: Seconds between two reports to the broker.
REPORT_EVERY = 1.0


class Drain:
    """One run of a journal.

    Args:
        source: Source of the events.
        folder: Folder of the journal, open.
        clock: Reads time.
        rows: Maximum number of events in a file.
        age: Seconds after which events are sealed.
        redactor: Redacts arguments and results; None to leave them out.
    """

    def __init__(
        self, source: Source, folder: JournalFolder, clock: Clock, *,
        rows: int = ROWS, age: float = AGE, redactor: Redactor | None = None,
    ) -> None:  # fmt: skip
        self._source, self._folder, self._clock = source, folder, clock
        self._rows, self._age = rows, age
        self._redactor = redactor
        self._events = EventColumns(redactor)
        self._written = 0
        self._since = 0.0
        self._reported = -1
        self._report_at = float("-inf")
        #: Last event number that was read, and last one that is sealed.
        self.last_read = self.sealed = 0
        self.files = 0

    def start(self) -> None:
        """Read the last sealed number of the folder, and register the journal with the broker.

        Raises:
            StoreError: The broker has fewer events than the folder, or another journal.
        """
        self.last_read = self.sealed = self._folder.checkpoint(self._source.broker_id)
        _, head = self._source.read(self.last_read, 1)
        check(self._source.broker_id, head, self.sealed)
        self._report()

    def step(self) -> bool:
        """Read some events, seal and report those that are due; return whether any were read."""
        rows, _ = self._source.read(self.last_read, READ_BYTES)
        for row in rows:
            self._add(row)
        self._seal_due()
        if self.sealed > self._reported and self._clock.monotonic() >= self._report_at:
            self._report()
        return bool(rows)

    def finish(self) -> None:
        """Seal all events, and report it to the broker."""
        self._seal_all()
        if self.sealed > self._reported:
            self._report()

    # Reading

    def _add(self, row: EventRow) -> None:
        if row.first > self.last_read + 1:
            self._seal_all()  # a file has consecutive numbers
            logger.warning(
                "events %d to %d are missing: the broker dropped them",
                self.last_read + 1, row.first - 1,
            )  # fmt: skip
        if not len(self._events):
            self._since = self._clock.monotonic()
        if self._redactor is not None:
            self._redactor.begin()
        if row.first > self.last_read:
            self._events.add(self._source.broker_id, row.first, row.body)
        else:  # the first events of this row are sealed already
            columns = EventColumns(self._redactor)
            columns.add(self._source.broker_id, row.first, row.body)
            columns.cut(self.last_read + 1 - row.first)
            self._events.extend(columns)
        self.last_read = row.first + row.events - 1
        while len(self._events) >= self._rows:
            self._seal(self._rows)
        if self._redactor is not None and self._redactor.written - self._written >= TEXT:
            self._seal_all()

    # Sealing

    def _seal_due(self) -> None:
        """Seal events that are old, or of an hour that has ended."""
        times = self._events.values["ts_us"]
        while times and times[-1] // HOUR_US != times[0] // HOUR_US:
            self._seal(self._rows)
        if not times:
            return
        old = self._clock.monotonic() - self._since >= self._age
        if old or int(self._clock.now() * 1_000_000) // HOUR_US > times[0] // HOUR_US:
            self._seal_all()

    def _seal_all(self) -> None:
        while len(self._events):
            self._seal(self._rows)
        if self._redactor is not None:
            self._written = self._redactor.written

    def _seal(self, limit: int) -> None:
        """Seal the first events, up to the end of their hour."""
        size = min(limit, self._rows, len(self._events))
        size = _of_one_hour(self._events.values["ts_us"], size)
        part = self._events.cut(size)
        name = self._folder.seal(self._source.broker_id, part)
        self.sealed = name.last
        self.files += 1
        self._since = self._clock.monotonic()
        logger.debug("sealed %s", name)

    def _report(self) -> None:
        self._report_at = self._clock.monotonic() + REPORT_EVERY
        if self._source.seal(self._folder.id, self.sealed):
            self._reported = self.sealed


def _of_one_hour(times: Sequence[int], size: int) -> int:
    """Return how many of the first times are in the hour of the first one."""
    hour, batch = times[0] // HOUR_US, times[:size]
    if min(batch) // HOUR_US == max(batch) // HOUR_US:
        return size
    return next(index for index, ts in enumerate(batch) if ts // HOUR_US != hour)
