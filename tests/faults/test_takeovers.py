"""Brokers that share a store end, stop and restart under load: no job is lost or executed twice."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support.shared_brokers import DEADLINE, Shop, SlowStore, free_address, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventmq import EventMQ

#: Clients that submit and wait all the time.
CLIENTS = 3


class Load:
    """Clients and workers, each with the addresses in another order."""

    def __init__(self, shop: Shop, addresses: list[str]) -> None:
        self.runs: Counter[int] = Counter()
        self.errors: list[BaseException] = []
        self.rounds = 0
        self._shop, self._addresses = shop, addresses
        self._lock = threading.Lock()
        self._random = random.Random(1)
        self._stopping = threading.Event()
        for _ in range(2):
            shop.work(self._app())
        self._threads = [
            threading.Thread(target=self._submit, args=(number, self._app()))
            for number in range(CLIENTS)
        ]
        for thread in self._threads:
            thread.start()

    def _app(self) -> EventMQ:
        app = self._shop.app(*self._random.sample(self._addresses, len(self._addresses)))

        @app.task(name="work")
        def work(value: int, seconds: float) -> int:
            with self._lock:
                self.runs[value] += 1
            time.sleep(seconds)
            return 2 * value

        return app

    def _submit(self, number: int, app: EventMQ) -> None:
        """Submit one by one and in batches; every receipt must have its result."""
        value = number * 1_000_000
        choose = random.Random(number)
        try:
            while not self._stopping.is_set():
                values = range(value, value + choose.choice((1, 5, 20)))
                value = values.stop
                with app.batch():
                    jobs = [app.send("work", (n, choose.random() * 0.05)) for n in values]
                single = app.send("work", (value, 0.0))
                results = [job.get(timeout=DEADLINE) for job in (*jobs, single)]
                assert results == [2 * n for n in (*values, value)]
                value += 1
                self.rounds += 1
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.errors.append(error)

    def check_progress(self) -> None:
        """Wait until every client has done more."""
        rounds = self.rounds
        wait_for(lambda: self.errors or self.rounds > rounds + CLIENTS)

    def stop(self) -> None:
        """Let the clients finish their started work."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(2 * DEADLINE)
            assert not thread.is_alive()


@pytest.fixture
def shop() -> Iterator[Shop]:
    shop = Shop()
    yield shop
    shop.close()


def test_takeovers_lose_nothing_and_start_nothing_twice(shop: Shop) -> None:
    """No worker ends here, so each job is started once, whatever becomes of its brokers."""
    addresses = [free_address() for _ in range(3)]
    stores: dict[str, SlowStore] = {}

    def start(address: str) -> None:
        stores[address] = SlowStore(shop.database.store())
        shop.broker(stores[address], bind=address)

    for address in addresses:
        start(address)
    load = Load(shop, addresses)
    admin = shop.app(*addresses)
    load.check_progress()
    for event in ("stop", "before", "handover", "slow", "standby", "after", "stopped", "stop"):
        owner, epoch = shop.database.row.address, shop.database.row.epoch
        if event == "stop":
            shop.stop_owner()
            start(owner)
        elif event == "standby":
            other = next(address for address in addresses if address != owner)
            shop.stop(other)
            start(other)
        elif event == "handover":
            assert admin.ask("handover")["epoch"] == epoch + 1
        elif event in {"before", "after"}:
            shop.database.faults += ["", event]
            wait_for(lambda: shop.database.row.epoch > epoch)  # noqa: B023 - called here
        else:  # longer or shorter than the others wait before they take over
            stores[owner].next_takes = 5.0 if event == "stopped" else 0.5
            wait_for(lambda: not stores[owner].next_takes)  # noqa: B023 - called here
        load.check_progress()
    load.stop()
    assert load.errors == []
    assert [value for value, runs in load.runs.items() if runs > 1] == []
    assert shop.database.row.epoch >= 7
