"""Suspect chunks: announces a job that may have killed a worker to the broker before it runs.

A chunk with the header ``ask`` has one such job. The manager announces it with the CALL ``begin``
and starts it once that was answered: if the worker is lost then, the broker knows that the job was
there. Each chunk has a CALL of its own and waits for no other, so that many such jobs take no
longer than others, however far away the broker is.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from eventmq.wire import commands
from eventmq.wire.batches import pack
from eventmq.worker.session import RESEND_AFTER

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventmq.worker.chunks import HeldChunk, HeldChunks
    from eventmq.worker.session import WorkerSession

__all__ = ["RETRY_LATER", "SuspectChunks"]

_log = logging.getLogger(__name__)

#: Error codes after which a CALL is sent again later.
RETRY_LATER = frozenset({"rate-limited", "store-full", "inform-again"})


class _Suspect:
    """A chunk that waits for the answer to its CALL.

    Attributes:
        call: Id of the CALL, "" before the first.
        due: Monotonic time at which it is sent again.
        registrations: How often the broker had acknowledged INFORM when it was sent.
    """

    __slots__ = ("body", "call", "chunk", "due", "registrations")

    def __init__(self, chunk: HeldChunk, body: bytes) -> None:
        self.chunk = chunk
        self.body = body
        self.call = ""
        self.due = 0.0
        self.registrations = 0


class SuspectChunks:
    """The suspect chunks of one session that the broker does not know to be here yet.

    Args:
        session: Sends the CALLs.
        held_chunks: The held chunks.
        begin: Starts a chunk that the broker has confirmed.
        refuse: Hands back a chunk that it has refused.
    """

    def __init__(
        self,
        session: WorkerSession,
        held_chunks: HeldChunks,
        begin: Callable[[HeldChunk, bytes, float], None],
        refuse: Callable[[HeldChunk, float], None],
    ) -> None:
        self._session = session
        self._held_chunks = held_chunks
        self._begin = begin
        self._refuse = refuse
        #: By the number of the chunk.
        self.waiting: dict[int, _Suspect] = {}
        #: Number of the chunk by the id of the CALL.
        self._calls: dict[str, int] = {}

    def ask(self, chunk: HeldChunk, body: bytes, now: float) -> None:
        """Announce a chunk to the broker, and start it when that was answered."""
        self._held_chunks.hold(chunk)
        suspect = self.waiting[chunk.number] = _Suspect(chunk, body)
        if self._session.online:
            self._call_begin(suspect, now)

    def cancel(self, job: str, delivery: int) -> HeldChunk | None:
        """Remove the chunk of a delivery, if it is one of these, and return it."""
        for suspect in self.waiting.values():
            for entry in suspect.chunk.index.entries:
                if (entry.id, entry.delivery) == (job, delivery):
                    return self._pop(suspect).chunk
        return None

    def take_all(self) -> list[HeldChunk]:
        """Remove all of these chunks, and return them."""
        return [self._pop(suspect).chunk for suspect in list(self.waiting.values())]

    def next_tick(self) -> float:
        """Return when `tick` has something to do."""
        if not self.waiting or not self._session.online:
            return float("inf")
        return min(suspect.due for suspect in self.waiting.values())

    def tick(self, now: float) -> None:
        """Send the CALLs again that were not answered, and all of them on a new connection."""
        if not self.waiting or not self._session.online:
            return
        registrations = self._session.registrations
        for suspect in self.waiting.values():
            if now >= suspect.due or suspect.registrations != registrations:
                self._call_begin(suspect, now)

    def replied(self, reply: commands.Reply, now: float) -> bool:
        """Handle a REPLY; return whether it was about one of these chunks."""
        suspect = self._of(reply.request or "")
        if suspect is None:
            return False
        self._pop(suspect)
        self._begin(suspect.chunk, suspect.body, now)
        return True

    def refused(self, error: commands.Error, now: float) -> bool:
        """Handle an ERROR; return whether it was about one of these chunks."""
        suspect = self._of(error.request)
        if suspect is None:
            return False
        if error.code not in RETRY_LATER:  # else `tick` asks again
            _log.warning("a job is not started: %s", error.text)
            self._refuse(self._pop(suspect).chunk, now)
        return True

    def _of(self, call: str) -> _Suspect | None:
        return self.waiting.get(self._calls.get(call, 0))

    def _pop(self, suspect: _Suspect) -> _Suspect:
        self._calls.pop(suspect.call, None)
        return self.waiting.pop(suspect.chunk.number)

    def _call_begin(self, suspect: _Suspect, now: float) -> None:
        session, entry = self._session, suspect.chunk.index.entries[0]
        self._calls.pop(suspect.call, None)
        suspect.call = session.new_id()
        self._calls[suspect.call] = suspect.chunk.number
        suspect.due, suspect.registrations = now + RESEND_AFTER, session.registrations
        arguments = pack({"id": entry.id, "delivery": entry.delivery})
        session.outbox.append(commands.Call(suspect.call, "begin", arguments).frames())
