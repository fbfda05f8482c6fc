"""A broker and a worker inside this process: what ``EventMQ(broker="memory://")`` runs on.

It is the real broker with the store of memory and the real worker with the threads pool, joined
by ``inproc`` sockets in a ZeroMQ context of their own. Nothing outlives the process.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from eventmq.app.broker import make_broker
from eventmq.app.runner_worker import LiveSpecs, WorkerOptions, make_worker
from eventmq.client.runner import Transport
from eventmq.wire.socket import new_context

if TYPE_CHECKING:
    from collections.abc import Callable

    import zmq

    from eventmq.app.application import EventMQ
    from eventmq.broker.runner import BrokerRunner
    from eventmq.worker.runner import WorkerRunner

__all__ = ["Embedded"]

logger = logging.getLogger(__name__)

#: Seconds that broker and worker each may take to end.
STOP_TIMEOUT = 2.0

#: Threads of the worker where the settings name no number: jobs that wait for others need some.
THREADS = 8

#: Where the broker is, in its own context.
_ADDRESS = "inproc://broker"


class Embedded:
    """The broker and the worker of one app.

    The worker serves the queues of the settings and those that tasks name when it starts.

    Args:
        app: The app.
    """

    def __init__(self, app: EventMQ) -> None:
        self._app = app
        self._context: zmq.Context[Any] | None = None
        self._broker: BrokerRunner | None = None
        self._worker: WorkerRunner | None = None
        self._threads: list[threading.Thread] = []

    def start(self) -> Transport:
        """Start both; return how the client reaches the broker."""
        try:
            return self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> Transport:
        app = self._app
        app.load_tasks()
        context = self._context = new_context()
        broker = make_broker(app, binds={"main": _ADDRESS}, store="memory", context=context)
        self._broker = broker
        self._run_broker(broker)
        options = WorkerOptions(
            brokers=[_ADDRESS],
            queues=self._queues(),
            pool="threads",
            concurrency=app.settings.concurrency or THREADS,
            tasks=LiveSpecs(app.tasks),
            context=context,
        )
        self._worker = make_worker(app, options)
        self._run("eventmq-worker", self._worker.run)
        return Transport([_ADDRESS], context)

    def _queues(self) -> list[tuple[int, str]]:
        settings = self._app.settings
        known = {name for _, name in settings.queues}
        named = {task.declared.queue for task in self._app.tasks.values()}
        more = {name for name in named | {settings.default_queue} if name} - known
        weight = min(weight for weight, _ in settings.queues)
        return [*settings.queues, *((weight, name) for name in sorted(more))]

    def _run_broker(self, broker: BrokerRunner) -> None:
        """Bind and run in one thread, to which the store then belongs; wait until it is bound."""
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

        self._run("eventmq-broker", main)
        bound.wait()
        if errors:
            raise errors[0]

    def _run(self, name: str, run: Callable[[], None]) -> None:
        def main() -> None:
            try:
                run()
            except Exception:
                logger.exception("thread %s ended by an error", name)

        thread = threading.Thread(target=main, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """End the worker, then the broker. A task that still runs is left behind in its thread."""
        runners = [self._worker, self._broker]
        for runner, thread in zip(runners, reversed(self._threads), strict=False):
            if runner is not None:
                runner.stop()
                thread.join(STOP_TIMEOUT)
        if self._context is not None and not any(t.is_alive() for t in self._threads):
            self._context.term()
        self._threads.clear()
