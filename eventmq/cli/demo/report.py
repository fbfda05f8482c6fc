"""Report of the demo: results, speed, and whether a job was lost."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eventmq.cli.demo.sources import COUNTS
from eventmq.cli.output import paint, show_object, show_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eventmq.cli.demo.run import DemoRun

__all__ = ["make_report", "show_report"]

#: Rows of each table.
TOP = 5


def make_report(
    paths: Sequence[Path], result: DemoRun, direct: Sequence[Mapping[str, Any]], *, workers: int
) -> dict[str, Any]:
    """Return the report as one object.

    Args:
        paths: The files.
        result: Results of the jobs.
        direct: The figures of each file, computed in this process.
        workers: Number of worker processes.
    """
    results = [
        (path, figures) for path, figures in zip(paths, result.results, strict=True) if figures
    ]
    pairs = zip(result.results, direct, strict=True)
    jobs = len(paths)
    return {
        "jobs": jobs,
        "succeeded": len(results),
        "failed": jobs - len(results),
        "workers": workers,
        "seconds": round(result.seconds, 3),
        "jobs_per_second": round(jobs / result.seconds, 1),
        "submit_seconds": round(result.receipt, 4),
        "start_delay_p50": _percentile(result.delays, 50),
        "start_delay_p99": _percentile(result.delays, 99),
        "totals": _totals([figures for _, figures in results]),
        "direct": _totals(direct),
        "match": all(_same(figures, expected) for figures, expected in pairs),
        "largest": _largest(results),
        "most_complex": _functions(results, "complex", "branches"),
        "longest": _functions(results, "longest", "lines"),
        "errors": list(result.errors[:TOP]),
    }


def _same(figures: Mapping[str, Any] | None, expected: Mapping[str, Any]) -> bool:
    return figures is not None and all(figures[name] == expected[name] for name in expected)


def _percentile(values: Sequence[float], percent: int) -> float | None:
    """Return the smallest value that so many percent of the values do not exceed."""
    if not values:
        return None
    index = -(-len(values) * percent // 100) - 1
    return round(sorted(values)[index], 4)


def _totals(figures: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    return {name: sum(row[name] for row in figures) for name in COUNTS}


def _largest(results: Sequence[tuple[Path, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    first = sorted(results, key=lambda item: (-item[1]["lines"], item[0]))[:TOP]
    return [
        {"module": _short(path), **{name: figures[name] for name in COUNTS}}
        for path, figures in first
    ]


def _functions(
    results: Sequence[tuple[Path, Mapping[str, Any]]], figure: str, by: str
) -> list[dict[str, Any]]:
    """Return the functions with the highest figure, at most one of each file."""
    rows = [
        {"function": function["name"], "where": f"{_short(path)}:{function['line']}",
         "lines": function["lines"], "branches": function["branches"]}
        for path, figures in results if (function := figures[figure])
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (-row[by], row["where"]))[:TOP]


def _short(path: Path) -> str:
    """Return the path as it is inside the standard library."""
    library = Path(sysconfig.get_path("stdlib"))
    return str(path.relative_to(library) if path.is_relative_to(library) else path)


def show_report(report: Mapping[str, Any]) -> None:
    """Print a report for people."""
    for title, key in (
        ("The largest modules", "largest"),
        ("The most complex functions", "most_complex"),
        ("The longest functions", "longest"),
    ):
        click.echo(f"\n{title}")
        rows = report[key]
        show_rows(rows, tuple(rows[0]) if rows else (), as_json=False)
    click.echo("\nThe run")
    show_object(_run(report), as_json=False)
    click.echo()
    click.echo(_verdict(report))


def _run(report: Mapping[str, Any]) -> dict[str, str]:
    return {
        "jobs": f"{report['jobs']}, {report['failed']} failed, {report['workers']} processes",
        "on disk after": f"{report['submit_seconds'] * 1000:.0f} ms, all of them",
        "all done after": f"{report['seconds']:.2f} s, {report['jobs_per_second']:.0f} jobs/s",
        "start delay": f"p50 {_seconds(report['start_delay_p50'])}, "
        f"p99 {_seconds(report['start_delay_p99'])} (all were submitted at once)",
        "total by jobs": _counts(report["totals"]),
        "counted here": _counts(report["direct"]),
    }


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} s"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def _verdict(report: Mapping[str, Any]) -> str:
    if report["match"]:
        return paint("Nothing was lost: the totals agree, file by file.", "green")
    return paint("The totals differ.", "red")
