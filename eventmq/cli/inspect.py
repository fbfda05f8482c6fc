"""Inspect a broker: ``ping status queues workers jobs job``."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from eventmq.cli.command import (
    FAILED,
    NO_BROKER,
    NOT_FOUND,
    WRONG_USAGE,
    Command,
    count_of,
    read_timestamp,
)
from eventmq.cli.output import (
    STATE_COLOURS,
    age,
    byte_size,
    duration,
    full_ids,
    is_brief,
    local_time,
    none_of,
    paint,
    printable,
    rows_of,
    show_latest,
    show_object,
    show_rows,
    to_json,
)
from eventmq.cli.target import takes_json, takes_target, takes_wide
from eventmq.errors import EventMQError, NotAllowed
from eventmq.job import JobState
from eventmq.wire.owner import STANDBY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from eventmq.app import EventMQ
    from eventmq.cli.target import Target
    from eventmq.wire.results import RemoteError

    Row = Mapping[str, Any]

__all__ = [
    "COMMANDS",
    "as_row",
    "draw_graph",
    "history_of",
    "progress_of",
    "show_job",
    "takes_args",
    "takes_logs",
]


#: Fields of a job that concern the broker, not the user.
_INTERNAL = frozenset({"content_type", "delivery", "headers", "parent", "priority", "root"})

#: Columns with numbers of jobs, which a status adds up.
_TOTALS = ("waiting", "running", "delayed", "failed")

#: The option ``--args`` of commands that show a job.
takes_args = click.option("--args", is_flag=True, help="Also show its arguments.")

#: The option ``--logs`` of the same commands.
takes_logs = click.option("--logs", is_flag=True, help="Also show its log.")


def _error(data: bytes | RemoteError | None) -> RemoteError | None:
    from eventmq.wire.results import decode_error

    return (decode_error(data) if isinstance(data, bytes) else data) if data else None


def error_of(data: bytes | RemoteError | None) -> str | None:
    """Return an error, encoded or decoded, as text; None for none."""
    error = _error(data)
    if error is None:
        return None
    return f"{error.type.rpartition('.')[2]}: {error.message}".removeprefix(": ")


def traceback_of(data: bytes | RemoteError | None) -> str | None:
    """Return the traceback of an error, encoded or decoded; None if it has none."""
    error = _error(data)
    return error.traceback or None if error is not None else None


def progress_of(about: Mapping[str, Any] | None) -> str | None:
    """Return the progress of a job as text, such as ``30/100 rows``, None if it has none."""
    if not about:
        return None
    total = "" if about["total"] is None else f"/{about['total']:g}"
    return f"{about['done']:g}{total} {printable(about['note'])}".rstrip()


def attempts_of(info: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the failed attempts of a job as flat objects, the earliest first."""
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


#: Maximum number of parallel jobs to draw; of more, only the number in each state is shown.
MAX_DRAWN = 50


def graph_of(app: EventMQ, job_id: str) -> list[dict[str, Any]]:
    """Return the jobs of the graph of a job by node index.

    Raises:
        JobNotFound: It is in no graph that the broker knows.
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
        rows: Result of `graph_of`.
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
    """Yield the lines below the first; iterative, since chains may be long."""
    stack = _beside(last, "")
    drawn: set[int] = set()
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
        if join in drawn:
            yield f"{below}waits for the same as above"
        elif len(before) == 1:  # a chain is not indented
            stack.append((before[0], below, below))
        else:
            stack += _beside(before, below)
        drawn.add(join)


def _beside(rows: Sequence[Row], indent: str) -> list[tuple[Row | str, str, str]]:
    """Return parallel jobs for the stack: row or text, first indent, further indent."""
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

#: Columns of the table of queues; JSON has those of `_QUEUES`.
_QUEUES_SHOWN = (*_QUEUES, "waited", "note")

_WORKERS = (
    "name", "session", "queues", "tasks", "running", "chunks", "window", "seen", "legacy", "pool",
    "slots", "version", "runs", "runs_task", "since",
)  # fmt: skip

_WORKERS_SHOWN = ("name", "pool", "slots", "running", "runs", "tasks", "queues", "seen", "version")

_JOBS = (
    "id", "task", "queue", "state", "attempt", "delivery", "priority", "created", "due",
    "expires", "started", "ran", "finished", "worker", "error", "leased",
)  # fmt: skip

_TREE = (*_JOBS[:-1], "place", "input", "output", "handler", "leased")

_JOBS_SHOWN = (
    "id", "task", "state", "queue", "attempt", "created", "leased", "finished", "worker", "error",
)  # fmt: skip

#: Default of ``jobs --limit``.
ROWS = 100


@click.command(cls=Command, exits={NO_BROKER: ""})
@click.option("--timeout", type=float, metavar="S", help="Maximum wait for the answer in seconds.")
@takes_json
@takes_target
def ping(target: Target, timeout: float | None, as_json: bool) -> None:
    """Check that the broker answers.

    Prints its version, epoch, store and time; "round_trip" is the duration of a request in seconds.
    """
    with target.asking(timeout) as app:
        app.ask("ping")  # connects; the second ping measures
        start = time.perf_counter()
        answer = app.ask("ping")
        round_trip = time.perf_counter() - start
    show_object({**answer, "round_trip": round(round_trip, 6)}, as_json=as_json)


@click.command(cls=Command, exits={FAILED: "with --check: not healthy", NO_BROKER: ""})
@click.option(
    "--check", metavar="[ready|live]", is_flag=False, flag_value="ready",
    type=click.Choice(["ready", "live"]),
    help="Report only by the exit code whether the broker is healthy. live: it answers. ready, the "
    "default: it accepts jobs, or is a standby that knows the owner of its store. If it is not "
    "healthy, stderr has the reason.",
)  # fmt: skip
@takes_json
@takes_target
def status(target: Target, check: str | None, as_json: bool) -> None:
    """Show the state of the broker.

    First its uptime, its jobs, the waiting time of the oldest job that comes next, its workers, and
    what needs attention; for a broker that shares its store also its role, since when it has it,
    and how many other brokers stand by. A standby shows no jobs and workers; the owner does. If
    several brokers are configured and none stands by, that needs attention. With --verbose also its
    addresses and its counters since its start; "clock" has the seconds of a clock step, and of the
    time that the machine was off, that do not count yet.
    """
    with target.asking() as app:
        if check == "live":
            app.ask("ping")
            return
        answer = app.ask("status")
        standby = answer.get("role") == STANDBY
        if check is not None:
            if reason := _unready(answer):
                raise EventMQError(f"the broker is not ready: {reason}")
            return
        queues, workers = ([], []) if standby else (app.ask("queues"), app.ask("workers"))
        several = len(app.settings.broker) > 1
    health = _health(answer, queues, workers, several=several)
    if as_json:
        show_object({**health, **answer, "store_id": answer["store"]}, as_json=True)
        return
    attention, durability = health.pop("attention"), answer.get("durability", "")
    oldest, total = health["oldest_waiting"], len(workers)
    shared = answer.get("shared", False)
    since = "in this role" if shared else "runs"
    running = f"{since} for {duration(health['uptime'], 2)}, since {local_time(answer['started'])}"
    shown = {
        "broker": f"{running}; version {answer['version'] or 'unknown'}",
        **({"role": _role(answer)} if shared or standby else {}),
    }
    if not standby:
        shown |= {
            "jobs": ", ".join(f"{health[name]} {name}" for name in _TOTALS),
            "oldest": f"waits for {duration(oldest, 2)}" if oldest else "no job waits",
            "workers": f"{total}, with {sum(row.get('slots', 0) for row in workers)} slots",
        }
    if receipts := _RECEIPTS.get(durability):
        shown["receipts"] = receipts
    show_object(shown, as_json=False)
    for line in attention:
        click.echo(f"{paint('attention', 'yellow')}: {printable(line)}")
    if target.verbosity > 0:
        click.echo()
        clock = {name: round(n) for name, n in answer.get("clock", {}).items() if n}
        parts = {name: part for name, part in answer.items() if name != "now"}
        show_object(dict(_flat({**parts, "clock": clock})), as_json=False)
    elif not attention:
        click.echo("Nothing needs attention.")


#: Value of the setting ``durability`` -> meaning of a receipt.
_RECEIPTS = {
    "durable": "the job is on disk",
    "replicated": "the job is on the disks of the database and of a replica",
    "relaxed": "the job is on disk within fsync_interval",
    "memory": "the job is in memory",
}


def _unready(answer: Row) -> str:
    """Return the reason why a broker is not ready, "" if it is.

    It refuses new jobs, or it is a standby that could not take over now or knows no owner.
    """
    if answer.get("role") != STANDBY:
        refusing = answer.get("refusing", "")  # missing from an older broker
        return f"new jobs are refused: {refusing}" if refusing else ""
    if answer["trouble"]:
        return f"the store cannot be used now: {answer['trouble']}"
    return "" if answer["owner"] else "no broker owns the store now: see the logs of the brokers"


def _role(answer: Row) -> str:
    """Describe the role of a broker with a shared store, and its owner."""
    if answer["role"] != STANDBY:
        number = answer.get("standbys")  # missing from an older broker
        standbys = count_of(number, "standby") if number else "no standby"
        beside = "" if number is None else f"; {standbys}"
        return f"owner of the store, epoch {answer['epoch']}, at {answer['owner']}{beside}"
    owner = f"epoch {answer['epoch']} at {answer['owner']}" if answer["owner"] else "none"
    return f"standby; the owner of the store is {owner}"


def _health(
    answer: Row, queues: Sequence[Row], workers: Sequence[Row], *, several: bool
) -> dict[str, Any]:
    """Return the first rows of a status.

    Args:
        answer: The answer of the broker.
        queues: Its queues.
        workers: Its workers.
        several: Whether several brokers are configured, so that one is meant to stand by.
    """
    notes = []
    if reason := _unready(answer):
        notes.append(reason)
    if several and answer.get("standbys") == 0:
        notes.append(
            "no broker stands by: if this one ends, no job is accepted until one is started"
        )
    notes += [f"queue {row['name']}: {note}" for row in queues if (note := _note(row))]
    totals = {name: sum(row[name] for row in queues) for name in _TOTALS}
    if totals["failed"]:
        notes.append(f"{count_of(totals['failed'], 'job')} failed: eventmq failed list")
    clock = [f"{name} {round(value)} s" for name, value in answer.get("clock", {}).items() if value]
    if clock:
        notes.append(f"clock: {', '.join(clock)}; see eventmq clock accept --help")
    if totals["waiting"] and not workers:
        notes.append("jobs wait and no worker is connected: eventmq worker -A MODULE")
    return {
        "uptime": max(0.0, answer["now"] - answer["started"]),
        **totals,
        "oldest_waiting": max((row.get("waited", 0.0) for row in queues), default=0.0),
        "attention": notes,
    }


def _note(row: Row) -> str:
    """Return a note about the state of a queue, "" for none."""
    unserved = "no worker" if not row["workers"] and (row["waiting"] or row["running"]) else ""
    return ", ".join(filter(None, ("paused" if row["paused"] else "", unserved)))


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a row for each value of a status, with readable units."""
    for name, part in value.items():
        if isinstance(part, dict):
            yield from _flat(part, f"{prefix}{name}.")
        elif name == "hb":
            yield f"{prefix}seen", age(part)
        elif name.endswith("_bytes"):
            yield f"{prefix}{name}", byte_size(part)
        elif "latency" in prefix:  # milliseconds
            yield f"{prefix}{name}", duration(part / 1000)
        elif isinstance(part, list):  # of weight and name
            pairs = (f"{each[1]} ({each[0]})" if isinstance(each, list) else each for each in part)
            yield f"{prefix}{name}", ", ".join(map(str, pairs))
        else:
            yield f"{prefix}{name}", part


@click.command(cls=Command, exits={NO_BROKER: ""})
@takes_json
@takes_wide
@takes_target
def queues(target: Target, as_json: bool, wide: bool) -> None:
    """List the queues.

    For each queue the number of waiting, delayed, running and failed jobs, and of workers that
    serve it; its limits if the broker has limits of queues. A table also shows the waiting time of
    the oldest of the jobs that come next, and marks queues that are paused, or that have jobs but
    no worker.
    """
    with target.asking() as app:
        rows = [{**row, "note": _note(row)} for row in app.ask("queues")]
    limits = ("limits",) if any(row.get("limits") for row in rows) else ()
    show_rows(
        rows, (*_QUEUES, *limits), as_json=as_json, wide=wide, brief=(*_QUEUES_SHOWN, *limits),
        gives_way=("limits", "delayed", "paused", "waited"), empty=none_of("queues"),
    )  # fmt: skip


@click.command(cls=Command, exits={NO_BROKER: ""})
@takes_json
@takes_wide
@takes_target
def workers(target: Target, as_json: bool, wide: bool) -> None:
    """List the workers.

    For each worker its pool and slots, its version, its queues with weights, the number of its
    tasks and jobs, and the time since it was last seen. "runs" is the job that it has had for
    longest, which runs or comes next, and since when. With --wide also the names of its tasks, its
    session, its chunks and how many more it accepts. A legacy worker speaks only the published
    protocol.
    """
    with target.asking() as app:
        rows = [_worker(row) for row in app.ask("workers")]
    if is_brief(wide=wide) and not as_json:
        rows = list(map(_worker_briefly, rows))
    show_rows(
        rows, _WORKERS, as_json=as_json, wide=wide, brief=_WORKERS_SHOWN, empty=none_of("workers"),
        gives_way=("seen", "queues", "version", "tasks", "pool"),
    )  # fmt: skip


def _worker(row: Row) -> dict[str, Any]:
    queues = ",".join(f"{name}:{weight}" for weight, name in row["queues"])
    job = next(iter(row.get("jobs", ())), {"id": None, "task": None, "leased": None})
    return {
        **row, "queues": queues, "tasks": ",".join(row["tasks"]), "legacy": row["plain"],
        "slots": row.get("slots") or None, "runs": job["id"], "runs_task": job["task"],
        "since": job["leased"] or None,
    }  # fmt: skip


def _worker_briefly(row: Row) -> dict[str, Any]:
    """Return a worker as a row of the table on a terminal."""
    since = f", {age(row['since'])}" if row["since"] else ""
    runs = row["runs"] and f"{row['runs_task'] or '(legacy)'}{since}"
    return {**row, "runs": runs, "tasks": len(list(filter(None, row["tasks"].split(","))))}


@click.command(cls=Command, exits={NO_BROKER: ""})
@click.option("--queue", metavar="NAME", help="Only jobs of this queue.")
@click.option(
    "--state", type=click.Choice([state.value for state in JobState]), help="Only in this state.",
)  # fmt: skip
@click.option("--task", metavar="NAME", help="Only jobs of this task.")
@click.option(
    "--key", metavar="KEY", help="Only jobs with this limit key; ended ones have none any more."
)
@click.option(
    "--since",
    callback=read_timestamp,
    metavar="WHEN",
    help="Only jobs submitted after: 2h for two hours ago, or 2026-01-31T12:00.",
)
@click.option(
    "--until", callback=read_timestamp, metavar="WHEN", help="Only jobs submitted before."
)
@click.option(
    "--limit", type=click.IntRange(1), default=ROWS, show_default=True, metavar="N",
    help="Maximum number of rows.",
)  # fmt: skip
@takes_json
@takes_wide
@takes_target
def jobs(
    target: Target, limit: int, as_json: bool, wide: bool, state: str | None, **filters: Any
) -> None:
    """List jobs, the newest first, including ended ones.

    "leased" is the time when a running job was handed to its worker: it started then, or later if
    the worker had others before it. Ended jobs are kept as long as their results, failed ones
    longer. On a narrow terminal these columns are dropped first: worker, queue, finished, attempt.
    """
    with target.asking() as app:
        rows = [as_row(row) for row in rows_of(app, "jobs", {**filters, "state": state}, limit)]
    show_latest(
        rows, _JOBS, limit, as_json=as_json, wide=wide, brief=_JOBS_SHOWN,
        empty=none_of(f"{state} jobs" if state else "jobs", **filters),
    )  # fmt: skip


def as_row(row: Row) -> dict[str, Any]:
    """Return a job as a flat object: times that have not come are None, the error is text."""
    times = ("created", "due", "expires", "leased", "started", "ran", "finished")
    return {**row, **{n: row.get(n) or None for n in times}, "error": error_of(row.get("error"))}


@click.command(
    cls=Command, exits={WRONG_USAGE: "wrong usage; also a part of several ids", NO_BROKER: "",
                        NOT_FOUND: "no job with this id"},
)  # fmt: skip
@click.argument("job_id", metavar="ID")
@click.option("--tree", is_flag=True, help="Draw its chain, group or chord.")
@takes_args
@takes_logs
@takes_json
@takes_target
def job(
    target: Target, job_id: str, *, tree: bool, args: bool, logs: bool, as_json: bool
) -> None:  # fmt: skip
    """Show one job: its fields and its history.

    "reason" says why it has not ended; if the broker has keys, of a job that waits in its queue
    only to an admin or viewer.

    ID may be a part of an id, such as the end that listings show; if the broker has keys, a part
    needs one that may list jobs, of an admin or viewer. --args also shows its arguments if they are
    kept and are msgpack or JSON; if the broker has keys, only to the key that submitted the job,
    its group, and admins. --logs shows the logs of its attempts, to the same keys, if its
    task has keep_logs. "leased" is the time when a running job was handed to its worker: it started
    then, or later if the worker had others before it. --verbose adds fields that concern only the
    broker. --tree draws all jobs of its graph with their states: the last ones on top, and below
    each the jobs that it waits for.
    """
    with target.asking() as app:
        info = app.job(*full_ids(app, [job_id])).info(args=args, logs=logs)
        if tree:
            rows = graph_of(app, info["id"]) if info["root"] else [_alone(info)]
            _show_tree(rows, as_json=as_json)
            return
        reason = _reason(app, info)
    row = as_row(info)
    del row["attempts"]  # shown below
    row["reason"] = reason or None
    row["traceback"] = traceback_of(info.get("error"))
    show_job(row, info, as_json=as_json, verbose=target.verbosity > 0)


def _reason(app: EventMQ, info: Row) -> str:
    """Return the reason why a job has not ended, "" if that is not known or it has ended."""
    from eventmq.client.handle import reason_of

    queues, workers = None, None
    if info["state"] == "queued":
        with suppress(NotAllowed):
            queues, workers = app.ask("queues"), app.ask("workers")
    return reason_of(info, queues, workers)


def show_job(
    row: Row, info: Row, *, as_json: bool, tracebacks: bool = False, verbose: bool = False
) -> None:
    """Print a job and its history; as text without the fields that have no value.

    Args:
        row: Result of `as_row`, with the fields to print.
        info: Result of `Job.info`.
        as_json: Print an object, with "attempts".
        tracebacks: Append the tracebacks of all attempts to the text.
        verbose: Include the fields that concern only the broker in the text.
    """
    if as_json:
        show_object({**row, "attempts": attempts_of(info)}, as_json=True)
        return
    shown = {**row, "progress": progress_of(row.get("progress"))}
    args, kwargs, args_note = (shown.pop(name, None) for name in ("args", "kwargs", "args_note"))
    logs = shown.pop("logs", None)
    hidden = () if verbose else _INTERNAL
    fields = {n: v for n, v in shown.items() if v is not None and v != "" and n not in hidden}
    show_object(fields, as_json=False)
    if "args" in row:
        click.echo(f"\narguments{f': {printable(args_note)}' if args_note else ''}")
        for value in args or ():
            click.echo(f"    {printable(to_json(value))}")
        for name, value in (kwargs or {}).items():
            click.echo(f"    {printable(str(name))} = {printable(to_json(value))}")
    click.echo("\nhistory")
    for timestamp, _, text in history_of(info):
        click.echo(f"    {local_time(timestamp)}  {printable(text)}")
    for attempt in attempts_of(info) if tracebacks else ():
        if attempt["traceback"]:
            click.echo(f"\ntraceback of attempt {attempt['attempt']}:")
            click.echo("\n".join(map(printable, attempt["traceback"].splitlines())))
    _show_logs(logs)


def _show_logs(logs: Sequence[Mapping[str, Any]] | None) -> None:
    """Print the logs of a job's attempts; None if they were not requested."""
    from eventmq.wire.outcomes import LOG_CUT

    if logs is not None and not logs:
        click.echo("\nlog: none is kept; a task keeps the logs of its jobs with keep_logs=True")
    for log in logs or ():
        click.echo(f"\nlog of attempt {log['attempt']}")
        for line in (log["text"] or LOG_CUT).splitlines():
            click.echo(f"    {printable(line)}")


def history_of(info: Row) -> list[tuple[float, str, str]]:
    """Return the history of a job, the earliest event first: Unix time, state and sentence.

    Args:
        info: Result of `Job.info`.
    """
    events = [(info["created"], "queued", f"submitted to queue {info['queue']}")]
    for row in attempts_of(info):
        text = f"attempt {row['attempt']} failed{_where(row)}: {row['error'] or 'unknown'}"
        events.append((row["finished"], "failed", text))
    attempt, state = f"attempt {info['attempt']}", info["state"]
    if state == "delayed":
        events.append((info["due"], state, f"{attempt} is due"))
    if state == "running" and info.get("leased"):
        text = f"{attempt} handed to {info['worker']}, {age(info['leased'])}"
        events.append((info["leased"], state, text))
    if state != "failed":
        events.append((info["finished"], state, f"{state}{_where(info)}"))
    return sorted((event for event in events if event[0]), key=lambda event: event[0])


def _where(row: Row) -> str:
    """Return where a job or an attempt ended, and how long it ran, as the end of a sentence."""
    on_worker = f" on {row['worker']}" if row["worker"] else ""
    return on_worker + (f" after {duration(row['ran'])}" if row["ran"] else "")


def _alone(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job without a graph as the only job of one."""
    return {**info, "place": 0, "input": 0, "output": 0, "handler": False}


def _show_tree(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        show_rows([as_row(row) for row in rows], _TREE, as_json=True)
        return
    for line in draw_graph(rows):
        text = printable(line)
        for state, colour in STATE_COLOURS.items():
            text = text.replace(f"  {state}  ", f"  {paint(state, colour)}  ")
        click.echo(text)


COMMANDS = (ping, status, queues, workers, jobs, job)
