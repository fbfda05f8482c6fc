"""How the graph of a job is drawn."""

from __future__ import annotations

from eventmq.cli.inspect import draw_graph


def row(task, *, before=0, after=0, state="blocked", handler=False):
    return {
        "task": task, "state": state, "id": f"id-{task}", "input": before, "output": after,
        "handler": handler,
    }  # fmt: skip


def test_a_chain_goes_straight_down():
    rows = [row("a", after=1, state="running"), row("b", before=1, after=2), row("c", before=2)]
    assert list(draw_graph(rows)) == [
        "graph id-a: 1 running, 2 blocked",
        "└─ c  blocked  id-c",
        "   b  blocked  id-b",
        "   a  running  id-a",
    ]


def test_a_chord_branches():
    rows = [
        row("a", after=1), row("b", after=2), row("c", before=2, after=1), row("d", before=1),
        row("x", handler=True),
    ]  # fmt: skip
    assert list(draw_graph(rows))[1:] == [
        "└─ d  blocked  id-d",
        "   ├─ a  blocked  id-a",
        "   └─ c  blocked  id-c",
        "      b  blocked  id-b",
        "on error: x  blocked  id-x",
    ]


def test_what_several_wait_for_is_drawn_once():
    rows = [row("a", after=1), row("b", before=1), row("c", before=1)]
    assert list(draw_graph(rows))[1:] == [
        "├─ b  blocked  id-b",
        "│  a  blocked  id-a",
        "└─ c  blocked  id-c",
        "   waits for the same as above",
    ]


def test_of_very_many_the_rest_is_counted():
    rows = [row("a", after=1, state="succeeded") for _ in range(60)] + [row("b", before=1)]
    lines = list(draw_graph(rows))
    assert len(lines) == 53
    assert lines[-1] == "   └─ 10 more: 10 succeeded"


def test_a_chain_of_thousands_is_no_recursion():
    rows = [row("a", before=n, after=n + 1) for n in range(5000)]
    rows[-1]["output"] = 0
    assert len(list(draw_graph(rows))) == 5001
