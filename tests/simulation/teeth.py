"""Planted bugs: the simulation must find each of them within some seeds.

Each is what a careless change might do to one guarantee. ``python -m tests.simulation.teeth``
prints for each bug the seed that found it, and the failure.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from eventmq.broker.admission import Admission
from eventmq.broker.core import BrokerCore
from eventmq.broker.limiters import ANY, Limiter
from eventmq.broker.outcomes import Outcomes
from eventmq.broker.ownership import Watch
from eventmq.broker.sessions import Sessions
from eventmq.engine import Engine, engine
from eventmq.engine.unique import UniqueKeys
from eventmq.engine.writes import Writes
from eventmq.events import EventKind
from eventmq.job import JobState, OutcomeKind
from eventmq.store.writes import Finish
from eventmq.timekeeping import Passed
from eventmq.wire.batches import decode_outcomes
from eventmq.worker.manager import JobManager
from eventmq.worker.session import HeldChunks, Replies
from tests.simulation.run import simulate
from tests.simulation.workload import make_scenario, make_shared_scenario
from tests.support.shared_store import SharedLease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["BUGS", "SEEDS", "find"]

#: Seeds within which each bug must be found.
SEEDS = 400


def _early_receipt(original: Any) -> Any:
    def admit(self: Admission, submission: Any) -> None:
        self._receipt(submission, {})
        self.state.deferred_sends += self.state.receipts
        self.state.receipts.clear()
        original(self, submission._replace(wants_ack=False))

    return admit


def _unfenced(original: Any) -> Any:
    """Accept an answer to a revoked lease: it ends the job although another worker has it."""
    revoked: dict[tuple[str, int], list[Any]] = {}

    def give_back(self: Outcomes, session: Any, lease: Any, **more: Any) -> None:
        revoked[session.id, lease.number] = list(lease.jobs)
        original(self, session, lease, **more)

    return give_back, revoked


@contextmanager
def lease_not_fenced() -> Iterator[None]:
    give_back, revoked = _unfenced(Outcomes.give_back)
    chunk = Outcomes._chunk

    def believe(self: Outcomes, peer: Any, session: Any, number: int, message: Any) -> None:
        jobs = revoked.get((session.id, number))
        if number in session.leases or jobs is None:
            chunk(self, peer, session, number, message)
            return
        rows = []
        for position, kind, *_ in decode_outcomes(message.result):
            job = jobs[position] if position < len(jobs) else None
            if kind == OutcomeKind.SUCCEEDED and job is not None and job.id in self.state.jobs:
                rows.append(self.row(job, JobState.SUCCEEDED))
        write = Finish(rows)
        self.state.write(write, lambda write_result: self.record_ends(rows, write_result))
        self.state.ack(peer, message.id)

    with patch.object(Outcomes, "give_back", give_back), patch.object(Outcomes, "_chunk", believe):
        yield


def _without_retries(original: Any) -> Any:
    def unfinished(self: Outcomes, answers: Any, job: Any, kind: int, *rest: Any) -> None:
        if kind != OutcomeKind.RETRY:
            original(self, answers, job, kind, *rest)

    return unfinished


def _short_count(original: Any) -> Any:
    def admit(self: Writes, write: Any) -> Any:
        write_result = original(self, write)
        rows = [
            (remaining - 1, key)
            for key, remaining in self.store.scan("joins", ("key", "remaining"))
        ]
        self.store.update("joins", ("remaining",), [row for row in rows if row[0] > 0])
        return write_result

    return admit


def _hasty(seconds: float) -> Callable[[Any], Any]:
    def wrap(original: Any) -> Any:
        return lambda self, write: original(self, write._replace(now=write.now + seconds))

    return wrap


def _expires_early(original: Any) -> Any:
    def admit(self: Admission, submission: Any) -> None:
        for job in submission.jobs:
            job.expires -= 10.0 if job.expires else 0.0
        original(self, submission)

    return admit


def _silent_events(original: Any) -> Any:
    """Drop the events of cancelled jobs."""
    code = list(EventKind).index(
        EventKind.CANCELLED
    )  # only beside others: a store writes no empty row

    def events(*arguments: Any) -> Any:
        blocks = original(*arguments)
        return [block for block in blocks if block.common.get(0) != code] or blocks

    return events


def _unlimited(original: Any) -> Any:
    return lambda self, now: ANY


def _blind(original: Any) -> Any:
    return lambda self, job, rule, *rest: self._insert(job, rule, job)


def _nothing(original: Any) -> Any:
    return lambda self, *arguments, **more: None


def _none(original: Any) -> Any:
    return lambda self, *arguments, **more: []


def _no_undo(original: Any) -> Any:
    def failed(self: BrokerCore, error: Any, writes: Any, settles: Any, undos: Any) -> None:
        original(self, error, writes, settles, [lambda: None for _ in undos])

    return failed


def _twice(original: Any) -> Any:
    return lambda self, chunk, unstarted: original(self, chunk, unstarted=True)


def _forgetful(original: Any) -> Any:
    return lambda self, *arguments: replace(original(self, *arguments), next_ready_at=None)


def _unseen(original: Any) -> Any:
    """Accept a chunk under any number, even one that was received before."""

    def receive(self: Any, request: Any, now: float) -> None:
        self._held_chunks.received = 0
        original(self, request, now)

    return receive


def _without_leases(original: Any) -> Any:
    return lambda self, recovered: original(self, replace(recovered, chunks=[]))


def _no_dedupe(original: Any) -> Any:
    return lambda self, ids: {}


def _credulous(original: Any) -> Any:
    return lambda self, now: Passed(0.0, 1e9)


def bug(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Callable[[], Any]:
    """Return a function that makes the context manager which plants a bug."""
    return lambda: patch.object(owner, name, wrap(getattr(owner, name)))


#: Name -> context manager that plants the bug.
BUGS: dict[str, Callable[[], Any]] = {
    "the receipt leaves before the commit": bug(Admission, "_admit", _early_receipt),
    "an answer to a revoked lease counts": lease_not_fenced,
    "an ended job is admitted again": bug(Writes, "_ended_states", _no_dedupe),
    "chunk rows are not written": bug(Writes, "lease_chunk", lambda _: lambda self, write: {}),
    "a failed attempt is not stored": bug(Outcomes, "_requeue_or_end", _without_retries),
    "jobs expire ten seconds early": bug(Admission, "_admit", _expires_early),
    "delayed jobs are queued early": bug(Writes, "promote", _hasty(3.0)),
    "a chord counts one member too few": bug(Writes, "admit_graph", _short_count),
    "unique keys are not looked up": bug(UniqueKeys, "_resolve_conflict", _blind),
    "limits are not kept": bug(Limiter, "allowance", _unlimited),
    "cancelled jobs have no event": bug(engine, "events_of", _silent_events),
    "a lease that its worker does not hold is not noticed": bug(Sessions, "_reconcile", _nothing),
    "answers are not sent again": bug(Replies, "to_resend", _none),
    "a failed commit is not undone": bug(BrokerCore, "_failed", _no_undo),
    "a transient job is handed back": bug(Outcomes, "_give_back_transient", _twice),
    "delayed jobs are lost at a restart": bug(Engine, "_recover", _forgetful),
    "a chunk is taken twice": bug(JobManager, "_receive_chunk", _unseen),
    "a worker keeps chunks that are settled": bug(HeldChunks, "release", _nothing),
    "an owner that was overtaken is not fenced": bug(SharedLease, "check", _nothing),
    "an owner does not read what is leased": bug(BrokerCore, "_load", _without_leases),
    "the next owner believes its clock alone": bug(Watch, "passed", _credulous),
    "a deployed worker is answered after a restart": bug(Sessions, "check_registered", _nothing),
}


#: Bugs that are looked for with brokers that share a store.
SHARED = frozenset({
    "an owner that was overtaken is not fenced", "an owner does not read what is leased",
    "the next owner believes its clock alone",
})  # fmt: skip

#: Seeds that found bugs before, tried first; they change with the workload.
TRIED = (1, 3, 5, 9, 15, 17, 22, 78, 83, 87, 98, 121, 123, 154, 322)


def find(name: str, seeds: int = SEEDS) -> tuple[int, str]:
    """Return the first seed that finds a bug, and its failure; (0, "") if none does."""
    make = make_shared_scenario if name in SHARED else make_scenario
    with BUGS[name]():
        for seed in dict.fromkeys((*TRIED, *range(1, seeds + 1))):
            failure = simulate(make(seed)).failure
            if failure:
                return seed, failure
    return 0, ""


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation.teeth", *sys.argv[1:]])
    logging.disable(logging.CRITICAL)
    for bug_name in sys.argv[1:] or BUGS:
        seed, text = find(bug_name)
        print(f"{seed}\t{bug_name}\t{text}", flush=True)
