"""Brokers as processes that share a store in PostgreSQL, and the crash of one of them."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.postgres import Home, Server
from tests.support.system import DEADLINE, System, until

pytestmark = pytest.mark.timeout(120)


class Brokers(System):
    """Two or more brokers that share a store."""

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
        """Record the number, and return it."""

    return app, work


def test_jobs_run_by_a_broker_with_a_store_in_postgresql(brokers):
    """Results come back, also after a restart of the broker."""
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
    """Jobs that one broker has accepted are run through the other."""
    first = brokers.start_broker(0)
    brokers.start_broker(1)
    brokers.worker()
    app, work = tasks(brokers)
    assert work.delay(-1).get(DEADLINE) == -1
    assert succeeded(app) == 1
    jobs = [work.delay(n) for n in range(200)]
    first.send_signal(signal_number)
    first.wait(DEADLINE)
    began = time.monotonic()
    assert work.delay(1000).get(DEADLINE) == 1000
    assert time.monotonic() - began < 15
    assert [job.get(DEADLINE) for job in jobs] == list(range(200))
    until(lambda: len(brokers.executed()) == 202, "all are executed")
    assert succeeded(app) == 202
    log = (brokers.folder / "broker.log").read_text("utf-8")
    said = "the broker has stopped; peers continue with another one that shares its store"
    assert (said in log) == (signal_number == signal.SIGTERM)


def succeeded(app):
    """Return the number of succeeded jobs in a listing, which has a connection of its own."""
    number, cursor = 0, ""
    while True:
        page = app.ask("jobs", {"state": "succeeded", "limit": 50, "cursor": cursor})
        number += len(page["jobs"])
        cursor = page["cursor"]
        if not cursor:
            return number


def test_an_owner_that_was_suspended_stands_by_afterwards(brokers):
    """Its open batch is not stored, as another broker owns the store by then."""
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


def test_a_broker_survives_a_crash_of_the_database(tmp_path, own):
    """The broker goes on: accepted jobs are run, and new ones wait for the database."""
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
                time.sleep(1.0)  # while the server is down
                own.start()
                assert late.result() == 50
            assert [job.get(DEADLINE) for job in jobs] == list(range(50))
            assert work.delay(51).get(DEADLINE) == 51
        finally:
            brokers.stop()


@pytest.fixture
def own(postgres):
    """A server that only one test uses, so that it may stop it."""
    home = Home()
    yield Server.make(home)
    home.close()
