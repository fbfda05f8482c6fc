"""A report as one self-contained page of HTML: computes shapes, which the template lays out.

Plots over time are shapes in a box of 1000 by 1000. No drawing library is used: the page must be
small, follow the reader's light or dark colours, and be readable on a phone. There the box is
stretched; the labels, which are not part of it, are not.

**Warning** to editors of the template: names of tasks, queues, workers and errors are untrusted.
jinja2 escapes them; none may get into a script, a style or the name of an attribute, and nothing
may be marked as safe.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, TypeAlias

from jinja2 import Environment, PackageLoader, StrictUndefined

from eventmq.cli import printable
from eventmq_contrib.extras import need

__all__ = ["SIZE", "Layer", "Plot", "lines", "number", "page", "seconds", "stacked"]

Series: TypeAlias = Mapping[str, Sequence[float | None]]

#: Width and height of the box.
SIZE = 1000.0

#: Maximum numbers of labels at an axis.
_Y_LABELS, _X_LABELS = 5, 7

#: Steps of a time axis, in seconds.
_STEPS = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400,
    172_800, 604_800, 1_209_600, 2_592_000, 7_776_000, 31_536_000,
)  # fmt: skip

_DAY = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One shape: ``kind`` is ``bars``, ``line`` or ``area``; ``path`` is the data of SVG's path."""

    kind: str
    name: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A plot.

    Attributes:
        y: Labels of the left axis: height in percent, text.
        x: Labels below: position in percent, text.
        layers: In the order in which they are drawn; the names are the legend.
        tooltips: Texts shown under the pointer: left edge and width in the box, text.
    """

    y: Sequence[tuple[float, str]]
    x: Sequence[tuple[float, str]]
    layers: Sequence[Layer]
    tooltips: Sequence[tuple[float, float, str]]


def stacked(
    times: Sequence[float], series: Series, *, width: float, to_text: Callable[[float], str],
) -> Plot | None:  # fmt: skip
    """Return stacked bars, the first series at the bottom; None if all series are empty.

    Args:
        times: Beginnings of even spans of time, in seconds since 1970.
        series: Name -> a value for each span.
        width: Seconds of a span.
        to_text: Formats a value.
    """
    totals = [sum(values[n] or 0.0 for values in series.values()) for n in range(len(times))]
    if not any(totals):
        return None
    top, ticks = _axis(max(totals))
    below = [0.0] * len(times)
    layers = []
    step = SIZE / len(times)
    for name, values in series.items():
        parts = []
        for n, value in enumerate(values):
            if value:
                high, low = SIZE * (1 - (below[n] + value) / top), SIZE * (1 - below[n] / top)
                left, right = n * step + step * 0.06, (n + 1) * step - step * 0.06
                parts.append(f"M{left:.1f} {low:.1f}V{high:.1f}H{right:.1f}V{low:.1f}z")
                below[n] += value
        layers.append(Layer(kind="bars", name=name, path="".join(parts)))
    labels = [(tick / top * 100, to_text(tick)) for tick in ticks]
    return Plot(
        y=labels, x=_times(times, width), layers=layers, tooltips=_tooltips(times, series, to_text)
    )


def lines(
    times: Sequence[float], series: Series, *, width: float, to_text: Callable[[float], str],
) -> Plot | None:  # fmt: skip
    """Return a line per series, broken where a value is None; None if all values are None.

    Args:
        times: As in `stacked`.
        series: As in `stacked`.
        width: As in `stacked`.
        to_text: As in `stacked`.
    """
    present = [v for values in series.values() for v in values if v is not None]
    if not present:
        return None
    top, ticks = _axis(max(present))
    step = SIZE / len(times)
    layers = []
    for name, values in series.items():
        parts, drawing = [], False
        for n, value in enumerate(values):
            if value is not None:
                x, y = (n + 0.5) * step, SIZE * (1 - value / top)
                # A point between two gaps is a dot: a line of no length with round ends.
                parts.append(f"L{x:.1f} {y:.1f}" if drawing else f"M{x:.1f} {y:.1f}h.1")
            drawing = value is not None
        layers.append(Layer(kind="line", name=name, path="".join(parts)))
    labels = [(tick / top * 100, to_text(tick)) for tick in ticks]
    return Plot(
        y=labels, x=_times(times, width), layers=layers, tooltips=_tooltips(times, series, to_text)
    )


def _tooltips(
    times: Sequence[float], series: Series, to_text: Callable[[float], str]
) -> list[tuple[float, float, str]]:
    step = SIZE / len(times)
    tooltips = []
    for n, time in enumerate(times):
        named = ((printable(name), values[n]) for name, values in series.items())
        texts = [f"{name}: {to_text(value)}" for name, value in named if value is not None]
        if texts:
            tooltips.append((n * step, step, "\n".join([f"{_time_text(time)} UTC", *texts])))
    return tooltips


# Axes


def _axis(maximum: float) -> tuple[float, list[float]]:
    """Return the end of an axis from 0, and its ticks: multiples of 1, 2 or 5 powers of 10."""
    maximum = maximum or 1.0
    power = 10.0 ** math.floor(math.log10(maximum / _Y_LABELS))
    step = next(s * power for s in (1, 2, 5, 10) if s * power * _Y_LABELS >= maximum * 0.999)
    n = math.ceil(maximum / step - 1e-9)
    return step * n, [step * k for k in range(n + 1)]


def _times(times: Sequence[float], width: float) -> list[tuple[float, str]]:
    begin, end = times[0], times[-1] + width
    whole = end - begin
    step = next((s for s in _STEPS if whole / s <= _X_LABELS), _STEPS[-1])
    at, labels = math.ceil(begin / step) * step, []
    while at <= end:
        midnight = step >= 3600 and not at % _DAY  # noqa: PLR2004
        form = "%H:%M:%S" if step < 60 else "%d %b" if midnight or step >= _DAY else "%H:%M"  # noqa: PLR2004
        text = datetime.fromtimestamp(at, timezone.utc).strftime(form)
        labels.append(((at - begin) / whole * 100, text))
        at += step
    return labels


# Numbers for people


def number(value: float) -> str:
    """Return a count: ``12``, ``4,200``, ``1.2 M``."""
    if value >= 1e6:  # noqa: PLR2004
        return f"{value / 1e6:.3g} M"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"  # noqa: PLR2004


def seconds(value: float) -> str:
    """Return a span of time: ``3.2 ms``, ``14 s``, ``2.5 min``, ``7 h``."""
    if not value:
        return "0"
    for limit, part, unit in ((1.0, 1e-3, "ms"), (120.0, 1.0, "s"), (7200.0, 60.0, "min")):
        if value < limit:
            return f"{value / part:.3g} {unit}"
    return f"{value / 3600:.3g} h" if value < 2 * _DAY else f"{value / _DAY:.3g} d"


# The page

#: Colours of the style that have no name.
_COLOURS = 7

#: Names of series with a fixed colour -> its name in the style.
_STATES = {
    "succeeded": "succeeded", "tried again": "tried", "failed": "failed",
    "cancelled": "cancelled", "expired": "expired",
}  # fmt: skip


def page(report: Mapping[str, Any], *, title: str, made: float) -> str:
    """Return the page.

    Args:
        report: Result of `eventmq_contrib.spark.analyses.report.report`.
        title: Title of the page.
        made: Time of the report, Unix time in seconds.

    Raises:
        PluginError: jinja2 is missing.
    """
    need("jinja2", user="eventmq spark report")
    environment = Environment(
        loader=PackageLoader("eventmq_contrib.spark", "templates"), autoescape=True,
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "timestamp": _or_dash(_time_text), "number": _or_dash(number), "printable": printable,
        "seconds": _or_dash(seconds), "share": _or_dash(_share),
    }  # fmt: skip
    return environment.get_template("report.html").render(
        title=title, made=made, report=report, plots=_plots(report), size=SIZE,
        states=list(_STATES.values()), colours=_COLOURS,
    )  # fmt: skip


def _or_dash(to_text: Callable[[float], str]) -> Callable[[float | None], str]:
    return lambda value: "-" if value is None else to_text(value)


def _share(value: float) -> str:
    percent = value * 100
    decimals = 2 if 99 < percent < 100 or 0 < percent < 1 else 1  # noqa: PLR2004
    return f"{percent:,.{decimals}f}".removesuffix(".0") + " %"


def _time_text(value: float) -> str:
    return datetime.fromtimestamp(value, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def _plots(report: Mapping[str, Any]) -> list[tuple[str, str, Plot, list[str]]]:
    """Return the plots that have values.

    Returns:
        Title, note, shapes, and the suffix of the CSS class of each layer.
    """
    line = report["timeline"]
    times, width = line["times"], line["width"]
    every = f"per {seconds(width)}"
    plots = (
        ("Throughput", f"jobs that ended, and attempts that are tried again, {every}",
         stacked(times, line["ended"], width=width, to_text=number)),
        ("Came in", f"new jobs by queue, {every}",
         stacked(times, line["came"], width=width, to_text=number)),
        ("Waiting", "from ready to start, by the time of the start",
         lines(times, line["waited"], width=width, to_text=seconds)),
        ("Running", "from start to end, by the time of the start",
         lines(times, line["ran"], width=width, to_text=seconds)),
        ("Oldest job that waits", "its age at the end of each span, by queue",
         lines(times, line["ages"], width=width, to_text=seconds)),
        ("Slots at work", "how many jobs ran at once on average, by queue",
         stacked(times, line["working"], width=width, to_text=number)),
    )  # fmt: skip
    return [
        (title, note, plot, [
            f"-{_STATES[layer.name]}" if title == "Throughput" else str(n % _COLOURS)
            for n, layer in enumerate(plot.layers)
        ])
        for title, note, plot in plots
        if plot is not None
    ]  # fmt: skip
