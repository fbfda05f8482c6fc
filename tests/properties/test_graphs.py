"""Nested graphs give what calling the same tasks in order gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventmq import EventMQ, JobCancelled, JobFailed, chain, chord, group
from eventmq.graph import Chain, Chord, Expression, Group, Signature
from eventmq.testing import use_app
from tests.support.examples import examples

app = EventMQ("graphs")


@app.task
def show_args(*args: Any) -> str:
    """Return a text of all arguments: those that come from before, and its own name."""
    *before, name = args
    return f"{name}({_text(before[0])})" if before else str(name)


@app.task
def fail(*args: Any) -> None:
    raise ValueError(args[-1])


def _text(value: Any) -> str:
    return "[" + " ".join(map(_text, value)) + "]" if isinstance(value, list) else str(value)


@pytest.fixture(scope="module", params=[1000, 1], ids=["whole", "slices"])
def inline(request: Any) -> Any:
    """Return the app, in this process; the number of commits of a graph is bounded."""
    with use_app(app) as inline:
        state = inline._cluster.core.state
        state.limits = replace(state.limits, graph_slice=request.param)
        yield inline


# The same without a broker


class Leaf(NamedTuple):
    """The end of a job: its value or None, and whether lists continue without it."""

    value: str | None
    collected: bool = False


class Input(NamedTuple):
    """Input of a part: nothing, a value, or the failure of a job that it waits for."""

    there: bool = False
    value: Any = None
    broken: bool = False


def run(part: Expression, given: Input) -> tuple[Any, Input]:
    """Return the tree of ends, and the input of the part after an empty one."""
    if isinstance(part, Signature):
        return _call(part, given), given
    if isinstance(part, (Chain, Chord)):
        tree: Any = None
        for link in part.parts():
            tree, given = run(link, given)
            given = _handed_on(tree, given)
        return tree, given
    assert isinstance(part, Group)
    trees = [run(member, given)[0] for member in part.members]
    return (_collected(trees) if part.on_failure == "continue" else trees), given


def _call(call: Signature, given: Input) -> Leaf:
    if given.broken or call.task.endswith("fail"):
        return Leaf(None)
    before = (given.value,) if given.there and not call.immutable else ()
    return Leaf(show_args(*before, *call.args))


def _leaves(tree: Any) -> list[Leaf]:
    return [tree] if isinstance(tree, Leaf) else [leaf for part in tree for leaf in _leaves(part)]


def _collected(tree: Any) -> Any:
    if isinstance(tree, Leaf):
        return tree._replace(collected=True)
    return [_collected(part) for part in tree]


def _values(tree: Any) -> Any:
    if isinstance(tree, Leaf):
        return tree.value
    return [_values(part) for part in tree if not isinstance(part, Leaf) or part.value is not None]


def _handed_on(tree: Any, given: Input) -> Input:
    """Return the input of the next part."""
    leaves = _leaves(tree)
    broken = any(leaf.value is None and not leaf.collected for leaf in leaves)
    return Input(True, _values(tree), given.broken if not leaves else broken)


# Expressions

names = st.sampled_from("abcdefg")
calls = st.one_of(
    names.map(show_args.s),
    names.map(show_args.s),
    names.map(show_args.s),
    names.map(show_args.si),
    names.map(fail.s),
)
policies = st.sampled_from(["cancel", "cancel", "continue"])


def larger(parts: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    lists = st.lists(parts, max_size=4)
    return st.one_of(
        st.lists(parts, min_size=1, max_size=4).map(chain),
        st.builds(lambda members, policy: group(members, on_failure=policy), lists, policies),
        st.builds(
            lambda members, last, policy: chord(members, last, on_failure=policy),
            lists, parts, policies,
        ),
        st.builds(lambda one, other: one | other, parts, parts),
    )  # fmt: skip


expressions: st.SearchStrategy[Expression] = st.recursive(calls, larger, max_leaves=16)


@settings(max_examples=examples(150), deadline=None)
@given(expressions)
def test_a_graph_gives_what_its_tasks_give(inline: Any, expression: Expression) -> None:
    """Results are nested as the groups are; what depends on a failure is cancelled."""
    tree, _ = run(expression, Input())
    handle = expression.delay()
    inline.drain(limit=1000)
    if isinstance(tree, Leaf):
        assert _outcome(handle.get, tree) == tree.value
    else:
        jobs, leaves = list(handle), _leaves(tree)
        assert [_outcome(job.get, leaf) for job, leaf in zip(jobs, leaves, strict=True)] == [
            leaf.value for leaf in leaves
        ]
        if all(leaf.value is not None for leaf in leaves):
            assert handle.get() == _values(tree)
    assert inline.enqueued() == []
    counts = (
        inline._cluster.core.state.queues["default"].counts if inline._cluster.submitted else None
    )
    assert counts is None or (counts.queued, counts.delayed, counts.blocked) == (0, 0, 0)


def _outcome(get: Any, leaf: Leaf) -> str | None:
    try:
        return str(get())
    except (JobFailed, JobCancelled):
        assert leaf.value is None
        return None
