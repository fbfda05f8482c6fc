"""What the job manager and a slot on an executor say to each other: MessagePack lists.

To the slot: ``assign epoch chunk count body``, ``take number``, ``keep number``, ``interrupt chunk
position``, ``credit chunk position taken``, ``kill``, ``stop grace``, ``ping``. From it: ``hello
token pid``, ``failed text``, ``event name fields...``, ``note chunk position seconds``, ``taken
number count``, ``bye``. The epoch is the number of deaths that the slot has told: a chunk that was
given before the manager heard of one is lost with it. ``keep`` takes the question ``take`` of that
number back, where nothing was heard for too long.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.interfaces import JobsEnded, PartsYielded, ProgressReported, SlotDied
from eventmq.wire import batches

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.interfaces import PoolEvent

__all__ = ["Ticket", "pack", "pack_event", "read_event", "unpack"]

_EVENTS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in (
    JobsEnded, SlotDied, ProgressReported, PartsYielded,
)}  # fmt: skip

_FIELDS = {name: [field.name for field in fields(kind)] for name, kind in _EVENTS.items()}


class Ticket(NamedTuple):
    """What a slot is told at its start; it travels with the Spark task."""

    #: Of the manager: address and public key.
    endpoint: str
    server_key: bytes
    #: Who the slot is, and what proves it.
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
    return batches.pack(message)


def unpack(data: bytes) -> list[Any]:
    """Decode a message."""
    message: list[Any] = batches.unpack(data, "a word of a slot")
    return message


def pack_event(event: PoolEvent) -> bytes:
    """Encode what a pool tells."""
    name = type(event).__name__
    return pack("event", name, *(getattr(event, field) for field in _FIELDS[name]))


def read_event(slot: int, name: str, values: list[Any]) -> PoolEvent:
    """Return what a pool on an executor told, as of a slot of this one."""
    given = dict(zip(_FIELDS[name], values, strict=True)) | {"slot": slot}
    if "positions" in given:
        given["positions"] = tuple(given["positions"])
    event: PoolEvent = _EVENTS[name](**given)
    return event
