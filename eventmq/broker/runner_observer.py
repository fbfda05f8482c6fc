"""Tells observers of events, on a thread of its own, so that no turn waits for them."""

from __future__ import annotations

import logging
import queue
import threading
from typing import TYPE_CHECKING, Any

from eventmq.events import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eventmq.entries import EventRow

__all__ = ["Observers"]

logger = logging.getLogger("eventmq.broker")

#: Portions of events that wait for the thread; the broker keeps the others.
_WAITING = 4

#: Seconds that a broker which stops waits for observers.
_PATIENCE = 5.0


class Observers:
    """Calls a function with each event, in order.

    Args:
        function: Gets each event; it raises nothing.
        broker_id: Id of the broker's store.
        last: Number of the last event before the first one to tell of.
    """

    def __init__(
        self, function: Callable[[Mapping[str, Any]], None], broker_id: str, last: int
    ) -> None:
        self._function = function
        self._broker_id = broker_id
        self._last = last
        self._rows: queue.Queue[Sequence[EventRow] | None] = queue.Queue(_WAITING)
        self._thread = threading.Thread(target=self._run, name="eventmq-observers", daemon=True)
        self._thread.start()

    def take(self, rows: Sequence[EventRow]) -> bool:
        """Take events to tell of; say whether there was room for them."""
        try:
            self._rows.put_nowait(rows)
        except queue.Full:
            return False
        return True

    def close(self) -> None:
        """Wait a moment until all is told."""
        try:
            self._rows.put(None, timeout=_PATIENCE)
            self._thread.join(_PATIENCE)
        except queue.Full:
            logger.warning("observers are too slow: they were not told of the last events")

    def _run(self) -> None:
        while (rows := self._rows.get()) is not None:
            for first, _, body in rows:
                if first > self._last + 1:
                    logger.warning(
                        "observers are too slow: events %d to %d were dropped before they were "
                        "told of them", self._last + 1, first - 1,
                    )  # fmt: skip
                for event in rows_of(self._broker_id, first, body):
                    if event["seq"] > self._last:
                        self._last = event["seq"]
                        self._function({"job_id": "", "queue": "", **event})
