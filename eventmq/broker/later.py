"""Messages that nobody waits for: each goes out with the next one to its peer, or a little later.

A message by itself wakes two threads of its receiver. A worker does nothing with the ACK of its
answer but forget that, so it is not woken for it while there may be a next chunk to go with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eventmq.broker.peers import Key
    from eventmq.broker.state import Outgoing

__all__ = ["PATIENCE", "Later"]

#: Seconds that a message waits for company: nothing beside the 5 s after which an answer that was
#: not acknowledged is sent again.
PATIENCE = 0.01

_NEVER = float("inf")


class Later:
    """What waits for company.

    Attributes:
        due: Monotonic time at which `pick` has something to send in any case.
        waiting: What it keeps, by peer.
    """

    __slots__ = ("due", "waiting")

    def __init__(self) -> None:
        self.due = _NEVER
        self.waiting: dict[Key, list[Outgoing]] = {}

    def pick(self, outbox: list[Outgoing], now: float) -> list[Outgoing]:
        """Return what is to be sent now: company last, since others are waited for.

        Args:
            outbox: New messages, in order.
            now: Monotonic time.
        """
        waiting = self.waiting
        picked: list[Outgoing] = []
        for message in outbox:
            if message.patient:
                waiting.setdefault(message.key, []).append(message)
                self.due = min(self.due, now + PATIENCE)
                continue
            picked.append(message)
            if waiting and message.key in waiting:
                picked += waiting.pop(message.key)
        if now >= self.due:
            picked += [message for messages in waiting.values() for message in messages]
            waiting.clear()
        if not waiting:
            self.due = _NEVER
        return picked
