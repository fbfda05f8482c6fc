"""The one thin file between frames and ZeroMQ sockets.

`zmq.Socket` adds Python layers to each call: a seven-frame message costs 27 us to send and 27 us
to receive through them, 4 us and 8 us through the compiled base class that is used here.

A `Link` belongs to one thread. It never waits; who owns it polls `Link.socket`.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import logging
import os
import uuid
from typing import TYPE_CHECKING, cast

import zmq
from zmq.backend import Socket as _Base
from zmq.backend import zmq_poll

from eventmq.wire import zap
from eventmq.wire.identity import routing_id
from eventmq.wire.runner_monitors import HANDSHAKES, event_fd, event_of, handshake_trouble
from eventmq.wire.unread import MOST, Total, Unread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.wire.curve import ClientKeys
    from eventmq.wire.unread import Account

__all__ = [
    "KnownLink",
    "Link",
    "RouterLink",
    "Unroutable",
    "encrypt",
    "new_context",
    "new_keys",
    "open_dealer",
    "open_pub",
    "open_router",
    "use_keys",
    "watch_failures",
]

logger = logging.getLogger("eventmq.wire")

_send = _Base.send
_recv = _Base.recv
_MORE = zmq.SNDMORE | zmq.DONTWAIT
_LAST = zmq.DONTWAIT

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

#: Frames of one message that are kept: more than any limit, so that a message of a million
#: empty frames costs nothing once it was read.
MOST_FRAMES = 1000


class Unroutable(Exception):
    """The ROUTER has no connection for this identity."""


def new_context() -> zmq.Context[zmq.Socket[bytes]]:
    """Return a context, with libc's generator seeded first: routing ids come from it."""
    libc = ctypes.CDLL(ctypes.util.find_library("c")) if os.name == "posix" else None
    if libc is not None:
        libc.srand(int.from_bytes(os.urandom(4), "little"))
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, min(65_535, context.get(zmq.SOCKET_LIMIT)))
    return context


class Link:
    """A socket that sends and receives whole messages as lists of frames."""

    __slots__ = ("_items", "_streak", "monitor", "monitor_fd", "socket", "trouble")

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.socket = socket
        self._items = [(socket, int(zmq.POLLIN))]
        #: Messages received since there was none.
        self._streak = 0
        #: What `connections` reads; None without `watch`.
        self.monitor: zmq.Socket[bytes] | None = None
        #: Readable when `connections` may have something, -1 without `watch`; see `event_fd`.
        self.monitor_fd = -1
        #: Why the last handshake failed, for people, as far as `connections` has seen.
        self.trouble = ""

    def watch(self) -> None:
        """Begin to note connections made and lost; not told for ``inproc://``."""
        self.monitor = self.socket.get_monitor_socket(HANDSHAKES | zmq.EVENT_DISCONNECTED)
        self.monitor_fd = event_fd(self.monitor)

    def connections(self) -> list[bool]:
        """Return what happened since the last call: True for each connection made, False lost."""
        happened = []
        while self.monitor is not None:
            try:
                event = event_of(self.monitor.recv_multipart(zmq.DONTWAIT))
            except zmq.Again:
                break
            self.trouble = handshake_trouble(event) or self.trouble
            if event in {zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED}:
                happened.append(event == zmq.EVENT_HANDSHAKE_SUCCEEDED)
        return happened

    def send(self, frames: Sequence[bytes]) -> bool:
        """Send a message now.

        Returns:
            False if it would have to wait; then nothing was sent.

        Raises:
            Unroutable: A ROUTER has no peer of that identity.
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
                raise Unroutable from None
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

        Frames beyond `MOST_FRAMES` are dropped; what is left is too many for any peer.
        """
        socket, frame = self.socket, self._first()
        if frame is None:
            return None
        frames = [frame.bytes]
        while frame.more:
            frame = _recv(socket, _LAST, False)  # noqa: FBT003
            if len(frames) < MOST_FRAMES:
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
            self.socket.disable_monitor()
            self.monitor.close(0)
            self.monitor, self.monitor_fd = None, -1
        self.socket.close(linger_ms)


class RouterLink(Link):
    """A link of a ROUTER: it bounds the bytes that wait for each of its peers.

    Args:
        socket: The socket.
        most: Bytes that may wait for one peer, see `eventmq.wire.unread`.
        total: What may wait for all of them, with those of other links; None for any number.
    """

    __slots__ = ("unread",)

    def __init__(
        self, socket: zmq.Socket[bytes], most: int = MOST, total: Total | None = None
    ) -> None:
        super().__init__(socket)
        self.unread = Unread(most, total)
        # The first mark makes pyzmq start a thread, with a context of its own: not when peers may
        # have taken all descriptors.
        zmq.Frame(b"", track=True, copy=False)

    def send(self, frames: Sequence[bytes]) -> bool:
        """Send a message now, the first frame being the identity of the peer.

        Returns:
            False if too much waits for the peer; then nothing was sent.

        Raises:
            Unroutable: There is no peer of that identity.
        """
        account = self.unread.account(frames[0])
        sent = account.sent + sum(map(len, frames))
        try:
            if sent >= account.mark_at:
                return self._send_marked(frames, account, sent)
            if not Link.send(self, frames):
                return self._full(frames[0], account)
        except Unroutable:
            self.unread.forget(frames[0])
            raise
        account.sent = sent
        return True

    def _send_marked(self, frames: Sequence[bytes], account: Account, sent: int) -> bool:
        """Send a message whose last frame tells when it has left, unless too much waits."""
        if not self.unread.admits(account, sent - account.sent):
            return self._full(frames[0], account)
        try:
            last = zmq.Frame(frames[-1], track=True, copy=False)
        except RuntimeError:  # the interpreter ends, and pyzmq with it
            return Link.send(self, frames)
        if not Link.send(self, [*frames[:-1], cast("bytes", last)]):  # libzmq takes either
            return self._full(frames[0], account)
        size = sent - account.sent
        account.sent = sent
        account.mark(last.tracker, size)
        return True

    def _full(self, peer: bytes, account: Account) -> bool:
        """Log once that a peer takes nothing more."""
        waiting, total = account.settle(), self.unread.total
        if waiting < self.unread.most // 2 and total.share() < self.unread.most:
            if not total.warned:
                total.warned = True
                text = (
                    "peers are slow to read: %d bytes wait for all of them together, of %d that "
                    "max_unread_total allows; those with most get no more until they have read"
                )
                logger.warning(text, total.used, total.most)
        elif not account.warned:
            account.warned = True
            text = "peer %r is slow to read: %d bytes wait for it, and it gets no more until it has"
            logger.warning(text, peer, waiting)
        return False


class KnownLink(RouterLink):
    """A link that says with each message whose connection it came over.

    Args:
        socket: The socket.
        name: What of the connection: ``User-Id``, as the ZAP handler said, or ``Peer-Address``.
        most: Bytes that may wait for one peer.
        total: What may wait for all of them.
    """

    __slots__ = ("_name", "connection", "user")

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        name: str,
        most: int = MOST,
        total: Total | None = None,
    ) -> None:
        super().__init__(socket, most, total)
        self._name = name
        #: Of the message that was received last; "" where libzmq knows nothing.
        self.user = ""
        #: Number of the connection that it came over: its descriptor, -1 where there is none.
        self.connection = -1

    def receive(self) -> list[bytes] | None:
        """Do the same as `Link.receive`, and note ``user`` and ``connection``."""
        socket, frame = self.socket, self._first()
        if frame is None:
            return None
        frames = [frame.bytes]
        while frame.more:
            frame = _recv(socket, _LAST, False)  # noqa: FBT003
            if len(frames) < MOST_FRAMES:
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
) -> Link:
    """Return a DEALER that connects to ``address``, with CURVE where there are keys.

    With ``ZMQ_IMMEDIATE``: while there is no connection, `Link.send` returns False instead of
    keeping a message for later. Each has a routing id of its own, so that no half-open connection
    is in its way; see `eventmq.wire.identity`.

    Args:
        context: What it is opened in.
        address: Of the broker.
        kind: What the routing id says that it is for: ``client``, ``worker`` or ``scheduler``.
        max_frame: Bytes of the longest frame that it takes, 0 for no limit.
        keys: For CURVE.
    """
    name = routing_id(kind, uuid.uuid4().hex)
    socket = context.socket(zmq.DEALER)
    _common(socket, max_frame)
    socket.set(zmq.IMMEDIATE, 1)
    socket.set(zmq.RECONNECT_IVL, 50)
    socket.set(zmq.RECONNECT_IVL_MAX, 500)
    socket.set(zmq.IDENTITY, name)
    use_keys(socket, keys)
    socket.connect(address)
    return Link(socket)


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
    known_by: str = "",
    high_water: int = 0,
    max_unsent_bytes: int = MOST,
    total: Total | None = None,
) -> RouterLink:
    """Return a ROUTER that says who is not there, and lets nobody take another's identity.

    With ``known_by`` it is a `KnownLink`, which costs 0.8 us per message. ``high_water`` is how
    many messages wait for one peer, 0 for as many as usual; ``max_unsent_bytes`` how many bytes,
    and ``total`` how many for all peers, with those of other links that it is given to.
    """
    socket = context.socket(zmq.ROUTER)
    _common(socket, max_frame)
    if high_water:
        socket.set(zmq.SNDHWM, high_water)
    socket.set(zmq.ROUTER_MANDATORY, 1)
    socket.set(zmq.ROUTER_HANDOVER, 0)
    if known_by:
        return KnownLink(socket, known_by, max_unsent_bytes, total)
    return RouterLink(socket, max_unsent_bytes, total)


def open_pub(context: zmq.Context[zmq.Socket[bytes]]) -> Link:
    """Return a PUB socket. All that it takes are subscriptions, which are short."""
    socket = context.socket(zmq.PUB)
    socket.set(zmq.TCP_MAXRT, SUBSCRIBER_MS)
    _common(socket, _SUBSCRIPTION)
    return Link(socket)


def encrypt(link: Link, secret: bytes, domain: bytes = zap.DOMAIN) -> None:
    """Make a link that is not bound yet a CURVE server; nobody connects without a ZAP handler.

    The handler is told the domain, so that it can tell the sockets of one context apart.
    """
    link.socket.set(zmq.CURVE_SERVER, 1)
    link.socket.set(zmq.CURVE_SECRETKEY, secret)
    link.socket.set(zmq.ZAP_DOMAIN, domain)
    link.socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)


def watch_failures(context: zmq.Context[zmq.Socket[bytes]], link: Link) -> Link:
    """Return where lost connections and handshakes that fail before ZAP is asked are told.

    There is a message for each, which `eventmq.wire.runner_monitors.lost_connection` reads. It has
    no high-water mark: at one, libzmq's own thread would wait for us.
    """
    address = f"inproc://eventmq.handshakes.{os.urandom(8).hex()}"
    failed = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    link.socket.monitor(address, failed | zmq.EVENT_DISCONNECTED)
    monitor = context.socket(zmq.PAIR)
    monitor.set(zmq.LINGER, 0)
    monitor.set(zmq.RCVHWM, 0)
    monitor.connect(address)
    told = Link(monitor)
    told.receive()  # there is nothing yet, but only behind this look `event_fd` tells of the first
    return told


def new_keys() -> tuple[bytes, bytes]:
    """Return a new pair of CURVE keys in Z85: the public one, then the secret one."""
    return zmq.curve_keypair()
