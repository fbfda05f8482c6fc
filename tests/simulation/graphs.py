"""Graphs of a scenario, written as nested tuples.

``("job", n)`` is the n-th job of the operation; the others are ``("chain", ...)``,
``("group", policy, ...)`` and ``("chord", policy, members, callback)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.graph import Chain, Chord, Group, Signature, build, refs_of
from eventmq.wire.batches import encode_graph
from eventmq.wire.commands import Request
from tests.simulation.pool import make_body

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.graph import Expression
    from tests.simulation.scenario import JobPlan

__all__ = ["needs_of", "write_graph"]


def expression_of(value: Any) -> Expression:
    """Return the expression that a nested tuple stands for."""
    kind, *operands = value
    if kind == "job":
        return Signature("sim.job", args=(operands[0],))
    if kind == "chain":
        return Chain(tuple(map(expression_of, operands)))
    policy, *members = operands
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
        template = templates.setdefault((job.queue, text), len(templates))
        rows.append((job.id, template, make_body(job.runs)))
    body = encode_graph(list(templates), rows, built.plan)
    return Request(rows[0][0], "", f"nodes:{len(rows)}", body).frames()


def needs_of(jobs: Sequence[JobPlan], expression: Any) -> dict[str, tuple[list[str], bool]]:
    """Return for each job the ids that it waits for, and whether it runs although some fail."""
    built = build(expression_of(expression))
    ids = [jobs[node.signature.args[0]].id for node in built.nodes]
    needs: dict[str, tuple[list[str], bool]] = {}
    for index, join in enumerate(built.plan.inputs):
        if join >= 0:
            refs = refs_of(built.plan.joins[join])
            collected = all("c" in built.nodes[ref].flags for ref in refs)
            needs[ids[index]] = ([ids[ref] for ref in refs], collected)
    return needs
