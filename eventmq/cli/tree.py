"""Draws the graph of a job: the last jobs on top, and below each what it waits for."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from eventmq.app import EventMQ

    Row = Mapping[str, Any]

__all__ = ["drawn", "graph_of"]

#: Jobs beside each other that are drawn; of more only how many are in which state.
MOST = 50


def graph_of(app: EventMQ, job_id: str) -> list[dict[str, Any]]:
    """Return the jobs of the graph of a job by place.

    Raises:
        JobNotFound: It is part of no graph that the broker knows.
    """
    rows: list[dict[str, Any]] = []
    while True:
        page = app.ask("graph", {"id": job_id, "first": len(rows)})
        rows += page["jobs"]
        if len(rows) >= page["size"] or not page["jobs"]:
            return rows


def drawn(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of a drawing.

    Args:
        rows: Of `graph_of`.
    """
    states = ", ".join(f"{n} {state}" for state, n in Counter(r["state"] for r in rows).items())
    yield f"graph {rows[0]['id']}: {states}"
    waited: dict[int, list[Row]] = {}
    for row in rows:
        if row["output"]:
            waited.setdefault(row["output"], []).append(row)
    last = [row for row in rows if not row["output"] and not row["handler"]]
    yield from _draw(last, waited)
    for row in rows:
        if row["handler"]:
            yield f"on error: {_label(row)}"


def _draw(last: Sequence[Row], waited: dict[int, list[Row]]) -> Iterator[str]:
    """Yield the lines below the first; no recursion, since chains may be long."""
    stack = _beside(last, "")
    seen: set[int] = set()
    while stack:
        row, head, below = stack.pop()
        if isinstance(row, str):
            yield head + row
            continue
        yield head + _label(row)
        barrier = row["input"]
        before = waited.get(barrier, [])
        if not before:
            continue
        if barrier in seen:
            yield f"{below}waits for the same as above"
        elif len(before) == 1:  # a chain goes straight down
            stack.append((before[0], below, below))
        else:
            stack += _beside(before, below)
        seen.add(barrier)


def _beside(rows: Sequence[Row], indent: str) -> list[tuple[Row | str, str, str]]:
    """Return jobs beside each other for the stack: what, before its first line, before the rest."""
    parts: list[Row | str] = [*rows[:MOST]]
    if len(rows) > MOST:
        states = Counter(row["state"] for row in rows[MOST:])
        parts.append(f"{len(rows) - MOST} more: {', '.join(f'{n} {s}' for s, n in states.items())}")
    entries = [(part, f"{indent}├─ ", f"{indent}│  ") for part in parts]
    entries[-1] = (parts[-1], f"{indent}└─ ", f"{indent}   ")
    return entries[::-1]


def _label(row: Row) -> str:
    return f"{row['task'] or '(unknown)'}  {row['state']}  {row['id']}"
