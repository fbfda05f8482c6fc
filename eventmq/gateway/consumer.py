"""Consumer: takes jobs of queues one by one, to be answered in any order, by software of its own.

It is a worker session without tasks and without a pool: a worker of another framework holds its
jobs, which keep their leases by the heartbeats of the session, however long that takes.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.app.wiring import keys_of
from eventmq.errors import SettingsError
from eventmq.execution.poolkit import jobs_ended
from eventmq.headers import parse_headers
from eventmq.job import OutcomeKind
from eventmq.wakeup import Wakeup
from eventmq.wire.batches import OutcomeRow, decode_chunk
from eventmq.wire.results import ERROR_TYPE, RemoteError, encode_error
from eventmq.worker.runner import WorkerRunner
from eventmq.worker.session import SessionInfo, WorkerCredit
from eventmq.worker.slots import SharedSlots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from typing_extensions import Self

    from eventmq.app import EventMQ
    from eventmq.interfaces import PoolEvent, Running
    from eventmq.wire.batches import ChunkEntry

__all__ = ["Consumer", "Delivery"]

logger = logging.getLogger(__name__)

#: Largest number of deliveries that a broker lets a session hold.
MAX_PREFETCH = 10_000

#: Seconds that the thread has to end in addition to the timeout of `Consumer.close`.
_JOIN = 2.0


class Delivery(NamedTuple):
    """One delivery of a job to a `Consumer`.

    Attributes:
        id: Id of the job.
        queue: Name of the queue.
        headers: The header text; see `eventmq.sdk.parse_headers`.
        body: The body.
        number: Number of the delivery: more than 1 if the job was delivered before.
        attempt: Number of the attempt, which a requeue with a countdown increases.
        chunk: Number of the chunk in the session.
        position: Position in the chunk.
    """

    id: str
    queue: str
    headers: str
    body: bytes
    number: int
    attempt: int
    chunk: int
    position: int

    @property
    def task(self) -> str:
        """Name of the task, "" for a legacy job."""
        return parse_headers(self.headers).task


class _ConsumerSlots(SharedSlots):
    """As many slots as the consumer may hold deliveries, and nothing waits beyond them."""

    @property
    def credit(self) -> WorkerCredit:
        """Total credit: the prefetch."""
        return WorkerCredit(self._pool.slots, self._pool.slots)

    def check_due(self) -> float:
        """Return infinity: no delivery waits for a slot."""
        return float("inf")

    def check(self, now: float) -> Iterator[int]:
        """Yield nothing."""
        return iter(())


class _ConsumerPool:
    """A `eventmq.interfaces.SharedPool` whose jobs are held by the owner of the consumer."""

    interrupts = False
    shared = True
    abandoned = 0

    def __init__(self, receive: Callable[[Delivery], object], prefetch: int) -> None:
        self.slots = prefetch
        self._receive = receive
        self._wakeup = Wakeup()
        self._closing = False
        self._lock = threading.Lock()
        #: The unanswered deliveries by chunk and position, and when they were received.
        self._held: dict[tuple[int, int], tuple[Delivery, float, float]] = {}
        #: The answers since the last poll, by chunk.
        self._outcomes: dict[int, list[OutcomeRow]] = {}

    def start(self) -> None:
        """Do nothing: deliveries are taken as they come."""

    def filenos(self) -> Sequence[int]:
        """Return the descriptor that is readable when deliveries were answered."""
        return (self._wakeup.fd,)

    def notify(self) -> None:
        """Let the session poll."""
        self._wakeup.set()

    def assign(self, slot: int, chunk: int, body: bytes, count: int) -> None:
        """Pass the deliveries of a chunk on."""
        index = decode_chunk(body)
        for position, entry in enumerate(index.entries):
            self._pass_on(
                Delivery(
                    entry.id, index.queue, index.templates[entry.template],
                    index.payload(body, entry), entry.delivery, entry.attempt, chunk, position,
                ),
                entry,
            )  # fmt: skip

    def _pass_on(self, delivery: Delivery, entry: ChunkEntry) -> None:
        now = time.time()
        with self._lock:
            self._held[delivery.chunk, delivery.position] = delivery, now, time.monotonic()
        if entry.expires and entry.expires < now:
            self.end(delivery, OutcomeKind.EXPIRED)
            return
        if self._closing:
            self.end(delivery, OutcomeKind.HANDED_BACK)
            return
        try:
            self._receive(delivery)
        except Exception as error:
            logger.exception("a delivery of queue %s cannot be received", delivery.queue)
            reason = encode_error(RemoteError(type(error).__name__, str(error)))
            self.end(delivery, OutcomeKind.FAILED, ERROR_TYPE, reason)

    def end(
        self,
        delivery: Delivery,
        kind: OutcomeKind,
        content_type: str = "",
        result: bytes = b"",
        countdown: float = 0.0,
    ) -> bool:
        """Answer a delivery, from any thread; return False if it is not held."""
        place = delivery.chunk, delivery.position
        with self._lock:
            held = self._held.get(place)
            if held is None or held[0] is not delivery:
                return False
            del self._held[place]
            _, started, since = held
            if kind == OutcomeKind.HANDED_BACK:
                row = OutcomeRow(delivery.position, int(kind))
            else:
                run_time = time.monotonic() - since
                row = OutcomeRow(
                    delivery.position, int(kind), started, run_time, content_type, result, countdown
                )
            first = not self._outcomes
            self._outcomes.setdefault(delivery.chunk, []).append(row)
        if first:
            self._wakeup.set()
        return True

    def hand_back(self) -> None:
        """Hand back all that is held, and whatever still arrives."""
        self._closing = True
        for delivery, _, _ in list(self._held.values()):
            self.end(delivery, OutcomeKind.HANDED_BACK)

    # From the job manager

    def take_back(self, slot: int) -> int:
        """Return 0: a delivery has started when it is received."""
        return 0

    def slot_of(self, chunk: int, position: int) -> int | None:
        """Return a slot for a held delivery."""
        return 0 if (chunk, position) in self._held else None

    def running(self, slot: int) -> Running | None:
        """Return None: no delivery has a time limit."""
        return None

    def interrupt(self, slot: int, chunk: int, position: int) -> None:
        """Give up a delivery that was cancelled, or that another consumer has now."""
        held = self._held.get((chunk, position))
        if held is not None:
            self.end(held[0], OutcomeKind.CANCELLED)

    def credit(self, slot: int, chunk: int, position: int, taken: int) -> None:
        """Do nothing: a delivery yields no parts."""

    def scale(self, slots: int) -> None:
        """Do nothing."""

    def kill(self, slot: int) -> None:
        """Do nothing: a cancelled delivery was given up by `interrupt`."""

    def poll(self) -> list[PoolEvent]:
        """Return the answers since the last call."""
        self._wakeup.clear()
        with self._lock:
            outcomes, self._outcomes = self._outcomes, {}
        return [jobs_ended(0, chunk, rows, ordered=False) for chunk, rows in outcomes.items()]

    def stop(self, grace: float) -> None:
        """Forget what is held, which the session hands back. Idempotent."""
        with self._lock:
            self._held.clear()

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        self._wakeup.close()


class Consumer:
    """Takes jobs of queues, of any task, and answers each by `ack`, `fail` or `requeue`.

    It has a thread and a connection of its own. The broker counts it as a worker; it redelivers
    what is unanswered when this process dies. A restart of the broker interrupts nothing: unsent
    answers are kept. All methods can be called from any thread, and do nothing in a forked child.

    Args:
        app: The app, for its broker and keys.
        receive: Called in the consumer's thread with each `Delivery`; it must not block. If it
            raises, the job fails.
        queues: Names of the queues.
        prefetch: Largest number of unanswered deliveries, at most 10,000; 0 takes no new ones.
        name: Name of the session in listings, by default host and process id.

    Raises:
        SettingsError: ``prefetch`` is not allowed.
    """

    def __init__(
        self,
        app: EventMQ,
        receive: Callable[[Delivery], object],
        *,
        queues: Iterable[str] = (),
        prefetch: int = 1,
        name: str = "",
    ) -> None:
        settings = app.settings
        self._queues = list(dict.fromkeys(queues))
        self._prefetch = _checked(prefetch)
        self._pool = _ConsumerPool(receive, prefetch)
        self._info = SessionInfo(
            session="",
            name=name,
            callables=("*",),
            pool="consumer",
            heartbeat=settings.heartbeat_interval,
            heartbeat_timeout=settings.heartbeat_timeout,
            shutdown_grace=0.0,
        )
        self._new_runner = partial(
            WorkerRunner,
            self._pool,
            brokers=settings.broker,
            max_frame=settings.max_frame,
            clock=app.clock,
        )
        self._keys = keys_of(settings)
        self._runner: WorkerRunner | None = None
        self._thread: threading.Thread | None = None
        self._owner = os.getpid()
        self._closed = False
        _live.add(self)

    # The session

    def start(self) -> None:
        """Connect, in a thread of its own. Does nothing before there is a queue."""
        if self._thread is None and self._queues and not self._closed:
            self._runner = runner = self._new_runner(info=self._described())
            runner.keys = self._keys
            runner.slots = _ConsumerSlots
            self._thread = threading.Thread(
                target=self._main, args=(runner,), name="eventmq-consumer", daemon=True
            )
            self._thread.start()

    def _described(self) -> SessionInfo:
        return replace(self._info, queues=tuple((10, name) for name in self._queues))

    def _main(self, runner: WorkerRunner) -> None:
        try:
            runner.run()
        except Exception:
            logger.exception("a consumer failed")
        finally:
            self._pool.close()

    def add_queue(self, name: str) -> None:
        """Take jobs of one more queue; connects if it is the first."""
        if self._alive and name not in self._queues:
            self._queues.append(name)
            self._serve()

    def remove_queue(self, name: str) -> None:
        """Take no further jobs of a queue; its unanswered deliveries are still held."""
        if self._alive and name in self._queues:
            self._queues.remove(name)
            self._serve()

    def set_prefetch(self, prefetch: int) -> None:
        """Set the largest number of unanswered deliveries; what is held beyond it is kept.

        Raises:
            SettingsError: It is not allowed.
        """
        self._prefetch = _checked(prefetch)
        if self._alive:
            self._serve()

    def _serve(self) -> None:
        # Without queues the session keeps its last ones and wants no jobs.
        self._pool.slots = self._prefetch if self._queues else 0
        if self._runner is None:
            self.start()
        elif self._queues:
            self._runner.serve(self._described().queues)
        else:
            self._pool.notify()

    def release(self) -> None:
        """Hand back all unanswered deliveries, and disconnect without being waited for.

        It ends once the broker has confirmed all answers, however long that takes. `close` waits
        for a released consumer. Idempotent.
        """
        if not self._alive:
            return
        self._closed = True
        self._pool.slots = 0
        self._pool.hand_back()
        if self._runner is None:
            self._pool.close()
        else:
            self._runner.stop()

    def close(self, timeout: float = 5.0) -> None:
        """Hand back all unanswered deliveries, and disconnect. Idempotent.

        Args:
            timeout: Seconds to wait until the broker has confirmed all answers.
        """
        self.release()
        thread, runner = self._thread, self._runner
        if thread is None or runner is None or self._owner != os.getpid():
            return
        thread.join(timeout)
        if thread.is_alive():
            logger.warning("the broker did not confirm all answers of a consumer in time")
            runner.stop(now=True)
            thread.join(_JOIN)

    @property
    def _alive(self) -> bool:
        return not self._closed and self._owner == os.getpid()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Deliveries

    def ack(self, delivery: Delivery, result: bytes = b"", content_type: str = "") -> bool:
        """End the job with success.

        Args:
            delivery: The delivery.
            result: Its result, encoded.
            content_type: Name of the serializer of the result.

        Returns:
            False if it is not held: it was answered, or cancelled, or given to another consumer.
        """
        return self._end(delivery, OutcomeKind.SUCCEEDED, content_type, result)

    def fail(
        self, delivery: Delivery, reason: str | RemoteError, *, error: str = "Rejected"
    ) -> bool:
        """End the job as failed; it is kept among the failed jobs.

        Args:
            delivery: The delivery.
            reason: Message of the error; or the error, with its traceback.
            error: Name of the error's class, for a message.

        Returns:
            False if it is not held.
        """
        return self._end(delivery, OutcomeKind.FAILED, ERROR_TYPE, _encoded(reason, error))

    def requeue(
        self,
        delivery: Delivery,
        *,
        countdown: float = 0.0,
        reason: str | RemoteError = "",
    ) -> bool:
        """Put the job back into its queue.

        Args:
            delivery: The delivery.
            countdown: Seconds after which it is delivered again, as its next attempt; 0 to deliver
                it as soon as possible, as the same attempt.
            reason: Message or error of the attempt that ends by a countdown.

        Returns:
            False if it is not held.
        """
        if countdown <= 0.0:
            return self._end(delivery, OutcomeKind.HANDED_BACK)
        error = _encoded(reason or f"requeued for {countdown:g} s", "Requeued")
        return self._end(delivery, OutcomeKind.RETRY, ERROR_TYPE, error, countdown)

    def _end(self, delivery: Delivery, kind: OutcomeKind, *result: Any) -> bool:
        return self._alive and self._pool.end(delivery, kind, *result)


def _encoded(reason: str | RemoteError, error: str) -> bytes:
    return encode_error(RemoteError(error, reason) if isinstance(reason, str) else reason)


def _checked(prefetch: int) -> int:
    if not 0 <= prefetch <= MAX_PREFETCH:
        raise SettingsError(f"prefetch is {prefetch}; allowed is 0 to {MAX_PREFETCH}")
    return prefetch


#: Consumers of this process.
_live: weakref.WeakSet[Consumer] = weakref.WeakSet()

#: Consumers that a forked child inherited: kept so that their sockets are never finalised there.
_inherited: list[Consumer] = []


def _in_child() -> None:
    _inherited.extend(_live)
    _live.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
