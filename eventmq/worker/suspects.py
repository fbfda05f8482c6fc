"""Tells the broker that a job which may have killed a worker is here, before it is started.

A chunk with the header ``ask`` has one such job. The manager says with the CALL ``begin`` that it
has it, and starts it once that was answered: if the worker then is lost, the broker knows that the
job was there. Each chunk has a CALL of its own and waits for no other, so that many such jobs take
no longer than others, however far away the broker is.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from eventmq.wire import commands
from eventmq.wire.batches import pack
from eventmq.worker.session import RESEND_AFTER

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventmq.worker.chunks import HeldChunk, Ledger
    from eventmq.worker.session import Session

__all__ = ["LATER", "Suspects"]

_log = logging.getLogger(__name__)

#: What the broker may say in passing: it is asked again later.
LATER = frozenset({"rate-limited", "store-full", "inform-again"})


class _Suspect:
    """A chunk that waits.

    Attributes:
        call: Id of the CALL that waits for its answer, "" before the first.
        due: When it is sent again.
        welcomes: How often the broker had acknowledged the session when it was sent.
    """

    __slots__ = ("body", "call", "chunk", "due", "welcomes")

    def __init__(self, chunk: HeldChunk, body: bytes) -> None:
        self.chunk = chunk
        self.body = body
        self.call = ""
        self.due = 0.0
        self.welcomes = 0


class Suspects:
    """The chunks of one session of which the broker does not know yet that they are here.

    Args:
        session: Sends.
        ledger: What is held.
        begin: Goes on with a chunk that may begin.
        refuse: Answers for a chunk that may not.
    """

    def __init__(
        self,
        session: Session,
        ledger: Ledger,
        begin: Callable[[HeldChunk, bytes, float], None],
        refuse: Callable[[HeldChunk, float], None],
    ) -> None:
        self._session = session
        self._ledger = ledger
        self._begin = begin
        self._refuse = refuse
        #: By the number of the chunk.
        self._waiting: dict[int, _Suspect] = {}
        #: Number of the chunk by the id of the CALL.
        self._calls: dict[str, int] = {}

    def ask(self, chunk: HeldChunk, body: bytes, now: float) -> None:
        """Tell the broker that a chunk is here, and go on with it when it has answered."""
        self._ledger.hold(chunk)
        suspect = self._waiting[chunk.number] = _Suspect(chunk, body)
        if self._session.online:
            self._say(suspect, now)

    def cancel(self, job: str, delivery: int) -> HeldChunk | None:
        """Give up the chunk of a delivery, if it is one of these, and return it."""
        for suspect in self._waiting.values():
            for entry in suspect.chunk.index.entries:
                if (entry.id, entry.delivery) == (job, delivery):
                    return self._pop(suspect).chunk
        return None

    def take_all(self) -> list[HeldChunk]:
        """Give up all of these chunks, and return them."""
        return [self._pop(suspect).chunk for suspect in list(self._waiting.values())]

    def due(self) -> float:
        """Return when `tick` has something to do."""
        if not self._waiting or not self._session.online:
            return float("inf")
        return min(suspect.due for suspect in self._waiting.values())

    def tick(self, now: float) -> None:
        """Ask again where no answer has come, and at once on a new connection."""
        if not self._waiting or not self._session.online:
            return
        welcomes = self._session.welcomes
        for suspect in self._waiting.values():
            if now >= suspect.due or suspect.welcomes != welcomes:
                self._say(suspect, now)

    def replied(self, reply: commands.Reply, now: float) -> bool:
        """Take a REPLY; return whether it was about one of these chunks."""
        suspect = self._of(reply.request or "")
        if suspect is None:
            return False
        self._pop(suspect)
        self._begin(suspect.chunk, suspect.body, now)
        return True

    def refused(self, error: commands.Error, now: float) -> bool:
        """Take an ERROR; return whether it was about one of these chunks."""
        suspect = self._of(error.request)
        if suspect is None:
            return False
        if error.code not in LATER:  # else `tick` asks again
            _log.warning("a job is not started: %s", error.text)
            self._refuse(self._pop(suspect).chunk, now)
        return True

    def _of(self, call: str) -> _Suspect | None:
        return self._waiting.get(self._calls.get(call, 0))

    def _pop(self, suspect: _Suspect) -> _Suspect:
        self._calls.pop(suspect.call, None)
        return self._waiting.pop(suspect.chunk.number)

    def _say(self, suspect: _Suspect, now: float) -> None:
        session, entry = self._session, suspect.chunk.index.entries[0]
        self._calls.pop(suspect.call, None)
        suspect.call = session.new_id()
        self._calls[suspect.call] = suspect.chunk.number
        suspect.due, suspect.welcomes = now + RESEND_AFTER, session.welcomes
        arguments = pack({"id": entry.id, "delivery": entry.delivery})
        session.outbox.append(commands.Call(suspect.call, "begin", arguments).frames())
