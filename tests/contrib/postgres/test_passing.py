"""Three brokers as processes on one database: topics and waiting clients over a takeover."""

from __future__ import annotations

import itertools
import signal
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
import zmq

from eventmq import EventMQ
from eventmq.errors import JobCancelled
from tests.support.raw_peer import RawPeer
from tests.support.shell import DEADLINE, Program, Shell
from tests.support.system import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(120)


class Cluster:
    """Brokers with subscribe ports, SUB sockets with the messages they received, and publishers."""

    def __init__(self, folder: Path, url: str, stack: ExitStack) -> None:
        self.shell = Shell(folder)
        stack.callback(self.shell.close)
        self.context = stack.enter_context(zmq.Context())
        self.url, self._stack = url, stack
        self.brokers: dict[str, Program] = {}
        self.subscribers: dict[str, zmq.Socket[bytes]] = {}
        self.got: dict[str, list[bytes]] = {}
        self._numbers = itertools.count()
        for _ in range(3):
            self._start()

    def _start(self) -> None:
        broker = self.shell.start(
            "broker", "--store", self.url, "--bind", "tcp://127.0.0.1:0",
            "--subscribe-bind", "tcp://127.0.0.1:0",
        )  # fmt: skip
        ready = broker.ready()
        socket = self._stack.enter_context(self.context.socket(zmq.SUB))
        socket.linger = 0
        socket.subscribe(b"")
        socket.connect(ready["subscribe"])
        address = ready["main"]
        self.brokers[address], self.subscribers[address] = broker, socket
        self.got[address] = []

    def app(self, *addresses: str) -> EventMQ:
        return self._stack.enter_context(
            EventMQ("shop", broker=addresses or [*self.brokers], submit_timeout=DEADLINE)
        )

    def publish(self, address: str) -> bytes:
        """Publish at a broker through the documented protocol, and return the body."""
        body = b"%d" % next(self._numbers)
        peer = RawPeer(self.context, address, b"publisher-%s" % body)
        self._stack.callback(peer.close)
        peer.send(b"PUBLISH", b"t", body)
        return body

    def read(self) -> None:
        for address, socket in self.subscribers.items():
            while socket.poll(0):
                self.got[address].append(socket.recv_multipart()[1])

    def until_all_get(self, address: str) -> bytes:
        """Publish at a broker until each subscriber has a message, and return the last one."""
        sent = [self.publish(address)]

        def come() -> bool:
            self.read()
            if all(set(sent) & set(got) for got in self.got.values()):
                return True
            sent.append(self.publish(address))
            return False

        until(come, "all subscribers got it")
        return sent[-1]

    def kill(self, address: str) -> None:
        self.brokers[address].process.send_signal(signal.SIGKILL)
        self.brokers.pop(address).wait()
        self.subscribers.pop(address).close(0)
        self.got.pop(address)

    def owner(self) -> str:
        return str(self.app().ask("status")["owner"])

    def kill_owner(self) -> None:
        """Kill the owner, and wait until another broker owns the store."""
        owner = self.owner()
        self.kill(owner)
        until(lambda: self.owner() not in {"", owner}, "another broker owns the store")


@pytest.fixture
def cluster(tmp_path: Path, database_url: str) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tmp_path, database_url, stack)


def test_topics_go_on_at_all_brokers_after_a_takeover(cluster: Cluster) -> None:
    """Each subscriber gets each message once, whichever broker receives it."""
    for _ in range(2):
        for address in cluster.brokers:
            cluster.until_all_get(address)
        bodies = {cluster.publish(address) for address in cluster.brokers}

        def come(bodies: set[bytes] = bodies) -> bool:
            cluster.read()
            return all(bodies <= set(got) for got in cluster.got.values())

        until(come, "all subscribers got it")
        for got in cluster.got.values():
            assert len(got) == len(set(got))
        if len(cluster.brokers) == 3:
            cluster.kill_owner()


def test_a_client_that_waits_gets_its_result_after_a_takeover(cluster: Cluster) -> None:
    """The client knows only the address of a standby."""
    owner = cluster.owner()
    standby = next(address for address in cluster.brokers if address != owner)
    app = cluster.app(standby)
    job = app.send_raw("default", b"hello")
    results: list[Any] = []

    def wait() -> None:
        try:
            results.append(job.get(timeout=DEADLINE))
        except JobCancelled as error:
            results.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    cluster.kill_owner()
    other = cluster.app()
    assert other.job(job.id).cancel()
    thread.join(DEADLINE)
    assert not thread.is_alive()
    assert isinstance(results[0], JobCancelled)
