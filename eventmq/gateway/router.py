"""A thread with ROUTER sockets around a machine: everything in a ZeroMQ gateway except its logic.

The machine gets frames and the time and puts frames into its outbox; its exceptions drop the
message at hand but never end the thread. Clients and worker sessions of the gateway can run in the
same thread as `LoopMember`, so that no request waits for another thread to wake up.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import zmq
from zmq.backend import zmq_poll

from eventmq.errors import BindError
from eventmq.wakeup import Wakeup
from eventmq.wire.sockets import MAX_UNSENT_BYTES, NoConnection, new_context, open_router

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from eventmq.clock import Clock
    from eventmq.gateway.access import GatewayAuthenticator
    from eventmq.wire.sockets import Link

__all__ = ["FrameMachine", "LoopMember", "RouterLoop", "Watchable"]

logger = logging.getLogger(__name__)

#: Maximum number of messages of one socket that one iteration reads.
MAX_READ = 1000

#: Maximum number of messages that wait for one slow peer; then `FrameMachine.not_sent` is called.
HIGH_WATER = 1000

#: Event to poll for: zmq.POLLIN.
_IN = 1

#: Maximum seconds between two iterations.
MAX_WAIT = 1.0

#: Seconds that `RouterLoop.stop` waits for the thread.
STOP_TIMEOUT = 5.0


@runtime_checkable
class Watchable(Protocol):
    """A gateway whose loops can be watched, so that a watchdog notices a stuck one."""

    def turns(self) -> Sequence[int]:
        """Return a number for each loop that grows as the loop turns, at least once a second."""


class FrameMachine(Protocol):
    """The logic of a gateway: called from one thread, without sockets, files or clock."""

    #: (port, frames with the peer's identity first), in the order of sending.
    outbox: deque[tuple[str, list[bytes]]]

    def receive(self, port: str, frames: list[bytes], now: float) -> None:
        """Receive a message; the first frame is the identity of the peer."""

    def tick(self, now: float) -> None:
        """Do what is due."""

    def wait(self, now: float) -> float:
        """Return the seconds until `tick` has something to do."""

    def not_sent(self, port: str, frames: list[bytes], *, disconnected: bool) -> None:
        """Handle a message that was not sent: its peer is ``disconnected``, or too slow."""

    def expel(self, port: str, peer: bytes) -> None:
        """Forget a peer whose key was revoked, and send it nothing. Needs an authenticator."""

    def close(self, now: float) -> None:
        """Say goodbye to all peers."""


class LoopMember(Protocol):
    """A client or worker session in the thread of a `RouterLoop`, with its own sockets.

    All methods are called from that thread.
    """

    def poll_items(self, now: float) -> tuple[Sequence[tuple[Any, int]], float]:
        """Send waiting messages; return what to poll, and for how many seconds at most."""

    def step(self, ready: Sequence[tuple[Any, int]], sources: AbstractSet[Any], now: float) -> bool:
        """Read received messages; return False if it has ended.

        ``ready`` is the result of the poll for all sockets, ``sources`` has the ready ones.
        """

    def close(self) -> None:
        """End, and close everything. Idempotent."""


class RouterLoop:
    """Serves a machine.

    Args:
        machine: The logic.
        binds: Port name -> address.
        clock: Reads time.
        name: Name of the thread.
        max_frame: Maximum length of a frame in bytes; a peer that exceeds it is disconnected.
        authenticator: Checks the keys of peers, which the machine then knows by routing id and
            key; None for no encryption.
        max_unsent_bytes: Maximum number of bytes that wait for one peer; beyond it, as beyond the
            limit of messages, the machine is told that messages were not sent.

    Attributes:
        context: ZeroMQ context of the sockets, while it runs.
        members: Clients and sessions in this thread; changed in it, or before `start`.
    """

    def __init__(
        self,
        machine: FrameMachine,
        binds: Mapping[str, str],
        *,
        clock: Clock,
        name: str,
        max_frame: int,
        authenticator: GatewayAuthenticator | None = None,
        max_unsent_bytes: int = MAX_UNSENT_BYTES,
    ) -> None:
        self.machine = machine
        self._max_unsent_bytes = max_unsent_bytes
        self._binds = dict(binds)
        self._clock = clock
        self._name = name
        self._max_frame = max_frame
        self._authenticator = authenticator
        self._links: dict[str, Link] = {}
        self._link_items: list[tuple[Any, int]] = []
        self._calls: deque[Callable[[float], None]] = deque()
        self._wakeup: Wakeup | None = None
        self._ending = False
        self._turns = 0
        self._thread: threading.Thread | None = None
        self.context: zmq.Context[Any] | None = None
        self.members: list[LoopMember] = []

    # From any thread

    def start(self) -> dict[str, str]:
        """Bind and start the thread; return the real addresses by port.

        Raises:
            BindError: An address is in use or malformed.
            NotAllowed: An unauthorised key was admitted.
        """
        self._wakeup = Wakeup()
        self.context = context = new_context()
        try:
            addresses = self._bind(context)
        except BaseException:
            self._close(context)
            raise
        self._link_items = [(link.socket, _IN) for link in self._links.values()]
        self._link_items.append((self._wakeup.fd, _IN))
        self._thread = threading.Thread(
            target=self._main, args=(context,), name=self._name, daemon=True
        )
        self._thread.start()
        return addresses

    def _bind(self, context: zmq.Context[Any]) -> dict[str, str]:
        authenticator = self._authenticator
        if authenticator is not None:
            authenticator.open(context)
        addresses = {}
        for port, address in self._binds.items():
            link = open_router(
                context,
                max_frame=self._max_frame,
                high_water=HIGH_WATER,
                identified_by="" if authenticator is None else "User-Id",
                max_unsent_bytes=self._max_unsent_bytes,
            )
            self._links[port] = link
            if authenticator is not None:
                authenticator.encrypt(port, link)
            try:
                addresses[port] = link.bind(address)
            except zmq.ZMQError as error:
                raise BindError(f"cannot bind {address}: {error.strerror}") from error
        if authenticator is not None:
            authenticator.test(addresses)
        return addresses

    def call(self, function: Callable[[float], None]) -> None:
        """Call a function in the thread with the time, then send the machine's messages."""
        self._calls.append(function)
        if self._thread is not threading.current_thread():
            self._notify()

    def _notify(self) -> None:
        if self._wakeup is not None:
            self._wakeup.set()

    def running(self) -> bool:
        """Return whether the thread serves."""
        return self._thread is not None and self._thread.is_alive() and not self._ending

    def turns(self) -> int:
        """Return the number of turns of the thread, for `Watchable`."""
        return self._turns

    def stop(self) -> None:
        """Say goodbye to all peers and end. Idempotent."""
        self._ending = True
        self._notify()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT)

    # In the thread

    def _main(self, context: zmq.Context[Any]) -> None:
        try:
            while not self._ending:
                self._run_once()
            self._guarded(self.machine.close, self._clock.monotonic())
            self._send()
            for member in list(self.members):
                self._serve(member, (), frozenset(), self._clock.monotonic())
        except Exception:
            logger.exception("%s failed", self._name)
        finally:
            for member in self.members:
                self._guarded(member.close)
            self._close(context)

    def _run_once(self) -> None:
        """Wait for events, read all messages, and send the machine's answers."""
        ready, sources = self._await()
        self._turns += 1
        now = self._clock.monotonic()
        if self._authenticator is not None:
            for port, peer in self._authenticator.refresh():
                self._guarded(self.machine.expel, port, peer)
        for port, link in self._links.items():
            if link.socket in sources:
                self._read(port, link, now)
        for member in list(self.members):
            self._serve(member, ready, sources, now)
        while self._calls:
            self._guarded(self._calls.popleft(), now)
        self._guarded(self.machine.tick, now)
        self._send()

    def _await(self) -> tuple[Sequence[tuple[Any, int]], AbstractSet[Any]]:
        """Return what is ready, and the ready sockets."""
        wakeup, now = self._wakeup, self._clock.monotonic()
        assert wakeup is not None  # noqa: S101 - made by start
        wait = min(MAX_WAIT, self.machine.wait(now))
        items = self._link_items
        if self.members:
            items = items.copy()
            for member in list(self.members):
                more, timeout = self._ask(member, now)
                items += more
                wait = min(wait, timeout)
        if self._calls or self.machine.outbox:
            wait = 0.0
        ready = zmq_poll(items, int(wait * 1000) + 1 if wait > 0 else 0)
        sources = {source for source, _ in ready}
        if wakeup.fd in sources:
            wakeup.clear()
        return ready, sources

    def _ask(self, member: LoopMember, now: float) -> tuple[Sequence[tuple[Any, int]], float]:
        try:
            return member.poll_items(now)
        except Exception as error:  # noqa: BLE001 - it costs this member only, and is logged
            self._dismiss(member, error)
            return (), 0.0

    def _serve(
        self,
        member: LoopMember,
        ready: Sequence[tuple[Any, int]],
        sources: AbstractSet[Any],
        now: float,
    ) -> None:
        """Serve a member; remove one that has ended or fails."""
        try:
            if not member.step(ready, sources, now):
                self._leave(member)
        except Exception as error:  # noqa: BLE001 - it costs this member only, and is logged
            self._dismiss(member, error)

    def _dismiss(self, member: LoopMember, error: Exception) -> None:
        logger.error("%s ends one of its sessions because of an error", self._name, exc_info=error)
        self._leave(member)

    def _leave(self, member: LoopMember) -> None:
        if member in self.members:
            self.members.remove(member)
        self._guarded(member.close)

    def _read(self, port: str, link: Link, now: float) -> None:
        for _ in range(MAX_READ):
            frames = link.receive()
            if frames is None:
                return
            if self._authenticator is not None:
                peer = self._authenticator.peer_of(port, link, frames[0])
                if peer is None:
                    continue
                frames[0] = peer
            self._guarded(self.machine.receive, port, frames, now)

    def _guarded(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call the machine; an exception in it drops only this message."""
        try:
            function(*arguments)
        except Exception:
            logger.exception("%s dropped a message because of an internal error", self._name)

    def _send(self) -> None:
        outbox = self.machine.outbox
        # Peers that accept no more: later messages must not overtake those that were not sent.
        full: set[tuple[str, bytes]] = set()
        while outbox:
            port, frames = outbox.popleft()
            disconnected = False
            try:
                sent = (port, frames[0]) not in full and self._send_one(port, frames)
            except NoConnection:
                sent, disconnected = False, True
            if not sent:
                full.add((port, frames[0]))
                self._guarded(
                    partial(self.machine.not_sent, port, frames, disconnected=disconnected)
                )

    def _send_one(self, port: str, frames: list[bytes]) -> bool:
        if self._authenticator is None:
            return self._links[port].send(frames)
        identity = self._authenticator.routing_id_of(port, frames[0])
        if identity is None:
            raise NoConnection
        return self._links[port].send([identity, *frames[1:]])

    def _close(self, context: zmq.Context[Any]) -> None:
        if self._authenticator is not None:
            self._authenticator.close()
        for link in self._links.values():
            link.close()
        context.term()
        if self._wakeup is not None:
            self._wakeup.close()
