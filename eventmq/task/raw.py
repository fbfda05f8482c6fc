"""Jobs without a task's code: by the name of the task, or with a body that is sent as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eventmq.client.templates import Written
from eventmq.errors import ProtocolError, SettingsError
from eventmq.headers import write_headers
from eventmq.task import values
from eventmq.task.arity import signature_of
from eventmq.task.calls import CallOptions
from eventmq.task.options import TaskOptions
from eventmq.task.template import make_template
from eventmq.wire.frames import FRAMES_TYPE, encode_frames, service_task

if TYPE_CHECKING:
    from eventmq.client.templates import Template
    from eventmq.task.task import Host

__all__ = ["header_text", "named_arguments", "named_template", "write_raw"]


def named_template(
    host: Host, name: str, options: Mapping[str, Any]
) -> tuple[Template, str | None]:
    """Return the template of a job for a task by its name, and the id that the caller chose.

    Raises:
        SettingsError: An option is not allowed.
    """
    values.text("the name of the task", name)
    call = CallOptions.read(options)
    template = make_template(host, name, TaskOptions(), call, signature_of(_anything))
    return template, call.job_id


def _anything(*args: Any, **kwargs: Any) -> None:
    """Stand for a function that nobody knows here: only keyword arguments have names."""


def named_arguments(
    name: str, args: object, kwargs: object
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a job for a task by its name, checked."""
    return values.arguments(args, kwargs, f"app.send({name!r}, ")


def write_raw(queue: str, body: object, headers: Mapping[str, Any] | None, job_id: str) -> Written:
    """Return a job with this body.

    Args:
        queue: Name of the queue.
        body: Bytes, or a list of frames for whoever serves the queue as a majordomo service.
        headers: Names as on the wire; True is a header without a value.
        job_id: Its id.

    Raises:
        SettingsError: A value is not allowed.
    """
    values.text("queue", queue)
    values.text("job_id", job_id)
    if isinstance(body, (list, tuple)):
        return _write_frames(queue, body, headers or {}, job_id)
    if not isinstance(body, (bytes, bytearray, memoryview)):
        values.refuse("body", type(body).__name__, "bytes")
    return Written(job_id, queue, header_text(headers or {}), bytes(body))


def _write_frames(
    queue: str, frames: Sequence[object], headers: Mapping[str, Any], job_id: str
) -> Written:
    for frame in frames:
        if not isinstance(frame, (bytes, bytearray, memoryview)):
            values.refuse("a frame of the body", type(frame).__name__, "bytes")
    own = {"task": service_task(queue), "content-type": FRAMES_TYPE}
    text = header_text({**headers, **own})
    return Written(job_id, queue, text, encode_frames(frames))  # type: ignore[arg-type]


def header_text(headers: Mapping[str, Any]) -> str:
    """Return headers as they are written on the wire; True is a header without a value.

    Raises:
        SettingsError: They are not what they should be.
    """
    if not isinstance(headers, Mapping):
        values.refuse("headers", headers, "a mapping of names to values")
    pairs = [(str(name), "" if said is True else str(said)) for name, said in headers.items()]
    try:
        text = write_headers(pairs)
    except ProtocolError as error:
        raise SettingsError(str(error)) from error
    if not {"batch", "chunk"}.isdisjoint(headers):
        raise SettingsError("the headers batch and chunk are made by the client, not by callers")
    return text
