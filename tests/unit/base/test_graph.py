"""Expressions as data, and the plans that are made of them."""

from __future__ import annotations

import pytest

from eventmq.errors import NotAllowed, ProtocolError, SettingsError
from eventmq.graph import MAX_NODES, Chain, Chord, Group, Plan, Signature, build, flags_of, refs_of


def sig(name, *, immutable=False):
    return Signature(name, immutable=immutable)


A, B, C, D = map(sig, "abcd")


def made(expression):
    """Return (names, flags, inputs, trees or what is only waited for, result)."""
    nodes, plan, tree = build(expression)
    assert Plan.decode([list(part) for part in map(_lists, plan)], len(nodes))._replace() == plan
    names = "".join(node.signature.task for node in nodes)
    waits = list(plan.joins)
    return names, [node.flags for node in nodes], list(plan.inputs), waits, tree


def _lists(part):
    return [list(item) if isinstance(item, tuple) else item for item in part]


def test_a_signature_alone_waits_for_nothing():
    assert made(A) == ("a", ["n"], [-1], [], 0)


def test_a_link_takes_the_result_of_the_one_before_it():
    assert made(A | B | C) == ("abc", ["no", "ino", "in"], [-1, 0, 1], [0, 1], 2)


def test_an_immutable_link_waits_and_takes_nothing():
    assert made(A | sig("b", immutable=True)) == ("ab", ["n", "n"], [-1, 0], [0], 1)


def test_the_callback_of_a_chord_takes_the_list():
    expected = ("abc", ["no", "no", "in"], [-1, -1, 0], [[0, 1]], 2)
    assert made(Chord(Group((A, B)), C)) == expected
    assert made(Group((A, B)) | C) == expected


def test_all_heads_of_a_group_wait_at_one_join():
    names, _, inputs, waits, tree = made(A | Group((B, C | D)))
    assert (names, inputs, waits, tree) == ("abcd", [-1, 0, 0, 1], [0, 2], [1, 3])


def test_lists_are_nested_as_groups_are():
    names, _, inputs, waits, tree = made(Group((A, Group((B, C)))) | D)
    assert (names, inputs, waits, tree) == ("abcd", [-1, -1, -1, 0], [[0, [1, 2]]], 3)


def test_a_group_that_goes_on_marks_whose_results_may_lack():
    nodes, _, _ = build(Group((A | B, C), on_failure="continue") | D)
    assert [node.flags for node in nodes] == ["no", "cino", "cno", "in"]


def test_an_empty_group_is_the_empty_list():
    nodes, plan, tree = build(Group(()) | A)
    assert ([node.prefix for node in nodes], plan.inputs, tree) == ([([],)], [-1], 0)
    assert build(Group(())).tree == []


def test_what_comes_after_an_empty_group_waits_for_what_was_before_it():
    nodes, plan, _ = build(A | Group(()) | B)
    assert [node.prefix for node in nodes] == [(), ([],)]
    assert (plan.inputs, plan.joins) == ([-1, 0], [0])
    assert made(A | Group((B, Group(()) | C)))[2] == [-1, 0, 0]
    assert made(A | Group((B, Group(()))) | C)[3] == [0, [1, []]]


def test_a_chain_needs_a_link():
    with pytest.raises(SettingsError, match="at least one link"):
        Chain(())


@pytest.mark.parametrize("wrong", [1, "abc", None, lambda: None])
def test_parts_are_signatures_or_larger(wrong):
    for make in (
        lambda: Chain((A, wrong)),
        lambda: Group((wrong,)),
        lambda: Chord(Group(()), wrong),
    ):
        with pytest.raises(SettingsError, match=r"use task.s\(...\)"):
            make()
    with pytest.raises(TypeError):
        A | wrong


def test_error_callbacks_have_the_last_places_and_know_what_they_are_for():
    built = build((A | Group((B, C)).on_error(sig("x"))).on_error(sig("y", immutable=True)))
    assert [node.signature.task for node in built.nodes] == list("abcxy")
    assert [node.flags for node in built.nodes[3:]] == ["in", "n"]
    assert built.plan.handlers == [(3, 1, 3), (4, 0, 3)]
    with pytest.raises(SettingsError, match="an error callback is a signature"):
        A.on_error(B | C)


def test_a_deadline_is_that_of_the_group_and_all_in_it():
    built = build(A | Group((B, C | D), deadline=5) | A)
    assert built.plan.deadlines == [(1, 4, 5.0)]
    for wrong in (0, -1, "5", float("nan")):
        with pytest.raises(SettingsError, match="deadline"):
            Group((A,), deadline=wrong)
    with pytest.raises(SettingsError, match="on_failure"):
        Group((A,), on_failure="ignore")


def test_there_is_a_bound_of_jobs_and_of_depth():
    with pytest.raises(SettingsError, match="at most 50000 jobs"):
        build(Group((A,) * (MAX_NODES + 1)))
    deep = A
    for _ in range(200):
        deep = Group((deep,))
    with pytest.raises(SettingsError, match="nested more than 200 deep"):
        build(deep)


def test_chains_of_a_thousand_links_and_groups_of_ten_thousand_are_built():
    expression = A
    for _ in range(999):
        expression |= B
    assert len(build(expression).plan.joins) == 999
    assert len(build(Group((A,) * 10_000) | B).plan.joins[0]) == 10_000


def test_nothing_without_an_app_can_be_submitted():
    with pytest.raises(NotAllowed, match="made by a task of an app"):
        (A | B).delay()


def test_equal_calls_are_equal():
    assert A | B == Chain((A, B))
    assert (A | B) | (C | D) == Chain((A, B, C, D))


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        [[-1], [], [], []],
        [[-1, 0, 0], [[0]], [], []],  # too many inputs
        [[-1, 1], [0], [], []],  # no such join
        [[-1, -1], [0], [], []],  # no job waits
        [[0, -1], [1], [], []],  # waits for what comes later
        [[0, 1], [1, 0], [], []],  # a cycle
        [[-1, 0], [1], [], []],  # waits for itself
        [[-1, 0], [[0, 0]], [], []],  # twice
        [[-1, 0], [[]], [], []],  # for nothing
        [[-1, 0], [None], [], []],
        [[-1, 0], [[True]], [], []],
        [[-1, 0], ["0"], [], []],
        [[-1, 0], [-1], [], []],
        [[-1, 0], [0], [[0, 0, 1]], []],  # a handler in the middle
        [[-1, -1], [], [[1, 0, 2]], []],  # a handler for itself
        [[-1, -1], [], [], [[0, 3, 1.0]]],
        [[-1, -1], [], [], [[0, 2, 0.0]]],
        [[-1, -1], [], [], [[0, 2, float("inf")]]],
        [[-1, -1], [], [], [[0, 2]]],
    ],
)
def test_a_plan_of_a_peer_is_checked(wrong):
    with pytest.raises(ProtocolError, match="the plan of the graph is malformed"):
        Plan.decode(wrong, 2)


def test_the_letters_are_read_of_the_header():
    assert flags_of("task:a,graph:io") == "io"
    assert flags_of("task:graph:x") == ""
    assert refs_of([0, [1, [2]], []]) == [0, 1, 2]


def test_a_tree_of_a_peer_is_not_too_deep():
    """It is walked by recursion."""
    tree = 0
    for _ in range(300):
        tree = [tree]
    with pytest.raises(ProtocolError, match="more than 200 deep"):
        Plan.decode([[-1, 0], [tree], [], []], 2)
