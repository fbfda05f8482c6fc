"""Turns what the broker says about an ended job into its value, or into an exception."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.client.causes import original
from eventmq.errors import (
    ContentNotAllowed,
    EventMQError,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotFound,
    ProtocolError,
    ResultTooLarge,
    ResultUnavailable,
    TimeLimitExceeded,
    UnknownTask,
    WorkerLost,
)
from eventmq.interfaces import Envelope
from eventmq.wire.frames import FRAMES_TYPE, decode_frames
from eventmq.wire.references import ResultHome
from eventmq.wire.results import ERROR_TYPE, PLAIN_TYPE, RemoteError, decode_error

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from eventmq.interfaces import Serializer

__all__ = ["OutcomeReader", "Row", "failure", "with_error", "with_errors"]

#: How a failed job is raised where its error is one of ours.
_OURS: dict[str, type[JobFailed]] = {
    f"eventmq.errors.{kind.__name__}": kind
    for kind in (TimeLimitExceeded, WorkerLost, UnknownTask, ResultTooLarge)
}


class Row(NamedTuple):
    """How a job ended, as the broker says it; ``state`` is "" for an unknown id."""

    id: str
    state: str
    content_type: str
    data: bytes | None


class OutcomeReader:
    """Reads outcomes. Thread-safe.

    Args:
        serializer: Returns the serializer of a content type.
        accept_content: Content types that may be decoded.
        home: Where results are kept; the broker unless told.
    """

    def __init__(
        self,
        serializer: Callable[[str], Serializer],
        accept_content: Container[str],
        home: ResultHome | None = None,
    ) -> None:
        self._serializer = serializer
        self._accept_content = accept_content
        self._home = home or ResultHome()

    def value(self, row: Row) -> Any:
        """Return the result of a job.

        Args:
            row: How it ended.

        Raises:
            JobError: It ended in another way than by success.
            JobNotFound: The broker does not know it.
            ResultUnavailable: The result was not kept.
            ContentError: The result cannot be decoded here.
        """
        job_id, state, content_type, data = row
        if state != "succeeded":
            raise _unsuccessful(row)
        if data is None or not content_type:
            msg = f"job {job_id} succeeded, but its result was not kept, or is not any more"
            raise ResultUnavailable(msg)
        if content_type == FRAMES_TYPE:
            return decode_frames(data)
        content_type, data = self._home.get(job_id, content_type, data)
        if content_type == PLAIN_TYPE:
            return _plain_value(data)
        name, _, rest = content_type.partition(";")
        signature, _, created = rest.partition(";")
        envelope = Envelope(job_id, name, created=_number(created), signature=signature)
        return self._decoder(name, job_id).decode(data, envelope)

    def content(self, name: str, data: bytes, envelope: Envelope) -> Any:
        """Decode something else than a result, such as a published message or a part."""
        if name == FRAMES_TYPE:
            return decode_frames(data)
        return self._decoder(name, envelope.job_id).decode(data, envelope)

    def _decoder(self, name: str, what: str) -> Serializer:
        if name not in self._accept_content:
            msg = f"{what}: the content type {name!r} is not in accept_content"
            raise ContentNotAllowed(msg)
        return self._serializer(name)


def _number(text: str) -> float:
    try:
        return float(text or 0.0)
    except ValueError:
        return 0.0


def _plain_value(data: bytes) -> Any:
    """Return what a plain worker answered: JSON ``{"value": ...}``, else the text."""
    text = data.decode(errors="replace")
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value["value"] if isinstance(value, dict) and "value" in value else value


def _unsuccessful(row: Row) -> EventMQError:
    job_id = row.id
    if row.state == "failed":
        return failure(row)
    if row.state == "cancelled":
        reason = decode_error(row.data).message if row.data else ""
        said = f"job {job_id} was cancelled" + (f": {reason}" if reason else "")
        return JobCancelled(said, job_id=job_id, reason=reason)
    if row.state == "expired":
        return JobExpired(
            f"job {job_id} expired before a worker started it, or its next attempt", job_id=job_id
        )
    if not row.state:
        return JobNotFound(job_id)
    return ProtocolError(f"job {job_id} ended in the state {row.state!r}, which is no end")


def failure(row: Row) -> JobFailed:
    """Return the exception for a failed job, with the original as its cause where possible."""
    if row.data is None:
        return JobFailed(f"job {row.id} failed; its error is not kept any more", job_id=row.id)
    if row.content_type == ERROR_TYPE:
        remote = decode_error(row.data)
    else:
        remote = RemoteError("", row.data.decode(errors="replace"))
    kind = _OURS.get(remote.type, JobFailed)
    shown = remote.type.removeprefix("builtins.")
    said = f"{shown}: {remote.message}" if shown else remote.message
    error = kind(
        f"job {row.id} failed: {remote.message if kind is not JobFailed else said}",
        job_id=row.id,
        remote_type=remote.type,
        remote_message=remote.message,
        remote_traceback=remote.traceback,
    )
    error.__cause__ = original(remote) if kind in {JobFailed, ResultTooLarge} else None
    return error


def with_errors(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to ``info`` with its errors decoded, None where there is none."""
    return {**with_error(info), "attempts": list(map(with_error, info.get("attempts", ())))}


def with_error(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row about a job with its error decoded, None where there is none."""
    return {**row, "error": _error(row.get("error"))}


def _error(data: bytes | None) -> RemoteError | None:
    return decode_error(data) if data else None
