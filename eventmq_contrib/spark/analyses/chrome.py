"""Trace export in the Trace Event Format, for chrome://tracing and Perfetto.

Trace Event Format, "JSON Object Format": complete events (``X``) for runs, nestable asynchronous
ones (``b`` and ``e``) for waiting, flows (``s`` and ``f``) from a job to those below it, metadata
(``M``) for names. Complete events of one thread must nest, so runs of one worker that overlap get
threads of their own. The document: "Trace Event Format", sections "JSON Object Format", "Complete
Events", "Async Events", "Flow Events" and "Metadata Events".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from eventmq_contrib.spark.analyses.trace import Hop, Run

__all__ = ["chrome_trace"]

#: Process number of the queues; the numbers of hosts follow.
_QUEUES = 1


def chrome_trace(hops: Mapping[str, Hop]) -> dict[str, Any]:
    """Return the trace as an object for JSON; times count from the first event.

    Args:
        hops: Jobs of the trace, as from `eventmq_contrib.spark.analyses.trace.hops`.
    """
    zero = min((_first(hop) for hop in hops.values()), default=0)
    threads = _Threads()
    events = list(_waiting(hops, zero))
    starts: dict[str, dict[str, Any]] = {}
    order = sorted(
        ((run.started_us, hop.id, n) for hop in hops.values() for n, run in enumerate(hop.runs))
    )
    for _, job_id, n in order:
        hop = hops[job_id]
        run = hop.runs[n]
        event = {**_about(hop, run, zero), **threads.place(run)}
        starts.setdefault(job_id, event)
        events.append(event)
    events += _flows(hops, starts)
    names = [*_named(_QUEUES, None, "process_name", "queues"), *threads.names()]
    return {"traceEvents": [*names, *events], "displayTimeUnit": "ms"}


def _first(hop: Hop) -> int:
    return min([hop.submitted_us, *(run.ready_us for run in hop.runs)])


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
        yield from _named(_QUEUES, n, "thread_name", name or "(no queue)")
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


def _named(pid: int, tid: int | None, kind: str, name: str) -> Iterator[dict[str, Any]]:
    event: dict[str, Any] = {"ph": "M", "pid": pid, "name": kind, "args": {"name": name}}
    yield event if tid is None else {**event, "tid": tid}


class _Threads:
    """Gives each run a process, its worker's host, and a thread in which nothing overlaps it."""

    def __init__(self) -> None:
        self._hosts: dict[str, int] = {}
        self._free: dict[
            str, list[tuple[int, int]]
        ] = {}  # worker -> (thread, time from which it is free)
        self._threads: list[tuple[int, int, str]] = []

    def place(self, run: Run) -> dict[str, int]:
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

    def names(self) -> Iterator[dict[str, Any]]:
        """Yield the events that name processes and threads."""
        for host, pid in self._hosts.items():
            yield from _named(pid, None, "process_name", host)
        for pid, tid, name in self._threads:
            yield from _named(pid, tid, "thread_name", name)
