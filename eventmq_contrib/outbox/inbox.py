"""The inbox of a broker: an outbox table in the database of its store, which the owner reads.

It is the relay on a thread of the broker. It is a client like any other: the jobs of the rows are
submitted, and nothing is written into the tables of the store.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from eventmq import EventMQ
from eventmq_contrib.outbox.database import connect
from eventmq_contrib.outbox.relay import Relay

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Inbox"]

#: Seconds that a submission may take, by which the end of a broker may be delayed.
SUBMIT_TIMEOUT = 2.0


class Inbox:
    """Relay in the process of a broker.

    Args:
        url: URL of the database of the store.
        app: The app of the broker: its keys and its dedupe window count.
        owns: Returns whether the broker owns the store now; called from another thread.
    """

    def __init__(self, url: str, app: EventMQ, owns: Callable[[], bool]) -> None:
        self._database, self._owns, self._settings = connect(url), owns, app.settings
        self._relay: Relay | None = None
        self._thread: threading.Thread | None = None

    def start(self, address: str) -> None:
        """Begin to read, while the broker at this address owns the store. Idempotent."""
        if self._thread is None:
            settings = self._settings
            app = EventMQ(
                "inbox", broker=address, submit_timeout=SUBMIT_TIMEOUT,
                key_file=settings.key_file, broker_key_file=settings.broker_key_file,
            )  # fmt: skip
            window = settings.dedupe_window
            self._relay = Relay(self._database, app, window=window, active=self._owns)
            self._thread = threading.Thread(target=self._run, args=[app], name="eventmq-inbox")
            self._thread.daemon = True
            self._thread.start()

    def _run(self, app: EventMQ) -> None:
        assert self._relay is not None  # noqa: S101 - made by start
        with app:
            self._relay.run()

    def close(self) -> None:
        """End the thread after the rows at hand. Idempotent."""
        if self._relay is not None and self._thread is not None:
            self._relay.stop()
            self._thread.join(2 * SUBMIT_TIMEOUT)
