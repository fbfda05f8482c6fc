"""Shapes for pages: sparklines, the waterfall of a job or graph, and the drawing of a graph.

They are numbers and data of SVG's path; templates draw them. A style attribute is never needed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

__all__ = ["Bar", "Drawing", "Node", "draw", "sparkline", "waterfall"]

#: Width and height of a sparkline.
WIDTH, HEIGHT = 100.0, 24.0

#: Points of a sparkline: of more values the largest of each few is shown.
POINTS: Final = 45

#: Jobs of a graph that are drawn; of more only the states are counted.
MAX_DRAWN: Final = 80

#: Bars of a waterfall.
MAX_BARS: Final = 80

#: Size of a node, and the distance of nodes, in pixels.
NODE_WIDTH, NODE_HEIGHT, STEP_X, STEP_Y = 168, 40, 208, 52

Row = Mapping[str, Any]


def sparkline(values: Sequence[float]) -> str:
    """Return the path of a line over the last values, from 0 to their maximum; "" for too few."""
    if len(values) < 2:  # noqa: PLR2004 - a line has two points
        return ""
    size = -(-len(values) // POINTS)
    values = [max(values[n : n + size]) for n in range(0, len(values), size)]
    top, step = max(*values, 1e-9), WIDTH / (len(values) - 1)
    points = (
        f"{n * step:.1f} {HEIGHT - 1 - value / top * (HEIGHT - 2):.0f}"
        for n, value in enumerate(values)
    )
    return "M" + "L".join(points)


class Bar(NamedTuple):
    """A row of a waterfall: positions are in percent of its time."""

    row: Row
    waits: tuple[float, float]
    runs: tuple[float, float]


def waterfall(rows: Sequence[Row], now: float) -> tuple[list[Bar], float]:
    """Return a bar for each job that has started or waits, by time, and the seconds of the whole.

    Args:
        rows: Jobs as in the call ``info``.
        now: Unix time, the end of what still runs.
    """
    spans = []
    for row in rows:
        begun = row.get("started") or row.get("leased") or 0.0
        end = row.get("finished") or now
        if row.get("ran") and row.get("finished"):
            begun = row["finished"] - row["ran"]
        if row.get("created"):
            spans.append((row, row["created"], begun or end, end, bool(begun)))
    spans.sort(key=lambda span: span[2])
    spans = spans[:MAX_BARS]
    if not spans:
        return [], 0.0
    first = min(span[1] for span in spans)
    whole = max(max(span[3] for span in spans) - first, 1e-6)

    def part(begin: float, end: float, least: float = 0.0) -> tuple[float, float]:
        left = min(100.0, max(0.0, (begin - first) / whole * 100))
        return round(left, 2), round(min(100.0 - left, max(least, (end - begin) / whole * 100)), 2)

    return [
        Bar(row, part(created, begun), part(begun, end, 0.5) if has_begun else (0.0, 0.0))
        for row, created, begun, end, has_begun in spans
    ], whole


class Node(NamedTuple):
    """A job of a graph, and the place of its box."""

    row: Row
    x: int
    y: int


class Drawing(NamedTuple):
    """A graph: boxes, the paths between them, and the number of jobs in each state."""

    nodes: list[Node]
    edges: list[str]
    width: int
    height: int
    states: list[tuple[str, int]]
    hidden: int


def draw(rows: Sequence[Row], size: int) -> Drawing:
    """Return the drawing of a graph: each job right of those that it waits for.

    Args:
        rows: Jobs by place, as in the call ``graph``.
        size: Number of jobs of the whole graph.
    """
    drawn = rows[:MAX_DRAWN]
    before: dict[int, list[Row]] = defaultdict(list)
    for row in drawn:
        if row["output"]:
            before[row["output"]].append(row)
    columns = _columns(drawn, before)
    used: Counter[int] = Counter()
    nodes: dict[str, Node] = {}
    for row in sorted(drawn, key=lambda row: (columns[row["id"]], row["place"])):
        column = columns[row["id"]]
        nodes[row["id"]] = Node(row, 1 + column * STEP_X, 1 + used[column] * STEP_Y)
        used[column] += 1
    edges = []
    for node in nodes.values():
        for other in before.get(node.row["input"], ()):
            x, y = nodes[other["id"]].x + NODE_WIDTH, nodes[other["id"]].y + NODE_HEIGHT // 2
            middle, end = (x + node.x) // 2, node.y + NODE_HEIGHT // 2
            edges.append(f"M{x} {y}C{middle} {y} {middle} {end} {node.x} {end}")
    states = Counter(row["state"] for row in rows).most_common()
    width = 2 + max((node.x for node in nodes.values()), default=0) + NODE_WIDTH
    height = 2 + max((node.y for node in nodes.values()), default=0) + NODE_HEIGHT
    return Drawing([*nodes.values()], edges, width, height, states, size - len(drawn))


def _columns(rows: Sequence[Row], before: Mapping[int, Sequence[Row]]) -> dict[str, int]:
    """Return the column of each job: one more than the largest of those that it waits for."""
    columns = {row["id"]: 0 for row in rows}
    for _ in rows:
        last = dict(columns)
        for row in rows:
            earlier = (columns[each["id"]] + 1 for each in before.get(row["input"], ()))
            columns[row["id"]] = max(earlier, default=0)
        if columns == last:
            break
    return columns
