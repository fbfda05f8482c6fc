"""Postpones jobs, deadlines and rate limits when seconds are added to store time at once."""

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

#: Rounding error, in seconds, that a sum of store times may have.
_SLACK = 1e-3

#: Delayed jobs that one scan reads.
_PORTION = 5000

_JOB = ("ready_at", "seq", "rank", "id", "attempt", "created", "headers")


def move_waits(store: RowStore, addition: Addition) -> None:
    """Postpone every wait that began at or after the anchor of an addition.

    The added seconds had passed before the anchor, so a wait that began after it must not end
    earlier. The addition is stored in the same commit. Ages do not change here: code that compares
    them accounts for additions (`Timekeeper.before`).
    """
    anchor, seconds, bound = addition.anchor, addition.seconds, ()
    rank = int(seconds * 1_000_000)
    while True:  # the latest first: a row that was moved is not read again
        rows = list(damaged.scan(
            store, "jobs_delayed", _JOB, ge=(anchor,), lt=bound, limit=_PORTION, descending=True
        ))  # fmt: skip
        moved = [
            (row[0] + seconds, row[2] + rank, row[1]) for row in _waits_since(store, rows, anchor)
        ]
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


def _waits_since(
    store: RowStore, rows: Sequence[tuple[Any, ...]], anchor: float
) -> list[tuple[Any, ...]]:
    """Return the delayed jobs whose ready time was set at or after the anchor.

    These jobs were admitted, tried, or released from a graph since then. The ready time of a job
    that its unique key holds back includes `HELD`.
    """
    waits = [row for row in rows if not HELD < row[0] <= HELD + anchor]
    since_anchor = [row for row in waits if row[5] >= anchor]
    older = [row for row in waits if row[5] < anchor]
    if not older:
        return since_anchor
    attempts = store.get("attempts", ("id", "at"), [row[3] for row in older], by="attempts")
    tried = {job_id for job_id, at in attempts if at >= anchor}
    since_anchor += [row for row in older if row[3] in tried]
    first_attempts = [
        row for row in older
        if row[3] not in tried and row[4] == 1
        and row[0] - _countdown_of(row[-1]) >= anchor - _SLACK
    ]  # fmt: skip
    nodes = set(store.get("nodes", ("id",), [row[3] for row in first_attempts], by="nodes_id"))
    return since_anchor + [row for row in first_attempts if (row[3],) in nodes]


def _move_deadlines(store: RowStore, anchor: float, seconds: float) -> None:
    """Postpone the deadlines of graphs that were admitted at or after the anchor."""
    deadlines = list(store.scan("deadlines_at", ("key", "first", "end", "at"), ge=(anchor,)))
    moved = []
    for key, first, end, at in deadlines:
        # All jobs of a graph are admitted together.
        created = [row[0] for row in store.scan(
            "jobs", ("created",), ge=(first,), lt=(end,), limit=1
        )]  # fmt: skip
        if created and created[0] >= anchor:
            moved.append((at + seconds, key))
    store.update("deadlines", ("at",), moved)


def _countdown_of(headers: Any) -> float:
    """Return the countdown in headers, 0.0 if the headers are damaged."""
    try:
        return parse_headers(headers).countdown
    except (EventMQError, ValueError, TypeError, AttributeError):
        return 0.0
