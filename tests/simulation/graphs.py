"""Graphs of the simulation: expressions as nested tuples, and the message of one.

``("job", n)`` is the n-th job of the op, ``("chain", ...)`` and ``("group", policy, ...)`` are
what they say, ``("chord", policy, members, callback)`` too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.graph import Chain, Chord, Group, Signature, build, refs_of
from eventmq.wire.commands import Request
from eventmq.wire.graphs import encode_graph
from tests.simulation.pool import make_body

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.graph import Expression
    from tests.simulation.scenario import JobPlan

__all__ = ["needs_of", "write_graph"]


def expression_of(value: Any) -> Expression:
    """Return what a nested tuple means."""
    kind, *rest = value
    if kind == "job":
        return Signature("sim.job", args=(rest[0],))
    if kind == "chain":
        return Chain(tuple(map(expression_of, rest)))
    policy, *members = rest
    if kind == "group":
        return Group(tuple(map(expression_of, members)), on_failure=policy)
    group = Group(tuple(map(expression_of, members[0])), on_failure=policy)
    return Chord(group, expression_of(members[1]))


def write_graph(jobs: Sequence[JobPlan], expression: Any) -> list[bytes]:
    """Return the REQUEST of a graph; the first job of it must be ``jobs[0]``."""
    built = build(expression_of(expression))
    templates: dict[tuple[str, str], int] = {}
    rows = []
    for node in built.nodes:
        job = jobs[node.signature.args[0]]
        text = f"{job.headers},graph:{node.flags}"
        place = templates.setdefault((job.queue, text), len(templates))
        rows.append((job.id, place, make_body(job.runs)))
    body = encode_graph(list(templates), rows, built.plan)
    return Request(rows[0][0], "", f"nodes:{len(rows)}", body).frames()


def needs_of(jobs: Sequence[JobPlan], expression: Any) -> dict[str, tuple[list[str], bool]]:
    """Return what each job waits for: ids, and whether it goes on without those that fail."""
    built = build(expression_of(expression))
    ids = [jobs[node.signature.args[0]].id for node in built.nodes]
    needs: dict[str, tuple[list[str], bool]] = {}
    for place, join in enumerate(built.plan.inputs):
        if join >= 0:
            refs = refs_of(built.plan.joins[join])
            collected = all("c" in built.nodes[ref].flags for ref in refs)
            needs[ids[place]] = ([ids[ref] for ref in refs], collected)
    return needs
