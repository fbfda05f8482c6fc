"""Many clients in one process, for `benchmarks.scaling`: each has one job without a receipt.

A ROUTER may connect to one address many times, and the broker sees each connection as a client, so
a thousand clients need one socket.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import zmq

from eventmq.clock import SystemClock
from eventmq.job import IdFactory
from eventmq.wire.commands import Heartbeat, Inform, Request
from eventmq.wire.sockets import Link, new_context

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Crowd"]

_HEADERS = "task:benchmarks.bench_app.nothing,content-type:msgpack,ack-requested"
_BODY = b"\x92\x90\x80"


class Crowd:
    """A number of clients of a broker; a context manager."""

    def __init__(self, address: str, count: int) -> None:
        self._new_id = IdFactory(SystemClock()).new
        self._context = new_context()
        router = self._context.socket(zmq.ROUTER)
        router.set(zmq.ROUTER_MANDATORY, 1)
        self._link = Link(router)
        self._names = [b"c%d" % number for number in range(count)]
        self._turns = itertools.cycle(self._names)
        for name in self._names:
            router.set(zmq.CONNECT_ROUTING_ID, name)
            router.connect(address)
            self._link.send([name, *Inform(self._new_id(), "[]", "client").frames()])
        for _ in self._names:
            assert self._next()[3] == b"ACK"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close(0)
        self._context.term()

    def submit(self, seconds: float) -> tuple[float, list[float]]:
        """Submit for a number of seconds, each client again when it has its receipt.

        Returns:
            Receipts per second, and the seconds that each job waited for its own.
        """
        sent: dict[bytes, float] = {}
        for name in self._names:
            self._submit(name, sent)
        waits = []
        begin = time.perf_counter()
        for _ in itertools.count():
            frames = self._next()
            now = time.perf_counter()
            assert frames[3] == b"ACK", frames
            waits.append(now - sent[frames[0]])
            if now - begin > seconds:
                break
            self._submit(frames[0], sent)
        rate = len(waits) / (now - begin)
        for _ in self._names[1:]:
            self._next()
        return rate, waits

    @property
    def size(self) -> int:
        """Number of clients."""
        return len(self._names)

    def live(self, count: int) -> int:
        """Send heartbeats of the next ``count`` clients, read replies; return the number sent."""
        for name in itertools.islice(self._turns, count):
            self._link.send([name, *Heartbeat(self._new_id(), f"{time.time():.3f}").frames()])
        while self._link.receive() is not None:
            pass
        return count

    def _submit(self, name: bytes, sent: dict[bytes, float]) -> None:
        sent[name] = time.perf_counter()
        job = Request(self._new_id(), "default", _HEADERS, _BODY)
        self._link.send([name, *job.frames()])

    def _next(self) -> list[bytes]:
        """Return the next message that is not a heartbeat."""
        while (frames := self._link.receive()) is None or frames[3] == b"HEARTBEAT":
            assert frames or self._link.socket.poll(30_000), "the broker does not answer"
        return frames
