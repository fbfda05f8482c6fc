"""Outcomes: turns answers of the broker about ended jobs into values and exceptions.

`OutcomeReader` decodes results; `failure` and `refusal` map errors to exceptions.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.errors import (
    ContentNotAllowed,
    DuplicateJob,
    EventMQError,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotFound,
    MessageTooLarge,
    NotAllowed,
    ProtocolError,
    QueueFull,
    QueueNotFound,
    RateLimited,
    ResultTooLarge,
    ResultUnavailable,
    SubmitError,
    TimeLimitExceeded,
    UnknownTask,
    WorkerLost,
)
from eventmq.graph import TAKES
from eventmq.headers import parse_headers
from eventmq.interfaces import Envelope
from eventmq.main_module import main_name
from eventmq.text import printable
from eventmq.wire.batches import unpack
from eventmq.wire.results import (
    ERROR_TYPE,
    FRAMES_TYPE,
    LEGACY_TYPE,
    REFERENCE,
    RemoteError,
    ResultLocation,
    decode_error,
    decode_frames,
    rebuild,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from eventmq.interfaces import Serializer

__all__ = [
    "LOG_CUT",
    "SHOWN",
    "EndRow",
    "OutcomeReader",
    "failure",
    "log_text",
    "original",
    "read_row",
    "refusal",
    "with_error",
    "with_errors",
]


#: Text in place of a log that the broker has cut.
LOG_CUT = "[cut: what later attempts logged fills max_job_log_bytes]\n"

#: Content types of arguments that may be decoded for display, since decoding them runs no code.
SHOWN = frozenset({"json", "msgpack"})


class EndRow(NamedTuple):
    """The broker's answer about an ended job; ``state`` is "" for an unknown id."""

    id: str
    state: str
    content_type: str
    data: bytes | None


class OutcomeReader:
    """Decodes results, parts and published messages. Thread-safe.

    Args:
        serializer: Returns the serializer of a content type.
        accept_content: Content types that may be decoded.
        location: Where results are stored; by default the broker.
    """

    def __init__(
        self,
        serializer: Callable[[str], Serializer],
        accept_content: Container[str],
        location: ResultLocation | None = None,
    ) -> None:
        self._serializer = serializer
        self._serializers: dict[str, Serializer] = {}
        self._accept_content = accept_content
        self._location = location or ResultLocation()

    def value(self, row: EndRow) -> Any:
        """Return the result of a job.

        Args:
            row: The broker's answer.

        Raises:
            JobError: The job did not succeed.
            JobNotFound: The broker does not know the job.
            ResultUnavailable: The result is not kept.
            ContentError: The result cannot be decoded here.
        """
        job_id, state, content_type, data = row
        if state != "succeeded":
            raise _unsuccessful(row)
        if data is None or not content_type:
            raise ResultUnavailable(f"job {job_id} succeeded, but its result is not kept")
        if content_type == FRAMES_TYPE:
            return decode_frames(data)
        if content_type.startswith(REFERENCE):
            content_type, data = self._location.get(job_id, content_type, data)
        if content_type == LEGACY_TYPE:
            return _legacy_value(data)
        name, _, rest = content_type.partition(";")
        signature, _, created = rest.partition(";")
        envelope = Envelope(job_id, name, created=_number(created), signature=signature)
        return self._decoder(name, job_id).decode(data, envelope)

    def with_arguments(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to ``info`` with the decoded arguments of the job, for `Job.info`.

        Args:
            row: The broker's answer to a call with ``args``.
        """
        info = with_errors(row)
        body, size = info.pop("body", None), info.pop("body_bytes", None)
        arguments: tuple[Any, Any] = (None, None)
        note = ""
        try:
            if size is None:
                raise ResultUnavailable(
                    "the broker is of an earlier version, which does not send them"
                )
            if body is None:
                many = f"they have {size} bytes, too many to be shown"
                raise ResultUnavailable(many if size else "they are not kept")
            arguments = self._arguments(info, body)
        except (EventMQError, ValueError, TypeError, KeyError) as error:
            note = str(error) if isinstance(error, EventMQError) else "they cannot be decoded"
        return {**info, "args": arguments[0], "kwargs": arguments[1], "args_note": note}

    def _arguments(self, info: Mapping[str, Any], body: bytes) -> tuple[Any, Any]:
        headers, job_id = parse_headers(info["headers"]), info["id"]
        name = headers.content_type
        if TAKES in headers.graph:  # the inputs, results of other jobs, are not shown
            with suppress(ProtocolError):
                match unpack(body, "the body"):
                    case [bytes(payload), bytes()]:
                        body = payload
        if name == FRAMES_TYPE:
            return decode_frames(body), {}
        if not name:  # a legacy job
            _, call = json.loads(body)
            return call["args"], call["kwargs"]
        if name not in SHOWN:
            shown = " and ".join(sorted(SHOWN))
            msg = f"they are {len(body)} bytes of {name}: only {shown} are decoded to be shown"
            raise ContentNotAllowed(msg)
        args, kwargs = self._decoder(name, job_id).decode(body, Envelope(job_id, name))
        return args, kwargs

    def content(self, name: str, data: bytes, envelope: Envelope) -> Any:
        """Decode a published message, or a part of a stream."""
        if name == FRAMES_TYPE:
            return decode_frames(data)
        return self._decoder(name, envelope.job_id).decode(data, envelope)

    def _decoder(self, name: str, subject: str) -> Serializer:
        if name not in self._accept_content:
            raise ContentNotAllowed(
                f"{subject}: the content type {name!r} is not in accept_content"
            )
        serializer = self._serializers.get(name)
        if serializer is None:
            serializer = self._serializers[name] = self._serializer(name)
        return serializer


def _number(text: str) -> float:
    try:
        return float(text or 0.0)
    except ValueError:
        return 0.0


def _legacy_value(data: bytes) -> Any:
    """Return the value of a legacy worker's answer: JSON ``{"value": ...}``, else text."""
    text = data.decode(errors="replace")
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value["value"] if isinstance(value, dict) and "value" in value else value


#: Control characters that stay in the message of an error; commands and logs make one line of it.
_LINES = "\n\t"


def failure(row: EndRow) -> JobFailed:
    """Return the exception for a failed job, with the original as its cause where possible."""
    if row.data is None:
        return JobFailed(f"job {row.id} failed; its error is not kept any more", job_id=row.id)
    if row.content_type == ERROR_TYPE:
        remote = decode_error(row.data)
    else:
        remote = RemoteError("", row.data.decode(errors="replace"))
    kind = _JOB_FAILED_TYPES.get(remote.type, JobFailed)
    type_name = remote.type.removeprefix("builtins.")
    described = f"{type_name}: {remote.message}" if type_name else remote.message
    text = remote.message if kind is not JobFailed else described
    error = kind(
        f"job {row.id} failed: {printable(text, keep=_LINES)}",
        job_id=row.id,
        remote_type=remote.type,
        remote_message=remote.message,
        remote_traceback=remote.traceback,
    )
    error.__cause__ = original(remote) if kind in {JobFailed, ResultTooLarge} else None
    return error


#: Error mapping: class name of an error of EventMQ -> exception for a failed job.
_JOB_FAILED_TYPES: dict[str, type[JobFailed]] = {
    f"eventmq.errors.{kind.__name__}": kind
    for kind in (TimeLimitExceeded, WorkerLost, UnknownTask, ResultTooLarge)
}


def _unsuccessful(row: EndRow) -> EventMQError:
    job_id = row.id
    if row.state == "failed":
        return failure(row)
    if row.state == "cancelled":
        reason = decode_error(row.data).message if row.data else ""
        text = f"job {job_id} was cancelled" + (
            f": {printable(reason, keep=_LINES)}" if reason else ""
        )
        return JobCancelled(text, job_id=job_id, reason=reason)
    if row.state == "expired":
        return JobExpired(
            f"job {job_id} expired before a worker started it, or its next attempt", job_id=job_id
        )
    if not row.state:
        return JobNotFound(job_id)
    return ProtocolError(f"job {job_id} cannot have ended in the state {row.state!r}")


def original(remote: RemoteError) -> Exception | None:
    """Return the worker's exception rebuilt, or None if its class is not imported here."""
    return rebuild(remote, _find_class)


def _find_class(dotted: str) -> type[Exception] | None:
    parts = dotted.split(".")
    for end in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:end])
        module = sys.modules.get(name)
        if module is None and name == main_name():
            module = sys.modules["__main__"]
        if module is not None:
            return _class_in(module, parts[end:])
    return None


def _class_in(module: object, path: list[str]) -> type[Exception] | None:
    value: object = module
    for part in path:
        value = vars(value).get(part) if hasattr(value, "__dict__") else None
    return value if isinstance(value, type) and issubclass(value, Exception) else None


def with_errors(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to ``info`` with decoded errors, and None for missing errors and times."""
    attempts = [_with_times(with_error(row)) for row in info.get("attempts", ())]
    return {**_with_times(with_error(info)), "attempts": attempts}


def log_text(info: Mapping[str, Any]) -> str:
    """Return the kept log of a job, for `Job.logs`: each attempt after a line with its number.

    Args:
        info: The broker's answer to ``info`` with ``logs``.

    Raises:
        ResultUnavailable: The broker keeps no logs of jobs.
    """
    if "logs" not in info:
        raise ResultUnavailable("the broker is of an earlier version, which keeps no logs of jobs")
    return "".join(f"attempt {log['attempt']}:\n{log['text'] or LOG_CUT}" for log in info["logs"])


def _with_times(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with None for missing times, which are 0.0 on the wire."""
    return {name: None if name in _TIMES and not row[name] else row[name] for name in row}


def with_error(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row about a job with its error decoded, None if it has none."""
    return {**row, "error": _error(row.get("error"))}


#: Fields of rows about jobs that are Unix times.
_TIMES = frozenset({"due", "expires", "started", "finished", "leased"})


def _error(data: bytes | None) -> RemoteError | None:
    return decode_error(data) if data else None


def refusal(code: str, text: str, job_id: str) -> EventMQError:
    """Return the exception for an ERROR code; the codes are in ``docs/protocol.rst``."""
    if code == "duplicate":
        return DuplicateJob(f"job {text} has the same unique key", job_id=text)
    kind = _SUBMIT_ERRORS.get(code)
    if kind is not None:
        return kind(text, job_id=job_id)
    if code == "job-not-found":
        return JobNotFound(job_id)
    if code in _CALL_ERRORS:
        return _CALL_ERRORS[code](text)
    return ProtocolError(f"the broker refused: {text}", code=code)


#: Error mapping: ERROR code of a refused call -> exception.
_CALL_ERRORS: dict[str, type[EventMQError]] = {
    "parts-gone": ResultUnavailable,
    "not-allowed": NotAllowed,
    "not-a-stream": NotAllowed,
    "queue-not-found": QueueNotFound,
}


#: Error mapping: ERROR code of a refused submission -> exception.
_SUBMIT_ERRORS: dict[str, type[SubmitError]] = {
    "queue-full": QueueFull,
    "store-full": QueueFull,
    "too-many-keys": QueueFull,
    "too-large": MessageTooLarge,
    "too-many-subqueues": QueueFull,
    "rate-limited": RateLimited,
}


def read_row(row: object) -> list[Any]:
    """Return the checked row of an ended job: id, state, content type and bytes or None.

    Raises:
        ProtocolError: The row is malformed.
    """
    match row:
        case [str() as job_id, str() as state, str() as content_type, bytes() | None as result]:
            return [job_id, state, content_type, result]
    raise ProtocolError("an answer to get has a malformed row", code="bad-body")
