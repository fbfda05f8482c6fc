"""The network between DEALER sockets and the broker's ROUTER.

Messages of one connection and direction arrive in order. A connection that is cut loses the end
of what was under way, in both directions; the beginning of it may still arrive afterwards, when
the peer is back under another routing id. A half-open connection takes what is sent and delivers
nothing. A second connection with the routing id of one that the ROUTER still has is not heard.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from eventmq.wire.commands import decode
from eventmq.wire.identity import PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.simulation.world import Process, World

__all__ = ["Network", "Socket"]

#: Seconds from a lost connection to the next attempt.
RECONNECT = 0.1


class Flow:
    """One direction of a connection."""

    def __init__(self, world: World, deliver: Callable[[list[bytes]], None]) -> None:
        self.world = world
        self.deliver = deliver
        self.way: deque[tuple[float, list[bytes]]] = deque()
        self.last = self.held = 0.0
        self.lost = False

    def put(self, frames: Sequence[bytes], latency: float) -> None:
        if self.lost:
            return
        self.last = max(self.last, self.world.now + latency)
        self.way.append((self.last, list(frames)))
        self.world.at(max(self.last, self.held), self.pump)

    def hold(self, until: float) -> None:
        """Deliver nothing before a time: the network is parted."""
        self.held = max(self.held, until)
        self.world.at(self.held, self.pump)

    def pump(self) -> None:
        while self.way and self.held <= self.world.now and self.way[0][0] <= self.world.now:
            self.deliver(self.way.popleft()[1])

    def cut(self, arriving: int) -> None:
        """Take nothing more; so many messages of those under way still arrive."""
        self.lost = True
        while len(self.way) > arriving:
            self.way.pop()


class Connection:
    """A connection of a socket with one life of the ROUTER."""

    def __init__(self, socket: Socket, identity: bytes) -> None:
        network = socket.network
        self.socket = socket
        self.identity = identity
        self.up = Flow(network.world, self._arrive)
        self.down = Flow(network.world, self._return)
        self.open = True
        self.life = network.life
        self.made = network.world.now
        #: libzmq turns a second connection of one routing id away, and tells nobody.
        self.heard = network.known.setdefault(identity, self) is self

    def _arrive(self, frames: list[bytes]) -> None:
        if self.heard and self.life == self.socket.network.life:
            self.socket.network.take([self.identity, *frames])

    def _return(self, frames: list[bytes]) -> None:
        if self.open and self.socket.connection is self:
            self.socket.take(frames)


class Socket:
    """A DEALER of a process.

    Args:
        network: To which it belongs.
        owner: Whose turn comes when there is something to read.
        identity: Its routing id, which stays over reconnects; without, one as our clients have.
    """

    def __init__(self, network: Network, owner: Process, identity: str = "") -> None:
        self.network = network
        self.owner = owner
        network.dealers += 1
        self.identity = identity or f"{PREFIX}client.{network.dealers}"
        self.connection: Connection | None = None
        self.inbox: deque[list[bytes]] = deque()
        #: True for every connection that was made, False for every one that was lost.
        self.events: deque[bool] = deque()
        self.closed = False
        network.sockets.append(self)
        self.connect()

    def connect(self) -> None:
        """Connect, or try again soon."""
        network = self.network
        if self.closed or self.connection is not None:
            return
        if not network.listening or network.parted > network.world.now:
            network.world.at(network.world.now + RECONNECT, self.connect)
            return
        network.connections += 1
        self.connection = Connection(self, self.identity.encode())
        self.events.append(True)
        self.owner.wake()

    def take(self, frames: list[bytes]) -> None:
        self.inbox.append(frames)
        self.network.told(self.owner.name, "gets", frames)
        self.owner.wake()

    def send(self, frames: Sequence[bytes]) -> bool:
        """Send; return False if there is no connection that takes it."""
        if self.connection is None:
            return False
        self.connection.up.put(frames, self.network.latency())
        return True

    def close(self) -> None:
        """Close: what is under way may still arrive."""
        self.closed = True
        if self.connection is not None:
            self.network.cut(self, arriving=len(self.connection.up.way))
        self.network.sockets.remove(self)


class Network:
    """All connections, and the broker's end of them.

    Args:
        world: Time.
        take: Is given what arrives at the ROUTER, routing id first.
        lost: Called when the ROUTER has seen that some connection is gone.
    """

    def __init__(
        self, world: World, take: Callable[[list[bytes]], None], lost: Callable[[], None]
    ) -> None:
        self.world = world
        self.take = take
        self.lost = lost
        self.sockets: list[Socket] = []
        self.known: dict[bytes, Connection] = {}
        self.listening = False
        self.connections = self.dealers = 0
        #: Of the ROUTER: what was on its way to an earlier one is lost.
        self.life = 0
        self.slow = 0.001
        self.parted = 0.0
        #: The ROUTER's pipes that were there at the one time are full until the other.
        self.filled = self.full = 0.0

    def latency(self) -> float:
        return self.slow * (0.2 + self.world.random.random())

    def told(self, who: str, what: str, frames: Sequence[bytes]) -> None:
        """Write down a message."""
        if self.world.told:
            self.world.tell(who, what, describe(frames))

    # The ROUTER

    def send(self, identity: bytes, frames: Sequence[bytes]) -> str:
        """Send from the ROUTER; return why it could not be done, or nothing."""
        connection = self.known.get(identity)
        if connection is None:
            return "unroutable"
        if self.full > self.world.now and connection.made < self.filled:
            return "full"
        connection.down.put(frames, self.latency())
        return ""

    def listen(self) -> None:
        """The broker is there."""
        self.listening = True

    def collapse(self) -> None:
        """The broker is gone, and everything that was under way with it."""
        self.listening = False
        self.life += 1
        self.known.clear()
        for socket in list(self.sockets):
            if socket.connection is not None:
                self.cut(socket, arriving=0)

    # Faults

    def cut(self, socket: Socket, *, arriving: int, noticed: float = 0.0) -> None:
        """End a connection.

        Args:
            socket: Whose.
            arriving: Messages to the broker that still arrive.
            noticed: Seconds until the ROUTER sees it; until then it is half open.
        """
        connection = socket.connection
        if connection is None:
            return
        connection.open = False
        connection.up.cut(arriving)
        connection.down.cut(0)
        socket.connection = None
        socket.inbox.clear()
        socket.events.append(False)
        socket.owner.wake()
        self.world.at(self.world.now + noticed, lambda: self.notice(connection))
        self.world.at(self.world.now + RECONNECT, socket.connect)

    def notice(self, connection: Connection) -> None:
        """The ROUTER sees that a connection is gone, and its monitor says so."""
        if self.forget(connection):
            self.lost()

    def forget(self, connection: Connection) -> bool:
        """Let the ROUTER have a connection no more; return whether it had it."""
        if self.known.get(connection.identity) is not connection:
            return False
        del self.known[connection.identity]
        return True

    def deafen(self, socket: Socket) -> None:
        """Lose all that is sent from now on, in both directions, and tell nobody."""
        connection = socket.connection
        if connection is not None:
            connection.up.cut(0)
            connection.down.cut(0)
            self.forget(connection)

    def part(self, seconds: float) -> None:
        """Deliver nothing for a while."""
        self.parted = max(self.parted, self.world.now + seconds)
        for socket in self.sockets:
            if socket.connection is not None:
                socket.connection.up.hold(self.parted)
                socket.connection.down.hold(self.parted)


def describe(frames: Sequence[bytes]) -> str:
    """Return a message as people read it."""
    text = str(decode(list(frames)))
    return text if len(text) <= 240 else text[:240] + "..."
