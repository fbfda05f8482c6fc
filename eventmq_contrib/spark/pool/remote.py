"""Spark task of a slot: a prefork pool of one process, driven by messages of the job manager.

It sends the events of the pool back. It ends when the manager asks for it, when the manager is
silent for too long, or with its executor; the process that runs jobs ends with it.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventmq.errors import EventMQError
from eventmq_contrib.spark.pool.frames import pack, pack_event, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import zmq

    from eventmq.sdk import ProcessPool
    from eventmq_contrib.spark.pool.frames import Ticket

__all__ = ["ALIVE_EVERY", "Remote", "serve"]

#: Seconds after which each side sends a sign of life.
ALIVE_EVERY = 1.0

#: Seconds of silence that show that the link was cut off or a process was stopped.
PAUSE = 1.5 * ALIVE_EVERY

#: Seconds after such a pause within which a message may cancel the one before it.
_SETTLE_TIME = 0.3

#: Milliseconds between two checks of the running job: soon after a change, and later.
_SOON, _LATER = 5, 50


def serve(ticket: Ticket) -> Iterator[int]:
    """Serve one slot; the function of a Spark task."""
    import zmq

    sys.path += [
        folder for folder in ticket.path if folder not in sys.path and Path(folder).is_dir()
    ]
    with zmq.Context() as context, context.socket(zmq.DEALER) as sock:
        sock.linger = 2000
        sock.rcvhwm = sock.sndhwm = 0
        sock.routing_id = ticket.identity.encode()
        sock.curve_serverkey = ticket.server_key
        sock.curve_publickey, sock.curve_secretkey = zmq.curve_keypair()
        sock.connect(ticket.endpoint)
        yield _serve(ticket, sock)


def _serve(ticket: Ticket, sock: zmq.Socket[bytes]) -> int:
    from eventmq.sdk import ProcessPool

    pool = ProcessPool(
        concurrency=1, loader=ticket.loader, arguments=ticket.arguments,
        start_timeout=ticket.start_timeout,
    )  # fmt: skip
    try:
        pool.start()
    except EventMQError as error:
        sock.send(pack("failed", ticket.token, f"{type(error).__name__}: {error}"))
        return 0
    try:
        sock.send(pack("hello", ticket.token, os.getpid()))
        return Remote(pool, sock, ticket.link_timeout).run()
    finally:
        pool.stop(0.0)


class Remote:
    """Passes messages of the manager to a pool, and its events back.

    Args:
        pool: Pool of one slot, started.
        sock: Socket to the manager.
        link_timeout: Seconds of silence after which the manager is gone.
    """

    def __init__(self, pool: ProcessPool, sock: zmq.Socket[bytes], link_timeout: float) -> None:
        self._pool, self._sock, self._link_timeout = pool, sock, link_timeout
        self._deaths = 0
        self._running: tuple[int, int] = (0, -1)
        self._changed_at = self._last_sent = self._last_seen = time.monotonic()
        #: When all messages of a pause have come, and the withdrawal request that waits for it.
        self._settled_at, self._withdrawal = 0.0, 0
        self._ended = False
        self._handlers: dict[str, Callable[..., None]] = {
            "assign": self._assign,
            "take": self._take,
            "keep": self._keep,
            "interrupt": lambda *arguments: pool.interrupt(0, *arguments),
            "credit": lambda *arguments: pool.credit(0, *arguments),
            "kill": lambda: pool.kill(0),
            "stop": self._stop,
            "ping": lambda: None,
        }

    def run(self) -> int:
        """Serve until the end; return how often the slot has died."""
        import zmq

        poller = zmq.Poller()
        for descriptor in (self._sock, *self._pool.filenos()):
            poller.register(descriptor, zmq.POLLIN)
        while not self._ended:
            now = time.monotonic()
            poller.poll(_SOON if now - self._changed_at < 1.0 else _LATER)
            self._receive()
            if self._ended:
                break
            self._send_events()
            if time.monotonic() - self._last_seen > self._link_timeout:
                break
        return self._deaths

    def _receive(self) -> None:
        import zmq

        while self._sock.poll(0, zmq.POLLIN):
            name, *arguments = unpack(self._sock.recv())
            now = time.monotonic()
            if now - self._last_seen > PAUSE:
                self._settled_at = now + _SETTLE_TIME
            self._last_seen = now
            self._handlers[name](*arguments)
        if self._withdrawal and time.monotonic() >= self._settled_at:
            self._withdraw(self._withdrawal)

    def _send_events(self) -> None:
        """Send the events, the running job when it changes, and signs of life."""
        for event in self._pool.poll():
            self._event(event)
        running = self._pool.running(0)
        running_job = (0, -1) if running is None else (running.chunk, running.position)
        now = time.monotonic()
        if running_job != self._running or now - self._last_sent > ALIVE_EVERY:
            if running_job != self._running:
                self._changed_at = now
            self._running, self._last_sent = running_job, now
            self._sock.send(
                pack("note", *running_job, 0.0 if running is None else now - running.since)
            )

    def _event(self, event: Any) -> None:
        self._changed_at = time.monotonic()
        if type(event).__name__ == "SlotDied":
            self._deaths += 1
        self._sock.send(pack_event(event))

    def _assign(self, epoch: int, chunk: int, count: int, body: bytes) -> None:
        self._changed_at = time.monotonic()
        if epoch == self._deaths:
            self._pool.assign(0, chunk, body, count)

    def _take(self, request: int) -> None:
        self._withdrawal = request
        if time.monotonic() >= self._settled_at:
            self._withdraw(request)

    def _keep(self, _: int) -> None:
        self._withdrawal = 0

    def _withdraw(self, request: int) -> None:
        self._withdrawal = 0
        count = self._pool.take_back(0)
        # Earlier events are sent first.
        for event in self._pool.poll():
            self._event(event)
        self._sock.send(pack("taken", request, count))

    def _stop(self, grace: float) -> None:
        self._pool.stop(grace)
        for event in self._pool.poll():
            self._event(event)
        self._sock.send(pack("bye"))
        self._ended = True
