"""What whoever leads a client does: machine, sockets and clock, one step at a time.

It neither waits nor knows threads; `eventmq.client.runner_loop` says whose turn it is.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any

import zmq

from eventmq.client.connection import LOST
from eventmq.client.runner_sockets import BrokerSockets
from eventmq.client.runner_waits import Bell
from eventmq.wire.socket import new_context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from eventmq.client.errands import Errand
    from eventmq.client.machine import ClientMachine
    from eventmq.clock import Clock
    from eventmq.wire.curve import ClientKeys
    from eventmq.wire.socket import Link

__all__ = ["LoopTurns"]

logger = logging.getLogger(__name__)

#: Messages of one broker that are read before others get their turn.
READ_AT_MOST = 1000

_IN = int(zmq.POLLIN)
_OUT = int(zmq.POLLOUT)


class LoopTurns:
    """All sockets of a client, and what callers want of them.

    Args:
        machine: What it drives.
        clock: Reads time.
        context: A ZeroMQ context to use; by default one of its own.
    """

    #: For CURVE, None for brokers without; set before the first use.
    keys: ClientKeys | None = None

    def __init__(
        self, machine: ClientMachine, clock: Clock, context: zmq.Context[Any] | None = None
    ) -> None:
        self.machine = machine
        self._clock = clock
        self._context = context
        self._own_context = context is None
        self._brokers: list[BrokerSockets] = []
        self._inbox: deque[tuple[Callable[..., None], Errand]] = deque()
        #: What the leader waits for, None where it waits for everything.
        self._carried: Errand | None = None
        #: When time wants something, as it was seen last.
        self._due = 0.0
        #: When something was read last.
        self._looked = 0.0
        #: What is polled; None after a change.
        self._items: list[tuple[Any, int]] | None = None
        #: It does nothing any more, or soon will not.
        self._stopping = False
        self._bell = Bell()

    def _open(self) -> None:
        if self._brokers or self._stopping:
            return
        self._context = context = self._context or new_context()
        now = self._clock.monotonic()
        for connection in self.machine.connections:
            self._brokers.append(BrokerSockets(context, connection, self.keys))
            self.machine.opened(connection.index, now)

    # hot loop: benchmarks/enqueue_one.py
    def _work(self) -> None:
        """Do what callers and time want, and send."""
        machine, inbox = self.machine, self._inbox
        while inbox:
            command, errand = inbox.popleft()
            command(errand)
        now = self._clock.monotonic()
        if now >= self._due:
            machine.tick(now, self._clock.now())
        while machine.reopen:
            self._reopen(machine.reopen.pop(), now)
        for index, broker in enumerate(self._brokers):
            blocked = not machine.flush(index, broker.send, now)
            if blocked is not broker.blocked:
                broker.blocked = blocked
                self._items = None
        if machine.settled:
            self._wake_waiters()

    def _poll_items(self) -> list[tuple[Any, int]]:
        if self._items is not None:
            return self._items
        items: list[tuple[Any, int]] = [(self._bell.fd, _IN)]
        for broker in self._brokers:
            items.append((broker.link.socket, _IN | _OUT if broker.blocked else _IN))
            items.append((broker.monitor_fd, _IN))
        self._items = items
        return items

    def _read(self, ready: Iterable[tuple[Any, int]]) -> None:
        sources = {source for source, _ in ready}
        if not sources:
            return
        if self._bell.fd in sources:
            self._bell.hush()
        self._looked = now = self._clock.monotonic()
        for index, broker in enumerate(self._brokers):
            if broker.monitor_fd in sources:
                self._read_monitor(index, broker, now)
            if broker.link.socket in sources:
                self._read_link(index, broker.link, now)
        if self.machine.settled:
            self._wake_waiters()

    def _read_link(self, index: int, link: Link, now: float) -> None:
        received = self.machine.received
        for _ in range(READ_AT_MOST):
            frames = link.receive()
            if frames is None:
                return
            received(index, frames, now)
            # Asking once more for what is not there costs as much as all of this.
            if self._carried is not None and self._carried.over:
                return

    def _read_monitor(self, index: int, broker: BrokerSockets, now: float) -> None:
        for connected in broker.events():
            if connected:
                logger.debug("connected to broker %s", broker.address)
                self.machine.restored(index, now)
            else:
                logger.info("connection to broker %s lost", broker.address)
                self.machine.lost(index, now)
        if broker.trouble:
            if broker.trouble != self.machine.connections[index].trouble:
                logger.warning("broker %s cannot be used: %s", broker.address, broker.trouble)
            self.machine.refused(index, broker.trouble, now)
            broker.trouble = ""

    def _reopen(self, index: int, now: float) -> None:
        broker = self._brokers[index]
        connection = self.machine.connections[index]
        level = logging.INFO if connection.trouble == LOST else logging.WARNING
        logger.log(level, "broker %s: %s; a new socket", broker.address, connection.trouble)
        assert self._context is not None  # noqa: S101 - made by _open
        broker.close()
        self._brokers[index] = BrokerSockets(self._context, connection, self.keys)
        self._items = None
        self.machine.opened(index, now)

    def _wake_waiters(self) -> None:
        settled = self.machine.settled
        for errand in settled:
            errand.wake()
        settled.clear()
