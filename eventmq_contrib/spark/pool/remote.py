"""What runs in a Spark task for as long as its slot is there: a prefork pool of one process.

It does what the job manager says and tells what happens. It ends when it is told to, when nothing
is heard of the manager any more, or with its executor; the process that runs jobs ends with it.
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

    from eventmq.plugins.pools.prefork.pool import PreforkPool
    from eventmq_contrib.spark.pool.frames import Ticket

__all__ = ["ALIVE_EVERY", "Remote", "serve"]

#: Seconds after which each side says that it is there.
ALIVE_EVERY = 1.0

#: Seconds without a word of the other side after which something was cut off, or stood still.
PAUSE = 1.5 * ALIVE_EVERY

#: Seconds after that in which a word may come that takes the one before it back.
_SETTLES = 0.3

#: Milliseconds between looks at what runs: soon after it changed, and later.
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
    from eventmq.plugins.pools.prefork.pool import PreforkPool

    pool = PreforkPool(
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
    """Carries words to a pool, and what it tells back.

    Args:
        pool: Of one slot, started.
        sock: To the manager.
        patience: Seconds of silence after which the manager is gone.
    """

    def __init__(self, pool: PreforkPool, sock: zmq.Socket[bytes], patience: float) -> None:
        self._pool, self._sock, self._patience = pool, sock, patience
        self._deaths = 0
        self._note: tuple[int, int] = (0, -1)
        self._changed = self._said = self._heard = time.monotonic()
        #: When all that was said in a pause is there, and the question that waits for that.
        self._settled, self._held = 0.0, 0
        self._ended = False
        self._do: dict[str, Callable[..., None]] = {
            "assign": self._assign,
            "take": self._take,
            "keep": self._keep,
            "interrupt": lambda *about: pool.interrupt(0, *about),
            "credit": lambda *about: pool.credit(0, *about),
            "kill": lambda: pool.kill(0),
            "stop": self._stop,
            "ping": lambda: None,
        }

    def run(self) -> int:
        """Serve until the end; return how many deaths there were."""
        import zmq

        poller = zmq.Poller()
        for descriptor in (self._sock, *self._pool.filenos()):
            poller.register(descriptor, zmq.POLLIN)
        while not self._ended:
            now = time.monotonic()
            poller.poll(_SOON if now - self._changed < 1.0 else _LATER)
            self._hear()
            if self._ended:
                break
            self._tell()
            if time.monotonic() - self._heard > self._patience:
                break
        return self._deaths

    def _hear(self) -> None:
        import zmq

        while self._sock.poll(0, zmq.POLLIN):
            name, *about = unpack(self._sock.recv())
            now = time.monotonic()
            if now - self._heard > PAUSE:
                self._settled = now + _SETTLES
            self._heard = now
            self._do[name](*about)
        if self._held and time.monotonic() >= self._settled:
            self._withdraw(self._held)

    def _tell(self) -> None:
        """Say what happened, what runs, and now and then that nothing does."""
        for event in self._pool.poll():
            self._event(event)
        running = self._pool.running(0)
        note = (0, -1) if running is None else (running.chunk, running.position)
        now = time.monotonic()
        if note != self._note or now - self._said > ALIVE_EVERY:
            if note != self._note:
                self._changed = now
            self._note, self._said = note, now
            self._sock.send(pack("note", *note, 0.0 if running is None else now - running.since))

    def _event(self, event: Any) -> None:
        self._changed = time.monotonic()
        if type(event).__name__ == "SlotDied":
            self._deaths += 1
        self._sock.send(pack_event(event))

    def _assign(self, epoch: int, chunk: int, count: int, body: bytes) -> None:
        self._changed = time.monotonic()
        if epoch == self._deaths:
            self._pool.assign(0, chunk, body, count)

    def _take(self, asked: int) -> None:
        self._held = asked
        if time.monotonic() >= self._settled:
            self._withdraw(asked)

    def _keep(self, _: int) -> None:
        self._held = 0

    def _withdraw(self, asked: int) -> None:
        self._held = 0
        taken = self._pool.take_back(0)
        # What happened before it is told before it.
        for event in self._pool.poll():
            self._event(event)
        self._sock.send(pack("taken", asked, taken))

    def _stop(self, grace: float) -> None:
        self._pool.stop(grace)
        for event in self._pool.poll():
            self._event(event)
        self._sock.send(pack("bye"))
        self._ended = True
