"""Makes the events of a commit from its writes and their results, in the same transaction.

A store calls `events_of` once per commit, when it has all results, and writes the events as one
row. So an event is stored exactly if its change is, and no caller can forget to write one.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.events import KIND_CODES, Block, EventKind, Field, fingerprint
from eventmq.headers import parse_headers
from eventmq.job import HELD, JobState
from eventmq.store.writes import (
    Admit,
    AdmitGraph,
    AdvanceGraphs,
    ApplyToJobs,
    CancelGraph,
    ContinueBulkOperation,
    EndDeadlines,
    Expire,
    Finish,
    Promote,
    RecordEnds,
    RecordEvents,
    RecordOperation,
    RemoveSchedule,
    Requeue,
    SaveSchedules,
    unique_rule,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from eventmq.job import JobRecord
    from eventmq.store.reads import Lineage
    from eventmq.store.writes import (
        Act,
        AffectedJobs,
        Attempt,
        AuditFields,
        BulkOperation,
        Finished,
        GraphChanges,
        WriteResult,
    )

    FindLineages = Callable[[Sequence[str]], Sequence[Lineage | None]]

__all__ = [
    "MAKERS",
    "PARTS",
    "events_of",
    "portions",
]


#: State of an ended job -> code of the kind of its event.
_ENDS = {
    JobState.SUCCEEDED: KIND_CODES[EventKind.SUCCEEDED],
    JobState.FAILED: KIND_CODES[EventKind.FAILED],
    JobState.EXPIRED: KIND_CODES[EventKind.EXPIRED],
    JobState.CANCELLED: KIND_CODES[EventKind.CANCELLED],
}

_FAILED, _EXPIRED = _ENDS[JobState.FAILED], _ENDS[JobState.EXPIRED]

_ENQUEUED, _DELAYED = KIND_CODES[EventKind.ENQUEUED], KIND_CODES[EventKind.DELAYED]

_DUPLICATE, _REPLAYED = KIND_CODES[EventKind.DUPLICATE], KIND_CODES[EventKind.REPLAYED]

_CANCELLED, _OPERATION = KIND_CODES[EventKind.CANCELLED], KIND_CODES[EventKind.OPERATION]

#: Action on jobs -> code of the kind of its events.
_ACTION_KINDS = {"cancel": _CANCELLED, "retry": _REPLAYED}

#: Headers whose values the label of an event includes, after the task.
_LABEL_HEADERS = ("root-id", "parent-id", "trace-id", "schedule-id", "release")

#: Characters of the longest header text whose label is cached.
_REMEMBERED = 512

#: Characters after which names from headers are cut, since each block has a label.
_LONGEST = 255

#: Fields with store times; 0.0 stands for none.
_STORE_TIMES = (Field.AT, Field.LEASED, Field.READY, Field.DUE)

#: Task and values of `_LABEL_HEADERS`. Until `_put_lineage` has added root and parent of a job in a
#: graph, or of one that names a root, also its flags (`eventmq.graph.flags_of`), "" without graph.
_Label = tuple[str, ...]

_PLAIN = 1 + len(_LABEL_HEADERS)

#: Part of the bytes of values in a row that one value may have; longer values are left out.
PARTS = 16

_SUCCEEDED = KIND_CODES[EventKind.SUCCEEDED]

_ARRIVED = frozenset({KIND_CODES[EventKind.ENQUEUED], KIND_CODES[EventKind.DELAYED]})

#: Codes of write results for jobs that were admitted nevertheless.
_ADMITTED = frozenset({"replaced", "held"})


def _label(headers: str) -> _Label:
    """Return the label in the headers of a job: its task and `_LABEL_HEADERS`."""
    return _known_label(headers) if len(headers) <= _REMEMBERED else _read_label(headers)


def _read_label(text: str) -> _Label:
    headers = parse_headers(text)
    extra = dict(headers.extra)
    label = (headers.task, *(extra.get(name, "")[:_LONGEST] for name in _LABEL_HEADERS))
    return (*label, headers.graph) if headers.graph or label[1] else label


_known_label = lru_cache(maxsize=4096)(_read_label)


def events_of(
    batch: Sequence[Any],
    write_results: Sequence[Any],
    lineages: FindLineages | None = None,
    ahead: float = 0.0,
    spared: Callable[[float], float] | None = None,
) -> list[Block]:
    """Return the events of a commit, in order.

    Args:
        batch: The writes.
        write_results: One per write.
        lineages: Returns the lineages of jobs by their ids; called only for jobs of a graph, and
            for the root that a job names.
        ahead: Seconds by which wall time is ahead of store time. Events have wall times, writes
            have store times.
        spared: Returns the seconds by which wall time was further ahead at a store time; None if it
            never was.
    """
    makers = MAKERS
    blocks = [
        block
        for write, write_result in zip(batch, write_results, strict=True)
        if (maker := makers.get(type(write))) is not None
        for block in maker(write, write_result)
        if block.ids
    ]
    for block in blocks:
        if len(block.common[Field.LABEL]) > _PLAIN:
            _put_lineage(block, lineages)
        if spared is not None:
            _put_spared(block, spared)
        if ahead:
            _put_ahead(block, ahead)
    return blocks


def _put_spared(block: Block, spared: Callable[[float], float]) -> None:
    """Add to store times the seconds that had passed before them but were added later."""
    common, columns = block.common, block.columns
    for field in _STORE_TIMES:
        if (at := common.get(field)) is not None:
            common[field] = at and at + spared(at)
        elif field in columns:
            columns[field] = [value and value + spared(value) for value in columns[field]]


def _put_ahead(block: Block, ahead: float) -> None:
    """Convert the store times of a block to wall times; times reported by workers are so."""
    common, columns = block.common, block.columns
    for field in _STORE_TIMES:
        if (at := common.get(field)) is not None:
            common[field] = at and at + ahead
        elif field in columns:
            columns[field] = [value and value + ahead for value in columns[field]]


def _put_lineage(block: Block, lineages: FindLineages | None) -> None:
    """Add root and parent to the events of jobs in a graph, or of jobs that name a root.

    A job that submits another one names itself as root, even if it is part of a graph; the store
    knows the real root.
    """
    task, root, parent, *others = block.common[Field.LABEL]
    graph = others.pop()
    block.common[Field.LABEL] = (task, root, parent, *others)
    if lineages is None:
        return
    if root:
        [lineage] = lineages([root])
        root = lineage.root if lineage else root
    rows = lineages(block.ids) if graph else [None] * len(block.ids)
    block.put(Field.ROOT, [root or (lineage.root if lineage else "") for lineage in rows])
    block.put(Field.PARENT, [(lineage and lineage.parent) or parent for lineage in rows])


# Admitted jobs


def _admitted(write: Admit, write_result: Mapping[int, WriteResult]) -> Iterable[Block]:
    jobs = write.jobs
    if len(jobs) == 1 and not write_result:
        return (_arrival(jobs[0]),)
    return _some_admitted(jobs, write_result)


def _some_admitted(
    jobs: Sequence[JobRecord], write_result: Mapping[int, WriteResult]
) -> Iterator[Block]:
    admitted = (
        [job for index, job in enumerate(jobs) if index not in write_result]
        if write_result
        else jobs
    )
    if admitted:
        for kind, group in _by_state(admitted):
            yield from _arrived(kind, group)
    yield from _exceptions(jobs, write_result)  # behind those that they may have replaced


def _arrival(job: JobRecord) -> Block:
    """Return the event of one admitted job, four times as fast as `_arrived`."""
    common = {
        Field.QUEUE: job.queue, Field.LABEL: _label(job.headers), Field.KIND: _ENQUEUED,
        Field.AT: job.created, Field.BYTES_IN: len(job.body),
    }  # fmt: skip
    if job.state is not JobState.QUEUED:
        common[Field.KIND] = _DELAYED
        common[Field.DUE] = job.ready_at % HELD
    return Block(common, [job.id], {})


def _by_state(jobs: Sequence[JobRecord]) -> Iterator[tuple[int, Sequence[JobRecord]]]:
    states = [job.state for job in jobs]
    if states.count(JobState.QUEUED) == len(states):
        yield _ENQUEUED, jobs
        return
    yield _ENQUEUED, [job for job in jobs if job.state is JobState.QUEUED]
    yield _DELAYED, [job for job in jobs if job.state is not JobState.QUEUED]


# hot loop: python -m benchmarks enqueue_bulk
def _arrived(kind: int, jobs: Sequence[JobRecord]) -> Iterator[Block]:
    for common, group in _groups(jobs):
        common[Field.KIND] = kind
        common[Field.AT] = group[0].created
        block = Block(common, [job.id for job in group], {})
        block.put(Field.BYTES_IN, [len(job.body) for job in group])
        if kind == _DELAYED:
            block.put(Field.DUE, [job.ready_at % HELD for job in group])
        yield block


def _exceptions(
    jobs: Sequence[JobRecord], write_result: Mapping[int, WriteResult]
) -> Iterator[Block]:
    """Yield the events of jobs that were refused, or that replaced or wait for others."""
    for index, (code, _, ended) in write_result.items():
        job = jobs[index]
        if ended:
            yield from _ended(ended, {})
        if code == "replaced":
            rule = unique_rule(job.headers)
            keeps = rule is not None and rule.mode == "keep_last"
            state = ended[0].job.state if keeps else job.state
            yield from _arrived(_ENQUEUED if state is JobState.QUEUED else _DELAYED, [job])
        elif code == "held":
            yield from _arrived(_DELAYED, [job])
        elif code in {"same_id", "unique_conflict"}:
            yield from _arrived(_DUPLICATE, [job])


# Ended jobs


def _finished(write: Finish, write_result: Mapping[int, WriteResult]) -> Iterable[Block]:
    rows = write.rows
    if len(rows) == 1 and not write_result:
        return (_ended_alone(rows[0], write.leased, write.ahead),)
    if write_result:
        rows = [row for index, row in enumerate(rows) if index not in write_result]
    if not rows:
        return ()
    return _ended(rows, {Field.LEASED: write.leased} if write.leased else {}, write.ahead)


def _expired(
    write: Expire, write_result: tuple[Sequence[JobRecord], float | None]
) -> Iterator[Block]:
    for block in _changed(_EXPIRED, write_result[0], write.now):
        _put_unready(block, write_result[0], write.ahead)
        yield block


def _put_unready(block: Block, jobs: Sequence[JobRecord], ahead: float) -> None:
    """Add the ready times of jobs that expired before they were ready."""
    ready_times = {job.id: _unready(job, block.common[Field.AT], ahead) for job in jobs}
    if any(ready_times.values()):
        block.put(Field.DUE, [ready_times[job_id] for job_id in block.ids])


def _unready(job: JobRecord, at: float, ahead: float) -> float:
    """Return the store time at which an expired job would have become ready, 0.0 if it was ready.

    Args:
        job: The job before its end.
        at: Store time of its end.
        ahead: Seconds by which wall time is ahead of store time; expiries are wall times.
    """
    if job.ready_at >= HELD:
        return at  # the time is not known, but it is not earlier
    if not job.ready_at or (job.eta or job.ready_at + ahead) < job.expires:
        return 0.0
    return job.eta - ahead if job.eta else job.ready_at


def _ended_alone(row: Finished, leased: float, ahead: float) -> Block:
    """Return the event of one ended job, four times as fast as `_ended`."""
    job, state, at, _, _, result, started, run_time, worker = row
    common: dict[int, Any] = {
        Field.QUEUE: job.queue, Field.LABEL: _label(job.headers), Field.KIND: _ENDS[state],
        Field.AT: at, Field.ATTEMPT: job.attempt, Field.DELIVERY: job.delivery,
        Field.BYTES_OUT: len(result),
    }  # fmt: skip
    if leased:
        common[Field.LEASED] = leased
    if worker:
        common[Field.WORKER] = worker
    if started:
        common[Field.READY] = job.waiting_since
        common[Field.STARTED], common[Field.RAN] = started, run_time
    if state is JobState.FAILED:
        common[Field.ERROR_TYPE], common[Field.FINGERPRINT] = fingerprint(result)
    elif state is JobState.EXPIRED and (ready_at := _unready(job, at, ahead)):
        common[Field.DUE] = ready_at
    return Block(common, [job.id], {})


# hot loop: python -m benchmarks drain
def _ended(
    rows: Sequence[Finished], more: Mapping[int, Any], ahead: float = 0.0
) -> Iterator[Block]:
    jobs, states, ats, _, _, results, starts, runs, workers = zip(*rows, strict=True)
    if states.count(states[0]) != len(rows) or workers.count(workers[0]) != len(rows):
        groups: dict[tuple[JobState, str], list[Finished]] = {}
        for row in rows:
            groups.setdefault((row.state, row.worker), []).append(row)
        for group in groups.values():
            yield from _ended(group, more, ahead)
        return
    groups_of_jobs = list(_groups(jobs))
    if len(groups_of_jobs) > 1:
        by_id = {id(row.job): row for row in rows}
        for _, some_jobs in groups_of_jobs:
            yield from _ended([by_id[id(job)] for job in some_jobs], more, ahead)
        return
    common = groups_of_jobs[0][0]
    common.update(more)
    common[Field.KIND] = kind = _ENDS[states[0]]
    common[Field.AT] = ats[0]
    if workers[0]:
        common[Field.WORKER] = workers[0]
    block = Block(common, [job.id for job in jobs], {})
    _put_counts(block, jobs)
    block.put(Field.BYTES_OUT, list(map(len, results)))
    if any(starts):
        block.put(
            Field.READY, [job.ready_at % HELD or job.created for job in jobs]
        )  # `waiting_since`
        block.put(Field.STARTED, starts)
        block.put(Field.RAN, runs)
    if kind == _FAILED:
        _put_errors(block, results)
    elif kind == _EXPIRED:
        _put_unready(block, jobs, ahead)
    yield block


# Requeued and affected jobs


def _requeued(write: Requeue, write_result: Mapping[int, WriteResult]) -> Iterator[Block]:
    attempts = {attempt.job_id: attempt for attempt in write.attempts}
    ready = {attempt.job_id: at for attempt, at in zip(write.attempts, write.ready, strict=False)}
    for index, (job, (kind, error)) in enumerate(zip(write.jobs, write.reasons, strict=False)):
        if index not in write_result:
            block = next(_changed(KIND_CODES[kind], [job], write.at))
            if write.worker:
                block.common.update({Field.WORKER: write.worker, Field.LEASED: write.leased})
            if kind is EventKind.RETRY:
                _put_attempt(block, job, attempts[job.id], ready.get(job.id, 0.0))
            elif error:
                _put_errors(block, [error])
            yield block


def _put_attempt(block: Block, job: JobRecord, attempt: Attempt, ready: float) -> None:
    """Add the fields of a failed attempt."""
    block.common.update({
        Field.ATTEMPT: attempt.attempt, Field.DELIVERY: attempt.delivery, Field.DUE: job.ready_at,
        Field.READY: ready, Field.STARTED: attempt.started, Field.RAN: attempt.run_time,
        Field.BYTES_OUT: len(attempt.error),
    })  # fmt: skip
    _put_errors(block, [attempt.error])


def _bulk_slice(
    write: ContinueBulkOperation, write_result: tuple[AffectedJobs, BulkOperation | None]
) -> Iterator[Block]:
    affected, bulk = write_result
    if bulk is not None:  # the bulk operation has an event for the act itself
        action = bulk.operation.action
        yield from _operated(action, affected, write.audit, recorded=action in _ACTION_KINDS)


def _operated(
    action: str, affected: AffectedJobs, audit: AuditFields, *, recorded: bool = False
) -> Iterator[Block]:
    """Yield the events of jobs that an operation has affected.

    Args:
        action: ``cancel``, ``retry`` or ``drop``.
        affected: The jobs.
        audit: Time and act.
        recorded: Whether the act has an event already.
    """
    act, kind = audit.act, _ACTION_KINDS.get(action)
    # Without an actor, the event of the operation adds nothing to the events of the jobs.
    if act is not None and not recorded and (act.actor or kind is None):
        yield from _add_act(act, _changed(_OPERATION, affected.jobs, audit.at))
    if kind is not None:
        yield from _add_act(act, _changed(kind, affected.jobs, audit.at))


def _add_act(act: Act | None, blocks: Iterable[Block]) -> Iterator[Block]:
    """Add operation and actor to events."""
    for block in blocks:
        if act is not None:
            block.common[Field.OPERATION], block.common[Field.ACTOR] = act[:2]
        yield block


def _act(
    act: Act, *, task: str = "", schedule: str = "", queue: str = "", job_id: str = ""
) -> Block:
    """Return the event of an act that affects no single job."""
    common = {
        Field.KIND: _OPERATION, Field.AT: act.at, Field.QUEUE: queue,
        Field.LABEL: (task, "", "", "", schedule, ""), Field.OPERATION: act.operation,
        Field.ACTOR: act.actor,
    }  # fmt: skip
    return Block(common, [job_id], {})


def _operation_recorded(write: RecordOperation, _: object) -> Iterator[Block]:
    act, queue, task, schedule, job_id = write
    yield _act(act, queue=queue, task=task, schedule=schedule, job_id=job_id)


def _schedules_saved(
    write: SaveSchedules, write_result: tuple[Sequence[str], int]
) -> Iterator[Block]:
    if write.act is not None:
        for (row, _), code in zip(write.rows, write_result[0], strict=True):
            if code == "done":
                yield _act(write.act, schedule=row.name)


def _schedule_removed(write: RemoveSchedule, write_result: tuple[bool, int]) -> Iterator[Block]:
    if write.act is not None and write_result[0]:
        yield _act(write.act, schedule=write.name)


def _recorded(write: RecordEvents, _: object) -> Iterator[Block]:
    for block in _changed(KIND_CODES[write.kind], write.jobs, write.at):
        block.common.update({Field.WORKER: write.worker, Field.LEASED: write.leased})
        yield block


# Graphs


def _admitted_graph(write: AdmitGraph, write_result: WriteResult | None) -> Iterator[Block]:
    """Yield the events of the jobs of a graph."""
    if write_result is not None:
        if write_result.code == "same_id":
            yield from _arrived(_DUPLICATE, write.jobs)
        return
    for kind, group in _by_state(write.jobs):
        yield from _arrived(kind, group)


def _followed(write: AdvanceGraphs, write_result: GraphChanges) -> Iterator[Block]:
    ready = [*write_result.ready, *write_result.more]
    if ready:
        for kind, group in _by_state(ready):
            yield from _changed(kind, group, write.at)
    if write_result.ended:
        yield from _ended(write_result.ended, {})


# Shared helpers


def _changed(kind: int, jobs: Sequence[JobRecord], at: float) -> Iterator[Block]:
    """Yield events of one kind about jobs, with the fields of the jobs."""
    for common, group in _groups(jobs):
        common[Field.KIND] = kind
        common[Field.AT] = at
        block = Block(common, [job.id for job in group], {})
        _put_counts(block, group)
        yield block


def _groups(jobs: Sequence[JobRecord]) -> Iterator[tuple[dict[int, Any], Sequence[JobRecord]]]:
    """Group jobs by queue and label; yield the common fields and the jobs of each group."""
    if not jobs:
        return
    queue, headers = jobs[0].queue, jobs[0].headers
    if (
        [job.headers for job in jobs].count(headers)
        == len(jobs)
        == [job.queue for job in jobs].count(queue)
    ):
        yield {Field.QUEUE: queue, Field.LABEL: _label(headers)}, jobs
        return
    groups: dict[tuple[str, _Label], list[JobRecord]] = {}
    for job in jobs:
        groups.setdefault((job.queue, _label(job.headers)), []).append(job)
    for (name, label), group in groups.items():
        yield {Field.QUEUE: name, Field.LABEL: label}, group


def _put_counts(block: Block, jobs: Sequence[JobRecord]) -> None:
    block.put(Field.ATTEMPT, [job.attempt for job in jobs])
    block.put(Field.DELIVERY, [job.delivery for job in jobs])


def _put_errors(block: Block, errors: Sequence[bytes]) -> None:
    kinds, prints = zip(*map(fingerprint, errors), strict=True)
    block.put(Field.ERROR_TYPE, kinds)
    block.put(Field.FINGERPRINT, prints)


#: Write -> function that makes its events; other writes make none.
MAKERS: Mapping[type, Callable[[Any, Any], Iterable[Block]]] = {
    Admit: _admitted,
    Finish: _finished,
    Promote: lambda write, write_result: _changed(_ENQUEUED, write_result[0], write.now),
    Expire: _expired,
    Requeue: _requeued,
    RecordEvents: _recorded,
    RecordOperation: _operation_recorded,
    SaveSchedules: _schedules_saved,
    RemoveSchedule: _schedule_removed,
    RecordEnds: lambda write, _: _ended(write.rows, {}),
    ApplyToJobs: lambda write, write_result: _operated(write.action, write_result, write.audit),
    ContinueBulkOperation: _bulk_slice,
    AdmitGraph: _admitted_graph,
    AdvanceGraphs: _followed,
    CancelGraph: lambda write, write_result: _operated("cancel", write_result[1], write.audit),
    EndDeadlines: lambda write, write_result: _operated("cancel", write_result[0], write.audit),
}


class _EventValue(NamedTuple):
    """An encoded value with its content type; None for a value that is left out."""

    content_type: str | None
    data: bytes | None

    @property
    def size(self) -> int:
        return len(self.content_type or "") + len(self.data or b"")


_NONE = _EventValue(None, None)


def portions(
    blocks: Iterable[Block], batch: Sequence[Any], write_results: Sequence[Any], max_bytes: int
) -> Iterator[list[Block]]:
    """Yield the events of a commit with their values, in order, in portions for one row each.

    The event of an admission gets the body of its job, the event of a success gets the result. The
    content type of a signed body is followed by signature, time of creation and expiry, joined by
    ``;``; that of a signed result by signature and time of creation.

    Args:
        blocks: The events, as `events_of` returned them.
        batch: The writes.
        write_results: One per write.
        max_bytes: Largest number of bytes of values in a portion.
    """
    bodies, results = _values_of(batch, write_results)
    portion: list[Block] = []
    remaining = max_bytes
    for block in blocks:
        start = 0
        for index, size in enumerate(_put_values(block, bodies, results, max_bytes // PARTS)):
            if size > remaining:
                if index > start:
                    portion.append(_part(block, start, index))
                yield portion
                portion, remaining, start = [], max_bytes, index
            remaining -= size
        portion.append(_part(block, start, len(block.ids)))
    if portion:
        yield portion


def _put_values(
    block: Block,
    bodies: Mapping[str, _EventValue],
    results: Mapping[str, _EventValue],
    max_size: int,
) -> list[int]:
    """Add the values of the events of a block; return their sizes, empty without values."""
    kind = block.common[Field.KIND]
    if kind == _SUCCEEDED:
        sources = results
    # A job that becomes ready later was admitted before; its event has no length.
    elif kind in _ARRIVED and block.has(Field.BYTES_IN):
        sources = bodies
    else:
        return []
    candidates = [sources.get(job_id, _NONE) for job_id in block.ids]
    values = [value if value.size <= max_size else _NONE for value in candidates]
    if values.count(_NONE) == len(values):
        return []
    block.put(Field.CONTENT_TYPE, [value.content_type for value in values])
    block.put(Field.VALUE, [value.data for value in values])
    return [value.size for value in values]


def _part(block: Block, start: int, end: int) -> Block:
    """Return some events of a block."""
    if end - start == len(block.ids):
        return block
    columns = {field: values[start:end] for field, values in block.columns.items()}
    return Block(block.common, block.ids[start:end], columns)


# Values of the writes


def _values_of(
    batch: Sequence[Any], write_results: Sequence[Any]
) -> tuple[dict[str, _EventValue], dict[str, _EventValue]]:
    """Return the bodies of the jobs that were admitted, and the results, by their ids."""
    bodies: dict[str, _EventValue] = {}
    results: dict[str, _EventValue] = {}
    for write, write_result in zip(batch, write_results, strict=True):
        if isinstance(write, Admit):
            _add_bodies(bodies, (
                job for index, job in enumerate(write.jobs)
                if index not in write_result or write_result[index].code in _ADMITTED
            ))  # fmt: skip
        elif isinstance(write, AdmitGraph):
            _add_bodies(bodies, write.jobs if write_result is None else ())
        elif isinstance(write, Finish):
            _add_results(results, (
                row for index, row in enumerate(write.rows) if index not in write_result
            ))  # fmt: skip
        elif isinstance(write, RecordEnds):
            _add_results(results, write.rows)
    return bodies, results


def _add_bodies(bodies: dict[str, _EventValue], jobs: Iterable[JobRecord]) -> None:
    for job in jobs:
        bodies[job.id] = _EventValue(_content_type(job.headers), job.body)


def _add_results(results: dict[str, _EventValue], rows: Iterable[Finished]) -> None:
    for row in rows:
        # Without a content type the result of the task is ignored.
        if row.state is JobState.SUCCEEDED and row.content_type:
            results[row.job.id] = _EventValue(row.content_type, row.result)


def _content_type(text: str) -> str:
    """Return the content type of a body, with the signed fields; "" for a legacy job."""
    headers = parse_headers(text)
    if not headers.signature:
        return headers.content_type
    more = f"{headers.signature};{headers.created!r};{headers.expires!r}"
    return f"{headers.content_type};{more}"
