"""Plots of the records as SVG: dots for rows with peers, curves for rows that scale."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import LogFormatter

from benchmarks.report.goals import AGAINST
from benchmarks.report.record import OWN_NAME, is_ours
from benchmarks.report.table import number

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.report.record import Figure, Record

__all__ = ["draw"]

_OWN_COLOUR, _VARIANT_COLOUR, _PEER_COLOUR = "#1f6f54", "#8fc1ad", "#8a93a0"

#: Row -> title of its plot, and what its axis measures.
_TITLES = {
    "enqueue_one": ("Jobs submitted one by one", "jobs per second"),
    "enqueue_bulk": ("Jobs submitted many at once", "jobs per second"),
    "drain": ("Waiting jobs run by two processes", "jobs per second"),
    "flow": ("Jobs submitted and run at the same time", "jobs per second"),
    "call": ("From the call to its result, median", "milliseconds"),
    "round_trip": ("From the call to its result, median", "milliseconds"),
    "latency_under_load": ("Start of a job at half of the peak rate, p99", "milliseconds"),
    "mixed": ("Start of a short job beside jobs of 1 s, p99", "milliseconds"),
    "memory": ("Memory of server and workers after their jobs", "MiB"),
    "recovery": ("Until the job of a killed worker runs again", "seconds"),
    "scale_children": ("More child processes in one worker", ""),
    "scale_clients": ("More clients that submit at once", ""),
    "scale_workers": ("More workers", ""),
}

#: Figure or axis of a row that scales -> its description with the unit.
_AXES = {
    "per_second": "jobs per second",
    "receipt_p99_ms": "ms until a receipt, p99",
    "broker_cpu_us_per_job": "broker, us per job",
    "children": "child processes",
    "clients": "clients",
    "workers": "workers",
}

#: Parts of the name of a system, as people write them.
_WORDS = {
    "celery": "Celery", "dramatiq": "Dramatiq", "eventmq": "EventMQ", "huey": "Huey",
    "postgresql": "PostgreSQL", "procrastinate": "Procrastinate", "rabbitmq": "RabbitMQ",
    "redis": "Redis", "rq": "RQ", "saq": "SAQ", "sqlite": "SQLite", "taskiq": "Taskiq",
}  # fmt: skip

#: Inches: width, and height of a line of dots and of a curve.
_WIDTH, _LINE, _CURVE = 7.0, 0.34, 2.2

# The same figures always make the same file, and text stays text.
mpl.rcParams.update({"svg.hashsalt": "eventmq", "svg.fonttype": "none", "font.size": 9})


def draw(records: Sequence[Record], folder: Path) -> dict[str, str]:
    """Draw the plots; return row -> name of the file."""
    names = {}
    for record in records:
        canvas = _dots(record) if len(record.systems()) > 1 else _curves(record)
        if canvas is not None:
            names[record.name] = f"{record.name}.svg"
            canvas.savefig(folder / names[record.name], metadata={"Date": None})
    return names


def _dots(record: Record) -> Canvas | None:
    """Return a plot of the goal's figure of each system, the best on top."""
    goal = AGAINST[record.name]
    values = [(system, figures[goal.figure]) for system, figures in record.systems().items()
             if goal.figure in figures and math.isfinite(figures[goal.figure].median)]  # fmt: skip
    if not values:
        return None
    values.sort(key=lambda pair: pair[1].median, reverse=goal.less)
    canvas = Canvas(figsize=(_WIDTH, 1.0 + _LINE * len(values)), layout="constrained")
    axes = canvas.subplots()
    for index, (system, figure) in enumerate(values):
        axes.errorbar([figure.median], [index], xerr=_spread([figure]), fmt="o", ms=6, lw=1.2,
                      capsize=3, color=_colour(system))  # fmt: skip
        axes.annotate(number(figure.median), (figure.median, index), (0, 5), ha="center",
                      textcoords="offset points", fontsize=8)  # fmt: skip
    axes.set_yticks(range(len(values)), [_named(system) for system, _ in values])
    axes.set_ylim(-0.6, len(values) - 0.3)
    axes.margins(x=0.1)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    # Within one power of ten some of the ticks between have labels: 60, not a six times ten.
    axes.xaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.4)))
    title, unit = _TITLES[record.name]
    axes.set_title(title, loc="left")
    better = "less" if goal.less else "more"
    axes.set_xlabel(f"{unit} (logarithmic; {better} is better)", loc="left")
    _plain(axes)
    return canvas


def _named(system: str) -> str:
    """Return the name of a system as people write it."""
    return ", ".join(_WORDS.get(part, part) for part in system.split("-"))


def _colour(system: str) -> str:
    if system == OWN_NAME:
        return _OWN_COLOUR
    return _VARIANT_COLOUR if is_ours(system) else _PEER_COLOUR


def _spread(figures: Sequence[Figure]) -> list[list[float]]:
    """Return the distances of minimum and maximum from the median."""
    maxima = [figure.most if math.isfinite(figure.most) else figure.median for figure in figures]
    return [
        [figure.median - figure.least for figure in figures],
        [value - figure.median for value, figure in zip(maxima, figures, strict=True)],
    ]


def _curves(record: Record) -> Canvas | None:
    """Return a small plot for each figure, over the size."""
    curves = [(axis, name, points) for axis, points_by_size in record.curves().items()
              for name, points in points_by_size.items()]  # fmt: skip
    if not curves:
        return None
    canvas = Canvas(figsize=(_WIDTH, _CURVE * len(curves)), layout="constrained")
    for axes, (axis, name, points) in zip(
        canvas.subplots(len(curves), squeeze=False)[:, 0], curves, strict=True
    ):
        points_by_size = sorted(points)
        sizes = [size for size, _ in points_by_size]
        values = [figure.median for _, figure in points_by_size]
        spread = _spread([figure for _, figure in points_by_size])
        axes.errorbar(
            sizes, values, yerr=spread, color=_OWN_COLOUR, marker="o", ms=3, lw=1.2, capsize=2
        )
        axes.set_xscale("log")
        axes.set_xticks(sizes, [f"{size:,.0f}" for size in sizes])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.set_title(_TITLES[record.name][0], loc="left")
        axes.set_xlabel(_AXES.get(axis, axis))
        axes.set_ylabel(_AXES.get(name, name))
        _plain(axes)
    return canvas


def _plain(axes: Any) -> None:
    """Remove the frame on the sides without an axis."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="both", color="#dddddd", lw=0.5)
    axes.set_axisbelow(True)
