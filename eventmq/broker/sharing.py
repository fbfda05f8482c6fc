"""How one chunk takes jobs of lanes that have limits or keys: as many as they may give, in turn."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventmq.broker.lanes import Lane, Load, Picker, Turn
    from eventmq.job import Job

__all__ = ["share"]

#: Lanes that are asked of the store at a time.
_EARLY = 16


# hot loop: benchmarks/drain.py
def share(
    follow: Callable[[], Lane | None],
    pick: Callable[[Lane], Picker],
    taken: list[Job],
    load: Load,
    now: float,
    *,
    fair: bool,
) -> list[Lane]:
    """Take jobs of lanes, of each what its limits allow; return those to be read from the store.

    Args:
        follow: Returns the next lane that may be taken from, the one whose turn it is first.
        pick: Makes the picker of a lane.
        taken: Where the jobs go.
        load: What the chunk may hold.
        now: Unix time.
        fair: The lane that was served least comes first, job by job; else ranks decide, and
            nothing is taken after a job that is in the store only.
    """
    heap: list[tuple[Turn, int, Picker]] = []  # of opened lanes, by whose turn it is
    quota: dict[Lane, int] = {}
    dry: list[Lane] = []
    size, left = 0, load.seconds
    lane = follow()
    turn = None if lane is None else lane.turn if fair else lane.first
    while len(taken) < load.jobs and (turn is not None or heap):
        if lane is not None and turn is not None and (not heap or turn < heap[0][0]):
            picker, quota[lane] = pick(lane), lane.allowance(now)
            lane = follow()
            turn = None if lane is None else lane.turn if fair else lane.first
        else:
            picker = heappop(heap)[2]
        mine = picker.lane
        if picker.dry:  # what comes next is in the store
            dry.append(mine)
            if fair and len(dry) < _EARLY:
                continue
            break
        rival = heap[0][0] if heap else None
        if turn is not None and (rival is None or turn < rival):
            rival = turn
        start, before = len(taken), picker.spent
        most = quota[mine]
        if fair and rival is not None:
            most = min(most, max(1, rival[0] - mine.served))
        most = min(load.jobs, start + most)
        part = load._replace(seconds=before + left, jobs=most)
        full = picker.take(taken, size, part, None if fair else rival) < 0
        got = len(taken) - start
        size += sum(len(job.body) for job in taken[start:])
        left -= picker.spent - before
        quota[mine] -= got
        mine.served += got
        if full and len(taken) < most:
            break  # no more seconds or bytes
        if quota[mine] > 0 and (following := picker.next) is not None:
            heappush(heap, ((mine.served, *following) if fair else following, mine.number, picker))
    return dry
