"""The body that carries a graph, client to broker (extension ``graph``).

MessagePack ``[[[queue, headers], ...], [[id, template, payload], ...], plan]``: the first two as
in a batch, the jobs by place; the plan is `eventmq.graph.Plan` as lists in lists. The id of the
message is that of the first job, and of the graph; its header ``nodes`` is the number of jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.errors import ProtocolError
from eventmq.graph import MAX_NODES, Plan
from eventmq.wire.batches import check_jobs, pack, unpack

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["decode_graph", "encode_graph"]


def encode_graph(
    templates: Sequence[tuple[str, str]], jobs: Sequence[tuple[str, int, bytes]], plan: Plan
) -> bytes:
    """Encode a graph: ``templates`` are (queue, headers), ``jobs`` (id, template, payload)."""
    return pack([templates, jobs, plan])


def decode_graph(
    body: bytes, count: int
) -> tuple[list[tuple[str, str]], list[tuple[str, int, bytes]], Plan]:
    """Decode a graph.

    Args:
        body: The body of the REQUEST.
        count: What its ``nodes`` header says.

    Raises:
        ProtocolError: The body is malformed, has another number of jobs or the same id twice, or
            the plan is none.
    """
    if count > MAX_NODES:
        raise ProtocolError(f"a graph has at most {MAX_NODES} jobs, not {count}", code="too-many")
    value: Any = unpack(body, "the body of the graph")
    match value:
        case [list(templates), list(jobs), plan] if len(jobs) == count >= len(templates):
            pass
        case _:
            msg = f"a graph of {count} is [templates, jobs, plan] with {count} jobs"
            raise ProtocolError(msg, code="bad-body")
    check_jobs(templates, jobs)
    if len({job_id for job_id, _, _ in jobs}) != count:
        raise ProtocolError("two jobs of the graph have the same id", code="bad-body")
    return templates, jobs, Plan.decode(plan, count)
