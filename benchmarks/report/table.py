"""The tables of the docs, in reStructuredText, from the records of a folder."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from benchmarks.peers.measure import SETTINGS
from benchmarks.report.goals import AGAINST
from benchmarks.report.record import OWN_NAME, is_ours

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from benchmarks.report.record import Figure, Record

__all__ = ["number", "page", "table"]

#: Numbers above it are shown without decimals.
_WITHOUT_DECIMALS = 100


def page(records: Sequence[Record], plots: Mapping[str, str]) -> str:
    """Return the text that the docs include.

    Args:
        records: Records of all rows.
        plots: Row -> file name of its plot.
    """
    against = [record for record in records if len(record.systems()) > 1]
    alone = [record for record in records if record not in against]
    lines = ["..", "   Written by python -m benchmarks report; do not edit.", ""]
    if against:
        lines += [*_machine(against), *_overview(against)]
    for record in against:
        lines += [*_row(record), *_plot(record, plots)]
    if alone:
        plain = [record for record in alone if not record.curves()]
        lines += ["**EventMQ alone**", "", *_machine(alone), *(_alone(plain) if plain else ())]
        for record in alone:
            if record.curves():
                lines += [*_curves(record), *_plot(record, plots)]
    return "\n".join(lines).rstrip() + "\n"


def number(value: float) -> str:
    """Return a number with about three significant digits."""
    if math.isinf(value):
        return "never"
    if abs(value) >= _WITHOUT_DECIMALS:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a list-table with a header."""
    yield from (".. list-table::", "   :header-rows: 1", "")
    for row in (head, *rows):
        for index, cell in enumerate(row):
            yield f"   {'* -' if index == 0 else '  -'} {cell}".rstrip()
    yield ""


def _machine(records: Sequence[Record]) -> Iterator[str]:
    """Yield the machine and its software; values that differ between records are all listed."""
    names = ("cores", "system", "python", "sqlite")
    known = [{name: record.machine.get(name, "?") for name in names} for record in records]
    versions: dict[str, str] = {}
    for record in records:
        versions |= record.machine.get("versions", {})
    machines = sorted({"{cores} cores, {system}, CPython {python}, SQLite {sqlite}".format(**one)
                       for one in known})  # fmt: skip
    durability = sorted({record.machine.get("durability", "?") for record in records})
    runs, dates = [record.runs for record in records], [record.at[:10] for record in records]
    text = f"{'; '.join(machines)}. EventMQ {'; '.join(durability)}. "
    text += f"Medians, least and most of {_span(map(str, runs))} runs, {_span(dates)}."
    if versions:
        text += f" Versions: {', '.join(f'{name} {text}' for name, text in versions.items())}."
    yield from (text, "")


def _span(values: Iterable[str]) -> str:
    """Return minimum and maximum, or the only value."""
    some = sorted(values, key=lambda text: (len(text), text))
    return some[0] if some[0] == some[-1] else f"{some[0]} to {some[-1]}"


def _overview(records: Sequence[Record]) -> Iterator[str]:
    head = ("row", "what", "EventMQ", "best of the others", "EventMQ to it", "goal")
    rows = []
    for record in records:
        goal = AGAINST[record.name]
        figures = _that_count(record)
        others = {system: found for system, found in figures.items() if not is_ours(system)}
        if OWN_NAME not in figures or not others:
            continue
        own, best = figures[OWN_NAME], goal.best(others)
        ratio = _ratio(own, figures[best])
        met = f"{goal.text}: {'met' if goal.met(own.median, ratio) else 'not met'}"
        best_other = f"{number(figures[best].median)} ({best})"
        rows.append((f"``{record.name}``", goal.title, number(own.median), best_other,
                     number(ratio), met))  # fmt: skip
    yield from table(head, rows)


def _that_count(record: Record) -> dict[str, Figure]:
    """Return the goal's figure of each system."""
    name = AGAINST[record.name].figure
    return {
        system: figures[name] for system, figures in record.systems().items() if name in figures
    }


def _ratio(own: Figure, other: Figure) -> float:
    """Return a ratio of medians, infinite or 0.0 if one of them is infinite."""
    if math.isinf(other.median):
        return math.inf if math.isinf(own.median) else 0.0
    return own.median / other.median if other.median else math.inf


def _row(record: Record) -> Iterator[str]:
    """Yield the table of one row: the figures and promises of each system."""
    yield from (f"**{record.name}**: ``{record.command}``", "")
    systems = record.systems()
    names = list(dict.fromkeys(name for figures in systems.values() for name in figures))
    names = [name for name in names if name not in SETTINGS]
    head = ["system", *(f"``{name}``" for name in names), "EventMQ to it",
            "on disk when the call returns", "job of a killed worker comes back"]  # fmt: skip
    counted = _that_count(record)
    rows = []
    for system, figures in systems.items():
        cells = [_cell(figures[name]) if name in figures else "" for name in names]
        ratio = ""
        if system != OWN_NAME and OWN_NAME in counted and system in counted:
            ratio = number(_ratio(counted[OWN_NAME], counted[system]))
        promise = record.promises[system]
        rows.append((system, *cells, ratio, promise["on disk"], promise["job of a killed worker"]))
    yield from table(head, rows)


def _cell(figure: Figure) -> str:
    if figure.least == figure.most:
        return number(figure.median)
    return f"{number(figure.median)} ({number(figure.least)} to {number(figure.most)})"


def _alone(records: Sequence[Record]) -> Iterator[str]:
    head = ("figure", "median", "least", "most", "goal", "command")
    rows = []
    for record in records:
        for figure in record.figures:
            numbers = (number(value) for value in (figure.median, figure.least, figure.most))
            name = f"``{record.name}`` {figure.name}"
            rows.append((name, *numbers, figure.goal, f"``{record.command}``"))
    yield from table(head, rows)


def _curves(record: Record) -> Iterator[str]:
    """Yield a table of a row that scales: a line for each size."""
    for axis, figures in record.curves().items():
        yield from (f"**{record.name}**: ``{record.command}``", "")
        sizes = sorted({size for points in figures.values() for size, _ in points})
        by_name = {name: dict(points) for name, points in figures.items()}
        rows = [
            (
                f"{size:,.0f}",
                *(_cell(some[size]) if size in some else "" for some in by_name.values()),
            )
            for size in sizes
        ]
        yield from table((axis, *by_name), rows)


def _plot(record: Record, plots: Mapping[str, str]) -> Iterator[str]:
    if record.name in plots:
        yield f".. image:: /_static/benchmarks/{plots[record.name]}"
        yield f"   :alt: {record.name}, the medians of the table with their spread"
        yield ""
