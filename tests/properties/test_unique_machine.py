"""Unique keys under any order of submissions, outcomes, waits and crashes of the broker."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from eventmq.headers import parse_headers
from eventmq.job import OutcomeKind
from eventmq.wire.commands import Ack, Error, Request
from tests.support.broker_harness import SWIFT, Broker, chunks, row
from tests.support.examples import examples

if TYPE_CHECKING:
    from eventmq.wire.batches import ChunkIndex

#: Key -> mode of the jobs that have it.
MODES = {"r": "reject", "p": "replace", "k": "keep_last"}

WAITING = {"queued", "delayed"}

KINDS = [OutcomeKind.SUCCEEDED, OutcomeKind.FAILED, OutcomeKind.RETRY, OutcomeKind.HANDED_BACK]


class UniqueMachine(RuleBasedStateMachine):
    """One broker over its crashes, and one worker that is always there."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory(dir=SWIFT)
        self.broker = Broker(Path(self.folder.name))
        self.accepted: dict[str, list[str]] = {key: [] for key in MODES}
        self.open: dict[int, tuple[Request, ChunkIndex]] = {}
        self.received = self.seen = 0
        self.inform()

    def teardown(self) -> None:
        for _ in range(60):
            for number in list(self.open):
                self.answer(number, OutcomeKind.SUCCEEDED)
            if not any(state in WAITING | {"running"} for state in self.states().values()):
                break
            self.wait(4.0)
        states = self.states()
        for ids in self.accepted.values():
            assert {states[i] for i in ids} <= {"succeeded", "failed", "cancelled"}
            assert not ids or states[ids[-1]] in {"succeeded", "failed"}, "the last one is run"
        self.broker.close()
        self.folder.cleanup()

    # The worker

    def inform(self) -> None:
        self.broker.worker(window=2, received=self.received, held=tuple(self.open))
        self.collect()

    def collect(self) -> None:
        for request, index in chunks(self.broker.dispatched[self.seen :]):
            number = parse_headers(request.headers).chunk
            if number > self.received:
                self.open[number] = request, index
                self.received = number
        self.seen = len(self.broker.dispatched)

    def ready(self) -> None:
        self.broker.ready(b"worker", 2, self.received, tuple(self.open))
        self.collect()

    def answer(self, number: int, kind: OutcomeKind) -> None:
        request, index = self.open.pop(number)
        rows = [row(position, kind, countdown=2.0) for position in range(len(index.entries))]
        self.broker.answer(b"worker", request, rows)
        self.collect()
        self.ready()

    # Looking

    def states(self) -> dict[str, str]:
        ids = [job_id for ids in self.accepted.values() for job_id in ids]
        return dict(self.broker.call("state", ids=ids))

    # Rules

    @rule(key=st.sampled_from(sorted(MODES)), countdown=st.sampled_from([0, 3]))
    def submit(self, key: str, countdown: int) -> None:
        """A duplicate is accepted if the mode allows it; a refusal names an unfinished job."""
        text = f"unique:{key},unique-mode:{MODES[key]}"
        if countdown:
            text += f",countdown:{countdown}"
        before = self.states()
        job_id, messages = self.broker.submit(headers=text)
        self.collect()
        answer = next(m for m in messages if isinstance(m, (Ack, Error)))
        if isinstance(answer, Ack):
            unfinished = {before[i] for i in self.accepted[key]} & (WAITING | {"running"})
            assert not unfinished or MODES[key] != "reject"
            assert "running" not in unfinished or MODES[key] == "keep_last"
            self.accepted[key].append(job_id)
            after = self.states()
            assert all(before[i] in WAITING for i in before if after[i] == "cancelled" != before[i])
            return
        assert answer.code == "duplicate"
        assert answer.text in self.accepted[key]
        assert before[answer.text] in WAITING | {"running"}
        assert MODES[key] == "reject" or (MODES[key], before[answer.text]) == ("replace", "running")

    @precondition(lambda self: self.open)
    @rule(data=st.data(), kind=st.sampled_from(KINDS))
    def outcome(self, data: st.DataObject, kind: OutcomeKind) -> None:
        self.answer(data.draw(st.sampled_from(sorted(self.open))), kind)

    @rule(seconds=st.sampled_from([0.5, 2.0, 4.0]))
    def wait(self, seconds: float) -> None:
        self.broker.wait(seconds)
        self.ready()

    @rule()
    def crash(self) -> None:
        """The worker has its chunks, and reports them to the new broker."""
        self.broker.crash()
        self.inform()

    @invariant()
    def a_key_has_one_job_at_a_time(self) -> None:
        """With keep_last another one waits for it."""
        states = self.states()
        for key, mode in MODES.items():
            job_states = [states[job_id] for job_id in self.accepted[key]]
            unfinished = [state for state in job_states if state in WAITING | {"running"}]
            assert len(unfinished) <= (2 if mode == "keep_last" else 1), unfinished
            assert unfinished.count("running") <= 1

    @invariant()
    def memory_and_store_count_alike(self) -> None:
        queues = self.broker.core.state.queues
        for name, stored in self.broker.store.engine.tables.counts().items():
            counts = queues[name].counts
            assert (counts.queued, counts.delayed) == (stored.queued, stored.delayed)


TestUniqueMachine = UniqueMachine.TestCase
TestUniqueMachine.settings = settings(
    max_examples=examples(100), stateful_step_count=40, deadline=None
)
