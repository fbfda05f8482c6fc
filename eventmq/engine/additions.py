"""Moves what waits for a store time when seconds are added to store time at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.engine import damaged
from eventmq.errors import EventMQError
from eventmq.headers import parse_headers
from eventmq.job import HELD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.engine.contract import RowStore
    from eventmq.timekeeping import Addition

__all__ = ["move_waits"]

#: Seconds by which a sum of seconds may be less than exact.
_SLACK = 1e-3

#: Delayed jobs that are looked at together.
_PORTION = 5000

_JOB = ("ready_at", "seq", "rank", "id", "attempt", "created", "headers")


def move_waits(store: RowStore, addition: Addition) -> None:
    """Move what waits since the anchor of an addition, which the same commit stores.

    The added time had passed before, so a wait that began after it must not end earlier. Ages are
    not moved: their readers account for additions (`Timekeeper.before`).
    """
    anchor, seconds, bound = addition.anchor, addition.seconds, ()
    rank = int(seconds * 1_000_000)
    while True:  # the last ones first: what was moved is behind what follows
        rows = list(damaged.scan(
            store, "jobs_delayed", _JOB, ge=(anchor,), lt=bound, limit=_PORTION, descending=True
        ))  # fmt: skip
        moved = [(row[0] + seconds, row[2] + rank, row[1]) for row in _began(store, rows, anchor)]
        store.update("jobs", ("ready_at", "rank"), moved)
        if len(rows) < _PORTION:
            break
        bound = rows[-1][:2]
    _move_deadlines(store, anchor, seconds)
    limiters = list(store.scan("limiters", ("updated", "task", "key")))
    store.update(
        "limiters", ("updated",),
        [(updated + seconds, *key) for updated, *key in limiters if updated >= anchor],
    )  # fmt: skip


def _began(
    store: RowStore, rows: Sequence[tuple[Any, ...]], anchor: float
) -> list[tuple[Any, ...]]:
    """Return those delayed jobs that wait for a store time which was set since the anchor.

    They were admitted, or tried, or released from a graph since then. Where a job is held back,
    `HELD` is added to that time.
    """
    waits = [row for row in rows if not HELD < row[0] <= HELD + anchor]
    began = [row for row in waits if row[5] >= anchor]
    older = [row for row in waits if row[5] < anchor]
    if not older:
        return began
    attempts = store.get("attempts", ("id", "at"), [row[3] for row in older], by="attempts")
    tried = {job_id for job_id, at in attempts if at >= anchor}
    began += [row for row in older if row[3] in tried]
    first = [
        row for row in older
        if row[3] not in tried and row[4] == 1
        and row[0] - _countdown_of(row[-1]) >= anchor - _SLACK
    ]  # fmt: skip
    nodes = set(store.get("nodes", ("id",), [row[3] for row in first], by="nodes_id"))
    return began + [row for row in first if (row[3],) in nodes]


def _move_deadlines(store: RowStore, anchor: float, seconds: float) -> None:
    """Move deadlines of graphs that were admitted since the anchor: all jobs of one at once."""
    deadlines = list(store.scan("deadlines_at", ("key", "first", "end", "at"), ge=(anchor,)))
    moved = []
    for key, first, end, at in deadlines:
        created = [row[0] for row in store.scan(
            "jobs", ("created",), ge=(first,), lt=(end,), limit=1
        )]  # fmt: skip
        if created and created[0] >= anchor:
            moved.append((at + seconds, key))
    store.update("deadlines", ("at",), moved)


def _countdown_of(headers: Any) -> float:
    """Return the countdown that headers say, 0.0 where they are damaged."""
    try:
        return parse_headers(headers).countdown
    except (EventMQError, ValueError, TypeError, AttributeError):
        return 0.0
