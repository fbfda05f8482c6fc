"""Graphs: chains, groups and chords of calls, as data.

`Signature`, `Chain`, `Group` and `Chord` are what users write, nested at will; `build` makes a
`Plan` of them: jobs, and which wait for which. The client sends plans, the broker executes them.
"""

from __future__ import annotations

from eventmq.graph.build import Built, build
from eventmq.graph.expressions import Chain, Chord, Expression, Group, Signature
from eventmq.graph.flags import COLLECTED, FEEDS, PAGED, TAKES, flags_of, paged
from eventmq.graph.plan import MAX_NODES, Plan, refs_of

__all__ = [
    "COLLECTED",
    "FEEDS",
    "MAX_NODES",
    "PAGED",
    "TAKES",
    "Built",
    "Chain",
    "Chord",
    "Expression",
    "Group",
    "Plan",
    "Signature",
    "build",
    "flags_of",
    "paged",
    "refs_of",
]
