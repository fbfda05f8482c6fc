"""The client's I/O loop: the sockets and the clock of `ClientMachine`, and the thread that runs it.

At any time at most one thread is the *driver*: it holds the driver lock, and only it touches
machine and sockets. libzmq allows a socket to move between threads if a full memory barrier lies
between its uses, which the lock provides. A thread that submits alone drives until it has its
receipt, so that no other thread has to be notified, which costs 50 microseconds each on a machine
whose cores sleep during the broker's fsync (5,000 receipts a second directly, 2,900 through another
thread). While another thread drives, a thread puts a command into the inbox and waits.

A background thread drives what is still open when a driver leaves: requests of coroutines,
subscriptions, submissions of several threads. It starts when it is first needed and sleeps while
nothing is open; as a daemon, it never keeps a process alive. A program with its own event loop
drives permanently instead (`IoLoop.attach`): it polls what `IoLoop.prepare` returns together with
its own sockets.

If gevent has replaced threads by greenlets, polling in one would block all others. Then no caller
drives: the background thread, which is a real thread, always does.
"""

from __future__ import annotations

import _thread
import logging
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import zmq
from zmq.backend import zmq_poll

from eventmq.client.machine import NAMED
from eventmq.client.requests import LOST, NEVER
from eventmq.wakeup import Wakeup
from eventmq.wire.sockets import new_context, open_dealer

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Sequence

    from eventmq.client.machine import ClientMachine
    from eventmq.client.requests import BrokerConnection, PendingCall, PendingRequest
    from eventmq.clock import Clock
    from eventmq.wire.curve import ClientKeys
    from eventmq.wire.sockets import Link

__all__ = ["AsyncWaiter", "BrokerSocket", "GreenletWaiter", "IoLoop", "Waiter", "has_greenlets"]

logger = logging.getLogger(__name__)

#: Milliseconds that a closing socket may spend on unsent messages.
CLOSE_LINGER_MS = 200

#: Maximum number of messages that are read from one broker before the next one.
READ_AT_MOST = 1000

#: Seconds without a driver after which a new one reads before it sends.
STALE = 0.5

#: Seconds after which a greenlet that waits without a limit checks again: gevent's hub ends when
#: no timer is left, since it does not know other threads.
RECHECK_INTERVAL = 3600.0

_IN = int(zmq.POLLIN)

_OUT = int(zmq.POLLOUT)


def has_greenlets() -> bool:
    """Return whether gevent has replaced the threads of this process by greenlets."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def _original(name: str) -> Any:
    """Return a function of ``_thread``, even if gevent has replaced it."""
    monkey = sys.modules.get("gevent.monkey")
    return getattr(_thread, name) if monkey is None else monkey.get_original("_thread", name)


class IoLoop:
    """A client's sockets, driven by a waiting thread or by the background thread.

    Args:
        machine: The state machine that it runs.
        clock: Reads time.
        context: A ZeroMQ context to use; by default its own.
    """

    #: CURVE keys, None for brokers without keys; set before the first use.
    keys: ClientKeys | None = None

    def __init__(
        self, machine: ClientMachine, clock: Clock, context: zmq.Context[Any] | None = None
    ) -> None:
        self.machine = machine
        self._clock = clock
        self._context = context
        self._own_context = context is None
        self._brokers: list[BrokerSocket] = []
        self._inbox: deque[tuple[Callable[..., None], PendingRequest]] = deque()
        #: The request that the driver waits for, None if it waits for all of them.
        self._awaited: PendingRequest | None = None
        #: The machine's ``next_tick``, as of the last poll.
        self._next_tick = 0.0
        #: Time of the last reading of the sockets.
        self._last_read = 0.0
        #: Address of a broker -> its last handshake error, which is logged once, until a success.
        self._logged_errors: dict[str, str] = {}
        #: What is polled; None after a change.
        self._items: list[tuple[Any, int]] | None = None
        #: Whether it has ended, or is about to.
        self._stopping = False
        self._wakeup = Wakeup()
        #: Whether callers are greenlets, so that none of them drives.
        self.green = has_greenlets()
        new_lock = _original("allocate_lock")
        self._driver_lock = new_lock()
        self._driver = 0
        self._sleeping = False
        #: Whether the background thread has to stop driving.
        self._must_pause = False
        self._done = False
        self._reason = "the client was closed"
        self._end_lock = new_lock()
        self._thread_waiter = Waiter(new_lock())
        self._start_lock = new_lock()
        self._started = False
        self._thread: threading.Thread | None = None

    # Called by any thread

    def begin(self, request: PendingRequest) -> None:
        """Hand over a request; it will end in any case, even if the loop has ended."""
        self._inbox.append((self._begin, request))
        self._notify()

    def forget(self, call: PendingCall) -> None:
        """End a call."""
        self._inbox.append((self.machine.forget, call))
        self._notify()

    def credit(self, call: PendingCall) -> None:
        """Report to a broker how many parts of a stream were read."""
        self._inbox.append((self.machine.credit, call))
        self._notify()

    def drive_until_done(self, request: PendingRequest) -> bool:
        """Drive until a request has ended; return False if another thread drives, or has to.

        Raises:
            BaseException: What a signal handler raises. The request is then still open.
        """
        if self._driver == threading.get_ident():
            self._drive_nested(request)
            return True
        if self.green or not self._driver_lock.acquire(blocking=False):
            return False
        self._driver = threading.get_ident()
        try:
            self._work_on(request)
        except BaseException as error:
            # Ctrl-C during a poll does no harm.
            if self._sleeping:
                raise
            self._end_by_error(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._release()
            # Another thread may have come while this one drove, and may still be waiting.
            if not self._done and (self._inbox or self.machine.busy):
                self._notify_thread()
        return True

    def _drive_nested(self, request: PendingRequest) -> None:
        """Drive in a signal handler, or a finaliser, of the thread that already drives."""
        if not self._sleeping:
            # The machine may be in the middle of a change.
            _fail(request, "interrupted by a signal handler; submit it again")
            return
        self._work_on(request)
        self._sleeping = True
        if self._inbox:
            self._interrupt()

    @property
    def ended(self) -> bool:
        """Whether it has ended, or is about to."""
        return self._stopping

    def stop(self, timeout: float) -> None:
        """End the loop, and fail open requests; wait for the driver. Idempotent."""
        self._stopping = True
        self._interrupt()
        if self._driver != threading.get_ident() and self._driver_lock.acquire(timeout=timeout):
            self._release()
        self._thread_waiter.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    # The driver

    def _release(self) -> None:
        """Stop driving; end the loop if that was requested."""
        self._sleeping = False
        try:
            if self._stopping and not self._done:
                self._end()
        finally:
            self._driver = 0
            self._driver_lock.release()

    def _end_by_error(self, error: BaseException) -> None:
        """End because of an error: the machine may be in the middle of a change."""
        self._stopping = True
        self._reason = f"the client failed: {type(error).__name__}: {error}"
        logger.error("the client failed", exc_info=error)

    def _notify(self) -> None:
        """Notify the driver, or the background thread, of a command in the inbox."""
        # A driver sets the flag before it reads the inbox for the last time, and reads it
        # again after it has released the lock.
        if self._sleeping:
            self._interrupt()
        elif not self._driver_lock.locked():
            self._notify_thread()
        if self._done:
            self._abandon()

    def _notify_thread(self) -> None:
        if not self._started:
            self._start()
        self._thread_waiter.notify()

    def _start(self) -> None:
        with self._start_lock:
            if self._started or self._stopping:
                return
            if self.green:
                _original("start_new_thread")(self._main, ())
            else:
                thread = threading.Thread(target=self._main, name="eventmq-client", daemon=True)
                thread.start()
                self._thread = thread
            self._started = True

    def _interrupt(self) -> None:
        self._sleeping = False
        self._wakeup.set()

    def _main(self) -> None:
        """Drive, when notified, until nothing is open."""
        while not self._stopping:
            self._thread_waiter.wait(None)
            self._driver_lock.acquire()
            self._driver = threading.get_ident()
            try:
                self._work_off()
            except Exception as error:  # noqa: BLE001 - the callers get it
                self._end_by_error(error)
            finally:
                self._release()
            if self._inbox and not self._must_pause:
                self._thread_waiter.notify()

    # Work of the driver

    def _work_on(self, request: PendingRequest) -> None:
        self._open()
        if self._clock.monotonic() - self._last_read > STALE:
            self._last_read = self._clock.monotonic()
            self._read(zmq_poll(self._poll_items(), 0))
        self._begin(request)
        self._awaited = request
        while not request.done and not self._stopping:
            self._work()
            if not request.done:
                self._sleep()
        self._awaited = None

    def _work_off(self) -> None:
        self._open()
        while not self._stopping and not self._must_pause:
            self._work()
            if not self._inbox and not self.machine.busy:
                return
            self._sleep()

    def _begin(self, request: PendingRequest) -> None:
        try:
            self.machine.begin(request, self._clock.monotonic())
        except BaseException as error:
            # It may not be in any list that is cleared at the end.
            self._stopping = True
            _fail(request, f"the client failed: {error}")
            raise

    def _sleep(self) -> None:
        """Poll until there is something to do, and read the received messages."""
        self._sleeping = True
        if self._inbox or self._stopping:
            self._sleeping = False
            return
        self._next_tick = due = self.machine.next_tick()
        timeout = -1
        if due != NEVER:
            timeout = max(0, int((due - self._clock.monotonic()) * 1000) + 1)
        ready = zmq_poll(self._poll_items(), timeout)
        self._sleeping = False
        self._read(ready)

    # Sockets

    def _open(self) -> None:
        if self._brokers or self._stopping:
            return
        self._context = context = self._context or new_context()
        now = self._clock.monotonic()
        for connection in self.machine.connections:
            self._brokers.append(BrokerSocket(context, connection, self.keys))
            self.machine.opened(connection.index, now)

    # hot loop: python -m benchmarks enqueue_one
    def _work(self) -> None:
        """Run the commands of callers, do what is due, and send."""
        machine, inbox = self.machine, self._inbox
        while inbox:
            command, request = inbox.popleft()
            command(request)
        now = self._clock.monotonic()
        if now >= self._next_tick:
            machine.tick(now, self._clock.now())
        while machine.reopen:
            self._reopen(machine.reopen.pop(), now)
        for index, broker in enumerate(self._brokers):
            blocked = not machine.flush(index, broker.send, now)
            if blocked is not broker.blocked:
                broker.blocked = blocked
                self._items = None
        if machine.to_notify:
            self._notify_waiters()

    def _poll_items(self) -> list[tuple[Any, int]]:
        if self._items is not None:
            return self._items
        items: list[tuple[Any, int]] = [(self._wakeup.fd, _IN)]
        for broker in self._brokers:
            items.append((broker.link.socket, _IN | _OUT if broker.blocked else _IN))
            items.append((broker.link.monitor_fd, _IN))
        self._items = items
        return items

    def _read(self, ready: Iterable[tuple[Any, int]]) -> None:
        sources = {source for source, _ in ready}
        if not sources:
            return
        if self._wakeup.fd in sources:
            self._wakeup.clear()
        self._last_read = now = self._clock.monotonic()
        for index, broker in enumerate(self._brokers):
            if broker.link.monitor_fd in sources:
                self._read_monitor(index, broker, now)
            if broker.link.socket in sources:
                self._read_link(index, broker.link, now)
        if self.machine.to_notify:
            self._notify_waiters()

    def _read_link(self, index: int, link: Link, now: float) -> None:
        received = self.machine.received
        for _ in range(READ_AT_MOST):
            frames = link.receive()
            if frames is None:
                return
            received(index, frames, now)
            # Another receive from an empty socket would cost as much as all of this.
            if self._awaited is not None and self._awaited.done:
                return

    def _read_monitor(self, index: int, broker: BrokerSocket, now: float) -> None:
        for connected in broker.link.connections():
            if connected:
                logger.debug("connected to broker %s", broker.address)
                self._logged_errors.pop(broker.address, None)
                self.machine.restored(index, now)
            else:
                logger.info("connection to broker %s lost", broker.address)
                self.machine.lost(index, now)
        if error := broker.link.handshake_error:
            if error != self._logged_errors.get(broker.address):
                logger.warning("broker %s cannot be used: %s", broker.address, error)
                self._logged_errors[broker.address] = error
            self.machine.refused(index, error, now)
            broker.link.handshake_error = ""

    def _reopen(self, index: int, now: float) -> None:
        connection = self.machine.connections[index]
        error, address = connection.last_error, connection.address
        level = logging.INFO if error in {LOST, NAMED} else logging.WARNING
        level = logging.DEBUG if error == self._logged_errors.get(address) else level
        logger.log(level, "broker %s: %s; connecting again with a new socket", address, error)
        assert self._context is not None  # noqa: S101 - made by _open
        for broker in self._brokers[
            index : index + 1
        ]:  # an address that a broker named has none yet
            broker.close()
        self._brokers[index : index + 1] = [BrokerSocket(self._context, connection, self.keys)]
        self._items = None
        self.machine.opened(index, now)

    def _notify_waiters(self) -> None:
        to_notify = self.machine.to_notify
        for request in to_notify:
            request.notify()
        to_notify.clear()

    # Driven by another program's event loop

    def attach(self) -> bool:
        """Let this thread drive until `detach`.

        Returns:
            False if another thread drives: try again. The background thread stops at once, a caller
            when it has its receipt.
        """
        if self._stopping:
            return False
        self._must_pause = True
        if not self._driver_lock.acquire(blocking=False):
            if self._sleeping:
                self._interrupt()
            return False
        self._driver = threading.get_ident()
        self._open()
        return True

    def prepare(self) -> tuple[Sequence[tuple[Any, int]], float]:
        """Run commands; return what to poll, and when to call `step` at the latest."""
        if self._inbox:
            self._step(())
        self._sleeping = True
        if self._inbox or self._stopping:
            return self._poll_items(), 0.0
        self._next_tick = due = self.machine.next_tick()
        return self._poll_items(), due

    def step(self, ready: Iterable[tuple[Any, int]]) -> bool:
        """Read what is ready, and do what is due; return False once the loop has ended."""
        self._sleeping = False
        self._step(ready)
        if self._stopping:
            self._release()
        return not self._stopping

    def _step(self, ready: Iterable[tuple[Any, int]]) -> None:
        try:
            if not self._stopping:
                self._read(ready)
                self._work()
        except Exception as error:  # noqa: BLE001 - the callers get it
            self._end_by_error(error)

    def detach(self) -> None:
        """Stop driving, if this thread drives; the background thread takes over."""
        self._must_pause = False
        if self._driver == threading.get_ident():
            self._release()
        if not self._done and (self._inbox or self.machine.busy):
            self._notify_thread()

    # The end

    def _end(self) -> None:
        """Send KBAI, close everything and fail open requests. Called by the driver."""
        self._done = True
        try:
            self.machine.queue_kbai()
            now = self._clock.monotonic()
            for index, broker in enumerate(self._brokers):
                self.machine.flush(index, broker.send, now)
                broker.close()
            if self._own_context and self._context is not None:
                self._context.term()
        finally:
            self._abandon()
            self._wakeup.close()

    def _abandon(self) -> None:
        """Fail open requests, and those that are handed over after the end."""
        with self._end_lock:
            while self._inbox:
                _, request = self._inbox.popleft()
                _fail(request, self._reason)
            self.machine.abandon(self._reason)
            self._notify_waiters()


def _fail(request: PendingRequest, reason: str) -> None:
    """Fail a request that is not in the machine."""
    if not request.done:
        request.error = request.failure(reason)
        request.done = True
        request.notify()


class BrokerSocket:
    """The socket of one broker.

    Args:
        context: The ZeroMQ context.
        connection: The connection that uses it.
        keys: CURVE keys, if any.
    """

    __slots__ = ("address", "blocked", "link", "send")

    def __init__(
        self,
        context: zmq.Context[Any],
        connection: BrokerConnection,
        keys: ClientKeys | None = None,
    ) -> None:
        self.address = connection.address
        named = connection.server_key
        broker_keys = keys and (keys.having(named) if named else keys.of(connection.index))
        self.link = open_dealer(
            context, self.address, kind=connection.role, keys=broker_keys, watch=True
        )
        self.send = self.link.send
        #: Whether the link accepts no more messages at present.
        self.blocked = False

    def close(self) -> None:
        """Close it."""
        self.link.close(CLOSE_LINGER_MS)


class Waiter:
    """Lets a thread wait: a raw lock as a flag; it takes 0.5 us, an event 10 us."""

    __slots__ = ("_lock",)

    def __init__(self, lock: Any = None) -> None:
        self._lock = lock or threading.Lock()
        self._lock.acquire()

    def notify(self) -> None:
        """Let `wait` return, now or at its next call."""
        try:  # noqa: SIM105 - suppress() costs more than all the rest
            self._lock.release()
        except RuntimeError:
            pass  # notified already, and has not run since

    def wait(self, timeout: float | None) -> bool:
        """Wait until `notify`; return False if ``timeout`` seconds passed before it."""
        limit = -1.0 if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX)
        return bool(self._lock.acquire(timeout=limit))


class GreenletWaiter(Waiter):
    """Lets a greenlet of gevent wait while the others run."""

    __slots__ = ("_call", "_event")

    def __init__(self) -> None:
        import gevent
        from gevent.event import Event

        self._event = Event()
        self._call = gevent.get_hub().loop.run_callback_threadsafe

    def notify(self) -> None:
        """Let `wait` return, now or at its next call. From any thread."""
        with suppress(Exception):  # the hub has ended: no greenlet waits
            self._call(self._event.set)

    def wait(self, timeout: float | None) -> bool:
        """Wait like `Waiter.wait`."""
        while not (done := self._event.wait(RECHECK_INTERVAL if timeout is None else timeout)):
            if timeout is not None:
                break
        self._event.clear()
        return bool(done)


class AsyncWaiter:
    """Lets a coroutine wait; made in the running event loop."""

    __slots__ = ("_future", "_loop")

    def __init__(self) -> None:
        import asyncio

        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()

    def notify(self) -> None:
        """Let `wait` return, now or at its next call. From any thread."""
        with suppress(RuntimeError):  # the loop was closed: no coroutine waits
            self._loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    async def wait(self, timeout: float | None = None) -> None:
        """Wait until `notify`; raises `TimeoutError` if ``timeout`` seconds pass before."""
        if timeout is None:
            await self._future
        else:
            import asyncio

            try:
                await asyncio.wait_for(self._future, timeout)
            except asyncio.TimeoutError:
                raise TimeoutError from None
        self._future = self._loop.create_future()
