"""The row about topics: what is published through the broker, against bare PUB and SUB sockets.

One process publishes and has all subscribers, in both cases, and has no more than some messages
under way; the two take turns.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import zmq

from benchmarks.system import running
from eventmq.wire.commands import Inform, Publish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.figures import Figures

__all__ = ["GOALS", "ROWS"]

#: Subscribers at a time, by default.
_SUBSCRIBERS = (1, 10, 100)

#: Seconds of each, in how many turns; messages that are not delivered yet; bytes of a body.
_SECONDS, _TURNS, _AHEAD, _BODY = 3.0, 6, 100, b"x" * 100

_TOPIC = "prices"


def pubsub(figures: Figures) -> None:
    """Messages of 100 bytes to 1, 10 and 100 subscribers, against bare PUB and SUB sockets."""
    for count in figures.sizes or _SUBSCRIBERS:
        with (
            running(ports=("--subscribe-bind", "tcp://127.0.0.1:0")) as system,
            zmq.Context() as context,
            _bare(context, count) as bare,
            _broker(context, system.address, system.addresses["subscribe"], count) as ours,
        ):
            for _ in range(_TURNS):
                bare.run(_SECONDS / _TURNS)
                ours.run(_SECONDS / _TURNS)
        where = f"subscribers={count}"
        figures.add(**{
            f"{where} deliveries_per_second": ours.rate, f"{where} bare_per_second": bare.rate,
            f"{where} ratio": ours.rate / bare.rate,
        })  # fmt: skip


class _Topic:
    """Subscribers of one topic, and a way to publish there."""

    def __init__(self, publish: Callable[[], object], subscribers: list[zmq.Socket[bytes]]) -> None:
        self._publish = publish
        self._subscribers = subscribers
        self._poller = zmq.Poller()
        for subscriber in subscribers:
            self._poller.register(subscriber, zmq.POLLIN)
        self._got, self._seconds = 0, 0.0

    @property
    def rate(self) -> float:
        """Deliveries per second."""
        return self._got / self._seconds

    def wait(self) -> None:
        """Publish until every subscriber got something; then take what is under way."""
        missing = set(self._subscribers)
        while missing:
            self._publish()
            for subscriber, _ in self._poller.poll(10):
                subscriber.recv_multipart()
                missing.discard(subscriber)
        while self._take(200):
            pass

    def run(self, seconds: float) -> None:
        """Publish for so long, and wait for what is open."""
        begin = time.perf_counter()
        sent = got = 0
        many = len(self._subscribers)
        while time.perf_counter() - begin < seconds:
            while sent * many - got < _AHEAD * many:
                self._publish()
                sent += 1
            got += self._take(1000)
        while got < sent * many:
            some = self._take(5000)
            assert some, f"{sent * many - got} of {sent * many} messages did not come"
            got += some
        self._got += got
        self._seconds += time.perf_counter() - begin

    def _take(self, wait_ms: int) -> int:
        """Take what there is; return how many."""
        got = 0
        for subscriber, _ in self._poller.poll(wait_ms):
            for _ in range(_AHEAD):
                try:
                    subscriber.recv_multipart(zmq.DONTWAIT)
                except zmq.Again:
                    break
                got += 1
        return got


def _subscribe(
    context: zmq.Context[zmq.Socket[bytes]], address: str, count: int
) -> list[zmq.Socket[bytes]]:
    subscribers = []
    for _ in range(count):
        subscriber = context.socket(zmq.SUB)
        subscriber.setsockopt(zmq.SUBSCRIBE, _TOPIC.encode())
        subscriber.connect(address)
        subscribers.append(subscriber)
    return subscribers


@contextmanager
def _topic(
    publisher: zmq.Socket[bytes], publish: Callable[[], object], some: list[zmq.Socket[bytes]]
) -> Iterator[_Topic]:
    topic = _Topic(publish, some)
    try:
        topic.wait()
        yield topic
    finally:
        for socket in (publisher, *some):
            socket.close(0)


@contextmanager
def _bare(context: zmq.Context[zmq.Socket[bytes]], count: int) -> Iterator[_Topic]:
    publisher = context.socket(zmq.PUB)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    subscribers = _subscribe(context, f"tcp://127.0.0.1:{port}", count)
    frames = [_TOPIC.encode(), _BODY]
    with _topic(publisher, lambda: publisher.send_multipart(frames), subscribers) as topic:
        yield topic


@contextmanager
def _broker(
    context: zmq.Context[zmq.Socket[bytes]], address: str, subscribe: str, count: int
) -> Iterator[_Topic]:
    publisher = context.socket(zmq.DEALER)
    publisher.connect(address)
    publisher.send_multipart(Inform("1", "[]", "client").frames())
    assert publisher.recv_multipart()[2] == b"ACK"
    subscribers = _subscribe(context, subscribe, count)
    frames = Publish("2", _TOPIC, None, _BODY).frames()
    with _topic(publisher, lambda: publisher.send_multipart(frames), subscribers) as topic:
        yield topic


#: Name -> one run of it.
ROWS: dict[str, Callable[[Figures], None]] = {"pubsub": pubsub}

#: Name -> figure -> what it must reach.
GOALS: dict[str, dict[str, str]] = {
    "pubsub": {f"subscribers={count} ratio": ">= 0.67" for count in _SUBSCRIBERS}
}
