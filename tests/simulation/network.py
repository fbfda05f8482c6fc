"""The network between DEALER sockets and the broker's ROUTER.

Messages of a connection arrive in order in each direction. A connection that is cut loses the last
of the messages in flight, in both directions; the first of them may still arrive when the peer has
come back under another routing id. A half-open connection accepts messages and delivers none. The
ROUTER ignores a second connection with the routing id of one that it still has.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from eventmq.wire.commands import decode
from eventmq.wire.features import ROUTING_PREFIX

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
        self.in_flight: deque[tuple[float, list[bytes]]] = deque()
        self.last = self.held = 0.0
        self.lost = False

    def put(self, frames: Sequence[bytes], latency: float) -> None:
        if self.lost:
            return
        self.last = max(self.last, self.world.now + latency)
        self.in_flight.append((self.last, list(frames)))
        self.world.at(max(self.last, self.held), self.pump)

    def hold(self, until: float) -> None:
        """Deliver nothing before a time, as in a network partition."""
        self.held = max(self.held, until)
        self.world.at(self.held, self.pump)

    def pump(self) -> None:
        while (
            self.in_flight
            and self.held <= self.world.now
            and self.in_flight[0][0] <= self.world.now
        ):
            self.deliver(self.in_flight.popleft()[1])

    def cut(self, arriving: int) -> None:
        """End the flow; of the messages in flight the first ``arriving`` still arrive."""
        self.lost = True
        while len(self.in_flight) > arriving:
            self.in_flight.pop()


class Connection:
    """Connection of a DEALER to one run of the ROUTER."""

    def __init__(self, socket: Socket, identity: bytes) -> None:
        network = socket.network
        self.socket = socket
        self.identity = identity
        self.up = Flow(network.world, self._arrive)
        self.down = Flow(network.world, self._return)
        self.open = True
        self.life = network.life
        self.made = network.world.now
        #: libzmq ignores a second connection with the same routing id, without an error.
        self.accepted = network.routes.setdefault(identity, self) is self

    def _arrive(self, frames: list[bytes]) -> None:
        if self.accepted and self.life == self.socket.network.life:
            self.socket.network.receive([self.identity, *frames])

    def _return(self, frames: list[bytes]) -> None:
        if self.open and self.socket.connection is self:
            self.socket.receive(frames)


class Socket:
    """DEALER socket of a process.

    Args:
        network: Network that it connects to.
        owner: Process that gets a tick when a message has come.
        identity: Routing id, the same after a reconnect; "" for one like those of EventMQ's
            clients.
    """

    def __init__(self, network: Network, owner: Process, identity: str = "") -> None:
        self.network = network
        self.owner = owner
        network.dealers += 1
        self.identity = identity or f"{ROUTING_PREFIX}client.{network.dealers}"
        self.connection: Connection | None = None
        self.inbox: deque[list[bytes]] = deque()
        #: Monitor events: True for a connection made, False for one lost.
        self.events: deque[bool] = deque()
        self.closed = False
        network.sockets.append(self)
        self.connect()

    def connect(self) -> None:
        """Connect, or try again after `RECONNECT` seconds."""
        network = self.network
        if self.closed or self.connection is not None:
            return
        if not network.listening or network.partitioned_until > network.world.now:
            network.world.at(network.world.now + RECONNECT, self.connect)
            return
        network.connections += 1
        self.connection = Connection(self, self.identity.encode())
        self.events.append(True)
        self.owner.wake()

    def receive(self, frames: list[bytes]) -> None:
        self.inbox.append(frames)
        self.network.trace(self.owner.name, "gets", frames)
        self.owner.wake()

    def send(self, frames: Sequence[bytes]) -> bool:
        """Send; return False if there is no connection."""
        if self.connection is None:
            return False
        self.connection.up.put(frames, self.network.latency())
        return True

    def close(self) -> None:
        """Close; messages in flight to the broker still arrive."""
        self.closed = True
        if self.connection is not None:
            self.network.cut(self, arriving=len(self.connection.up.in_flight))
        self.network.sockets.remove(self)


class Network:
    """All connections, and the ROUTER at the broker's end.

    Args:
        world: Event queue and clock.
        receive: Called with each message that arrives at the ROUTER, routing id first.
        on_lost: Called when the ROUTER has noticed that a connection was lost.
        address: Of the broker, for its peers.
    """

    def __init__(
        self,
        world: World,
        receive: Callable[[list[bytes]], None],
        on_lost: Callable[[], None],
        address: str = "sim",
    ) -> None:
        self.world = world
        self.address = address
        self.receive = receive
        self.on_lost = on_lost
        self.sockets: list[Socket] = []
        self.routes: dict[bytes, Connection] = {}
        self.listening = False
        self.connections = self.dealers = 0
        #: Run of the ROUTER. Messages to an earlier one are lost.
        self.life = 0
        self.slow = 0.001
        self.partitioned_until = 0.0
        #: Pipes of the ROUTER that existed at ``filled`` are full until ``full``.
        self.filled = self.full = 0.0

    def latency(self) -> float:
        return self.slow * (0.2 + self.world.random.random())

    def trace(self, name: str, event: str, frames: Sequence[bytes]) -> None:
        """Add a message to the history."""
        if self.world.tracing:
            self.world.trace(name, event, describe(frames))

    # The ROUTER

    def send(self, identity: bytes, frames: Sequence[bytes]) -> str:
        """Send from the ROUTER; return "" if it was sent, else "unroutable" or "full"."""
        connection = self.routes.get(identity)
        if connection is None:
            return "unroutable"
        if self.full > self.world.now and connection.made < self.filled:
            return "full"
        connection.down.put(frames, self.latency())
        return ""

    def listen(self) -> None:
        """Accept connections: the broker has started."""
        self.listening = True

    def collapse(self) -> None:
        """Drop all connections and their messages: the broker has died."""
        self.listening = False
        self.life += 1
        self.routes.clear()
        for socket in list(self.sockets):
            if socket.connection is not None:
                self.cut(socket, arriving=0)

    # Faults

    def cut(self, socket: Socket, *, arriving: int, noticed: float = 0.0) -> None:
        """End the connection of a socket.

        Args:
            socket: Socket at the peer's end.
            arriving: Number of messages in flight to the broker that still arrive.
            noticed: Seconds until the ROUTER notices; until then its end is half open.
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
        """Remove the route of a lost connection, and report the loss as a monitor does."""
        if self.remove_route(connection):
            self.on_lost()

    def remove_route(self, connection: Connection) -> bool:
        """Remove the route to a connection; return whether there was one."""
        if self.routes.get(connection.identity) is not connection:
            return False
        del self.routes[connection.identity]
        return True

    def half_open(self, socket: Socket) -> None:
        """Drop everything that is sent from now on, in both directions, without an error."""
        connection = socket.connection
        if connection is not None:
            connection.up.cut(0)
            connection.down.cut(0)
            self.remove_route(connection)

    def partition(self, seconds: float) -> None:
        """Delay all messages until a partition of so many seconds has ended."""
        self.partitioned_until = max(self.partitioned_until, self.world.now + seconds)
        for socket in self.sockets:
            if socket.connection is not None:
                socket.connection.up.hold(self.partitioned_until)
                socket.connection.down.hold(self.partitioned_until)


def describe(frames: Sequence[bytes]) -> str:
    """Return a message as text of at most 240 characters or so."""
    text = str(decode(list(frames)))
    return text if len(text) <= 240 else text[:240] + "..."
