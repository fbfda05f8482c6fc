"""Runs a worker: the socket to the broker, the pool, and the loop between them.

Order of a step, and why: everything readable is read first, since the broker's silence is judged
after that. Then the pool is polled and its answers go out: clients wait for them. Then what is due
is done, and its messages go out.

Where brokers share a store, the worker is connected to all of them. The session is that with the
owner; when another broker says that it owns the store, the session goes on over the link to that
one.
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
    from eventmq.worker.watchdog import TimeoutPolicy

__all__ = ["ConnectionLog", "WorkerRunner"]


_log = logging.getLogger(__name__)

#: Seconds of absence before the first warning: a broker that starts beside us takes as long.
WARN_AFTER = 2.0

#: Longest time in seconds between two warnings of one absence.
MAX_WARN_EVERY = 60.0

_LOOPBACK = ("tcp://127.", "tcp://localhost:", "tcp://[::1]:", "ipc://")

_IN = int(zmq.POLLIN)

_OUT = int(zmq.POLLOUT)

#: Most messages that are read in one step.
MAX_READS = 1000

#: Longest time in seconds between two steps.
MAX_WAIT = 1.0

#: Seconds between two handshakes of a worker that the broker refuses.
HANDSHAKE_EVERY = 1.0

#: Seconds after which a worker that no broker has answered yet tries the next one.
NEXT_AFTER = 2.0

#: What `WorkerRunner.stop` was asked for.
GO_ON, GRACEFULLY, AT_ONCE = range(3)


def _hint(address: str) -> str:
    """Return the command that starts a broker at an address."""
    other = address.startswith(_LOOPBACK) and address not in Settings().broker
    return "eventmq broker" + (f" --bind {address}" if other else "")


class ConnectionLog:
    """Logs that a broker is absent, connected, lost, and back.

    Attributes:
        shared: Another broker may take over: none need be started.
    """

    def __init__(self) -> None:
        self.shared = False
        self._absent_since: float | None = None
        self._never_connected = True
        self._warned = False
        self._answered = False
        self._warn_every = WARN_AFTER
        self._due = 0.0
        self._refusal = ""

    def handshake_failed(self, address: str, why: str) -> None:
        """Log why a handshake with the broker fails, when it fails for a new reason."""
        if why != self._refusal:
            self._refusal = why
            _log.warning("the broker at %s cannot be used: %s", address, why)

    def update(
        self, now: float, address: str, *, online: bool, broken: bool, received: bool
    ) -> None:
        """Log what is new about the connection. Call it in every step.

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
            self._due = now + WARN_AFTER
        if broken and not self._warned and not self._never_connected:
            self._warned = True
            _log.warning(
                "the connection to the broker at %s was lost; what runs goes on, and is answered "
                "when the broker is back", address,
            )  # fmt: skip
        self._answered = received or (self._answered and not broken)
        if now >= self._due:
            self._warn_absent(now, address, now - self._absent_since)

    def _warn_absent(self, now: float, address: str, seconds: float) -> None:
        self._warn_every = min(MAX_WARN_EVERY, 2 * self._warn_every)
        self._due = now + self._warn_every
        if (
            self._answered or self._refusal
        ):  # it is there; the session logs why it refuses this worker
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
    """The link to a broker beside that of the session, which is heard about the owner.

    Args:
        address: Of the broker.
        link: To it.
        listener: What listens.
        broken: The connection is lost.
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
        """Do what is due; return False where something came that only the owner may send."""
        link, listener, allowed = self.link, self.listener, True
        if link.socket in ready:
            for _ in range(MAX_READS):
                frames = link.receive()
                if frames is None:
                    break
                allowed = listener.receive(frames, now) and allowed
        if link.monitor_fd in ready:
            for made in link.connections():
                if made and self.broken:
                    listener.connected(now)
                self.broken = not made
        listener.tick(now)
        while listener.outbox and link.send(listener.outbox[0]):
            del listener.outbox[0]
        return allowed


class WorkerRunner:
    """Runner of a worker: connects to the first of its brokers that answers and runs its jobs.

    Args:
        pool: Runs the jobs; started and stopped by the runner.
        brokers: Addresses. Of brokers that share a store, the owner gives the jobs. Of others the
            next one is tried when a broker is silent and no chunk is held.
        info: Description of the worker; ``session`` and ``name`` are filled in.
        max_frame: Longest frame in bytes that is accepted, 0 for any.
        context: zmq context of the process, where there is one; needed for ``inproc://`` addresses.
        clock: Reads time.
        on_ready: Called once, in the runner's thread, when a broker has accepted the worker.
        timeout_policy: Decides the outcome of jobs that were stopped at their hard limit.

    """

    #: Makes the context in which `run` runs.
    run_context: Callable[[], AbstractContextManager[None]] = nullcontext
    #: For CURVE, None for brokers without; set before `run`.
    keys: ClientKeys | None = None
    #: Where jobs find inputs that are too large for a REQUEST; set before `run`.
    spool: SpoolDirectory | None = None

    #: Tells a service manager what this worker does; it gets a sign of life from `run`.
    notifier = Notifier({})

    #: Link to the broker, from `begin` to `end`.
    _link: Link | None = None
    #: The last value of `_poll_items`, and what it was made from.
    _items: Sequence[tuple[Any, int]] = ()
    _polled: object = None

    #: When a socket whose handshake failed is replaced: libzmq does not try again.
    _retry_at = 0.0
    #: When the next broker is tried, while none has accepted the worker.
    _next_at = NEVER
    #: When the links beside that of the session are looked after next.
    _listen_due = 0.0

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
        #: Of the broker with which the session is.
        self._address = brokers[0]
        #: Links to the other brokers, where they share their store.
        self._beside: list[ListenerLink] = []
        #: Address of one of these -> why its handshake failed, as it was logged.
        self._refusals: dict[str, str] = {}
        #: What was last logged about an owner with which the session is not.
        self._named: OwnerInfo | None = None
        self._was_online = False
        self._info = replace(info, name=info.name or f"{socket.gethostname()}:{os.getpid()}")
        self._max_frame = max_frame
        self._context = context
        self._clock = clock or SystemClock()
        self._on_ready = on_ready
        self._timeout_policy = timeout_policy
        self._restart_requested = False
        self._stop_requested = self._stop_handled = GO_ON
        self._pool_runs = self._broken = False
        #: When the pool is polled without a notification: it has answers that wait for others.
        self._pool_due = 0.0
        self._pool_fds: Sequence[int] = ()
        self._connection_log = ConnectionLog()
        self._backlog: deque[list[bytes]] = deque()
        self._wakeup = Wakeup()

    def stop(self, *, now: bool = False) -> None:
        """End: gracefully, or with ``now`` at once. From any thread or signal handler."""
        self._stop_requested = max(self._stop_requested, AT_ONCE if now else GRACEFULLY)
        self._wakeup.set()

    def restart(self) -> None:
        """End gracefully, in order to be started anew. From any thread or signal handler."""
        self._restart_requested = True
        self._wakeup.set()

    def metrics(self) -> Mapping[str, Any]:
        """Return the figures of this worker for a monitor, from any thread."""
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
        """Whether another worker is to be started when it has ended, and nothing has stopped it.

        `restart` asked for that, or too many threads were abandoned.
        """
        return self._restart_requested and self._stop_requested == GO_ON

    def handle_signal(self, signum: int, frame: FrameType | None) -> None:
        """Stop: gracefully at the first signal, at once at the second."""
        self.stop(now=self._stop_requested != GO_ON)

    def install_signal_handlers(self) -> None:
        """Let SIGTERM and SIGINT stop the worker. In the main thread only."""
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self.handle_signal)

    def run(self) -> None:
        """Serve until `stop`.

        Raises:
            EventMQError: The pool cannot start: one sentence says why.
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

    # Steps, for a program with a loop of its own: one thread calls them

    def begin(self) -> None:
        """Start the pool and connect. Call `end` in any case."""
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
        for beside in self._beside:
            wait = min(wait, max(0.0, beside.listener.next_tick() - now))
        assert self._link is not None  # noqa: S101 - started
        return self._poll_items(self._link), wait

    def poll_pool_next(self) -> None:
        """Let the next `step` poll the pool, also where none of its descriptors is readable."""
        self._pool_due = 0.0

    def step(self, ready: AbstractSet[Any]) -> bool:
        """Do what is due; return False when the worker has ended: then call `end`."""
        manager, link = self._manager, self._link
        assert link is not None  # noqa: S101 - started
        now = self._clock.monotonic()
        received = link.socket in ready and self._read(link, now)
        if self._pool_runs and (now >= self._pool_due or not ready.isdisjoint(self._pool_fds)):
            self._poll_pool(link, now)
        self._handle_stop(now)
        if link.monitor_fd in ready and self._reconnected(link):
            manager.connected(now)
        manager.tick(now)
        if manager.session.owner is not None or self._beside:
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
        while self._beside:
            self._beside.pop().link.close(0)
        self._wakeup.close()

    # Parts of a step

    def _poll_pool(self, link: Link, now: float) -> None:
        """Handle what happened in the pool, and send its answers at once."""
        self._pool_due = now + CHECK_EVERY
        self._manager.pool_events(self._pool.poll(), now)
        self._send(link)
        if (
            self._info.max_abandoned_threads
            and self._stop_requested == GO_ON
            and not self._restart_requested
        ):
            self._count_abandoned()

    def _handshake_due(self, link: Link, now: float) -> bool:
        """Log a failed handshake; return whether it is time for another one."""
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
        """Poll until something is ready or due; return the sockets that are readable.

        A socket that is not ready is not read: each attempt costs microseconds in the middle
        of a round trip.
        """
        ready = {source for source, _ in zmq_poll(items, int(wait * 1000) + 1)}
        if self._wakeup.fd in ready:
            self._wakeup.clear()
        return ready

    def _poll_items(self, link: Link) -> Sequence[tuple[Any, int]]:
        """Return the items to poll, the same list until something changes."""
        fds = self._pool_fds = self._pool.filenos() if self._pool_runs else ()
        polled = link, bool(self._backlog), fds, [beside.link for beside in self._beside]
        if polled != self._polled:
            self._polled = polled
            events = _IN | _OUT if self._backlog else _IN
            descriptors = (self._wakeup.fd, link.monitor_fd, *fds)
            beside = [fd for each in polled[-1] for fd in (each.socket, each.monitor_fd)]
            sources = (*descriptors, *beside)
            self._items = [(link.socket, events), *((source, _IN) for source in sources)]
        return self._items

    def _count_abandoned(self) -> None:
        """Restart where too many threads are abandoned."""
        if self._pool.abandoned > self._info.max_abandoned_threads:
            _log.error(
                "%d threads were abandoned and still run, more than max_abandoned_threads allows "
                "(%d); the worker hands back what it has and restarts",
                self._pool.abandoned, self._info.max_abandoned_threads,
            )  # fmt: skip
            self._restart_requested = True

    def _handle_stop(self, now: float) -> None:
        """Shut down as `stop` or `restart` was asked to."""
        requested = max(self._stop_requested, GRACEFULLY if self._restart_requested else GO_ON)
        if requested == self._stop_handled:
            return
        self._stop_handled = requested
        if self._stop_requested != GO_ON:
            self.notifier.stopping("ending: what runs has its grace")
        if requested == AT_ONCE:
            self._interrupt(now, "stopped at once")
            self._manager.finish()
        else:
            self._manager.terminate(now)

    def _interrupt(self, now: float, why: str) -> None:
        """Kill what runs, then hand it back: nothing may run on after that."""
        self._stop_pool()
        self._manager.pool_events(self._pool.poll(), now)
        joblog.aborted(self._manager.interrupted(now), why)

    def _send(self, link: Link) -> None:
        """Send what can be sent now; the rest waits until the socket takes it."""
        backlog = self._backlog
        outbox = self._manager.take_outbox()
        if outbox:
            if not self._manager.online:
                backlog.clear()  # it is an INFORM, and replaces one that could not be sent
            backlog += outbox
        while backlog and link.send(backlog[0]):
            backlog.popleft()

    # Connections

    def _reconnected(self, link: Link) -> bool:
        """Return whether a lost connection is there again: the broker may be a new one."""
        reconnected = False
        for made in link.connections():
            reconnected = made and (self._broken or reconnected)
            self._broken = not made
        return reconnected

    def _new_manager(self) -> JobManager:
        info = replace(self._info, session=uuid.uuid4().hex)
        return JobManager(
            info,
            pool=self._pool,
            clock=self._clock,
            timeout_policy=self._timeout_policy,
            spool=self.spool,
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
        """Open a socket, with a routing id of its own."""
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
        """Connect anew; to another broker only if no chunk is held: those belong to the first."""
        self._backlog.clear()
        manager = self._manager
        if len(self._brokers) > 1 and manager.idle and manager.session.owner is None:
            self._brokers.rotate(-1)
            self._address = self._brokers[0]
            self._manager = self._new_manager()
        return self._connect()

    # Brokers that share a store

    def _follow_owner(self, ready: AbstractSet[Any], now: float) -> None:
        """Listen to the brokers beside that of the session, and go over to the owner."""
        session = self._manager.session
        for beside in self._beside:
            if not beside.step(ready, now):
                self._manager.ignore_old_owner()
            if error := beside.link.handshake_error:
                beside.link.handshake_error = ""
                self._log_refusal(beside.address, error)
        if not session.owned:
            owner = next((each for each in self._beside if each.listener.owned), None)
            if owner is not None:
                self._go_over(owner, now)
            elif session.online:
                session.wait_for_owner(now)
        if now >= self._listen_due or not session.owned:
            self._listen_due = now + MAX_WAIT
            self._listen(session, now)

    def _go_over(self, owner: ListenerLink, now: float) -> None:
        """Go on with the session over the link to the owner, and listen to the one before."""
        _log.info("the broker at %s owns the store now", owner.address)
        manager, old = self._manager, self._link
        assert old is not None  # noqa: S101 - started
        listener = OwnerListener(manager.session)
        listener.connected(now)
        self._beside.remove(owner)
        self._beside.append(ListenerLink(self._address, old, listener, broken=self._broken))
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
        """Open links to the brokers that were given, and to an owner at another address.

        Others are closed, and so are those that were silent for too long, to be opened anew.
        """
        wanted = {*self._positions, self._named_owner(session)} - {"", self._address}
        if session.owner is None:  # its store is shared no more
            wanted.clear()
        for beside in [*self._beside]:
            if beside.listener.lost or beside.address not in wanted:
                self._beside.remove(beside)
                beside.link.close(0)
        for address in sorted(wanted - {beside.address for beside in self._beside}):
            listener = OwnerListener(session)
            listener.connected(now)
            self._beside.append(ListenerLink(address, self._open(address), listener))

    def _named_owner(self, session: WorkerSession) -> str:
        """Return the address of the owner where the broker of the session is another, else ""."""
        if session.owner is None or session.owned:
            return ""
        owner = session.owners.of(session.owner)
        why = "" if owner.address in self._positions else untrusted(self.keys, owner.key)
        if owner != self._named:
            self._named = owner
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
