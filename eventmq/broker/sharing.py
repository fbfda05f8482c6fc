"""In which order one chunk takes jobs of several lanes: by rank, or by who was served least."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from eventmq.broker.lanes import Lane, Load, Picker
    from eventmq.job import Job

__all__ = ["allowed", "share", "wake_at"]

#: Lanes that are asked of the store at a time.
_EARLY = 16


def allowed(lanes: list[Lane], now: float, floor: int) -> tuple[list[Lane], int]:
    """Return the lanes that no limit blocks, and the least that one of them was served.

    Lanes that were blocked, or are new, begin there: what they did not ask for, or were not given,
    is no credit over others.

    Args:
        lanes: Those that a worker knows.
        now: Unix time.
        floor: What was returned last.
    """
    free: list[Lane] = []
    for lane in lanes:
        if lane.allowance(now):
            free.append(lane)
        else:
            lane.fresh = True
    floor = min((lane.served for lane in free if not lane.fresh), default=floor)
    for lane in free:
        if lane.fresh:
            lane.served = max(lane.served, floor)
            lane.fresh = False
    return free, floor


def wake_at(lanes: Iterable[Lane], now: float) -> float | None:
    """Return when a limiter lets the next job start, None where no job waits for that."""
    limiters = {lane.limiter for lane in lanes if lane.limiter is not None}
    wakes = [limiter.wake_at(now) for limiter in limiters]
    return min((wake for wake in wakes if wake is not None), default=None)


# hot loop: benchmarks/drain.py
def share(
    lanes: list[Lane],
    pick: Callable[[Lane], Picker],
    taken: list[Job],
    load: Load,
    now: float,
    *,
    fair: bool,
) -> list[Lane]:
    """Take jobs of lanes, of each what its limits allow; return those to be read from the store.

    Args:
        lanes: Those that may be taken from.
        pick: Makes the picker of a lane.
        taken: Where the jobs go.
        load: What the chunk may hold.
        now: Unix time.
        fair: The lane that was served least comes first, job by job; else ranks decide, and
            nothing is taken after a job that is in the store only.
    """
    heap: list[tuple[int, tuple[int, int], int]] = []
    for place, lane in enumerate(lanes):
        if (first := lane.first) is not None:
            heap.append((lane.served if fair else 0, first, place))
    heapify(heap)
    pickers: dict[int, Picker] = {}
    quota: dict[int, int] = {}
    dry: list[Lane] = []
    size, left = 0, load.seconds
    while heap and len(taken) < load.jobs:
        _, _, place = heappop(heap)
        lane = lanes[place]
        if place not in pickers:
            pickers[place], quota[place] = pick(lane), lane.allowance(now)
        picker = pickers[place]
        if picker.dry:  # what comes next is in the store
            dry.append(lane)
            if fair and len(dry) < _EARLY:
                continue
            break
        start, before = len(taken), picker.spent
        most = min(load.jobs, start + (1 if fair else quota[place]))
        bound = heap[0][1] if heap and not fair else None
        part = load._replace(seconds=before + left, jobs=most)
        full = picker.take(taken, size, part, bound) < 0
        got = len(taken) - start
        size += sum(len(job.body) for job in taken[start:])
        left -= picker.spent - before
        quota[place] -= got
        lane.served += got
        if full and len(taken) < most:
            break  # no more seconds or bytes
        if quota[place] > 0 and (following := picker.next) is not None:
            heappush(heap, (lane.served if fair else 0, following, place))
    return dry
