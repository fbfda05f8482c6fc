"""Bodies of jobs of any size, which a broker sends in parts of 1 MiB."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventmq import EventMQ

__all__ = ["begin_body"]


def begin_body(app: EventMQ, job_id: str) -> Callable[[], bytes]:
    """Ask for the body of a job; the returned function waits for it.

    Args:
        app: Client of the broker.
        job_id: Id of the job.

    Returns:
        A function that returns the body, or what the broker still has of it: b"" for a job that
        has ended and does not keep it. It raises what `EventMQ.ask` raises.
    """
    answer = app.begin_ask("info", {"id": job_id, "args": True, "offset": 0})

    def read() -> bytes:
        row = answer()
        body: bytes = row["body"] or b""
        while row["body"] and len(body) < row["body_bytes"]:
            row = app.ask("info", {"id": job_id, "args": True, "offset": len(body)})
            body += row["body"] or b""
        return body

    return read
