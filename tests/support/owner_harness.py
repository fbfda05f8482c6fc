"""Brokers in threads on one shared store, and peers that send what a test requests."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import zmq

from eventmq.broker.limits import Limits
from eventmq.broker.runner import BrokerRunner
from eventmq.clock import SystemClock
from eventmq.plugins.routing import LeastRecentlyUsed, WeightedFair
from eventmq.wire.batches import pack, unpack
from eventmq.wire.commands import (
    Ack,
    Call,
    Command,
    Error,
    Heartbeat,
    Inform,
    Reply,
    Request,
    decode,
)
from eventmq.wire.features import Features, routing_id
from eventmq.wire.owner import OwnerInfo
from tests.support.raw_peer import RawPeer
from tests.support.shared_store import SharedDatabase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["DEADLINE", "LIMITS", "Brokers", "Peer", "is_again", "legacy"]

#: Seconds within which a broker must act.
DEADLINE = 20.0

#: Limits with frequent HEARTBEATs.
LIMITS = Limits(heartbeat_interval=0.2, lease_interval=0.2, heartbeat_timeout=10.0)


class Brokers:
    """Brokers in threads on one database, and their peers."""

    def __init__(self) -> None:
        self.database = SharedDatabase("s1")
        self.context: zmq.Context[Any] = zmq.Context()
        self._running: list[tuple[BrokerRunner, threading.Thread]] = []
        self._peers: list[Peer] = []
        self.raw: list[RawPeer] = []

    def make(
        self,
        bind: str = "tcp://127.0.0.1:0",
        binds: Mapping[str, str] | None = None,
        **options: Any,
    ) -> BrokerRunner:
        return BrokerRunner(
            store=self.database.store(), limits=LIMITS, routing=LeastRecentlyUsed(),
            queue_order=WeightedFair, binds=binds or {"main": bind}, clock=SystemClock(), **options,
        )  # fmt: skip

    def start(self, **options: Any) -> BrokerRunner:
        runner = self.make(**options)
        runner.bind()
        thread = threading.Thread(target=runner.run)
        thread.start()
        self._running.append((runner, thread))
        return runner

    def stop(self, runner: BrokerRunner) -> None:
        thread = next(thread for other, thread in self._running if other is runner)
        runner.stop()
        thread.join(DEADLINE)
        assert not thread.is_alive()

    def peer(
        self,
        runner: BrokerRunner,
        keys: tuple[bytes, bytes, bytes] | None = None,
        *,
        source: str = "",
    ) -> Peer:
        """Return a peer of a broker, which connects from the address ``source`` if it is given."""
        address = runner.addresses["main"].replace("0.0.0.0", "127.0.0.1")
        if source:
            address = address.replace("tcp://", f"tcp://{source}:0;")
        peer = Peer(self.context, address, len(self._peers), keys)
        self._peers.append(peer)
        return peer

    def close(self) -> None:
        for runner, _ in self._running:
            self.stop(runner)
        for peer in (*self._peers, *self.raw):
            peer.socket.close(0)
        self.context.term()


class Peer:
    """A client that sends what the test requests."""

    def __init__(
        self,
        context: zmq.Context[Any],
        address: str,
        number: int,
        keys: tuple[bytes, bytes, bytes] | None,
    ) -> None:
        self.socket = context.socket(zmq.DEALER)
        if keys is not None:
            socket = self.socket
            socket.curve_serverkey, socket.curve_publickey, socket.curve_secretkey = keys
        self.socket.identity = routing_id("client", f"test-{number}")
        self.socket.connect(address)
        self._ids = 0

    def new_id(self) -> str:
        self._ids += 1
        return f"{int(time.time() * 1000):012x}7000{0x8000000000000000 + self._ids:016x}"

    def tell(self, message: Any) -> str:
        self.socket.send_multipart(message.frames())
        return str(message.id)

    def inform(self) -> OwnerInfo:
        """Send INFORM, and return the owner in the ACK."""
        informed = self.tell(Inform(self.new_id(), "", "client", Features(session="c").format()))
        ack = self.until(lambda m: isinstance(m, Ack) and m.acked == informed)
        assert isinstance(ack, Ack)
        assert ack.extra is not None
        owner = Features.parse(ack.extra.decode()).owner
        assert owner is not None
        return owner

    def submit(self, job_id: str = "") -> str:
        headers = "task:t,content-type:msgpack,ack-requested"
        return self.tell(Request(job_id or self.new_id(), "default", headers, b"\x92\x90\x80"))

    def call(self, name: str, **arguments: Any) -> Any:
        call = self.tell(Call(self.new_id(), name, pack(arguments)))
        answer = self.until(lambda m: isinstance(m, Reply | Error) and m.request == call)
        return unpack(answer.result, "") if isinstance(answer, Reply) else answer

    def until(self, fits: Callable[[Command], bool]) -> Command:
        """Return the next message that fits; earlier ones are skipped."""
        end = time.monotonic() + DEADLINE
        while self.socket.poll(max(0.0, end - time.monotonic()) * 1000):
            message = decode(self.socket.recv_multipart())
            if fits(message):
                return message
        raise AssertionError("the expected message did not arrive")

    def until_owner(self, fits: Callable[[OwnerInfo], bool]) -> OwnerInfo:
        """Return the next fitting owner in a HEARTBEAT."""
        infos: list[OwnerInfo] = []

        def read(message: Command) -> bool:
            if isinstance(message, Heartbeat) and message.status is not None:
                owner = OwnerInfo.of_heartbeat(message.status)
                if owner is not None and fits(owner):
                    infos.append(owner)
            return bool(infos)

        self.until(read)
        return infos[0]

    def until_status(self, fits: Callable[[Any], bool]) -> None:
        """Request the status until it fits."""
        end = time.monotonic() + DEADLINE
        while not fits(self.call("status")):
            assert time.monotonic() < end
            self.socket.poll(20)

    def receipt(self, job_id: str) -> None:
        self.until(lambda m: isinstance(m, Ack) and m.acked == job_id)


def is_again(message: Command) -> bool:
    return isinstance(message, Error) and message.code == "inform-again"


def legacy(brokers: Brokers, runner: BrokerRunner, identity: bytes = b"") -> RawPeer:
    peer = RawPeer(brokers.context, runner.addresses["main"], identity)
    brokers.raw.append(peer)
    return peer
