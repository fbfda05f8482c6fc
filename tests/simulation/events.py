"""Checks the event log: no gap, only steps that the state machine allows, and true final states."""

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


def check_events(auditor: Auditor, rows: Sequence[EventRow], stored: Mapping[str, JobRow]) -> None:
    """Check the event log of a store; each row has the events of one commit."""
    states: dict[str, JobState] = {}
    expected = 1
    for row in rows:
        for event in rows_of("b", row.first, row.body):
            if event["seq"] != expected:
                auditor.fail(f"event {event['seq']} follows {expected - 1}: a gap")
            expected += 1
            _follow(auditor, states, event)
        _check_keys(auditor, states)
    for job_id, end in stored.items():
        state = states.get(job_id)
        if state is not end.job.state and not auditor.jobs[job_id].transient:
            auditor.fail(f"the events of job {job_id} end in {state}, it is {end.job.state}")


def _follow(auditor: Auditor, states: dict[str, JobState], event: Mapping[str, Any]) -> None:
    kind = EventKind(event["kind"])
    to = STATES.get(kind)
    if kind is EventKind.GAP:
        auditor.fail("events were dropped")
    if to is None:  # some acts are of no job
        return
    job_id = event["job_id"]
    if auditor.job(job_id).transient:
        return
    before = states.get(job_id)
    states[job_id] = to
    if not _allowed(before, to, kind):
        auditor.fail(f"event {kind} takes job {job_id} from {before} to {to}")


def _allowed(before: JobState | None, to: JobState, kind: EventKind) -> bool:
    """Return whether a job may change its state so; short leases have no event of their own."""
    if before is None:
        return kind in {EventKind.ENQUEUED, EventKind.DELAYED}
    if kind is EventKind.REPLAYED:
        return before is JobState.FAILED
    if before is JobState.QUEUED:
        return to in TRANSITIONS[before] or to in _RUNNING
    if before is JobState.RUNNING:
        return to in _RUNNING
    if before is JobState.DELAYED:  # or blocked, which has no event
        return to in TRANSITIONS[before] or to is JobState.DELAYED
    return False


def _check_keys(auditor: Auditor, states: Mapping[str, JobState]) -> None:
    """Check that a unique key has one unfinished job after a commit, or two with ``keep_last``."""
    unfinished: Counter[tuple[str, str]] = Counter()
    for job_id, state in states.items():
        if state not in TERMINAL:
            headers = auditor.jobs[job_id].headers
            if (
                headers.unique and not auditor.jobs[job_id].retried
            ):  # an operator's retry may add one
                unfinished[headers.unique, headers.unique_mode] += 1
    for (key, mode), count in unfinished.items():
        if count > (2 if mode == "keep_last" else 1):
            auditor.fail(f"{count} unfinished jobs have the unique key {key!r}, mode {mode}")
