"""Embedded broker, worker and scheduler of ``EventMQ(broker="memory://")``.

They are the usual broker with the memory store and the usual worker with the pool ``threads``,
connected by ``inproc`` sockets in their own ZeroMQ context. Nothing outlives the process.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from eventmq.client.client import Transport
from eventmq.client.io_loop import has_greenlets
from eventmq.errors import NotAllowed
from eventmq.wire.sockets import new_context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import zmq

    from eventmq.broker.runner import BrokerRunner
    from eventmq.scheduler.runner import BeatRunner
    from eventmq.settings import Settings
    from eventmq.task.task import Task
    from eventmq.worker.runner import WorkerRunner

__all__ = ["Embedded"]

logger = logging.getLogger(__name__)

#: Maximum seconds for the end of the broker, and of each worker.
STOP_TIMEOUT = 1.0

#: Default number of the worker's threads: jobs that wait for others need several.
THREADS = 8

#: Address of the broker in its ZeroMQ context.
_ADDRESS = "inproc://broker"

#: Names of the threads.
_BROKER, _WORKER, _BEAT = "eventmq-broker", "eventmq-worker", "eventmq-beat"


class Embedded:
    """Broker and workers of one app in this process; the first worker serves all known queues.

    Args:
        settings: Settings of the app.
        tasks: Tasks of the app, by name.
        make_broker: `EventMQ.make_broker`.
        make_worker: `EventMQ.make_worker`.
        make_beat: `EventMQ.make_beat`.
        scheduled: The app's code has schedules, so the scheduler starts too.
    """

    def __init__(
        self,
        settings: Settings,
        tasks: Mapping[str, Task[Any, Any]],
        *,
        make_broker: Callable[..., BrokerRunner],
        make_worker: Callable[..., WorkerRunner],
        make_beat: Callable[[], BeatRunner],
        scheduled: bool,
    ) -> None:
        self._settings = settings
        self._tasks = tasks
        self._make_broker = make_broker
        self._make_worker = make_worker
        self._make_beat = make_beat
        self._scheduled = scheduled
        self._context: zmq.Context[Any] | None = None
        self._broker: BrokerRunner | None = None
        self._workers: list[WorkerRunner] = []
        self._threads: list[threading.Thread] = []
        self._served_queues: set[str] = set()
        self._beat: BeatRunner | None = None

    def start(self, queues: Iterable[str]) -> Transport:
        """Start everything; return the client's transport to the broker.

        Args:
            queues: Queues to serve, in addition to those of the settings and of the app's tasks.
        """
        if has_greenlets():
            raise NotAllowed(
                "gevent has replaced the threads of this process by greenlets, and the broker of "
                "'memory://' needs threads: use a broker in its own process, such as that of "
                "eventmq dev, or in tests the fixture eventmq_app, which needs no threads"
            )
        try:
            return self._start(queues)
        except BaseException:
            self.stop()
            raise

    def _start(self, queues: Iterable[str]) -> Transport:
        context = self._context = new_context()
        broker = self._make_broker(binds={"main": _ADDRESS}, store="memory", context=context)
        self._broker = broker
        self._run_broker(broker)
        settings = self._settings
        named = {
            task.declared.queue or settings.queue_of(name) for name, task in self._tasks.items()
        }
        unserved = {*named, *queues, settings.default_queue} - {name for _, name in settings.queues}
        weight = min(weight for weight, _ in settings.queues)
        self._start_worker([*settings.queues, *((weight, name) for name in sorted(unserved))])
        if self._scheduled:
            self.beat()
        return Transport([_ADDRESS], context)

    def serve(self, queue: str) -> None:
        """Start another worker for a queue that none serves."""
        if self._context is not None and queue not in self._served_queues:
            self._start_worker([(1, queue)])

    def _start_worker(self, queues: list[tuple[int, str]]) -> None:
        worker = self._make_worker(
            brokers=[_ADDRESS],
            queues=queues,
            pool="threads",
            concurrency=self._settings.concurrency or THREADS,
            live=True,
            context=self._context,
        )
        self._workers.append(worker)
        self._served_queues.update(name for _, name in queues)
        self._run(_WORKER, worker.run)

    def beat(self) -> None:
        """Start the scheduler unless it runs."""
        if self._beat is None and self._context is not None:
            self._beat = self._make_beat()
            self._run(_BEAT, self._beat.run)

    def _run_broker(self, broker: BrokerRunner) -> None:
        """Bind and run in one thread, which then owns the store; wait until it is bound."""
        bound = threading.Event()
        errors: list[Exception] = []

        def main() -> None:
            try:
                broker.bind()
            except Exception as error:  # noqa: BLE001 - raised by the caller below
                errors.append(error)
                return
            finally:
                bound.set()
            broker.run()

        self._run(_BROKER, main)
        bound.wait()
        if errors:
            raise errors[0]

    def _run(self, name: str, run: Callable[[], None]) -> None:
        def main() -> None:
            try:
                run()
            except Exception:
                logger.exception("thread %s failed", name)

        thread = threading.Thread(target=main, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """Stop the workers, then the broker. A task that still runs continues in its thread."""
        self.stop_beat()
        for now in (False, True):
            for worker in self._workers:
                worker.stop(now=now)
            self._join(_WORKER)
        if self._broker is not None:
            self._broker.stop()
            self._join(_BROKER)
        if self._context is not None and not any(t.is_alive() for t in self._threads):
            self._context.term()
        self._threads.clear()

    def stop_beat(self) -> None:
        """Stop the scheduler, while the client's broker still runs."""
        if self._beat is not None:
            self._beat.stop()
            self._join(_BEAT)

    def _join(self, name: str) -> None:
        deadline = time.monotonic() + STOP_TIMEOUT
        for thread in self._threads:
            if thread.name == name:
                thread.join(max(0.0, deadline - time.monotonic()))
