"""Views of the page: the call of each, and its answer as a table. Textual is not needed here."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len

from eventmq.cli import printable
from eventmq.errors import SettingsError, did_you_mean
from eventmq.sdk import JobState
from eventmq_contrib.figures import COUNTED, History, duration, error_text

__all__ = [
    "FAILED", "JOBS", "OVERVIEW", "QUEUES", "ROWS", "RUNNING", "VIEWS", "WORKERS", "Filter",
    "View", "bars", "cell", "clock", "details", "fitting", "overview", "rate",
]  # fmt: skip

Row = Mapping[str, Any]

#: Rows of a listing of jobs that are asked for and shown.
ROWS = 200

_BARS = "▁▂▃▄▅▆▇█"

#: Columns with Unix times, shown as ages, and with seconds.
_AGES = frozenset({"created", "finished", "leased"})
_SPANS = frozenset({"seen", "waited"})

#: Characters of the end of an id that a table shows.
_ID = 8

#: Width of a column that makes room for others, at least, in characters.
_NARROW = 12

#: Characters of a text in a table at most; the page of the job has all of it.
_LONGEST = 300


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class View:
    """One of the tables.

    Attributes:
        name: Its title.
        call: Call of the broker.
        arguments: Arguments of the call, without those of a filter.
        filters: Names of the arguments that a filter may have; only listings of jobs have some.
        key: Column that identifies a row.
        columns: Columns, in order.
        gives_way: Columns that are left out first where the terminal is too narrow.
        rows: Converts the answer, or the jobs in it, to rows: values by column.
    """

    name: str
    call: str
    arguments: Row
    filters: tuple[str, ...] = ()
    key: str
    columns: tuple[str, ...]
    gives_way: tuple[str, ...] = ()
    rows: Callable[[Any], Iterable[Row]]


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter: arguments for the broker, and words that a row must contain.

    Attributes:
        text: The filter as it was typed.
        arguments: Name -> value.
        words: Texts; case does not matter.
    """

    text: str
    arguments: tuple[tuple[str, str], ...] = ()
    words: tuple[str, ...] = ()

    @classmethod
    def read(cls, text: str, view: View) -> Filter:
        """Read ``queue=mail state=failed word``.

        Raises:
            SettingsError: An argument is unknown to the view, or has a wrong value.
        """
        try:
            parts = shlex.split(text)
        except ValueError as error:
            raise SettingsError(f"the filter {text!r} has an open quotation mark") from error
        arguments: dict[str, str] = {}
        words: list[str] = []
        for part in parts:
            name, equals, value = part.partition("=")
            if not equals:
                words.append(part.lower())
            elif name not in view.filters:
                known = ", ".join(f"{each}=" for each in view.filters) or "words only"
                raise SettingsError(f"{view.name} have no filter {name!r}; allowed: {known}")
            elif name == "state" and value not in [state.value for state in JobState]:
                hint = did_you_mean(value, [state.value for state in JobState])
                raise SettingsError(f"there is no state {value!r}; {hint}")
            else:
                arguments[name] = value
        return cls(text, (*arguments.items(),), (*words,))

    def has(self, row: Row, columns: Sequence[str], now: float) -> bool:
        """Return whether each word is in a cell of the row."""
        cells = [cell(name, row.get(name), now).lower() for name in columns]
        return all(any(word in each for each in cells) for word in self.words)


def cell(column: str, value: object, now: float) -> str:
    """Return a value as text that a terminal shows as it is.

    Args:
        column: Name of its column.
        value: The value.
        now: Unix time, for ages.
    """
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        if column in _AGES:
            return duration(max(0.0, now - value)) if value else "-"
        if column in _SPANS:
            return duration(value) if value else "-"
        return f"{value:,}"
    text = printable(str(value)[:_LONGEST])
    return text[-_ID:] if column == "id" else text


def fitting(
    columns: Sequence[str], cells: Sequence[Mapping[str, str]], width: int, gives_way: Sequence[str]
) -> dict[str, int]:
    """Return the columns that fit, with their widths in characters.

    Columns that give way are left out one by one while the others would get too little; then the
    widest are cut, but no id.

    Args:
        columns: Names, in order.
        cells: Texts of the rows, by column.
        width: Characters of the terminal; a column needs two more than its width.
        gives_way: Names.
    """
    widths = {
        name: max([cell_len(name), *(cell_len(row[name]) for row in cells)]) for name in columns
    }

    def fits(longest: int) -> bool:
        return sum(min(each, longest) + 2 for each in widths.values()) <= width

    for name in gives_way:
        if not fits(_NARROW):
            widths.pop(name, None)
    longest = next((n for n in range(max(widths.values()), 1, -1) if fits(n)), 1)
    return {name: each if name == "id" else min(each, longest) for name, each in widths.items()}


# Rows


def rate(value: float | None) -> str:
    """Return a rate as text; it has a digit after the point if it is small."""
    if value is None:
        return "-"
    return f"{value:,.0f}/s" if value >= 10 or not value else f"{value:.1f}/s"  # noqa: PLR2004


def clock(timestamp: float) -> str:
    """Return the local time of day of a Unix time."""
    return time.strftime("%H:%M:%S", time.localtime(timestamp))


def bars(values: Sequence[float], width: int) -> str:
    """Return the last values as a row of bars, the largest of them at full height."""
    shown = values[-width:]
    highest = max(shown, default=0.0) or 1.0
    return "".join(_BARS[round(value / highest * (len(_BARS) - 1))] for value in shown)


def _queue_rows(answer: Sequence[Row]) -> Iterator[Row]:
    for row in answer:
        unserved = "no worker" if not row["workers"] and (row["waiting"] or row["running"]) else ""
        notes = filter(None, ("paused" if row["paused"] else "", unserved))
        yield {**row, "note": ", ".join(notes)}


def _worker_rows(answer: Sequence[Row]) -> Iterator[Row]:
    for row in answer:
        jobs = row.get("jobs", ())
        queues = ",".join(name for _, name in row["queues"])
        runs = ", ".join(job["task"] or "(legacy)" for job in jobs)
        since = min((job["leased"] for job in jobs), default=None)
        yield {
            **row, "queues": queues, "tasks": len(row["tasks"]), "runs": runs, "leased": since,
            "slots": row.get("slots") or None,
        }  # fmt: skip


def _job_rows(answer: Sequence[Row]) -> Iterator[Row]:
    for row in answer:
        yield {**row, "error": error_text(row.get("error"))}


def overview(histories: Mapping[str, tuple[Row | None, History, str]]) -> list[Row]:
    """Return the rows of the overview: a figure each, with a column for each broker.

    Args:
        histories: Name of a broker -> its last answer to ``metrics``, None if there is none; its
            history; and its state as text.
    """
    columns = {
        name: dict(_figures(answer, history)) | {"state": state} if answer else {"state": state}
        for name, (answer, history, state) in histories.items()
    }
    names = dict.fromkeys(["state", *(name for each in columns.values() for name in each)])
    return [
        {"figure": name, **{broker: each.get(name) for broker, each in columns.items()}}
        for name in names
    ]


def _figures(answer: Row, history: History) -> Iterator[tuple[str, str]]:
    queues, workers = answer["queues"], answer["workers"]
    yield "broker", f"{answer['version']}, {answer['role']}, since {clock(answer['started'])}"
    yield "ended", rate(history.rate("ended"))
    yield "last minute", bars(history.rates("ended"), 30)
    for name in COUNTED:
        value = history.rate(name)
        if value or name in {"submitted", "failed"}:
            yield name, rate(value)
    for name in ("waiting", "delayed", "blocked", "running"):
        yield name, f"{sum(row[name] for row in queues):,}"
    yield "failed, kept", f"{sum(row['failed'] for row in queues):,}"
    for share in (50, 95, 99):
        yield f"start delay {share} %", history.start_delay(share / 100)
    oldest = max((row["oldest"] for row in queues), default=0.0)
    yield "oldest job waits", duration(oldest) if oldest else "-"
    used, slots = (sum(row[place] for row in workers) for place in (1, 2))
    yield "workers", f"{answer['sessions']}, {used} of {slots} slots busy"
    unserved = [row["name"] for row in queues if row["waiting"] and not row["workers"]]
    paused = [row["name"] for row in queues if row["paused"]]
    notes = (("no worker", unserved), ("paused", paused))
    yield "attention", "; ".join(f"{what}: {', '.join(names)}" for what, names in notes if names)


def details(info: Row, now: float) -> Iterator[str]:
    """Yield the lines about one job, each safe to print.

    Args:
        info: Result of `eventmq.Job.info`.
        now: Unix time, for ages.
    """
    for name in ("id", "task", "queue", "state", "attempt", "worker"):
        yield f"{name:<9} {printable(str(info[name] or '-'))}"
    for name in ("created", "leased", "finished"):
        if info.get(name):
            yield f"{name:<9} {clock(info[name])}, {duration(max(0.0, now - info[name]))} ago"
    if "args" not in info:
        yield "arguments not allowed for this key"
    elif info.get("args_note"):
        yield f"arguments {printable(info['args_note'])}"
    else:
        named = (f"{name}={value!r}" for name, value in (info["kwargs"] or {}).items())
        shown = ", ".join((*map(repr, info["args"] or ()), *named))
        yield f"arguments {printable(shown[:_LONGEST]) or 'none'}"
    for row in info.get("attempts", ()):
        yield f"attempt {row['attempt']} failed at {clock(row['at'])}"
    if error := info.get("error"):
        yield ""
        yield from map(printable, f"{error.type}: {error.message}".splitlines())
        yield from map(printable, error.traceback.splitlines())


OVERVIEW = View(
    name="overview", call="metrics", arguments={}, key="figure", columns=("figure",),
    rows=lambda _: (),
)  # fmt: skip

QUEUES = View(
    name="queues", call="queues", arguments={}, key="name", rows=_queue_rows,
    columns=("name", "waiting", "delayed", "running", "failed", "workers", "waited", "note"),
    gives_way=("delayed", "waited", "workers", "failed"),
)  # fmt: skip

WORKERS = View(
    name="workers", call="workers", arguments={}, key="session", rows=_worker_rows,
    columns=(
        "name", "pool", "slots", "running", "runs", "leased", "tasks", "queues", "seen", "version",
    ),
    gives_way=("version", "tasks", "seen", "pool"),
)  # fmt: skip

RUNNING = View(
    name="running jobs", call="jobs", arguments={"state": "running"}, filters=("queue", "task"),
    key="id", columns=("id", "task", "queue", "attempt", "leased", "worker"), rows=_job_rows,
    gives_way=("attempt", "worker"),
)  # fmt: skip

JOBS = View(
    name="jobs", call="jobs", arguments={}, filters=("queue", "task", "state", "key"), key="id",
    columns=("id", "task", "state", "queue", "attempt", "created", "worker", "error"),
    gives_way=("worker", "attempt", "created"), rows=_job_rows,
)  # fmt: skip

FAILED = View(
    name="failed jobs", call="failed", arguments={}, filters=("queue", "task", "error", "text"),
    key="id",
    columns=("id", "task", "queue", "attempt", "finished", "error"), rows=_job_rows,
    gives_way=("attempt", "finished"),
)  # fmt: skip

VIEWS = (OVERVIEW, QUEUES, WORKERS, RUNNING, JOBS, FAILED)
