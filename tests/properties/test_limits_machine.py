"""Limits of tasks, keys and queues, and jobs without guarantee, in any order of things."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from eventmq.broker.limits import Limits
from eventmq.headers import parse_headers
from eventmq.job import OutcomeKind
from eventmq.wire.batches import encode_batch
from eventmq.wire.commands import Ack, Kbai, Request
from tests.support.broker_harness import SWIFT, Broker, chunks, row
from tests.support.examples import examples

ENDED = {"succeeded", "failed", "cancelled", "expired"}

#: Outcomes of workers; no job of a handed-back chunk had started.
ANSWERS = [
    OutcomeKind.SUCCEEDED,
    OutcomeKind.SUCCEEDED,
    OutcomeKind.FAILED,
    OutcomeKind.RETRY,
    OutcomeKind.HANDED_BACK,
    OutcomeKind.DIED,
]

#: Seconds in which a bucket of any rate here is filled.
PERIOD = 10.0


class Bound(NamedTuple):
    """So many per `PERIOD`, and so many at a time; 0 for any number."""

    rate: int = 0
    most: int = 0

    @property
    def headers(self) -> str:
        """The same as headers of a job."""
        rate = f",limit-rate:{self.rate}/10s" if self.rate else ""
        return rate + (f",limit-running:{self.most}" if self.most else "")


#: Kind of job -> its limits; those of a key end with it, and "v" has no guarantee.
KINDS = {
    "a": Bound(most=2),
    "b": Bound(rate=3),
    "k1": Bound(rate=4, most=1),
    "k2": Bound(rate=4, most=1),
    "f1": Bound(),
    "f2": Bound(),
    "c": Bound(),
    "v": Bound(),
}

#: Of the queue ``default``; ``other`` has none.
QUEUE = Bound(rate=8, most=3)


def headers_of(kind: str) -> str:
    """Return the headers of a job of a kind."""
    text = f"task:t.{kind[0]},content-type:msgpack"
    if kind == "v":
        return f"{text},guarantee:False"
    return text + (f",limit-key:{kind[1:]}" if kind[1:] else "") + KINDS[kind].headers


@dataclass
class Bucket:
    """The model of a rate: it is never below nothing."""

    bound: Bound
    tokens: float = 0.0
    at: float = 0.0

    def move(self, by: int, now: float) -> None:
        """Take a token, or give one back."""
        cap = self.bound.rate
        if cap:
            if now > self.at:
                self.tokens = min(cap, self.tokens + (now - self.at) * cap / PERIOD)
                self.at = now
            self.tokens += by  # back above the cap where the next one starts in the same turn
            assert self.tokens > -1e-3, "a job started that had no token"


@dataclass
class Model:
    """A worker: its received and held chunks; it outlives its connection and the broker."""

    session: str
    identity: bytes = b""
    received: int = 0
    held: dict[int, tuple[Request, list[str], set[int]]] = field(default_factory=dict)


class LimitsMachine(RuleBasedStateMachine):
    """Clients, two workers, time, operators and crashes."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory(dir=SWIFT)
        limits = Limits(
            queue_window=4,
            chunk_jobs=3,
            heartbeat_interval=1.0,
            heartbeat_timeout=4.0,
            queue_limits=(("default", f"{QUEUE.rate}/10s", QUEUE.most),),
        )
        self.broker = Broker(Path(self.folder.name), limits)
        self.kinds: dict[str, tuple[str, str]] = {}  # id -> queue and kind
        self.ended: dict[str, str] = {}
        self.order: list[str] = []
        self.first_seen: dict[tuple[str, str], list[str]] = {}
        self.started: set[str] = set()  # of those without guarantee
        self.buckets = {kind: Bucket(bound, bound.rate) for kind, bound in KINDS.items()}
        self.buckets["default"] = Bucket(QUEUE, QUEUE.rate)
        self.workers: dict[str, Model] = {}
        self.sent: set[str] = set()
        self.made = 0
        for name in ("w0", "w1"):
            self.connect(name)

    def teardown(self) -> None:
        self.everything_ends()
        self.broker.close()
        self.folder.cleanup()

    def new(self, name: str) -> str:
        self.made += 1
        return f"{name}-{self.made}"

    # Clients and operators

    @rule(
        kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=5),
        queue=st.sampled_from(["default", "default", "other"]),
    )
    def submit(self, kinds: list[str], queue: str) -> None:
        used = sorted(set(kinds))
        ids = [self.broker.new_id() for _ in kinds]
        rows = [(i, used.index(kind), b"x") for i, kind in zip(ids, kinds, strict=True)]
        body = encode_batch([(queue, headers_of(kind)) for kind in used], rows)
        self.kinds.update({i: (queue, kind) for i, kind in zip(ids, kinds, strict=True)})
        self.order += ids
        request = Request(self.broker.new_id(), "", f"batch:{len(ids)}", body)
        [ack] = self.broker.tell(b"client", request)
        assert isinstance(ack, Ack)
        assert ack.extra is None
        self.collect()

    @precondition(lambda self: self.kinds)
    @rule(data=st.data(), n=st.integers(1, 4))
    def cancel(self, data: st.DataObject, n: int) -> None:
        ids = st.lists(st.sampled_from(sorted(self.kinds)), min_size=1, max_size=n)
        self.broker.call("cancel", client=b"boss", ids=data.draw(ids))
        self.collect()

    @precondition(lambda self: self.kinds)
    @rule(queue=st.sampled_from(["default", "other"]), running=st.booleans())
    def purge(self, queue: str, running: bool) -> None:
        more = {"id": self.new("bulk"), "action": "cancel", "queue": queue, "running": running}
        self.broker.call("bulk", client=b"boss", **more)
        self.collect()

    # Workers

    @rule(name=st.sampled_from(["w0", "w1"]))
    def connect(self, name: str) -> None:
        """Start a worker, or let it inform again over a new connection."""
        worker = self.workers.setdefault(name, Model(self.new(name)))
        worker.identity = self.new(name).encode()
        more: Any = {"received": worker.received, "held": tuple(worker.held)}
        queues = '[[10, "default"], [10, "other"]]'
        self.broker.worker(worker.identity, worker.session, window=2, queues=queues, **more)
        self.collect()

    @precondition(lambda self: any(w.held for w in self.workers.values()))
    @rule(data=st.data(), kind=st.sampled_from(ANSWERS))
    def answer(self, data: st.DataObject, kind: OutcomeKind) -> None:
        """Answer a part of a chunk; an unknown worker sends INFORM first."""
        name = data.draw(st.sampled_from(sorted(n for n, w in self.workers.items() if w.held)))
        worker = self.workers[name]
        if worker.identity not in self.connected():
            self.connect(name)
        number = data.draw(st.sampled_from(sorted(worker.held)))
        positions = sorted(worker.held[number][2])
        self.answer_positions(
            worker, number, positions[: data.draw(st.integers(1, len(positions)))], kind
        )

    def answer_positions(
        self, worker: Model, number: int, positions: list[int], kind: OutcomeKind
    ) -> None:
        chunk, ids, missing = worker.held[number]
        if kind is OutcomeKind.HANDED_BACK:
            leased = self.leased()
            for job_id in [ids[position] for position in positions if ids[position] in leased]:
                self.started.discard(job_id)
                self.count(job_id, 1)
        missing -= set(positions)
        if not missing:
            del worker.held[number]
        rows = [row(position, kind, run_time=1e-6, countdown=1.0) for position in positions]
        messages = self.broker.answer(worker.identity, chunk, rows)
        assert any(isinstance(message, Ack) for message in messages)
        self.collect()
        self.ready(worker)

    def ready(self, worker: Model) -> None:
        self.broker.ready(worker.identity, 2, worker.received, tuple(worker.held))
        self.collect()

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), polite=st.booleans())
    def die(self, data: st.DataObject, polite: bool) -> None:
        worker = self.workers.pop(data.draw(st.sampled_from(sorted(self.workers))))
        if polite:
            self.broker.tell(worker.identity, Kbai("bye"))
        self.collect()

    # The world

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0, 6.0]))
    def wait(self, seconds: float) -> None:
        """All workers live on."""
        for step in range(int(seconds * 4)):
            self.broker.wait(0.25)  # one tick, so that tokens are counted when they are taken
            self.collect()
            if step % 4 == 0:
                for name, worker in self.workers.items():
                    if worker.identity in self.connected():
                        self.ready(worker)
                    else:
                        self.connect(name)

    @rule(registered=st.booleans())
    def crash(self, registered: bool) -> None:
        """Jobs without guarantee are lost; workers inform at once, or before their next message."""
        self.broker.crash()
        self.kinds = {i: kind for i, kind in self.kinds.items() if kind[1] != "v"}
        for name in list(self.workers) if registered else ():
            self.connect(name)
        self.collect()

    # Looking

    def connected(self) -> set[bytes]:
        return {key.identity for key, peer in self.broker.core.state.peers.items() if peer.session}

    def leased(self) -> set[str]:
        state = self.broker.core.state
        return set(state.running)

    def count(self, job_id: str, by: int) -> None:
        """Take the tokens of a job, or give them back."""
        queue, kind = self.kinds[job_id]
        self.buckets[kind].move(by, self.broker.clock.time)
        if queue == "default":
            self.buckets["default"].move(by, self.broker.clock.time)

    def collect(self) -> None:
        """Check the messages of the broker, and deliver them to the connected workers."""
        sessions = {worker.session: worker for worker in self.workers.values()}
        for chunk, index in chunks(self.broker.dispatched):
            ids = [entry.id for entry in index.entries]
            if chunk.id in self.sent:
                continue
            self.sent.add(chunk.id)
            for job_id in filter(None, ids):
                self.delivered(job_id)
            worker = sessions.get(chunk.id.rpartition(".")[0])
            if worker is not None:
                worker.received = parse_headers(chunk.headers).chunk
                missing = {position for position, job_id in enumerate(ids) if job_id}
                worker.held[worker.received] = (chunk, ids, missing)
        self.broker.dispatched.clear()

    def delivered(self, job_id: str) -> None:
        self.count(job_id, -1)
        assert job_id not in self.ended
        if self.kinds[job_id][1] == "v":
            assert job_id not in self.started, "a job without guarantee was handed out twice"
            self.started.add(job_id)
        seen = self.first_seen.setdefault(self.kinds[job_id], [])
        if job_id not in seen:
            seen.append(job_id)

    @invariant()
    def no_limit_of_concurrency_is_passed(self) -> None:
        """And the counts of limiters are those of the leased jobs."""
        leased = [self.kinds[job_id] for job_id in self.leased()]
        limiters = self.broker.core.state.limiters
        for kind, n in Counter(kind for _, kind in leased).items():
            assert n <= (KINDS[kind].most or n), kind
        default = sum(queue == "default" for queue, _ in leased)
        assert default <= QUEUE.most
        assert limiters.of_queues["default"].running == default
        counted = Counter(f"{kind[0]}:{kind[1:]}" for _, kind in leased)
        for (task, key, _), limiter in limiters.of.items():
            assert limiter.running == counted[f"{str(task)[2:]}:{key}"], task

    @invariant()
    def first_deliveries_of_a_subqueue_are_in_order(self) -> None:
        numbers = {job_id: number for number, job_id in enumerate(self.order)}
        for subqueue, seen in self.first_seen.items():
            order = [numbers[job_id] for job_id in seen]
            # Without guarantee one goes out at once, and one behind a commit to another worker.
            assert order == sorted(order) or subqueue[1] == "v", subqueue

    @invariant()
    def every_job_is_known_and_what_ended_stays_so(self) -> None:
        states = dict(self.broker.call("state", ids=sorted(self.kinds))) if self.kinds else {}
        assert "" not in states.values()
        for job_id, state in states.items():
            assert self.ended.get(job_id, state) == state
            if state in ENDED:
                self.ended[job_id] = state
        for queue in self.broker.call("queues"):
            counted = [s for i, s in states.items() if self.kinds[i][0] == queue["name"]]
            for name in ("queued", "running", "delayed"):
                assert queue["waiting" if name == "queued" else name] == counted.count(name), name

    @invariant()
    def memory_is_what_the_subqueues_have(self) -> None:
        for queue in self.broker.core.state.queues.values():
            subqueues = queue.subqueues.values()
            assert len(queue) == sum(map(len, subqueues))
            assert all(subqueue.first is not None for subqueue in subqueues)
            assert queue._keyed == sum(bool(subqueue.key.key) for subqueue in subqueues)
            assert queue._blocked <= set(subqueues)
            assert all(subqueue in subqueue.limiter.waiting for subqueue in queue._blocked)

    def everything_ends(self) -> None:
        """Once faults stop, no job waits for ever."""
        for _ in range(40 + 4 * len(self.kinds)):
            if not self.workers:
                self.connect("w0")
            while open_chunks := [(w, n) for w in self.workers.values() for n in w.held]:
                worker, number = open_chunks[0]
                if worker.identity not in self.connected():
                    name = next(n for n, w in self.workers.items() if w is worker)
                    self.connect(name)
                positions = sorted(worker.held[number][2])
                self.answer_positions(worker, number, positions, OutcomeKind.SUCCEEDED)
            self.every_job_is_known_and_what_ended_stays_so()
            if all(job_id in self.ended for job_id in self.kinds):
                break
            self.wait(3.0)
        assert [i for i in self.kinds if i not in self.ended] == []
        assert self.broker.core.state.limiters.counted == {}


TestLimitsMachine = pytest.mark.timeout(120)(LimitsMachine.TestCase)
TestLimitsMachine.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None
)
