"""A fake broker that answers frames as in the protocol, alone or behind a real ROUTER."""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import zmq

from eventmq.client.client import ClientRunner, Transport
from eventmq.client.machine import ClientMachine
from eventmq.headers import parse_headers
from eventmq.wire.batches import decode_batch, encode_exceptions, pack, unpack
from eventmq.wire.commands import (
    Ack,
    Call,
    Command,
    Error,
    Heartbeat,
    Inform,
    Kbai,
    Publish,
    Reply,
    Request,
    decode,
)
from eventmq.wire.features import Features
from eventmq.wire.owner import STANDBY, OwnerInfo, no_owner
from eventmq.wire.results import ENDED, ERROR_TYPE, NO_REPLY, RemoteError, encode_error
from eventmq.wire.sockets import NoConnection, new_context, open_router

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from eventmq.client.requests import PendingRequest

T = TypeVar("T")

#: Timeout of every wait in these tests, in seconds.
DEADLINE = 20.0

Sent = list[tuple[bytes, list[bytes]]]


@dataclass
class FakeBroker:
    """Stores jobs in a dict and answers; a dead one receives and a silent one sends nothing."""

    store: str = "s1"
    epoch: int = 1
    max_frame: int = 1024 * 1024
    features: bool = True
    silent: bool = False
    refuse: dict[str, tuple[str, str]] = field(default_factory=dict)
    results: dict[str, tuple[str, str, bytes | None]] = field(default_factory=dict)
    jobs: dict[str, Request] = field(default_factory=dict)
    received: list[Command] = field(default_factory=list)
    peers: set[bytes] = field(default_factory=set)
    waits: dict[tuple[bytes, str], set[str]] = field(default_factory=dict)
    topics: dict[tuple[bytes, str], list[str]] = field(default_factory=dict)
    hold: set[str] = field(default_factory=set)
    calls: dict[str, object] = field(default_factory=dict)
    #: Whether REPLYs to reply-requested are sent; job id -> peer that waits for one.
    replies: bool = True
    owed: dict[str, bytes] = field(default_factory=dict)
    #: Jobs whose receipt was not sent yet: their REPLY may replace it.
    unconfirmed: dict[str, bytes] = field(default_factory=dict)
    #: Its information about the owner of a shared store; a standby answers only for itself.
    owner: OwnerInfo | None = None

    def own(self, info: OwnerInfo) -> Sent:
        """Change the information about the owner, and send it to all peers in a HEARTBEAT."""
        self.owner = info
        frames = Heartbeat("b", "0.0", info.format()).frames()
        return [(peer, frames) for peer in self.peers]

    def restart(self) -> None:
        """Forget everything that is not on disk."""
        self.epoch += 1
        self.peers.clear()
        self.waits.clear()
        self.topics.clear()
        self.owed.clear()
        self.unconfirmed.clear()

    def receive(self, peer: bytes, frames: Sequence[bytes]) -> Sent:
        """Handle a message and return the answers."""
        message = decode(frames)
        self.received.append(message)
        if self.silent:
            return []
        if isinstance(message, Inform):
            self.peers.add(peer)
            return [(peer, Ack("b", message.id, self._features()).frames())]
        if peer not in self.peers:
            return [(peer, Error("b", message.id, "inform-again", "send INFORM first").frames())]
        if self.owner is not None and self.owner.role == STANDBY and _needs_owner(message):
            return [(peer, no_owner("b", message.id, self.owner).frames())]
        match message:
            case Request():
                return self._request(peer, message)
            case Call():
                return self._call(peer, message)
            case Publish():
                return self._publish(message)
        return []

    def _features(self) -> bytes | None:
        features = Features(
            store=self.store, epoch=self.epoch, max_frame=self.max_frame, owner=self.owner
        )
        return features.format().encode() if self.features else None

    def _request(self, peer: bytes, message: Request) -> Sent:
        if message.id in self.hold:
            return []
        count = parse_headers(message.headers).batch
        if message.id in self.refuse:
            return [(peer, Error("b", message.id, *self.refuse[message.id]).frames())]
        if not count:
            self.jobs[message.id] = message
            headers = parse_headers(message.headers)
            if not headers.reply_requested and not headers.late_ack:
                return [(peer, Ack("b", message.id).frames())]
            if not self.replies:
                return [(peer, Ack("b", message.id, NO_REPLY).frames())]
            self.owed[message.id] = peer
            if headers.late_ack:
                self.unconfirmed[message.id] = peer
                return self.flush()
            return [(peer, Ack("b", message.id).frames()), *self.flush()]
        templates, jobs = decode_batch(message.body, count)
        refused = {}
        for index, (job_id, template, body) in enumerate(jobs):
            if job_id in self.refuse:
                refused[index] = self.refuse[job_id]
            else:
                self.jobs[job_id] = Request(job_id, *templates[template], body)
        extra = encode_exceptions(refused) if refused else None
        return [(peer, Ack("b", message.id, extra).frames())]

    def _call(self, peer: bytes, message: Call) -> Sent:
        arguments = unpack(message.arguments, "arguments")
        match message.name:
            case "get":
                self.waits[peer, message.id] = set(arguments["ids"])
                return self.flush()
            case "forget":
                self.waits.pop((peer, arguments["call"]), None)
                self.topics.pop((peer, arguments["call"]), None)
                return [(peer, Reply("b", pack(None), message.id).frames())]
            case "state":
                rows = [[i, self._state(i)] for i in arguments["ids"]]
                return [(peer, Reply("b", pack(rows), message.id).frames())]
            case "cancel":
                rows = [[i, *self._cancel(i, arguments["reason"])] for i in arguments["ids"]]
                return [(peer, Reply("b", pack(rows), message.id).frames()), *self.flush()]
            case "info" if self._state(arguments["id"]):
                info = {"id": arguments["id"], "state": self._state(arguments["id"])}
                return [(peer, Reply("b", pack(info), message.id).frames())]
            case "info":
                return [(peer, Error("b", message.id, "job-not-found", "no such job").frames())]
            case "subscribe":
                self.topics[peer, message.id] = arguments["topics"]
                return [(peer, Reply("b", pack(None), message.id, "part").frames())]
            case name if name in self.calls:
                return [(peer, Reply("b", pack(self.calls[name]), message.id).frames())]
            case "ping":
                return [(peer, Reply("b", pack({"epoch": self.epoch}), message.id).frames())]
        return [(peer, Error("b", message.id, "unknown-call", "no such call").frames())]

    def _state(self, job_id: str) -> str:
        if job_id in self.results:
            return self.results[job_id][0]
        return "queued" if job_id in self.jobs else ""

    def _cancel(self, job_id: str, reason: str) -> tuple[str, str]:
        state = self._state(job_id)
        if state == "queued":
            error = encode_error(RemoteError("eventmq.errors.JobCancelled", reason))
            self.finish(job_id, "cancelled", ERROR_TYPE, error)
        return self._state(job_id), state

    def finish(
        self, job_id: str, state: str, kind: str = "msgpack", data: bytes | None = b""
    ) -> None:
        """Record the end of a job; `flush` answers waiting peers."""
        self.results[job_id] = (state, kind, data)

    def flush(self) -> Sent:
        """Return the answers for waiting peers."""
        ended = [job_id for job_id in self.owed if job_id in self.results]
        for job_id in ended:
            self.unconfirmed.pop(job_id, None)
        sent: Sent = [
            (self.owed.pop(i), Reply("b", pack([i, *self.results[i]]), i, ENDED).frames())
            for i in ended
        ]
        for (peer, call), waiting in list(self.waits.items()):
            ended_ids = [i for i in waiting if i in self.results]
            unknown = [i for i in waiting if i not in self.results and i not in self.jobs]
            rows = [[i, *self.results[i]] for i in ended_ids] + [[i, "", "", None] for i in unknown]
            waiting.difference_update(ended_ids, unknown)
            if not waiting:
                del self.waits[peer, call]
            if rows:
                outcome = "part" if waiting else None
                sent.append((peer, Reply("b", pack(rows), call, outcome).frames()))
        return sent

    def _publish(self, message: Publish) -> Sent:
        part = pack([message.topic, message.headers or "", message.body])
        return [
            (peer, Reply("b", part, call, "part").frames())
            for (peer, call), topics in self.topics.items()
            if any(message.topic.startswith(topic) for topic in topics)
        ]

    def confirm(self) -> Sent:
        """Return the receipts that were not sent yet, as after a second."""
        unconfirmed, self.unconfirmed = self.unconfirmed, {}
        return [(peer, Ack("b", job_id).frames()) for job_id, peer in unconfirmed.items()]

    def kinds(self) -> list[str]:
        """Return the names of the received commands."""
        return [type(message).__name__ for message in self.received]


def _needs_owner(message: Command) -> bool:
    about_itself = isinstance(message, Call) and message.name in {"ping", "status"}
    return isinstance(message, Request | Call) and not about_itself


class Net:
    """A `ClientMachine` and its brokers on a network without latency; `advance` moves ``now``."""

    def __init__(self, *brokers: FakeBroker, **options: Any) -> None:
        self.brokers = list(brokers)
        self.now = 1000.0
        #: Called at every step of time.
        self.on_step: Callable[[], None] = lambda: None
        names = [f"broker{n}" for n in range(len(brokers))]
        self.machine = ClientMachine(names, session="session", **options)
        self.cut: set[int] = set()
        self.peer = [0] * len(brokers)
        self.notified: list[PendingRequest] = []
        for index in range(len(brokers)):
            self.machine.opened(index, self.now)
        self.run()

    def identity(self, index: int) -> bytes:
        return f"{index}.{self.peer[index]}".encode()

    def run(self) -> None:
        """Exchange messages until no message is left."""
        while self._flush():
            continue
        for request in self.machine.to_notify:
            self.notified.append(request)
            request.notify()
        self.machine.to_notify.clear()

    def _flush(self) -> bool:
        received = False
        for index, broker in enumerate(self.brokers):
            answers: deque[tuple[bytes, list[bytes]]] = deque()

            def send(frames: Sequence[bytes], index: int = index, to: Any = answers) -> bool:
                if index in self.cut:
                    return False
                to.extend(self.brokers[index].receive(self.identity(index), list(frames)))
                return True

            before = len(broker.received)
            self.machine.flush(index, send, self.now)
            received = received or len(broker.received) > before
            self.deliver(index, list(answers))
        return received

    def deliver(self, index: int, sent: Sent) -> None:
        """Deliver a broker's messages to the machine, if they are for this connection."""
        for peer, frames in sent:
            if peer == self.identity(index):
                self.machine.received(index, frames, self.now)

    def begin(self, request: PendingRequest) -> None:
        self.machine.begin(request, self.now)
        self.run()

    def advance(self, seconds: float) -> None:
        """Let time pass, in small steps."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.5)
            self.on_step()
            for index, broker in enumerate(self.brokers):
                self.deliver(index, broker.flush())
            self.machine.tick(self.now, self.now)
            self.run()

    def lose(self, index: int) -> None:
        """Cut the connection to a broker."""
        self.cut.add(index)
        self.machine.lost(index, self.now)
        self.run()

    def answer(self, *brokers: FakeBroker) -> None:
        """Open the sockets that the machine requests; the brokers are at new addresses."""
        self.brokers += brokers
        self.peer += [0] * len(brokers)
        while self.machine.reopen:
            index = self.machine.reopen.pop()
            self.peer[index] += 1
            self.machine.opened(index, self.now)
        self.run()

    def send_owner(self, index: int, info: OwnerInfo) -> None:
        """Change a broker's information about the owner of its store."""
        self.deliver(index, self.brokers[index].own(info))
        self.run()

    def restore(self, index: int) -> None:
        """Connect again, and then by a new socket, as the runner does."""
        self.cut.discard(index)
        self.peer[index] += 1
        self.machine.restored(index, self.now)
        if index in self.machine.reopen:
            self.machine.reopen.remove(index)
            self.peer[index] += 1
            self.machine.opened(index, self.now)
        self.run()


class NetClock:
    """The time of a `Net`."""

    def __init__(self, net: Net) -> None:
        self.net = net

    def now(self) -> float:
        return self.net.now

    def monotonic(self) -> float:
        return self.net.now

    def boottime(self) -> float:
        return self.monotonic()

    def boot_id(self) -> str:
        return "boot"


class NetWaiter:
    """Waiting lets the time of the net pass until something happens."""

    def __init__(self, net: Net) -> None:
        self.net = net
        self.notified = False

    def notify(self) -> None:
        self.notified = True

    def wait(self, timeout: float | None) -> bool:
        end = self.net.now + (1000.0 if timeout is None else timeout)
        while not self.notified and self.net.now < end:
            self.net.advance(0.5)
        notified, self.notified = self.notified, False
        return notified


class AsyncNetWaiter(NetWaiter):
    async def wait(self, timeout: float | None = None) -> None:  # type: ignore[override]
        assert super().wait(timeout)


class NetLoop:
    """Replaces the I/O thread: everything runs in the thread of the caller."""

    ended = False

    def __init__(self, net: Net) -> None:
        self.net = net
        self.machine = net.machine

    def begin(self, request: PendingRequest) -> None:
        self.net.begin(request)

    def drive_until_done(self, request: PendingRequest) -> bool:
        return False

    def forget(self, call: Any) -> None:
        self.machine.forget(call)
        self.net.run()

    def credit(self, call: Any) -> None:
        self.machine.credit(call)
        self.net.run()

    def stop(self, timeout: float) -> None:
        self.machine.abandon("closed")
        self.net.run()


class NetRunner(ClientRunner):
    """A `ClientRunner` on a `Net`."""

    def __init__(self, net: Net) -> None:
        super().__init__(lambda: Transport([]), clock=NetClock(net))
        self.net = net
        self._loop = NetLoop(net)  # type: ignore[assignment]

    def waiter(self) -> Any:
        return NetWaiter(self.net)

    def async_waiter(self) -> Any:
        return AsyncNetWaiter(self.net)


async def awaited(pending: Awaitable[T]) -> T:
    """Await an operation and return its result, for ``asyncio.run``."""
    return await pending


class RouterBroker:
    """A `FakeBroker` in a thread behind a real ROUTER; ``stop`` closes the socket."""

    def __init__(
        self, broker: FakeBroker | None = None, address: str = "tcp://127.0.0.1:0"
    ) -> None:
        self.broker = broker or FakeBroker()
        self.lock = threading.Lock()
        self._context = new_context()
        self._router = open_router(self._context)
        self.address = self._router.bind(address)
        self._read, self._write = os.pipe()
        self._todo: deque[Callable[[], Sent]] = deque()
        self._changed = threading.Condition(self.lock)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._router.socket, zmq.POLLIN)
        poller.register(self._read, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._read in ready and os.read(self._read, 1) == b"x":
                break
            with self._changed:
                sent: Sent = []
                while self._todo:
                    sent += self._todo.popleft()()
                while (message := self._router.receive()) is not None:
                    sent += self.broker.receive(message[0], message[1:])
                for peer, frames in sent:
                    with suppress(NoConnection):  # it has a new socket meanwhile
                        self._router.send([peer, *frames])
                self._changed.notify_all()
        self._router.close(0)
        self._context.term()

    def do(self, action: Callable[[], Sent]) -> None:
        """Run an action in the broker's thread and send the messages that it returns."""
        self._todo.append(action)
        os.write(self._write, b"!")

    def finish(self, job_id: str, state: str, kind: str, data: bytes | None) -> None:
        """End a job and answer the waiting peers."""

        def action() -> Sent:
            self.broker.finish(job_id, state, kind, data)
            return self.broker.flush()

        self.do(action)

    def send_kbai(self) -> None:
        """Send KBAI to all peers."""
        self.do(lambda: [(peer, Kbai("b").frames()) for peer in self.broker.peers])

    def wait_for(self, condition: Callable[[FakeBroker], Any]) -> None:
        """Wait until a condition is true; it is checked after every message."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self.broker), DEADLINE)

    def stop(self) -> None:
        os.write(self._write, b"x")
        self._thread.join(DEADLINE)
        os.close(self._read)
        os.close(self._write)


HEARTBEAT = Heartbeat("b", "0.0").frames()
