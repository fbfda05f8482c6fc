"""How figures become a page of the docs: from made-up JSON, without the library for plots."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from benchmarks import report
from benchmarks.figures import Figures
from benchmarks.report.record import read
from benchmarks.report.table import number, page

if TYPE_CHECKING:
    from pathlib import Path

_PROMISES = {
    "eventmq": {"on disk": "yes: synced", "job of a killed worker": "at once"},
    "rq": {"on disk": "no: later", "job of a killed worker": "no: lost"},
    "saq": {"on disk": "no: never", "job of a killed worker": "after an hour"},
    "eventmq-memory": {"on disk": "no: in memory", "job of a killed worker": "at once"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Figures of three systems, of one alone, and of one that scales."""
    drain = Figures("drain", more={"promises": _PROMISES, "versions": {"rq": "3.0"}})
    for ours, rq, saq in ((900.0, 50.0, 100.0), (1100.0, 70.0, 80.0), (1000.0, 60.0, 90.0)):
        drain.add(**{"eventmq per_second": ours, "rq per_second": rq, "saq per_second": saq})
        drain.add(**{"eventmq-memory per_second": 2 * ours})
    drain.write(tmp_path / "drain.peers.json", "python -m benchmarks drain --against rq,saq")
    recovery = Figures("recovery", more={"promises": _PROMISES})
    for ours in (0.4, 0.6):
        recovery.add(**{"eventmq seconds": ours, "rq seconds": float("inf")})
    recovery.write(tmp_path / "recovery.peers.json", "python -m benchmarks recovery --against rq")
    start = Figures("start", {"import_ms": "<= 100"})
    start.add(import_ms=2.5)
    start.write(tmp_path / "start.json", "python -m benchmarks start")
    scale = Figures("scale_children")
    for children, rate in ((1, 100.0), (2, 190.0), (1, 120.0), (2, 170.0)):
        scale.add(**{f"children={children} per_second": rate})
    scale.write(tmp_path / "scale_children.json", "python -m benchmarks scale_children")
    return tmp_path


def _cells(text: str) -> list[list[str]]:
    """Return the rows of all list-tables of a page, without the marks of literals."""
    rows: list[list[str]] = []
    for line in text.replace("``", "").splitlines():
        if line.startswith("   * - "):
            rows.append([line[7:]])
        elif line.startswith("     -"):
            rows[-1].append(line[7:])
    return rows


def test_each_system_has_its_promise_beside_its_figure(folder: Path) -> None:
    cells = _cells(page(read(folder), {}))
    assert ["rq", "60 (50 to 70)", "16.7", "no: later", "no: lost"] in cells
    assert ["eventmq", "1,000 (900 to 1,100)", "", "yes: synced", "at once"] in cells


def test_the_best_of_the_others_is_what_a_goal_is_about(folder: Path) -> None:
    """EventMQ in memory is none of them."""
    cells = _cells(page(read(folder), {}))
    assert ["drain", "waiting jobs/s, two processes", "1,000", "90 (saq)", "11.1",
            "ratio at least 10: met"] in cells  # fmt: skip


def test_what_never_comes_back_is_said_and_is_strict_json(folder: Path) -> None:
    def refuse(name: str) -> float:
        raise AssertionError(name)

    text = (folder / "recovery.peers.json").read_text()
    assert json.loads(text, parse_constant=refuse)["rows"][1]["values"] == [None, None]
    cells = _cells(page(read(folder), {}))
    assert ["rq", "never", "0", "no: later", "no: lost"] in cells
    assert "EventMQ at most 1: met" in next(row for row in cells if row[0] == "recovery")


def test_what_was_measured_alone_has_its_goal_and_its_command(folder: Path) -> None:
    cells = _cells(page(read(folder), {}))
    assert ["start import_ms", "2.5", "2.5", "2.5", "<= 100", "python -m benchmarks start"] in cells


def test_a_row_that_scales_is_a_curve_of_medians(folder: Path) -> None:
    [record] = [record for record in read(folder) if record.name == "scale_children"]
    points = record.curves()["children"]["per_second"]
    assert [(size, figure.median) for size, figure in points] == [(1.0, 110.0), (2.0, 180.0)]
    assert ["2", "180 (170 to 190)"] in _cells(page([record], {}))


def test_plots_stand_below_their_tables(folder: Path) -> None:
    text = page(read(folder), {"drain": "drain.svg"})
    assert text.index("**drain**") < text.index("/_static/benchmarks/drain.svg")


def test_a_row_that_was_measured_alone_too_has_its_plot_once(folder: Path) -> None:
    """It is of the peers; a row alone that does not scale has none."""
    alone = json.loads((folder / "drain.peers.json").read_text())
    del alone["machine"]["promises"]
    (folder / "drain.json").write_text(json.dumps(alone))
    assert page(read(folder), {"drain": "drain.svg"}).count("drain.svg") == 1


def test_the_table_is_written_where_the_docs_include_it(folder: Path) -> None:
    report.main([str(folder), "--into", str(folder / "docs"), "--no-plots"])
    assert (folder / "docs" / "figures.inc").read_text() == page(read(folder), {})


def test_a_file_that_is_no_figures_is_named(folder: Path) -> None:
    (folder / "other.json").write_text('{"rows": []}')
    with pytest.raises(ValueError, match=r"other\.json is not what python -m benchmarks"):
        read(folder)


@pytest.mark.parametrize(
    ("value", "text"),
    [(155_000.0, "155,000"), (1.0612, "1.06"), (float("inf"), "never"), (0.0, "0")],
)
def test_numbers_have_three_digits_that_count(value: float, text: str) -> None:
    assert number(value) == text


def test_the_pipeline_has_its_goals_beside_its_figures(tmp_path: Path) -> None:
    """What misses one says so, and what was not measured too."""
    spark = {"spark": "4.3.0", "java": 17}
    stream = Figures("spark_stream", {"p95_age_seconds": "< 5"}, more=spark)
    for age in (5.5, 6.5, 4.0):
        stream.add(p95_age_seconds=age)
    stream.write(tmp_path / "stream.json", "python -m benchmarks spark_stream")
    look_back = Figures("look_back", more=spark)
    look_back.add(all_10m_s=369.0, report_10m_s=222.0)
    look_back.write(tmp_path / "look_back.json", "python -m benchmarks look_back")
    report.main([str(tmp_path), "--spark", "--into", str(tmp_path)])
    text = (tmp_path / "spark.inc").read_text()
    found = {cells[0]: cells[1:] for cells in _cells(text)}
    assert found["the same, p95"][:3] == ["5.5 (4 to 6.5), which misses", "< 5", "3"]
    assert found["seconds for all tables of 10 million events"][:2] == ["147", "< 300"]
    title = "seconds for all tables and the report of 10 million events"
    assert found[title][:2] == ["369, which misses", "< 300"]
    assert found["such kills"][:3] == ["not measured here", "10", ""]
    assert "Spark 4.3.0 on Java 17; medians" in text
