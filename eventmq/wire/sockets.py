"""ZeroMQ sockets: send and receive messages as frames, limit unsent bytes, and read monitors.

`zmq.Socket` adds Python layers to each call: a seven-frame message costs 27 us to send and 27 us
to receive through them, 4 us and 8 us through the compiled base class that is used here.

A `Link` belongs to one thread. It never waits; its owner polls `Link.socket`. The links of ROUTERs
know how many bytes are unsent for each peer (`SendBuffers`, `BufferUsage`) and for all peers of a
broker together (`TotalUsage`). Since libzmq does not report this, some messages carry a tracker.
"""

from __future__ import annotations

import ctypes
import logging
import os
import struct
import time
import uuid
from collections import deque
from dataclasses import dataclass, field
from socket import getaddrinfo
from threading import Thread
from typing import TYPE_CHECKING, Protocol, cast

import zmq
from zmq.backend import Socket as _Base
from zmq.backend import zmq_poll

from eventmq.wire.features import routing_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from eventmq.wire.curve import ClientKeys

__all__ = [
    "DOMAIN",
    "FAILURES",
    "HANDSHAKES",
    "MAX_UNSENT_BYTES",
    "BufferUsage",
    "IdentifiedLink",
    "Link",
    "NoConnection",
    "RouterLink",
    "SendBuffers",
    "TotalUsage",
    "Tracker",
    "encrypt",
    "event_fd",
    "is_local",
    "is_wildcard",
    "new_context",
    "new_keys",
    "open_dealer",
    "open_pub",
    "open_router",
    "use_keys",
]


#: Default limit of the bytes that may wait for one peer.
MAX_UNSENT_BYTES = 64 * 1024 * 1024

#: Bytes between two trackers of a peer: the usual number, and the smallest, for very many peers. A
#: tracker costs some 30 us.
STEP, MIN_STEP = 256 * 1024, 8 * 1024

#: Part of the total that all peers together may have sent after their last trackers.
UNTRACKED = 0.25

#: Once half of the total is used, a peer may use the smaller one of these parts: of the total, and
#: of the free bytes.
PART_OF_TOTAL, PART_OF_FREE = 256, 16

#: Part of the total up to which a message that is longer than its peer's part is sent if no other
#: one waits for the peer.
PART_OF_SINGLES = 0.75

#: Number of peers whose trackers are checked before a message is refused because of the total.
REFRESH_PEERS = 64

#: The total without a limit, in bytes.
_ANY = 1 << 62

#: A message of up to `SHORT` bytes may exceed the limit of its peer by up to `RESERVE` bytes: it
#: may be an ERROR or a CANCEL.
SHORT, RESERVE = 1024, 1024 * 1024

#: Seconds to wait before a message is refused, and the shortest time between two such waits.
YIELD, YIELD_INTERVAL = 0.002, 0.05

#: Number of peers above which those without open trackers are forgotten.
PRUNE_ABOVE = 1024

logger = logging.getLogger("eventmq.wire")

#: Events of a monitor: a handshake failed before the ZAP request.
FAILURES = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL

#: Events of a monitor that end a handshake.
HANDSHAKES = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | FAILURES

#: Events of a monitor about the transport: a connection was lost, or could not be made.
CONNECTIONS = zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED

_send = _Base.send

_recv = _Base.recv

_MORE = zmq.SNDMORE | zmq.DONTWAIT

_LAST = zmq.DONTWAIT

#: A message of a monitor: event and value.
_EVENT = struct.Struct("=Hi")

#: Milliseconds that a handshake may take.
HANDSHAKE_MS = 10_000

#: Milliseconds for which a subscriber may read nothing; then it is disconnected (TCP_USER_TIMEOUT,
#: on Linux).
SUBSCRIBER_MS = 15_000

#: Milliseconds that a closing socket may spend on unsent messages.
LINGER_MS = 1000

#: Bytes that a message may have beside its payload, in addition to ``max-frame``.
_FRAME_SLACK = 64 * 1024

#: Frame limit of a PUB socket, which receives only subscriptions, in addition to `_FRAME_SLACK`.
_SUBSCRIPTION = 1

#: ZAP domain of our sockets: with a domain libzmq admits no peer without a handler.
DOMAIN = b"eventmq"

#: Number of frames of one message that are kept. It is above all limits, and keeps a message of a
#: million empty frames from using memory.
MAX_FRAMES = 1000


class Tracker(Protocol):
    """A frame that was lent to libzmq, as `zmq.MessageTracker` is."""

    @property
    def done(self) -> bool:
        """Whether libzmq has sent the frame, or dropped it with the connection."""


class TotalUsage:
    """The bytes that wait for all peers of some sockets together, up to the last tracker of each.

    Args:
        max_bytes: Limit of these bytes.

    Attributes:
        used: Upper bound of the waiting bytes: some trackers may be done that were not checked yet.
        peers: Number of peers with a buffer usage.
        warned: Whether the limit was logged; reset when half of the total is free.
    """

    __slots__ = ("_open", "_yield_at", "max_bytes", "peers", "used", "warned")

    def __init__(self, max_bytes: int = _ANY) -> None:
        self.max_bytes = max_bytes
        self.used = 0
        self.peers = 0
        self.warned = False
        self._open: deque[BufferUsage] = deque()
        self._yield_at = 0.0

    def yield_thread(self) -> bool:
        """Let pyzmq's thread record sent frames; return False if that was done recently.

        Trackers are done only after that thread has run, and this thread may keep it from running.
        """
        now = time.monotonic()
        if now < self._yield_at:
            return False
        time.sleep(YIELD)
        self._yield_at = now + YIELD_INTERVAL
        return True

    def share(self, coming: int = 0) -> int:
        """Return how many bytes one peer may use, if ``coming`` bytes are sent to others before."""
        free = max(0, self.max_bytes - self.used - coming)
        return max(
            (free - self.max_bytes // 2) // 2,
            min(self.max_bytes // PART_OF_TOTAL, free // PART_OF_FREE),
        )

    @property
    def step(self) -> int:
        """Bytes between two trackers of a peer."""
        return max(MIN_STEP, min(STEP, int(UNTRACKED * self.max_bytes) // max(1, self.peers)))

    def add_open(self, usage: BufferUsage) -> None:
        """Record that a usage has an open tracker, and settle two older usages.

        Otherwise the usages of peers that disconnect would accumulate if nothing calls `refresh`.
        """
        self._settle_oldest(2)
        self._open.append(usage)

    def refresh(self) -> None:
        """Settle the oldest usages: some of their trackers may be done."""
        self._settle_oldest(REFRESH_PEERS)
        if self.used < self.max_bytes // 2:
            self.warned = False

    def _settle_oldest(self, count: int) -> None:
        """Settle the oldest usages; drop those whose trackers are all done."""
        waiting = self._open
        for _ in range(min(count, len(waiting))):
            usage = waiting.popleft()
            usage.count_waiting()
            if usage.trackers:
                waiting.append(usage)
            else:
                usage.listed = False


@dataclass(slots=True, eq=False)
class BufferUsage:
    """The bytes that were sent to one peer since it connected, and those of them that still wait.

    The counts start at 0 when the peer connects.

    Attributes:
        total: Usage of all peers.
        sent: Bytes passed to libzmq.
        flushed: Bytes that libzmq is known to have sent.
        track_at: Count of ``sent`` from which the next message gets a tracker.
        trackers: Open trackers, with the count of ``sent`` at each.
        tracked: Count of ``sent`` at the last tracker.
        long_at: Count of ``sent`` at the last tracker of a message longer than `SHORT`.
        allocated: Bytes that `SendBuffers.allocate` has allowed.
        listed: Whether the total settles this usage from time to time.
        warned: Whether the limit of the peer was logged.
        refused: Whether the last message with a tracker was refused, since too many bytes waited.
    """

    total: TotalUsage
    sent: int = 0
    flushed: int = 0
    track_at: int = STEP
    trackers: deque[tuple[Tracker, int]] = field(default_factory=deque)
    tracked: int = 0
    long_at: int = 0
    allocated: int = 0
    listed: bool = False
    warned: bool = False
    refused: bool = False

    def count_waiting(self) -> int:
        """Remove the trackers that are done; return an upper bound of the waiting bytes."""
        trackers = self.trackers
        before = self.flushed
        while trackers and trackers[0][0].done:
            self.flushed = trackers.popleft()[1]
        self.total.used -= self.flushed - before
        return self.sent - self.flushed

    def track(self, tracker: Tracker, size: int = SHORT + 1) -> None:
        """Record the tracker of the last sent message, and its size in bytes."""
        self.trackers.append((tracker, self.sent))
        self.total.used += self.sent - self.tracked
        self.tracked = self.sent
        if size > SHORT:
            self.long_at = self.sent
        self.track_at = self.sent + self.total.step
        if not self.listed:
            self.listed = True
            self.total.add_open(self)

    def close(self) -> None:
        """Forget the waiting bytes, which were lost with the connection."""
        self.total.used -= self.tracked - self.flushed
        self.flushed = self.tracked
        self.trackers.clear()


class SendBuffers:
    """The buffer usage of each peer of one socket.

    Args:
        max_bytes: Limit of the bytes that wait for one peer. A longer message is sent if no other
            one waits.
        total: Usage of all peers, with those of other sockets; None for no common limit.
    """

    __slots__ = ("_first", "_prune_above", "_usages", "max_bytes", "total")

    def __init__(self, max_bytes: int = MAX_UNSENT_BYTES, total: TotalUsage | None = None) -> None:
        self.max_bytes = max_bytes
        self.total = total or TotalUsage()
        self._usages: dict[bytes, BufferUsage] = {}
        self._prune_above = PRUNE_ABOVE
        self._first = STEP

    def __len__(self) -> int:
        """Return the number of peers."""
        return len(self._usages)

    def usage(self, peer: bytes) -> BufferUsage:
        """Return the usage of a peer, making it if it is new."""
        usage = self._usages.get(peer)
        if usage is None:
            if len(self._usages) >= self._prune_above:
                self._drop_idle()
            self.total.peers += 1
            first = min(self._first, self.total.step)
            usage = self._usages[peer] = BufferUsage(self.total, track_at=first)
        return usage

    def forget(self, peer: bytes) -> None:
        """Forget a disconnected peer."""
        usage = self._usages.pop(peer, None)
        if usage is not None:
            self.total.peers -= 1
            usage.close()

    def waiting(self, peer: bytes) -> int:
        """Return an upper bound of the bytes that wait for a peer."""
        usage = self._usages.get(peer)
        return 0 if usage is None else usage.count_waiting()

    def allocate(self, usage: BufferUsage, size: int, before: int, coming: int) -> bool:
        """Allocate the bytes of a message of this tick; return whether `may_send` will allow it.

        Messages to other peers that get trackers before it do not count against allocated bytes.

        Args:
            usage: Usage of the peer.
            size: Bytes of the message.
            before: Bytes that will be sent to the peer before it.
            coming: Bytes that will be sent to all peers before it.
        """
        if not self._fits(usage, size, before, coming):
            return False
        usage.allocated = max(usage.allocated, size + before)
        return True

    def may_send(self, usage: BufferUsage, size: int) -> bool:
        """Return whether a message of ``size`` bytes may be sent now; use up its allocation."""
        allocated = (
            SHORT < size <= usage.allocated and self.total.used + size <= self.total.max_bytes
        )
        if allocated:
            usage.allocated -= size
        return self._fits(usage, size, spare=2 * self.total.step if allocated else 0)

    def _fits(
        self, usage: BufferUsage, size: int, before: int = 0, coming: int = 0, *, spare: int = 0
    ) -> bool:
        waiting, total = usage.count_waiting() + before, self.total
        # Bytes sent after the last tracker do not count here: without another tracker they would
        # seem to wait for ever.
        buffered = usage.tracked - usage.flushed + before
        if buffered + size > total.share(coming):
            total.refresh()
        share = total.share(coming)
        max_bytes, part = self.max_bytes, share + spare
        if size <= SHORT:
            reserve = min(RESERVE, max(2 * total.step, share))
            if usage.sent + size - usage.long_at <= reserve:  # it had its share before
                part = max(part, buffered + size)
            part += reserve
            max_bytes += reserve
        if waiting + size <= max_bytes and buffered + size <= part:
            return True
        single = waiting <= STEP + spare
        return single and total.used + coming + size <= PART_OF_SINGLES * total.max_bytes + spare

    def _drop_idle(self) -> None:
        """Forget the peers without an open tracker, most of which have disconnected.

        For such a peer fewer bytes than a step may wait, which are forgotten. That happens once:
        from now on the first message to a new peer has a tracker, so the peer is not forgotten.
        """
        self._first = 1
        for usage in self._usages.values():
            usage.count_waiting()
        before = len(self._usages)
        self._usages = {peer: used for peer, used in self._usages.items() if used.trackers}
        self.total.peers -= before - len(self._usages)
        self._prune_above = max(PRUNE_ABOVE, 2 * len(self._usages))


def event_fd(socket: zmq.Socket[bytes]) -> int:
    """Return a descriptor that becomes readable when the socket may have a message.

    The descriptor is edge-triggered: its owner must read until the socket has no message, also
    before the first poll. A poll of the socket itself costs 2 us more, even if nothing arrives, as
    from most monitors. Source: zmq_getsockopt(3), ZMQ_FD.
    """
    fd = socket.get(zmq.FD)
    assert isinstance(fd, int)  # noqa: S101 - pyzmq types it as int or bytes
    return fd


def _handshake_failure(event: int) -> str:
    """Return why a handshake failed, from an event of a monitor; "" for other events."""
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return "it refused the key: the broker's administrator authorises it"
    if event & HANDSHAKES & ~zmq.EVENT_HANDSHAKE_SUCCEEDED:
        return (
            "the handshake failed: one side uses CURVE keys and the other none, or not this "
            "broker's: see the settings key_file and broker_key_file; or the broker hangs"
        )
    return ""


class NoConnection(Exception):
    """The ROUTER has no connection for this identity."""


def new_context() -> zmq.Context[zmq.Socket[bytes]]:
    """Return a context, after seeding libc's random numbers, from which routing ids are made."""
    if os.name == "posix":  # CDLL(None), since searching for libc starts other programs
        ctypes.CDLL(None).srand(int.from_bytes(os.urandom(4), "little"))
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, min(65_535, context.get(zmq.SOCKET_LIMIT)))
    return context


class Link:
    """A socket that sends and receives whole messages as lists of frames."""

    __slots__ = (
        "_first_events",
        "_items",
        "_streak",
        "handshake_error",
        "host",
        "monitor",
        "monitor_fd",
        "socket",
    )

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.socket = socket
        self._items = [(socket, int(zmq.POLLIN))]
        #: Messages received in a row.
        self._streak = 0
        #: Link of the monitor; None without `watch`.
        self.monitor: Link | None = None
        #: Events that arrived before `monitor_fd` could report them.
        self._first_events: list[tuple[int, int]] = []
        #: Readable when there are `events`, -1 without `watch`; see `event_fd`.
        self.monitor_fd = -1
        #: Why the last handshake failed that `connections` has read, "" if none has.
        self.handshake_error = ""
        #: Name of the host, which is resolved once if it cannot be reached, to report an error; ""
        #: for none.
        self.host = ""

    def watch(self, events: int = HANDSHAKES | CONNECTIONS) -> None:
        """Start to record events of the socket; ``inproc://`` reports none.

        The monitor has no high-water mark, since libzmq's own thread would block at it.
        """
        address = f"inproc://eventmq.monitor.{os.urandom(8).hex()}"
        self.socket.monitor(address, events)
        monitor = self.socket.context.socket(zmq.PAIR)
        monitor.set(zmq.LINGER, 0)
        monitor.set(zmq.RCVHWM, 0)
        monitor.connect(address)
        self.monitor, self.monitor_fd = Link(monitor), event_fd(monitor)
        self._first_events = list(self._events())

    def events(self) -> Iterator[tuple[int, int]]:
        """Yield the events since the last call, with their values.

        The value of ``EVENT_DISCONNECTED`` is the number of the connection. Source:
        zmq_socket_monitor(3). pyzmq's own reader is not used, since it imports asyncio, which would
        slow down the start of each command.
        """
        first, self._first_events = self._first_events, []
        yield from first
        yield from self._events()

    def _events(self) -> Iterator[tuple[int, int]]:
        while self.monitor is not None and (frames := self.monitor.receive()) is not None:
            yield _EVENT.unpack(frames[0])

    def connections(self) -> list[bool]:
        """Return the changes since the last call: True for each connection made, False if lost."""
        changes = []
        for event, _ in self.events():
            self.handshake_error = _handshake_failure(event) or self.handshake_error
            if event in {zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED}:
                changes.append(event == zmq.EVENT_HANDSHAKE_SUCCEEDED)
            elif event == zmq.EVENT_CONNECT_RETRIED and self.host:
                host, self.host = self.host, ""
                # It may take seconds if no name server answers.
                Thread(target=self._resolve, args=(host,), name="resolver", daemon=True).start()
        return changes

    def _resolve(self, host: str) -> None:
        """Record an error if a host cannot be resolved: libzmq retries without reporting it."""
        try:
            getaddrinfo(host, None)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or "it is no name of a host"
            self.handshake_error = f"the host {host!r} cannot be resolved: {why}"

    def send(self, frames: Sequence[bytes]) -> bool:
        """Send a message now.

        Returns:
            False if it would have to wait; then nothing was sent.

        Raises:
            NoConnection: A ROUTER has no peer with that identity.
        """
        socket = self.socket
        last = len(frames) - 1
        try:
            for frame in frames[:last]:
                _send(socket, frame, _MORE)
            _send(socket, frames[last], _LAST)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                raise NoConnection from None
            raise
        return True

    def _first(self) -> zmq.Frame | None:
        """Return the first frame of the next message, None if there is none now."""
        # Usually messages come one by one: a poll for another one costs 2 us, the exception 7 us.
        if self._streak == 1 and not zmq_poll(self._items, 0):
            self._streak = 0
            return None
        try:
            frame = _recv(self.socket, _LAST, False)  # noqa: FBT003 - positional for speed
        except zmq.Again:
            self._streak = 0
            return None
        self._streak += 1
        return frame

    def receive(self) -> list[bytes] | None:
        """Return the next message, None if there is none now.

        Frames after the first `MAX_FRAMES` are dropped; the rest is still too long to be valid.
        """
        socket, frame = self.socket, self._first()
        if frame is None:
            return None
        frames = [frame.bytes]
        while frame.more:
            frame = _recv(socket, _LAST, False)  # noqa: FBT003
            if len(frames) < MAX_FRAMES:
                frames.append(frame.bytes)
        return frames

    def bind(self, address: str) -> str:
        """Bind and return the real address; port 0 takes a free one."""
        self.socket.bind(address.replace("tcp://*", "tcp://0.0.0.0"))
        endpoint = self.socket.get(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)  # noqa: S101 - pyzmq types it as int or bytes
        return endpoint.rstrip(b"\0").decode()

    def close(self, linger_ms: int = LINGER_MS) -> None:
        """Close the socket. Idempotent."""
        if self.monitor is not None:
            if not self.socket.closed:
                self.socket.disable_monitor()
            self.monitor.close(0)
            self.monitor, self.monitor_fd = None, -1
        self.socket.close(linger_ms)


class RouterLink(Link):
    """A link of a ROUTER, which limits the bytes that wait for each of its peers.

    Args:
        socket: The socket.
        max_bytes: Limit of the bytes that wait for one peer, see `SendBuffers`.
        total: Usage of all peers, with those of other links; None for no common limit.
    """

    __slots__ = ("buffers",)

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        max_bytes: int = MAX_UNSENT_BYTES,
        total: TotalUsage | None = None,
    ) -> None:
        super().__init__(socket)
        self.buffers = SendBuffers(max_bytes, total)
        # The first tracker makes pyzmq start a thread with its own context. Do that now, before
        # peers may have used up all descriptors.
        zmq.Frame(b"", track=True, copy=False)

    def send(self, frames: Sequence[bytes]) -> bool:
        """Send a message now, the first frame being the identity of the peer.

        Returns:
            False if too many bytes wait for the peer; then nothing was sent.

        Raises:
            NoConnection: There is no peer with that identity.
        """
        usage = self.buffers.usage(frames[0])
        sent = usage.sent + sum(map(len, frames))
        try:
            if sent >= usage.track_at:
                return self._send_tracked(frames, usage, sent)
            if not Link.send(self, frames):
                return self._full(frames[0], usage)
        except NoConnection:
            self.buffers.forget(frames[0])
            raise
        usage.sent = sent
        return True

    def _send_tracked(self, frames: Sequence[bytes], usage: BufferUsage, sent: int) -> bool:
        """Send a message whose last frame has a tracker, unless too many bytes wait."""
        size = sent - usage.sent
        if not self.buffers.may_send(usage, size):
            total, first, usage.refused = self.buffers.total, not usage.refused, True
            if not (first and total.yield_thread() and self.buffers.may_send(usage, size)):
                return self._full(frames[0], usage)
        usage.refused = False
        try:
            last = zmq.Frame(frames[-1], track=True, copy=False)
        except RuntimeError:  # the interpreter is shutting down, and pyzmq with it
            return Link.send(self, frames)
        if not Link.send(self, [*frames[:-1], cast("bytes", last)]):  # libzmq accepts both
            return self._full(frames[0], usage)
        usage.sent = sent
        usage.track(last.tracker, size)
        return True

    def _full(self, peer: bytes, usage: BufferUsage) -> bool:
        """Log once that a peer is too slow."""
        waiting, total = usage.count_waiting(), self.buffers.total
        if waiting < self.buffers.max_bytes // 2 and total.share() < self.buffers.max_bytes:
            if not total.warned:
                total.warned = True
                text = (
                    "peers are slow to read: %d bytes wait for all of them together, of %d that "
                    "max_total_unsent_bytes allows; those with most get no more until they read"
                )
                logger.warning(text, total.used, total.max_bytes)
        elif not usage.warned:
            usage.warned = True
            text = (
                "peer %r is slow to read: %d bytes wait for it, and it gets no more until it reads"
            )
            logger.warning(text, peer, waiting)
        return False


class IdentifiedLink(RouterLink):
    """A link that identifies the sender of each message by its connection.

    Args:
        socket: The socket.
        name: Property of the connection: ``User-Id`` of the ZAP handler, or ``Peer-Address``.
        max_bytes: Limit of the bytes that wait for one peer.
        total: Usage of all peers; None for no common limit.
    """

    __slots__ = ("_name", "connection", "user")

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        name: str,
        max_bytes: int = MAX_UNSENT_BYTES,
        total: TotalUsage | None = None,
    ) -> None:
        super().__init__(socket, max_bytes, total)
        self._name = name
        #: Sender of the last received message, "" if libzmq does not know it.
        self.user = ""
        #: Number of the connection of that message: its descriptor, -1 if it has none.
        self.connection = -1

    def receive(self) -> list[bytes] | None:
        """Receive as `Link.receive` does, and set ``user`` and ``connection``."""
        socket, frame = self.socket, self._first()
        if frame is None:
            return None
        frames = [frame.bytes]
        while frame.more:
            frame = _recv(socket, _LAST, False)  # noqa: FBT003
            if len(frames) < MAX_FRAMES:
                frames.append(frame.bytes)
        try:
            self.user = str(frame.get(self._name))
            self.connection = int(frame.get("__fd"))
        except zmq.ZMQError:
            self.user, self.connection = "", -1
        return frames


def _common(socket: zmq.Socket[bytes], max_frame: int) -> None:
    socket.set(zmq.LINGER, LINGER_MS)
    socket.set(zmq.SNDHWM, 100_000)
    socket.set(zmq.RCVHWM, 100_000)
    if max_frame:
        socket.set(zmq.MAXMSGSIZE, max_frame + _FRAME_SLACK)
    socket.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)


def open_dealer(
    context: zmq.Context[zmq.Socket[bytes]],
    address: str,
    *,
    kind: str = "client",
    max_frame: int = 0,
    keys: ClientKeys | None = None,
    watch: bool = False,
) -> Link:
    """Return a DEALER that connects to ``address``, with CURVE if it has keys.

    It uses ``ZMQ_IMMEDIATE``: without a connection `Link.send` returns False instead of keeping the
    message. It gets a new routing id, since the broker may still have a half-open connection with
    an earlier one; see `eventmq.wire.features`.

    Args:
        context: The context.
        address: Address of the broker.
        kind: Kind of peer in the routing id: ``client``, ``worker`` or ``scheduler``.
        max_frame: Bytes of the longest frame that it accepts, 0 for no limit.
        keys: Keys for CURVE.
        watch: Record events from before the connection is made. If the mechanisms of both sides
            differ, libzmq reports only one event and does not retry.
    """
    name = routing_id(kind, uuid.uuid4().hex)
    socket = context.socket(zmq.DEALER)
    _common(socket, max_frame)
    socket.set(zmq.IMMEDIATE, 1)
    socket.set(zmq.RECONNECT_IVL, 50)
    socket.set(zmq.RECONNECT_IVL_MAX, 500)
    socket.set(zmq.IDENTITY, name)
    use_keys(socket, keys)
    link = Link(socket)
    if watch:
        link.watch()
    socket.connect(address)
    link.host = _name_of_host(address)
    return link


def _name_of_host(address: str) -> str:
    """Return the name of the host in an address, "" if it has none or is numeric."""
    scheme, _, rest = address.partition("://")
    host = rest.rpartition(":")[0]
    numeric = "[" in host or host.replace(".", "").isdigit()
    return "" if numeric or scheme != "tcp" else host


def use_keys(socket: zmq.Socket[bytes], keys: ClientKeys | None) -> None:
    """Make a socket a CURVE client before it connects; do nothing without keys."""
    if keys is not None:
        socket.set(zmq.CURVE_SERVERKEY, keys.broker)
        socket.set(zmq.CURVE_PUBLICKEY, keys.public)
        socket.set(zmq.CURVE_SECRETKEY, keys.secret)


def open_router(
    context: zmq.Context[zmq.Socket[bytes]],
    *,
    max_frame: int = 0,
    identified_by: str = "",
    high_water: int = 0,
    max_unsent_bytes: int = MAX_UNSENT_BYTES,
    total: TotalUsage | None = None,
) -> RouterLink:
    """Return a ROUTER that reports absent peers, and lets no peer use the identity of another one.

    With ``identified_by`` it is an `IdentifiedLink`, which costs 0.8 us per message. ``high_water``
    limits the messages that wait for one peer, 0 for the default; ``max_unsent_bytes`` limits their
    bytes, and ``total`` the bytes for all peers of the links that share it.
    """
    socket = context.socket(zmq.ROUTER)
    _common(socket, max_frame)
    if high_water:
        socket.set(zmq.SNDHWM, high_water)
    socket.set(zmq.ROUTER_MANDATORY, 1)
    socket.set(zmq.ROUTER_HANDOVER, 0)
    if identified_by:
        return IdentifiedLink(socket, identified_by, max_unsent_bytes, total)
    return RouterLink(socket, max_unsent_bytes, total)


def open_pub(context: zmq.Context[zmq.Socket[bytes]]) -> Link:
    """Return a PUB socket. It receives only subscriptions, which are short."""
    socket = context.socket(zmq.PUB)
    socket.set(zmq.TCP_MAXRT, SUBSCRIBER_MS)
    _common(socket, _SUBSCRIPTION)
    return Link(socket)


def encrypt(link: Link, secret: bytes, domain: bytes = DOMAIN) -> None:
    """Make a link a CURVE server before it is bound; without a ZAP handler no peer can connect.

    The handler gets the domain, which identifies the sockets of one context.
    """
    link.socket.set(zmq.CURVE_SERVER, 1)
    link.socket.set(zmq.CURVE_SECRETKEY, secret)
    link.socket.set(zmq.ZAP_DOMAIN, domain)
    link.socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)


def new_keys() -> tuple[bytes, bytes]:
    """Return a new pair of CURVE keys in Z85: the public one, then the secret one."""
    return zmq.curve_keypair()


def is_wildcard(address: str) -> bool:
    """Return whether an address to bind stands for all interfaces, so that it names no host."""
    scheme, _, rest = address.partition("://")
    return scheme == "tcp" and rest.rpartition(":")[0].strip("[]") in {"*", "0.0.0.0", "::"}  # noqa: S104 - compared, not bound


def is_local(address: str) -> bool:
    """Return whether an address can be reached from this machine only."""
    scheme, _, rest = address.partition("://")
    if scheme in {"inproc", "ipc"}:
        return True
    host = rest.rpartition(":")[0].strip("[]")
    return host in {"localhost", "::1"} or host.startswith("127.")
