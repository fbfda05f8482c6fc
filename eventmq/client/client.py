"""The client's runner, for callers in threads and coroutines: thread-safe, and lazy.

The first use makes the sockets (`eventmq.client.io_loop.IoLoop`). After a fork the child drops what
it inherited, without closing it, and makes its own at its first use. At the exit of the interpreter
sockets close within a bounded time.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.client.io_loop import AsyncWaiter, IoLoop, Waiter
from eventmq.client.machine import ClientMachine
from eventmq.client.requests import NEVER, NO_BROKER, OneWayMessage, PendingCall, PendingSubmit
from eventmq.errors import BrokerUnavailable, ProtocolError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Sequence

    import zmq

    from eventmq.client.requests import PendingRequest
    from eventmq.clock import Clock
    from eventmq.wire.commands import Schedule
    from eventmq.wire.curve import ClientKeys

__all__ = ["ClientRunner", "Transport"]

#: Seconds that closing may take.
CLOSE_TIMEOUT = 1.0

#: Seconds after its deadline at which a caller no longer waits for the driver of the I/O loop.
_GUARD = 2.0

_live: weakref.WeakSet[ClientRunner] = weakref.WeakSet()

#: Loops with open sockets, also those whose client was dropped without being closed.
_loops: weakref.WeakSet[IoLoop] = weakref.WeakSet()

#: What a forked child inherited: kept, so that nothing of it is ever finalised there.
_inherited: list[object] = []


class Transport(NamedTuple):
    """Where the brokers are, and how they are reached.

    Without a context the client makes its own; without keys it uses no CURVE.
    """

    addresses: Sequence[str]
    context: zmq.Context[Any] | None = None
    keys: ClientKeys | None = None


class ClientRunner:
    """Client runner: passes requests to the I/O loop and waits for them.

    Args:
        transport: Called once, at the first use (in a forked child, once more).
        clock: Reads time.
        name: The name of this client, for people.
        heartbeat: Seconds between heartbeats.
        heartbeat_timeout: Seconds of silence after which a broker is dead.
        role: The role that it informs as: ``client`` or ``scheduler``.
        legacy: The brokers are routers of EventMQ 0.3, which answer no client.
    """

    def __init__(
        self,
        transport: Callable[[], Transport],
        *,
        clock: Clock,
        name: str = "",
        heartbeat: float = 3.0,
        heartbeat_timeout: float = 15.0,
        role: str = "client",
        legacy: bool = False,
    ) -> None:
        self.clock = clock
        self._role = role
        self._legacy = legacy
        self._transport = transport
        self._name = name
        self._heartbeat = heartbeat
        self._heartbeat_timeout = heartbeat_timeout
        self._loop: IoLoop | None = None
        self._lock = threading.Lock()
        self._closed = False
        _live.add(self)

    # The loop

    def _running(self) -> IoLoop:
        loop = self._loop
        if loop is not None and not loop.ended:
            return loop
        with self._lock:
            if self._closed:
                raise BrokerUnavailable("the client was closed")
            if self._loop is None or self._loop.ended:
                self._loop = self._start()
            return self._loop

    def _start(self) -> IoLoop:
        addresses, context, keys = self._transport()
        machine = ClientMachine(
            addresses,
            session=os.urandom(16).hex(),
            name=self._name or f"client:{os.getpid()}",
            heartbeat=self._heartbeat,
            heartbeat_timeout=self._heartbeat_timeout,
            role=self._role,
            legacy=self._legacy,
        )
        loop = IoLoop(machine, self.clock, context)
        loop.keys = keys
        _loops.add(loop)
        return loop

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Close the sockets; what is open fails. Idempotent; later use is an error."""
        with self._lock:
            self._closed = True
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.stop(timeout)

    def _drop_inherited(self) -> None:
        """Forget the parent's thread and sockets; called in a forked child."""
        self._loop = None
        self._lock = threading.Lock()

    @staticmethod
    def waiter() -> Waiter:
        """Return what a thread waits with."""
        return Waiter()

    @staticmethod
    def async_waiter() -> AsyncWaiter:
        """Return what a coroutine waits with."""
        return AsyncWaiter()

    # Submissions and one-way messages

    def begin(self, request: PendingRequest) -> None:
        """Begin a request. ``request.notify`` is called from any thread."""
        self._running().begin(request)

    def deadline(self, timeout: float | None) -> float:
        """Return the deadline of a request that may take ``timeout`` seconds from now."""
        return NEVER if timeout is None else self.clock.monotonic() + timeout

    def send(self, request: PendingSubmit | OneWayMessage) -> None:
        """Send a submission or a one-way message and wait until it is settled.

        Raises:
            BrokerUnavailable: There was no receipt before its deadline.
            EventMQError: It was refused.
        """
        if not self._running().drive_until_done(request):
            self.wait_until_done(request, self.start(request))
        if request.error is not None:
            raise request.error

    async def asend(self, request: PendingSubmit | OneWayMessage) -> None:
        """Do the same as `send` in a coroutine. Cancelling it does not take the job back."""
        await self.await_until_done(request, self.astart(request))
        if request.error is not None:
            raise request.error

    def start(self, request: PendingRequest) -> Waiter:
        """Begin a request; return the waiter for `wait_until_done`."""
        waiter = self.waiter()
        request.notify = waiter.notify
        self._running().begin(request)
        return waiter

    def astart(self, request: PendingRequest) -> AsyncWaiter:
        """Begin a request in a coroutine; return the waiter for `await_until_done`."""
        waiter = self.async_waiter()
        request.notify = waiter.notify
        self._running().begin(request)
        return waiter

    def wait_until_done(self, request: PendingRequest, waiter: Waiter) -> None:
        """Wait until a request is settled; its error is not raised."""
        while not request.done:
            self.wait_for_news(request, waiter)

    async def await_until_done(self, request: PendingRequest, waiter: AsyncWaiter) -> None:
        """Do the same as `wait_until_done` in a coroutine."""
        while not request.done:
            await waiter.wait()

    def wait_for_news(self, request: PendingRequest, waiter: Waiter) -> None:
        """Wait until a request has an answer or is settled."""
        limit = None
        if request.deadline != NEVER:
            limit = request.deadline - self.clock.monotonic() + _GUARD
        if not waiter.wait(limit) and not request.done:
            raise request.failure("the client's own thread did not answer")

    # Calls

    def new_call(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        *,
        timeout: float | None,
        ids: Sequence[str] = (),
        target: int = NO_BROKER,
        store: str = "",
        limit: int = 0,
    ) -> PendingCall:
        """Return a new call for `answers` or `aanswers`; nothing is sent yet."""
        return PendingCall(
            [],
            id=self._running().machine.message_id(),
            deadline=self.deadline(timeout),
            name=name,
            arguments=arguments or {},
            ids=set(ids),
            subject=ids[0] if len(ids) == 1 else "",
            target=target,
            store=store,
            limit=limit,
        )

    def ask(self, call: PendingCall) -> Any:
        """Return the only answer to a call; the errors are those of `answers`."""
        try:
            if not self._running().drive_until_done(call):
                self.wait_until_done(call, self.start(call))
        finally:
            self.forget(call)
        return _only(call)

    def begin_ask(self, call: PendingCall) -> Callable[[], Any]:
        """Begin a call; return a function, to be called once, that waits as `ask` does."""
        return partial(self._finish, call, self.start(call))

    def _finish(self, call: PendingCall, waiter: Waiter) -> Any:
        try:
            self.wait_until_done(call, waiter)
        finally:
            self.forget(call)
        return _only(call)

    def answers(self, call: PendingCall) -> Iterator[Any]:
        """Begin a call, and yield its answers as they come.

        Raises:
            ResultTimeout: A ``get`` was not answered fully before its deadline.
            BrokerUnavailable: Another call was not.
            EventMQError: The broker refused.
        """
        waiter = self.start(call)
        try:
            while True:
                while call.answers:
                    yield call.answers.popleft()
                if call.done:
                    break
                self.wait_for_news(call, waiter)
            if call.error is not None:
                raise call.error
        finally:
            self.forget(call)

    async def aask(self, call: PendingCall) -> Any:
        """Return the only answer to a call, in a coroutine."""
        async with aclosing(self.aanswers(call)) as answers:
            async for answer in answers:
                return answer
        raise ProtocolError(f"the broker answered {call.name} with nothing")

    async def aanswers(self, call: PendingCall) -> AsyncGenerator[Any, None]:
        """Do the same as `answers` in a coroutine."""
        waiter = self.astart(call)
        try:
            while True:
                while call.answers:
                    yield call.answers.popleft()
                if call.done:
                    break
                await waiter.wait()
            if call.error is not None:
                raise call.error
        finally:
            self.forget(call)

    def forget(self, call: PendingCall) -> None:
        """End a call whose further answers are not needed. Does not wait or raise."""
        loop = self._loop
        if loop is not None and not call.done:
            loop.forget(call)

    def credit(self, call: PendingCall) -> None:
        """Tell the broker how many parts of a stream were read. Does not wait or raise."""
        loop = self._loop
        if loop is not None and not call.done:
            loop.credit(call)

    def loop(self) -> IoLoop:
        """Return the I/O loop, for a program with a loop of its own; see `IoLoop.attach`.

        Raises:
            BrokerUnavailable: The client was closed.
        """
        return self._running()

    def listen(self, max_waiting: int) -> deque[Schedule]:
        """Stay connected from now on; return the deque of SCHEDULE and UNSCHEDULE from brokers.

        Args:
            max_waiting: Maximum length; the oldest are dropped.
        """
        machine = self._running().machine
        if machine.schedule_requests is None:
            machine.schedule_requests = deque(maxlen=max_waiting)
            self.begin(machine.keepalive(self.clock.now()))
        return machine.schedule_requests

    @property
    def brokers(self) -> int:
        """Number of brokers."""
        return len(self._running().machine.connections)


def _only(call: PendingCall) -> Any:
    """Return the only answer to a call that is settled."""
    if call.error is not None:
        raise call.error
    if not call.answers:
        raise ProtocolError(f"the broker answered {call.name} with nothing")
    return call.answers.popleft()


def _in_child() -> None:
    _inherited.extend(_loops)
    _loops.clear()
    for runner in list(_live):
        runner._drop_inherited()  # noqa: SLF001 - of this module


def _at_exit() -> None:
    loops = list(_loops)
    for loop in loops:
        loop.stop(0.0)
    for loop in loops:
        loop.stop(CLOSE_TIMEOUT)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
atexit.register(_at_exit)
