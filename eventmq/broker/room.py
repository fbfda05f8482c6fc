"""How much of the memory of a queue, and of the broker, lanes have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.broker.limiters import Limiters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.broker.lanes import Lane
    from eventmq.entries import LaneKey

__all__ = ["LEAST", "Census", "Room"]

#: Jobs that a lane may have in memory, however many lanes share it, while there is room.
LEAST = 16


class Census:
    """Counts the lanes of all queues of a broker, and knows which are limited."""

    __slots__ = ("coming", "lanes", "limiters")

    def __init__(self) -> None:
        self.lanes = 0
        self.limiters = Limiters()
        #: Queue and key of lanes that may begin with what this turn admits.
        self.coming: set[tuple[str, LaneKey]] = set()


class Room:
    """The memory of one queue, which its lanes share.

    Args:
        size_limit: Jobs that lanes have in memory together.
        bytes_limit: Bytes of their bodies.
    """

    __slots__ = ("bytes", "bytes_limit", "size", "size_limit")

    def __init__(self, size_limit: int, bytes_limit: int) -> None:
        self.size = self.bytes = 0
        self.size_limit, self.bytes_limit = size_limit, bytes_limit

    @property
    def over(self) -> bool:
        """Whether lanes have more than they may."""
        return self.size > self.size_limit or self.bytes > self.bytes_limit

    def crowded(self, lanes: int) -> bool:
        """Say whether so many lanes have used it up that none can give way."""
        full = self.size >= self.size_limit or self.bytes >= self.bytes_limit
        return full and lanes * LEAST > self.size_limit

    def left(self, size: int, length: int) -> None:
        """Count jobs that left, and the bytes of their bodies."""
        self.size -= size
        self.bytes -= length

    def victim(self, lanes: Mapping[LaneKey, Lane], lane: Lane) -> Lane | None:
        """Return which lane leaves a job to the store, None if all may stay.

        Args:
            lanes: Of the queue.
            lane: That has a new job: it gives way if it has more than its share.
        """
        spent = self.bytes > self.bytes_limit
        if not spent and self.size <= self.size_limit:
            return None
        gives = self._choose(lanes, lane, spent=spent)
        return gives if len(gives) > 1 else None

    def _choose(self, lanes: Mapping[LaneKey, Lane], lane: Lane, *, spent: bool) -> Lane:
        n = len(lanes)
        if len(lane) * n > self.size_limit or lane.bytes * n > self.bytes_limit:
            return lane
        if n * LEAST > self.size_limit and len(lane) > 1:
            return lane
        if not spent:
            return max(lanes.values(), key=len)
        several = [each for each in lanes.values() if len(each) > 1]
        return max(several, key=lambda each: each.bytes, default=lane)
