"""Inspect a broker: ``ping status queues workers jobs job``."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from eventmq.cli.command import NO_BROKER, NOT_FOUND, Command
from eventmq.cli.output import printable, rows_of, show_latest, show_object, show_rows
from eventmq.cli.target import takes_json, takes_target
from eventmq.job import JobState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from eventmq.app import EventMQ
    from eventmq.cli.target import Target
    from eventmq.wire.results import RemoteError

    Row = Mapping[str, Any]

__all__ = [
    "COMMANDS",
    "attempts_of",
    "draw_graph",
    "error_of",
    "graph_of",
    "progress_of",
    "show_attempts",
    "traceback_of",
]


_COLUMNS = ("attempt", "delivery", "finished", "started", "ran", "worker", "error")


def _error(data: bytes | RemoteError | None) -> RemoteError | None:
    from eventmq.wire.results import decode_error

    return (decode_error(data) if isinstance(data, bytes) else data) if data else None


def error_of(data: bytes | RemoteError | None) -> str | None:
    """Return an error, which may be encoded, as one text, None for none."""
    error = _error(data)
    if error is None:
        return None
    return f"{error.type.rpartition('.')[2]}: {error.message}".removeprefix(": ")


def traceback_of(data: bytes | RemoteError | None) -> str | None:
    """Return the traceback of an error, which may be encoded, None if there is none."""
    error = _error(data)
    return error.traceback or None if error is not None else None


def progress_of(about: Mapping[str, Any] | None) -> str | None:
    """Return the progress of a job as text, such as ``30/100 rows``, None if it has none."""
    if not about:
        return None
    total = "" if about["total"] is None else f"/{about['total']:g}"
    return f"{about['done']:g}{total} {printable(about['note'])}".rstrip()


def attempts_of(info: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the failed attempts of a job as flat objects, the first one first."""
    return [
        {
            "attempt": row["attempt"],
            "delivery": row["delivery"],
            "finished": row["at"] or None,
            "started": row["started"] or None,
            "ran": row["ran"],
            "worker": row["worker"],
            "error": error_of(row["error"]),
            "traceback": traceback_of(row["error"]),
        }
        for row in info.get("attempts", ())
    ]


def show_attempts(info: Mapping[str, Any], *, tracebacks: bool = False) -> None:
    """Print the failed attempts of a job for people; nothing if there are none."""
    attempts = attempts_of(info)
    if not attempts:
        return
    click.echo("\nfailed attempts:")
    show_rows(attempts, _COLUMNS, as_json=False)
    for row in attempts if tracebacks else ():
        if row["traceback"]:
            click.echo(f"\ntraceback of attempt {row['attempt']}:")
            click.echo("\n".join(map(printable, row["traceback"].splitlines())))


#: Parallel jobs that are drawn; of more only the number in each state is shown.
MAX_DRAWN = 50


def graph_of(app: EventMQ, job_id: str) -> list[dict[str, Any]]:
    """Return the jobs of the graph of a job by place.

    Raises:
        JobNotFound: It is part of no graph that the broker knows.
    """
    rows: list[dict[str, Any]] = []
    while True:
        page = app.ask("graph", {"id": job_id, "first": len(rows)})
        rows += page["jobs"]
        if len(rows) >= page["size"] or not page["jobs"]:
            return rows


def draw_graph(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of a drawing of a graph.

    Args:
        rows: Of `graph_of`.
    """
    states = ", ".join(f"{n} {state}" for state, n in Counter(r["state"] for r in rows).items())
    yield f"graph {rows[0]['id']}: {states}"
    waited: dict[int, list[Row]] = {}
    for row in rows:
        if row["output"]:
            waited.setdefault(row["output"], []).append(row)
    last = [row for row in rows if not row["output"] and not row["handler"]]
    yield from _draw(last, waited)
    for row in rows:
        if row["handler"]:
            yield f"on error: {_label(row)}"


def _draw(last: Sequence[Row], waited: dict[int, list[Row]]) -> Iterator[str]:
    """Yield the lines below the first; no recursion, since chains may be long."""
    stack = _beside(last, "")
    seen: set[int] = set()
    while stack:
        row, head, below = stack.pop()
        if isinstance(row, str):
            yield head + row
            continue
        yield head + _label(row)
        join = row["input"]
        before = waited.get(join, [])
        if not before:
            continue
        if join in seen:
            yield f"{below}waits for the same as above"
        elif len(before) == 1:  # a chain goes straight down
            stack.append((before[0], below, below))
        else:
            stack += _beside(before, below)
        seen.add(join)


def _beside(rows: Sequence[Row], indent: str) -> list[tuple[Row | str, str, str]]:
    """Return jobs beside each other for the stack: what, before its first line, before the rest."""
    parts: list[Row | str] = [*rows[:MAX_DRAWN]]
    if len(rows) > MAX_DRAWN:
        states = Counter(row["state"] for row in rows[MAX_DRAWN:])
        parts.append(
            f"{len(rows) - MAX_DRAWN} more: {', '.join(f'{n} {s}' for s, n in states.items())}"
        )
    entries = [(part, f"{indent}├─ ", f"{indent}│  ") for part in parts]
    entries[-1] = (parts[-1], f"{indent}└─ ", f"{indent}   ")
    return entries[::-1]


def _label(row: Row) -> str:
    return f"{row['task'] or '(unknown)'}  {row['state']}  {row['id']}"


_QUEUES = ("name", "waiting", "delayed", "running", "failed", "paused", "workers")

_WORKERS = (
    "name", "session", "queues", "tasks", "running", "chunks", "window", "seen", "legacy",
)  # fmt: skip

_JOBS = (
    "id", "task", "queue", "state", "attempt", "delivery", "priority", "created", "due",
    "expires", "started", "ran", "finished", "worker", "error",
)  # fmt: skip

_TREE = (*_JOBS, "place", "input", "output", "handler")

#: Columns that fit into a terminal.
_JOBS_ON_TERMINAL = (
    "id", "task", "queue", "state", "attempt", "created", "finished", "worker", "error",
)  # fmt: skip

#: Default of ``jobs --limit``.
ROWS = 100


@click.command(cls=Command, exits={NO_BROKER: ""})
@click.option("--timeout", type=float, metavar="S", help="Longest wait for the answer in seconds.")
@takes_json
@takes_target
def ping(target: Target, timeout: float | None, as_json: bool) -> None:
    """Check that the broker answers.

    Prints its version, epoch, store and time; "round_trip" is the time of the request in seconds.
    """
    with target.asking(timeout) as app:
        app.ask("ping")  # connects; the second one measures
        start = time.perf_counter()
        answer = app.ask("ping")
        round_trip = time.perf_counter() - start
    show_object({**answer, "round_trip": round(round_trip, 6)}, as_json=as_json)


@click.command(cls=Command, exits={NO_BROKER: ""})
@takes_json
@takes_target
def status(target: Target, as_json: bool) -> None:
    """Show the state of the broker.

    Prints addresses, peers, waiting jobs, and counters since its start. "clock" has the seconds of
    a clock step, and of the time that the machine was off, that do not count yet.
    """
    with target.asking() as app:
        answer = app.ask("status")
    if not as_json:
        clock = answer.get("clock", {})
        answer["clock"] = {name: round(value) for name, value in clock.items() if value}
    show_object(answer if as_json else dict(_flat(answer)), as_json=as_json)


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a row for each part of what people read in a status."""
    for name, part in value.items():
        if isinstance(part, dict):
            yield from _flat(part, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", ", ".join(map(str, part)) if isinstance(part, list) else part


@click.command(cls=Command, exits={NO_BROKER: ""})
@takes_json
@takes_target
def queues(target: Target, as_json: bool) -> None:
    """List the queues.

    For each the number of waiting, delayed, running and failed jobs, and of workers that serve it;
    its limits if the broker has limits of queues.
    """
    with target.asking() as app:
        rows = app.ask("queues")
    limited = any(row.get("limits") for row in rows)
    columns = (*_QUEUES, "limits") if limited else _QUEUES
    show_rows(rows, columns, as_json=as_json, empty="the broker has no queue yet")


@click.command(cls=Command, exits={NO_BROKER: ""})
@takes_json
@takes_target
def workers(target: Target, as_json: bool) -> None:
    """List the workers.

    For each its queues with weights, its tasks, how many jobs and chunks it has, how many more
    chunks it accepts, and how many seconds ago it was last seen. A legacy worker speaks only the
    published protocol.
    """
    with target.asking() as app:
        rows = [_worker(row) for row in app.ask("workers")]
    show_rows(rows, _WORKERS, as_json=as_json, empty="no worker is connected")


def _worker(row: Mapping[str, Any]) -> dict[str, Any]:
    queues = ",".join(f"{name}:{weight}" for weight, name in row["queues"])
    tasks = ",".join(row["tasks"])
    return {**row, "queues": queues, "tasks": tasks, "legacy": row["plain"]}


@click.command(cls=Command, exits={NO_BROKER: ""})
@click.option("--queue", metavar="NAME", help="Only of this queue.")
@click.option(
    "--state", type=click.Choice([state.value for state in JobState]), help="Only in this state.",
)  # fmt: skip
@click.option("--task", metavar="NAME", help="Only of this task.")
@click.option(
    "--limit", type=click.IntRange(1), default=ROWS, show_default=True, metavar="N",
    help="Largest number of rows.",
)  # fmt: skip
@takes_json
@takes_target
def jobs(target: Target, limit: int, as_json: bool, **filters: str | None) -> None:
    """List jobs, the newest first, including ended ones.

    Ended jobs are kept as long as their results, failed ones longer.
    """
    with target.asking() as app:
        rows = [_job(row) for row in rows_of(app, "jobs", filters, limit)]
    show_latest(rows, _JOBS if as_json else _JOBS_ON_TERMINAL, limit, as_json=as_json)


def _job(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job as a flat object: times that have not come are None, the error is a text."""
    flat = {**row, "error": error_of(row.get("error"))}
    for name in ("created", "due", "expires", "started", "ran", "finished"):
        flat[name] = flat.get(name) or None
    return flat


@click.command(cls=Command, exits={NO_BROKER: "", NOT_FOUND: "no job with this id"})
@click.argument("job_id", metavar="ID")
@click.option("--tree", is_flag=True, help="Draw its chain, group or chord.")
@takes_json
@takes_target
def job(target: Target, job_id: str, tree: bool, as_json: bool) -> None:
    """Show one job and its failed attempts.

    Its arguments and its result are not shown. With --tree all jobs of its graph are drawn with
    their states: the last ones on top, and below each the jobs that it waits for.
    """
    with target.asking() as app:
        info = app.job(job_id).info()
        if tree:
            _show_tree(graph_of(app, job_id) if info["root"] else [_alone(info)], as_json=as_json)
            return
    row = _job(info)
    del row["attempts"]  # shown below
    row["traceback"] = traceback_of(info.get("error"))
    if as_json:
        show_object({**row, "attempts": attempts_of(info)}, as_json=True)
        return
    row["progress"] = progress_of(row["progress"])
    show_object({name: value for name, value in row.items() if value is not None}, as_json=False)
    if info["attempt"] > 1 or info["state"] != "failed":  # else it was shown above
        show_attempts(info)


def _alone(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job of no graph as the only one of one."""
    return {**info, "place": 0, "input": 0, "output": 0, "handler": False}


def _show_tree(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        show_rows([_job(row) for row in rows], _TREE, as_json=True)
        return
    for line in draw_graph(rows):
        click.echo(line)


COMMANDS = (ping, status, queues, workers, jobs, job)
