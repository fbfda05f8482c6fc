"""A broker process for each module of this folder, and queues and a worker for each test."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import dramatiq
import pytest
from dramatiq.middleware import CurrentMessage
from dramatiq.results import Results

from eventmq_contrib.dramatiq import EventMQBackend, EventMQBroker
from tests.support.system import System

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

numbers = itertools.count()


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    system = System(tmp_path_factory.mktemp("dramatiq"))
    system.broker()
    system.app()
    yield system
    system.stop()


@pytest.fixture
def broker(system: System) -> Iterator[EventMQBroker]:
    """A broker with results, and a namespace that no other test has."""
    broker = EventMQBroker(app=system.apps[0], namespace=f"test{next(numbers)}")
    broker.add_middleware(CurrentMessage())
    broker.add_middleware(Results(backend=EventMQBackend(broker.app)))
    dramatiq.set_broker(broker)
    yield broker
    broker.close()


@pytest.fixture
def work(broker: EventMQBroker) -> Iterator[Callable[[], dramatiq.Worker]]:
    """Call it to start a worker with four threads."""
    workers: list[dramatiq.Worker] = []

    def start() -> dramatiq.Worker:
        worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=4)
        workers.append(worker)
        worker.start()
        return worker

    yield start
    for worker in workers:
        worker.stop()
