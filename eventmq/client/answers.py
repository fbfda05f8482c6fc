"""What the answers to the calls ``get`` and ``stream`` say, and what readers of a stream say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.errors import ProtocolError
from eventmq.wire.bulk import unpack
from eventmq.wire.commands import Credit
from eventmq.wire.streams import END, PART, PartHead, parse_end

if TYPE_CHECKING:
    from eventmq.client.errands import Question
    from eventmq.wire.commands import Reply

__all__ = ["credit_frames", "read_answer", "read_row", "take_rows"]


def credit_frames(message_id: str, question: Question) -> list[bytes]:
    """Return the CREDIT of a question, whose arguments say what was taken."""
    delivery, taken = question.arguments["delivery"], question.arguments["taken"]
    return Credit(message_id, question.id, str(delivery), str(taken)).frames()


def read_answer(reply: Reply) -> Any:
    """Return a batch (head, bytes), the end (head, row), or the map that comes first.

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


def take_rows(question: Question, rows: object) -> None:
    """Keep the rows of a ``get`` that answer something new."""
    if not isinstance(rows, list):
        raise ProtocolError("the answer to get is no list", code="bad-body")
    for row in map(read_row, rows):
        if row[0] in question.ids:
            question.ids.discard(row[0])
            question.add(row)


def read_row(row: object) -> list[Any]:
    """Return how a job ended: id, state, content type and bytes or None.

    Raises:
        ProtocolError: It is none of that.
    """
    match row:
        case [str() as job_id, str() as state, str() as content_type, bytes() | None as result]:
            return [job_id, state, content_type, result]
    raise ProtocolError("an answer to get has a malformed row", code="bad-body")
