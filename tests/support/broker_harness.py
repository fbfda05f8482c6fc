"""Broker harness: a broker core on a real store with a fake clock, driven by frames."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eventmq.broker.core import BrokerCore
from eventmq.broker.limits import Limits
from eventmq.events import rows_of
from eventmq.headers import parse_headers
from eventmq.plugins.queue_stores.sqlite.store import SqliteStore
from eventmq.store.reads import ReadEvents
from eventmq.wire.batches import (
    ChunkIndex,
    OutcomeRow,
    decode_chunk,
    encode_batch,
    encode_outcomes,
    pack,
    unpack,
)
from eventmq.wire.commands import Call, Command, Inform, Ready, Reply, Request, decode
from eventmq.wire.features import Features, Status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from eventmq.interfaces import WorkerView
    from eventmq.store.reads import EventRow

TASK = "task:shop.add,content-type:msgpack"

#: Folder of tests that make hundreds of stores: in memory, if the system has such a folder.
SWIFT = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class FakeClock:
    """Time that stands still until a test moves it."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.time = now
        #: Seconds by which the wall clock is wrong.
        self.wrong = 0.0

    def now(self) -> float:
        return self.time + self.wrong

    def monotonic(self) -> float:
        return self.time

    def boottime(self) -> float:
        return self.monotonic()

    def boot_id(self) -> str:
        return "boot"


class FirstQueue:
    """Queue order: the first queue that the worker named."""

    def choose(self, queues: Sequence[tuple[int, str]]) -> str:
        return queues[0][1]

    def charge(self, queue: str, weight: int, jobs: int) -> None:
        pass


class FirstWorker:
    """Routing: the worker that informed first."""

    by_key = False

    def choose(self, queue: str, workers: Sequence[WorkerView], n: int) -> Sequence[str]:
        return [worker.session for worker in workers][:n]


@dataclass
class Broker:
    """One broker over its restarts.

    Messages that it sent are in ``sent`` by routing id; ``dispatched`` has all chunks in order.
    """

    path: Path | None
    limits: Limits = field(default_factory=Limits)
    clock: FakeClock = field(default_factory=FakeClock)
    sent: dict[bytes, list[Command]] = field(default_factory=dict)
    unreachable: set[bytes] = field(default_factory=set)
    #: Maximum bytes of arguments and results in a row of events, as with a redactor.
    values: int = 0
    dispatched: list[Request] = field(default_factory=list)
    _ids: int = 0

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Open the store and recover, as after a restart."""
        self.store: Any = self.make_store()
        self.core = BrokerCore(self.limits, FirstWorker(), FirstQueue, version="test")
        recovered = self.store.open()
        self.keeper, self._jumped = recovered.keeper, 0.0
        self.core.recover(recovered, self.now())
        self.sent = {}

    def make_store(self) -> Any:
        """Return a store that is not open."""
        return SqliteStore(
            self.path, self.clock, durability="memory", reserve=0, events_values=self.values
        )

    def crash(self) -> None:
        """Crash and restart: all connections are new."""
        self.store.close()
        self.start()

    def close(self) -> None:
        self.store.close()

    def now(self) -> float:
        """Read the clocks, and return store time."""
        now = self.keeper.advance(self.clock.now(), self.clock.boottime())
        self.jump()
        return now

    def jump(self) -> None:
        """Adjust the deadlines if store time has jumped."""
        seconds, self._jumped = self.keeper.jumped - self._jumped, self.keeper.jumped
        if seconds:
            self.core.jump(seconds)

    # Driving

    def put(self, identity: bytes, message: Any, port: str = "main") -> None:
        """Receive a message without ending the tick."""
        self.core.receive(port, [identity, *message.frames()], self.now())

    def tick(self) -> None:
        """Run ticks and commits until no work is left, and collect the sent messages."""
        for _ in range(100):
            self.core.decide(self.now())
            if self.core.has_writes:
                entries, settle_batch = self.core.take_batch()
                self.store.submit(entries)
                self.jump()
                for write_results in self.store.finished():
                    settle_batch(write_results)
                self.core.decide(self.now())
            for message in self.core.take_deferred_sends():
                if message.key.identity in self.unreachable:
                    self.core.not_sent(message, self.now(), reachable=False)
                else:
                    decoded = decode(message.frames)
                    if isinstance(decoded, Request):
                        self.dispatched.append(decoded)
                    self.sent.setdefault(message.key.identity, []).append(decoded)
            if not self.core.has_writes:
                return
        raise AssertionError("the broker always has more work")

    def tell(self, identity: bytes, message: Any, port: str = "main") -> list[Command]:
        """Receive a message, end the tick, and return the messages to this peer."""
        self.sent.pop(identity, None)
        self.put(identity, message, port)
        self.tick()
        return self.took(identity)

    def took(self, identity: bytes) -> list[Command]:
        """Return and clear the messages to a peer."""
        return self.sent.pop(identity, [])

    def wait(self, seconds: float) -> None:
        """Let time pass in small steps, with ticks of the broker."""
        end = self.clock.time + seconds
        while self.clock.time < end:
            self.clock.time = min(end, self.clock.time + 0.25)
            self.tick()

    def events(self, after: int = 0) -> list[Mapping[str, Any]]:
        """Return the stored events after a number."""
        rows = self.event_rows(after)
        events = [row for first, _, body in rows for row in rows_of("b", first, body)]
        return [row for row in events if row["seq"] > after]

    def event_rows(self, after: int = 0) -> list[EventRow]:
        """Return the stored rows of events after a number."""
        self.store.submit([ReadEvents(after, 1 << 30)])
        [[(rows, _)]] = self.store.finished()
        return list(rows)

    def new_id(self) -> str:
        self._ids += 1
        tick = int(self.clock.now() * 1000)
        return f"{tick:012x}7{self._ids & 0xFFF:03x}{0x8000000000000000 + self._ids:016x}"

    # Messages of peers

    def submit(
        self, job_id: str = "", queue: str = "default", headers: str = "", body: bytes = b"x",
        client: bytes = b"client",
    ) -> tuple[str, list[Command]]:  # fmt: skip
        """Submit one job with ack-requested; return its id and the answers."""
        job_id = job_id or self.new_id()
        text = ",".join(filter(None, [TASK, "ack-requested", headers]))
        return job_id, self.tell(client, Request(job_id, queue, text, body))

    def submit_batch(self, ids: Sequence[str], client: bytes = b"client") -> list[Command]:
        """Submit a batch of jobs for the default queue."""
        body = encode_batch([("default", TASK)], [(i, 0, i.encode()) for i in ids])
        return self.tell(client, Request(self.new_id(), "", f"batch:{len(ids)}", body))

    def worker(
        self, identity: bytes = b"worker", session: str = "w", *, window: int = 1,
        tasks: tuple[str, ...] = (), queues: str = '[[10, "default"]]', received: int = 0,
        held: tuple[int, ...] = (), callables: tuple[str, ...] = (),
    ) -> list[Command]:  # fmt: skip
        """Send INFORM and READY as a worker of EventMQ."""
        features = Features(
            session=session, name=session, tasks=tasks, received=received, held=held,
            callables=callables,
        )  # fmt: skip
        first = self.tell(identity, Inform(self.new_id(), queues, "worker", features.format()))
        return first + self.ready(identity, window, received, held)

    def ready(
        self,
        identity: bytes,
        window: int,
        received: int = 0,
        held: tuple[int, ...] = (),
        jobs: int = 0,
    ) -> list[Command]:
        """Send READY with a status."""
        status = Status(received, window, held, jobs).format()
        return self.tell(identity, Ready(self.new_id(), status))

    def answer(self, identity: bytes, chunk: Request, rows: Sequence[OutcomeRow]) -> list[Command]:
        """Reply to a chunk."""
        body = encode_outcomes(rows)
        return self.tell(
            identity,
            Reply(self.new_id(), body, chunk.id, f"chunk:{parse_headers(chunk.headers).chunk}"),
        )

    def call(self, name: str, /, client: bytes = b"client", **arguments: Any) -> Any:
        """Make a call and return its decoded first result, or the ERROR."""
        messages = self.tell(client, Call(self.new_id(), name, pack(arguments)))
        for message in messages:
            if isinstance(message, Reply):
                return unpack(message.result, "result")
        return messages[-1] if messages else None


def chunks(messages: Sequence[Command]) -> list[tuple[Request, ChunkIndex]]:
    """Return the chunks among messages with their decoded indexes."""
    return [(m, decode_chunk(m.body)) for m in messages if isinstance(m, Request)]


def row(position: int = 0, kind: int = 0, result: bytes = b"\xc0", **more: Any) -> OutcomeRow:
    """Return an outcome row, by default a success."""
    fields = {"started": 1.0, "run_time": 0.001, "content_type": "msgpack", "countdown": 0.0}
    fields.update(more)
    return OutcomeRow(
        position, kind, fields["started"], fields["run_time"], fields["content_type"], result,
        fields["countdown"],
    )  # fmt: skip
