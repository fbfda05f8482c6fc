"""The rows about gateways: a request through one against plain eMQP in the same pattern.

Peers are raw sockets written from the documents, in this process; foreign workers are programs of
their own (`benchmarks.foreign_worker`). Each connection has one request in flight.
"""

from __future__ import annotations

import json
import selectors
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import zmq

from benchmarks.system import running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.figures import Figures

__all__ = ["GOALS", "ROWS"]

#: Numbers of client connections and of foreign workers.
_CLIENTS, _WORKERS = 4, 2

#: Seconds of the measurement of a pattern, and number of turns.
_SECONDS, _TURNS = 5.0, 10

#: Subscribers of the fan-out, undelivered messages of the sender, and bytes of a body.
_SUBSCRIBERS, _AHEAD, _BODY = 10, 100, 100

_CALL = json.dumps(["run", {"callable": "nothing", "path": "benchmarks.bench_app"}]).encode()

_HELLO, _PONG = bytes.fromhex("000000080000000001000000"), bytes.fromhex("0000000403000000")

#: Type of a PING.
_PING = 2


class _Pattern:
    """Connections with one request in flight each, and their answers.

    Args:
        ask: Sends a request on the connection of a number.
        answered: Returns the numbers of the answered connections, within a second.
    """

    def __init__(self, ask: Callable[[int], None], answered: Callable[[], list[int]]) -> None:
        self._ask = ask
        self._answered = answered
        self._count, self._seconds = 0, 0.0

    def run(self, seconds: float) -> None:
        """Send requests for some seconds, after a tenth to warm up; then wait for open ones."""
        for number in range(_CLIENTS):
            self._ask(number)
        begin = time.perf_counter()
        start, count, waiting = begin + seconds / 10, 0, _CLIENTS
        while (now := time.perf_counter()) < start + seconds:
            for number in self._answered():
                count += now >= start
                self._ask(number)
        self._count += count
        self._seconds += now - start
        while waiting:
            waiting -= len(self._answered())

    @property
    def rate(self) -> float:
        """Answers per second."""
        return self._count / self._seconds


def _compare(figures: Figures, plain: _Pattern, other: _Pattern) -> None:
    """Let two patterns take turns, so that other load of the machine slows both."""
    for _ in range(_TURNS):
        plain.run(_SECONDS / _TURNS)
        other.run(_SECONDS / _TURNS)
    figures.add(per_second=other.rate, emqp_per_second=plain.rate, ratio=other.rate / plain.rate)


class _Dealers:
    """Connections over ZeroMQ."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        self.sockets = [context.socket(zmq.DEALER) for _ in range(_CLIENTS)]
        self._numbers = {dealer: number for number, dealer in enumerate(self.sockets)}
        self._poller = zmq.Poller()
        for dealer in self.sockets:
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.connect(address)
            self._poller.register(dealer, zmq.POLLIN)
        self.sent = 0

    def answered(self, command: int, word: bytes) -> list[int]:
        """Return the connections that received a message with a word in a frame."""
        numbers = []
        for dealer, _ in self._poller.poll(1000):
            frames = dealer.recv_multipart()
            if frames[command] == word:
                numbers.append(self._numbers[dealer])
        return numbers

    def close(self) -> None:
        for dealer in self.sockets:
            dealer.close(0)


@contextmanager
def _dealers(address: str) -> Iterator[_Dealers]:
    with zmq.Context() as context:
        dealers = _Dealers(context, address)
        try:
            yield dealers
        finally:
            dealers.close()


@contextmanager
def _emqp(address: str, body: bytes) -> Iterator[_Pattern]:
    """Requests with a REPLY, as a client of the published document makes them."""
    with _dealers(address) as dealers:

        def ask(number: int) -> None:
            dealers.sent += 1
            id = b"%d-%d" % (time.time_ns(), dealers.sent)
            frames = [b"", b"eMQP/1.0", b"REQUEST", id, b"default", b"reply-requested", body]
            dealers.sockets[number].send_multipart(frames)

        yield _Pattern(ask, lambda: dealers.answered(2, b"REPLY"))


@contextmanager
def _majordomo(address: str) -> Iterator[_Pattern]:
    with _dealers(address) as dealers:

        def ask(number: int) -> None:
            dealers.sent += 1
            frames = [b"MDPC02", b"\x01", b"service", b"%d" % dealers.sent, b"body"]
            dealers.sockets[number].send_multipart(frames)

        yield _Pattern(ask, lambda: dealers.answered(1, b"\x03"))


@contextmanager
def _emp(address: str) -> Iterator[_Pattern]:
    """Requests of EMP for a task."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    payload = json.dumps({"op": "benchmarks.bench_app.nothing"}).encode()
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        peers, replies, ids = [], [b""] * _CLIENTS, [0] * _CLIENTS
        for number in range(_CLIENTS):
            peer = stack.enter_context(socket.create_connection((host, int(port)), 10))
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.sendall(_HELLO)
            assert peer.recv(len(_HELLO), socket.MSG_WAITALL) == _HELLO
            selector.register(peer, selectors.EVENT_READ, number)
            peers.append(peer)

        def ask(number: int) -> None:
            ids[number] += 1
            body = b"\x05\0\0\0" + ids[number].to_bytes(8, "big") + payload
            peers[number].sendall(len(body).to_bytes(4, "big") + body)

        def answered() -> list[int]:
            numbers = []
            for key, _ in selector.select(1.0):
                replies[key.data] += peers[key.data].recv(65536)
                while len(data := replies[key.data]) >= (
                    size := 4 + int.from_bytes(data[:4], "big")
                ):
                    replies[key.data] = data[size:]
                    if data[4] == _PING:
                        peers[key.data].sendall(_PONG)
                        continue
                    assert b'"success"' in data, data
                    numbers.append(key.data)
            return numbers

        yield _Pattern(ask, answered)


@contextmanager
def _foreign(kind: str, address: str) -> Iterator[None]:
    """Foreign workers, one process each."""
    command = [sys.executable, "-m", "benchmarks.foreign_worker", kind, address]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(_WORKERS)]
    try:
        for worker in workers:
            assert worker.stdout is not None
            worker.stdout.readline()
        yield
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def majordomo(figures: Figures) -> None:
    """Requests of 4 clients, one each in flight, done by 2 foreign workers, against plain eMQP."""
    with running() as system, ExitStack() as stack:
        front, back = system.start_gateway("majordomo", 2)
        stack.enter_context(_foreign("emqp", system.address))
        stack.enter_context(_foreign("majordomo", back))
        plain = stack.enter_context(_emqp(system.address, b"body"))
        _compare(figures, plain, stack.enter_context(_majordomo(front)))


def emp(figures: Figures) -> None:
    """Requests on 4 connections, one each in flight, done by 2 children, against plain eMQP."""
    with running() as system, ExitStack() as stack:
        system.start_worker(2, "--allow-callables", "benchmarks.bench_app")
        (address,) = system.start_gateway("emp", 1)
        plain = stack.enter_context(_emqp(system.address, _CALL))
        _compare(figures, plain, stack.enter_context(_emp(address)))


def mc0(figures: Figures) -> None:
    """Messages of 100 bytes from one sender to 10 subscribers: deliveries per second."""
    with running() as system, zmq.Context() as context:
        (address,) = system.start_gateway("mc0", 1)
        sockets = [context.socket(zmq.DEALER) for _ in range(_SUBSCRIBERS + 1)]
        poller = zmq.Poller()
        for dealer in sockets:
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.connect(address)
        sender, *subscribers = sockets
        for subscriber in subscribers:
            subscriber.send_multipart([b"", b"SUB", b"ID", b"1", b"", b"topic"])
            assert subscriber.recv_multipart()[1] == b"OK"
            poller.register(subscriber, zmq.POLLIN)
        put = [b"", b"PUT", b"TOPIC", b"topic", b"", b"x" * _BODY]
        begin = time.perf_counter()
        sent = got = 0
        while time.perf_counter() - begin < _SECONDS:
            while sent * _SUBSCRIBERS - got < _AHEAD * _SUBSCRIBERS:
                sender.send_multipart(put)
                sent += 1
            for subscriber, _ in poller.poll(1000):
                for _ in range(_AHEAD):
                    if not subscriber.getsockopt(zmq.EVENTS) & zmq.POLLIN:
                        break
                    subscriber.recv_multipart()
                    got += 1
        figures.add(per_second=got / (time.perf_counter() - begin))
        for dealer in sockets:
            dealer.close(0)


#: Name -> function that runs the row once.
ROWS: dict[str, Callable[[Figures], None]] = {
    f"gateway_{row.__name__}": row for row in (majordomo, emp, mc0)
}

#: Name -> figure -> its goal on two cores.
GOALS: dict[str, dict[str, str]] = {
    "gateway_majordomo": {"ratio": ">= 0.5"},
    "gateway_emp": {"ratio": ">= 0.5"},
    "gateway_mc0": {"per_second": ">= 20,000"},
}
