"""Messages between the job manager and a slot on an executor: MessagePack lists.

To the slot: ``assign epoch chunk count body``, ``take number``, ``keep number``, ``interrupt chunk
position``, ``credit chunk position taken``, ``kill``, ``stop grace``, ``ping``. From it: ``hello
token pid``, ``failed text``, ``event name fields...``, ``note chunk position seconds``, ``taken
number count``, ``bye``. The epoch is the number of deaths that the slot has reported: a chunk with
an earlier epoch was assigned before the manager knew of a death, and is lost. ``keep`` cancels the
request ``take`` of that number, where the slot was silent for too long.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq import sdk
from eventmq.sdk import JobsEnded, PartsYielded, ProgressReported, SlotDied

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.sdk import PoolEvent

__all__ = ["Ticket", "pack", "pack_event", "read_event", "unpack"]

_EVENTS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in (
    JobsEnded, SlotDied, ProgressReported, PartsYielded,
)}  # fmt: skip

_FIELDS = {name: [field.name for field in fields(kind)] for name, kind in _EVENTS.items()}


class Ticket(NamedTuple):
    """Parameters of a slot; they travel with the Spark task."""

    #: Address and public key of the manager.
    endpoint: str
    server_key: bytes
    #: Identity of the slot, and the token that authenticates it.
    identity: str
    token: str
    #: Makes the executor of jobs, and its keyword arguments.
    loader: str
    arguments: Mapping[str, Any]
    start_timeout: float
    #: Seconds of silence after which the other side is taken for lost.
    link_timeout: float
    #: Folders that modules are searched in last, where they exist.
    path: tuple[str, ...]


def pack(*message: object) -> bytes:
    """Encode a message."""
    return sdk.pack(message)


def unpack(data: bytes) -> list[Any]:
    """Decode a message."""
    message: list[Any] = sdk.unpack(data, "a message of a slot")
    return message


def pack_event(event: PoolEvent) -> bytes:
    """Encode a pool event."""
    name = type(event).__name__
    return pack("event", name, *(getattr(event, field) for field in _FIELDS[name]))


def read_event(slot: int, name: str, values: list[Any]) -> PoolEvent:
    """Return the event of a pool on an executor, as that of a slot of this pool."""
    decoded = dict(zip(_FIELDS[name], values, strict=True)) | {"slot": slot}
    if "positions" in decoded:
        decoded["positions"] = tuple(decoded["positions"])
    event: PoolEvent = _EVENTS[name](**decoded)
    return event
