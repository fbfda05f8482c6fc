"""Events as a store keeps them: the bytes that one commit adds, and how they are read again.

The events of a commit are MessagePack, a list of blocks ``[common, ids, columns]``: what the events
of a block have in common and what each has of its own, by the numbers of `Field`, and the ids of
their jobs. A field that is in neither is unknown or does not apply. So nothing is made per event
but an item in a few lists, and what a thousand jobs of one task share is written once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

from eventmq.errors import EventMQError
from eventmq.events.schema import EventKind

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["KIND_CODES", "Block", "Field", "gap", "pack_blocks", "unpack_blocks"]

#: The numbers that stand for kinds in stored events.
KIND_CODES = {kind: code for code, kind in enumerate(EventKind)}


class Field:
    """What a block says of its events. Times are Unix seconds; the numbers never change."""

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
    #: Of jobs that have them not from their headers: these are before the label.
    ROOT = 18
    PARENT = 19
    #: Of a redactor's broker: the body of a job that was admitted, or the result of one that
    #: succeeded, and before it how to decode it (`eventmq.store.events`).
    CONTENT_TYPE = 20
    VALUE = 21


class Block(NamedTuple):
    """Events that have much in common, in order."""

    common: dict[int, Any]
    ids: Sequence[str]
    columns: dict[int, Sequence[Any]]

    def put(self, field: int, values: Sequence[Any]) -> None:
        """Add what each event has of a field: once, where it is the same of all."""
        first = values[0]
        if values.count(first) == len(values):
            self.common[field] = first
        else:
            self.columns[field] = values

    def has(self, field: int) -> bool:
        """Return whether a field is known of the events."""
        return field in self.common or field in self.columns

    def column(self, field: int) -> Sequence[Any]:
        """Return what each event has of a field, None where that is not known."""
        own = self.columns.get(field)
        return own if own is not None else [self.common.get(field)] * len(self.ids)


def pack_blocks(blocks: Sequence[Block]) -> bytes:
    """Encode the events of one commit."""
    return msgpack.packb(blocks)  # type: ignore[no-any-return]


def unpack_blocks(body: bytes) -> list[Block]:
    """Decode the events of one commit.

    Raises:
        EventMQError: They are none.
    """
    try:
        blocks = [Block(*block) for block in msgpack.unpackb(body, strict_map_key=False)]
    except Exception as error:
        raise EventMQError(f"{len(body)} bytes are no packed events") from error
    return blocks


def gap(first: int, last: int, at: float) -> Block:
    """Return the event that says which numbers are missing."""
    code = KIND_CODES[EventKind.GAP]
    common = {Field.KIND: code, Field.AT: at, Field.GAP_FIRST: first, Field.GAP_LAST: last}
    return Block(common, [""], {})
