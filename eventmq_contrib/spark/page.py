"""A report as one self-contained page of HTML: computes shapes, which the template lays out.

Plots over time are shapes in a box of 1000 by 1000. No drawing library: the page is to be small, to
follow the reader's light or dark colours, and to be read on a phone, where the box is stretched and
the labels, which are not part of it, are not.

**Warning** for who edits the template: names of tasks, queues, workers and errors are other
people's. They are escaped by jinja2; none may get into a script, a style or the name of an
attribute, and nothing may be marked as safe.
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

#: Labels at an axis, at most.
_Y_LABELS, _X_LABELS = 5, 7

#: Steps of a time axis, in seconds.
_STEPS = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400,
    172_800, 604_800, 1_209_600, 2_592_000, 7_776_000, 31_536_000,
)  # fmt: skip

_DAY = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One shape: ``kind`` is ``bars``, ``line`` or ``area``, ``path`` what SVG's path has."""

    kind: str
    name: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A plot.

    Attributes:
        y: Labels of the left axis: height in percent, text.
        x: Labels below: place in percent, text.
        layers: In the order in which they are drawn; the names are the legend.
        words: What is read where the pointer rests: from, width in the box, text.
    """

    y: Sequence[tuple[float, str]]
    x: Sequence[tuple[float, str]]
    layers: Sequence[Layer]
    words: Sequence[tuple[float, float, str]]


def stacked(
    times: Sequence[float], series: Series, *, width: float, say: Callable[[float], str],
) -> Plot | None:  # fmt: skip
    """Return bars on each other, the first series at the bottom; None where all are empty.

    Args:
        times: When each span of time begins, in seconds since 1970, evenly.
        series: Name -> a value for each.
        width: Seconds of a span.
        say: Makes a text of a value.
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
    labels = [(tick / top * 100, say(tick)) for tick in ticks]
    return Plot(y=labels, x=_times(times, width), layers=layers, words=_words(times, series, say))


def lines(
    times: Sequence[float], series: Series, *, width: float, say: Callable[[float], str],
) -> Plot | None:  # fmt: skip
    """Return a line per series, broken where a value is None; None where all are.

    Args:
        times: As in `stacked`.
        series: As in `stacked`.
        width: As in `stacked`.
        say: As in `stacked`.
    """
    known = [v for values in series.values() for v in values if v is not None]
    if not known:
        return None
    top, ticks = _axis(max(known))
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
    labels = [(tick / top * 100, say(tick)) for tick in ticks]
    return Plot(y=labels, x=_times(times, width), layers=layers, words=_words(times, series, say))


def _words(
    times: Sequence[float], series: Series, say: Callable[[float], str]
) -> list[tuple[float, float, str]]:
    step = SIZE / len(times)
    words = []
    for n, time in enumerate(times):
        named = ((printable(name), values[n]) for name, values in series.items())
        said = [f"{name}: {say(value)}" for name, value in named if value is not None]
        if said:
            words.append((n * step, step, "\n".join([f"{_moment(time)} UTC", *said])))
    return words


# Axes


def _axis(most: float) -> tuple[float, list[float]]:
    """Return where an axis from 0 ends, and where its labels are: 1, 2 or 5 times a power of 10."""
    most = most or 1.0
    power = 10.0 ** math.floor(math.log10(most / _Y_LABELS))
    step = next(s * power for s in (1, 2, 5, 10) if s * power * _Y_LABELS >= most * 0.999)
    n = math.ceil(most / step - 1e-9)
    return step * n, [step * k for k in range(n + 1)]


def _times(times: Sequence[float], width: float) -> list[tuple[float, str]]:
    begin, end = times[0], times[-1] + width
    whole = end - begin
    step = next((s for s in _STEPS if whole / s <= _X_LABELS), _STEPS[-1])
    at, found = math.ceil(begin / step) * step, []
    while at <= end:
        midnight = step >= 3600 and not at % _DAY  # noqa: PLR2004
        form = "%H:%M:%S" if step < 60 else "%d %b" if midnight or step >= _DAY else "%H:%M"  # noqa: PLR2004
        text = datetime.fromtimestamp(at, timezone.utc).strftime(form)
        found.append(((at - begin) / whole * 100, text))
        at += step
    return found


# Numbers as people read them


def number(value: float) -> str:
    """Return a count: ``12``, ``4,200``, ``1.2 M``."""
    if value >= 1e6:  # noqa: PLR2004
        return f"{value / 1e6:.3g} M"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"  # noqa: PLR2004


def seconds(value: float) -> str:
    """Return a span of time: ``3.2 ms``, ``14 s``, ``2.5 min``, ``7 h``."""
    if not value:
        return "0"
    for most, part, unit in ((1.0, 1e-3, "ms"), (120.0, 1.0, "s"), (7200.0, 60.0, "min")):
        if value < most:
            return f"{value / part:.3g} {unit}"
    return f"{value / 3600:.3g} h" if value < 2 * _DAY else f"{value / _DAY:.3g} d"


# The page

#: Colours of the style that have no name.
_COLOURS = 7

#: Names of series that have a colour of their own -> its name in the style.
_STATES = {
    "succeeded": "succeeded", "tried again": "tried", "failed": "failed",
    "cancelled": "cancelled", "expired": "expired",
}  # fmt: skip


def page(report: Mapping[str, Any], *, title: str, made: float) -> str:
    """Return the page.

    Args:
        report: As of `eventmq_contrib.spark.analyses.report.report`.
        title: On top of the page.
        made: When, Unix time.

    Raises:
        PluginError: jinja2 is missing.
    """
    need("jinja2", user="eventmq spark report")
    environment = Environment(
        loader=PackageLoader("eventmq_contrib.spark", "templates"), autoescape=True,
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "moment": _or_dash(_moment), "number": _or_dash(number), "printable": printable,
        "seconds": _or_dash(seconds), "share": _or_dash(_share),
    }  # fmt: skip
    return environment.get_template("report.html").render(
        title=title, made=made, report=report, plots=_plots(report), size=SIZE,
        states=list(_STATES.values()), colours=_COLOURS,
    )  # fmt: skip


def _or_dash(say: Callable[[float], str]) -> Callable[[float | None], str]:
    return lambda value: "-" if value is None else say(value)


def _share(value: float) -> str:
    percent = value * 100
    places = 2 if 99 < percent < 100 or 0 < percent < 1 else 1  # noqa: PLR2004
    return f"{percent:,.{places}f}".removesuffix(".0") + " %"


def _moment(value: float) -> str:
    return datetime.fromtimestamp(value, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def _plots(report: Mapping[str, Any]) -> list[tuple[str, str, Plot, list[str]]]:
    """Return each plot that has something to show.

    Returns:
        Title, note, shapes, and the end of the name of the class of each layer.
    """
    line = report["timeline"]
    times, width = line["times"], line["width"]
    every = f"per {seconds(width)}"
    found = (
        ("Throughput", f"jobs that ended, and attempts that are tried again, {every}",
         stacked(times, line["ended"], width=width, say=number)),
        ("Came in", f"new jobs by queue, {every}",
         stacked(times, line["came"], width=width, say=number)),
        ("Waiting", "from being ready to the start, of jobs by when they started",
         lines(times, line["waited"], width=width, say=seconds)),
        ("Running", "from the start to the end, of jobs by when they started",
         lines(times, line["ran"], width=width, say=seconds)),
        ("Oldest job that waits", "its age at the end of each span, by queue",
         lines(times, line["ages"], width=width, say=seconds)),
        ("Slots at work", "how many jobs ran at once on average, by queue",
         stacked(times, line["working"], width=width, say=number)),
    )  # fmt: skip
    return [
        (title, note, plot, [
            f"-{_STATES[layer.name]}" if title == "Throughput" else str(n % _COLOURS)
            for n, layer in enumerate(plot.layers)
        ])
        for title, note, plot in found
        if plot is not None
    ]  # fmt: skip
