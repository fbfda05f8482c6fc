"""Revoked leases: what sessions held when they were given up, so that it can be cancelled there."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eventmq.broker.peers import Lease, Session

__all__ = ["Revoked"]

#: Chunks that are remembered; older ones are not cancelled at the worker, whose replies are stale.
MAX_CHUNKS = 1000


class Revoked:
    """The last revoked chunks: (session id, number) -> (job id, delivery) of what was open."""

    def __init__(self) -> None:
        self._chunks: dict[tuple[str, int], list[tuple[str, int]]] = {}
        #: Single deliveries that ended while their session was away: by session, with the chunk.
        self._cancelled: dict[str, list[tuple[int, str, int]]] = {}
        #: Unconfirmed cancels: deliveries that had ended when the broker was started, in the same
        #: form, bounded by the chunks that were open.
        self._unconfirmed: dict[str, list[tuple[int, str, int]]] = {}

    def add(self, session: Session, lease: Lease) -> None:
        """Record a chunk before it is given back."""
        if session.legacy:
            return
        if len(self._chunks) >= MAX_CHUNKS:
            del self._chunks[next(iter(self._chunks))]
        self._chunks[session.id, lease.number] = [
            (job.id, delivery)
            for job, delivery in zip(lease.jobs, lease.deliveries, strict=True)
            if job is not None
        ]

    def add_cancelled(self, session: Session, number: int, job_id: str, delivery: int) -> None:
        """Record one delivery that was cancelled while its session is away."""
        if session.id not in self._cancelled and len(self._cancelled) >= MAX_CHUNKS:
            del self._cancelled[next(iter(self._cancelled))]
        cancelled = self._cancelled.setdefault(session.id, [])
        cancelled.append((number, job_id, delivery))
        del cancelled[:-MAX_CHUNKS]

    def add_unconfirmed(self, session: Session, number: int, job_id: str, delivery: int) -> None:
        """Record one delivery that ended before a restart: its session may not know it."""
        self._unconfirmed.setdefault(session.id, []).append((number, job_id, delivery))

    def take_unconfirmed(self, session: Session, held: Iterable[int]) -> dict[str, int]:
        """Return and forget the unconfirmed cancels of chunks that a session holds.

        Returns:
            Job id -> delivery.
        """
        ended, numbers = self._unconfirmed.pop(session.id, ()), set(held)
        return {job_id: delivery for number, job_id, delivery in ended if number in numbers}

    def forget_session(self, session: Session) -> None:
        """Forget the unconfirmed cancels of a session that never came back."""
        self._unconfirmed.pop(session.id, None)

    def take(self, session: Session, held: Iterable[int]) -> list[tuple[str, int]]:
        """Return and forget the deliveries of chunks that the session still holds."""
        numbers = set(held)
        cancelled = self._cancelled.pop(session.id, ())
        return [
            entry
            for number in numbers
            if number not in session.leases
            for entry in self._chunks.pop((session.id, number), [])
        ] + [(job_id, delivery) for number, job_id, delivery in cancelled if number in numbers]
