"""The events that a broker wrote, read again: gap-free, along the table, and true at the end."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from eventmq.events import STATES, EventKind, rows_of
from eventmq.job import TERMINAL, TRANSITIONS, JobState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eventmq.store.reads import EventRow, JobRow
    from tests.simulation.auditor import Auditor

__all__ = ["check_events"]

_RUNNING = TRANSITIONS[JobState.RUNNING] | {JobState.RUNNING}


def check_events(auditor: Auditor, rows: Sequence[EventRow], found: Mapping[str, JobRow]) -> None:
    """Check the events of a store; a row has those of one commit."""
    states: dict[str, JobState] = {}
    expected = 1
    for row in rows:
        for event in rows_of("b", row.first, row.body):
            if event["seq"] != expected:
                auditor.fail(f"event {event['seq']} follows {expected - 1}: a gap")
            expected += 1
            _follow(auditor, states, event)
        _check_keys(auditor, states)
    for job_id, end in found.items():
        said = states.get(job_id)
        if said is not end.job.state and not auditor.jobs[job_id].transient:
            auditor.fail(f"the events of job {job_id} end in {said}, it is {end.job.state}")


def _follow(auditor: Auditor, states: dict[str, JobState], event: Mapping[str, Any]) -> None:
    kind, job_id = EventKind(event["kind"]), event["job_id"]
    to = STATES.get(kind)
    if kind is EventKind.GAP:
        auditor.fail("events were dropped")
    if to is None or auditor.job(job_id).transient:
        return
    was = states.get(job_id)
    states[job_id] = to
    if not _allowed(was, to, kind):
        auditor.fail(f"event {kind} takes job {job_id} from {was} to {to}")


def _allowed(was: JobState | None, to: JobState, kind: EventKind) -> bool:
    """Say whether the table has a step; short leases have no event of their own."""
    if was is None:
        return kind in {EventKind.ENQUEUED, EventKind.DELAYED}
    if kind is EventKind.REPLAYED:
        return was is JobState.FAILED
    if was is JobState.QUEUED:
        return to in TRANSITIONS[was] or to in _RUNNING
    if was is JobState.RUNNING:
        return to in _RUNNING
    if was is JobState.DELAYED:  # or blocked, of which there is no event
        return to in TRANSITIONS[was] or to is JobState.DELAYED
    return False


def _check_keys(auditor: Auditor, states: Mapping[str, JobState]) -> None:
    """Between two commits a unique key has one job that has not ended, or one that waits for it."""
    there: Counter[tuple[str, str]] = Counter()
    for job_id, state in states.items():
        if state not in TERMINAL:
            headers = auditor.jobs[job_id].headers
            if headers.unique and not auditor.jobs[job_id].retried:  # by an operator, who may
                there[headers.unique, headers.unique_mode] += 1
    for (key, mode), count in there.items():
        if count > (2 if mode == "keep_last" else 1):
            auditor.fail(f"{count} unfinished jobs have the unique key {key!r}, mode {mode}")
