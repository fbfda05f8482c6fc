"""Whatever plan a peer sends: it is refused, or all of its jobs come to an end."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from eventmq.broker.limits import Limits
from eventmq.job import OutcomeKind
from eventmq.wire.batches import pack
from eventmq.wire.commands import Ack, Error, Request
from tests.support.broker_harness import Broker, chunks, row
from tests.support.examples import examples

MAX_NODES = 5

node_indexes = st.integers(-1, MAX_NODES)
trees = st.recursive(node_indexes, lambda parts: st.lists(parts, max_size=3), max_leaves=5)
junk = st.none() | st.booleans() | st.floats() | st.text(max_size=2) | st.lists(st.integers(-3, 9))
plans = st.tuples(
    st.lists(node_indexes, min_size=1, max_size=MAX_NODES),
    st.lists(trees | junk, max_size=3),
    st.lists(st.tuples(node_indexes, node_indexes, node_indexes) | junk, max_size=2),
    st.lists(st.tuples(node_indexes, node_indexes, st.floats(-1, 9)) | junk, max_size=1),
)


@st.composite
def likely(draw: Any) -> tuple[Any, ...]:
    """Return a plan that is right more often than not."""
    count = draw(st.integers(2, MAX_NODES))
    first = draw(st.integers(1, count - 1))
    inputs = [-1] * first + [0] * (count - first)
    tree = draw(st.permutations(range(first)))
    handlers = draw(st.sampled_from([[], [(count, 0, count)], [(count, 0, 1)]]))
    deadlines = draw(st.sampled_from([[], [(0, count, 5.0)]]))
    return inputs + [-1] * len(handlers), [list(tree)], handlers, deadlines


ends = st.lists(
    st.sampled_from([OutcomeKind.SUCCEEDED, OutcomeKind.FAILED]), max_size=2 * MAX_NODES
)


@settings(max_examples=examples(200), deadline=None)
@given(
    plans | likely(), ends, st.sampled_from(["n", "in", "cino", "cno"]), st.sampled_from([1, 1000])
)
def test_a_plan_is_refused_or_carried_out(
    plan: tuple[Any, ...], ends: list[OutcomeKind], flags: str, graph_slice: int
) -> None:
    broker = Broker(None, Limits(graph_slice=graph_slice))
    ids = [broker.new_id() for _ in plan[0]]
    rows = [(job_id, 0, b"") for job_id in ids]
    body = pack([[("default", f"task:t,content-type:x,graph:{flags}")], rows, plan])
    headers = f"ack-requested,nodes:{len(ids)}"
    [answer] = broker.tell(b"client", Request(ids[0], "", headers, body))
    if isinstance(answer, Error):
        assert answer.code in {"bad-body", "bad-header"}
        assert broker.call("state", ids=ids[:1]) == [[ids[0], ""]]
    else:
        assert isinstance(answer, Ack)
        _carry_out(broker, ends)
        states = {state for _, state in broker.call("state", ids=ids)}
        assert states <= {"succeeded", "failed", "cancelled"}
        counts = broker.core.state.queues["default"].counts
        assert (counts.queued, counts.delayed, counts.blocked) == (0, 0, 0)
    broker.close()


def _carry_out(broker: Broker, ends: list[OutcomeKind]) -> None:
    """Answer everything, each job with the next of these ends."""
    kinds = iter(ends)
    messages, received = broker.worker(), 0
    while assigned := chunks(messages):
        messages = []
        for chunk, index in assigned:
            received += 1
            outcomes = [
                row(position, int(next(kinds, OutcomeKind.SUCCEEDED)), b"r")
                for position in range(len(index.entries))
            ]
            messages += broker.answer(b"worker", chunk, outcomes)
            messages += broker.ready(b"worker", 1, received=received)
