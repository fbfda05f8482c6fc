"""The client's I/O thread: the sockets and the clock around `ClientMachine`.

Other threads put commands into a deque and write to the wake-up descriptor, but only while this
thread sleeps. It ends by `IoLoop.stop`; being a daemon, it never keeps a process alive.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import zmq
from zmq.backend import zmq_poll

from eventmq.client.errands import NEVER
from eventmq.wire.socket import Link, new_context, open_dealer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eventmq.client.errands import Errand, Question
    from eventmq.client.machine import ClientMachine
    from eventmq.clock import Clock

__all__ = ["IoLoop"]

logger = logging.getLogger(__name__)

#: Milliseconds that a closing socket may spend on what was not sent yet.
CLOSE_LINGER_MS = 200

#: Messages of one broker that are read before others get their turn.
READ_AT_MOST = 1000

_EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
_IN = int(zmq.POLLIN)
_OUT = int(zmq.POLLOUT)


class _Broker:
    """The sockets of one broker: the link, and the monitor that says when it is cut."""

    __slots__ = ("address", "blocked", "link", "monitor", "send")

    def __init__(self, context: zmq.Context[Any], address: str) -> None:
        self.address = address
        self.link = open_dealer(context, address)
        self.send = self.link.send
        monitor = self.link.socket.get_monitor_socket(_EVENTS)
        self.monitor = Link(monitor)
        #: The link takes nothing more for now.
        self.blocked = False

    def close(self) -> None:
        self.link.socket.disable_monitor()
        self.monitor.close(0)
        self.link.close(CLOSE_LINGER_MS)


class IoLoop:
    """One thread that owns all sockets of a client.

    Args:
        machine: What it drives.
        clock: Reads time.
        context: A ZeroMQ context to use; by default one of its own.
    """

    def __init__(
        self, machine: ClientMachine, clock: Clock, context: zmq.Context[Any] | None = None
    ) -> None:
        self.machine = machine
        self.ended = False
        self._clock = clock
        self._context = context
        self._brokers: list[_Broker] = []
        self._inbox: deque[tuple[Callable[..., None], Errand]] = deque()
        self._sleeping = False
        self._stopping = False
        self._end_lock = threading.Lock()
        self._reason = "the client was closed"
        # Sockets, not descriptors: writing to a closed one is an error and never another file.
        self._woken, self._waker = socket.socketpair()
        self._woken.settimeout(0)
        self._waker.settimeout(0)
        self._fd = self._woken.fileno()
        self._thread = threading.Thread(target=self._main, name="eventmq-client", daemon=True)

    # Called by any thread

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def begin(self, errand: Errand) -> None:
        """Hand over an errand; it is settled in any case, also when the thread has ended."""
        self._inbox.append((self._begin, errand))
        if self._sleeping:
            self._wake()
        if self.ended:
            self._abandon()

    def forget(self, question: Question) -> None:
        """End a question."""
        self._inbox.append((self.machine.forget, question))
        if self._sleeping:
            self._wake()

    def stop(self, timeout: float) -> None:
        """End the thread and what is open; wait for it. Idempotent."""
        self._stopping = True
        self._wake()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _wake(self) -> None:
        # The thread sets the flag before it looks into the inbox for the last time.
        self._sleeping = False
        try:  # noqa: SIM105 - suppress() costs more than all the rest
            self._waker.send(b"!")
        except OSError:
            pass  # full: it is awake; closed: it has ended

    # The thread

    def _main(self) -> None:
        try:
            own = self._context is None
            context = self._context or new_context()
            try:
                self._open(context)
                while not self._stopping:
                    self._turn()
            finally:
                self._shut(context, own=own)
        except Exception as error:
            self._reason = f"the client's thread ended by an error: {error}"
            logger.exception("the client's thread ended by an error")
        finally:
            self.ended = True
            self._abandon()
            self._woken.close()
            self._waker.close()

    def _open(self, context: zmq.Context[Any]) -> None:
        self._context = context
        now = self._clock.monotonic()
        for connection in self.machine.connections:
            self._brokers.append(_Broker(context, connection.address))
            self.machine.opened(connection.index, now)

    def _shut(self, context: zmq.Context[Any], *, own: bool) -> None:
        self.machine.say_goodbye()
        now = self._clock.monotonic()
        for index, broker in enumerate(self._brokers):
            self.machine.flush(index, broker.send, now)
            broker.close()
        if own:
            context.term()

    def _abandon(self) -> None:
        """Fail what is open, and what is handed over too late."""
        with self._end_lock:
            while self._inbox:
                _, errand = self._inbox.popleft()
                _fail(errand, self._reason)
            self.machine.abandon(self._reason)
            self._wake_waiters()

    # hot loop: benchmarks/enqueue_one.py
    def _turn(self) -> None:
        machine, inbox = self.machine, self._inbox
        # What callers want.
        while inbox:
            command, errand = inbox.popleft()
            command(errand)
        # What time wants.
        now = self._clock.monotonic()
        if now >= machine.next_tick():
            machine.tick(now, self._clock.now())
        while machine.reopen:
            self._reopen(machine.reopen.pop(), now)
        # Out.
        for index, broker in enumerate(self._brokers):
            broker.blocked = not machine.flush(index, broker.send, now)
        if machine.settled:
            self._wake_waiters()
        # Sleep, unless something came meanwhile; then in.
        self._sleeping = True
        if inbox or self._stopping:
            self._sleeping = False
            return
        ready = zmq_poll(self._poll_items(), self._timeout(now))
        self._sleeping = False
        if ready:
            self._read(ready)

    def _begin(self, errand: Errand) -> None:
        try:
            self.machine.begin(errand, self._clock.monotonic())
        except Exception as error:
            # It may be in no list, from which it could be settled.
            self.ended = True
            _fail(errand, f"the client's thread ended by an error: {error}")
            raise

    def _poll_items(self) -> list[tuple[Any, int]]:
        items: list[tuple[Any, int]] = [(self._fd, _IN)]
        for broker in self._brokers:
            items.append((broker.link.socket, _IN | _OUT if broker.blocked else _IN))
            items.append((broker.monitor.socket, _IN))
        return items

    def _timeout(self, now: float) -> int:
        """Return how long to sleep in ms, -1 for as long as nothing happens."""
        due = self.machine.next_tick()
        return -1 if due == NEVER else max(0, int((due - now) * 1000) + 1)

    def _read(self, ready: Sequence[tuple[Any, int]]) -> None:
        sockets = {source for source, _ in ready}
        if self._fd in sockets:
            self._woken.recv(4096)
        now = self._clock.monotonic()
        for index, broker in enumerate(self._brokers):
            if broker.monitor.socket in sockets:
                self._read_monitor(index, broker, now)
            if broker.link.socket in sockets:
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

    def _read_monitor(self, index: int, broker: _Broker, now: float) -> None:
        while (frames := broker.monitor.receive()) is not None:
            event = int.from_bytes(frames[0][:2], "little")
            if event == zmq.EVENT_DISCONNECTED:
                logger.info("connection to broker %s lost", broker.address)
                self.machine.lost(index, now)
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                logger.debug("connected to broker %s", broker.address)
                self.machine.restored(index, now)

    def _reopen(self, index: int, now: float) -> None:
        broker = self._brokers[index]
        logger.warning("broker %s does not answer; opening a new connection", broker.address)
        assert self._context is not None  # noqa: S101 - made by _open
        broker.close()
        self._brokers[index] = _Broker(self._context, broker.address)
        self.machine.opened(index, now)

    def _wake_waiters(self) -> None:
        settled = self.machine.settled
        for errand in settled:
            errand.wake()
        settled.clear()


def _fail(errand: Errand, reason: str) -> None:
    """Settle an errand that the machine does not know."""
    if not errand.over:
        errand.error = errand.failure(reason)
        errand.over = True
        errand.wake()
