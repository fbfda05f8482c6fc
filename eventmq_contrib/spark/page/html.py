"""A report as one self-contained page of HTML.

**Warning** for who edits the template: names of tasks, queues, workers and errors are other
people's. They are escaped by jinja2; none may get into a script, a style or the name of an
attribute, and nothing may be marked as safe.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from eventmq.cli import printable
from eventmq_contrib.extras import need
from eventmq_contrib.spark.page.plots import SIZE, lines, number, seconds, stacked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jinja2 import Environment

    from eventmq_contrib.spark.page.plots import Plot

__all__ = ["page"]

_TEMPLATE = "report.html"

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
    template = _environment().get_template(_TEMPLATE)
    return template.render(
        title=title, made=made, report=report, plots=_plots(report), size=SIZE,
        states=list(_STATES.values()), colours=_COLOURS,
    )  # fmt: skip


def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    found = Environment(
        loader=PackageLoader("eventmq_contrib.spark", "templates"), autoescape=True,
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    found.filters |= {
        "moment": _moment, "number": _or_dash(number), "printable": printable,
        "seconds": _or_dash(seconds), "share": _or_dash(_share),
    }  # fmt: skip
    return found


def _or_dash(say: Any) -> Any:
    return lambda value: "-" if value is None else say(value)


def _share(value: float) -> str:
    percent = value * 100
    places = 2 if 99 < percent < 100 or 0 < percent < 1 else 1  # noqa: PLR2004
    return f"{percent:,.{places}f}".removesuffix(".0") + " %"


def _moment(value: float | None) -> str:
    if value is None:
        return "-"
    return datetime.fromtimestamp(value, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def _plots(report: Mapping[str, Any]) -> list[tuple[str, str, Plot, list[str]]]:
    """Return title, note, shapes and colours of each plot that has something to show."""
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
        (title, note, plot, _colours(plot, own=title == "Throughput"))
        for title, note, plot in found
        if plot is not None
    ]


def _colours(plot: Plot, *, own: bool) -> list[str]:
    """Return the end of the name of the class of each layer."""
    if own:
        return [f"-{_STATES[layer.name]}" for layer in plot.layers]
    return [str(n % _COLOURS) for n in range(len(plot.layers))]
