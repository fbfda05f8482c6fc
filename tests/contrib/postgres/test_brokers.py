"""Brokers as processes with one store in PostgreSQL, and what holds when one is killed."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.postgres import Home, Server
from tests.support.system import DEADLINE, System, until

pytestmark = pytest.mark.timeout(120)


class Brokers(System):
    """Two brokers or more on one store."""

    def __init__(self, folder, url):
        super().__init__(folder)
        self.url = url
        self.addresses = []

    def start_broker(self, number):
        bind = self.addresses[number] if number < len(self.addresses) else "tcp://127.0.0.1:0"
        process, line = self.start(
            "broker", "--store", self.url, "--bind", bind,
            "--data-dir", str(self.folder / f"data{number}"),
        )  # fmt: skip
        address = next(w for w in line.split() if "tcp://" in w).partition("=")[2]
        if number == len(self.addresses):
            self.addresses.append(address)
        self.address = ",".join(self.addresses)
        return process


@pytest.fixture
def brokers(tmp_path, database_url):
    system = Brokers(tmp_path, database_url)
    yield system
    system.stop()


def tasks(system):
    app = system.app(submit_timeout=30.0)

    @app.task(name="survivor.work")
    def work(number):
        """Note the number and return it."""

    return app, work


def test_jobs_run_by_a_broker_with_a_store_in_postgresql(brokers):
    """Results come back, and it goes on after a restart."""
    broker = brokers.start_broker(0)
    brokers.worker()
    _, work = tasks(brokers)
    assert [job.get(DEADLINE) for job in [work.delay(n) for n in range(20)]] == list(range(20))
    broker.send_signal(signal.SIGTERM)
    assert broker.wait(DEADLINE) == 0
    brokers.start_broker(0)
    assert work.delay(21).get(DEADLINE) == 21


@pytest.mark.parametrize(
    "signal_number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"]
)
def test_a_standby_takes_over(brokers, signal_number):
    """Each receipt holds: what was accepted by the one is done by the other."""
    first = brokers.start_broker(0)
    brokers.start_broker(1)
    brokers.worker()
    _, work = tasks(brokers)
    assert work.delay(-1).get(DEADLINE) == -1
    jobs = [work.delay(n) for n in range(200)]
    first.send_signal(signal_number)
    first.wait(DEADLINE)
    began = time.monotonic()
    assert work.delay(1000).get(DEADLINE) == 1000
    assert time.monotonic() - began < 15
    assert [job.get(DEADLINE) for job in jobs] == list(range(200))
    until(lambda: len(brokers.executed()) == 202, "all are executed")


def test_an_owner_that_was_stopped_stands_by_when_it_goes_on(brokers):
    """What it was about to commit is not stored: another has taken the store over."""
    first = brokers.start_broker(0)
    brokers.start_broker(1)
    brokers.worker()
    _, work = tasks(brokers)
    assert work.delay(-1).get(DEADLINE) == -1
    jobs = [work.delay(n) for n in range(100)]
    first.freeze()
    began = time.monotonic()
    jobs += [work.delay(n) for n in range(100, 200)]
    assert time.monotonic() - began < 15
    first.send_signal(signal.SIGCONT)
    jobs += [work.delay(n) for n in range(200, 300)]
    assert [job.get(DEADLINE) for job in jobs] == list(range(300))
    until(lambda: len(brokers.executed()) == 301, "all are executed")
    first.send_signal(signal.SIGTERM)
    assert first.wait(DEADLINE) == 0
    assert work.delay(1000).get(DEADLINE) == 1000


def test_a_database_that_ends_and_comes_back(tmp_path, own):
    """The broker lives on; what was accepted is done, and what comes meanwhile waits."""
    with own.database() as url:
        brokers = Brokers(tmp_path, url)
        try:
            brokers.start_broker(0)
            brokers.worker()
            _, work = tasks(brokers)
            assert work.delay(-1).get(DEADLINE) == -1
            jobs = [work.delay(n) for n in range(50)]
            own.kill()
            with ThreadPoolExecutor(1) as pool:
                late = pool.submit(lambda: work.delay(50).get(DEADLINE))
                time.sleep(1.0)  # for so long it is away
                own.start()
                assert late.result() == 50
            assert [job.get(DEADLINE) for job in jobs] == list(range(50))
            assert work.delay(51).get(DEADLINE) == 51
        finally:
            brokers.stop()


@pytest.fixture
def own(postgres):
    """A server of its own, which a test may end."""
    home = Home()
    yield Server.make(home)
    home.close()
