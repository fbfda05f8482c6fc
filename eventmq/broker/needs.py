"""Which lanes of a queue lack something that the store has. `eventmq.broker.refill` reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.broker.room import LEAST

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from eventmq.broker.lanes import Lane
    from eventmq.broker.room import Room
    from eventmq.entries import LaneKey

__all__ = ["Needs"]


class Needs:
    """Lanes to be looked at for what they lack, and those of them that a worker waits for."""

    __slots__ = ("_demanded", "_lanes")

    def __init__(self) -> None:
        self._lanes: dict[Lane, None] = {}
        self._demanded: set[Lane] = set()

    def note(self, lane: Lane) -> None:
        """Look at a lane: something was taken from it, or is in the store now."""
        self._lanes[lane] = None

    def demand(self, lane: Lane) -> None:
        """Note that somebody waits for what a lane has in the store."""
        self._demanded.add(lane)
        self._lanes[lane] = None

    def forget(self, lane: Lane) -> None:
        """Look at a lane no more."""
        self._lanes.pop(lane, None)

    def take(
        self, lanes: Mapping[LaneKey, Lane], room: Room, now: float
    ) -> Iterator[tuple[Lane, int, int]]:
        """Yield the lanes to be filled, with how many jobs and bytes to read.

        Args:
            lanes: Of the queue; others are forgotten.
            room: The memory that they share.
            now: Unix time.
        """
        n = max(1, len(lanes))
        size = max(min(LEAST, room.size_limit), room.size_limit // n)
        length = room.bytes_limit // n
        left, demanded = room.size_limit - room.size, self._demanded
        for lane in list(self._lanes):
            wanted = lane in demanded and not len(lane)
            most = size if lane.limiter is None or lane.allowance(now) else min(size, LEAST)
            half = len(lane) * 2 < most and lane.bytes * 2 < length and left > 0
            if lane.claiming or lanes.get(lane.key) is not lane:
                del self._lanes[lane]
            elif lane.outside and (wanted or half):
                del self._lanes[lane]
                many = 1 if wanted and room.crowded(len(lanes)) else most - len(lane)
                left -= many
                yield lane, many, max(1, length // 2)
            elif not half or not lane.outside:
                del self._lanes[lane]  # until something is taken from it
        demanded.clear()
