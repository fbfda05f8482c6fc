"""A Dramatiq application on a broker with keys."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import dramatiq
import pytest
from dramatiq.results import ResultFailure, Results

from eventmq import EventMQ
from eventmq_contrib.dramatiq import EventMQBackend, EventMQBroker
from tests.support.keyed_broker import Keys
from tests.support.system import DEADLINE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Keyed:
    """A broker with keys, and brokers of Dramatiq with a key each."""

    def __init__(self, folder: Path) -> None:
        self._keys = Keys(folder)
        self.broker = self._keys.start(folder)

    @contextmanager
    def connect(self, name: str, *roles: str, group: str = "shop") -> Iterator[EventMQBroker]:
        """Yield a broker of Dramatiq with results."""
        self._keys.authorize(name, *roles, group=group)
        settings = self._keys.settings(name)
        broker = EventMQBroker(app=EventMQ(name, broker=self.broker["main"], **settings))
        broker.add_middleware(Results(backend=EventMQBackend(broker.app)))
        try:
            yield broker
        finally:
            broker.close()
            broker.app.close()


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Keyed]:
    keyed = Keyed(tmp_path)
    yield keyed
    keyed.broker.stop()


def add(a: int, b: int) -> int:
    return a + b


def test_clients_and_workers_of_one_group(keyed: Keyed) -> None:
    with (
        keyed.connect("work", "worker", "client") as ours,
        keyed.connect("web", "client") as client,
    ):
        dramatiq.actor(add, broker=ours, store_results=True)
        sent = dramatiq.actor(add, broker=client, store_results=True)
        worker = dramatiq.Worker(ours, worker_timeout=100, worker_threads=2)
        worker.start()
        try:
            options = {
                "backend": client.get_results_backend(), "block": True, "timeout": DEADLINE * 1000
            }  # fmt: skip
            assert sent.send(1, 2).get_result(**options) == 3
            messages = [sent.message(1, 2), sent.message(3)]
            pipeline = dramatiq.pipeline(messages, broker=client).run()
            assert pipeline.messages[-1].get_result(**options) == 6
        finally:
            worker.stop()


def test_a_worker_of_another_group_says_that_it_cannot_read_options(
    keyed: Keyed, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        keyed.connect("work", "worker", "client") as ours,
        keyed.connect("web", "client", group="other") as client,
    ):
        options = {"store_results": True, "min_backoff": 10, "max_retries": 1}
        dramatiq.actor(add, broker=ours, **options)
        sent = dramatiq.actor(add, broker=client, **options)
        worker = dramatiq.Worker(ours, worker_timeout=100, worker_threads=2)
        worker.start()
        try:
            message = sent.send(1, "a")  # type: ignore[arg-type]
            with pytest.raises(ResultFailure):
                message.get_result(
                    backend=client.get_results_backend(), block=True, timeout=DEADLINE * 1000
                )
        finally:
            worker.stop()
    assert "left are not known: job" in caplog.text
    assert "with another key than 'work'" in caplog.text


def test_a_backend_is_not_made_with_a_broker(keyed: Keyed) -> None:
    why = r"takes an app, such as broker\.app, not <"
    with keyed.connect("web", "client") as broker, pytest.raises(TypeError, match=why):
        EventMQBackend(broker)
