"""ZeroMQ sockets: sends and receives messages as frames, bounds what is unsent, reads monitors.

`zmq.Socket` adds Python layers to each call: a seven-frame message costs 27 us to send and 27 us
to receive through them, 4 us and 8 us through the compiled base class that is used here.

A `Link` belongs to one thread. It never waits; its owner polls `Link.socket`. The links of ROUTERs
know how many bytes are unsent for each peer (`SendBuffers`, `BufferUsage`) and for all peers of a
broker together (`TotalUsage`): libzmq says it of no peer, so some messages carry a tracker.
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


#: Bytes that may wait for one peer, by default.
MAX_UNSENT_BYTES = 64 * 1024 * 1024

#: Bytes between two trackers, each of which costs some 30 us: usually, and with very many peers.
STEP, MIN_STEP = 256 * 1024, 8 * 1024

#: Part of the total that all peers together may have behind their last trackers.
UNTRACKED = 0.25

#: Of the second half of the total a peer may use: such a part of the total, or of what is free.
PART_OF_TOTAL, PART_OF_FREE = 256, 16

#: Part of the total up to which a message is sent by itself that is longer than a peer's part.
PART_OF_SINGLES = 0.75

#: Peers whose trackers are checked before a message is refused because of the total.
REFRESH_PEERS = 64

#: Bytes where the total has no bound.
_ANY = 1 << 62

#: A message of so many bytes may still be sent to a peer over its bound, up to this reserve: it
#: says what is wrong, or that a job is cancelled.
SHORT, RESERVE = 1024, 1024 * 1024

#: Seconds that a peer's first refused message waits, and between two such waits.
YIELD, YIELD_INTERVAL = 0.002, 0.05

#: Peers above which those without unsent bytes are forgotten.
SWEEP_ABOVE = 1024

logger = logging.getLogger("eventmq.wire")

#: Events of a monitor: a handshake failed before ZAP was asked.
FAILURES = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL

#: Events of a monitor that end a handshake.
HANDSHAKES = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | FAILURES

#: Events of a monitor about the transport: it was lost, or could not be made.
CONNECTIONS = zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED

_send = _Base.send

_recv = _Base.recv

_MORE = zmq.SNDMORE | zmq.DONTWAIT

_LAST = zmq.DONTWAIT

#: A message of a monitor: event and value.
_EVENT = struct.Struct("=Hi")

#: Milliseconds that a handshake may take.
HANDSHAKE_MS = 10_000

#: Milliseconds that a subscriber may take nothing; then it is cut (TCP_USER_TIMEOUT, on Linux).
SUBSCRIBER_MS = 15_000

#: Milliseconds that a closing socket may spend on what was not sent yet.
LINGER_MS = 1000

#: Bytes that a message may have around its payload, on top of ``max-frame``.
_FRAME_SLACK = 64 * 1024

#: Bytes of the longest topic that a subscriber names, on top of the slack.
_SUBSCRIPTION = 1

#: ZAP domain of our sockets, so that libzmq admits no peer while there is no handler.
DOMAIN = b"eventmq"

#: Frames of one message that are kept: more than any limit, so that a message of a million
#: empty frames costs nothing once it was read.
MAX_FRAMES = 1000


class Tracker(Protocol):
    """A frame that was lent to libzmq, as `zmq.MessageTracker` is."""

    @property
    def done(self) -> bool:
        """Whether libzmq has sent it, or dropped it with the connection."""


class TotalUsage:
    """The bytes that wait for all peers of some sockets together, up to the last tracker of each.

    Args:
        max_bytes: Bytes that may wait.

    Attributes:
        used: Bytes that wait, at most: the trackers of some may have been done since.
        peers: How many peers have a buffer usage.
        warned: The bound was logged, and has been met ever since.
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
        """Let pyzmq's thread record what libzmq has sent; return False if it was let lately.

        What a peer has read is known once that thread has run, which this one may keep from it.
        """
        now = time.monotonic()
        if now < self._yield_at:
            return False
        time.sleep(YIELD)
        self._yield_at = now + YIELD_INTERVAL
        return True

    def share(self, coming: int = 0) -> int:
        """Return how many bytes one peer may have now, or when so many others have been sent."""
        free = max(0, self.max_bytes - self.used - coming)
        return max(
            (free - self.max_bytes // 2) // 2,
            min(self.max_bytes // PART_OF_TOTAL, free // PART_OF_FREE),
        )

    @property
    def step(self) -> int:
        """Bytes from one tracker of a peer to the next."""
        return max(MIN_STEP, min(STEP, int(UNTRACKED * self.max_bytes) // max(1, self.peers)))

    def add_open(self, usage: BufferUsage) -> None:
        """Record that a usage has a tracker that is not done.

        Two older ones are settled, so that those of peers that come and go do not add up where
        nothing else calls `refresh`.
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
    """The bytes that were sent to one peer, since it connected, and those of them that still wait.

    Attributes:
        total: Of all peers.
        sent: Handed to libzmq.
        flushed: Of these, what libzmq is known to have sent.
        track_at: A message that comes to so many gets a tracker.
        trackers: That are not done as far as is known: the tracker, and what was sent with it.
        tracked: What was sent with the last tracker.
        long_at: What was sent with the last one whose message was not short.
        allocated: Bytes that `SendBuffers.allocate` has said may be sent.
        listed: The total looks at it from time to time.
        warned: Its bound was logged.
        refused: The last message with a tracker was not sent, since too much waited.
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
        """Account for trackers that are done; return how many bytes wait, at most."""
        trackers = self.trackers
        before = self.flushed
        while trackers and trackers[0][0].done:
            self.flushed = trackers.popleft()[1]
        self.total.used -= self.flushed - before
        return self.sent - self.flushed

    def track(self, tracker: Tracker, size: int = SHORT + 1) -> None:
        """Record the tracker of the message that was sent last, and its size in bytes."""
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
        """Forget what waits: the connection is gone, and what waited with it."""
        self.total.used -= self.tracked - self.flushed
        self.flushed = self.tracked
        self.trackers.clear()


class SendBuffers:
    """The buffer usage of each peer of one socket.

    Args:
        max_bytes: Bytes that may wait for one peer. A message that is longer is sent by itself.
        total: What may wait for all of them, with those of other sockets; None for any number.
    """

    __slots__ = ("_first", "_sweep_above", "_usages", "max_bytes", "total")

    def __init__(self, max_bytes: int = MAX_UNSENT_BYTES, total: TotalUsage | None = None) -> None:
        self.max_bytes = max_bytes
        self.total = total or TotalUsage()
        self._usages: dict[bytes, BufferUsage] = {}
        self._sweep_above = SWEEP_ABOVE
        self._first = STEP

    def __len__(self) -> int:
        """Return the number of peers."""
        return len(self._usages)

    def usage(self, peer: bytes) -> BufferUsage:
        """Return the usage of a peer, a new one where it has none."""
        usage = self._usages.get(peer)
        if usage is None:
            if len(self._usages) >= self._sweep_above:
                self._drop_idle()
            self.total.peers += 1
            first = min(self._first, self.total.step)
            usage = self._usages[peer] = BufferUsage(self.total, track_at=first)
        return usage

    def forget(self, peer: bytes) -> None:
        """Forget a peer that is not connected any more."""
        usage = self._usages.pop(peer, None)
        if usage is not None:
            self.total.peers -= 1
            usage.close()

    def waiting(self, peer: bytes) -> int:
        """Return how many bytes wait for a peer, at most."""
        usage = self._usages.get(peer)
        return 0 if usage is None else usage.count_waiting()

    def allocate(self, usage: BufferUsage, size: int, before: int, coming: int) -> bool:
        """Allocate the bytes of a message of this tick; return whether `may_send` will allow it.

        Until then others may get trackers: for allocated bytes that does not count.

        Args:
            usage: Of the peer.
            size: Bytes of the message.
            before: Bytes that the peer will have been sent before it.
            coming: Bytes that all peers will.
        """
        if not self._fits(usage, size, before, coming):
            return False
        usage.allocated = max(usage.allocated, size + before)
        return True

    def may_send(self, usage: BufferUsage, size: int) -> bool:
        """Return whether a message of ``size`` bytes may be sent now; use up what was allocated."""
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
        # Bytes behind the last tracker do not count here: without another one they would seem to
        # wait for ever.
        buffered = usage.tracked - usage.flushed + before
        if buffered + size > total.share(coming):
            total.refresh()
        share = total.share(coming)
        max_bytes, part = self.max_bytes, share + spare
        if size <= SHORT:
            reserve = min(RESERVE, max(2 * total.step, share))
            if usage.sent + size - usage.long_at <= reserve:  # it had its part before
                part = max(part, buffered + size)
            part += reserve
            max_bytes += reserve
        if waiting + size <= max_bytes and buffered + size <= part:
            return True
        single = waiting <= STEP + spare
        return single and total.used + coming + size <= PART_OF_SINGLES * total.max_bytes + spare

    def _drop_idle(self) -> None:
        """Forget the peers that have no open tracker: mostly those that have disconnected.

        For such a peer less than a step waits, which is forgotten once: from now on the first
        message to a peer has a tracker, which keeps it.
        """
        self._first = 1
        for usage in self._usages.values():
            usage.count_waiting()
        before = len(self._usages)
        self._usages = {peer: used for peer, used in self._usages.items() if used.trackers}
        self.total.peers -= before - len(self._usages)
        self._sweep_above = max(SWEEP_ABOVE, 2 * len(self._usages))


def event_fd(socket: zmq.Socket[bytes]) -> int:
    """Return a descriptor that becomes readable when the socket may have a message.

    It says so once, and only after an attempt that found no message: its owner reads until there
    is none, before the first poll too. A poll of the socket itself costs 2 us more, also
    where nothing ever comes, as from a monitor. Source: zmq_getsockopt(3), ZMQ_FD.
    """
    fd = socket.get(zmq.FD)
    assert isinstance(fd, int)  # noqa: S101 - pyzmq types it as int or bytes
    return fd


def _handshake_failure(event: int) -> str:
    """Return why a handshake failed, by an event of a monitor, as text; "" for other events."""
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
    """Return a context, with libc's generator seeded first: routing ids come from it."""
    if os.name == "posix":  # of all libraries of the process: to look for libc starts others
        ctypes.CDLL(None).srand(int.from_bytes(os.urandom(4), "little"))
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, min(65_535, context.get(zmq.SOCKET_LIMIT)))
    return context


class Link:
    """A socket that sends and receives whole messages as lists of frames."""

    __slots__ = (
        "_early",
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
        #: Messages received since there was none.
        self._streak = 0
        #: What `events` reads; None without `watch`.
        self.monitor: Link | None = None
        #: Events from before the descriptor worked.
        self._early: list[tuple[int, int]] = []
        #: Readable when there are `events`, -1 without `watch`; see `event_fd`.
        self.monitor_fd = -1
        #: Why the last handshake failed, as text, as far as `connections` has seen.
        self.handshake_error = ""
        #: Name of the host that is resolved once when it cannot be reached, "" for none.
        self.host = ""

    def watch(self, events: int = HANDSHAKES | CONNECTIONS) -> None:
        """Start to record such events of the socket; ``inproc://`` reports none.

        The monitor has no high-water mark: at one, libzmq's own thread would wait for us.
        """
        address = f"inproc://eventmq.monitor.{os.urandom(8).hex()}"
        self.socket.monitor(address, events)
        monitor = self.socket.context.socket(zmq.PAIR)
        monitor.set(zmq.LINGER, 0)
        monitor.set(zmq.RCVHWM, 0)
        monitor.connect(address)
        self.monitor, self.monitor_fd = Link(monitor), event_fd(monitor)
        self._early = list(self._events())

    def events(self) -> Iterator[tuple[int, int]]:
        """Yield what happened since the last call: the event, and its value.

        Of ``EVENT_DISCONNECTED`` the value is the number of the connection. Source:
        zmq_socket_monitor(3). pyzmq's own reader imports asyncio, which each command of the command
        line would pay for.
        """
        early, self._early = self._early, []
        yield from early
        yield from self._events()

    def _events(self) -> Iterator[tuple[int, int]]:
        while self.monitor is not None and (frames := self.monitor.receive()) is not None:
            yield _EVENT.unpack(frames[0])

    def connections(self) -> list[bool]:
        """Return what happened since the last call: True for each connection made, False lost."""
        happened = []
        for event, _ in self.events():
            self.handshake_error = _handshake_failure(event) or self.handshake_error
            if event in {zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED}:
                happened.append(event == zmq.EVENT_HANDSHAKE_SUCCEEDED)
            elif event == zmq.EVENT_CONNECT_RETRIED and self.host:
                host, self.host = self.host, ""
                # It may take seconds where no name server answers.
                Thread(target=self._resolve, args=(host,), name="resolver", daemon=True).start()
        return happened

    def _resolve(self, host: str) -> None:
        """Record it if a host cannot be resolved: libzmq tries again, and does not say so."""
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
            NoConnection: A ROUTER has no peer of that identity.
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
        """Return the first frame of the next message, or None if there is none now."""
        # Mostly one message comes at a time: to ask for another costs 2 us, the exception 7.
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
        """Return the next message, or None if there is none now.

        Frames beyond `MAX_FRAMES` are dropped; what is left is too many for any peer.
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
    """A link of a ROUTER: it bounds the bytes that wait for each of its peers.

    Args:
        socket: The socket.
        max_bytes: Bytes that may wait for one peer, see `eventmq.wire.sockets`.
        total: What may wait for all of them, with those of other links; None for any number.
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
        # The first tracker makes pyzmq start a thread with its own context: do it before peers may
        # have used up all descriptors.
        zmq.Frame(b"", track=True, copy=False)

    def send(self, frames: Sequence[bytes]) -> bool:
        """Send a message now, the first frame being the identity of the peer.

        Returns:
            False if too much waits for the peer; then nothing was sent.

        Raises:
            NoConnection: There is no peer of that identity.
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
        """Send a message whose last frame has a tracker, unless too much waits."""
        size = sent - usage.sent
        if not self.buffers.may_send(usage, size):
            total, first, usage.refused = self.buffers.total, not usage.refused, True
            if not (first and total.yield_thread() and self.buffers.may_send(usage, size)):
                return self._full(frames[0], usage)
        usage.refused = False
        try:
            last = zmq.Frame(frames[-1], track=True, copy=False)
        except RuntimeError:  # the interpreter ends, and pyzmq with it
            return Link.send(self, frames)
        if not Link.send(self, [*frames[:-1], cast("bytes", last)]):  # libzmq takes either
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
            text = "peer %r is slow to read: %d bytes wait for it, and it gets no more until it has"
            logger.warning(text, peer, waiting)
        return False


class IdentifiedLink(RouterLink):
    """A link that identifies the sender of each message by its connection.

    Args:
        socket: The socket.
        name: Property of the connection: ``User-Id`` of the ZAP handler, or ``Peer-Address``.
        max_bytes: Bytes that may wait for one peer.
        total: What may wait for all of them.
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
        #: Sender of the message that was received last; "" where libzmq knows none.
        self.user = ""
        #: Number of the connection that it came over: its descriptor, -1 where there is none.
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
    """Return a DEALER that connects to ``address``, with CURVE where there are keys.

    With ``ZMQ_IMMEDIATE``: while there is no connection, `Link.send` returns False instead of
    keeping a message for later. Each has a routing id of its own, so that no half-open connection
    is in its way; see `eventmq.wire.features`.

    Args:
        context: The context.
        address: Of the broker.
        kind: Kind of peer in the routing id: ``client``, ``worker`` or ``scheduler``.
        max_frame: Bytes of the longest frame that it takes, 0 for no limit.
        keys: For CURVE.
        watch: Record events from the first one on. Where the mechanisms differ there is one alone:
            libzmq does not try again.
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
    """Return the name of the host in an address, "" where it is a number, or there is none."""
    scheme, _, rest = address.partition("://")
    host = rest.rpartition(":")[0]
    numeric = "[" in host or host.replace(".", "").isdigit()
    return "" if numeric or scheme != "tcp" else host


def use_keys(socket: zmq.Socket[bytes], keys: ClientKeys | None) -> None:
    """Make a socket that does not connect yet a CURVE client, where there are keys."""
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
    """Return a ROUTER that reports absent peers, and lets no peer take another's identity.

    With ``identified_by`` it is an `IdentifiedLink`, which costs 0.8 us per message. ``high_water``
    bounds the messages that wait for one peer, 0 as usual; ``max_unsent_bytes`` their bytes, and
    ``total`` the bytes for all peers of the links that share it.
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
    """Return a PUB socket. It receives subscriptions alone, which are short."""
    socket = context.socket(zmq.PUB)
    socket.set(zmq.TCP_MAXRT, SUBSCRIBER_MS)
    _common(socket, _SUBSCRIPTION)
    return Link(socket)


def encrypt(link: Link, secret: bytes, domain: bytes = DOMAIN) -> None:
    """Make a link that is not bound yet a CURVE server; without a ZAP handler no peer connects.

    The handler gets the domain, by which it tells the sockets of one context apart.
    """
    link.socket.set(zmq.CURVE_SERVER, 1)
    link.socket.set(zmq.CURVE_SECRETKEY, secret)
    link.socket.set(zmq.ZAP_DOMAIN, domain)
    link.socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)


def new_keys() -> tuple[bytes, bytes]:
    """Return a new pair of CURVE keys in Z85: the public one, then the secret one."""
    return zmq.curve_keypair()


def is_wildcard(address: str) -> bool:
    """Return whether an address to bind is one of all interfaces, so that it names no host."""
    scheme, _, rest = address.partition("://")
    return scheme == "tcp" and rest.rpartition(":")[0].strip("[]") in {"*", "0.0.0.0", "::"}  # noqa: S104 - it is looked for


def is_local(address: str) -> bool:
    """Return whether an address can be reached from this machine only."""
    scheme, _, rest = address.partition("://")
    if scheme in {"inproc", "ipc"}:
        return True
    host = rest.rpartition(":")[0].strip("[]")
    return host in {"localhost", "::1"} or host.startswith("127.")
