"""The runs of one queue played through k slots, first come first served; and what they come to.

Runs in Spark's Python workers, on the rows of one queue or one worker. No Spark in here.
"""

from __future__ import annotations

from heapq import heapreplace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import pandas as pd

    Times = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["MOST", "at_once", "least", "queue_table", "waits", "worker_table"]

#: More slots than this are not tried.
MOST = 100_000

_SECOND = 1e6
_PERCENT = 95


def waits(ready: Times, run: Times, slots: int) -> Times:
    """Return how long each job waits if so many slots take them in their order.

    Args:
        ready: When each job is ready, ascending, in microseconds.
        run: How long it runs.
        slots: At least 1.
    """
    found = _played(ready, run, slots, None)
    assert found is not None  # noqa: S101 - only a limit ends it early
    return found


def _played(ready: Times, run: Times, slots: int, limit: tuple[int, int] | None) -> Times | None:
    """Do so; give up once more jobs than ``limit[1]`` waited longer than ``limit[0]``."""
    import numpy as np

    if slots == 1:  # Lindley's recursion, unrolled
        end = np.cumsum(run)
        idle = np.maximum.accumulate(ready - (end - run))
        waited: Times = idle + (end - run) - ready
        return waited
    if slots >= len(ready):
        return np.zeros(len(ready), dtype=np.int64)
    found = _heaped(ready.tolist(), run.tolist(), slots, *(limit or (1 << 62, 0)))
    return None if found is None else np.array(found, dtype=np.int64)


# hot loop: benchmarks/spark.py
def _heaped(
    ready: list[int], run: list[int], slots: int, long: int, allowed: int
) -> list[int] | None:
    free = [ready[0]] * slots  # when each slot is free: a heap
    found: list[int] = []
    add, replace, over = found.append, heapreplace, 0
    for at, span in zip(ready, run, strict=True):
        start = free[0]
        if start <= at:
            add(0)
            replace(free, at + span)
            continue
        wait = start - at
        add(wait)
        replace(free, start + span)
        if wait > long:
            over += 1
            if over > allowed:
                return None
    return found


def least(ready: Times, run: Times, target: float, guess: int) -> tuple[int, Times] | None:
    """Return the least number of slots with which 95 % wait no longer than a target, and the waits.

    More slots never make a job wait longer, so the number is found by halving.

    Args:
        ready: As in `waits`.
        run: As in `waits`.
        target: In microseconds.
        guess: Where to begin.

    Returns:
        None where more than ``MOST`` were needed.
    """
    limit = (int(target), len(ready) - int((len(ready) - 1) * _PERCENT / 100) - 1)
    tried: dict[int, Times | None] = {}

    def meets(slots: int) -> bool:
        tried[slots] = found = _met(ready, run, slots, limit, target)
        return found is not None

    low, high = 0, max(1, min(guess, MOST))
    while not meets(high):
        if high == MOST:
            return None
        low, high = high, min(high * 2, MOST)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if meets(middle) else (middle, high)
    found = tried[high]
    assert found is not None  # noqa: S101 - `high` always meets
    return high, found


def _met(
    ready: Times, run: Times, slots: int, limit: tuple[int, int], target: float
) -> Times | None:
    import numpy as np

    found = _played(ready, run, slots, limit)
    return found if found is not None and np.percentile(found, _PERCENT) <= target else None


def at_once(started: Times, ended: Times) -> int:
    """Return how many ran at once at most; one that ends when another starts is not beside it."""
    import numpy as np

    begun = np.sort(started)
    gone = np.searchsorted(np.sort(ended), begun, side="right")
    return max(1, int((np.arange(1, len(begun) + 1) - gone).max()))


def queue_table(
    frame: pd.DataFrame, *, target_p95: float, slots: Sequence[int] = ()
) -> pd.DataFrame:
    """Return the rows of `capacity` for one queue.

    Args:
        frame: ``queue ready_us started_us run_us`` of its runs, one or more.
        target_p95: In seconds.
        slots: Numbers to try.
    """
    import numpy as np
    import pandas as pd

    ready, started, run = _columns(frame, "ready_us", "started_us", "run_us")
    order = np.lexsort((started, ready))
    ready, started, run = ready[order], started[order], run[order]
    seen = at_once(started, started + run)
    played = _tried(ready, run, target_p95 * _SECOND, {*slots, seen})
    outcomes = [(seen, "recorded", started - ready), *played]
    rows = [
        {
            "queue": frame["queue"].iloc[0], "slots": number, "what": what,
            "meets": bool(np.percentile(waited, _PERCENT) <= target_p95 * _SECOND),
            **_measured(number, ready, waited, run),
        }
        for number, what, waited in outcomes
    ]  # fmt: skip
    return pd.DataFrame(rows)


def _columns(frame: pd.DataFrame, *names: str) -> list[Times]:
    return [frame[name].to_numpy("int64") for name in names]


def _tried(
    ready: Times, run: Times, target: float, slots: set[int]
) -> list[tuple[int, str, Times]]:
    """Return number, ``needed`` or ``what-if``, and the waits, of all numbers that are tried."""
    load = run.sum() / max(1, (ready + run).max() - ready.min())
    found = least(ready, run, target, int(load) + 1)
    if found is None:
        return [(number, "what-if", waits(ready, run, number)) for number in sorted(slots)]
    needed = found[0]
    others = sorted({*slots, max(1, needed - 1), needed + 1} - {needed})
    return [
        (needed, "needed", found[1]),
        *((number, "what-if", waits(ready, run, number)) for number in others),
    ]


def _measured(slots: int, ready: Times, waited: Times, run: Times) -> dict[str, Any]:
    import numpy as np

    span = max(1, int((ready + waited + run).max() - ready.min()))
    p50, p95, p99, longest = (np.percentile(waited, p) / _SECOND for p in (50, 95, 99, 100))
    return {
        "jobs": len(run), "rate": len(run) / span * _SECOND, "run_mean_s": run.mean() / _SECOND,
        "working": run.sum() / span, "waiting": waited.sum() / span,
        "utilisation": run.sum() / span / slots,
        "wait_p50_s": p50, "wait_p95_s": p95, "wait_p99_s": p99, "wait_max_s": longest,
    }  # fmt: skip


def worker_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the row of `workers` for one worker.

    Args:
        frame: ``worker_id started_us run_us`` of its runs, one or more.
    """
    import pandas as pd

    worker = frame["worker_id"].iloc[0]
    started, run = _columns(frame, "started_us", "run_us")
    slots = at_once(started, started + run)
    span = max(1, int((started + run).max() - started.min()))
    return pd.DataFrame([{
        "worker": worker, "host": worker.rpartition(":")[0], "jobs": len(run), "slots": slots,
        "busy_s": run.sum() / _SECOND, "span_s": span / _SECOND,
        "utilisation": run.sum() / span / slots,
    }])  # fmt: skip
