"""Brokers in threads that share a store, and apps, workers and beats that use them."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from eventmq import EventMQ
from eventmq.broker.limits import Limits
from eventmq.broker.runner import BrokerRunner
from eventmq.clock import SystemClock
from eventmq.errors import BindError
from eventmq.plugins.routing import LeastRecentlyUsed, WeightedFair
from eventmq.store.writes import LeaseChunk
from tests.support.postgres import free_port
from tests.support.shared_store import SharedDatabase, SharedStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eventmq.store import Write

#: Timeout of every wait, in seconds.
DEADLINE = 20.0

LIMITS = Limits(heartbeat_interval=0.2, lease_interval=0.2, heartbeat_timeout=3.0)

SETTINGS = {"heartbeat_interval": 0.2, "heartbeat_timeout": 3.0, "submit_timeout": DEADLINE}


def wait_for(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def _bound(runner: BrokerRunner) -> bool:
    try:
        runner.bind()
    except BindError:
        return False
    return True


class StoppedStore(SharedStore):
    """The store of a broker that is stopped between the lease of a chunk and its sending."""

    def __init__(self, store: SharedStore) -> None:
        super().__init__(store._database, store._make)
        self.stopped = False
        self.resume = threading.Event()

    def submit(self, batch: Sequence[Write]) -> None:
        super().submit(batch)
        if any(isinstance(write, LeaseChunk) for write in batch) and not self.stopped:
            self.stopped = True
            assert self.resume.wait(DEADLINE)


class SlowStore(SharedStore):
    """A store whose next commit takes long, as if its broker was stopped after it.

    Attributes:
        next_takes: Seconds of the pause of the broker after the next commit.
    """

    def __init__(self, store: SharedStore) -> None:
        super().__init__(store._database, store._make)
        self.next_takes = 0.0

    def submit(self, batch: Sequence[Write]) -> None:
        super().submit(batch)
        if self.next_takes:
            time.sleep(self.next_takes)
            self.next_takes = 0.0


def free_address() -> str:
    """Return a free address, outside the range of ports of connections."""
    return f"tcp://127.0.0.1:{free_port()}"


class Shop:
    """Brokers on one database, and apps that use them, all in threads."""

    def __init__(self) -> None:
        self.database = SharedDatabase("s1")
        self.ran: list[int] = []
        self.release = threading.Event()
        self._brokers: list[tuple[BrokerRunner, threading.Thread]] = []
        self._running: list[tuple[Any, threading.Thread]] = []
        self._apps: list[EventMQ] = []

    def broker(
        self, store: SharedStore | None = None, bind: str = "tcp://127.0.0.1:0", **options: Any
    ) -> str:
        """Start another broker; return its address."""
        runner = BrokerRunner(
            store=store or self.database.store(), limits=LIMITS, routing=LeastRecentlyUsed(),
            queue_order=WeightedFair, binds={"main": bind}, clock=SystemClock(),
            **options,
        )  # fmt: skip
        wait_for(lambda: _bound(runner))  # an ended broker may still hold the address
        self._brokers.append((runner, self._run(runner)))
        return runner.addresses["main"]

    def app(self, *brokers: str, **settings: Any) -> EventMQ:
        """Return an app with two tasks."""
        app = EventMQ("shop", broker=brokers, **{**SETTINGS, **settings})
        self._apps.append(app)

        @app.task(name="hold")
        def hold(value: int) -> int:
            self.ran.append(value)
            self.release.wait(DEADLINE)
            return 2 * value

        @app.task(name="note")
        def note(value: int) -> int:
            self.ran.append(value)
            return 2 * value

        return app

    def work(self, app: EventMQ, slots: int = 4) -> None:
        """Start a worker."""
        ready = threading.Event()
        worker = app.make_worker(pool="threads", concurrency=slots, on_ready=ready.set)
        self._running.append((worker, self._run(worker)))
        assert ready.wait(DEADLINE)

    def beat(self, app: EventMQ) -> None:
        """Start a scheduler."""
        beat = app.make_beat()
        self._running.append((beat, self._run(beat)))

    @staticmethod
    def _run(runner: Any) -> threading.Thread:
        thread = threading.Thread(target=runner.run)
        thread.start()
        return thread

    def stop(self, address: str) -> None:
        """End the broker at an address."""
        for runner, thread in self._brokers:
            if runner.addresses["main"] == address:
                runner.stop()
                thread.join(DEADLINE)
                assert not thread.is_alive()

    def stop_owner(self) -> str:
        """End the broker that owns the store; return the address of the next owner."""
        epoch, owner = self.database.row.epoch, self.database.row.address
        self.stop(owner)
        wait_for(lambda: self.database.row.epoch > epoch and self.database.row.address)
        return self.database.row.address

    def close(self) -> None:
        self.release.set()
        for app in self._apps:
            app.close()
        for runner, thread in self._running:
            runner.stop()
            thread.join(DEADLINE)
        for runner, thread in self._brokers:
            runner.stop()
            thread.join(DEADLINE)
        assert not [thread for _, thread in (*self._running, *self._brokers) if thread.is_alive()]
