"""How much of the memory of a queue, and of the broker, lanes have."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.broker.lanes import Lane
    from eventmq.broker.limiters import Limiter
    from eventmq.entries import LaneKey

__all__ = ["LEAST", "Census", "victim"]

#: Jobs that a lane may have in memory, however many lanes share it, while there is room.
LEAST = 16


class Census:
    """Counts the lanes of all queues of a broker, and knows which are limited."""

    __slots__ = ("coming", "lanes", "limiters")

    def __init__(self) -> None:
        self.lanes = 0
        self.limiters: Mapping[LaneKey, Limiter] = {}
        #: Queue and key of lanes that may begin with what this turn admits.
        self.coming: set[tuple[str, LaneKey]] = set()


def victim(
    lanes: Mapping[LaneKey, Lane], lane: Lane, size: int, length: int, *, spent: bool
) -> Lane:
    """Return which lane leaves a job to the store: this one if it has more than its share.

    Args:
        lanes: Of the queue.
        lane: That has a new job.
        size: Jobs that they may have in memory together.
        length: Bytes of their bodies.
        spent: Whether they have more bytes than that.
    """
    n = len(lanes)
    if len(lane) * n > size or lane.bytes * n > length:
        return lane
    if n * LEAST > size and len(lane) > 1:
        return lane
    if not spent:
        return max(lanes.values(), key=len)
    several = [each for each in lanes.values() if len(each) > 1]
    return max(several, key=lambda each: each.bytes, default=lane)
