"""Graphs in the broker: effects of ended jobs, deadlines, and the calls about graphs.

The store decides which jobs become ready or end when others end (`eventmq.store.AdvanceGraphs`).
The broker then updates its memory.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from eventmq.broker.acts import act_of, by
from eventmq.broker.operations import NO_REASON
from eventmq.broker.state import SingleWrite
from eventmq.errors import ProtocolError
from eventmq.job import JobState
from eventmq.store.reads import ListGraph
from eventmq.store.writes import AdvanceGraphs, CancelGraph, EndDeadlines, subqueue_of
from eventmq.wire.commands import read_limit, read_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.broker.operations import OperatorCalls
    from eventmq.broker.peers import Peer
    from eventmq.broker.state import State
    from eventmq.store.reads import GraphPage
    from eventmq.store.writes import AffectedJobs, GraphChanges

__all__ = ["GraphTracker"]

logger = logging.getLogger("eventmq.broker")

#: Characters of the longest reason; a longer one is cut.
_MAX_REASON = 500

#: Bytes of a REQUEST beside the body of its job.
_HEAD = 64 * 1024

#: The reason why jobs past their deadline are cancelled.
_DEADLINE_PASSED = "deadline: its part of the graph was to end before"


class GraphTracker:
    """Updates the memory after the store has advanced graphs, and answers calls about graphs."""

    def __init__(self, state: State, operations: OperatorCalls) -> None:
        self.state = state
        self.operations = operations
        self._single = SingleWrite(state)
        #: Whether the store may have more to do: one commit advances a limited number of jobs.
        self.unfinished = False
        state.calls |= {"graph": self._list, "cancel_graph": self._cancel}

    # Ends

    def follow_ends(self) -> None:
        """Add the write that advances the graphs of jobs ending in this commit, as the last one."""
        state = self.state
        if not (state.writes or self.unfinished):
            return
        limits = state.limits
        max_body = limits.max_frame - _HEAD
        write = AdvanceGraphs(
            state.now, limits.priority_seconds, limits.result_ttl, max_body,
            max_input_bytes=limits.max_input_bytes, limit=limits.graph_slice,
            ahead=state.keeper.ahead,
        )  # fmt: skip
        state.write(write, self._followed)

    def _followed(self, write_result: GraphChanges) -> None:
        state = self.state
        self.unfinished = write_result.unfinished
        for job in (*write_result.ready, *write_result.more):
            state.queue(job.queue).counts.blocked -= 1
            state.count_waiting(job)
        for job in write_result.ready:
            if job.state is JobState.QUEUED:
                state.enqueue(job)
        for name, subqueue in {(job.queue, subqueue_of(job.headers)) for job in write_result.more}:
            state.queues[name].rewind(subqueue)
            state.busy[name] = state.queues[name]
        if not write_result.ended:
            return
        for row in write_result.ended:
            counts = state.queue(row.job.queue).counts
            counts.blocked -= 1
            counts.queued += 1  # `record_ends` subtracts it
        self.operations.outcomes.record_ends(write_result.ended, {})
        logger.info(
            "%d jobs of graphs ended without a run, because of jobs that they depend on; the "
            "first is %s", len(write_result.ended), write_result.ended[0].job.id,
        )  # fmt: skip

    # Deadlines

    def tick(self) -> None:
        """Cancel jobs that are past their deadline."""
        state = self.state
        deadline, now = state.next_deadline, state.now
        if deadline is None or deadline > now or self._single.busy or now < state.hold_until:
            return
        audit = self.operations.audit(reason=_DEADLINE_PASSED)

        def settle(write_result: tuple[AffectedJobs, float | None]) -> None:
            affected, state.next_deadline = write_result
            self.operations.cancelled(affected.jobs, audit, _DEADLINE_PASSED)
            if affected.jobs:
                logger.warning(
                    "%d jobs of graphs were cancelled, the first is %s: %s",
                    len(affected.jobs), affected.jobs[0].id, _DEADLINE_PASSED,
                )  # fmt: skip

        self._single.write(EndDeadlines(state.now, audit, state.limits.graph_slice), settle)

    # Calls

    def _cancel(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        job_id = read_text(arguments, "id")
        reason = read_text(arguments, "reason")[:_MAX_REASON] or NO_REASON
        act = act_of(self.state, peer, arguments, "cancel")
        audit = self.operations.audit(reason=reason, act=act)
        limit, count = self.state.limits.graph_slice, 0

        def settle(write_result: tuple[str, AffectedJobs]) -> None:
            nonlocal count
            root, affected = write_result
            if not root:
                self._unknown(peer, call, job_id)
                return
            self.operations.cancelled(affected.jobs, audit, reason)
            count += len(affected.jobs)
            if len(affected.jobs) >= limit:  # the next commit cancels the next slice
                self.state.write(CancelGraph(job_id, audit, limit), settle, undo)
                return
            logger.info("graph %s: %d jobs cancelled%s: %r", root, count, by(act), reason)
            self.state.answer(peer, call, {"id": root, "count": count})

        def undo() -> None:
            text = f"the disk is full; {count} jobs were cancelled: call again for the rest"
            self.state.error(peer, call, "store-full", text)

        self.state.write(CancelGraph(job_id, audit, limit), settle, undo)

    def _list(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        job_id = read_text(arguments, "id")
        first = arguments.get("first", 0)
        if type(first) is not int or not 0 <= first < 1 << 40:
            raise ProtocolError("argument 'first' is a whole number", code="bad-arguments")

        def settle(page: GraphPage | None) -> None:
            if page is None:
                self._unknown(peer, call, job_id)
                return
            row = self.operations.calls.row
            rows = [
                {
                    **row(each.job_row), "place": each.node, "input": each.input,
                    "output": each.output, "handler": each.handler,
                }
                for each in page.rows
            ]  # fmt: skip
            self.state.answer(peer, call, {"id": page.root, "size": page.size, "jobs": rows})

        self.state.write(ListGraph(job_id, first, read_limit(arguments)), settle)

    def _unknown(self, peer: Peer, call: str, job_id: str) -> None:
        self.state.error(peer, call, "job-not-found", f"no graph has a job {job_id!r}")
