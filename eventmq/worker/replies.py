"""Answers that the broker has not acknowledged: kept, and sent again until it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.job import OutcomeKind
from eventmq.wire.bulk import OutcomeRow, decode_outcomes, encode_outcomes
from eventmq.wire.references import too_large
from eventmq.wire.results import ERROR_TYPE, RemoteError, encode_error
from eventmq.worker import joblog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.wire.bulk import ChunkIndex
    from eventmq.worker.ledger import HeldChunk

__all__ = ["RESEND_AFTER", "Replies", "fit_outcomes"]

#: Seconds after which an answer without an acknowledgement is sent again.
RESEND_AFTER = 5.0

#: Bytes that an outcome may take beside its result.
_ROW = 256


class _Sent:
    __slots__ = ("at", "chunk", "frames")

    def __init__(self, chunk: HeldChunk, frames: list[bytes], at: float) -> None:
        self.chunk = chunk
        self.frames = frames
        self.at = at


class Replies:
    """The answers under way, in the order in which they were first sent."""

    __slots__ = ("_sent",)

    def __init__(self) -> None:
        self._sent: dict[str, _Sent] = {}

    def __len__(self) -> int:
        return len(self._sent)

    def add(self, id: str, chunk: HeldChunk, frames: list[bytes], now: float) -> None:
        """Keep a message until `acked` names it."""
        chunk.unacked += 1
        self._sent[id] = _Sent(chunk, frames, now)

    def acked(self, id: str) -> HeldChunk | None:
        """Forget a message; return the chunk that it answered, None for an unknown id."""
        sent = self._sent.pop(id, None)
        if sent is None:
            return None
        sent.chunk.unacked -= 1
        return sent.chunk

    def due(self, now: float, *, everything: bool = False) -> list[list[bytes]]:
        """Return the messages that are to be sent again now."""
        again = []
        for sent in self._sent.values():
            if everything or now - sent.at >= RESEND_AFTER:
                sent.at = now
                again.append(sent.frames)
        return again

    def oldest(self) -> float | None:
        """Return when the message that waits longest was last sent, None if there is none."""
        return min([sent.at for sent in self._sent.values()], default=None)


def _too_large(row: OutcomeRow, limit: int, index: ChunkIndex) -> OutcomeRow:
    message = too_large(len(row.result), limit)
    joblog.result_too_large(index, row.position, message)
    error = encode_error(RemoteError("eventmq.errors.ResultTooLarge", message))
    return row._replace(
        kind=int(OutcomeKind.FAILED), content_type=ERROR_TYPE, result=error, countdown=0.0
    )


def _parts(rows: Sequence[OutcomeRow], limit: int) -> list[list[OutcomeRow]]:
    parts: list[list[OutcomeRow]] = [[]]
    size = 0
    for row in rows:
        length = len(row.result) + len(row.content_type) + _ROW
        if parts[-1] and size + length > limit:
            parts.append([])
            size = 0
        parts[-1].append(row)
        size += length
    return parts


def fit_outcomes(body: bytes, limit: int, index: ChunkIndex) -> list[bytes]:
    """Return the same outcomes in bodies no longer than ``limit`` bytes (0: no limit).

    A result that fits into none becomes the failure `ResultTooLarge`, and is logged as that.

    Args:
        body: The outcomes.
        limit: The broker's, in bytes.
        index: Of the chunk that they answer.
    """
    if not limit or len(body) <= limit:
        return [body]
    rows = [OutcomeRow(*row) for row in decode_outcomes(body)]
    rows = [_too_large(r, limit, index) if len(r.result) + _ROW > limit else r for r in rows]
    return [encode_outcomes(part) for part in _parts(rows, limit)]
