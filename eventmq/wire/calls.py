"""The operations of extension ``call``: a table with role, arguments and result.

``CALL id name arguments`` is answered by ``REPLY new-id result id`` or by ERROR. Arguments and
result are MessagePack; the arguments are a map. A REPLY with the OUTCOME frame ``part`` is followed
by more. The table in ``docs/protocol.rst`` is made from this one.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ACTING", "CALLS", "METHODS", "CallSpec", "document"]

#: Calls with several answers, and ``forget``, which ends these -> Python API that makes them.
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
        role: ``client``; ``admin`` for calls that only an administrator may make; ``worker`` for
            calls that only the worker with the job may make.
        arguments: Name -> type of the arguments; a trailing ``?`` marks an optional one.
        result: The shape of the result.
        doc: What the call does, in one sentence.
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
        "Read the parts that a job yields, from the first one that no reader has taken, or from "
        "``taken`` on if a reader comes back to a ``delivery``.",
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
        "Return the states of jobs now.",
    ),
    "info": CallSpec(
        "client",
        {"id": "str", "args": "bool?", "offset": "int?, of the body", "logs": "bool?"},
        "map with id task queue state attempt delivery priority created due expires started ran "
        "finished worker error content_type headers leased attempts root parent progress; root and "
        "parent are ids of its graph and of a job that it waited for, '' for none; attempts are "
        "maps with attempt delivery at started ran worker content_type error of the last ten that "
        "failed; progress is a map with done total note at, or nil; leased is when a running job "
        "was sent to its worker, where it may have waited for other jobs; finished is never before "
        "started, which the clock of the worker tells; with args also body, bytes, or nil if it is "
        "not kept or over 1 MiB, and body_bytes; with offset, body is up to 1 MiB from there on; "
        "with logs also logs, maps with attempt at text of the logs of its attempts, whose text is "
        "'' if it made room for later ones; ERROR job-not-found for an unknown id",
        "Return all fields of one job except its result; its body only if ``args`` is true.",
    ),
    "jobs": CallSpec(
        "client",
        {
            "queue": "str?",
            "state": "str?",
            "task": "str?",
            "key": "str?",
            "since": "float?",
            "until": "float?",
            "cursor": "str?",
            "limit": "int?",
        },
        "map with jobs (list of maps as in info, without attempts, root, parent and progress), "
        "cursor ('' at the end), complete (whether the search has reached the end), searched_to "
        "(Unix time of the last examined job, 0.0 for none) and examined (number of rows)",
        "List jobs page by page, at most 1,000 rows each, the largest ids first. Ids made by our "
        "clients begin with the time, so these jobs are the newest. A page examines at most 5,000 "
        "rows for at most 20 ms: it may have fewer rows than match, or none, and ``cursor`` says "
        "where to go on. key is a fairness key, which ended jobs do not have; since and until are "
        "Unix times of the submission. With since, a job whose own id sorts among older version 7 "
        "ids may be missing.",
    ),
    "queues": CallSpec(
        "client",
        {},
        "list of maps with name waiting delayed running failed paused workers limits waited",
        "List the queues; limits are as in the setting queue_limits, '' for none; waited is the "
        "longest waiting time, in seconds, of the jobs that come next.",
    ),
    "workers": CallSpec(
        "client",
        {},
        "list of maps with session name queues tasks window chunks running seen (seconds ago) "
        "plain pool slots version rss jobs; rss is the resident memory of its processes in bytes, "
        "0 if unknown; jobs are at most ten maps with id task leased, of the job that runs or is "
        "next in each held chunk, the oldest chunk first",
        "List the worker sessions.",
    ),
    "status": CallSpec(
        "client",
        {},
        "map with version epoch store events_id now role shared owner standbys durability trouble "
        "disk refusing started clock addresses peers counters queue_limits waited_for replies_owed "
        "streams unread_bytes and the keys of STATUS",
        "Return the state of the broker. durability is the setting, role is active or standby, "
        "started is when the broker started; shared is whether brokers share the store; owner is "
        "the address of the broker that owns the store, see Owner, '' if none is known; standbys "
        "is the number of brokers that stand by, null where the broker cannot know it; "
        "trouble is why a standby cannot use the store now, '' if it can; disk is a map with the "
        "free_bytes and reserve_bytes of the store's disk, empty if the store has none; "
        "refusing is why new jobs are refused now, '' if they are accepted; queue_limits has "
        "a map by queue, with limits, the number of jobs running and of jobs that may_start now. "
        "clock is in seconds: unconfirmed, for which the machine was off and which do not count "
        "yet, and steady_in, until they do; step, of the wall clock, which does not count yet, and "
        "counts_in, until it does; 0 for none.",
    ),
    "metrics": CallSpec(
        "client",
        {},
        "map with version role epoch started without_owner peers sessions unsent_bytes counters "
        "commits store jobs queues workers; jobs are maps with queue task submitted retried "
        "outcomes wait run, queues are maps with name waiting delayed blocked running failed "
        "workers paused oldest, workers are lists of name, used and all slots; commits, wait and "
        "run are histograms, lists of upper bounds, counts (one more, of larger values) and sum. "
        "Times are in seconds. Names over the broker's limits are added up as 'other'",
        "Return the metrics: of jobs since the broker's start, all others as of now.",
    ),
    "ping": CallSpec("client", {}, "map with version epoch store events_id now", "Answer at once."),
    "schedules.list": CallSpec(
        "client",
        {"after": "int?", "scan": "bool?", "limit": "int?", "name": "str?"},
        "map with rows (lists of name, version, last_fire_time, remaining, last_job and definition "
        "in MessagePack), gone (names), revision, head, whole and more",
        "List the changes after a revision, 0 for all, page by page, or one schedule by name; "
        "``scan`` continues a listing that began at 0.",
    ),
    "schedules.save": CallSpec(
        "client",
        {
            "rows": "list of [row as in schedules.list, expected version or nil], at most 1,000",
            "operation": "str?, enable or disable",
        },
        "map with done (list of bool) and revision; ERROR store-full",
        "Store schedules, each if it has the expected version; nil if its name must be new.",
    ),
    "schedules.advance": CallSpec(
        "client",
        {
            "rows": "list of [name, expected version, last_fire_time, remaining, last_job], at "
            "most 1,000"
        },
        "map with done (list of bool) and revision",
        "Advance schedules that have fired, each if it has the expected version.",
    ),
    "schedules.remove": CallSpec(
        "client",
        {"name": "str", "version": "int?"},
        "bool",
        "Remove a schedule; with a version, only if it has that version.",
    ),
    "schedules.ran": CallSpec(
        "client",
        {"name": "str", "id": "str, of the job"},
        "nil; ERROR job-not-found",
        "Record an event: a job was submitted by hand for a schedule, outside its fire times.",
    ),
    "schedules.lease": CallSpec(
        "client",
        {"holder": "str", "seconds": "float"},
        "map with held (bool), revision, and foreign (bool: a legacy scheduler fires the schedules "
        "that SCHEDULE brought)",
        "Request the lease of the scheduler that fires, for ``seconds``; 0 releases it.",
    ),
    "cancel": CallSpec(
        "client",
        {"ids": "list of str, at most 1,000", "reason": "str?"},
        "list of [id, state, state before]; both are '' for an unknown id, and the same for a job "
        "that had ended",
        "Cancel waiting and running jobs.",
    ),
    "cancel_graph": CallSpec(
        "client",
        {"id": "str, of any job of the graph", "reason": "str?"},
        "map with id (of the graph) and count (of jobs cancelled); ERROR job-not-found",
        "Cancel all unfinished jobs of a graph.",
    ),
    "graph": CallSpec(
        "client",
        {"id": "str, of any job of the graph", "first": "int?, a place", "limit": "int?"},
        "map with id (of the graph), size and jobs: maps as in ``jobs`` with place, input and "
        "output (numbers of the joins that it waits for and counts down, 0 for none) and handler "
        "(bool: it handles failures); ERROR job-not-found",
        "Show the jobs of a graph by place, at most 1,000 at a time.",
    ),
    "begin": CallSpec(
        "worker",
        {"id": "str", "delivery": "int"},
        "nil; ERROR not-held if the session has no such lease",
        "Announce that the job of a chunk with the header ``ask`` is about to start.",
    ),
    "inputs": CallSpec(
        "worker",
        {"id": "str", "delivery": "int", "cursor": "int?"},
        "map with rows (lists of id, content type and bytes, by place) and next (the cursor of the "
        "next page, 0 after the last); ERROR not-held if the session has no such lease, "
        "inputs-gone if no results are kept for the job",
        "Read the results that a job with the letter ``p`` takes, in pages of about 1 MiB, or of "
        "one longer result.",
    ),
    "bulk": CallSpec(
        "admin",
        {
            "id": "str",
            "action": "str?, cancel, retry or drop",
            "queue": "str?",
            "task": "str?",
            "state": "str?, of jobs to cancel",
            "running": "bool?, cancel running jobs too",
            "reason": "str?",
            "error": "str?, type",
            "since": "float?",
            "until": "float?",
            "operation": "str?, purge",
        },
        "map with id action done (bool) count (of jobs affected so far); ERROR queue-not-found",
        "Cancel unfinished jobs, or retry or drop failed ones, by filters and slice by slice. The "
        "call returns at once; repeated with the same id it returns the progress. The operation "
        "continues after a restart of the broker. Until 1.0 the broker accepts the name ``sweep`` "
        "too.",
    ),
    "failed": CallSpec(
        "client",
        {
            "queue": "str?",
            "task": "str?",
            "error": "str?, type",
            "since": "float?",
            "until": "float?",
            "text": "str?",
            "cursor": "str?",
            "limit": "int?",
        },
        "map with failed (list of maps as in ``jobs``), cursor, complete, searched_to and examined "
        "as in ``jobs``",
        "List failed jobs page by page, at most 1,000 rows each, the last failed first, in pages "
        "as those of ``jobs``; error is a whole dotted name or its last part, since, until and "
        "searched_to are Unix times of the failure, and text is contained, in any case, in the "
        "type, message or traceback of the error.",
    ),
    "failures": CallSpec(
        "client",
        {
            "queue": "str?",
            "task": "str?",
            "error": "str?, type",
            "since": "float?",
            "until": "float?",
            "cursor": "str?",
        },
        "map with groups, cursor, complete and searched_to as in ``failed``; groups are maps with "
        "task error (the last part of its type) count queues (map of their counts) first last "
        "(Unix times) sample (the id of the job that failed last) and result (its encoded error, "
        "or b'' in all but the first 100 groups)",
        "Group failed jobs by task and type of the error, the last failed first. The counts are of "
        "one page: add them up over the pages, and say 'at least' until ``complete``.",
    ),
    "count": CallSpec(
        "client",
        {
            "action": "str, cancel, retry or drop",
            "queue": "str?",
            "task": "str?",
            "state": "str?",
            "error": "str?, type",
            "since": "float?",
            "until": "float?",
            "running": "bool?",
        },
        "map with count and complete; if that is false, at least so many jobs match",
        "Count the jobs to which ``bulk`` would apply its action now.",
    ),
    "retry": CallSpec(
        "admin",
        {"ids": "list of str, at most 1,000", "attempts": "list of int?, one per id"},
        "list of [id, state, state before] as in ``cancel``; state is queued for a retried job",
        "Queue failed jobs again, each with its id as its next attempt; with ``attempts`` only "
        "those whose last attempt has this number, so that a repeated call has no effect.",
    ),
    "drop": CallSpec(
        "admin",
        {"ids": "list of str, at most 1,000"},
        "list of [id, state, state before] as in ``cancel``; state is dropped for a dropped job",
        "Delete failed jobs.",
    ),
    "pause": CallSpec(
        "admin",
        {"queue": "str"},
        "nil; ERROR queue-not-found",
        "Pause a queue: dispatch none of its jobs until ``resume``, also after a restart.",
    ),
    "resume": CallSpec(
        "admin",
        {"queue": "str"},
        "nil; ERROR queue-not-found",
        "Dispatch the jobs of a queue again.",
    ),
    "handover": CallSpec(
        "admin",
        {},
        "map with owner (its address) and epoch; ERROR no-standby if no broker has taken over",
        "Give a shared store up for a standby; the answer comes when one has taken over.",
    ),
    "clock.accept": CallSpec(
        "admin",
        {},
        "map with unconfirmed and step: the seconds of ``clock`` in ``status`` that count from now "
        "on",
        "Accept the wall clock of the broker's machine without further waiting.",
    ),
    "events.read": CallSpec(
        "admin",
        {"after": "int?", "bytes": "int?"},
        "map with store (id), first and next (numbers of the first kept event and of the next new "
        "one), journal, sealed and rows (lists of the number of the first event, the number of "
        "events, and their bytes)",
        "Read the events after a number, in rows as the commits wrote them.",
    ),
    "events.seal": CallSpec(
        "admin",
        {"journal": "str, id", "sealed": "int?"},
        "map as in ``events.read`` without rows; ERROR journal-taken while another journal is "
        "active, store-full",
        "Report that a journal has stored all events up to a number, so that the broker may delete "
        "them. A number that the broker has not reached has no effect.",
    ),
    "subscribe": CallSpec(
        "client",
        {"topics": "list of str, prefixes as in ZeroMQ"},
        "parts [topic, headers, body], without end until ``forget``",
        "Receive the messages that are published from now on.",
    ),
}

#: Calls that change something for others; their events and log lines name the actor.
ACTING = frozenset({
    "bulk", "cancel", "cancel_graph", "clock.accept", "drop", "handover", "pause", "resume",
    "retry", "schedules.ran", "schedules.remove", "schedules.save",
})  # fmt: skip

for _name in ACTING:
    CALLS[_name].arguments["actor"] = "str?"


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
