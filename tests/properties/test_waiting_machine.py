"""Delays, expiry, pauses and cancellation of jobs that wait, in any order of things."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from eventmq.broker.limits import Limits
from eventmq.headers import parse_headers
from eventmq.job import TERMINAL, OutcomeKind
from eventmq.wire.commands import Error, Request
from tests.support.broker_harness import SWIFT, Broker, chunks, row
from tests.support.examples import examples

if TYPE_CHECKING:
    from eventmq.wire.batches import ChunkIndex

ENDED = {str(state) for state in TERMINAL}

#: Seconds that the broker may take to see that a job is due, or has expired.
MAX_DELAY = 1.0

QUEUES = '[[10, "default"], [10, "other"]]'


@dataclass
class ClientTimes:
    """Times that a client set for a job, in Unix seconds."""

    queue: str
    due: float
    expires: float | None
    started: bool = False
    leased_until: float = 0.0
    ended: str = ""


class WaitingMachine(RuleBasedStateMachine):
    """Clients, an operator and one worker at a broker that may crash."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory(dir=SWIFT)
        self.broker = Broker(Path(self.folder.name), Limits(queue_window=3, chunk_jobs=2))
        self.jobs: dict[str, ClientTimes] = {}
        self.paused: set[str] = set()
        self.open: dict[int, tuple[Request, ChunkIndex]] = {}
        self.received = self.seen = 0

    def teardown(self) -> None:
        self.everything_ends()
        self.broker.close()
        self.folder.cleanup()

    def now(self) -> float:
        return self.broker.clock.now()

    # Clients and operators

    @rule(
        queue=st.sampled_from(["default", "other"]),
        countdown=st.sampled_from([0, 0, 2, 5]),
        expires=st.sampled_from([None, None, 1, 3, 8]),
    )
    def submit(self, queue: str, countdown: int, expires: int | None) -> None:
        parts = [f"countdown:{countdown}"] if countdown else []
        until = None if expires is None else self.now() + expires
        if until is not None:
            parts.append(f"expires:{until}")
        job_id = self.broker.new_id()
        self.jobs[job_id] = ClientTimes(queue, self.now() + countdown, until)
        self.broker.submit(job_id, queue, ",".join(parts))
        self.collect()

    @rule(queue=st.sampled_from(["default", "other"]), action=st.sampled_from(["pause", "resume"]))
    def pause_or_resume(self, queue: str, action: str) -> None:
        answer = self.broker.call(action, queue=queue)
        if action == "resume":
            self.paused.discard(queue)
        elif not isinstance(answer, Error):  # the queue is not known yet
            self.paused.add(queue)
        self.collect()

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.broker.call("cancel", ids=[data.draw(st.sampled_from(sorted(self.jobs)))])
        self.collect()

    # The worker

    @rule()
    def inform(self) -> None:
        self.broker.worker(window=2, received=self.received, held=tuple(self.open), queues=QUEUES)
        self.collect()

    @precondition(lambda self: self.open)
    @rule(kind=st.sampled_from([OutcomeKind.SUCCEEDED, OutcomeKind.HANDED_BACK]))
    def answer(self, kind: OutcomeKind) -> None:
        number = min(self.open)
        chunk, index = self.open[number]
        if not self.connected():
            self.inform()
        if number not in self.open:
            return
        del self.open[number]
        self.see_leases()
        rows = [row(position, kind) for position, entry in enumerate(index.entries) if entry.id]
        self.broker.answer(b"worker", chunk, rows)
        self.collect()
        self.ready()

    def ready(self) -> None:
        self.broker.ready(b"worker", 2, self.received, tuple(self.open))
        self.collect()

    def connected(self) -> bool:
        peers = self.broker.core.state.peers
        return any(key.identity == b"worker" and peer.session for key, peer in peers.items())

    # The world

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0, 4.0]))
    def wait(self, seconds: float) -> None:
        for _ in range(int(seconds * 2)):
            self.broker.wait(0.5)
            self.collect()
            if self.connected():
                self.ready()

    @rule(away=st.sampled_from([0.0, 3.0]))
    def crash(self, away: float) -> None:
        self.broker.clock.time += away
        self.broker.crash()
        self.broker.wait(MAX_DELAY)
        self.collect()

    # Looking

    def collect(self) -> None:
        """Check each chunk once, at the time when it was sent."""
        for request, index in chunks(self.broker.dispatched[self.seen :]):
            number = parse_headers(request.headers).chunk
            if number <= self.received:
                continue  # resent: the worker has it
            self.received = number
            self.open[number] = (request, index)
            for entry in filter(lambda entry: entry.id, index.entries):
                self.left(entry.id)
        self.seen = len(self.broker.dispatched)
        self.see_leases()

    def see_leases(self) -> None:
        """Note which jobs run; an expiry is about the start, so they are left alone."""
        for job_id in self.broker.core.state.running:
            self.jobs[job_id].leased_until = self.now()

    def left(self, job_id: str) -> None:
        job = self.jobs[job_id]
        assert not job.ended, f"handed out although it is {job.ended}"
        assert job.due <= self.now(), "handed out before its time"
        assert job.expires is None or self.now() <= job.expires, "handed out after its expiry"
        assert job.queue not in self.paused, "handed out from a paused queue"
        job.started = True

    def states(self) -> dict[str, str]:
        return dict(self.broker.call("state", ids=sorted(self.jobs))) if self.jobs else {}

    @invariant()
    def states_follow_the_clock(self) -> None:
        """Waiting jobs are ready or expired when their time has come, and ended jobs stay ended."""
        for job_id, state in self.states().items():
            job = self.jobs[job_id]
            assert not job.ended or state == job.ended
            if state in ENDED:
                job.ended = state
            if state == "expired":
                assert job.expires is not None
                assert self.now() >= job.expires, "expired before its time"
            elif state == "delayed":
                assert self.now() <= job.due + MAX_DELAY, "late"
            if state in {"delayed", "queued"}:
                since = max(job.expires or 0.0, job.leased_until)
                assert job.expires is None or self.now() <= since + MAX_DELAY, "never expires"
            if state == "queued":
                assert self.now() >= job.due, "queued before its time"

    @invariant()
    def queues_count_what_they_have(self) -> None:
        states = self.states()
        for queue in self.broker.call("queues"):
            job_states = [s for i, s in states.items() if self.jobs[i].queue == queue["name"]]
            assert queue["paused"] is (queue["name"] in self.paused)
            counted = [queue["waiting"], queue["delayed"], queue["running"]]
            assert counted == [job_states.count(s) for s in ("queued", "delayed", "running")]

    def everything_ends(self) -> None:
        for queue in sorted(self.paused):
            self.pause_or_resume(queue, "resume")
        for _ in range(20 + 2 * len(self.jobs)):
            if all(state in ENDED for state in self.states().values()):
                break
            self.inform()
            while self.open:
                self.answer(OutcomeKind.SUCCEEDED)
            self.wait(1.0)
        self.states_follow_the_clock()
        for job in self.jobs.values():
            assert job.ended in {"succeeded", "cancelled", "expired"}
            assert job.ended != "succeeded" or job.started


TestWaitingMachine = WaitingMachine.TestCase
TestWaitingMachine.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
