"""Runs a broker: the sockets, the store and the clock around `BrokerCore`, in one thread.

A broker of a shared store has a `Candidate` (`eventmq.broker.ownership`). While it does not own the
store, its core has no store: it registers peers and reports the owner to them.

In one tick the runner reads every readable message, decides, sends the messages that need no
commit, commits once, settles, decides again about the effects of the commit, and sends the other
messages. The stop order is: KBAI to all peers, the deferred sends, the sockets (with a linger),
then the store, so that no receipt of a committed job is lost. This module also has two helpers of
`BrokerRunner`: `Observers` (the hook ``eventmq_job_event``, on its own thread) and
`CoalescedSends`.
"""

from __future__ import annotations

import errno
import logging
import queue
import threading
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

import zmq
from zmq.backend import zmq_poll

from eventmq.broker.authenticator import Authenticator
from eventmq.broker.core import PORTS, WORKER_PORTS, BrokerCore
from eventmq.broker.grants import Grant
from eventmq.broker.ownership import HANDOVER, Candidate, stand_by, tell_peers
from eventmq.broker.reading import ReaderThread
from eventmq.broker.relays import Relays
from eventmq.broker.state import LINGER, DeferredSend
from eventmq.errors import BindError, EventMQError, Fenced, NotAllowed, StoreError, Unknown
from eventmq.events import rows_of
from eventmq.notify import Notifier
from eventmq.store.lease import Claimant
from eventmq.store.metrics import Histogram
from eventmq.store.writes import Announce, KeepTime
from eventmq.timekeeping import Reading, Timekeeper
from eventmq.wakeup import Wakeup
from eventmq.wire.batches import pack
from eventmq.wire.commands import Error, Reply
from eventmq.wire.connections import Connections
from eventmq.wire.owner import ACTIVE
from eventmq.wire.sockets import (
    Link,
    NoConnection,
    RouterLink,
    TotalUsage,
    is_local,
    is_wildcard,
    new_context,
    open_pub,
    open_router,
)
from eventmq.wire.zap_thread import KeyRing

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence
    from pathlib import Path

    from eventmq.broker.limits import Limits
    from eventmq.broker.peers import Key
    from eventmq.clock import Clock
    from eventmq.interfaces import Ownership, QueueOrder, QueueStore, RoutingStrategy
    from eventmq.store.reads import EventRow
    from eventmq.store.recovery import Recovered

    _Query = Callable[[BrokerCore], Any]

__all__ = [
    "MAX_DELAY",
    "BrokerRunner",
    "CoalescedSends",
    "Observers",
]

logger = logging.getLogger("eventmq.broker")

#: Batches of events that wait for the thread of observers; the store keeps the others.
_MAX_WAITING = 4

#: Seconds that a stopping broker waits for observers.
_CLOSE_TIMEOUT = 5.0

#: Seconds that a message may wait for another one to the same peer. This is short compared with the
#: 5 s after which a reply without an ACK is sent again.
MAX_DELAY = 0.01

_NEVER = float("inf")

_IN = int(zmq.POLLIN)

#: Largest number of messages of one socket that a tick reads.
READ_AT_MOST = 1000

#: Longest time in seconds between two checks that the store still exists.
VERIFY_EVERY = 1.0

#: Seconds after which the clocks are stored if no other commit has stored them.
KEEP_TIME = 10.0

#: Seconds up to which a commit is quick: after it, writes that could wait for others do not. On a
#: disk that syncs in 0.1 ms a commit takes half a millisecond, and another one costs less than the
#: wait.
QUICK_COMMIT = 0.001

#: Upper bounds of the buckets of commit times, in seconds.
COMMIT_BUCKETS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
)  # fmt: skip

#: Seconds that the metrics page waits for the broker.
METRICS_TIMEOUT = 3.0

#: Seconds that the address of the PUB socket may take to become free.
REBIND_TIMEOUT = 5.0


class Observers:
    """Calls a function with each event, in order, on a thread of its own.

    Args:
        function: Called with each event; must not raise.
        broker_id: Id of the broker's store in its events.
        last: Number of the last event that the function is not called with.
    """

    def __init__(
        self, function: Callable[[Mapping[str, Any]], None], broker_id: str, last: int
    ) -> None:
        self._function = function
        self._broker_id = broker_id
        self._last = last
        self._rows: queue.Queue[Sequence[EventRow] | None] = queue.Queue(_MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name="eventmq-observers", daemon=True)
        self._thread.start()

    def put(self, rows: Sequence[EventRow]) -> bool:
        """Queue events for the function; return whether there was room for them."""
        try:
            self._rows.put_nowait(rows)
        except queue.Full:
            return False
        return True

    def close(self) -> None:
        """Wait up to `_CLOSE_TIMEOUT` seconds until the function was called with every event."""
        try:
            self._rows.put(None, timeout=_CLOSE_TIMEOUT)
            self._thread.join(_CLOSE_TIMEOUT)
        except queue.Full:
            logger.warning("observers are too slow: they did not get the last events")

    def _run(self) -> None:
        while (rows := self._rows.get()) is not None:
            for first, _, body in rows:
                if first > self._last + 1:
                    logger.warning(
                        "observers are too slow: events %d to %d were dropped",
                        self._last + 1, first - 1,
                    )  # fmt: skip
                for event in rows_of(self._broker_id, first, body):
                    if event["seq"] > self._last:
                        self._last = event["seq"]
                        self._function({"job_id": "", "queue": "", **event})


class CoalescedSends:
    """Holds messages back until another one is sent to the same peer, to wake that peer only once.

    Attributes:
        flush_at: Monotonic time at which `release` returns all held messages.
        waiting: The held messages by peer.
    """

    __slots__ = ("flush_at", "waiting")

    def __init__(self) -> None:
        self.flush_at = _NEVER
        self.waiting: dict[Key, list[DeferredSend]] = {}

    def release(self, sends: list[DeferredSend], now: float) -> list[DeferredSend]:
        """Return the messages to send now; held messages come last.

        Args:
            sends: New messages, in order.
            now: Monotonic time.
        """
        waiting = self.waiting
        released: list[DeferredSend] = []
        for message in sends:
            if message.coalesce:
                waiting.setdefault(message.key, []).append(message)
                self.flush_at = min(self.flush_at, now + MAX_DELAY)
                continue
            released.append(message)
            if waiting and message.key in waiting:
                released += waiting.pop(message.key)
        if now >= self.flush_at:
            released += [message for messages in waiting.values() for message in messages]
            waiting.clear()
        if not waiting:
            self.flush_at = _NEVER
        return released


class BrokerRunner:
    """A broker. Call ``bind``, then ``run`` in any thread; call ``stop`` from any thread.

    Args:
        store: The queue store, not opened yet.
        limits: The limits of the broker.
        routing: Chooses among workers.
        queue_order: Makes the queue order of a worker session.
        binds: Port name (``main worker admin publish subscribe``) -> address.
        clock: Reads the time.
        context: The ZeroMQ context; None makes one.
        version: Version of this software, reported to peers.
        durability: Durability of receipts, reported to peers.
        insecure: Allow addresses that other machines can reach without CURVE.
        keys_dir: Directory of the keys (`eventmq.wire.zap_thread`), which turn CURVE on.
        expect_store: Required id of the store, "" for any.
        advertise: Address of this broker for peers of a shared store, "" for the main address.
    """

    #: Called with each event, on a thread of its own. Set it before `bind`.
    observer: Callable[[Mapping[str, Any]], None] | None = None
    _observers: Observers | None = None
    _stopping = False

    def __init__(
        self,
        *,
        store: QueueStore,
        limits: Limits,
        routing: RoutingStrategy,
        queue_order: Callable[[], QueueOrder],
        binds: Mapping[str, str],
        clock: Clock,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
        version: str = "",
        durability: str = "",
        insecure: bool = False,
        keys_dir: Path | None = None,
        expect_store: str = "",
        advertise: str = "",
    ) -> None:
        self.store = store
        self._new_core: Callable[[], BrokerCore] = partial(
            BrokerCore, limits, routing, queue_order, version=version, durability=durability
        )
        self.core = self._new_core()
        self.addresses: dict[str, str] = {}
        self._limits = limits
        self._binds = dict(binds)
        self._clock = clock
        self._context, self._own_context = context, context is None
        self._insecure = insecure
        self._keys_dir = keys_dir
        self._expected = expect_store
        self._advertise = advertise
        self._candidate: Candidate | None = None  # made by bind, if the store is shared
        self._handed_over: list[tuple[Key, str]] = []
        self._relays: Relays | None = None  # made with the candidate
        self._authenticator: Authenticator | None = None
        self._links: dict[str, Link] = {}
        self._connections = Connections(self._connection_lost)
        self._coalesced = CoalescedSends()
        self._total = TotalUsage(limits.max_total_unsent_bytes)
        self._items: list[tuple[Any, int]] = []  # what `_run_ticks` polls
        self._wakeup: Wakeup | None = None  # made by bind
        self._keeper = Timekeeper()
        self._keep_at = self._jumped = 0.0
        #: Reports the state of this broker to a service manager; each loop sends a sign of life.
        self.notifier = Notifier({})
        self._commits = Histogram(COMMIT_BUCKETS)
        self._reader: ReaderThread | None = None  # made when the store is open
        #: Queries of other threads to the core, each with the queue for its answer.
        self._queries: queue.SimpleQueue[tuple[_Query, queue.SimpleQueue[Any]]] = (
            queue.SimpleQueue()
        )

    @property
    def role(self) -> str:
        """Role of this broker now, as text for people."""
        owner, at = self.core.state.owner, self.addresses.get("main", "")
        if owner is None:
            return f"serves at {at}"
        if not self.core.standby:
            return f"owns the store, epoch {owner.epoch}, serves at {at}"
        return f"stands by at {at}; the owner is {owner.address or 'not known'}"

    # Start and stop

    def bind(self) -> None:
        """Bind all sockets, then open the store and recover, or stand by if another broker owns it.

        Raises:
            BindError: An address is in use or malformed; or the main one is a wildcard, the store
                is shared, and ``advertise`` is empty.
            KeyFileError: The broker's own key cannot be used.
            NotAllowed: An address is not loopback, there are no keys and ``insecure`` is not set;
                or an unauthorised key was let in.
            StoreError: The store cannot be opened, or has another id than the expected one.
        """
        for name, address in self._binds.items():
            if name not in PORTS and name != "subscribe":
                raise BindError(f"there is no port {name!r}; known are {', '.join(PORTS)}")
            if not is_local(address) and not self._insecure and self._keys_dir is None:
                raise NotAllowed(
                    f"{address} can be reached from other machines and nothing would be "
                    'encrypted or checked: make keys with "eventmq keys new --broker", bind a '
                    "loopback address, or say --insecure"
                )
        main = self._binds.get("main", "")
        if self.store.ownership is not None and not self._advertise and is_wildcard(main):
            raise BindError(
                f"peers of a shared store are told where its owner is, and {main} names no host: "
                "say --advertise tcp://HOST:PORT, an address of this machine that they can reach"
            )
        self._authenticator = self._make_authenticator()
        if self._context is None:
            self._context = new_context()
        self._wakeup = Wakeup()
        try:
            if self._authenticator is not None:
                self._authenticator.open(self._context)
            for name, address in self._binds.items():
                self._bind(name, address)
            if self._authenticator is not None:
                self._authenticator.test(self.addresses)
            if self.store.ownership is not None:
                self._begin_candidacy(self.store.ownership)
            else:
                self._observe(self.core)
                self._recover(self._open_store())
        except BaseException:
            self._close()
            raise

    def _open_store(self) -> Recovered:
        recovered = self.store.open()
        self._check_id(recovered.store_id)
        return recovered

    def _check_id(self, store_id: str) -> None:
        if self._expected not in {"", store_id}:
            msg = f"the store has the id {store_id}, and expect_store says "
            raise StoreError(f"{msg}{self._expected}: name the store that has it, or expect this")

    def _recover(self, recovered: Recovered) -> None:
        self.core.state.addresses = self.addresses
        self.core.waiters.lookups.unread = self._unread
        self.core.waiters.lookups.allowance = self._allowance
        self.core.waiters.lookups.allocate = self._allocate
        self.core.state.unread_bytes = lambda: self._total.used
        self._keep(recovered.keeper)
        self.core.recover(recovered, self._now())
        self._begin_reading()
        self.core.state.write(Announce(self.addresses), lambda _: None)
        if self.observer is not None:
            last = recovered.next_event - 1
            self._observers = Observers(self.observer, self.core.state.events_id, last)
            self.core.events.observe = self._observers.put

    def _begin_reading(self) -> None:
        """Let listings be read beside the commits, if the store can do that."""
        open_reader, wakeup = self.store.reader(), self._wakeup
        if open_reader is not None and wakeup is not None:
            self._reader = ReaderThread(open_reader, wakeup.set)
            self.core.state.reader = self._reader.read

    def _observe(self, core: BrokerCore) -> None:
        """Connect a core to the metrics that are measured outside of it."""
        state = core.state
        state.commits, state.store_gauges = self._commits, self.store.gauges
        if self._candidate is not None:
            state.without_owner = self._candidate.without_owner

    def _keep(self, keeper: Timekeeper) -> None:
        """Use the time of a store."""
        self._keeper, self._jumped, self._keep_at = keeper, 0.0, 0.0
        if keeper.store_time is None:  # the store keeps no time
            clock = self._clock
            keeper.start(Reading(clock.now(), clock.boottime(), clock.boot_id()), None)

    def _make_authenticator(self) -> Authenticator | None:
        """Return the authenticator, None if every local peer may do everything."""
        ring = None if self._keys_dir is None else KeyRing(self._keys_dir, Grant.read)
        rate = self._limits.max_message_rate
        if ring is None and not rate and all(map(is_local, self._binds.values())):
            return None
        return Authenticator(self.core, ring, self._connections, rate=rate)

    def _bind(self, name: str, address: str) -> None:
        assert self._context is not None  # noqa: S101 - made by bind
        is_pub = name == "subscribe"
        link = open_pub(self._context) if is_pub else self._open_router(self._context)
        self._links[name] = link
        if self._authenticator is not None:
            self._authenticator.encrypt(name, link)
        if name in WORKER_PORTS and link.monitor_fd < 0:
            self._connections.watch(name, link)
        try:
            self.addresses[name] = link.bind(address)
        except zmq.ZMQError as error:
            reason, remedy = f"{error}", "name another"
            if error.errno == zmq.EADDRINUSE:
                reason, remedy = "the address is in use", "stop what uses it, or name another"
            elif error.errno in {errno.ENODEV, zmq.EADDRNOTAVAIL}:
                reason = "its host cannot be resolved, or is not an address of this machine"
            raise BindError(f"cannot bind {name} to {address}: {reason}; {remedy}") from error
        if not is_pub:
            self._items.append((link.socket, _IN))
            if name in WORKER_PORTS:
                self._items.append((link.monitor_fd, _IN))

    def _connection_lost(self, port: str) -> None:
        if port in WORKER_PORTS:
            self.core.heartbeats.connection_lost()

    def _open_router(self, context: zmq.Context[Any]) -> Link:
        return open_router(
            context,
            max_frame=self._limits.max_frame,
            identified_by="" if self._authenticator is None else self._authenticator.identified_by,
            max_unsent_bytes=self._limits.max_unsent_bytes,
            total=self._total,
        )

    def stop(self) -> None:
        """Ask `run` to end. Call it from any thread or signal handler, any number of times."""
        self._stopping = True
        if self._wakeup is not None:
            self._wakeup.set()

    def ask(self, query: Callable[[BrokerCore], Any], timeout: float) -> Any:
        """Call a function with the core between two messages; return its result.

        Do not call this from the thread of the broker itself.

        Args:
            query: Called in the thread of the broker; must be quick and change nothing.
            timeout: Seconds to wait for the result.

        Raises:
            TimeoutError: The broker was busy for this time, or has ended.
        """
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._queries.put((query, answer))
        if self._wakeup is not None:
            self._wakeup.set()
        try:
            return answer.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"the broker has not answered within {timeout:g} s") from None

    def metrics(self) -> Mapping[str, Any]:
        """Return what the CALL ``metrics`` answers, from any other thread.

        Raises:
            EventMQError: The broker was busy for `METRICS_TIMEOUT`, or has ended.
        """
        try:
            figures: Mapping[str, Any] = self.ask(
                lambda core: core.metrics.snapshot(), METRICS_TIMEOUT
            )
        except TimeoutError as error:
            raise EventMQError(str(error)) from error
        return figures

    def _answer_queries(self, wakeup: Wakeup) -> None:
        wakeup.clear()  # first, since later queries set it again
        if self._reader is not None:
            self._reader.take()
        while not self._queries.empty():
            query, answer = self._queries.get()
            answer.put(query(self.core))

    def run(self) -> None:
        """Serve until `stop` or a DISCONNECT is carried out; then release everything.

        Raises:
            StoreError: The store cannot be written, or was moved or deleted. All acknowledged jobs
                are on disk.
        """
        assert self._wakeup is not None  # noqa: S101 - made by bind
        self._items.append((self._wakeup.fd, _IN))
        candidate = self._candidate
        if candidate is None and (fd := self.store.fileno()) is not None:
            self._items.append((fd, _IN))
        try:
            if candidate is None:
                self._run_ticks()
            else:
                self._serve(candidate)
            self.notifier.stopping("ending")
            self.core.close(self._now())
            if not self.core.standby:
                self._end_commits(candidate)
            self._send_deferred(last=True)
        finally:
            self._close()

    def _end_commits(self, candidate: Candidate | None) -> None:
        """Commit the remaining writes, and give a shared store up."""
        try:
            self._commit()
            self.core.events.read_for_observers()  # the events of the commit before
            self._keep_time()
            self._commit()
        except (Fenced, Unknown) as error:
            if candidate is None:
                raise
            logger.warning("the last writes were not committed: %s", error)
        else:
            if candidate is not None:
                candidate.release()

    # A shared store

    def _begin_candidacy(self, ownership: Ownership) -> None:
        keys = None if self._authenticator is None else self._authenticator.own_keys
        key = "" if keys is None else keys.public
        address = self._advertise or self.addresses["main"]
        me = Claimant(uuid.uuid4().hex, address, key)
        self._candidate = candidate = Candidate(ownership, me, self._clock.boottime)
        assert self._context is not None  # noqa: S101 - made by bind
        publishes = "subscribe" in self.addresses
        self._relays = Relays(
            self._context, self._pass_back, keys, publishes=publishes,
            max_bytes=self._limits.max_unsent_bytes, total=self._total,
        )  # fmt: skip
        self._check_id(candidate.read_lease().store_id)
        if not (candidate.step() and self._take_over(candidate)):
            self._replace_core(candidate, standby=True)

    def _serve(self, candidate: Candidate) -> None:
        """Run as standby or as owner, in turn, until `stop` or a DISCONNECT."""
        while not self._stopping and not self.core.done:
            try:
                if self.core.standby:
                    self._stand_by(candidate)
                    continue
                self._run_ticks()
                if self.core.state.handover:
                    self._hand_over(candidate)
            except (Fenced, Unknown) as error:
                candidate.lost(error)
                if not (candidate.step() and self._take_over(candidate)):
                    self._replace_core(candidate, standby=True)

    def _stand_by(self, candidate: Candidate) -> None:
        """Answer peers as a standby until this broker owns the store, or ends."""
        core, clock, keeper, watch = self.core, self._clock, self._keeper, candidate.watch
        relays = self._relays
        assert relays is not None  # noqa: S101 - made with the candidate
        boot, interval = keeper.boot, self._limits.heartbeat_interval
        while not self._stopping and not core.done:
            self.notifier.turn(clock.monotonic())
            if candidate.step() and self._take_over(candidate):
                return
            if candidate.info != core.state.owner:
                tell_peers(core, candidate.info)
            relays.follow(candidate.info)
            relays.tick(clock.monotonic(), clock.now(), interval, core.state.peers)
            self._answer_handover(candidate)
            self._send_deferred()
            remaining = min(watch.next_at - clock.boottime(), self.notifier.every)
            wait = max(0.0, min(interval / 4, remaining))
            fd = candidate.fileno()
            more = relays.sockets if fd is None else [fd, *relays.sockets]
            items = [*self._items, *((source, _IN) for source in more)]
            ready = {source for source, _ in zmq_poll(items, int(wait * 1000) + 1)}
            if fd in ready:
                candidate.check_freed()
            now = self._now()
            elapsed, boot = keeper.boot - boot, keeper.boot
            if elapsed - wait > interval:
                core.shift(now, elapsed)
            relays.read(ready, clock.monotonic())
            if self._read(ready, now):
                core.idle(now)
            self._send_deferred()

    def _pass_back(self, key: Key, frames: list[bytes]) -> None:
        """Send a message of the owner to a peer."""
        self.core.state.deferred_sends.append(DeferredSend(key, frames))

    def _take_over(self, candidate: Candidate) -> bool:
        """Open the claimed store with a new core; return whether that succeeded."""
        try:
            recovered = self._open_store()
        except (Fenced, Unknown) as error:
            candidate.lost(error)
            return False
        self._replace_core(candidate, recovered=recovered)
        return True

    def _replace_core(
        self,
        candidate: Candidate,
        *,
        recovered: Recovered | None = None,
        standby: bool = False,
    ) -> None:
        """Start with a new core, recovered or as a standby; ask peers to inform again."""
        if self._reader is not None:
            self._reader.end()  # its read may wait for a database that is gone
            self._reader = None
        old, self.core = self.core, self._new_core()
        self._observe(self.core)
        self.core.schedules.check = old.schedules.check
        relays = self._relays
        assert relays is not None  # noqa: S101 - made with the candidate
        if standby:
            stand_by(self.core, lambda: candidate.watch.unavailable_reason, relays.forward)
            self.core.forward_legacy = relays.forward_legacy
        if self._authenticator is not None:
            self._authenticator.attach(self.core)
        if self._observers is not None:
            self._observers.close()
            self._observers = None
        if standby:
            self._keep(Timekeeper())
            state = self.core.state
            state.addresses, state.now = self.addresses, self._now()
            state.started = state.now
        elif recovered is not None:
            relays.close()
            self._recover(recovered)
        tell_peers(self.core, candidate.info, old)
        self.notifier.tell(status=self.role)
        self._answer_handover(candidate)

    def _hand_over(self, candidate: Candidate) -> None:
        """Commit and send all that is pending, give the store up, and stand by."""
        self._handed_over += self.core.state.handover
        self.core.waiters.send_receipts(float("inf"))
        self._commit()
        self._send_deferred(last=True)
        candidate.release()
        logger.info("the store was given up for another broker to take over")
        self._replace_core(candidate, standby=True)

    def _answer_handover(self, candidate: Candidate) -> None:
        """Answer the calls ``handover`` when another broker has taken over, or none has."""
        info, state = candidate.info, self.core.state
        if not info.address:
            return
        for key, call in self._handed_over:
            answer: Reply | Error
            if info.role == ACTIVE:
                text = f"no other broker took the store over within {HANDOVER:g} s"
                answer = Error(state.message_id(), call, "no-standby", text)
            else:
                owner = pack({"owner": info.address, "epoch": info.epoch})
                answer = Reply(state.message_id(), owner, call)
            state.deferred_sends.append(DeferredSend(key, answer.frames()))
        self._handed_over.clear()

    def _close(self) -> None:
        if self._relays is not None:
            self._relays.close()
        if self._authenticator is not None:
            self._authenticator.close()
        for link in self._links.values():
            link.close()
        self._links.clear()
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self.store.close()
        if self._observers is not None:
            self._observers.close()
            self._observers = None
        if self._own_context and self._context is not None:
            self._context.term()
            self._context = None
        if self._wakeup is not None:
            self._wakeup.close()

    # Ticks

    # hot loop: python -m benchmarks drain
    def _run_ticks(self) -> None:
        core, clock, items, coalesced = self.core, self._clock, self._items, self._coalesced
        read_now, keeper = self._now, self._keeper
        interval = self._limits.heartbeat_interval
        now, boot, handover = read_now(), keeper.boot, core.state.handover
        verify_every = min(VERIFY_EVERY, self.notifier.every)
        verify_at = clock.monotonic() + verify_every
        while not self._stopping and not core.done and not handover:
            wait, before = 0.0, read_now()
            if not core.must_commit(before):
                remaining = min(coalesced.flush_at, verify_at) - clock.monotonic()
                wait = max(0.0, min(core.next_tick(before) - before, remaining))
            ready = zmq_poll(items, int(wait * 1000) + (1 if wait else 0))
            now = read_now()
            elapsed, boot = keeper.boot - boot, keeper.boot
            if (monotonic := clock.monotonic()) >= verify_at:
                verify_at = monotonic + verify_every
                self._verify()
                self.notifier.turn(monotonic)
            if elapsed - wait > interval:
                core.shift(now, elapsed)
            all_read = self._read({source for source, _ in ready}, now)
            core.decide(now, caught_up=all_read)
            if now >= self._keep_at:
                self._keep_time()
            if core.must_commit(now):
                self._send_deferred()  # messages that need no commit do not wait for it
                self._commit()
                self._send_deferred()
                core.decide(read_now(), caught_up=False)
            self._send_deferred()

    def _verify(self) -> None:
        """Check that the store still exists; renew the lease of a shared one."""
        self.store.verify()
        if self.store.ownership is not None:
            self.store.ownership.renew()

    def _now(self) -> float:
        """Read the clocks; return store time."""
        clock, keeper = self._clock, self._keeper
        now = keeper.advance(clock.now(), clock.boottime())
        if keeper.notices:
            for text in keeper.notices:
                logger.warning("%s", text)
            keeper.notices.clear()
        if keeper.jumped != self._jumped:
            self._jump()
        return now

    def _jump(self) -> None:
        """Move every deadline by a jump of store time, during which no peer was silent."""
        seconds, self._jumped = self._keeper.jumped - self._jumped, self._keeper.jumped
        self.core.jump(seconds)

    def _keep_time(self) -> None:
        """Store the clocks if no commit has stored them for `KEEP_TIME`."""
        self._keep_at = self._keeper.now + KEEP_TIME
        if self._stopping or self.core.done or self._keeper.unsaved_for >= KEEP_TIME:
            self.core.state.write(KeepTime(), lambda _: None)

    def _read(self, ready: Container[object], now: float) -> bool:
        """Read the readable sockets; return whether all messages were read."""
        if (wakeup := self._wakeup) is not None and wakeup.fd in ready:
            self._answer_queries(wakeup)
        for name, link in self._links.items():
            if link.monitor_fd in ready:
                self._connections.read(name)
        if self._authenticator is not None:
            return self._read_authenticated(self._authenticator, ready, now)
        core = self.core
        all_read = True
        for name, link in self._links.items():
            if link.socket not in ready:
                continue
            receive = link.receive
            for _ in range(READ_AT_MOST):
                frames = receive()
                if frames is None:
                    break
                core.receive(name, frames, now)
            else:
                all_read = False
        return all_read

    def _read_authenticated(
        self, authenticator: Authenticator, ready: Container[object], now: float
    ) -> bool:
        """Read the readable sockets through the authenticator; see `_read`."""
        authenticator.refresh(now, self._reopen_pub)
        readable = [(name, link) for name, link in self._links.items() if link.socket in ready]
        all_read = [authenticator.read(name, link, READ_AT_MOST, now) for name, link in readable]
        return all(all_read)

    def _reopen_pub(self) -> None:
        """Disconnect all subscribers, since one key was revoked; the others reconnect."""
        link = self._links.pop("subscribe", None)
        if link is None or self._authenticator is None:
            return
        self._connections.forget("subscribe")
        link.close(0)
        end = self._clock.monotonic() + REBIND_TIMEOUT
        while "subscribe" not in self._links:
            try:
                self._bind("subscribe", self.addresses["subscribe"])
            except BindError:
                self._connections.forget("subscribe")
                self._links.pop("subscribe").close(0)
                if self._clock.monotonic() > end:
                    raise
                zmq_poll([], 10)

    def _commit(self) -> None:
        writes, settle = self.core.take_batch()
        if not writes:
            return
        began = self._clock.monotonic()
        self.store.submit(writes)
        write_results = self.store.finished()
        while not write_results:
            self._wait_for_store()
            write_results = self.store.finished()
        seconds = max(0.0, self._clock.monotonic() - began)
        self._commits.add(seconds)
        self.core.state.linger = LINGER if seconds > QUICK_COMMIT else 0.0
        if self._keeper.jumped != self._jumped:  # the store reads the clocks as well
            self._jump()
        for write_result in write_results:
            settle(write_result)

    def _wait_for_store(self) -> None:
        poller = zmq.Poller()
        fd = self.store.fileno()
        assert fd is not None, "a store without a descriptor ends a commit in submit"  # noqa: S101
        poller.register(fd, zmq.POLLIN)
        poller.poll()

    def _send_deferred(self, *, last: bool = False) -> None:
        links, authenticator, coalesced = self._links, self._authenticator, self._coalesced
        sends = self.core.take_deferred_sends()
        if sends or coalesced.waiting:
            sends = coalesced.release(sends, float("inf") if last else self._clock.monotonic())
        if authenticator is not None and sends:
            self._connections.read_all()
        # Peers whose pipe is full: no later message may overtake one that was not sent.
        full: set[Key] = set()
        for message in sends:
            key = message.key
            if key.port == "subscribe":
                links["subscribe"].send(message.frames)
                continue
            if authenticator is not None and not authenticator.is_connected(*key):
                self._not_sent(message, reachable=False)
                continue
            try:
                sent = key not in full and links[key.port].send([key.identity, *message.frames])
            except NoConnection:
                self._not_sent(message, reachable=False)
            else:
                if not sent:
                    full.add(key)
                    self._not_sent(message, reachable=True)

    def _unread(self, key: Key) -> int:
        """Return how many bytes wait for a peer."""
        link = self._links[key.port]
        return link.buffers.waiting(key.identity) if isinstance(link, RouterLink) else 0

    def _allocate(self, key: Key, size: int, before: int, coming: int) -> bool:
        """Return whether a message can be sent to a peer; see `SendBuffers.allocate`."""
        link = self._links[key.port]
        if not isinstance(link, RouterLink):
            return True
        return link.buffers.allocate(link.buffers.usage(key.identity), size, before, coming)

    def _allowance(self) -> int:
        """Return how many bytes may wait for a peer now."""
        total = self._total
        if total.share() < self._limits.max_unsent_bytes:
            total.refresh()
        return min(self._limits.max_unsent_bytes, total.share())

    def _not_sent(self, message: DeferredSend, *, reachable: bool) -> None:
        self.core.not_sent(message, self._now(), reachable=reachable)
