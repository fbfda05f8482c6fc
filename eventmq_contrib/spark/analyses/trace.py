"""Traces: the tree of jobs that a job belongs to, with its critical path.

`events_of` finds the events of the tree, `hops` makes jobs of them, `critical` computes the
critical path, `summarize` makes rows, and `tree_lines` draws the tree. All but the first are plain
Python: a tree fits into memory, or is cut with a warning.

`chrome_trace` exports it in the Trace Event Format, for chrome://tracing and Perfetto: complete
events (``X``) for runs, nestable asynchronous ones (``b`` and ``e``) for waiting, flows (``s`` and
``f``) from a job to those below it, metadata (``M``) for names. Complete events of one thread must
nest, so runs of one worker that overlap get threads of their own. The document: "Trace Event
Format", sections "JSON Object Format", "Complete Events", "Async Events", "Flow Events" and
"Metadata Events".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it
from rich.text import Text

from eventmq.cli import printable
from eventmq.errors import JobNotFound
from eventmq.sdk.events import ENDS, STATES, EventKind

__all__ = [
    "BESIDE",
    "MAX_EVENTS",
    "Hop",
    "Run",
    "Step",
    "chrome_trace",
    "critical",
    "events_of",
    "hop_rows",
    "hops",
    "summarize",
    "tree_lines",
]


Row: TypeAlias = Mapping[str, Any]

#: Most events of a tree that are read.
MAX_EVENTS = 200_000

#: Most generations of jobs without a known root.
_DEEP = 64

_COLUMNS = (
    "broker_id", "seq", "ts_us", "kind", "job_id", "root_id", "parent_id", "task", "queue",
    "attempt", "delivery", "worker_id", "error_type", "wait_us", "run_us", "leased_us",
    "started_us", "due_us", "actor", "operation",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a job; times in microseconds since 1970."""

    attempt: int
    worker: str
    ready_us: int
    started_us: int
    ended_us: int
    kind: str
    error: str = ""


@dataclass(slots=True, kw_only=True)
class Hop:
    """One job of a tree; times in microseconds since 1970.

    Attributes:
        state: State after the last event.
        parent: Id of its parent, "" if none is known.
        submitted_us: Time of its first event.
        ready_us: Time at which it first became ready; None if it never did.
        ended_us: Time of its end; None if it has not ended.
        blocked: Whether it first waited for other jobs.
        acts: Operations of people on it, as texts such as ``cancel by anna@host``.
    """

    id: str
    task: str
    queue: str
    state: str
    parent: str
    submitted_us: int
    ready_us: int | None = None
    ended_us: int | None = None
    blocked: bool = False
    error: str = ""
    runs: list[Run] = field(default_factory=list)
    acts: list[str] = field(default_factory=list)

    @property
    def waited_us(self) -> int:
        """Time that it waited after it was ready, over all its runs."""
        return sum(run.started_us - run.ready_us for run in self.runs)

    @property
    def ran_us(self) -> int:
        """Run time, over all its runs."""
        return sum(run.ended_us - run.started_us for run in self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Step of the critical path, from the end of the step before to the end of this job.

    Attributes:
        job: Id of the job.
        from_us: End of the step before; for the first step the submission.
        to_us: End of the job, or the time at which it submitted the next one.
        ran_us: Run time of the job within the step.
    """

    job: str
    from_us: int
    to_us: int
    ran_us: int


def events_of(events: DataFrame, job_id: str, *, limit: int = MAX_EVENTS) -> list[dict[str, Any]]:
    """Return the events of the tree that a job is part of, by broker and number.

    The tree has all jobs with the same root; without a root, the ancestors and descendants.

    Args:
        events: Rows of a journal.
        job_id: Id of any job of the tree.
        limit: Maximum number of events; one more is returned if the tree has more.

    Raises:
        JobNotFound: The journal has no event of this job.
    """

    def read(rows: DataFrame) -> list[dict[str, Any]]:
        return [row.asDict() for row in rows.select(*_COLUMNS).limit(limit + 1).collect()]

    def read_job(job_id: str) -> list[dict[str, Any]]:
        return read(events.where(F.col("job_id") == job_id))

    own = read_job(job_id)
    if not own:
        raise JobNotFound(f"the journal has no event of a job {job_id}: see --since and --queue")
    roots = {row["root_id"] for row in own if row["root_id"]}
    top, own = _ancestors(own, read_job, job_id) if not roots else (job_id, own)
    roots = roots or {row["root_id"] for row in own if row["root_id"]} or {top}
    related = F.col("root_id").isin(list(roots)) | F.col("job_id").isin([top, *roots])
    job_events = [*read(events.where(related)), *own]
    below = {row["job_id"] for row in job_events}
    for _ in range(_DEEP):  # children without a root
        if not below or len(job_events) > limit:
            break
        seen_ids = {row["job_id"] for row in job_events}
        ids = events.sparkSession.createDataFrame([(i,) for i in sorted(below)], "up string")
        orphans = events.where(F.col("root_id").isNull() & F.col("parent_id").isNotNull())
        children = read(
            orphans.join(F.broadcast(ids), F.col("parent_id") == F.col("up"), "left_semi")
        )
        job_events += children
        below = {row["job_id"] for row in children} - seen_ids
    once = {(row["broker_id"], row["seq"]): row for row in job_events}
    return [once[key] for key in sorted(once)][: limit + 1]


def _ancestors(
    rows: list[dict[str, Any]], read: Callable[[str], list[dict[str, Any]]], job_id: str
) -> tuple[str, list[dict[str, Any]]]:
    """Return the topmost ancestor of a job, and the events of the ancestors."""
    ancestors, top, seen = list(rows), job_id, {job_id}
    for _ in range(_DEEP):
        parent = next((row["parent_id"] for row in rows if row["parent_id"]), None)
        if parent is None or parent in seen:
            break
        rows = read(parent)
        if not rows:
            break
        ancestors += rows
        top = parent
        seen.add(parent)
    return top, ancestors


# Jobs of events


def hops(rows: Iterable[Row]) -> dict[str, Hop]:
    """Return the jobs of some events by id, in the order of their submission.

    Args:
        rows: Events, as from `events_of`.
    """
    by_id: dict[str, Hop] = {}
    ready: dict[str, int] = {}  # job -> time since which it waits
    for row in rows:
        job_id, kind = row["job_id"], row["kind"]
        hop = by_id.get(job_id)
        if hop is None:
            hop = by_id[job_id] = Hop(
                id=job_id, task=row["task"] or "", queue=row["queue"] or "", state="queued",
                parent="", submitted_us=row["ts_us"],
                blocked=kind == EventKind.DELAYED and not row["due_us"],
            )  # fmt: skip
        hop.parent = row["parent_id"] or hop.parent or row["root_id"] or ""
        _apply(hop, row, ready)
    for hop in by_id.values():
        if hop.parent == hop.id or hop.parent not in by_id or _circular(hop, by_id):
            hop.parent = ""
    return dict(sorted(by_id.items(), key=lambda item: (item[1].submitted_us, item[0])))


def _apply(hop: Hop, row: Row, ready: dict[str, int]) -> None:
    """Apply an event to its job."""
    kind, at = row["kind"], row["ts_us"]
    if row.get("operation") and hop.acts[-1:] != [act := _act(row)]:  # once per operation
        hop.acts.append(act)
    if kind in STATES:
        hop.state = str(STATES[EventKind(kind)])
    if row["started_us"] and row["run_us"] is not None:
        hop.runs.append(_run(row, ready.get(hop.id)))
    if kind in {
        EventKind.ENQUEUED,
        EventKind.LEASE_LOST,
        EventKind.HANDED_BACK,
        EventKind.REPLAYED,
    }:
        ready[hop.id] = at
        if hop.ready_us is None:
            hop.ready_us = at
    if kind == EventKind.REPLAYED:
        hop.ended_us = None
    if kind in ENDS:
        hop.ended_us, hop.error = at, row["error_type"] or ""


def _act(row: Row) -> str:
    return f"{row['operation']} by {row['actor']}" if row["actor"] else str(row["operation"])


def _run(row: Row, ready: int | None) -> Run:
    started = row["started_us"]
    if row["wait_us"] is not None:  # a requeued job counts it from the first time it was ready
        ready = max(started - row["wait_us"], ready or 0)
    return Run(
        attempt=row["attempt"] or 1, worker=row["worker_id"] or "", kind=row["kind"],
        ready_us=min(started, ready or row["leased_us"] or started), started_us=started,
        ended_us=started + max(0, row["run_us"]), error=row["error_type"] or "",
    )  # fmt: skip


def _circular(hop: Hop, hops: Mapping[str, Hop]) -> bool:
    """Return whether a job is its own ancestor, since clients choose the headers."""
    above, seen = hop.parent, {hop.id}
    while above in hops:
        if above in seen:
            return True
        seen.add(above)
        above = hops[above].parent
    return False


# The critical path


def critical(hops: Mapping[str, Hop]) -> list[Step]:
    """Return the critical path of the job that ended last, the first step first.

    A blocked job waited for the job of the tree that ended last before its release. A job that was
    submitted by a running job waited for that job until its submission.

    Args:
        hops: Jobs of the trace, as from `hops`.
    """
    ended = (hop for hop in hops.values() if hop.ended_us is not None)
    by_end = sorted(ended, key=lambda hop: hop.ended_us or 0)
    if not by_end:
        return []
    hop, to_us = by_end[-1], by_end[-1].ended_us or 0
    steps: list[Step] = []
    seen: set[str] = set()
    while True:
        seen.add(hop.id)
        before, from_us = _before(hop, hops, by_end)
        if before is None or before.id in seen:
            steps.append(_step(hop, min(hop.submitted_us, to_us), to_us))
            return steps[::-1]
        steps.append(_step(hop, min(from_us, to_us), to_us))
        hop, to_us = before, min(from_us, to_us)


def _before(hop: Hop, hops: Mapping[str, Hop], by_end: Sequence[Hop]) -> tuple[Hop | None, int]:
    """Return the job that another one waited for, and until when."""
    parent = hops.get(hop.parent)
    if hop.blocked and hop.ready_us is not None:
        ready = hop.ready_us
        over = [h for h in by_end if h.id != hop.id and (h.ended_us or 0) <= ready]
        last = [h for h in over if h.ended_us == over[-1].ended_us]
        if parent is not None and parent in last:
            return parent, ready
        return (last[-1], ready) if last else (None, 0)
    if parent is None or parent.submitted_us > hop.submitted_us:
        return None, 0
    return parent, min(hop.submitted_us, parent.ended_us or hop.submitted_us)


def _step(hop: Hop, from_us: int, to_us: int) -> Step:
    run_us = sum(
        max(0, min(run.ended_us, to_us) - max(run.started_us, from_us)) for run in hop.runs
    )
    return Step(job=hop.id, from_us=from_us, to_us=to_us, ran_us=min(run_us, to_us - from_us))


#: Most children of a job that are drawn; further ones are counted by state.
BESIDE = 50

_SECOND = 1e6

#: State -> colour on a terminal.
_COLOURS = {"succeeded": "green", "failed": "red", "cancelled": "yellow", "expired": "yellow"}


def summarize(job_id: str, hops: Mapping[str, Hop], steps: Sequence[Step]) -> dict[str, Any]:
    """Return a trace as one object.

    Args:
        job_id: Id of the requested job.
        hops: Jobs of the trace, as from `hops`.
        steps: The critical path.
    """
    first = min(hop.submitted_us for hop in hops.values())
    whole = max(1, steps[-1].to_us - steps[0].from_us) if steps else 1
    return {
        "id": job_id,
        "seconds": whole / _SECOND if steps else None,
        "states": dict(Counter(hop.state for hop in hops.values())),
        "jobs": hop_rows(hops),
        "critical": [
            {
                "job": step.job, "task": hops[step.job].task, "queue": hops[step.job].queue,
                "after_s": (step.from_us - first) / _SECOND,
                "waited_s": (step.to_us - step.from_us - step.ran_us) / _SECOND,
                "ran_s": step.ran_us / _SECOND,
                "share": f"{(step.to_us - step.from_us) / whole:.1%}",
            }
            for step in steps
        ],
    }  # fmt: skip


def hop_rows(hops: Mapping[str, Hop]) -> list[dict[str, Any]]:
    """Return the jobs as flat rows, in the order of submission; times in seconds since 1970."""
    return [
        {
            "id": hop.id, "parent": hop.parent, "task": hop.task, "queue": hop.queue,
            "state": hop.state, "attempts": max((run.attempt for run in hop.runs), default=0),
            "submitted": hop.submitted_us / _SECOND,
            "ready": None if hop.ready_us is None else hop.ready_us / _SECOND,
            "ended": None if hop.ended_us is None else hop.ended_us / _SECOND,
            "waited_s": hop.waited_us / _SECOND, "ran_s": hop.ran_us / _SECOND,
            "worker": hop.runs[-1].worker if hop.runs else "", "error": hop.error,
            "acts": ", ".join(hop.acts),
        }
        for hop in hops.values()
    ]  # fmt: skip


def tree_lines(trace: Mapping[str, Any]) -> Iterator[Text]:
    """Yield the lines of the tree.

    A job that is the only successor of another is drawn below it, not indented: chains may be long.

    Args:
        trace: Summary of the trace, as from `summarize`.
    """
    states = ", ".join(f"{n} {state}" for state, n in trace["states"].items())
    duration = "" if trace["seconds"] is None else f", {_span(trace['seconds'])}"
    yield Text(f"trace {printable(trace['id'])}: {states}{duration}")
    below: dict[str, list[Row]] = {}
    for row in trace["jobs"]:
        below.setdefault(row["parent"], []).append(row)
    path = {step["job"] for step in trace["critical"]}
    stack = _beside(below.get("", []), "")
    while stack:
        row, head, indent = stack.pop()
        if isinstance(row, str):
            yield Text(head + row)
            continue
        label = _label(row, marked=row["id"] in path, requested=row["id"] == trace["id"])
        yield Text(head).append_text(label)
        children = below.get(row["id"], [])
        if len(children) == 1 and _follows(children[0], row):
            stack.append((children[0], indent, indent))
        else:
            stack += _beside(children, indent)


def _beside(rows: Sequence[Row], indent: str) -> list[tuple[Row | str, str, str]]:
    """Return siblings for the stack: row or text, indent of its first line, indent of the rest."""
    parts: list[Row | str] = [*rows[:BESIDE]]
    if len(rows) > BESIDE:
        hidden = Counter(row["state"] for row in rows[BESIDE:])
        states = ", ".join(f"{n} {state}" for state, n in hidden.items())
        parts.append(f"{len(rows) - BESIDE} more: {states}")
    entries = [(part, f"{indent}├─ ", f"{indent}│  ") for part in parts]
    entries[-1:] = [(part, f"{indent}└─ ", f"{indent}   ") for part in parts[-1:]]
    return entries[::-1]


def _follows(child: Row, row: Row) -> bool:
    """Return whether a job started after another one had ended."""
    return row["ended"] is not None and (child["ready"] or 0) >= row["ended"]


def _label(row: Row, *, marked: bool, requested: bool) -> Text:
    label = Text(printable(row["task"]) or "(legacy job)", style="bold" if requested else "")
    label.append(" * " if marked else "  ", style="bold")
    label.append(row["state"], style=_COLOURS.get(row["state"], ""))
    tries = f", {row['attempts']} attempts" if row["attempts"] > 1 else ""
    label.append(f"  waited {_span(row['waited_s'])}, ran {_span(row['ran_s'])}{tries}  ")
    label.append(f"{printable(row['queue'])}  {row['id']}", style="dim")
    if row["acts"]:
        label.append(f"  {printable(row['acts'])}", style="yellow")
    if row["error"]:
        label.append(f"  {printable(row['error'])}", style="red")
    return label


def _span(seconds: float) -> str:
    """Return a duration as text."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 60 else f"{seconds / 60:.1f} min"  # noqa: PLR2004


# Export for chrome://tracing and Perfetto

#: Process number of the queues; the numbers of hosts follow.
_QUEUES = 1


def chrome_trace(hops: Mapping[str, Hop]) -> dict[str, Any]:
    """Return the trace as an object for JSON; times count from the first event.

    Args:
        hops: Jobs of the trace, as from `hops`.
    """
    begins = (run.ready_us for hop in hops.values() for run in hop.runs)
    zero = min([*(hop.submitted_us for hop in hops.values()), *begins], default=0)
    threads = _Threads()
    events = list(_waiting(hops, zero))
    starts: dict[str, dict[str, Any]] = {}
    runs = ((hop, run) for hop in hops.values() for run in hop.runs)
    for hop, run in sorted(runs, key=lambda each: (each[1].started_us, each[0].id)):
        event = {**_about(hop, run, zero), **threads.assign(run)}
        starts.setdefault(hop.id, event)
        events.append(event)
    events += _flows(hops, starts)
    names = [_named("process_name", "queues", pid=_QUEUES), *threads.names()]
    return {"traceEvents": [*names, *events], "displayTimeUnit": "ms"}


def _about(hop: Hop, run: Run, zero: int) -> dict[str, Any]:
    args = {"job": hop.id, "queue": hop.queue, "attempt": run.attempt, "outcome": run.kind}
    return {
        "name": hop.task or "(legacy job)", "cat": "run", "ph": "X", "ts": run.started_us - zero,
        "dur": run.ended_us - run.started_us,
        "args": {**args, "error": run.error} if run.error else args,
    }  # fmt: skip


def _waiting(hops: Mapping[str, Hop], zero: int) -> Iterator[dict[str, Any]]:
    """Yield a pair of events for each time that a job waited, below its queue."""
    queues = {name: n for n, name in enumerate(sorted({h.queue for h in hops.values()}), 1)}
    for name, n in queues.items():
        yield _named("thread_name", name or "(no queue)", pid=_QUEUES, tid=n)
    for hop in hops.values():
        for n, run in enumerate(hop.runs):
            common = {
                "name": f"{hop.task or '(legacy job)'} waits", "cat": "wait", "pid": _QUEUES,
                "tid": queues[hop.queue], "id": f"{hop.id}/{n}",
            }  # fmt: skip
            yield {**common, "ph": "b", "ts": run.ready_us - zero, "args": {"job": hop.id}}
            yield {**common, "ph": "e", "ts": run.started_us - zero, "args": {}}


def _flows(
    hops: Mapping[str, Hop], starts: Mapping[str, Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the two ends of an arrow from the first run of each job to those of its children."""
    for hop in hops.values():
        above, target = starts.get(hop.parent), starts.get(hop.id)
        if above is None or target is None:
            continue
        common = {"name": "submits", "cat": "flow", "id": hop.id}
        at = min(above["ts"] + above["dur"], target["ts"])
        yield {**common, "ph": "s", "pid": above["pid"], "tid": above["tid"], "ts": at}
        yield {
            **common, "ph": "f", "bp": "e", "pid": target["pid"], "tid": target["tid"],
            "ts": target["ts"],
        }  # fmt: skip


def _named(kind: str, name: str, **ids: int) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "args": {"name": name}, **ids}


class _Threads:
    """Gives each run a process, its worker's host, and a thread in which nothing overlaps it."""

    def __init__(self) -> None:
        self._hosts: dict[str, int] = {}
        #: Worker -> its threads, and the times from which they are free.
        self._free: dict[str, list[tuple[int, int]]] = {}
        self._threads: list[tuple[int, int, str]] = []

    def assign(self, run: Run) -> dict[str, int]:
        """Return ``pid`` and ``tid`` of a run; runs are passed in the order of their starts."""
        host = run.worker.rpartition(":")[0] or run.worker or "(unknown)"
        pid = self._hosts.setdefault(host, _QUEUES + 1 + len(self._hosts))
        threads = self._free.setdefault(run.worker, [])
        for n, (tid, free) in enumerate(threads):
            if free <= run.started_us:
                threads[n] = (tid, run.ended_us)
                return {"pid": pid, "tid": tid}
        tid = len(self._threads) + 1
        threads.append((tid, run.ended_us))
        self._threads.append((pid, tid, f"{run.worker or '(unknown)'} slot {len(threads)}"))
        return {"pid": pid, "tid": tid}

    def names(self) -> list[dict[str, Any]]:
        """Return the events that name processes and threads."""
        hosts = [_named("process_name", host, pid=pid) for host, pid in self._hosts.items()]
        return hosts + [_named("thread_name", s, pid=pid, tid=n) for pid, n, s in self._threads]
