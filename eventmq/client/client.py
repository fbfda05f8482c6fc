"""The client's runner, for callers in threads and coroutines: thread-safe, and lazy.

The sockets (`eventmq.client.io_loop.IoLoop`) are made at the first use. After a fork the child
drops the inherited ones without closing them, and makes its own at its first use. At the exit of
the interpreter sockets close within a bounded time.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from eventmq.client.io_loop import AsyncWaiter, GreenletWaiter, IoLoop, Waiter
from eventmq.client.machine import ClientMachine
from eventmq.client.requests import (
    ACTOR,
    NEVER,
    NO_BROKER,
    OPERATION,
    News,
    PendingCall,
    PendingRequest,
    take_answer,
)
from eventmq.errors import BrokerUnavailable
from eventmq.wire.calls import ACTING

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Sequence

    import zmq

    from eventmq.client.requests import OneWayMessage, PendingSubmit
    from eventmq.clock import Clock
    from eventmq.wire.commands import Schedule
    from eventmq.wire.curve import ClientKeys

__all__ = ["ClientRunner", "Pending", "Transport"]

T = TypeVar("T")

if TYPE_CHECKING:
    #: Value that the steps of an operation yield.
    Awaited = PendingRequest | News | Callable[[], Any]
    #: The steps of an operation, see `Pending`.
    Steps = Generator[Awaited, Any, T]

#: Maximum seconds for closing.
CLOSE_TIMEOUT = 1.0

#: Seconds after its deadline at which a caller stops waiting for the driver of the I/O loop.
_GUARD = 2.0

_live: weakref.WeakSet[ClientRunner] = weakref.WeakSet()

#: Loops with open sockets, including those whose client was dropped without being closed.
_loops: weakref.WeakSet[IoLoop] = weakref.WeakSet()

#: Objects that a forked child inherited: kept so that they are never finalised there.
_inherited: list[object] = []


class Transport(NamedTuple):
    """Addresses and keys of the brokers.

    Without a context the client makes its own; without keys it does not use CURVE.
    """

    addresses: Sequence[str]
    context: zmq.Context[Any] | None = None
    keys: ClientKeys | None = None


class Pending(Generic[T]):
    """One operation of the client, for a thread (`wait`) or a coroutine (``await``). Use it once.

    Args:
        runner: Waits for what the steps yield.
        steps: Generator that yields requests, each to wait for until it has ended, `News`, and
            functions that may block. It is sent whether news arrived in time, or the function's
            return value. Its own return value is the value of the operation.
    """

    __slots__ = ("_runner", "_steps")

    def __init__(self, runner: ClientRunner, steps: Steps[T]) -> None:
        self._runner = runner
        self._steps = steps

    def wait(self) -> T:
        """Return the value, or raise; blocks this thread."""
        try:
            self._run(self._runner.wait_for).send(None)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        raise AssertionError("wait_for blocks this thread and never suspends")

    def __await__(self) -> Generator[Any, None, T]:
        return self._run(self._runner.await_for).__await__()

    async def _run(self, wait_for: Callable[[Awaited], Coroutine[Any, Any, Any]]) -> T:
        steps = self._steps
        resume: Callable[[Any], Awaited] = steps.send
        answer: Any = None
        try:
            while True:
                try:
                    awaited = resume(answer)
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]
                try:
                    resume, answer = steps.send, await wait_for(awaited)
                except Exception as error:  # noqa: BLE001 - the steps get it
                    resume, answer = steps.throw, error
        finally:
            steps.close()


def _identity(answer: Any) -> Any:
    return answer


class ClientRunner:
    """Client runner: passes requests to the I/O loop and waits for them.

    Args:
        transport: Called once, at the first use (in a forked child, once more).
        clock: Reads time.
        name: Name of this client in listings.
        heartbeat: Seconds between heartbeats.
        heartbeat_timeout: Seconds of silence after which a broker counts as dead.
        role: The role in its INFORM: ``client`` or ``scheduler``.
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
        #: The user on whose behalf calls are made; "" for none.
        self.actor = ""
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
            keys=keys,
        )
        loop = IoLoop(machine, self.clock, context)
        loop.keys = keys
        _loops.add(loop)
        return loop

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Close the sockets; open requests fail. Idempotent; later use is an error."""
        with self._lock:
            self._closed = True
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.stop(timeout)

    def _drop_inherited(self) -> None:
        """Drop the parent's thread and sockets; called in a forked child."""
        self._loop = None
        self._lock = threading.Lock()

    def waiter(self) -> Waiter:
        """Return the object with which a thread, or a greenlet, waits."""
        loop = self._loop
        return GreenletWaiter() if loop is not None and loop.green else Waiter()

    @staticmethod
    def async_waiter() -> AsyncWaiter:
        """Return the object with which a coroutine waits."""
        return AsyncWaiter()

    # Requests

    def begin(self, request: PendingRequest) -> None:
        """Begin a request. ``request.notify`` is called from any thread."""
        request.started = True
        self._running().begin(request)

    def deadline(self, timeout: float | None) -> float:
        """Return the deadline of a request that may take ``timeout`` seconds from now."""
        return NEVER if timeout is None else self.clock.monotonic() + timeout

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
        """Return a new call for `ask`; nothing is sent yet."""
        if name in ACTING:
            audit = {"actor": ACTOR.get() or self.actor, "operation": OPERATION.get()}
            arguments = {**{key: text for key, text in audit.items() if text}, **(arguments or {})}
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

    # Operations

    def run(self, steps: Steps[T]) -> Pending[T]:
        """Return the operation of these steps; they begin when it is waited for."""
        return Pending(self, steps)

    def send(self, request: PendingSubmit | OneWayMessage) -> Pending[None]:
        """Return the operation that sends a submission or a one-way message until it has ended.

        Raises when it is waited for:
            BrokerUnavailable: There was no receipt before its deadline.
            EventMQError: It was refused.
        """
        return Pending(self, self.sending(request))

    @staticmethod
    def sending(request: PendingRequest) -> Steps[None]:
        """Return the steps of `send`. Cancelling them does not cancel the job."""
        yield request
        if request.error is not None:
            raise request.error

    def ask(self, call: PendingCall, read: Callable[[Any], T] = _identity) -> Pending[T]:
        """Return the operation that sends a call; its value is the only answer.

        Args:
            call: The call; it may have begun.
            read: Converts the answer to the value.

        Raises when it is waited for:
            ResultTimeout: A ``get`` was not answered before its deadline.
            BrokerUnavailable: Another call was not answered before its deadline.
            EventMQError: The broker refused.
        """
        return Pending(self, self.asking(call, read))

    def asking(self, call: PendingCall, read: Callable[[Any], T] = _identity) -> Steps[T]:
        """Return the steps of `ask`."""
        try:
            yield call
        finally:
            self.forget(call)
        return read(take_answer(call))

    # Waiting

    def wait(self, request: PendingRequest) -> None:
        """Begin a request unless it has begun, and wait until it has ended.

        Its error is not raised.
        """
        if not request.started and self._running().drive_until_done(request):
            return
        waiter = self.waiter()
        request.notify = waiter.notify
        if not request.started:
            self.begin(request)
        while not request.done:
            limit = None
            if request.last_deadline != NEVER:
                limit = request.last_deadline - self.clock.monotonic() + _GUARD
            if not waiter.wait(limit) and not request.done:
                raise request.failure("the client's own thread did not answer")

    async def wait_for(self, awaited: Awaited) -> Any:
        """Wait, in a thread, for what an operation yields; return the value to send to its steps.

        It blocks and never suspends the coroutine, so that threads and coroutines share one loop.
        """
        if isinstance(awaited, PendingRequest):
            return self.wait(awaited)
        if not isinstance(awaited, News):
            return awaited()
        waiter = self.waiter()
        awaited.watch(waiter.notify)
        return awaited.ready or waiter.wait(awaited.timeout) or awaited.ready

    async def await_for(self, awaited: Awaited) -> Any:
        """Wait, in a coroutine, for what an operation yields; return the value for its steps."""
        if not isinstance(awaited, (PendingRequest, News)):
            from asyncio import to_thread

            return await to_thread(awaited)
        waiter = self.async_waiter()
        if isinstance(awaited, PendingRequest):
            awaited.notify = waiter.notify
            if not awaited.started:
                self.begin(awaited)
            while not awaited.done:
                await waiter.wait()
            return None
        awaited.watch(waiter.notify)
        try:
            if not awaited.ready:
                await waiter.wait(awaited.timeout)
        except TimeoutError:
            return awaited.ready
        return True

    # Calls with several answers

    def forget(self, call: PendingCall) -> None:
        """End a call whose further answers are not needed. Does not wait or raise."""
        loop = self._loop
        if loop is not None and not call.done:
            loop.forget(call)

    def credit(self, call: PendingCall) -> None:
        """Report to the broker how many parts of a stream were read. Does not wait or raise."""
        loop = self._loop
        if loop is not None and not call.done:
            loop.credit(call)

    def loop(self) -> IoLoop:
        """Return the I/O loop, for a program with its own event loop; see `IoLoop.attach`.

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
