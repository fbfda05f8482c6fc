"""Why a delivery of a job was no success, as its worker says it; not yet what follows from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from eventmq.entries import Attempt
from eventmq.wire.results import ERROR_TYPE, RemoteError, encode_error

if TYPE_CHECKING:
    from eventmq.job import Job

__all__ = ["MAX_ERROR", "Failure"]

#: Bytes of the error of one attempt; of a longer one only that it was there is kept.
MAX_ERROR = 128 * 1024


class Failure(NamedTuple):
    """What a worker says of a job that did not end."""

    worker: str
    started: float
    ran: float
    content_type: str
    error: bytes

    def attempt(self, job: Job, now: float) -> Attempt:
        """Return the entry of the job's history, before its attempt is counted up."""
        content_type, error = self.content_type, self.error
        if len(error) > MAX_ERROR:
            msg = f"an error of {len(error)} bytes, which is too long to be kept"
            content_type, error = ERROR_TYPE, encode_error(RemoteError("", msg))
        return Attempt(
            job.id, job.attempt, job.delivery, now, self.started, self.ran, self.worker,
            content_type, error,
        )  # fmt: skip
