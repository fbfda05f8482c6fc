from __future__ import annotations

import ast
from pathlib import Path

import pytest

from eventmq.cli.demo.command import DemoRun, make_report
from eventmq.cli.demo.sources import COUNTS, MAX_FILES, find_sources, measure

SOURCE = b"""
class A:
    def method(self):
        return 1

async def long(x):
    def inner():
        if x and x or x:
            return [y for y in x if y]
    try:
        return inner()
    except ValueError:
        pass
"""


def test_the_figures_of_a_source() -> None:
    figures = measure(SOURCE)
    assert (13, 3, 1, 5) == tuple(figures[name] for name in COUNTS)
    assert {"name": "long", "line": 6, "lines": 8, "branches": 2} == figures["longest"]
    assert {"name": "long.inner", "line": 7, "lines": 3, "branches": 5} == figures["complex"]


def test_a_source_that_cannot_be_parsed_has_lines_only() -> None:
    figures = measure(b"print 1\nprint 2")
    assert (2, 0, 0, 0) == tuple(figures[name] for name in COUNTS)
    assert figures["longest"] is None


@pytest.mark.parametrize(
    "source", [b"", b"x = 1", b"x = '\\d'\n", b"# coding: latin-1\nx = '\xe9'"]
)
def test_odd_sources_are_measured(source: bytes) -> None:
    assert 0 == measure(source)["functions"]


def test_the_counts_are_those_of_a_plain_walk() -> None:
    for path in find_sources()[:40]:
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
        functions = sum(isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) for n in nodes)
        classes = sum(isinstance(n, ast.ClassDef) for n in nodes)
        figures = measure(path.read_bytes())
        assert (functions, classes) == (figures["functions"], figures["classes"])


def test_the_sources_are_those_of_the_standard_library() -> None:
    sources = find_sources()
    assert 300 <= len(sources) <= MAX_FILES
    assert sources == sorted(sources)
    assert not [path for path in sources if "site-packages" in path.parts]


def test_with_too_few_sources_tests_are_taken_too(tmp_path: Path) -> None:
    for name in ("a.py", "test/b.py", "site-packages/c.py", "d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    names = [[p.name for p in find_sources(tmp_path, min_files=n)] for n in (1, 2, 3)]
    assert [["a.py"], ["a.py", "b.py"], ["a.py", "c.py", "b.py"]] == names


def report(
    *figures: dict[str, object] | None, direct: list[dict[str, object]]
) -> dict[str, object]:
    paths = [Path(f"{n}.py") for n in range(len(figures))]
    run = DemoRun(
        results=figures, errors=["lost"] if None in figures else [], receipt=0.1, seconds=2.0,
        delays=[n / 100 for n in range(100)],
    )  # fmt: skip
    return make_report(paths, run, direct, workers=2)


def test_equal_figures_match() -> None:
    output = report({**measure(SOURCE), "started": 1.0}, direct=[measure(SOURCE)])
    assert (1, 1, 0, True) == tuple(output[k] for k in ("jobs", "succeeded", "failed", "match"))
    assert (0.49, 0.98) == (output["start_delay_p50"], output["start_delay_p99"])
    assert output["totals"] == output["direct"]


def test_a_lost_job_and_a_wrong_figure_show() -> None:
    assert not report(None, direct=[measure(SOURCE)])["match"]
    wrong = {**measure(SOURCE), "lines": 1, "started": 1.0}
    assert not report(wrong, direct=[measure(SOURCE)])["match"]
