"""Output of listings and objects: a table on a terminal, plain columns in a pipe, or JSON."""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from eventmq.app import EventMQ

__all__ = ["paint", "printable", "rows_of", "show_latest", "show_object", "show_rows", "to_json"]


#: Columns that hold Unix time; 0 and None stand for "not yet".
TIMES = frozenset({"created", "due", "expires", "finished", "now", "started"})

#: Columns that hold seconds -> unit that is printed after the number.
DURATIONS = {"ran": "s", "round_trip": "s", "seen": "s ago"}


def to_json(value: object, *, indent: int | None = None) -> str:
    """Return JSON; a value that JSON cannot express becomes text."""
    return json.dumps(value, default=_plain, ensure_ascii=False, indent=indent)


def _plain(value: object) -> object:
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)
    if isinstance(value, (bytes, bytearray)):
        return value.decode(errors="replace")
    return str(value)


def printable(text: str) -> str:
    """Return the text with its control characters escaped: names come from others."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def paint(text: str, colour: str, *, err: bool = False) -> str:
    """Return a text in a colour on a terminal, unless NO_COLOR is set."""
    stream = sys.stderr if err else sys.stdout
    coloured = stream.isatty() and not os.environ.get("NO_COLOR")
    return click.style(text, fg=colour, bold=True) if coloured else text


def _cell(column: str, value: object) -> str:
    if value is None or value == "":
        return "-"
    if column in TIMES and isinstance(value, (int, float)):
        when = datetime.fromtimestamp(value).astimezone()
        return when.strftime("%Y-%m-%d %H:%M:%S") if value else "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if column in DURATIONS and isinstance(value, (int, float)):
        return f"{value:.6f}".rstrip("0").rstrip(".") + f" {DURATIONS[column]}"
    if isinstance(value, float):
        return f"{value:.6f}".rstrip("0").rstrip(".")
    return printable(value if isinstance(value, str) else to_json(value))


def show_rows(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool, empty: str = ""
) -> None:
    """Print a listing.

    Args:
        rows: Values by column; others are left out, missing ones are null.
        columns: Names, in order.
        as_json: A list of flat objects instead of a table.
        empty: Printed on stderr when there are no rows.
    """
    picked = [{column: row.get(column) for column in columns} for row in rows]
    if as_json:
        click.echo(to_json(picked, indent=2 if picked else None))
    elif picked:
        _show_table(columns, [[_cell(c, row[c]) for c in columns] for row in picked], picked[0])
    elif empty:
        click.echo(empty, err=True)


def show_object(value: Mapping[str, Any], *, as_json: bool) -> None:
    """Print one object: a line per field, with text of several lines below its name, or JSON."""
    if as_json:
        click.echo(to_json(value, indent=2))
        return
    width = max(map(len, value), default=0)
    for name, field in value.items():
        if isinstance(field, str) and "\n" in field.strip():
            click.echo(name)
            for line in field.rstrip().splitlines():
                click.echo(f"    {printable(line)}".rstrip())
        else:
            click.echo(f"{name:<{width}}  {_cell(name, field)}")


def _show_table(
    columns: Sequence[str], cells: Sequence[Sequence[str]], sample: Mapping[str, Any]
) -> None:
    if sys.stdout.isatty():
        _show_rich(columns, cells, sample)
        return
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for line in [columns, *cells]:
        padded = (f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def _show_rich(
    columns: Sequence[str], cells: Sequence[Sequence[str]], sample: Mapping[str, Any]
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        is_number = isinstance(sample[column], (int, float)) and column not in TIMES
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for line in cells:
        table.add_row(*map(Text, line))
    Console().print(table)


def show_latest(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], limit: int, *, as_json: bool
) -> None:
    """Print the newest jobs of a listing, and on stderr that there may be more."""
    show_rows(rows, columns, as_json=as_json, empty="no such jobs")
    if len(rows) == limit and not as_json:
        click.echo(f"the newest {limit}; --limit shows more", err=True)


def rows_of(
    app: EventMQ, listing: str, filters: Mapping[str, Any], limit: int
) -> Iterator[dict[str, Any]]:
    """Yield rows of a listing, page by page, up to the limit.

    Args:
        app: Asks the broker.
        listing: ``jobs`` or ``failed``: the call, and the name of the rows in its result.
        filters: Arguments of the call; None is left out.
        limit: Largest number of rows.
    """
    from eventmq.wire.calls import MAX_ROWS

    arguments = {name: value for name, value in filters.items() if value is not None}
    cursor = ""
    while limit:
        page = app.ask(listing, {**arguments, "cursor": cursor, "limit": min(limit, MAX_ROWS)})
        yield from page[listing]
        limit -= len(page[listing])
        cursor = page["cursor"]
        if not cursor:
            return
