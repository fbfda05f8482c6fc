"""Event feed: events that no commit implies, and reads for journals and observers.

The store makes most events from the changes of a commit (`eventmq.store.events`). The event feed
adds the events of long leases and of transient jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.broker.state import SingleWrite
from eventmq.errors import ProtocolError
from eventmq.events import EventKind
from eventmq.store.reads import ReadEvents
from eventmq.store.writes import RecordEnds, RecordEvents, SealEvents
from eventmq.wire.commands import read_number, read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eventmq.broker.peers import Lease, Peer, Session
    from eventmq.broker.state import State
    from eventmq.store.reads import EventLogHead, EventRow

__all__ = ["JOURNAL_TIMEOUT", "LEASED_AFTER", "PROGRESS_EVERY", "EventFeed"]

#: Seconds after which a lease gets an event.
LEASED_AFTER = 5.0

#: Seconds between two events of one lease.
PROGRESS_EVERY = 20.0

#: Seconds that a journal may be silent before another one may take its place.
JOURNAL_TIMEOUT = 30.0

#: Bytes of events in one answer, and in one read for observers.
_BYTES = 4 * 1024 * 1024

#: Seconds between scans of leases.
_SCAN_EVERY = 1.0


class EventFeed:
    """Records long leases, and answers the calls ``events.read`` and ``events.seal``."""

    def __init__(self, state: State) -> None:
        self.state = state
        #: Queues rows for observers and returns whether there was room; None without observers.
        self.observe: Callable[[Sequence[EventRow]], bool] | None = None
        #: Number of the last event that observers got.
        self.observed = 0
        self._single = SingleWrite(state)
        self._scanned_at = float("-inf")
        state.calls |= {"events.read": self._read, "events.seal": self._seal}

    def tick(self) -> None:
        """Record long leases and ends of transient jobs; read events for observers."""
        state = self.state
        if state.now < state.hold_until:
            return
        if state.now - self._scanned_at >= _SCAN_EVERY:
            self._scanned_at = state.now
            for session in state.sessions.values():
                if session.peer is not None and session.leases:
                    self._scan(session)
        if state.ends:
            rows, state.ends = state.ends, []
            state.write(RecordEnds(rows), lambda _: None)
        self.read_for_observers()

    def _scan(self, session: Session) -> None:
        now = self.state.now
        for lease in session.leases.values():
            if not lease.sent or lease.transient:
                continue
            if not lease.recorded and now - lease.leased >= LEASED_AFTER:
                self._record(EventKind.LEASED, session, lease)
            elif lease.recorded and now - lease.recorded >= PROGRESS_EVERY:
                self._record(EventKind.PROGRESS, session, lease)

    def _record(self, kind: EventKind, session: Session, lease: Lease) -> None:
        old, lease.recorded = lease.recorded, self.state.now
        jobs = [job for job in lease.jobs if job is not None]
        write = RecordEvents(kind, jobs, self.state.now, session.name, lease.leased)
        self.state.write_first(write, lambda: setattr(lease, "recorded", old))

    # Observers

    def read_for_observers(self) -> None:
        """Read the events that observers do not have yet, unless a read is in flight."""
        if self.observe is not None and not self._single.busy:
            self._single.write(ReadEvents(self.observed, _BYTES), self._send_to_observers)

    def _send_to_observers(self, write_result: tuple[list[EventRow], EventLogHead]) -> None:
        rows, _ = write_result
        if rows and self.observe is not None and self.observe(rows):
            self.observed = rows[-1].first + rows[-1].events - 1

    # Journals

    def _read(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        max_bytes = min(
            read_number(arguments, "bytes") or _BYTES, _BYTES, self.state.limits.max_frame // 2
        )

        def settle(write_result: tuple[list[EventRow], EventLogHead]) -> None:
            rows, head = write_result
            answer = {**self._head(head), "rows": [list(row) for row in rows]}
            self.state.answer(peer, call, answer)

        self.state.write(ReadEvents(read_number(arguments, "after"), max_bytes), settle)

    def _seal(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        journal, sealed = read_text(arguments, "journal"), read_number(arguments, "sealed")
        if not 0 < len(journal) <= self.state.limits.max_id:
            raise ProtocolError(
                f"a journal has an id of 1 to {self.state.limits.max_id} characters",
                code="bad-arguments",
            )

        def settle(write_result: tuple[EventLogHead, bool]) -> None:
            head, other = write_result
            if other:
                msg = (
                    "another journal took events of this broker less than "
                    f"{JOURNAL_TIMEOUT:g} s ago; stop one of the two"
                )
                self.state.error(peer, call, "journal-taken", msg)
            else:
                self.state.answer(peer, call, self._head(head))

        write = SealEvents(journal, sealed, self.state.now, JOURNAL_TIMEOUT)
        self.state.write(write, settle, self.state.report_undone(peer, call))

    def _head(self, head: EventLogHead) -> dict[str, Any]:
        return {"store": self.state.events_id, **head._asdict()}
