"""What an ERROR from the broker means to the caller."""

from __future__ import annotations

from eventmq.errors import (
    DuplicateJob,
    EventMQError,
    JobNotFound,
    MessageTooLarge,
    NotAllowed,
    ProtocolError,
    QueueFull,
    QueueNotFound,
    RateLimited,
    ResultUnavailable,
    SubmitError,
)

__all__ = ["refusal"]

_SUBMIT: dict[str, type[SubmitError]] = {
    "queue-full": QueueFull,
    "store-full": QueueFull,
    "too-many-keys": QueueFull,
    "too-large": MessageTooLarge,
    "too-many-lanes": QueueFull,
    "rate-limited": RateLimited,
}


def refusal(code: str, text: str, job_id: str) -> EventMQError:
    """Return the exception for an ERROR code; the table of codes is in the protocol page."""
    if code == "duplicate":
        return DuplicateJob(f"job {text} has the same unique key", job_id=text)
    kind = _SUBMIT.get(code)
    if kind is not None:
        return kind(text, job_id=job_id)
    if code == "parts-gone":
        return ResultUnavailable(text)
    if code in {"not-allowed", "not-a-stream"}:
        return NotAllowed(text)
    if code == "job-not-found":
        return JobNotFound(job_id)
    if code == "queue-not-found":
        return QueueNotFound(text)
    return ProtocolError(f"the broker refused: {text}", code=code)
