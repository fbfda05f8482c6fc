"""The entries about the events that a store keeps until a journal has them.

A store writes the events of a commit (`eventmq.entries.events.events_of`) with it, as one row, and
their numbers follow each other without a gap. It keeps a bounded number of bytes of them: until a
journal has sealed some, the oldest make room and nobody is told; from then on, an event of kind
``gap`` says which were dropped unread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Announce", "EventRow", "OutboxHead", "ReadEvents", "SealEvents"]


class EventRow(NamedTuple):
    """The events of one commit: the number of the first, how many, and their bytes."""

    first: int
    events: int
    #: See `eventmq.events.packed`.
    body: bytes


class OutboxHead(NamedTuple):
    """What a store has of events: numbers from ``first`` and before ``next``.

    ``journal`` is the id of the one that reads them, "" for none so far; ``sealed`` is the last
    number that it has safely.
    """

    first: int
    next: int
    journal: str = ""
    sealed: int = 0


class Announce(NamedTuple):
    """Note at which addresses the broker can be reached, by port. Verdict: None.

    For a journal that reads the store and has something to tell the broker.
    """

    addresses: Mapping[str, str]


class ReadEvents(NamedTuple):
    """Read events that come after a number, as whole rows.

    At least one row if there is one, and no more after ``max_bytes``. Verdict: (list of EventRow,
    OutboxHead).
    """

    after: int
    max_bytes: int


class SealEvents(NamedTuple):
    """Note that a journal has all events up to a number, safely. Verdict: (OutboxHead, taken).

    These are pruned, in slices with this and the next commits. Where events after ``sealed`` have
    been dropped already, an event of kind ``gap`` says which. A journal of another id takes the
    place of the one before if that did not say anything for ``patience`` seconds; else ``taken`` is
    true and nothing is changed.
    """

    journal: str
    sealed: int
    #: Unix time.
    at: float
    patience: float
