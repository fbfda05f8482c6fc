"""Diagnosis of a job that had not ended in time: the text of the `ResultTimeout` of ``get``.

Pure: `ResultClient` asks the broker, for at most `DIAGNOSIS_TIMEOUT` seconds in all, and `diagnose`
turns the answers into text. Rows are those of the calls ``info``, ``queues`` and ``workers``.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from eventmq.headers import parse_headers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Rows = Sequence[Mapping[str, Any]]

__all__ = ["DIAGNOSIS_TIMEOUT", "diagnose"]

#: Seconds that a diagnosis may take, after the caller's timeout has passed.
DIAGNOSIS_TIMEOUT = 1.0

_ENDED = frozenset({"succeeded", "failed", "cancelled", "expired"})


def diagnose(
    info: Mapping[str, Any],
    queues: Rows | None,
    workers: Rows | None,
    waited: str,
) -> str:
    """Return a message about one job.

    Args:
        info: The answer to ``info`` about the job.
        queues: The answer to ``queues``, None if there is none.
        workers: The answer to ``workers``, None if there is none.
        waited: How long the caller waited, as text.
    """
    task, state = info.get("task"), info["state"]
    what = f"job {info['id']} of task {task!r}" if task else f"job {info['id']}"
    if state in _ENDED:
        return f"{what} {state} just after {waited}; get() again says how it ended"
    why = _why(info, queues, workers)
    return f"{what} is still {state} after {waited}{f': {why}' if why else ''}"


def _why(info: Mapping[str, Any], queues: Rows | None, workers: Rows | None) -> str:
    """Return why a job has not ended, "" if that is not known."""
    state = info["state"]
    if state == "running":
        since = f" since {_time(info['leased'])}" if info.get("leased") else ""
        return f"the worker {info.get('worker', '')!r} has it{since}{_attempt(info)}"
    if state == "delayed":
        return f"it becomes ready at {_time(info.get('due'))}{_attempt(info)}"
    if state == "blocked":
        return "it waits for other jobs of its graph"
    return "" if queues is None or workers is None else _why_queued(info, queues, workers)


def _why_queued(info: Mapping[str, Any], queues: Rows, workers: Rows) -> str:
    name, task = info.get("queue", ""), info.get("task", "")
    queue = next((row for row in queues if row["name"] == name), {})
    if queue.get("paused"):
        return f"the queue {name!r} is paused"
    there = [row for row in workers if row.get("seen") is not None]
    serving = [row for row in there if any(pair[1] == name for pair in row["queues"])]
    if not serving:
        start = f"eventmq worker -A MODULE -Q {name}"
        return f"no worker serves the queue {name!r}; start one with: {start}"
    named = task and parse_headers(str(info.get("headers", ""))).content_type
    if named and not any(_knows(row, task) for row in serving):
        names = ", ".join(sorted({str(row["name"]) for row in serving})[:3])
        return f"no worker of the queue {name!r} knows the task {task!r}; connected: {names}"
    waiting, running = int(queue.get("waiting", 1)) - 1, int(queue.get("running", 0))
    if queue.get("limits"):
        limits = f"the queue {name!r} is limited to {queue['limits']}"
        return f"{limits}; {max(0, waiting)} others wait in it and {running} run{_attempt(info)}"
    if waiting <= 0 and not running and named:
        return f"no worker takes it from the queue {name!r}; does a worker know the task {task!r}?"
    others = f"{max(0, waiting)} others wait in the queue {name!r} and {running} run"
    return f"{others}; workers that serve it: {len(serving)}{_attempt(info)}"


def _knows(worker: Mapping[str, Any], task: str) -> bool:
    """Return whether a worker knows a task; without a list it takes any task, unless legacy."""
    return not worker.get("plain") and (not worker["tasks"] or task in worker["tasks"])


def _attempt(info: Mapping[str, Any]) -> str:
    """Return the number of the attempt as text, "" for the first."""
    attempt = int(info.get("attempt") or 1)
    return f" (attempt {attempt})" if attempt > 1 else ""


def _time(timestamp: object) -> str:
    if not isinstance(timestamp, (int, float)) or not timestamp:
        return "a time that the broker does not say"
    return datetime.fromtimestamp(timestamp).astimezone().isoformat(sep=" ", timespec="seconds")
