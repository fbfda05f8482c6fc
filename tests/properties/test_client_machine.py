"""Whatever network and brokers do, answers that the client got are true once they are well."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from eventmq.client.requests import PendingCall, PendingSubmit
from eventmq.wire.commands import Request
from tests.support.client_harness import FakeBroker, Net

BROKERS = st.integers(0, 1)


class ClientModel(RuleBasedStateMachine):
    """A client with two brokers that are cut off, fall silent and are restarted."""

    @initialize(same=st.booleans())
    def begin(self, same: bool) -> None:
        self.brokers = [FakeBroker(store="s0"), FakeBroker(store="s0" if same else "s1")]
        self.net = Net(*self.brokers)
        self.submits: list[PendingSubmit] = []
        self.calls: list[PendingCall] = []
        self.settled: dict[int, int] = {}

    @rule()
    def submit(self) -> None:
        job_id = f"j{len(self.submits)}"
        frames = Request(job_id, "q", "ack-requested", b"x").frames()
        pending = PendingSubmit(frames, id=job_id, deadline=self.net.now + 1e6)
        self.submits.append(pending)
        self.net.begin(pending)

    @rule(data=st.data())
    def get(self, data: st.DataObject) -> None:
        done = [p for p in self.submits if p.done and p.error is None]
        if not done:
            return
        pending = data.draw(st.sampled_from(done))
        call = PendingCall(
            [], id=self.net.machine.message_id(), name="get", ids={pending.id},
            target=pending.broker, store=pending.store,
        )  # fmt: skip
        self.calls.append(call)
        self.net.begin(call)

    @rule(index=BROKERS)
    def cut(self, index: int) -> None:
        if index not in self.net.cut:
            self.net.lose(index)

    @rule(index=BROKERS)
    def restore(self, index: int) -> None:
        if index in self.net.cut:
            self.net.restore(index)

    @rule(index=BROKERS, silent=st.booleans())
    def silence(self, index: int, silent: bool) -> None:
        self.brokers[index].silent = silent

    @rule(index=BROKERS)
    def restart(self, index: int) -> None:
        self.brokers[index].restart()

    @rule(index=BROKERS)
    def finish(self, index: int) -> None:
        broker = self.brokers[index]
        for job_id in broker.jobs:
            broker.finish(job_id, "succeeded")
        self.net.deliver(index, broker.flush())
        self.net.run()

    @rule(seconds=st.floats(0.5, 20.0))
    def wait(self, seconds: float) -> None:
        self.net.advance(seconds)
        self._reopen()

    def _reopen(self) -> None:
        while self.net.machine.reopen:
            index = self.net.machine.reopen.pop()
            self.net.peer[index] += 1
            self.net.machine.opened(index, self.net.now)
        self.net.run()

    @invariant()
    def a_receipt_is_true(self) -> None:
        """A confirmed job is with the broker that the handle names."""
        for pending in getattr(self, "submits", []):
            if pending.done:
                assert pending.error is None
                assert pending.id in self.brokers[pending.broker].jobs

    @invariant()
    def no_job_is_in_two_stores(self) -> None:
        if hasattr(self, "brokers") and self.brokers[0].store != self.brokers[1].store:
            assert not self.brokers[0].jobs.keys() & self.brokers[1].jobs.keys()

    @invariant()
    def what_waits_for_a_broker_is_counted(self) -> None:
        """Heartbeats and their timeout depend on it."""
        if hasattr(self, "net"):
            machine = self.net.machine
            for connection in machine.connections:
                at = [e.assigned_to for e in machine._in_flight._open.values()]
                assert connection.in_flight == at.count(connection.index)

    @invariant()
    def no_request_is_notified_of_the_same_end_twice(self) -> None:
        notified: list[Any] = [
            e for e in getattr(self, "net", Net()).notified if isinstance(e, PendingSubmit)
        ]
        assert len(notified) == len(set(map(id, notified)))

    def teardown(self) -> None:
        """Once everything is well, everything is settled."""
        if not hasattr(self, "net"):
            return
        for index, broker in enumerate(self.brokers):
            broker.silent = False
            if index in self.net.cut:
                self.net.restore(index)
        for _ in range(4):
            self.net.advance(20.0)
            self._reopen()
        for index in range(2):
            self.finish(index)
        self.net.advance(20.0)
        assert [p.id for p in self.submits if not p.done] == []
        assert [q.id for q in self.calls if not q.done] == []


TestClientModel = ClientModel.TestCase
