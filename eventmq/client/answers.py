"""Answers: checks what the broker answers to ``get`` and ``stream``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.errors import ProtocolError
from eventmq.wire.batches import unpack
from eventmq.wire.commands import Credit
from eventmq.wire.outcomes import read_row
from eventmq.wire.streams import END, PART, PartHead, parse_end

if TYPE_CHECKING:
    from eventmq.client.requests import PendingCall
    from eventmq.wire.commands import Reply

__all__ = ["add_rows", "credit_frames", "read_answer"]


def add_rows(call: PendingCall, rows: object) -> None:
    """Add the rows of a ``get`` to its answers, without those that it has already."""
    if not isinstance(rows, list):
        raise ProtocolError("the answer to get is no list", code="bad-body")
    for row in map(read_row, rows):
        if row[0] in call.ids:
            call.ids.discard(row[0])
            call.add(row)


def read_answer(reply: Reply) -> Any:
    """Return a batch (head, bytes), the end (head, row), or the first answer, a map.

    Raises:
        ProtocolError: It is none of them.
    """
    outcome = reply.outcome or ""
    if outcome.startswith(PART):
        return PartHead.parse(outcome), reply.result
    answer = unpack(reply.result, "the answer to stream")
    if outcome.startswith(END):
        match answer:
            case [str(), str(), str(), bytes() | None]:
                return parse_end(outcome), answer
    elif isinstance(answer, dict) and {"delivery", "base", "replayable"} <= answer.keys():
        return answer
    raise ProtocolError("an answer to stream is malformed", code="bad-body")


def credit_frames(message_id: str, call: PendingCall) -> list[bytes]:
    """Return the CREDIT of a call, whose arguments say which parts were read."""
    delivery, taken = call.arguments["delivery"], call.arguments["taken"]
    return Credit(message_id, call.id, str(delivery), str(taken)).frames()
