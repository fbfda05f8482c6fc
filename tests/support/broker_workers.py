"""Workers for tests of the broker's core: they record chunks, and run jobs on request."""

from __future__ import annotations

from eventmq.headers import parse_headers
from eventmq.wire.batches import encode_batch
from eventmq.wire.commands import Ack, Command, Request
from tests.support.broker_harness import Broker, chunks, row


class Workers:
    """Workers that run their jobs on request, and count the jobs they were assigned."""

    def __init__(
        self, broker: Broker, *names: str, queues: str = '[[10, "default"]]', window: int = 2
    ) -> None:
        self.broker = broker
        self.names = names
        self.window = window
        self.open: list[tuple[bytes, Request]] = []
        self.got: list[str] = []
        self.received = dict.fromkeys(names, 0)
        for name in names:
            self.take(name, broker.worker(name.encode(), name, window=window, queues=queues))

    def take(self, name: str, messages: list[Command]) -> None:
        """Record the received chunks."""
        for chunk, index in chunks(messages):
            self.received[name] = number(chunk)
            self.open.append((name.encode(), chunk))
            self.got += [entry.id for entry in index.entries]

    def collect(self) -> None:
        """Record the chunks received meanwhile."""
        for name in self.names:
            self.take(name, self.broker.took(name.encode()))

    def finish(self, kind: int = 0) -> None:
        """Answer the oldest chunk."""
        name, chunk = self.open.pop(0)
        [(_, index)] = chunks([chunk])
        rows = [row(i, kind) for i in range(len(index.entries))]
        self.take(name.decode(), self.broker.answer(name, chunk, rows))
        self.collect()

    def wait(self, seconds: float) -> None:
        """Let time pass; all workers send heartbeats, and finish their chunks."""
        end = self.broker.clock.time + seconds
        while self.broker.clock.time < end - 1e-9:
            self.broker.wait(min(0.25, end - self.broker.clock.time))
            self.collect()
            for name in self.names:
                self.ready(name)
            while self.open:
                self.finish()

    def ready(self, name: str) -> None:
        """Send READY of a worker with its chunks."""
        held = tuple(number(chunk) for owner, chunk in self.open if owner == name.encode())
        self.take(name, self.broker.ready(name.encode(), self.window, self.received[name], held))

    @property
    def running(self) -> int:
        """Number of jobs that workers hold."""
        return sum(len(index.entries) for _, index in chunks([chunk for _, chunk in self.open]))


def number(chunk: Request) -> int:
    """Return the number of a chunk."""
    return parse_headers(chunk.headers).chunk


def submit(broker: Broker, count: int, headers: str, queue: str = "default") -> list[str]:
    """Submit jobs with the same headers."""
    ids = [broker.new_id() for _ in range(count)]
    body = encode_batch([(queue, headers)], [(i, 0, b"x") for i in ids])
    [ack] = broker.tell(b"client", Request(broker.new_id(), "", f"batch:{count}", body))
    assert isinstance(ack, Ack)
    assert ack.extra is None
    return ids
