"""The one thin file between frames and ZeroMQ sockets.

`zmq.Socket` adds Python layers to each call: a seven-frame message costs 27 us to send and 27 us
to receive through them, 4 us and 8 us through the compiled base class that is used here.

A `Link` belongs to one thread. It never waits; who owns it polls `Link.socket`.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import sys
from typing import TYPE_CHECKING

import zmq
from zmq.backend import Socket as _Base

from eventmq.wire import zap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.wire.curve import ClientKeys

__all__ = [
    "KnownLink",
    "Link",
    "Unroutable",
    "encrypt",
    "event_of",
    "handshake_trouble",
    "lost_connection",
    "new_context",
    "new_keys",
    "open_dealer",
    "open_pub",
    "open_router",
    "try_key",
    "watch_failures",
]

_send = _Base.send
_recv = _Base.recv
_MORE = zmq.SNDMORE | zmq.DONTWAIT
_LAST = zmq.DONTWAIT

#: Milliseconds that a handshake may take.
HANDSHAKE_MS = 10_000

#: Milliseconds that a closing socket may spend on what was not sent yet.
LINGER_MS = 1000

#: Bytes that a message may have around its payload, on top of ``max-frame``.
_FRAME_SLACK = 64 * 1024


#: Bytes of the longest topic that a subscriber names, on top of the slack.
_SUBSCRIPTION = 1

#: Frames of one message that are kept: more than any limit, so that a message of a million
#: empty frames costs nothing once it was read.
MOST_FRAMES = 1000


#: Events of a monitor that end a handshake.
_HANDSHAKES = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


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

    __slots__ = ("monitor", "socket", "trouble")

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.socket = socket
        #: Readable when `connections` has something; None without `watch`.
        self.monitor: zmq.Socket[bytes] | None = None
        #: Why the last handshake failed, for people, as far as `connections` has seen.
        self.trouble = ""

    def watch(self) -> None:
        """Begin to note connections made and lost; not told for ``inproc://``."""
        self.monitor = self.socket.get_monitor_socket(_HANDSHAKES | zmq.EVENT_DISCONNECTED)

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

    def receive(self) -> list[bytes] | None:
        """Return the next message, or None if there is none now.

        Frames beyond `MOST_FRAMES` are dropped; what is left is too many for any peer.
        """
        socket = self.socket
        try:
            frame = _recv(socket, _LAST, False)  # noqa: FBT003 - positional for speed
        except zmq.Again:
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
            self.monitor = None
        self.socket.close(linger_ms)


class KnownLink(Link):
    """A link that says with each message whose connection it came over.

    Args:
        socket: The socket.
        name: What of the connection: ``User-Id``, as the ZAP handler said, or ``Peer-Address``.
    """

    __slots__ = ("_name", "connection", "user")

    def __init__(self, socket: zmq.Socket[bytes], name: str) -> None:
        super().__init__(socket)
        self._name = name
        #: Of the message that was received last; "" where libzmq knows nothing.
        self.user = ""
        #: Number of the connection that it came over: its descriptor, -1 where there is none.
        self.connection = -1

    def receive(self) -> list[bytes] | None:
        """Do the same as `Link.receive`, and note ``user`` and ``connection``."""
        socket = self.socket
        try:
            frame = _recv(socket, _LAST, False)  # noqa: FBT003 - positional for speed
        except zmq.Again:
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
    identity: str = "",
    max_frame: int = 0,
    keys: ClientKeys | None = None,
) -> Link:
    """Return a DEALER that connects to ``address``, with CURVE where there are keys.

    With ``ZMQ_IMMEDIATE``: while there is no connection, `Link.send` returns False instead of
    keeping a message for later.

    Raises:
        UnicodeEncodeError: The identity is not ASCII, as deployed routers need it.
    """
    name = identity.encode("ascii")
    socket = context.socket(zmq.DEALER)
    _common(socket, max_frame)
    socket.set(zmq.IMMEDIATE, 1)
    socket.set(zmq.RECONNECT_IVL, 50)
    socket.set(zmq.RECONNECT_IVL_MAX, 500)
    if name:
        socket.set(zmq.IDENTITY, name)
    _use(socket, keys)
    socket.connect(address)
    return Link(socket)


def _use(socket: zmq.Socket[bytes], keys: ClientKeys | None) -> None:
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
) -> Link:
    """Return a ROUTER that says who is not there, and lets nobody take another's identity.

    With ``known_by`` it is a `KnownLink`, which costs 0.8 us per message. ``high_water`` is how
    many messages wait for one peer, 0 for as many as usual.
    """
    socket = context.socket(zmq.ROUTER)
    _common(socket, max_frame)
    if high_water:
        socket.set(zmq.SNDHWM, high_water)
    socket.set(zmq.ROUTER_MANDATORY, 1)
    socket.set(zmq.ROUTER_HANDOVER, 0)
    return KnownLink(socket, known_by) if known_by else Link(socket)


def open_pub(context: zmq.Context[zmq.Socket[bytes]]) -> Link:
    """Return a PUB socket. All that it takes are subscriptions, which are short."""
    socket = context.socket(zmq.PUB)
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


def handshake_trouble(event: int) -> str:
    """Return what an event of a monitor says of a failed handshake, for people; else ""."""
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return "it refused the key: the broker's administrator authorises it"
    if event & _HANDSHAKES & ~zmq.EVENT_HANDSHAKE_SUCCEEDED:
        return (
            "the handshake failed: one side uses CURVE keys and the other none, or not this "
            "broker's; see the settings key and broker_key"
        )
    return ""


def watch_failures(context: zmq.Context[zmq.Socket[bytes]], link: Link) -> Link:
    """Return where lost connections and handshakes that fail before ZAP is asked are told.

    There is a message for each, which `lost_connection` reads. It has no high-water mark: at one,
    libzmq's own thread would wait for us.
    """
    address = f"inproc://eventmq.handshakes.{os.urandom(8).hex()}"
    failed = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    link.socket.monitor(address, failed | zmq.EVENT_DISCONNECTED)
    monitor = context.socket(zmq.PAIR)
    monitor.set(zmq.LINGER, 0)
    monitor.set(zmq.RCVHWM, 0)
    monitor.connect(address)
    return Link(monitor)


def lost_connection(frames: Sequence[bytes]) -> int | None:
    """Return which connection was lost, None for a handshake that failed.

    Args:
        frames: What `watch_failures` told; the first has the event and its value.
    """
    event, value = int.from_bytes(frames[0][:2], "little"), frames[0][2:6]
    return int.from_bytes(value, "little") if event == zmq.EVENT_DISCONNECTED else None


def new_keys() -> tuple[bytes, bytes]:
    """Return a new pair of CURVE keys in Z85: the public one, then the secret one."""
    return zmq.curve_keypair()


def event_of(frames: Sequence[bytes]) -> int:
    """Return which event a message of a socket's monitor is about.

    Source: zmq_socket_monitor(3). pyzmq's own reader imports asyncio, which each command of the
    command line would pay for.
    """
    return int.from_bytes(frames[0][:2], sys.byteorder)


def try_key(
    context: zmq.Context[zmq.Socket[bytes]],
    address: str,
    keys: ClientKeys,
    *,
    subscribing: bool,
    timeout: float,
) -> bool | None:
    """Connect, and say whether the key was let in: True, False if refused, None if unclear.

    Args:
        context: The context.
        address: Of a ROUTER, or with ``subscribing`` of a PUB.
        keys: What to connect with.
        subscribing: Whether it is a PUB.
        timeout: Seconds to wait for the answer.
    """
    socket = context.socket(zmq.SUB if subscribing else zmq.DEALER)
    socket.set(zmq.LINGER, 0)
    _use(socket, keys)
    monitor = socket.get_monitor_socket(_HANDSHAKES)
    try:
        socket.connect(address.replace("://0.0.0.0:", "://127.0.0.1:").replace("[::]", "[::1]"))
        if not monitor.poll(int(timeout * 1000)):
            return None
        event = event_of(monitor.recv_multipart())
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            return True
        return False if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH else None
    finally:
        socket.disable_monitor()
        monitor.close(0)
        socket.close(0)
