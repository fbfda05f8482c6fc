"""Bodies and results that are lists of frames: content type ``frames``, as MessagePack.

A job with such a body is for a *service*: a foreign worker behind a gateway, or a task declared
for it. It names the service's task, so that no other worker is offered it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.errors import ProtocolError, SerializationError
from eventmq.wire.bulk import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "FRAMES_TYPE",
    "decode_arguments",
    "decode_frames",
    "encode_frames",
    "encode_value",
    "is_service",
    "service_task",
]

#: The content type.
FRAMES_TYPE = "frames"

_SERVICE = "majordomo/"


def service_task(service: str) -> str:
    """Return the task name that the jobs of a service have."""
    return f"{_SERVICE}{service}"


def is_service(task: str) -> bool:
    """Say whether a task name is that of a service."""
    return task.startswith(_SERVICE)


def encode_frames(frames: Sequence[bytes]) -> bytes:
    """Return frames as a body."""
    return pack(list(map(bytes, frames)))


def decode_frames(data: bytes) -> list[bytes]:
    """Return the frames of a body.

    Raises:
        ProtocolError: It has none.
    """
    frames = unpack(data, "the body")
    if not isinstance(frames, list) or not all(isinstance(frame, bytes) for frame in frames):
        raise ProtocolError("a body of frames is a list of bytes", code="bad-body")
    return frames


def decode_arguments(data: bytes, _: object) -> tuple[tuple[list[bytes]], dict[str, Any]]:
    """Return the arguments of a service's task: the list of frames."""
    return (decode_frames(data),), {}


def encode_value(value: object, _: object) -> tuple[bytes, str]:
    """Return what a service's task returned or yielded as frames, and no signature; None is none.

    Raises:
        SerializationError: It is not bytes, nor a list of bytes.
    """
    if value is None:
        value = []
    if isinstance(value, (bytes, bytearray, memoryview)):
        value = [value]
    if isinstance(value, (list, tuple)) and all(
        isinstance(frame, (bytes, bytearray, memoryview)) for frame in value
    ):
        return encode_frames(value), ""
    msg = f"a task for a majordomo service returns bytes or a list of bytes, not {type(value)}"
    raise SerializationError(msg)
