"""The client's list of what is not settled yet, with who has it and when to give it up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.client.errands import NEVER, NOWHERE, Parcel, Question
from eventmq.errors import BrokerUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.client.connection import Connection
    from eventmq.client.errands import Errand

__all__ = ["Ledger"]

#: What to do where there is no broker.
_HINT = 'start one with "eventmq broker"'


class Ledger:
    """Open errands by message id, in the order in which they came.

    Args:
        connections: By index, as errands name them.
    """

    def __init__(self, connections: Sequence[Connection]) -> None:
        self._connections = connections
        self._open: dict[str, Errand] = {}
        #: Errands with something new for whoever waits for them.
        self.settled: list[Errand] = []
        #: When the first of them is to be given up.
        self.next_deadline = NEVER

    def add(self, errand: Errand) -> bool:
        """Note a new errand; return False if an open one of the same id stands for it."""
        self.next_deadline = min(self.next_deadline, errand.deadline)
        first = self._open.setdefault(errand.id, errand)
        if first is errand:
            return True
        if isinstance(first, Parcel) and isinstance(errand, Parcel):
            first.twins.append(errand)
        return False

    def __len__(self) -> int:
        return len(self._open)

    def find(self, message_id: str) -> Errand | None:
        """Return an open errand."""
        return self._open.get(message_id)

    def homeless(self) -> list[Errand]:
        """Return the errands that no broker has."""
        return [errand for errand in self._open.values() if errand.at == NOWHERE]

    def enter(self, errand: Errand, connection: Connection, now: float) -> None:
        """Give an errand to a broker."""
        errand.at = connection.index
        connection.enter(now)
        connection.unsent.append(errand)

    def hold(self, question: Question, connection: Connection, now: float) -> None:
        """Let a question wait for what a broker says without being asked, or has said already."""
        question.at = connection.index
        connection.enter(now)
        if question.answers:
            self.settle(question, None)

    def leave(self, errand: Errand) -> None:
        """Take an errand from its broker."""
        if errand.at != NOWHERE:
            self._connections[errand.at].waiting -= 1
            errand.at = NOWHERE

    def evict(self, connection: Connection) -> None:
        """Take everything from a broker."""
        connection.unsent.clear()
        for errand in self._open.values():
            if errand.at == connection.index:
                self.leave(errand)

    def settle(self, errand: Errand, error: Exception | None) -> None:
        """End an errand, with its twins."""
        del self._open[errand.id]
        self._end(errand, error)
        if isinstance(errand, Parcel):
            for twin in errand.twins:
                twin.refused, twin.sent = errand.refused, errand.sent
                twin.broker, twin.store = errand.broker, errand.store
                twin.confirmed = errand.confirmed
                self._end(twin, error)

    def _end(self, errand: Errand, error: Exception | None) -> None:
        self.leave(errand)
        errand.over = True
        errand.error = error
        self.settled.append(errand)

    def overdue(self, now: float) -> list[Errand]:
        """Return the open errands whose deadline has passed."""
        return [errand for errand in self._open.values() if errand.deadline <= now]

    def expire(self, now: float, *, patience: float) -> tuple[set[int], list[Errand]]:
        """Give up what is late.

        Args:
            now: The time.
            patience: Seconds in which a living broker has answered a message.

        Returns:
            The brokers that left a message unanswered for so long and said nothing else since,
            and errands that now stand for a late one of the same id and need a broker.
        """
        silent, heirs = set(), []
        for errand in list(self._open.values()):
            if isinstance(errand, Parcel) and errand.twins:
                self._expire_twins(errand, now)
            if errand.deadline > now:
                continue
            if errand.at != NOWHERE and isinstance(errand, Parcel | Question):
                heard = self._connections[errand.at].heard
                if heard <= errand.sent <= now - patience:
                    silent.add(errand.at)
            heirs += self._give_up(errand)
        self.next_deadline = min((e.deadline for e in self._everything()), default=NEVER)
        return silent, heirs

    def _everything(self) -> list[Errand]:
        found = list(self._open.values())
        return found + [t for e in found if isinstance(e, Parcel) for t in e.twins]

    def _expire_twins(self, parcel: Parcel, now: float) -> None:
        for twin in [twin for twin in parcel.twins if twin.deadline <= now]:
            parcel.twins.remove(twin)
            twin.sent = parcel.sent
            self._end(twin, twin.failure(self._reason(parcel)))

    def _give_up(self, errand: Errand) -> list[Errand]:
        """Settle a late errand; return the twin that takes its place, if there is one."""
        error = errand.failure(self._reason(errand))
        if not isinstance(errand, Parcel) or not errand.twins:
            self.settle(errand, error)
            return []
        heir, *heir.twins = errand.twins
        heir.sent, heir.broker, heir.store = errand.sent, errand.broker, errand.store
        self._open[errand.id] = heir
        self._end(errand, error)
        return [heir]

    def _reason(self, errand: Errand) -> str:
        if errand.at != NOWHERE:
            connection = self._connections[errand.at]
            if connection.features is None and not errand.sent:
                what = f"{connection.address} ({connection.absence})"
                return f"nothing could be sent to broker {what} in time"
            return f"no answer from broker {connection.address} in time"
        said = (f"{c.address} ({c.absence})" for c in self._connections)
        return f"no broker could be reached in time: {', '.join(said)}; {_HINT}"

    def abandon(self, reason: str) -> None:
        """Give everything up."""
        for errand in list(self._open.values()):
            asked = isinstance(errand, Question)
            error = BrokerUnavailable(reason) if asked else errand.failure(reason)
            self.settle(errand, error)
