"""The table of the pipeline on Spark, which `pipeline_page` makes from the JSON of its rows.

Each figure has its goal beside it; figures without a file are marked as not measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from benchmarks.report.record import Figure
from benchmarks.report.table import number, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.report.record import Record

__all__ = ["pipeline_page"]


class _Line(NamedTuple):
    """A line of the table: a figure of a row, its description and its goal."""

    row: str
    figure: str
    title: str
    goal: str = ""


def _lines() -> Iterator[_Line]:
    yield _Line("journal", "per_second", "events/s out of a store into sealed files", ">= 120,000")
    yield _Line("journal_kills", "lost", "events lost over 50 kills of the journal", "0")
    yield _Line("journal_kills", "twice", "events there twice after them", "0")
    for size, goal in (("1", ""), ("10", "< 300")):
        about = f"of {size} million events"
        yield _Line("look_back", f"tables_{size}m_s", f"seconds for all tables {about}", goal)
        title = f"seconds for all tables and the report {about}"
        yield _Line("look_back", f"all_{size}m_s", title, goal)
    yield _Line("look_back", "growth", "times that of 1 million", "<= 10")
    for name in (
        "audit", "stats", "slo", "failures", "killers", "trace", "capacity", "anomaly", "report",
    ):  # fmt: skip
        yield _Line("look_back", f"{name}_10m_s", f"of it: {name}")
    title = "largest error of a percentile against numpy's"
    yield _Line("spark", "percentile_error", title, "< 0.01")
    for name, title in (
        ("lost", "planted losses found by the audit"), ("double", "planted second leases found"),
        ("stuck", "planted stuck jobs found"),
    ):  # fmt: skip
        yield _Line("spark", f"planted_{name}_found", title, "1,000")
    yield _Line("spark", "false_alarms", "false alarms among a million clean jobs", "0")
    title = "events/s of a stream for a minute"
    yield _Line("spark_stream", "events_per_second", title, ">= 20,000")
    yield _Line("spark_stream", "p50_age_seconds", "age of events in its tables, p50, seconds")
    yield _Line("spark_stream", "p95_age_seconds", "the same, p95", "< 5")
    title = "seconds until all were in after the last one"
    yield _Line("spark_stream", "behind_at_the_end", title)
    title = "of 2,000,000 events counted over kills of the driver"
    yield _Line("spark_stream_kills", "counted", title, "2,000,000")
    yield _Line("spark_stream_kills", "kills", "such kills", "50")
    title = "of 100,000 failed jobs replayed once over kills"
    yield _Line("spark_replay", "replayed_once", title, "100,000")
    yield _Line("spark_replay", "replayed_more", "replayed more often", "0")
    yield _Line("spark_replay", "kills", "such kills", "10")


def pipeline_page(records: Sequence[Record]) -> str:
    """Return the text about the rows of the pipeline that the docs include."""
    known = {(r.name, figure.name): figure for r in records for figure in r.figures}
    for size in ("1", "10"):
        whole, report = (known.get(("look_back", f"{n}_{size}m_s")) for n in ("all", "report"))
        if whole is not None and report is not None and whole.runs == 1:
            seconds = whole.median - report.median
            tables = Figure("", seconds, seconds, seconds, 1)
            known["look_back", f"tables_{size}m_s"] = tables
    rows = []
    for line in _lines():
        figure = known.get((line.row, line.figure))
        value, runs = "not measured here", ""
        if figure is not None:
            value, runs = _text(figure, line.goal), str(figure.runs)
        rows.append((line.title, value, line.goal, runs, f"``python -m benchmarks {line.row}``"))
    machines = sorted({_machine(r) for r in records if "spark" in r.machine})
    text = f"{'; '.join(machines)}; medians, with least and most where there were several runs."
    head = ("what", "figure", "goal", "runs", "command")
    lines = ["..", "   Written by python -m benchmarks report --spark; do not edit.", "", text, ""]
    return "\n".join([*lines, *table(head, rows)]).rstrip() + "\n"


def _machine(record: Record) -> str:
    known = record.machine
    spark = f"Spark {known['spark']} on Java {known['java']}"
    return f"{known['cores']} cores, CPython {known['python']}, {spark}"


def _text(figure: Figure, goal: str) -> str:
    """Return the text of a figure, and whether it misses its goal."""
    spread = "" if figure.least == figure.most else (
        f" ({number(figure.least)} to {number(figure.most)})"
    )  # fmt: skip
    return f"{number(figure.median)}{spread}{'' if _met(figure.median, goal) else ', which misses'}"


def _met(value: float, goal: str) -> bool:
    sign, _, bound = goal.rpartition(" ")
    limit = float(bound.replace(",", "")) if bound else 0.0
    tests = {"<": value < limit, "<=": value <= limit, ">=": value >= limit, "": value == limit}
    return not goal or tests[sign]
