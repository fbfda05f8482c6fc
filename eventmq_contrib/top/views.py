"""Views of the page: the call of each, and its answer as a table. Textual is not needed here."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from eventmq.cli import cell_text, history_of, printable
from eventmq.errors import SettingsError
from eventmq_contrib import figures

__all__ = [
    "FAILED", "JOBS", "OVERVIEW", "QUEUES", "ROWS", "RUNNING", "VIEWS", "WORKERS", "View", "bars",
    "cell", "clock", "details", "has_words", "overview", "read_filter",
]  # fmt: skip

Row = Mapping[str, Any]

#: Rows of a listing of jobs that are asked for and shown.
ROWS = 200

_BARS = "▁▂▃▄▅▆▇█"

#: Characters of a text in a table at most; the page of the job has all of it.
_MAX_TEXT = 300


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


def read_filter(text: str, view: View) -> tuple[dict[str, str], list[str]]:
    """Read ``queue=mail state=failed word``: arguments for the broker, and words of a row.

    Raises:
        SettingsError: An argument is unknown to the view.
    """
    try:
        parts = shlex.split(text)
    except ValueError as error:
        raise SettingsError(f"the filter {text!r} has an open quotation mark") from error
    arguments = dict(part.split("=", 1) for part in parts if "=" in part)
    for name in arguments:
        if name not in view.filters:
            known = ", ".join(f"{each}=" for each in view.filters) or "words only"
            raise SettingsError(f"{view.name} have no filter {name!r}; allowed: {known}")
    return arguments, [part.lower() for part in parts if "=" not in part]


def has_words(row: Row, view: View, words: Iterable[str]) -> bool:
    """Return whether each word is in a cell of a row; case does not matter."""
    text = "\0".join(cell(name, row.get(name)) for name in view.columns).lower()
    return all(word in text for word in words)


def cell(column: str, value: object) -> str:
    """Return a value as text that a terminal shows as it is; of an id, the end."""
    return cell_text(column, value)[-8 if column == "id" else 0 :][:_MAX_TEXT]


# Rows


#: Returns the local time of day of a Unix time.
clock = partial(figures.clock, form="%H:%M:%S", zone=None)


def bars(values: Sequence[float], width: int) -> str:
    """Return the last values as a row of bars, the largest of them at full height."""
    shown = values[-width:]
    highest = max(shown, default=0.0) or 1.0
    return "".join(_BARS[round(value / highest * (len(_BARS) - 1))] for value in shown)


def _queue_rows(answer: Sequence[Row]) -> Iterator[Row]:
    for row in answer:
        yield {**row, "note": ", ".join(figures.problems_of(row))}


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
        yield {**row, "error": figures.error_text(row.get("error"))}


def overview(histories: Mapping[str, tuple[Row | None, figures.History, str]]) -> list[Row]:
    """Return the rows of the overview: a figure each, with a column for each broker.

    Args:
        histories: Name of a broker -> its last answer to ``metrics``, None if there is none; its
            history; and its state as text.
    """
    columns = {
        name: {"state": state} | dict(_figures(answer, history) if answer else ())
        for name, (answer, history, state) in histories.items()
    }
    names = dict.fromkeys(name for each in columns.values() for name in each)
    return [
        {"figure": name, **{broker: each.get(name) for broker, each in columns.items()}}
        for name in names
    ]


def _figures(answer: Row, history: figures.History) -> Iterator[tuple[str, str]]:
    texts = figures.figures_of(answer, history)
    rates = {name: history.rate(name) for name in ("ended", *figures.COUNTED)}
    yield "broker", f"{answer['version']}, {answer['role']}, since {clock(answer['started'])}"
    yield "last 30 s", bars(history.rates("ended"), 30)
    for name, value in rates.items():
        if value or name in {"ended", "submitted", "failed"}:
            yield name, "-" if value is None else f"{figures.number_text(value)}/s"
    for name in ("waiting", "delayed", "blocked", "running"):
        yield name, texts[name]
    yield "failed, kept", texts["failed"]
    for share in ("50", "95", "99"):
        yield f"start delay {share} %", texts[f"p{share}"]
    yield "oldest job waits", texts["oldest"]
    yield "workers", f"{texts['workers']}, {texts['slots']} slots busy"
    notes = ((row["name"], ", ".join(figures.problems_of(row))) for row in answer["queues"])
    yield "attention", "; ".join(f"{name}: {note}" for name, note in notes if note)


def details(info: Row) -> Iterator[str]:
    """Yield the lines about one job, each safe to print.

    Args:
        info: Result of `info_of`.
    """
    for name in ("id", "task", "queue", "state", "attempt", "worker"):
        yield f"{name:<9} {cell_text(name, info[name])}"
    yield f"arguments {printable(', '.join(figures.arguments_of(info))[:_MAX_TEXT]) or 'none'}"
    for at, _, text in history_of(info):
        yield f"{clock(at)}  {printable(text)}"
    if error := info.get("error"):
        yield ""
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
    gives_way=("version", "tasks", "seen", "pool", "leased", "queues"),
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
