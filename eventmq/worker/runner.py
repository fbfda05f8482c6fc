"""Runs a worker: the socket to the broker, the pool, and the loop between them.

The order of a step: first everything readable is read, since the silence of the broker is checked
after that. Then the pool is polled and its answers are sent at once, since clients wait for them.
Then all due actions are carried out, and their messages are sent.

If brokers share a store, the worker is connected to all of them, and has its session with the
owner. When another broker reports that it owns the store, the session continues over the link to
that broker.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import uuid
from collections import deque
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import zmq
from zmq.backend import zmq_poll

from eventmq.clock import SystemClock
from eventmq.execution import joblog
from eventmq.execution.processes.recycling import resident_family
from eventmq.notify import NEVER, Notifier
from eventmq.settings import Settings
from eventmq.wakeup import Wakeup
from eventmq.wire.owner import untrusted
from eventmq.wire.sockets import new_context, open_dealer
from eventmq.worker.manager import JobManager
from eventmq.worker.session import OwnerListener
from eventmq.worker.slots import CHECK_EVERY
from eventmq.worker.watchdog import always_fail

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from contextlib import AbstractContextManager
    from types import FrameType

    from eventmq.clock import Clock
    from eventmq.interfaces import WorkerPool
    from eventmq.wire.curve import ClientKeys
    from eventmq.wire.owner import OwnerInfo
    from eventmq.wire.sockets import Link
    from eventmq.worker.inputs import SpoolDirectory
    from eventmq.worker.session import SessionInfo, WorkerSession
    from eventmq.worker.slots import Slots
    from eventmq.worker.watchdog import TimeoutPolicy

__all__ = ["ConnectionLog", "WorkerRunner"]


_log = logging.getLogger(__name__)

#: Seconds without a broker before the first warning: a broker that is starting needs as long.
WARN_AFTER = 2.0

#: Longest time in seconds between two warnings of one absence.
MAX_WARN_EVERY = 60.0

_LOOPBACK = ("tcp://127.", "tcp://localhost:", "tcp://[::1]:", "ipc://")

_IN = int(zmq.POLLIN)

_OUT = int(zmq.POLLOUT)

#: Largest number of messages that are read in one step.
MAX_READS = 1000

#: Longest time in seconds between two steps.
MAX_WAIT = 1.0

#: Seconds between two handshakes with a broker that refuses the worker.
HANDSHAKE_EVERY = 1.0

#: Seconds after which a worker without an answer of any broker tries the next one.
NEXT_AFTER = 2.0

#: Kinds of stop that `WorkerRunner.stop` has requested.
NO_STOP, GRACEFUL, IMMEDIATE = range(3)


def _hint(address: str) -> str:
    """Return the command that starts a broker at an address."""
    other = address.startswith(_LOOPBACK) and address not in Settings().broker
    return "eventmq broker" + (f" --bind {address}" if other else "")


class ConnectionLog:
    """Logs when a broker is absent, connected, lost, and connected again.

    Attributes:
        shared: Whether another broker may take over, so that none need be started.
    """

    def __init__(self) -> None:
        self.shared = False
        self._absent_since: float | None = None
        self._never_connected = True
        self._warned = False
        self._answered = False
        self._warn_every = WARN_AFTER
        self._warn_at = 0.0
        self._refusal = ""

    def handshake_failed(self, address: str, why: str) -> None:
        """Log why a handshake with the broker has failed, if the reason is new."""
        if why != self._refusal:
            self._refusal = why
            _log.warning("the broker at %s cannot be used: %s", address, why)

    def update(
        self, now: float, address: str, *, online: bool, broken: bool, received: bool
    ) -> None:
        """Log changes of the connection. Call this in every step.

        Args:
            now: Monotonic time.
            address: Address of the broker.
            online: The broker has acknowledged INFORM.
            broken: The connection was lost.
            received: A message of the broker was received in this step.
        """
        if online and not broken:
            self._refusal = ""
            if self._absent_since is not None or self._never_connected:
                self._log_connected(now, address)
            return
        if self._absent_since is None:
            self._absent_since = now
            self._warned = self._answered = False
            self._warn_every = WARN_AFTER
            self._warn_at = now + WARN_AFTER
        if broken and not self._warned and not self._never_connected:
            self._warned = True
            _log.warning(
                "the connection to the broker at %s was lost; running jobs continue, and are "
                "answered when the broker is back", address,
            )  # fmt: skip
        self._answered = received or (self._answered and not broken)
        if now >= self._warn_at:
            self._warn_absent(now, address, now - self._absent_since)

    def _warn_absent(self, now: float, address: str, seconds: float) -> None:
        self._warn_every = min(MAX_WARN_EVERY, 2 * self._warn_every)
        self._warn_at = now + self._warn_every
        if self._answered or self._refusal:  # the session logs why the broker refuses this worker
            return
        self._warned = True
        if self.shared:
            what = "waiting for it, or for another one to own the store"
        else:
            what = f"waiting for it; start one with: {_hint(address)}"
        _log.warning("no broker answers at %s for %.0f s; %s", address, seconds, what)

    def _log_connected(self, now: float, address: str) -> None:
        since, self._absent_since = self._absent_since, None
        if self._never_connected:
            _log.info("connected to the broker at %s", address)
        elif self._warned and since is not None:
            _log.info("connected to the broker at %s, after %.1f s", address, now - since)
        self._never_connected = False


class ListenerLink:
    """The link to another broker than that of the session, whose owner reports are received.

    Args:
        address: Address of the broker.
        link: The link.
        listener: Handles the messages of the broker.
        broken: Whether the connection is lost.
    """

    __slots__ = ("address", "broken", "link", "listener")

    def __init__(
        self, address: str, link: Link, listener: OwnerListener, *, broken: bool = False
    ) -> None:
        self.address = address
        self.link = link
        self.listener = listener
        self.broken = broken

    def step(self, ready: AbstractSet[Any], now: float) -> bool:
        """Carry out all due actions; return False after a message that only the owner may send."""
        link, listener, allowed = self.link, self.listener, True
        if link.socket in ready:
            for _ in range(MAX_READS):
                frames = link.receive()
                if frames is None:
                    break
                allowed = listener.receive(frames, now) and allowed
        if link.monitor_fd in ready:
            for connected in link.connections():
                if connected and self.broken:
                    listener.connected(now)
                self.broken = not connected
        listener.tick(now)
        while listener.outbox and link.send(listener.outbox[0]):
            del listener.outbox[0]
        return allowed


class WorkerRunner:
    """Runner of a worker: connects to the first of its brokers that answers and runs its jobs.

    Args:
        pool: Runs the jobs; started and stopped by the runner.
        brokers: Addresses of the brokers. If they share a store, the owner sends the jobs.
            Otherwise the next broker is tried when one is silent and no chunk is held.
        info: Description of the worker; ``session`` and ``name`` are filled in.
        max_frame: Bytes of the longest frame that is accepted, 0 for any.
        context: ZeroMQ context to use, needed for ``inproc://`` addresses; None makes one.
        clock: Reads the time.
        on_ready: Called once, in the runner's thread, when a broker has accepted the worker.
        timeout_policy: Decides the outcome of jobs that were stopped at their hard limit.
    """

    #: Returns the context manager in which `run` runs.
    run_context: Callable[[], AbstractContextManager[None]] = nullcontext
    #: Keys for CURVE, None for brokers without CURVE; set before `run`.
    keys: ClientKeys | None = None
    #: Where jobs find inputs that are too large for a REQUEST; set before `run`.
    spool: SpoolDirectory | None = None

    #: Kind of the slots, None for that of the pool; set before `run`.
    slots: type[Slots] | None = None

    #: Reports the state of this worker to a service manager; `run` sends a sign of life.
    notifier = Notifier({})

    #: Link to the broker, from `begin` to `end`.
    _link: Link | None = None
    #: The last value of `_poll_items`, and the values that it was made from.
    _items: Sequence[tuple[Any, int]] = ()
    _polled: object = None

    #: Time at which a socket with a failed handshake is replaced, since libzmq does not retry; 0.0
    #: for never.
    _retry_at = 0.0
    #: Time at which the next broker is tried, if none has accepted the worker.
    _next_at = NEVER
    #: Time at which the links to other brokers are next updated.
    _listen_at = 0.0

    def __init__(
        self,
        pool: WorkerPool,
        *,
        brokers: Sequence[str],
        info: SessionInfo,
        max_frame: int = 0,
        context: zmq.Context[Any] | None = None,
        clock: Clock | None = None,
        on_ready: Callable[[], None] | None = None,
        timeout_policy: TimeoutPolicy = always_fail,
    ) -> None:
        self._pool = pool
        self._brokers = deque(brokers)
        self._positions = {address: position for position, address in enumerate(brokers)}
        #: Address of the broker of the session.
        self._address = brokers[0]
        #: Links to the other brokers, if they share their store.
        self._listener_links: list[ListenerLink] = []
        #: Address of one of these -> logged reason why its handshake failed.
        self._refusals: dict[str, str] = {}
        #: Last logged report about an owner that is not the broker of the session.
        self._logged_owner: OwnerInfo | None = None
        self._was_online = False
        self._info = replace(info, name=info.name or f"{socket.gethostname()}:{os.getpid()}")
        self._max_frame = max_frame
        self._context = context
        self._clock = clock or SystemClock()
        self._on_ready = on_ready
        self._timeout_policy = timeout_policy
        self._restart_requested = False
        self._stop_requested = self._stop_handled = NO_STOP
        self._pool_runs = self._broken = False
        #: Time at which the pool is polled without a notification, since it may hold answers back.
        self._poll_pool_at = 0.0
        self._pool_fds: Sequence[int] = ()
        self._connection_log = ConnectionLog()
        self._backlog: deque[list[bytes]] = deque()
        self._wakeup = Wakeup()

    def stop(self, *, now: bool = False) -> None:
        """Stop gracefully, or at once with ``now``. Call it from any thread or signal handler."""
        self._stop_requested = max(self._stop_requested, IMMEDIATE if now else GRACEFUL)
        self._wakeup.set()

    def restart(self) -> None:
        """Stop gracefully in order to restart. Call it from any thread or signal handler."""
        self._restart_requested = True
        self._wakeup.set()

    def serve(self, queues: Sequence[tuple[int, str]]) -> None:
        """Take jobs of other queues, (weight, name) pairs, from now on. Call it from any thread."""
        self._info = replace(self._info, queues=tuple(queues))
        self._wakeup.set()

    def metrics(self) -> Mapping[str, Any]:
        """Return the metrics of this worker. Call it from any thread."""
        manager = None if self._link is None else self._manager
        return {
            "worker": {
                "name": self._info.name,
                "online": manager is not None and manager.online,
                "used": 0 if manager is None else manager.busy,
                "slots": self._pool.slots,
            }
        }

    @property
    def needs_restart(self) -> bool:
        """Whether to start another worker when this one has ended, unless it was stopped.

        True after `restart`, or if too many threads were abandoned.
        """
        return self._restart_requested and self._stop_requested == NO_STOP

    def handle_signal(self, signum: int, frame: FrameType | None) -> None:
        """Stop: gracefully at the first signal, at once at the second."""
        self.stop(now=self._stop_requested != NO_STOP)

    def install_signal_handlers(self) -> None:
        """Let SIGTERM and SIGINT stop the worker. Call it in the main thread only."""
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self.handle_signal)

    def run(self) -> None:
        """Serve until `stop`.

        Raises:
            EventMQError: The pool cannot start; the message gives the reason.
        """
        own = self._context is None
        with self.run_context():
            try:
                self.begin()
                notifier = self.notifier
                while not self._manager.done:
                    items, wait = self.to_poll()
                    self.step(self._poll(items, min(wait, notifier.every)))
                    if notifier.every < NEVER:
                        notifier.turn(self._clock.monotonic())
            finally:
                self.end()
                if own and self._context is not None:
                    self._context.term()

    # Steps, for a program with a loop of its own; call them from one thread

    def begin(self) -> None:
        """Start the pool and connect. Call `end` afterwards, even if this raises."""
        self._context = self._context or new_context()
        self._pool.start()
        self._pool_runs = True
        self._manager = self._new_manager()
        self._link = self._connect()

    def to_poll(self) -> tuple[Sequence[tuple[Any, int]], float]:
        """Return the items to poll, and the timeout in seconds, before the next `step`."""
        now = self._clock.monotonic()
        wait = min(MAX_WAIT, self._manager.seconds_to_tick(now))
        if self._retry_at:
            wait = min(wait, max(0.0, self._retry_at - now))
        for other in self._listener_links:
            wait = min(wait, max(0.0, other.listener.next_tick() - now))
        assert self._link is not None  # noqa: S101 - started
        return self._poll_items(self._link), wait

    def poll_pool_next(self) -> None:
        """Let the next `step` poll the pool, even if none of its descriptors is readable."""
        self._poll_pool_at = 0.0

    def step(self, ready: AbstractSet[Any]) -> bool:
        """Carry out all due actions; return False if the worker has ended: then call `end`."""
        manager, link = self._manager, self._link
        assert link is not None  # noqa: S101 - started
        now = self._clock.monotonic()
        received = link.socket in ready and self._read(link, now)
        if self._pool_runs and (now >= self._poll_pool_at or not ready.isdisjoint(self._pool_fds)):
            self._poll_pool(link, now)
        self._handle_stop(now)
        if link.monitor_fd in ready and self._reconnected(link):
            manager.connected(now)
        manager.session.serve(self._info.queues, now)
        manager.tick(now)
        if manager.session.owner is not None or self._listener_links:
            self._follow_owner(ready, now)
            self._connection_log.shared = manager.session.owner is not None
            link = self._link
            assert link is not None  # noqa: S101 - started
        broken = self._broken or manager.lost
        if not manager.done:
            self._connection_log.update(
                now, self._address, online=manager.online, broken=broken, received=received
            )
        if manager.overdue:
            self._interrupt(now, f"the grace of {self._info.shutdown_grace:g} s is over")
        self._was_online = self._was_online or manager.online
        if manager.online and self._on_ready is not None:
            on_ready, self._on_ready = self._on_ready, None
            on_ready()
        self._send(link)
        handshake = self._handshake_due(link, now)
        untried = now >= self._next_at and not self._was_online and manager.session.owner is None
        if (manager.lost or handshake or untried) and not manager.done:
            link.close(0)
            self._link = self._reconnect()
        return not self._manager.done

    def end(self) -> None:
        """Stop the pool and close the socket. Idempotent."""
        self._stop_pool()
        if self.spool is not None:
            self.spool.close()
        link, self._link = self._link, None
        if link is not None:
            link.close()
        while self._listener_links:
            self._listener_links.pop().link.close(0)
        self._wakeup.close()

    # Parts of a step

    def _poll_pool(self, link: Link, now: float) -> None:
        """Handle the events of the pool, and send its answers at once."""
        self._poll_pool_at = now + CHECK_EVERY
        self._manager.pool_events(self._pool.poll(), now)
        self._send(link)
        if (
            self._info.max_abandoned_threads
            and self._stop_requested == NO_STOP
            and not self._restart_requested
        ):
            self._count_abandoned()

    def _handshake_due(self, link: Link, now: float) -> bool:
        """Log a failed handshake; return whether another one is due."""
        if link.handshake_error:
            self._connection_log.handshake_failed(self._address, link.handshake_error)
            self._retry_at = self._retry_at or now + HANDSHAKE_EVERY
            link.handshake_error = ""
        return bool(self._retry_at) and now >= self._retry_at

    def _read(self, link: Link, now: float) -> bool:
        """Handle all messages that can be read; return whether there were any."""
        for count in range(MAX_READS):
            frames = link.receive()
            if frames is None:
                return count > 0
            self._manager.receive(frames, now)
        return True

    def _poll(self, items: Sequence[tuple[Any, int]], wait: float) -> set[Any]:
        """Poll until a source is readable or ``wait`` has passed; return the readable sources.

        A socket that is not readable must not be read: each attempt costs microseconds in the
        middle of a round trip.
        """
        ready = {source for source, _ in zmq_poll(items, int(wait * 1000) + 1)}
        if self._wakeup.fd in ready:
            self._wakeup.clear()
        return ready

    def _poll_items(self, link: Link) -> Sequence[tuple[Any, int]]:
        """Return the items to poll; the same list if nothing has changed."""
        fds = self._pool_fds = self._pool.filenos() if self._pool_runs else ()
        polled = link, bool(self._backlog), fds, [other.link for other in self._listener_links]
        if polled != self._polled:
            self._polled = polled
            events = _IN | _OUT if self._backlog else _IN
            descriptors = (self._wakeup.fd, link.monitor_fd, *fds)
            others = [fd for each in polled[-1] for fd in (each.socket, each.monitor_fd)]
            sources = (*descriptors, *others)
            self._items = [(link.socket, events), *((source, _IN) for source in sources)]
        return self._items

    def _count_abandoned(self) -> None:
        """Restart if too many threads are abandoned."""
        if self._pool.abandoned > self._info.max_abandoned_threads:
            _log.error(
                "%d threads were abandoned and still run, more than max_abandoned_threads allows "
                "(%d); the worker hands back what it has and restarts",
                self._pool.abandoned, self._info.max_abandoned_threads,
            )  # fmt: skip
            self._restart_requested = True

    def _handle_stop(self, now: float) -> None:
        """Shut down if `stop` or `restart` was called."""
        requested = max(self._stop_requested, GRACEFUL if self._restart_requested else NO_STOP)
        if requested == self._stop_handled:
            return
        self._stop_handled = requested
        if self._stop_requested != NO_STOP:
            self.notifier.stopping("ending: running jobs have their grace")
        if requested == IMMEDIATE:
            self._interrupt(now, "stopped at once")
            self._manager.finish()
        else:
            self._manager.terminate(now)

    def _interrupt(self, now: float, why: str) -> None:
        """Stop the pool, then hand back the running jobs, which must not continue after that."""
        self._stop_pool()
        self._manager.pool_events(self._pool.poll(), now)
        joblog.aborted(self._manager.interrupted(now), why)

    def _send(self, link: Link) -> None:
        """Send the messages that can be sent now; keep the others in the backlog."""
        backlog = self._backlog
        outbox = self._manager.take_outbox()
        if outbox:
            if not self._manager.online:
                backlog.clear()  # the outbox is an INFORM, which replaces an unsent one
            backlog += outbox
        while backlog and link.send(backlog[0]):
            backlog.popleft()

    # Connections

    def _reconnected(self, link: Link) -> bool:
        """Return whether a lost connection is back; the broker may be a new one."""
        reconnected = False
        for connected in link.connections():
            reconnected = connected and (self._broken or reconnected)
            self._broken = not connected
        return reconnected

    def _new_manager(self) -> JobManager:
        info = replace(self._info, session=uuid.uuid4().hex)
        return JobManager(
            info,
            pool=self._pool,
            clock=self._clock,
            timeout_policy=self._timeout_policy,
            spool=self.spool,
            memory=resident_family,
            slots=self.slots,
        )

    def _connect(self) -> Link:
        """Connect the session."""
        link = self._open(self._address)
        now = self._clock.monotonic()
        self._broken = False
        self._reconnected(link)
        self._retry_at = 0.0
        self._next_at = now + NEXT_AFTER if len(self._brokers) > 1 else NEVER
        self._manager.connected(now)
        self._send(link)
        return link

    def _open(self, address: str) -> Link:
        """Open a link with a routing id of its own."""
        _log.debug("connecting to %s", address)
        assert self._context is not None  # noqa: S101 - started
        keys, owner = self.keys, self._manager.session.owner
        if keys is not None and address in self._positions:
            keys = keys.of(self._positions[address])
        elif keys is not None and owner is not None:
            keys = keys.having(self._manager.session.owners.of(owner).key)
        return open_dealer(
            self._context, address, kind="worker", max_frame=self._max_frame, keys=keys, watch=True
        )

    def _reconnect(self) -> Link:
        """Reconnect; to another broker only if no chunk is held: chunks belong to one broker."""
        self._backlog.clear()
        manager = self._manager
        if len(self._brokers) > 1 and manager.idle and manager.session.owner is None:
            self._brokers.rotate(-1)
            self._address = self._brokers[0]
            self._manager = self._new_manager()
        return self._connect()

    # Brokers that share a store

    def _follow_owner(self, ready: AbstractSet[Any], now: float) -> None:
        """Handle the reports of the other brokers, and switch the session to the owner."""
        session = self._manager.session
        for other in self._listener_links:
            if not other.step(ready, now):
                self._manager.ignore_old_owner()
            if error := other.link.handshake_error:
                other.link.handshake_error = ""
                self._log_refusal(other.address, error)
        if not session.owned:
            owner = next((each for each in self._listener_links if each.listener.owned), None)
            if owner is not None:
                self._switch_to(owner, now)
            elif session.online:
                session.wait_for_owner(now)
        if now >= self._listen_at or not session.owned:
            self._listen_at = now + MAX_WAIT
            self._listen(session, now)

    def _switch_to(self, owner: ListenerLink, now: float) -> None:
        """Continue the session over the link to the owner, and listen to the former broker."""
        _log.info("the broker at %s owns the store now", owner.address)
        manager, old = self._manager, self._link
        assert old is not None  # noqa: S101 - started
        listener = OwnerListener(manager.session)
        listener.connected(now)
        self._listener_links.remove(owner)
        former = ListenerLink(self._address, old, listener, broken=self._broken)
        self._listener_links.append(former)
        self._link, self._address, self._broken = owner.link, owner.address, owner.broken
        self._retry_at, self._next_at = 0.0, NEVER
        self._backlog.clear()
        manager.session.owner = owner.listener.owner
        manager.connected(now)
        self._send(owner.link)

    def _log_refusal(self, address: str, error: str) -> None:
        if self._refusals.get(address) != error:
            self._refusals[address] = error
            _log.warning("the broker at %s cannot be used: %s", address, error)

    def _listen(self, session: WorkerSession, now: float) -> None:
        """Open links to the configured brokers, and to an owner at another address.

        Close all other links, and reopen those to brokers that were silent for too long.
        """
        addresses = {*self._positions, self._reported_owner(session)} - {"", self._address}
        if session.owner is None:  # the store is no longer shared
            addresses.clear()
        for other in [*self._listener_links]:
            if other.listener.lost or other.address not in addresses:
                self._listener_links.remove(other)
                other.link.close(0)
        for address in sorted(addresses - {other.address for other in self._listener_links}):
            listener = OwnerListener(session)
            listener.connected(now)
            self._listener_links.append(ListenerLink(address, self._open(address), listener))

    def _reported_owner(self, session: WorkerSession) -> str:
        """Return the address of the owner if it is not the broker of the session, else ""."""
        if session.owner is None or session.owned:
            return ""
        owner = session.owners.of(session.owner)
        why = "" if owner.address in self._positions else untrusted(self.keys, owner.key)
        if owner != self._logged_owner:
            self._logged_owner = owner
            _log.log(
                logging.WARNING if why or not owner.address else logging.INFO,
                "the broker at %s is a standby; the owner of the store is %s%s",
                self._address, owner.address_beside(self._address) or "not known",
                why and f", but {why}",
            )  # fmt: skip
        return "" if why else owner.address

    def _stop_pool(self) -> None:
        if self._pool_runs:
            self._pool_runs = False
            self._pool.stop(0.0)
