"""Stored form of events: encodes and decodes the events of one commit.

The events of a commit are MessagePack, a list of blocks ``[common, ids, columns]``: the fields that
all events of the block share, the ids of their jobs, and the fields that differ, both by the
numbers of `Field`. A field in neither is unknown or does not apply. So an event costs one item in a
few lists, and values that a thousand jobs share are written once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

from eventmq.errors import EventMQError
from eventmq.events.schema import EventKind

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["KIND_CODES", "Block", "Field", "gap", "pack_blocks", "unpack_blocks"]

#: Kind -> its number in stored events.
KIND_CODES = {kind: code for code, kind in enumerate(EventKind)}


class Field:
    """Fields of events in a block. Times are Unix seconds; the numbers never change."""

    KIND = 0
    AT = 1
    QUEUE = 2
    #: List of task, root, parent, trace, schedule and release; "" for none.
    LABEL = 3
    ATTEMPT = 4
    DELIVERY = 5
    WORKER = 6
    LEASED = 7
    #: When the job became ready.
    READY = 8
    STARTED = 9
    RAN = 10
    BYTES_IN = 11
    BYTES_OUT = 12
    DUE = 13
    ERROR_TYPE = 14
    FINGERPRINT = 15
    GAP_FIRST = 16
    GAP_LAST = 17
    #: Root and parent that are not from the headers of the job; they win over the label.
    ROOT = 18
    PARENT = 19
    #: With the setting ``redactor`` only: the body of an admitted job, or the result of one that
    #: succeeded, and its content type (`eventmq.store.events`).
    CONTENT_TYPE = 20
    VALUE = 21


class Block(NamedTuple):
    """Events of one commit with common fields, in order."""

    common: dict[int, Any]
    ids: Sequence[str]
    columns: dict[int, Sequence[Any]]

    def put(self, field: int, values: Sequence[Any]) -> None:
        """Add the values of a field, one per event; equal values are stored once."""
        first = values[0]
        if values.count(first) == len(values):
            self.common[field] = first
        else:
            self.columns[field] = values

    def has(self, field: int) -> bool:
        """Return whether the events have a field."""
        return field in self.common or field in self.columns

    def column(self, field: int) -> Sequence[Any]:
        """Return the value of a field for each event, None if it is not known."""
        own = self.columns.get(field)
        return own if own is not None else [self.common.get(field)] * len(self.ids)


def pack_blocks(blocks: Sequence[Block]) -> bytes:
    """Encode the events of one commit."""
    return msgpack.packb(blocks)  # type: ignore[no-any-return]


def unpack_blocks(body: bytes) -> list[Block]:
    """Decode the events of one commit.

    Raises:
        EventMQError: The bytes are no packed events.
    """
    try:
        blocks = [Block(*block) for block in msgpack.unpackb(body, strict_map_key=False)]
    except Exception as error:
        raise EventMQError(f"{len(body)} bytes are no packed events") from error
    return blocks


def gap(first: int, last: int, at: float) -> Block:
    """Return the gap event with the first and the last number that are missing."""
    code = KIND_CODES[EventKind.GAP]
    common = {Field.KIND: code, Field.AT: at, Field.GAP_FIRST: first, Field.GAP_LAST: last}
    return Block(common, [""], {})
