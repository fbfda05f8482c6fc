"""Runs a worker: the socket to the broker, the pool, and the loop between them.

Order of a turn, and why: everything readable is read first (the broker's silence is judged after
that), then the pool is asked and its answers go out, since somebody waits for them, then what is
due is done, and what comes of that goes out.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import uuid
from collections import deque
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import zmq
from zmq.backend import zmq_poll

from eventmq.clock import SystemClock
from eventmq.execution import joblog
from eventmq.settings import Settings
from eventmq.wire.sockets import new_context, open_dealer
from eventmq.worker.manager import JobManager
from eventmq.worker.slots import LOOK
from eventmq.worker.watchdog import fail

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet
    from contextlib import AbstractContextManager
    from types import FrameType

    from eventmq.clock import Clock
    from eventmq.interfaces import WorkerPool
    from eventmq.wire.curve import ClientKeys
    from eventmq.wire.sockets import Link
    from eventmq.worker.inputs import SpoolDirectory
    from eventmq.worker.session import SessionInfo
    from eventmq.worker.watchdog import TimeoutPolicy

__all__ = ["ConnectionLog", "WorkerRunner"]


_log = logging.getLogger(__name__)

#: Seconds of absence before it is spoken of: a broker that starts beside us takes as long.
FIRST = 2.0

#: Longest time in seconds between two warnings of one absence.
LONGEST = 60.0

_LOOPBACK = ("tcp://127.", "tcp://localhost:", "tcp://[::1]:", "ipc://")


def _hint(address: str) -> str:
    """Return what to type for a broker at an address."""
    other = address.startswith(_LOOPBACK) and address not in Settings().broker
    return "eventmq broker" + (f" --bind {address}" if other else "")


class ConnectionLog:
    """Logs that a broker is absent, there, lost, and back."""

    def __init__(self) -> None:
        self._absent_since: float | None = None
        self._never = True
        self._told = False
        self._heard = False
        self._step = FIRST
        self._due = 0.0
        self._trouble = ""

    def trouble(self, address: str, why: str) -> None:
        """Log why a handshake with the broker fails, when it fails for a new reason."""
        if why != self._trouble:
            self._trouble = why
            _log.warning("the broker at %s cannot be used: %s", address, why)

    def note(self, now: float, address: str, *, online: bool, broken: bool, heard: bool) -> None:
        """Take note of how things stand, and log what is new. In every turn.

        Args:
            now: The time.
            address: Of the broker.
            online: The broker has acknowledged us.
            broken: There was a connection, and it was lost.
            heard: The broker said something in this turn.
        """
        if online and not broken:
            self._trouble = ""
            if self._absent_since is not None or self._never:
                self._back(now, address)
            return
        if self._absent_since is None:
            self._absent_since = now
            self._told = self._heard = False
            self._step = FIRST
            self._due = now + FIRST
        if broken and not self._told and not self._never:
            self._told = True
            _log.warning(
                "the connection to the broker at %s was lost; what runs goes on, and is answered "
                "when the broker is back", address,
            )  # fmt: skip
        self._heard = heard or (self._heard and not broken)
        if now >= self._due:
            self._complain(now, address, now - self._absent_since)

    def _complain(self, now: float, address: str, seconds: float) -> None:
        self._step = min(LONGEST, 2 * self._step)
        self._due = now + self._step
        if self._heard or self._trouble:  # it is there; the session says why it does not take us
            return
        self._told = True
        _log.warning(
            "no broker answers at %s for %.0f s; waiting for it; start one with: %s",
            address, seconds, _hint(address),
        )  # fmt: skip

    def _back(self, now: float, address: str) -> None:
        since, self._absent_since = self._absent_since, None
        if self._never:
            _log.info("connected to the broker at %s", address)
        elif self._told and since is not None:
            _log.info("connected to the broker at %s, after %.1f s", address, now - since)
        self._never = False


_IN = int(zmq.POLLIN)

_OUT = int(zmq.POLLOUT)

#: Messages that are read in one turn.
TURN = 1000

#: Longest time in seconds between two turns.
LONGEST_WAIT = 1.0

#: Seconds between two handshakes of a worker that is refused.
RETRY = 1.0

#: What `WorkerRunner.stop` was asked for.
GO_ON, GRACEFULLY, AT_ONCE = range(3)


def _pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets that never wait."""
    pair = socket.socketpair()
    for sock in pair:
        sock.setblocking(False)  # noqa: FBT003 - positional only
    return pair


class WorkerRunner:
    """One worker: connects to the first of its brokers that answers and runs its jobs.

    Args:
        pool: Runs the jobs; started and stopped by the runner.
        brokers: Addresses. The next one is tried when a broker is silent and nothing is held.
        info: What the worker says about itself; ``session`` and ``name`` are filled in.
        max_frame: Longest frame in bytes that is taken, 0 for any.
        context: Of the process, where there is one; needed for ``inproc://`` addresses.
        clock: Reads time.
        on_ready: Called once in the runner's thread when a broker first knows the worker.
        timeout_policy: Says what becomes of jobs that were stopped at their hard limit.

    Attributes:
        worn_out: It ended because too many threads were given up: start another one.
    """

    #: Makes the context in which `run` runs.
    around: Callable[[], AbstractContextManager[None]] = nullcontext
    #: For CURVE, None for brokers without; set before `run`.
    keys: ClientKeys | None = None
    #: Where the pool's jobs find what no REQUEST can carry; set before `run`.
    spool: SpoolDirectory | None = None

    #: To the broker, from `begin` to `end`.
    _link: Link | None = None
    #: What `_poll_items` returned last, and what that was made for.
    _items: Sequence[tuple[Any, int]] = ()
    _polled: object = None

    #: When a socket whose handshake failed is replaced: libzmq does not try again.
    _retry_at = 0.0

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
        timeout_policy: TimeoutPolicy = fail,
    ) -> None:
        self._pool = pool
        self._brokers = deque(brokers)
        self._info = replace(info, name=info.name or f"{socket.gethostname()}:{os.getpid()}")
        self._max_frame = max_frame
        self._context = context
        self._clock = clock or SystemClock()
        self._on_ready = on_ready
        self._timeout_policy = timeout_policy
        self.worn_out = False
        self._asked = self._obeyed = GO_ON
        self._pool_runs = self._broken = False
        #: When the pool is asked without having called: it has answers that wait for others.
        self._pool_due = 0.0
        self._pool_fds: Sequence[int] = ()
        self._connection_log = ConnectionLog()
        self._backlog: deque[list[bytes]] = deque()
        self._woken, self._wake = _pair()

    def stop(self, *, now: bool = False) -> None:
        """End: gracefully, or with ``now`` at once. From any thread or signal handler."""
        self._asked = max(self._asked, AT_ONCE if now else GRACEFULLY)
        self.worn_out = False
        with suppress(OSError):  # full: it is awake; closed: it has ended
            self._wake.send(b"!")

    def handle_signal(self, signum: int, frame: FrameType | None) -> None:
        """Stop: gracefully at the first signal, at once at the second."""
        self.stop(now=self._asked != GO_ON)

    def install_signal_handlers(self) -> None:
        """Let SIGTERM and SIGINT stop the worker. In the main thread only."""
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self.handle_signal)

    def run(self) -> None:
        """Serve until `stop`.

        Raises:
            EventMQError: The pool cannot start: one sentence says why.
        """
        with self.around():
            self._run()

    def _run(self) -> None:
        own = self._context is None
        try:
            self.begin()
            while not self._manager.done:
                self.step(self._await(*self.wanted()))
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

    def wanted(self) -> tuple[Sequence[tuple[Any, int]], float]:
        """Return what to poll, and for how many seconds at most, before the next `step`."""
        now = self._clock.monotonic()
        wait = min(LONGEST_WAIT, self._manager.wait(now))
        if self._retry_at:
            wait = min(wait, max(0.0, self._retry_at - now))
        assert self._link is not None  # noqa: S101 - started
        return self._poll_items(self._link), wait

    def look(self) -> None:
        """Let the next `step` ask the pool, also where none of its descriptors is readable."""
        self._pool_due = 0.0

    def step(self, ready: AbstractSet[Any]) -> bool:
        """Do what there is to do; return False when all is said: then call `end`."""
        assert self._link is not None  # noqa: S101 - started
        self._link = self._turn(self._link, ready)
        return not self._manager.done

    def end(self) -> None:
        """Stop the pool and close the socket. Idempotent."""
        self._stop_pool()
        if self.spool is not None:
            self.spool.close()
        link, self._link = self._link, None
        if link is not None:
            link.close()
        self._woken.close()
        self._wake.close()

    # Parts of a turn

    def _turn(self, link: Link, ready: AbstractSet[Any]) -> Link:
        """Do what there is to do; return the link, or the one that took its place."""
        manager = self._manager
        now = self._clock.monotonic()
        heard = link.socket in ready and self._read(link, now)
        if self._pool_runs and (now >= self._pool_due or not ready.isdisjoint(self._pool_fds)):
            self._ask_pool(link, now)
        self._obey(now)
        if link.monitor_fd in ready and self._back(link):
            manager.connected(now)
        manager.tick(now)
        broken = self._broken or manager.lost
        if not manager.done:
            self._connection_log.note(
                now, self._brokers[0], online=manager.online, broken=broken, heard=heard
            )
        if manager.overdue:
            self._interrupt(now, f"the grace of {self._info.shutdown_grace:g} s is over")
        if manager.online and self._on_ready is not None:
            on_ready, self._on_ready = self._on_ready, None
            on_ready()
        self._send(link)
        refused = self._refused(link, now)
        if (manager.lost or refused) and not manager.done:
            link.close(0)
            link = self._reconnect()
        return link

    def _ask_pool(self, link: Link, now: float) -> None:
        """Take what happened in the pool, and send its answers at once."""
        self._pool_due = now + LOOK
        self._manager.pool_events(self._pool.poll(), now)
        self._send(link)
        if self._info.max_abandoned_threads and self._asked == GO_ON and not self.worn_out:
            self._count_abandoned(now)

    def _refused(self, link: Link, now: float) -> bool:
        """Tell of a failed handshake; say whether it is time for another one."""
        if link.trouble:
            self._connection_log.trouble(self._brokers[0], link.trouble)
            self._retry_at = self._retry_at or now + RETRY
            link.trouble = ""
        return bool(self._retry_at) and now >= self._retry_at

    def _read(self, link: Link, now: float) -> bool:
        """Take what can be read; say whether there was anything."""
        for count in range(TURN):
            frames = link.receive()
            if frames is None:
                return count > 0
            self._manager.receive(frames, now)
        return True

    def _await(self, items: Sequence[tuple[Any, int]], wait: float) -> set[Any]:
        """Wait for something, or until something is due; return the sockets that are readable.

        What is not ready is not asked: each look at an idle socket costs microseconds in the
        middle of a round trip.
        """
        ready = {source for source, _ in zmq_poll(items, int(wait * 1000) + 1)}
        if self._woken.fileno() in ready:
            with suppress(BlockingIOError):
                self._woken.recv(4096)
        return ready

    def _poll_items(self, link: Link) -> Sequence[tuple[Any, int]]:
        """Return what to poll, the same list until something is different."""
        fds = self._pool_fds = self._pool.filenos() if self._pool_runs else ()
        polled = link, bool(self._backlog), fds
        if polled != self._polled:
            self._polled = polled
            wanted = _IN | _OUT if self._backlog else _IN
            others = (self._woken.fileno(), link.monitor_fd, *fds)
            self._items = [(link.socket, wanted), *((fd, _IN) for fd in others)]
        return self._items

    def _count_abandoned(self, now: float) -> None:
        """End where more threads were given up than this process should carry."""
        if self._pool.abandoned > self._info.max_abandoned_threads:
            self.worn_out = True
            _log.error(
                "%d threads were given up and still run, more than max_abandoned_threads allows "
                "(%d); the worker hands back what it has and restarts",
                self._pool.abandoned, self._info.max_abandoned_threads,
            )  # fmt: skip
            self._manager.terminate(now)

    def _obey(self, now: float) -> None:
        """Do what `stop` was called for."""
        asked = self._asked
        if asked == self._obeyed:
            return
        self._obeyed = asked
        if asked == AT_ONCE:
            self._interrupt(now, "stopped at once")
            self._manager.finish()
        else:
            self._manager.terminate(now)

    def _interrupt(self, now: float, why: str) -> None:
        """Kill what runs, then say so: nothing may run on after it was given back."""
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

    def _back(self, link: Link) -> bool:
        """Say whether the connection was lost and is there again: the broker may be a new one."""
        back = False
        for made in link.connections():
            back = made and (self._broken or back)
            self._broken = not made
        return back

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
        """Open a socket, which has a routing id of its own."""
        address = self._brokers[0]
        _log.debug("connecting to %s", address)
        assert self._context is not None  # noqa: S101 - started
        link = open_dealer(
            self._context, address, kind="worker", max_frame=self._max_frame, keys=self.keys
        )
        link.watch()
        self._broken = False
        self._back(link)
        self._retry_at = 0.0
        self._manager.connected(self._clock.monotonic())
        self._send(link)
        return link

    def _reconnect(self) -> Link:
        """Try again; another broker only with nothing held, which belongs to the first."""
        self._backlog.clear()
        if len(self._brokers) > 1 and self._manager.idle:
            self._brokers.rotate(-1)
            self._manager = self._new_manager()
        return self._connect()

    def _stop_pool(self) -> None:
        if self._pool_runs:
            self._pool_runs = False
            self._pool.stop(0.0)
