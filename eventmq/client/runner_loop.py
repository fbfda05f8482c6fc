"""The sockets and the clock around `ClientMachine`, and whose turn it is to run them.

At any time at most one thread *leads*: it holds the lead lock, and only it touches machine and
sockets. libzmq lets a socket move between threads where a full memory barrier lies between its
uses, which the lock is. A thread that submits alone leads until it has its receipt: no thread has
to be woken on the way, which costs 50 microseconds each on a machine whose cores sleep during the
broker's fsync (5,000 receipts a second directly, 2,900 through another thread). Whoever comes
while somebody leads puts a command into the inbox and waits.

What is still open when a leader leaves is led by a background thread: requests of coroutines,
subscriptions, submissions of several threads. It starts when it is first needed and sleeps while
nothing is open; being a daemon, it never keeps a process alive. A program with a loop of its own
leads for good instead (`IoLoop.host`): it polls what `IoLoop.wanted` names beside its own sockets.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from zmq.backend import zmq_poll

from eventmq.client.errands import NEVER
from eventmq.client.runner_turns import LoopTurns
from eventmq.client.runner_waits import Waiter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import zmq

    from eventmq.client.errands import Errand, Question
    from eventmq.client.machine import ClientMachine
    from eventmq.clock import Clock

__all__ = ["IoLoop"]

logger = logging.getLogger(__name__)

#: Seconds after which a leader first looks at what came while nobody led, before it sends.
STALE = 0.5


class IoLoop(LoopTurns):
    """A client that is led by whoever waits, or by its background thread.

    Args:
        machine: What it drives.
        clock: Reads time.
        context: A ZeroMQ context to use; by default one of its own.
    """

    def __init__(
        self, machine: ClientMachine, clock: Clock, context: zmq.Context[Any] | None = None
    ) -> None:
        super().__init__(machine, clock, context)
        self._lead = threading.Lock()
        self._leader = 0
        self._sleeping = False
        #: The background thread is to let somebody else lead.
        self._claimed = False
        self._done = False
        self._reason = "the client was closed"
        self._end_lock = threading.Lock()
        self._called = Waiter()
        self._start_lock = threading.Lock()
        self._thread: threading.Thread | None = None

    # Called by any thread

    def begin(self, errand: Errand) -> None:
        """Hand over an errand; it is settled in any case, also when the loop has ended."""
        self._inbox.append((self._begin, errand))
        self._nudge()

    def forget(self, question: Question) -> None:
        """End a question."""
        self._inbox.append((self.machine.forget, question))
        self._nudge()

    def credit(self, question: Question) -> None:
        """Tell a broker what was taken of a stream."""
        self._inbox.append((self.machine.credit, question))
        self._nudge()

    def carry(self, errand: Errand) -> bool:
        """Lead until an errand is over; return False if somebody else leads.

        Raises:
            BaseException: What a signal handler raises. The errand is then still open.
        """
        if self._leader == threading.get_ident():
            self._carry_above(errand)
            return True
        if not self._lead.acquire(blocking=False):
            return False
        self._leader = threading.get_ident()
        try:
            self._work_on(errand)
        except BaseException as error:
            # Ctrl-C in its sleep harms nothing.
            if self._sleeping:
                raise
            self._break(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._release()
            # Somebody may have come while this thread led, and may still be waiting.
            if not self._done and (self._inbox or self.machine.busy):
                self._call()
        return True

    def _carry_above(self, errand: Errand) -> None:
        """Do it for a signal handler, or a finaliser, while the thread below it leads."""
        if not self._sleeping:
            # The machine may be half-way through something.
            _fail(errand, "a signal handler came between; it may submit again")
            return
        self._work_on(errand)
        self._sleeping = True
        if self._inbox:
            self._wake()

    @property
    def ended(self) -> bool:
        """Whether it does nothing any more, or soon will not."""
        return self._stopping

    def stop(self, timeout: float) -> None:
        """End, and fail what is open; wait for whoever leads. Idempotent."""
        self._stopping = True
        self._wake()
        if self._leader != threading.get_ident() and self._lead.acquire(timeout=timeout):
            self._release()
        self._called.wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    # Who leads

    def _release(self) -> None:
        """Lead no more; end the loop where that is due."""
        self._sleeping = False
        try:
            if self._stopping and not self._done:
                self._end()
        finally:
            self._leader = 0
            self._lead.release()

    def _break(self, error: BaseException) -> None:
        """End by an error: the machine may be half-way through something."""
        self._stopping = True
        self._reason = f"the client ended by an error: {type(error).__name__}: {error}"
        logger.error("the client ended by an error", exc_info=error)

    def _nudge(self) -> None:
        """Let somebody look into the inbox."""
        # A leader sets the flag before it looks into the inbox for the last time, and looks
        # again after it has released the lock.
        if self._sleeping:
            self._wake()
        elif not self._lead.locked():
            self._call()
        if self._done:
            self._abandon()

    def _call(self) -> None:
        if self._thread is None:
            self._start()
        self._called.wake()

    def _start(self) -> None:
        with self._start_lock:
            if self._thread is not None or self._stopping:
                return
            thread = threading.Thread(target=self._main, name="eventmq-client", daemon=True)
            thread.start()
            self._thread = thread

    def _wake(self) -> None:
        self._sleeping = False
        self._bell.ring()

    def _main(self) -> None:
        """Lead, when called, until nothing is open."""
        while not self._stopping:
            self._called.wait(None)
            self._lead.acquire()
            self._leader = threading.get_ident()
            try:
                self._work_off()
            except Exception as error:  # noqa: BLE001 - whoever waits is told
                self._break(error)
            finally:
                self._release()
            if self._inbox and not self._claimed:
                self._called.wake()

    # What a leader does

    def _work_on(self, errand: Errand) -> None:
        self._open()
        if self._clock.monotonic() - self._looked > STALE:
            self._looked = self._clock.monotonic()
            self._read(zmq_poll(self._poll_items(), 0))
        self._begin(errand)
        self._carried = errand
        while not errand.over and not self._stopping:
            self._work()
            if not errand.over:
                self._sleep()
        self._carried = None

    def _work_off(self) -> None:
        self._open()
        while not self._stopping and not self._claimed:
            self._work()
            if not self._inbox and not self.machine.busy:
                return
            self._sleep()

    def _begin(self, errand: Errand) -> None:
        try:
            self.machine.begin(errand, self._clock.monotonic())
        except BaseException as error:
            # It may be in no list, from which it could be settled.
            self._stopping = True
            _fail(errand, f"the client ended by an error: {error}")
            raise

    def _sleep(self) -> None:
        """Wait until there is something to do, and read what came."""
        self._sleeping = True
        if self._inbox or self._stopping:
            self._sleeping = False
            return
        self._due = due = self.machine.next_tick()
        timeout = -1
        if due != NEVER:
            timeout = max(0, int((due - self._clock.monotonic()) * 1000) + 1)
        ready = zmq_poll(self._poll_items(), timeout)
        self._sleeping = False
        self._read(ready)

    # Led by the loop of another program

    def host(self) -> bool:
        """Let this thread lead until `unhost`.

        Returns:
            False if somebody else leads: try again, the background thread gives way at once and a
            caller when it has its receipt.
        """
        if self._stopping:
            return False
        self._claimed = True
        if not self._lead.acquire(blocking=False):
            if self._sleeping:
                self._wake()
            return False
        self._leader = threading.get_ident()
        self._open()
        return True

    def wanted(self) -> tuple[Sequence[tuple[Any, int]], float]:
        """Do what callers want; return what to poll, and when to call `step` at the latest."""
        if self._inbox:
            self._step(())
        self._sleeping = True
        if self._inbox or self._stopping:
            return self._poll_items(), 0.0
        self._due = due = self.machine.next_tick()
        return self._poll_items(), due

    def step(self, ready: Iterable[tuple[Any, int]]) -> bool:
        """Read what is ready, and do what is due; False: it ended, this thread leads no more."""
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
        except Exception as error:  # noqa: BLE001 - whoever waits is told
            self._break(error)

    def unhost(self) -> None:
        """Lead no more, if it did; what is open is left to the background thread."""
        self._claimed = False
        if self._leader == threading.get_ident():
            self._release()
        if not self._done and (self._inbox or self.machine.busy):
            self._call()

    # The end

    def _end(self) -> None:
        """Say goodbye, close everything and fail what is open. Called by the leader."""
        self._done = True
        try:
            self.machine.say_goodbye()
            now = self._clock.monotonic()
            for index, broker in enumerate(self._brokers):
                self.machine.flush(index, broker.send, now)
                broker.close()
            if self._own_context and self._context is not None:
                self._context.term()
        finally:
            self._abandon()
            self._bell.close()

    def _abandon(self) -> None:
        """Fail what is open, and what is handed over too late."""
        with self._end_lock:
            while self._inbox:
                _, errand = self._inbox.popleft()
                _fail(errand, self._reason)
            self.machine.abandon(self._reason)
            self._wake_waiters()


def _fail(errand: Errand, reason: str) -> None:
    """Settle an errand that the machine does not know."""
    if not errand.over:
        errand.error = errand.failure(reason)
        errand.over = True
        errand.wake()
