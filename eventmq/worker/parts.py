"""How a part of a stream is written: like a result, signed where its serializer signs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.errors import ResultTooLarge, SerializationError
from eventmq.interfaces import Envelope
from eventmq.worker.failures import error_text
from eventmq.worker.streaming import PartError

if TYPE_CHECKING:
    from eventmq.interfaces import JobContext
    from eventmq.worker.routes import Route
    from eventmq.worker.streaming import Encode

__all__ = ["part_encoder"]


# hot loop: benchmarks/stream.py
def part_encoder(route: Route, job: JobContext, longest: int, *, started: float) -> Encode:
    """Return what encodes the parts of a job, one after the other.

    Args:
        route: Of the job.
        job: Which it is: the place of a part in it is signed too.
        longest: Bytes of the longest part.
        started: Unix time, which is signed too.
    """
    encode, kind, job_id = route.encode, route.result_type, job.id
    index = 0

    def encode_part(part: object) -> tuple[str, bytes]:
        nonlocal index
        envelope = Envelope(f"{job_id}.{index}", kind, created=started)
        try:
            payload, signature = encode(part, envelope)
        except Exception as error:
            what = f"part {index}, a {type(part).__name__}, cannot be serialised"
            raise PartError(SerializationError(f"{what}: {error_text(error)}")) from error
        if len(payload) > longest:
            msg = f"part {index} has {len(payload)} bytes; the limit is {longest}"
            raise PartError(ResultTooLarge(msg))
        index += 1
        return (f"{kind};{signature};{started!r}" if signature else kind), payload

    return encode_part
