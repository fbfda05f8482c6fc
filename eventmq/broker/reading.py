"""Reader thread: answers listings beside the commits of a broker."""

from __future__ import annotations

import logging
import queue
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventmq.store.reads import StoreReader

__all__ = ["MAX_WAITING", "ReaderThread"]

logger = logging.getLogger("eventmq.broker")

#: Largest number of reads that wait; more are refused.
MAX_WAITING = 200

#: Seconds for which the end of a broker waits for a read that is under way.
_CLOSE_TIMEOUT = 5.0


class _Read(NamedTuple):
    query: Any
    settle: Callable[[Any], None]
    refuse: Callable[[str], None]


class ReaderThread:
    """Carries reads out in a thread with its own connection, in the order of their calls.

    Args:
        open_reader: Opens the connection; called in the thread, and again after a failure.
        wake: Wakes the thread of the broker, which then calls `take`.
    """

    def __init__(self, open_reader: Callable[[], StoreReader], wake: Callable[[], None]) -> None:
        self._open = open_reader
        self._wake = wake
        self._waiting: queue.SimpleQueue[_Read | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def read(
        self, query: Any, settle: Callable[[Any], None], refuse: Callable[[str], None]
    ) -> None:
        """Queue a read; see `eventmq.broker.state.State.read`. The first one starts the thread."""
        if self._waiting.qsize() >= MAX_WAITING:
            refuse(f"{MAX_WAITING} listings wait already: ask again later")
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="eventmq-reader", daemon=True)
            self._thread.start()
        self._waiting.put(_Read(query, settle, refuse))

    def take(self) -> None:
        """Settle or refuse the reads that were carried out; called by the broker's thread."""
        while not self._answers.empty():
            self._answers.get()()

    def end(self) -> None:
        """End the thread and its connection after the read that is under way; wait for nothing.

        Reads that were not settled are forgotten.
        """
        self._closed = True
        self._waiting.put(None)

    def close(self) -> None:
        """End the thread, and wait for that."""
        self.end()
        if self._thread is not None:
            self._thread.join(_CLOSE_TIMEOUT)

    def _run(self) -> None:
        reader: StoreReader | None = None
        while (read := self._waiting.get()) is not None and not self._closed:
            try:
                if reader is None:
                    reader = self._open()
                answer = partial(read.settle, reader.read(read.query))
            except Exception as error:
                logger.warning("a listing could not be read", exc_info=True)
                answer = partial(read.refuse, str(error) or repr(error))
                if reader is not None:
                    reader.close()
                    reader = None
            if not self._closed:
                self._answers.put(answer)
                self._wake()
        if reader is not None:
            reader.close()
