"""What sessions held when they were given up, so that one that returns can be told to drop it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eventmq.broker.peers import Lease, Session

__all__ = ["Revoked"]

#: Chunks that are remembered; of older ones a worker is not told, and its answers are stale.
MOST = 1000


class Revoked:
    """The last revoked chunks: (session id, number) -> (job id, delivery) of what was open."""

    def __init__(self) -> None:
        self._chunks: dict[tuple[str, int], list[tuple[str, int]]] = {}
        #: Single deliveries that ended while their session was away: by session, with the chunk.
        self._noted: dict[str, list[tuple[int, str, int]]] = {}
        #: Those that had ended when the broker was started: bounded by the chunks that were open.
        self._doubted: dict[str, list[tuple[int, str, int]]] = {}

    def add(self, session: Session, lease: Lease) -> None:
        """Note a chunk before it is given back."""
        if session.plain:
            return
        if len(self._chunks) >= MOST:
            del self._chunks[next(iter(self._chunks))]
        self._chunks[session.id, lease.number] = [
            (job.id, delivery)
            for job, delivery in zip(lease.jobs, lease.deliveries, strict=True)
            if job is not None
        ]

    def note(self, session: Session, number: int, job_id: str, delivery: int) -> None:
        """Note one delivery that was cancelled while its session is away."""
        if session.id not in self._noted and len(self._noted) >= MOST:
            del self._noted[next(iter(self._noted))]
        noted = self._noted.setdefault(session.id, [])
        noted.append((number, job_id, delivery))
        del noted[:-MOST]

    def doubt(self, session: Session, number: int, job_id: str, delivery: int) -> None:
        """Note one delivery that ended before a restart: its session may not know it."""
        self._doubted.setdefault(session.id, []).append((number, job_id, delivery))

    def doubts(self, session: Session, held: Iterable[int]) -> dict[str, int]:
        """Return and forget such deliveries of chunks that the session still holds: id -> which."""
        doubted, numbers = self._doubted.pop(session.id, ()), set(held)
        return {job_id: delivery for number, job_id, delivery in doubted if number in numbers}

    def forget(self, session: Session) -> None:
        """Forget the doubts about a session that never came back."""
        self._doubted.pop(session.id, None)

    def take(self, session: Session, held: Iterable[int]) -> list[tuple[str, int]]:
        """Return and forget the deliveries of chunks that the session still holds."""
        numbers = set(held)
        noted = self._noted.pop(session.id, ())
        return [
            entry
            for number in numbers
            if number not in session.leases
            for entry in self._chunks.pop((session.id, number), [])
        ] + [(job_id, delivery) for number, job_id, delivery in noted if number in numbers]
