"""REQUEST with a graph: all of its jobs are stored in one commit, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from eventmq.broker.admission import Admission
from eventmq.entries import AdmitGraph, Find
from eventmq.errors import ProtocolError
from eventmq.graph import flags_of
from eventmq.job import JobState
from eventmq.wire.graphs import decode_graph

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eventmq.broker.peers import Peer
    from eventmq.entries import Found, Verdict
    from eventmq.graph import Plan
    from eventmq.headers import Headers
    from eventmq.job import Job
    from eventmq.wire.commands import Request

__all__ = ["GraphAdmission"]


class _Graph(NamedTuple):
    """A graph on its way through a commit."""

    peer: Peer
    id: str
    jobs: list[Job]
    plan: Plan


class GraphAdmission(Admission):
    """Admits jobs and graphs of them."""

    def request(self, peer: Peer, message: Request) -> None:
        """Admit the job, the batch or the graph of a REQUEST."""
        if "nodes:" not in message.headers or self.state.closing:
            super().request(peer, message)
            return
        headers = self._headers(message.headers)
        if not headers.nodes:
            super().request(peer, message)
            return
        self._check_sizes(message.id, "", message.body)
        self._new_queues.clear()
        graph = self._graph(peer, message, headers.nodes)
        if isinstance(graph, _Graph):
            self._admit_graph(graph)
        else:
            self.state.error(peer, message.id, *graph)

    def _graph(self, peer: Peer, message: Request, count: int) -> _Graph | tuple[str, str]:
        """Return the jobs of a graph, or why they are refused."""
        templates, rows, plan = decode_graph(message.body, count)
        headers = [self._check_template(queue, text) for queue, text in templates]
        makers = [
            self._maker(peer, queue, text, known)
            for (queue, text), known in zip(templates, headers, strict=True)
        ]
        sizes = [0] * len(templates)
        for _, place, _ in rows:
            sizes[place] += 1
        for (queue, text), n, known in zip(templates, sizes, headers, strict=True):
            refusal = self._refusal(peer, queue, n, text, known)
            if refusal is not None:
                return refusal
        longest = self.state.limits.max_id
        if rows[0][0] != message.id or any(len(job_id) > longest for job_id, _, _ in rows):
            msg = f"the id of a graph is that of its first job, of at most {longest} characters"
            return "bad-body", msg
        seq = self._take_seqs(count)
        jobs = [
            makers[place](job_id, body, seq + i) for i, (job_id, place, body) in enumerate(rows)
        ]
        _block(jobs, plan)
        return _Graph(peer, message.id, jobs, plan)

    def _check_template(self, queue: str, text: str) -> Headers:
        headers = self._headers(text)
        self._check_sizes("", queue, b"")
        if not flags_of(text) or not headers.content_type or headers.batch or headers.nodes:
            msg = "a job of a graph has the headers graph and content-type"
            raise ProtocolError(msg, code="bad-header")
        if headers.guarantee is False or headers.unique:
            what = "a unique key" if headers.unique else "guarantee:False"
            raise ProtocolError(f"a job of a graph cannot have {what}", code="bad-header")
        return headers

    def _admit_graph(self, graph: _Graph) -> None:
        state = self.state
        state.graphs = True
        self._begin_queues()
        for name in {job.queue for job in graph.jobs}:
            state.busy[name] = state.queue(name)

        def undo() -> None:
            text = "the disk is full; nothing was stored"
            state.error(graph.peer, graph.id, "store-full", text)

        entry = AdmitGraph(graph.jobs, graph.plan)
        state.write(entry, lambda verdict: self._graph_settled(graph, verdict), undo)

    def _graph_settled(self, graph: _Graph, verdict: Verdict | None) -> None:
        state = self.state
        if verdict is None:
            self._graph_stored(graph)
        elif verdict.code == "same_id":
            self._again(graph)
            return
        else:
            code, text = "store-full", verdict.detail
            if verdict.code == "taken":
                code, text = "bad-body", f"a job with the id {verdict.detail!r} is there already"
            state.error(graph.peer, graph.id, code, text)
            return
        state.receipt(graph.peer, graph.id)

    def _again(self, graph: _Graph) -> None:
        """Give the receipt of a graph that was admitted before, unless another key submitted it."""
        state, grant = self.state, graph.peer.grant
        state.counters["duplicates"] += len(graph.jobs)
        if grant is None:
            state.receipt(graph.peer, graph.id)
            return

        def settle(found: Mapping[str, Found]) -> None:
            if graph.id in found and not grant.owns(found[graph.id].job.headers):
                text = f"another key has submitted a job with the id {graph.id!r}"
                state.error(graph.peer, graph.id, "not-allowed", text)
            else:
                state.receipt(graph.peer, graph.id)

        state.write(Find([graph.id], 0), settle)

    def _graph_stored(self, graph: _Graph) -> None:
        state = self.state
        state.counters["admitted"] += len(graph.jobs)
        state.counters["graphs"] += 1
        for _, _, seconds in graph.plan.deadlines:
            due = state.now + seconds
            state.next_deadline = min(due, state.next_deadline or due)
        for job in graph.jobs:
            counts = state.queues[job.queue].counts
            if job.expires and job.state is not JobState.BLOCKED:
                state.expiring(job)
            if job.state is JobState.BLOCKED:
                counts.blocked += 1
            elif job.state is JobState.DELAYED:
                counts.delayed += 1
                state.next_due = min(job.due, state.next_due or job.due)
            else:
                counts.waiting += 1
                if state.queues[job.queue].takes(job):
                    state.joined(job)


def _block(jobs: Sequence[Job], plan: Plan) -> None:
    """Let the jobs wait that come after others, or for a failure."""
    waiting = [place for place, barrier in enumerate(plan.inputs) if barrier >= 0]
    for place in (*waiting, *(handler.place for handler in plan.handlers)):
        job = jobs[place]
        job.state, job.due, job.eta, job.rank = JobState.BLOCKED, 0.0, 0.0, 0
