"""Sources of events for a journal: the store of a broker on this machine, or a broker by CALL."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

from eventmq.errors import BrokerUnavailable, ProtocolError, StoreError
from eventmq.sdk.events import EventLogHead, EventRow

if TYPE_CHECKING:
    from eventmq import EventMQ
    from eventmq.sdk import Clock, EventLogReader

__all__ = ["BrokerSource", "Source", "StoreSource"]

logger = logging.getLogger("eventmq.journal")

#: Seconds between two reports to a broker that did not answer.
_RETRY_AFTER = 10.0


class Source(Protocol):
    """Source of events. ``broker_id`` is the id of the store in its events."""

    broker_id: str

    def read(self, after: int, max_bytes: int) -> tuple[list[EventRow], EventLogHead]:
        """Return events after a number: complete rows, at least one if there is one."""

    def seal(self, journal: str, sealed: int) -> bool:
        """Report the last sealed number to the broker; return whether it answered.

        Raises:
            StoreError: The journal must end: another one has taken over, or the broker has fewer
                events.
        """


class BrokerSource:
    """A broker, read by CALLs.

    Args:
        app: Client of the broker.

    Raises:
        BrokerUnavailable: The broker does not answer.
    """

    def __init__(self, app: EventMQ) -> None:
        self._app = app
        self.broker_id: str = app.ask("ping")["events_id"]

    def read(self, after: int, max_bytes: int) -> tuple[list[EventRow], EventLogHead]:
        """See `Source`."""
        answer = self._app.ask("events.read", {"after": after, "bytes": max_bytes})
        _check_store(self.broker_id, answer)
        return [EventRow(*row) for row in answer["rows"]], _head(answer)

    def seal(self, journal: str, sealed: int) -> bool:
        """See `Source`."""
        seal(self._app, self.broker_id, journal, sealed)
        return True


class StoreSource:
    """The event log of a store, and its broker, which may be unavailable.

    Args:
        reader: Reader of the event log.
        app: Client of the broker.
        clock: Reads time.
    """

    def __init__(self, reader: EventLogReader, app: EventMQ, clock: Clock) -> None:
        self._reader = reader
        self._app = app
        self._clock = clock
        self._next_report_at = float("-inf")
        self._warned = False
        self.broker_id: str = reader.store_id

    def read(self, after: int, max_bytes: int) -> tuple[list[EventRow], EventLogHead]:
        """See `Source`."""
        return self._reader.read(after, max_bytes)

    def seal(self, journal: str, sealed: int) -> bool:
        """See `Source`; a broker that does not answer gets the report later."""
        if self._clock.monotonic() < self._next_report_at:
            return False
        try:
            seal(self._app, self.broker_id, journal, sealed)
        except BrokerUnavailable as error:
            self._next_report_at = self._clock.monotonic() + _RETRY_AFTER
            level = logging.DEBUG if self._warned else logging.WARNING
            logger.log(level, "the broker keeps sealed events until it answers: %s", error)
            self._warned = True
            return False
        self._warned = False
        return True


def seal(app: EventMQ, broker_id: str, journal: str, sealed: int) -> None:
    """Report the last sealed number of a journal to a broker.

    Raises:
        BrokerUnavailable: The broker does not answer.
        StoreError: It is another broker, has fewer events than the journal, or has another journal.
    """
    try:
        answer = app.ask("events.seal", {"journal": journal, "sealed": sealed})
    except ProtocolError as error:
        if error.code == "journal-taken":
            raise StoreError(f"{error}, and wait for half a minute") from error
        raise
    _check_store(broker_id, answer)
    check(broker_id, _head(answer), sealed)


def check(broker_id: str, head: EventLogHead, sealed: int) -> None:
    """Check that a broker has no fewer events than its journal.

    Raises:
        StoreError: It has fewer: its store was restored from an earlier time.
    """
    if sealed >= head.next:
        raise StoreError(
            f"the journal has events of the broker {broker_id} up to {sealed}, the broker only up "
            f"to {head.next - 1}: its store was restored from an earlier time; name another folder "
            "with --out"
        )


def _check_store(broker_id: str, answer: dict[str, Any]) -> None:
    if answer["store"] != broker_id:
        raise StoreError(
            f"the broker that answers has the store {answer['store']}, not {broker_id}: name the "
            "right one with --broker"
        )


def _head(answer: dict[str, Any]) -> EventLogHead:
    return EventLogHead(answer["first"], answer["next"], answer["journal"], answer["sealed"])
