"""The operations of extension ``call``: a table with role, arguments and result; their arguments.

``CALL id name arguments`` is answered by ``REPLY new-id result id`` or by ERROR; arguments and
result are MessagePack, arguments always a map. The table in ``docs/protocol.rst`` is made from
this one. A REPLY whose OUTCOME frame is ``part`` is followed by more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eventmq.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "CALLS",
    "MAX_IDS",
    "MAX_ROWS",
    "METHODS",
    "CallSpec",
    "document",
    "read_flag",
    "read_limit",
    "read_number",
    "read_numbers",
    "read_text",
    "read_texts",
    "read_time",
]

#: Most ids in one call.
MAX_IDS = 1000

#: Most rows in one listing.
MAX_ROWS = 1000


#: Calls with several answers, or about such ones -> what makes them in Python.
METHODS = {
    "get": "job.get()",
    "stream": "job.stream()",
    "subscribe": "app.subscribe()",
    "forget": "what made the call that it ends",
}


@dataclass(frozen=True, slots=True)
class CallSpec:
    """One operation.

    Attributes:
        role: ``client``, ``admin`` for what only an administrator may do, or ``worker`` for what
            only the worker may do that holds the job.
        arguments: Name -> type of the arguments; a trailing ``?`` marks one that may be left out.
        result: The shape of the result.
        doc: What it does, one sentence.
    """

    role: str
    arguments: dict[str, str]
    result: str
    doc: str


CALLS: dict[str, CallSpec] = {
    "get": CallSpec(
        "client",
        {"ids": "list of str, at most 1,000"},
        "list of [id, state, content type, bytes or nil]; state is '' for an unknown id",
        "Wait for the ends of jobs: parts as they end, until every id was answered once.",
    ),
    "stream": CallSpec(
        "client",
        {"id": "str", "delivery": "int?", "taken": "int?"},
        "first a part that is a map with delivery base replayable; then parts as they come, and "
        "the end; see CREDIT. ERROR job-not-found, not-a-stream, parts-gone",
        "Read what a job yields, from the first part that nobody has taken, or from ``taken`` "
        "on where a reader comes back to a ``delivery``.",
    ),
    "forget": CallSpec(
        "client",
        {"call": "str"},
        "nil",
        "End an earlier ``get``, ``stream`` or ``subscribe`` of the same peer, named by its "
        "message id.",
    ),
    "state": CallSpec(
        "client",
        {"ids": "list of str, at most 1,000"},
        "list of [id, state]; state is '' for an unknown id",
        "Say the states of jobs now.",
    ),
    "info": CallSpec(
        "client",
        {"id": "str"},
        "map with id task queue state attempt delivery priority created due expires started ran "
        "finished worker error content_type headers leased attempts root parent progress; root and "
        "parent are ids of its graph and of a job that it waited for, '' for none; attempts are "
        "maps with attempt delivery at started ran worker content_type error of the last ten that "
        "failed; progress is a map with done total note at, or nil; ERROR job-not-found for an "
        "unknown id",
        "Say what is known of one job, without body and result.",
    ),
    "jobs": CallSpec(
        "client",
        {"queue": "str?", "state": "str?", "task": "str?", "cursor": "str?", "limit": "int?"},
        "map with jobs (list of maps as in info, without attempts, root, parent and progress) and "
        "cursor ('' at the end)",
        "List jobs page by page, at most 1,000 rows each, those with the largest ids first: ids "
        "made by our clients begin with the time, so these are the newest.",
    ),
    "queues": CallSpec(
        "client",
        {},
        "list of maps with name waiting delayed running failed paused workers limits",
        "List the queues; limits are as the setting queue_limits says them, '' for none.",
    ),
    "workers": CallSpec(
        "client",
        {},
        "list of maps with session name queues tasks window chunks running seen (seconds ago) "
        "plain",
        "List the worker sessions.",
    ),
    "status": CallSpec(
        "client",
        {},
        "map with version epoch store now started clock addresses peers counters queue_limits "
        "waited_for replies_owed streams unread_bytes and the keys of STATUS",
        "Say how the broker is; queue_limits has a map by queue, with limits, the jobs that are "
        "running and those that may_start now. clock has seconds: unconfirmed, that the machine "
        "was off and that do not count yet, and steady_in, until they do; step, of the wall clock, "
        "that does not count yet, and counts_in, until it does; 0 for none.",
    ),
    "ping": CallSpec("client", {}, "map with version epoch store now", "Answer at once."),
    "schedules.list": CallSpec(
        "client",
        {"after": "int?", "scan": "bool?", "limit": "int?", "name": "str?"},
        "map with rows (lists of name, version, last_fire_time, remaining, last_job and definition "
        "in MessagePack), gone (names), revision, head, whole and more",
        "List what changed after a revision, 0 for all, page by page, or one schedule by name; "
        "``scan`` goes on with what began at 0.",
    ),
    "schedules.save": CallSpec(
        "client",
        {"rows": "list of [row as in schedules.list, expected version or nil], at most 1,000"},
        "map with done (list of bool) and revision; ERROR store-full",
        "Store schedules, each if it has the expected version; nil: if there is none of its name.",
    ),
    "schedules.advance": CallSpec(
        "client",
        {
            "rows": "list of [name, expected version, last_fire_time, remaining, last_job], at "
            "most 1,000"
        },
        "map with done (list of bool) and revision",
        "Move schedules on that have fired, each if it has the expected version.",
    ),
    "schedules.remove": CallSpec(
        "client",
        {"name": "str", "version": "int?"},
        "bool",
        "Remove a schedule, if a version is named only that.",
    ),
    "schedules.lease": CallSpec(
        "client",
        {"holder": "str", "seconds": "float"},
        "map with held (bool), revision, and foreign (bool: a legacy scheduler fires what SCHEDULE "
        "brought)",
        "Ask to be the scheduler that fires, for so many seconds; 0 gives it back.",
    ),
    "cancel": CallSpec(
        "client",
        {"ids": "list of str, at most 1,000", "reason": "str?"},
        "list of [id, state, state before]; both are '' for an unknown id, and the same for a job "
        "that had ended",
        "End jobs as cancelled, whether they wait or run.",
    ),
    "cancel_graph": CallSpec(
        "client",
        {"id": "str, of any job of the graph", "reason": "str?"},
        "map with id (of the graph) and count (of jobs cancelled); ERROR job-not-found",
        "End as cancelled all jobs of a graph that have not ended.",
    ),
    "graph": CallSpec(
        "client",
        {"id": "str, of any job of the graph", "first": "int?, a place", "limit": "int?"},
        "map with id (of the graph), size and jobs: maps as in ``jobs`` with place, input and "
        "output (numbers of what it waits at and counts down, 0 for none) and handler (bool: it is "
        "there for failures); ERROR job-not-found",
        "Show the jobs of a graph by place, at most 1,000 at a time.",
    ),
    "begin": CallSpec(
        "worker",
        {"id": "str", "delivery": "int"},
        "nil; ERROR not-held where the session has no such lease",
        "Say that the job of a chunk with the header ``ask`` is here and about to start.",
    ),
    "inputs": CallSpec(
        "worker",
        {"id": "str", "delivery": "int", "cursor": "int?"},
        "map with rows (lists of id, content type and bytes, by place) and next (the cursor of the "
        "next page, 0 after the last); ERROR not-held where the session has no such lease, "
        "inputs-gone where nothing is kept for the job",
        "Read the results that a job with the letter ``p`` takes, page by page: about 1 MiB each, "
        "or one result that is longer.",
    ),
    "bulk": CallSpec(
        "admin",
        {
            "id": "str",
            "action": "str?, cancel, retry or drop",
            "queue": "str?",
            "task": "str?",
            "state": "str?, of jobs to cancel",
            "running": "bool?, cancel these too",
            "reason": "str?",
            "error": "str?, type",
            "since": "float?",
            "until": "float?",
        },
        "map with id action done (bool) count (of jobs touched so far); ERROR queue-not-found",
        "Cancel unfinished jobs, or retry or drop failed ones, by filters and slice by slice. It "
        "returns at once; asked again with the same id it says how far that is. It goes on over a "
        "restart of the broker. Until 1.0 the broker takes the name ``sweep`` too.",
    ),
    "failed": CallSpec(
        "client",
        {
            "queue": "str?",
            "task": "str?",
            "error": "str?, type",
            "since": "float?",
            "until": "float?",
            "cursor": "str?",
            "limit": "int?",
        },
        "map with failed (list of maps as in ``jobs``) and cursor ('' at the end)",
        "List failed jobs page by page, at most 1,000 rows each, the last failed first.",
    ),
    "retry": CallSpec(
        "admin",
        {"ids": "list of str, at most 1,000", "attempts": "list of int?, one per id"},
        "list of [id, state, state before] as in ``cancel``; state is queued where it was done",
        "Queue failed jobs again, each under its id as its next attempt; with ``attempts`` only "
        "those whose last attempt has this number, so that asking again does nothing twice.",
    ),
    "drop": CallSpec(
        "admin",
        {"ids": "list of str, at most 1,000"},
        "list of [id, state, state before] as in ``cancel``; state is dropped where it was done",
        "Forget failed jobs.",
    ),
    "pause": CallSpec(
        "admin",
        {"queue": "str"},
        "nil; ERROR queue-not-found",
        "Hand out no jobs of a queue until ``resume``, also after a restart.",
    ),
    "resume": CallSpec(
        "admin",
        {"queue": "str"},
        "nil; ERROR queue-not-found",
        "Hand out jobs of a queue again.",
    ),
    "clock.accept": CallSpec(
        "admin",
        {},
        "map with unconfirmed and step: what of ``clock`` in ``status`` counts from now on",
        "Believe the wall clock of the broker's machine without waiting any longer.",
    ),
    "events.read": CallSpec(
        "admin",
        {"after": "int?", "bytes": "int?"},
        "map with store (id), first and next (numbers of the first event that is kept and of the "
        "next one), journal, sealed and rows (lists of the number of the first event, how many, "
        "and their bytes)",
        "Read events that come after a number, as the commits wrote them.",
    ),
    "events.seal": CallSpec(
        "admin",
        {"journal": "str, id", "sealed": "int?"},
        "map as in ``events.read`` without rows; ERROR journal-taken while another journal is at "
        "work, store-full",
        "Say that a journal has all events up to a number safely; the broker may forget them. A "
        "number that the broker has not reached changes nothing.",
    ),
    "subscribe": CallSpec(
        "client",
        {"topics": "list of str, prefixes as in ZeroMQ"},
        "parts [topic, headers, body], without end until ``forget``",
        "Receive what is published from now on.",
    ),
}


def document() -> str:
    """Return the table of all calls for ``docs/protocol.rst``, in reStructuredText."""
    rows = [("Call", "Role", "Arguments", "Result", "What it does")]
    for name, spec in CALLS.items():
        arguments = "; ".join(f"``{key}``: {kind}" for key, kind in spec.arguments.items())
        rows.append((f"``{name}``", spec.role, arguments or "none", spec.result, spec.doc))
    lines = [".. list-table::", "   :header-rows: 1", "   :widths: 10 8 22 30 30", ""]
    for first, *cells in rows:
        lines += [f"   * - {first}", *(f"     - {cell}" for cell in cells)]
    return "\n".join(lines) + "\n"


# Arguments of one call


def read_text(arguments: Mapping[str, Any], name: str) -> str:
    """Return a text, "" where it was left out."""
    value = arguments.get(name, "")
    if not isinstance(value, str):
        raise ProtocolError(f"argument {name!r} is a str", code="bad-arguments")
    return value


def read_texts(arguments: Mapping[str, Any], name: str) -> list[str]:
    """Return a list of texts."""
    value = arguments.get(name)
    if (
        not isinstance(value, list)
        or len(value) > MAX_IDS
        or not all(isinstance(item, str) for item in value)
    ):
        msg = f"argument {name!r} is a list of at most {MAX_IDS} str"
        raise ProtocolError(msg, code="bad-arguments")
    return value


def read_flag(arguments: Mapping[str, Any], name: str) -> bool:
    """Return a bool, false where it was left out."""
    value = arguments.get(name, False)
    if not isinstance(value, bool):
        raise ProtocolError(f"argument {name!r} is a bool", code="bad-arguments")
    return value


def read_number(arguments: Mapping[str, Any], name: str) -> int:
    """Return a whole number from 0, 0 where it was left out."""
    value = arguments.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise ProtocolError(f"argument {name!r} is a whole number from 0", code="bad-arguments")
    return value


def read_numbers(arguments: Mapping[str, Any], name: str) -> list[int]:
    """Return a list of whole numbers, an empty one where it was left out."""
    value = arguments.get(name)
    if value is None:
        return []
    if (
        not isinstance(value, list)
        or len(value) > MAX_IDS
        or not all(type(item) is int and 0 <= item < 1 << 63 for item in value)
    ):
        msg = f"argument {name!r} is a list of at most {MAX_IDS} whole numbers from 0"
        raise ProtocolError(msg, code="bad-arguments")
    return value


def read_time(arguments: Mapping[str, Any], name: str) -> float:
    """Return a Unix time in seconds, 0.0 where it was left out."""
    value = arguments.get(name, 0.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ProtocolError(f"argument {name!r} is a Unix time in seconds", code="bad-arguments")
    return float(value)


def read_limit(arguments: Mapping[str, Any]) -> int:
    """Return how many rows are wanted, as many as are allowed where it was left out."""
    value = arguments.get("limit", MAX_ROWS)
    if not isinstance(value, int) or not 0 < value <= MAX_ROWS:
        raise ProtocolError(f"limit is 1 to {MAX_ROWS}", code="bad-arguments")
    return value
