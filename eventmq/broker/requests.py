"""The REQUEST that carries leased jobs to a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.headers import Headers, format_headers, parse_headers
from eventmq.wire.bulk import ASK, NOW, encode_chunk
from eventmq.wire.commands import Request

if TYPE_CHECKING:
    from eventmq.broker.peers import Lease

__all__ = ["NO_TIMEOUT", "chunk_frames", "plain_frames"]

#: Seconds, as ``timeout`` for plain workers of a job without one: absent and 0 mean 300 s there.
NO_TIMEOUT = 2_147_483_647


def chunk_frames(lease: Lease, wall: float) -> list[bytes]:
    """Return the REQUEST that carries a chunk to one of our workers.

    Args:
        lease: Whose jobs these are.
        wall: Guarded wall time: where jobs expire, the worker is told it.
    """
    rows = []
    expiring = False
    timeouts: dict[str, float] = {}
    for job, delivery in zip(lease.jobs, lease.deliveries, strict=True):
        if job is None:
            rows.append(("", delivery, 0, "", 0.0, 0.0, b""))
            continue
        text = job.headers
        timeout = timeouts.get(text)
        if timeout is None:
            timeout = timeouts[text] = parse_headers(text).timeout
        if job.expires:
            expiring = True
        rows.append((job.id, delivery, job.attempt, text, timeout, job.expires, job.body))
    headers = f"chunk:{lease.number},{ASK}:1" if lease.asks else f"chunk:{lease.number}"
    if expiring:
        headers += f",{NOW}:{wall:.3f}"
    body = encode_chunk(lease.queue, rows)
    return Request(lease.message_id, lease.queue, headers, body).frames()


def plain_frames(lease: Lease) -> list[bytes]:
    """Return the REQUEST that carries the one job of a lease to a plain worker."""
    job = next(job for job in lease.jobs if job is not None)
    known = parse_headers(job.headers)
    headers = Headers(
        reply_requested=True,
        retry_count=known.retry_count,
        guarantee=known.guarantee or None,
        run_count=known.run_count,
        timeout=known.timeout or float(NO_TIMEOUT),
    )
    return Request(job.id, job.queue, format_headers(headers), job.body).frames()
