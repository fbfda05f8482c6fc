"""The broker's core against a small model: no job lost, none leased twice, attempts monotonic."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from eventmq.broker.limits import Limits
from eventmq.events import STATES, EventKind
from eventmq.headers import parse_headers
from eventmq.job import OutcomeKind
from eventmq.wire.batches import encode_batch
from eventmq.wire.commands import Ack, Kbai, Request
from tests.support.broker_harness import SWIFT, Broker, chunks, row

WORKERS = ("w0", "w1", "w2")

TASKS = ("shop.add", "mail.send", "page.read")

#: Tasks that a worker may know; empty for all.
KNOWN = ((), (), TASKS[:1], TASKS[1:], TASKS)

ALIVE = frozenset({"queued", "delayed", "running"})


@dataclass
class Held:
    """A chunk at a model worker: message, jobs and deliveries, and the positions not answered."""

    message: Request
    entries: list[tuple[str, int, int]]
    open: set[int]


@dataclass
class ModelWorker:
    """State of a worker process, which outlives its connection and the broker."""

    session: str
    identity: bytes
    alive: bool = True
    received: int = 0
    held: dict[int, Held] = field(default_factory=dict)
    tasks: tuple[str, ...] = ()


class BrokerMachine(RuleBasedStateMachine):
    """Clients, three workers, time and crashes, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(dir=SWIFT)
        limits = Limits(queue_window=3, chunk_jobs=3, max_deaths=3)
        self.broker = Broker(Path(self.folder.name), limits)
        self.confirmed: dict[str, str] = {}  # id -> waiting or a terminal state
        self.tasks: dict[str, str] = {}
        self.order: list[str] = []
        self.first_seen: list[str] = []
        self.attempts: dict[str, int] = {}
        self.deliveries: dict[str, int] = {}
        self.workers: dict[str, ModelWorker] = {}
        self.generation = 0
        self.replayed: dict[str, str] = {}  # id -> state, by the events
        self.last_event = 0

    def teardown(self) -> None:
        self.broker.close()
        self.folder.cleanup()

    # Clients

    @rule(data=st.data(), n=st.integers(1, 6))
    def submit(self, data: st.DataObject, n: int) -> None:
        ids = [self.broker.new_id() for _ in range(n)]
        tasks = data.draw(st.lists(st.sampled_from(TASKS), min_size=n, max_size=n))
        self.tasks.update(zip(ids, tasks, strict=True))
        used = sorted(set(tasks))
        templates = [("default", f"task:{task},content-type:msgpack") for task in used]
        rows = [(i, used.index(task), b"x") for i, task in zip(ids, tasks, strict=True)]
        body = encode_batch(templates, rows)
        request = Request(self.broker.new_id(), "", f"batch:{n}", body)
        [ack] = self.broker.tell(b"client", request)
        assert isinstance(ack, Ack)
        assert ack.extra is None
        for job_id in ids:
            self.confirmed[job_id] = "waiting"
            self.order.append(job_id)
        self.collect()

    @precondition(lambda self: self.confirmed)
    @rule(data=st.data())
    def resend(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.confirmed)))
        self.broker.submit_batch([job_id])
        self.collect()

    # Operators

    @precondition(lambda self: self.confirmed)
    @rule(data=st.data(), n=st.integers(1, 4))
    def cancel(self, data: st.DataObject, n: int) -> None:
        """Cancel some jobs, wherever they are; twice is as once."""
        ids = data.draw(st.lists(st.sampled_from(sorted(self.confirmed)), min_size=1, max_size=n))
        for _ in range(2):
            rows = self.broker.call("cancel", client=b"boss", ids=ids)
            for _, state, previous in rows:
                assert state == ("cancelled" if previous in ALIVE else previous)
        self.collect()

    @precondition(lambda self: self.confirmed)
    @rule(running=st.booleans())
    def purge(self, running: bool) -> None:
        """Cancel all jobs of the queue, without the running ones if ``running`` is false."""
        self.generation += 1
        self.broker.call(
            "bulk",
            client=b"boss",
            id=f"bulk{self.generation}",
            action="cancel",
            queue="default",
            running=running,
        )
        [queue] = self.broker.call("queues", client=b"boss")
        assert (queue["waiting"], queue["delayed"]) == (0, 0)
        assert not running or not queue["running"]
        self.collect()

    @precondition(lambda self: "failed" in self.confirmed.values())
    @rule(data=st.data(), bulk=st.booleans())
    def retry(self, data: st.DataObject, bulk: bool) -> None:
        """Queue failed jobs again, one or all."""
        failed = [job_id for job_id, state in self.confirmed.items() if state == "failed"]
        if bulk:
            self.generation += 1
            name = f"bulk{self.generation}"
            self.broker.call("bulk", client=b"boss", id=name, action="retry")
        else:
            failed = [data.draw(st.sampled_from(sorted(failed)))]
            rows = self.broker.call("retry", client=b"boss", ids=failed)
            assert rows == [[failed[0], "queued", "failed"]]
        for job_id in failed:
            self.confirmed[job_id] = "waiting"
        self.collect()

    # Workers

    @rule(name=st.sampled_from(WORKERS), window=st.integers(1, 3), knows=st.sampled_from(KNOWN))
    def connect(self, name: str, window: int, knows: tuple[str, ...]) -> None:
        """Start the worker, or let it inform again over a new connection."""
        self.generation += 1
        identity = f"{name}.{self.generation}".encode()
        worker = self.workers.get(name)
        if worker is None or not worker.alive:
            worker = self.workers[name] = ModelWorker(f"{name}-{self.generation}", identity)
            worker.tasks = knows
        worker.identity = identity
        self.note(
            worker,
            self.broker.worker(
                identity,
                worker.session,
                window=window,
                received=worker.received,
                held=tuple(worker.held),
                tasks=worker.tasks,
            ),
        )
        self.collect()

    @precondition(lambda self: any(w.held for w in self.workers.values() if w.alive))
    @rule(data=st.data(), kind=st.sampled_from(sorted(OutcomeKind)), lose_ack=st.booleans())
    def answer(self, data: st.DataObject, kind: int, lose_ack: bool) -> None:
        """Answer some positions of a held chunk; repeat the answer if the ACK is lost."""
        busy = sorted(n for n, w in self.workers.items() if w.alive and w.held)
        worker = self.workers[data.draw(st.sampled_from(busy))]
        number = data.draw(st.sampled_from(sorted(worker.held)))
        chunk = worker.held[number]
        count = data.draw(st.integers(1, len(chunk.open)))
        positions = sorted(chunk.open)[:count]
        if kind in {OutcomeKind.UNKNOWN_TASK, OutcomeKind.DIED}:
            kind = OutcomeKind.HANDED_BACK
        rows = [row(position, kind, run_time=1e-6) for position in positions]
        for _ in range(1 + lose_ack):
            connected = worker.identity in self.connected()
            messages = self.broker.answer(worker.identity, chunk.message, rows)
            self.note(worker, messages)
            if not connected:
                return  # asked to inform again; it still holds all its chunks
            assert any(isinstance(m, Ack) for m in messages)
        chunk.open -= set(positions)
        if not chunk.open:
            del worker.held[number]
        self.collect()

    @precondition(lambda self: any(w.alive for w in self.workers.values()))
    @rule(data=st.data(), polite=st.booleans())
    def die(self, data: st.DataObject, polite: bool) -> None:
        worker = self.workers[
            data.draw(st.sampled_from(sorted(n for n, w in self.workers.items() if w.alive)))
        ]
        worker.alive = False
        worker.held.clear()
        if polite:
            self.broker.tell(worker.identity, Kbai("bye"))
        self.collect()

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), window=st.integers(0, 3))
    def ready(self, data: st.DataObject, window: int) -> None:
        worker = self.workers[data.draw(st.sampled_from(sorted(self.workers)))]
        if worker.alive:
            held = tuple(worker.held)
            messages = self.broker.ready(worker.identity, window, worker.received, held)
            self.note(worker, messages)
        self.collect()

    # The world

    @rule(seconds=st.sampled_from([0.5, 3.0, 20.0]))
    def wait(self, seconds: float) -> None:
        self.broker.wait(seconds)
        self.collect()

    @rule()
    def crash(self) -> None:
        self.broker.crash()

    # Looking

    def connected(self) -> set[bytes]:
        return {key.identity for key, peer in self.broker.core.state.peers.items() if peer.session}

    def collect(self) -> None:
        """Deliver the messages of the broker to the connected workers."""
        for worker in self.workers.values():
            self.note(worker, self.broker.took(worker.identity))

    def note(self, worker: ModelWorker, messages: object) -> None:
        for message, index in chunks(messages):  # type: ignore[arg-type]
            number = parse_headers(message.headers).chunk
            entries = [(e.id, e.delivery, e.attempt) for e in index.entries]
            for job_id, delivery, attempt in entries:
                if job_id:
                    assert not worker.tasks or self.tasks[job_id] in worker.tasks
                    self.delivered(job_id, delivery, attempt)
            if worker.alive and number > worker.received:
                worker.received = number
                indexes = {i for i, (job_id, _, _) in enumerate(entries) if job_id}
                worker.held[number] = Held(message, entries, indexes)

    def delivered(self, job_id: str, delivery: int, attempt: int) -> None:
        assert job_id in self.confirmed
        assert delivery >= self.deliveries.get(job_id, 0)
        assert attempt >= self.attempts.get(job_id, 1)
        self.deliveries[job_id] = delivery
        self.attempts[job_id] = attempt

    @invariant()
    def no_job_is_leased_twice(self) -> None:
        leased = [
            job.id
            for session in self.broker.core.state.sessions.values()
            for lease in session.leases.values()
            for job in lease.jobs
            if job is not None
        ]
        assert len(leased) == len(set(leased))
        assert set(leased) == set(self.broker.core.state.running)

    @invariant()
    def first_deliveries_are_fifo(self) -> None:
        numbers = {job_id: number for number, job_id in enumerate(self.order)}
        for _, index in chunks(self.broker.dispatched):
            new = [e.id for e in index.entries if e.id and e.id not in self.first_seen]
            order = [numbers[job_id] for job_id in new]
            assert order == sorted(order), "a worker of both tasks got one before its turn"
            for entry in index.entries:
                if entry.id and entry.id not in self.first_seen:
                    self.first_seen.append(entry.id)
        self.broker.dispatched.clear()
        for task in TASKS:
            seen = [numbers[job_id] for job_id in self.first_seen if self.tasks[job_id] == task]
            assert seen == sorted(seen)

    @invariant()
    def every_confirmed_job_is_known_and_the_counts_agree(self) -> None:
        ids = sorted(self.confirmed)
        states = dict(self.broker.call("state", ids=ids)) if ids else {}
        assert "" not in states.values()
        for job_id, state in states.items():
            before = self.confirmed[job_id]
            if before != "waiting":
                assert state == before, "a job that had ended changed its state"
            elif state in {"succeeded", "failed", "cancelled", "expired"}:
                self.confirmed[job_id] = state
        queues = {q["name"]: q for q in self.broker.call("queues")}
        if "default" in queues:
            for name in ("waiting", "running", "delayed", "failed"):
                state = "queued" if name == "waiting" else name
                assert queues["default"][name] == list(states.values()).count(state), name
        self.the_events_tell_the_same(states)

    @invariant()
    def what_the_queues_count_is_there(self) -> None:
        """The memory of a queue is that of its subqueues, each with something to give."""
        state = self.broker.core.state
        for queue in state.queues.values():
            windows = [subqueue.items[subqueue.head :] for subqueue in queue.subqueues.values()]
            assert len(queue) == sum(map(len, windows))
            assert len(queue) <= max(self.broker.limits.queue_window, len(TASKS))
            assert all(subqueue.first is not None for subqueue in queue.subqueues.values())
        assert state.subqueue_counts.total == sum(
            len(queue.subqueues) for queue in state.queues.values()
        )

    def the_events_tell_the_same(self, states: dict[str, str]) -> None:
        """Without a gap in their numbers; a lease that ends soon makes no event of its own."""
        for event in self.broker.events(self.last_event):
            self.last_event += 1
            assert event["seq"] == self.last_event
            kind = EventKind(event["kind"])
            if kind in STATES:
                self.replayed[event["job_id"]] = STATES[kind].value
        queued = {"running": "queued"}
        replayed = {job_id: queued.get(state, state) for job_id, state in self.replayed.items()}
        assert replayed == {job_id: queued.get(state, state) for job_id, state in states.items()}

    @rule()
    def drain(self) -> None:
        """Once faults stop, everything is worked off."""
        for worker in self.workers.values():
            worker.alive = False
        self.broker.wait(31.0)
        self.collect()  # messages to dead workers were sent before the new ones
        self.generation += 1
        identity = f"last.{self.generation}".encode()
        worker = ModelWorker(f"last-{self.generation}", identity)
        messages = self.broker.worker(identity, worker.session)
        for _ in range(10 * len(self.confirmed) + 10):
            self.note(worker, messages)
            if not worker.held:
                break
            _, chunk = worker.held.popitem()
            rows = [row(i, run_time=1e-6) for i in sorted(chunk.open)]
            messages = self.broker.answer(identity, chunk.message, rows)
        states = self.broker.call("state", ids=sorted(self.confirmed)) if self.confirmed else []
        ended = {"succeeded", "failed", "cancelled", "expired"}
        assert [state for _, state in states if state not in ended] == []
        self.broker.tell(identity, Kbai("bye"))


TestBrokerMachine = pytest.mark.timeout(170)(BrokerMachine.TestCase)
