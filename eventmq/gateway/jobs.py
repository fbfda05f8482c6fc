"""What a gateway reads of jobs that it submitted: their headers, and where their results are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.errors import ProtocolError
from eventmq.headers import parse_headers
from eventmq.wire.results import is_reference

if TYPE_CHECKING:
    from eventmq.client.handle import Job

__all__ = ["extra_headers", "kept_elsewhere"]


def extra_headers(text: str) -> dict[str, str]:
    """Return the headers that a caller, a middleware or a gateway added.

    Args:
        text: Headers as they are on the wire, in listings and in topics; those of a malformed text
            are none.
    """
    try:
        return dict(parse_headers(text).extra)
    except ProtocolError:
        return {}


def kept_elsewhere(job: Job[Any]) -> bool:
    """Return whether the result of an ended job is in a result backend, so ``get()`` may block.

    Args:
        job: As ``app.follow_raw`` hands it to its callback.
    """
    return job.row is not None and is_reference(job.row.content_type)
