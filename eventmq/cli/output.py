"""Output of listings and objects: a table on a terminal, plain columns in a pipe, or JSON."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import click

from eventmq.conversion import plain
from eventmq.errors import NotAllowed
from eventmq.text import printable
from eventmq.wire.commands import MAX_IDS, MAX_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from eventmq.app import EventMQ

__all__ = [
    "STATE_COLOURS",
    "age",
    "byte_size",
    "cell_text",
    "column_widths",
    "duration",
    "full_ids",
    "is_brief",
    "local_time",
    "none_of",
    "pages_of",
    "paint",
    "printable",
    "rows_of",
    "show_latest",
    "show_object",
    "show_rows",
    "to_json",
]


#: Columns that hold Unix time; 0 and None mean "not yet".
TIMES = frozenset(
    {"created", "due", "expires", "finished", "last", "leased", "next", "now", "since", "started"}
)

#: Columns that hold seconds.
DURATIONS = frozenset({"ran", "round_trip", "waited"})

#: Columns with the state of a job, which is shown in colour.
_STATE_COLUMNS = frozenset({"outcome", "state", "was"})
STATE_COLOURS = {"failed": "red", "running": "blue", "delayed": "yellow"}

#: Columns that are dropped, in this order, if a terminal is too narrow.
GIVES_WAY = ("worker", "queue", "finished", "attempt", "leased", "created")

#: Minimum width of a text column in characters; columns are dropped before it gets less.
_TEXT = 20

#: Number of characters of the end of an id in tables, if that many are unambiguous.
_ID = 8

#: Minimum length of a part of an id that is searched for, and number of jobs that are searched.
PART, SEARCHED = 4, 10_000

#: Length of the ids that EventMQ makes; a shorter text may be a part of one.
_WHOLE = 32

#: Maximum number of ids in an error.
_NAMED = 10

#: Lowest number of seconds, the unit, and its seconds.
_UNITS = (
    (86_400.0, "d", 86_400.0), (3600.0, "h", 3600.0), (60.0, "min", 60.0), (1.0, "s", 1.0),
    (1e-4, "ms", 1e-3), (0.0, "us", 1e-6),
)  # fmt: skip


def to_json(value: object, *, indent: int | None = None) -> str:
    """Return JSON; a value that JSON cannot express becomes text.

    Characters that a terminal would interpret are escaped.
    """
    text = json.dumps(value, default=_plain, ensure_ascii=False, indent=indent)
    return printable(text, keep="\n", escape=json.dumps)


def _plain(value: object) -> object:
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)
    if isinstance(value, (bytes, bytearray)):
        return value.decode(errors="replace")
    if isinstance(value, date):
        return value.isoformat()
    try:
        return plain(value)
    except TypeError:
        return str(value)


def paint(text: str, colour: str, *, err: bool = False) -> str:
    """Return a text in colour if it is printed to a terminal, unless NO_COLOR is set."""
    stream = sys.stderr if err else sys.stdout
    coloured = stream.isatty() and not os.environ.get("NO_COLOR")
    return click.style(text, fg=colour, bold=True) if coloured else text


def duration(seconds: float, digits: int = 3) -> str:
    """Return a length of time in a suitable unit: ``37 us``, ``0.27 ms``, ``3 min``."""
    _, unit, size = next(each for each in _UNITS if seconds >= each[0] or not each[0])
    number = seconds / size
    digits = 2 if size > 1.0 else digits
    return f"{number:.0f} {unit}" if number >= 100 else f"{number:.{digits}g} {unit}"  # noqa: PLR2004


def byte_size(number: float) -> str:
    """Return a number of bytes in a suitable unit: ``512 B``, ``64 KiB``, ``75.3 GiB``."""
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:  # noqa: PLR2004
            return f"{number:.3g} {unit}" if number < 1000 else f"{number:.0f} {unit}"  # noqa: PLR2004
        number /= 1024
    return f"{number:.3g} GiB" if number < 1000 else f"{number:,.0f} GiB"  # noqa: PLR2004


def age(timestamp: float) -> str:
    """Return the distance of a Unix time from now: ``2 min ago``, ``in 3 h``."""
    seconds = time.time() - timestamp
    _, unit, size = next(each for each in _UNITS if abs(seconds) >= each[0])
    if size < 1.0:
        return "now"
    text = f"{abs(seconds) // size:.0f} {unit}"
    return f"{text} ago" if seconds > 0 else f"in {text}"


def local_time(timestamp: float) -> str:
    """Return a Unix time in local time, with the name of the zone."""
    return datetime.fromtimestamp(timestamp).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def cell_text(column: str, value: object, *, full: bool = False) -> str:
    """Return a value as text that a terminal shows as it is; "-" for none.

    Args:
        column: Name of its column, which tells Unix times and lengths of time from numbers.
        value: The value.
        full: Whether times are shown in full, else as ages.
    """
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        if column in TIMES:
            return (local_time(value) if full else age(value)) if value else "-"
        if column in DURATIONS:
            return duration(value) if value else "-"
        if column == "seen":
            return f"{duration(value, 2)} ago"
        return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    return printable(value if isinstance(value, str) else to_json(value))


def is_brief(*, wide: bool) -> bool:
    """Return whether a table has to fit a terminal, or the width in the variable COLUMNS."""
    return not wide and (sys.stdout.isatty() or bool(os.environ.get("COLUMNS")))


def show_rows(
    rows: Iterable[Mapping[str, Any]],
    columns: Sequence[str],
    *,
    as_json: bool,
    empty: str = "",
    brief: Sequence[str] = (),
    gives_way: Sequence[str] = GIVES_WAY,
    wide: bool = False,
) -> None:
    """Print a listing: JSON, or a table with one line per row.

    A table on a terminal has the ends of ids and ages of times, and no empty columns; if the
    terminal is too narrow, columns are dropped and texts are cut. A pipe, unless the variable
    COLUMNS is set, and ``wide`` get everything.

    Args:
        rows: Values by column; others are ignored, missing ones are null.
        columns: Names, in order.
        as_json: Print a list of flat objects instead of a table.
        empty: Printed on stderr if there are no rows.
        brief: Columns on a terminal, in order, if not all; "error" is always last.
        gives_way: Columns to drop on a narrow terminal, in this order.
        wide: Print all columns in full.
    """
    rows = [*rows]
    if as_json:
        selected = [{column: row.get(column) for column in columns} for row in rows]
        click.echo(to_json(selected, indent=2 if selected else None))
        return
    if not rows:
        if empty:
            click.echo(empty, err=True)
        return
    shown = [*(brief or columns)]
    full = not is_brief(wide=wide)
    if full:
        shown += [column for column in columns if column not in shown]
    shown.sort(key="error".__eq__)
    cells = {name: [cell_text(name, row.get(name), full=full) for row in rows] for name in shown}
    if full:
        _show_plain(cells)
    else:
        _show_table(cells, rows[0], gives_way)


def _show_plain(cells: Mapping[str, Sequence[str]]) -> None:
    from rich.cells import cell_len

    columns = [[name, *each] for name, each in cells.items()]
    widths = [max(map(cell_len, column)) for column in columns]
    for line in zip(*columns, strict=True):
        padded = (cell + " " * (n - cell_len(cell)) for cell, n in zip(line, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def _show_table(
    cells: Mapping[str, list[str]], sample: Mapping[str, Any], gives_way: Sequence[str]
) -> None:
    """Print a table that fits the terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    first = next(iter(cells))
    shown = {name: each for name, each in cells.items() if name == first or {*each} != {"-"}}
    if "id" in shown:
        shown["id"] = _ends(shown["id"])
    width = shutil.get_terminal_size().columns
    widths = column_widths(shown, width, gives_way)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name, size in widths.items():
        is_number = isinstance(sample.get(name), (int, float)) and name not in TIMES
        table.add_column(
            name, justify="right" if is_number else "left", width=size, no_wrap=True,
            overflow="ellipsis",
        )  # fmt: skip
    for line in zip(*(shown[name] for name in widths), strict=True):
        pairs = zip(widths, line, strict=True)
        table.add_row(*(Text(cell, _style(name, cell)) for name, cell in pairs))
    Console(width=width).print(table)


def _style(column: str, cell: str) -> str:
    if column in _STATE_COLUMNS:
        return STATE_COLOURS.get(cell, "")
    return "yellow" if column == "note" else ""


def _ends(ids: Sequence[str]) -> list[str]:
    """Return the ends of ids, as their beginnings are times, long enough to be unambiguous."""
    size = _ID
    while len({each[-size:] for each in ids}) < len({*ids}):
        size += 1
    return [each[-size:] for each in ids]


def column_widths(
    cells: Mapping[str, Sequence[str]], width: int, gives_way: Sequence[str] = GIVES_WAY
) -> dict[str, int]:
    """Return the columns of a table that fit a terminal, with their widths in characters.

    Ids and headers are never cut.

    Args:
        cells: Texts by column.
        width: Characters of the terminal; two are left between columns.
        gives_way: Columns that are dropped first, in this order.
    """
    from rich.cells import cell_len

    natural_widths = {name: max(map(cell_len, (name, *each))) for name, each in cells.items()}
    widths = {
        name: size if name == "id" else min(size, _TEXT) for name, size in natural_widths.items()
    }

    def spare() -> int:
        return width - sum(widths.values()) - 2 * (len(widths) - 1)

    for name in gives_way:
        if spare() < 0:
            widths.pop(name, None)
    while spare() < 0:
        widest = max(widths, key=lambda name: 0 if name == "id" else widths[name] - len(name))
        if widest == "id" or widths[widest] <= len(widest):
            break  # no column can be narrower
        widths[widest] -= 1
    for limit in (2 * _TEXT, width):  # an error, which is last, gets spare width first
        for name in reversed([*widths]):
            widths[name] += max(0, min(min(natural_widths[name], limit) - widths[name], spare()))
    return widths


def show_object(value: Mapping[str, Any], *, as_json: bool) -> None:
    """Print one object as JSON, or a line per field, with long texts below their names."""
    if as_json:
        click.echo(to_json(value, indent=2))
        return
    fields = [(printable(name), name, field) for name, field in value.items()]
    width = max((len(name) for name, _, _ in fields), default=0)
    for title, name, field in fields:
        if isinstance(field, str) and "\n" in field.strip():
            click.echo(title)
            for line in field.rstrip().splitlines():
                click.echo(f"    {printable(line)}".rstrip())
        else:
            text = field.rstrip("\n") if isinstance(field, str) else field
            cell = cell_text(name, text, full=True)
            if name in TIMES and cell != "-" and isinstance(field, (int, float)):
                cell += f" ({age(field)})"
            elif name in _STATE_COLUMNS and cell in STATE_COLOURS:
                cell = paint(cell, STATE_COLOURS[cell])
            click.echo(f"{title:<{width}}  {cell}")


def none_of(rows: str, **filters: Any) -> str:
    """Return the sentence for an empty listing, such as "No failed jobs in queue mail.".

    Args:
        rows: Name of the rows, in the plural.
        **filters: Filters of the command; None is ignored.
    """
    words = {
        "queue": "in queue", "task": "of task", "error": "with error", "key": "with key",
        "text": "with text",
    }  # fmt: skip
    chosen = {words.get(name, name): value for name, value in filters.items() if value is not None}
    texts = (local_time(v) if isinstance(v, float) else printable(str(v)) for v in chosen.values())
    parts = (f" {word} {text}" for word, text in zip(chosen, texts, strict=True))
    return f"No {rows}{''.join(parts)}."


def show_latest(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    limit: int,
    *,
    as_json: bool,
    **more: Any,
) -> None:
    """Print the newest jobs of a listing, and on stderr that there may be more.

    Args:
        rows: As for `show_rows`.
        columns: As for `show_rows`.
        limit: Maximum number of rows.
        as_json: As for `show_rows`.
        **more: As for `show_rows`.
    """
    show_rows(rows, columns, as_json=as_json, **more)
    if len(rows) == limit and not as_json:
        click.echo(f"The newest {limit}; --limit shows more.", err=True)


#: Seconds between two reports of a search.
_REPORT_EVERY = 2.0


def rows_of(
    app: EventMQ, listing: str, filters: Mapping[str, Any], limit: int
) -> Iterator[dict[str, Any]]:
    """Yield rows of a listing, page by page, up to the limit.

    A page may have no rows: the broker examines a limited number for each. A search that takes long
    says on a terminal how far it is.

    Args:
        app: The app whose broker is asked.
        listing: ``jobs`` or ``failed``: the call, and the name of the rows in its result.
        filters: Arguments of the call; None is left out.
        limit: Maximum number of rows.
    """
    arguments = {name: value for name, value in filters.items() if value is not None}
    cursor, report_at = "", time.monotonic() + _REPORT_EVERY
    while limit:
        page = app.ask(listing, {**arguments, "cursor": cursor, "limit": min(limit, MAX_ROWS)})
        if time.monotonic() >= report_at and sys.stderr.isatty() and page.get("searched_to"):
            report_at = time.monotonic() + _REPORT_EVERY
            click.echo(f"searched back to {local_time(page['searched_to'])}", err=True)
        yield from page[listing]
        limit -= len(page[listing])
        cursor = page["cursor"]
        if not cursor:
            return


def pages_of(ids: Sequence[str]) -> Iterator[list[str]]:
    """Yield ids in pages of the size that a call accepts."""
    return (list(ids[first : first + MAX_IDS]) for first in range(0, len(ids), MAX_IDS))


def full_ids(app: EventMQ, texts: Sequence[str]) -> list[str]:
    """Return the ids of jobs for texts that are ids or parts of ids; unknown ones are unchanged.

    Parts are searched for among the newest jobs, and those that failed last.

    Raises:
        UsageError: A part matches several ids.
        NotAllowed: A text is no id but may be a part of one, and the key may not list jobs.
    """
    pages = pages_of(texts)
    known_ids = {i for page in pages for i, state in app.ask("state", {"ids": page}) if state}
    parts = [text for text in texts if text not in known_ids and len(text) >= PART]
    candidates: set[str] = set()
    try:
        for listing in ("jobs", "failed") if parts else ():
            candidates.update(row["id"] for row in rows_of(app, listing, {}, SEARCHED))
    except NotAllowed as error:  # only admins and viewers see the jobs of other owners
        if part := next((part for part in parts if len(part) < _WHOLE), ""):
            raise NotAllowed(
                f"no job with id {part!r}; if it is a part of an id, give the whole id: parts "
                f"are looked up in the list of jobs, and {error}"
            ) from error
    matches = {part: sorted(each for each in candidates if part in each) for part in parts}
    for part, ids in matches.items():
        if len(ids) > 1:
            more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
            msg = f"{part!r} is part of several ids: {', '.join(ids[:_NAMED])}{more}"
            raise click.UsageError(msg)
    return [matches[text][0] if matches.get(text) else text for text in texts]
