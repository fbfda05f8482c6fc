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
import sys
import uuid
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, cast

import zmq
from zmq.backend import Socket as _Base
from zmq.backend import zmq_poll

from eventmq.wire import zap
from eventmq.wire.identity import routing_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.wire.curve import ClientKeys

__all__ = [
    "HANDSHAKES",
    "MOST",
    "Account",
    "KnownLink",
    "Link",
    "Mark",
    "RouterLink",
    "Total",
    "Unread",
    "Unroutable",
    "encrypt",
    "event_fd",
    "event_of",
    "handshake_trouble",
    "is_local",
    "lost_connection",
    "new_context",
    "new_keys",
    "open_dealer",
    "open_pub",
    "open_router",
    "use_keys",
    "watch_failures",
]


#: Bytes that may wait for one peer, unless told otherwise.
MOST = 64 * 1024 * 1024

#: Bytes between two marks: one costs some 30 us. With very many peers fewer, but so many at least.
STEP, LEAST_STEP = 256 * 1024, 8 * 1024

#: What all accounts may have behind their last marks, as a part of what may wait in sum.
UNMARKED = 0.25

#: What a peer may have of the second half: such a part of the sum, or of what is still free.
LITTLE, LAST = 256, 16

#: What may wait in sum where messages are sent by themselves that are longer than a peer's part.
SINGLES = 0.75

#: Accounts that are looked at before a message is refused because of the sum.
LOOKED_AT = 64

#: Bytes where the sum has no bound.
_ANY = 1 << 62

#: A message of so many bytes may still be sent to who is over its bound, up to this reserve: it
#: says what is wrong, or that a job is cancelled.
SHORT, RESERVE = 1024, 1024 * 1024

#: Peers that have an account before those are looked for that need none.
FEW = 1024


class Mark(Protocol):
    """A frame that was lent to libzmq, as `zmq.MessageTracker` is."""

    @property
    def done(self) -> bool:
        """Whether libzmq has sent it, or dropped it with the connection."""


class Total:
    """What waits for all peers of some sockets together, up to the last mark of each.

    Args:
        most: Bytes that may wait.

    Attributes:
        used: Bytes that wait, at most: the marks of some may have been done since.
        accounts: How many there are.
        warned: The bound was logged, and has been met ever since.
    """

    __slots__ = ("_open", "accounts", "most", "used", "warned")

    def __init__(self, most: int = _ANY) -> None:
        self.most = most
        self.used = 0
        self.accounts = 0
        self.warned = False
        self._open: deque[Account] = deque()

    def share(self, coming: int = 0) -> int:
        """Return how many bytes one peer may have now, or when so many others have been sent."""
        free = max(0, self.most - self.used - coming)
        return max((free - self.most // 2) // 2, min(self.most // LITTLE, free // LAST))

    @property
    def step(self) -> int:
        """Bytes from one mark of a peer to the next."""
        return max(LEAST_STEP, min(STEP, int(UNMARKED * self.most) // max(1, self.accounts)))

    def opened(self, account: Account) -> None:
        """Note that an account has a mark that is not done.

        Of those before it two are looked at, so that what peers leave that come and go does not add
        up where nothing else calls `refresh`.
        """
        self._look_at(2)
        self._open.append(account)

    def refresh(self) -> None:
        """Look whether marks of some accounts are done meanwhile."""
        self._look_at(LOOKED_AT)
        if self.used < self.most // 2:
            self.warned = False

    def _look_at(self, count: int) -> None:
        """Drop those of the oldest accounts whose marks are all done."""
        waiting = self._open
        for _ in range(min(count, len(waiting))):
            account = waiting.popleft()
            account.settle()
            if account.marks:
                waiting.append(account)
            else:
                account.listed = False


@dataclass(slots=True, eq=False)
class Account:
    """What one peer was sent, in bytes since its account was opened.

    Attributes:
        total: Of all peers.
        sent: Handed to libzmq.
        taken: Of these, what is known to have left it.
        mark_at: A message that comes to so many gets a mark.
        marks: That are not done as far as is known: the mark, and what was sent with it.
        marked: What was sent with the last mark.
        long_at: What was sent with the last one whose message was not short.
        noted: Bytes that `Unread.may_come` has said may be sent.
        listed: The total looks at it from time to time.
        warned: Its bound was logged.
    """

    total: Total
    sent: int = 0
    taken: int = 0
    mark_at: int = STEP
    marks: deque[tuple[Mark, int]] = field(default_factory=deque)
    marked: int = 0
    long_at: int = 0
    noted: int = 0
    listed: bool = False
    warned: bool = False

    def settle(self) -> int:
        """Take note of marks that are done; return how many bytes wait, at most."""
        marks = self.marks
        before = self.taken
        while marks and marks[0][0].done:
            self.taken = marks.popleft()[1]
        self.total.used -= self.taken - before
        return self.sent - self.taken

    def mark(self, mark: Mark, size: int = SHORT + 1) -> None:
        """Note that the message that was sent last, of so many bytes, has a mark."""
        self.marks.append((mark, self.sent))
        self.total.used += self.sent - self.marked
        self.marked = self.sent
        if size > SHORT:
            self.long_at = self.sent
        self.mark_at = self.sent + self.total.step
        if not self.listed:
            self.listed = True
            self.total.opened(self)

    def close(self) -> None:
        """Forget what waits: the connection is gone, and what waited with it."""
        self.total.used -= self.marked - self.taken
        self.taken = self.marked
        self.marks.clear()


class Unread:
    """The accounts of the peers of one socket.

    Args:
        most: Bytes that may wait for one peer. A message that is longer is sent by itself.
        total: What may wait for all of them, with those of other sockets; None for any number.
    """

    __slots__ = ("_accounts", "_few", "_first", "most", "total")

    def __init__(self, most: int = MOST, total: Total | None = None) -> None:
        self.most = most
        self.total = total or Total()
        self._accounts: dict[bytes, Account] = {}
        self._few = FEW
        self._first = STEP

    def __len__(self) -> int:
        """Return the number of accounts."""
        return len(self._accounts)

    def account(self, peer: bytes) -> Account:
        """Return the account of a peer, a new one where it has none."""
        account = self._accounts.get(peer)
        if account is None:
            if len(self._accounts) >= self._few:
                self._sweep()
            self.total.accounts += 1
            first = min(self._first, self.total.step)
            account = self._accounts[peer] = Account(self.total, mark_at=first)
        return account

    def forget(self, peer: bytes) -> None:
        """Close the account of a peer that is not connected any more."""
        account = self._accounts.pop(peer, None)
        if account is not None:
            self.total.accounts -= 1
            account.close()

    def waiting(self, peer: bytes) -> int:
        """Return how many bytes wait for a peer, at most."""
        account = self._accounts.get(peer)
        return 0 if account is None else account.settle()

    def may_come(self, account: Account, size: int, before: int, coming: int) -> bool:
        """Return whether `admits` will let a message pass in the same turn, and note it if so.

        Until then others may get marks: for what was noted that does not count.

        Args:
            account: Of the peer.
            size: Bytes of the message.
            before: Bytes that the peer will have been sent before it.
            coming: Bytes that all peers will.
        """
        if not self._admits(account, size, before, coming):
            return False
        account.noted = max(account.noted, size + before)
        return True

    def admits(self, account: Account, size: int) -> bool:
        """Return whether a message of ``size`` bytes may be sent now."""
        noted = SHORT < size <= account.noted and self.total.used + size <= self.total.most
        if noted:
            account.noted -= size
        return self._admits(account, size, spare=2 * self.total.step if noted else 0)

    def _admits(
        self, account: Account, size: int, before: int = 0, coming: int = 0, *, spare: int = 0
    ) -> bool:
        waiting, total = account.settle() + before, self.total
        # What is behind the last mark is not counted here: without another mark it would wait for
        # ever, as far as is known.
        known = account.marked - account.taken + before
        if known + size > total.share(coming):
            total.refresh()
        share = total.share(coming)
        most, part = self.most, share + spare
        if size <= SHORT:
            reserve = min(RESERVE, max(2 * total.step, share))
            if account.sent + size - account.long_at <= reserve:  # it had its part before
                part = max(part, known + size)
            part += reserve
            most += reserve
        if waiting + size <= most and known + size <= part:
            return True
        single = waiting <= STEP + spare
        return single and total.used + coming + size <= SINGLES * total.most + spare

    def _sweep(self) -> None:
        """Close the accounts of which no mark is open: of peers that have gone, above all.

        What such a peer has waiting is less than a step, and forgotten once: from now on the first
        message of an account has a mark, and keeps it open.
        """
        self._first = 1
        for account in self._accounts.values():
            account.settle()
        before = len(self._accounts)
        self._accounts = {peer: known for peer, known in self._accounts.items() if known.marks}
        self.total.accounts -= before - len(self._accounts)
        self._few = max(FEW, 2 * len(self._accounts))


#: Events of a monitor that end a handshake.
HANDSHAKES = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


def event_fd(socket: zmq.Socket[bytes]) -> int:
    """Return a descriptor that becomes readable when the socket may have a message.

    It says so once, and only behind a look that found no message: whoever polls it reads until
    there is none, before the first poll too. A poll of the socket itself costs 2 us more, also
    where nothing ever comes, as from a monitor. Source: zmq_getsockopt(3), ZMQ_FD.
    """
    fd = socket.get(zmq.FD)
    assert isinstance(fd, int)  # noqa: S101 - pyzmq types it as int or bytes
    return fd


def event_of(frames: Sequence[bytes]) -> int:
    """Return which event a message of a socket's monitor is about.

    Source: zmq_socket_monitor(3). pyzmq's own reader imports asyncio, which each command of the
    command line would pay for.
    """
    return int.from_bytes(frames[0][:2], sys.byteorder)


def handshake_trouble(event: int) -> str:
    """Return what an event of a monitor says of a failed handshake, for people; else ""."""
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return "it refused the key: the broker's administrator authorises it"
    if event & HANDSHAKES & ~zmq.EVENT_HANDSHAKE_SUCCEEDED:
        return (
            "the handshake failed: one side uses CURVE keys and the other none, or not this "
            "broker's; see the settings key_file and broker_key_file"
        )
    return ""


def lost_connection(frames: Sequence[bytes]) -> int | None:
    """Return which connection was lost, None for a handshake that failed.

    Args:
        frames: What `eventmq.wire.sockets.watch_failures` told; the first has event and value.
    """
    event, value = int.from_bytes(frames[0][:2], "little"), frames[0][2:6]
    return int.from_bytes(value, "little") if event == zmq.EVENT_DISCONNECTED else None


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
        most: Bytes that may wait for one peer, see `eventmq.wire.sockets`.
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

    There is a message for each, which `eventmq.wire.sockets.lost_connection` reads. It has
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


def is_local(address: str) -> bool:
    """Say whether an address can be reached from this machine only."""
    scheme, _, rest = address.partition("://")
    if scheme in {"inproc", "ipc"}:
        return True
    host = rest.rpartition(":")[0].strip("[]")
    return host in {"localhost", "::1"} or host.startswith("127.")
