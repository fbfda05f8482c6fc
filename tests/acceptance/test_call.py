"""``Task.call``: a job and its result in one exchange, whatever is killed meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.client.submit import LATE_RECEIPT
from eventmq.errors import BrokerUnavailable, JobFailed, NotAllowed, ResultTimeout
from tests.support.system import DEADLINE, System, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from eventmq import EventMQ


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    system = System(tmp_path)
    yield system
    system.stop()


def task(app: EventMQ, name: str) -> Any:
    """Return a task by which a client calls one of the workers'."""

    def stand_in(*args: object) -> None:
        """Run in a worker."""

    return app.task(name=f"survivor.{name}")(stand_in)


class Calling(threading.Thread):
    """A call in a thread of its own; ``value`` is its result or its exception."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.value: Any = None
        self.start()

    def run(self) -> None:
        try:
            self.value = self._call()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.value = error

    def result(self) -> Any:
        self.join(DEADLINE)
        assert not self.is_alive()
        return self.value


def test_it_returns_the_result_and_sends_one_message(system: System) -> None:
    """There is a receipt only where the job takes longer than a second."""
    system.broker()
    system.worker()
    app = system.app()
    work, slow = task(app, "work"), task(app, "slow")
    work.call(0, timeout=DEADLINE)
    before = app.ask("status")["counters"]["messages"]
    assert [work.call(number) for number in range(20)] == list(range(20))
    counters = app.ask("status")["counters"]
    # READY and heartbeats of the worker are messages as well: 20 jobs are 20 chunks.
    assert counters["messages"] - before <= 2 * 20 + 10
    assert slow.call(1, 1.5) == 1
    assert slow.options(priority=9).call(2, 0.1, timeout=DEADLINE) == 2

    async def both() -> list[int]:
        return await asyncio.gather(work.acall(7), slow.options(priority=9).acall(8, 0.1))

    assert asyncio.run(both()) == [7, 8]


@pytest.mark.parametrize("receipt", [False, True])
def test_it_survives_the_broker(system: System, receipt: bool) -> None:
    """kill -9 between the commit and the result, before the receipt and after it."""
    broker = system.broker()
    system.worker()
    app = system.app(submit_timeout=DEADLINE)
    slow = task(app, "slow")
    calling = Calling(lambda: slow.call(1, 3.0, timeout=DEADLINE))
    until(system.started, "the job runs")
    if receipt:  # it comes after a second
        machine = app.components.client.runner._running().machine
        until(lambda: machine._in_flight.pushed, "only the result is waited for")
    broker.kill9()
    system.broker()
    assert calling.result() == 1
    assert system.times_started("1") == 1


def test_it_survives_the_worker(system: System) -> None:
    system.broker()
    first = system.worker()
    slow = task(system.app(), "slow")
    calling = Calling(lambda: slow.call(1, 1.0, timeout=DEADLINE))
    until(system.started, "the job runs")
    first.kill9()
    system.worker()
    assert calling.result() == 1
    assert system.times_started("1") == 2


def test_two_processes_that_call_one_id_get_one_result(system: System) -> None:
    """The job is stored once."""
    system.broker()
    system.worker()
    apps = [system.app(), system.app()]
    callings = [
        Calling(lambda app=app: task(app, "slow").options(job_id="one").call(1, 1.0))  # type: ignore[misc]
        for app in apps
    ]
    assert [calling.result() for calling in callings] == [1, 1]
    again = task(apps[0], "slow").options(job_id="one")
    assert again.call(2, 9.0, timeout=DEADLINE) == 1
    assert system.times_started("1") == 1


@pytest.mark.parametrize("timeout", [LATE_RECEIPT / 4, LATE_RECEIPT + 0.5])
def test_a_job_that_takes_too_long_is_a_timeout_and_goes_on(system: System, timeout: float) -> None:
    """Whether or not the receipt would have been late."""
    system.broker()
    system.worker()
    slow = task(system.app(), "slow")
    begin = time.monotonic()
    with pytest.raises(ResultTimeout, match="still running after"):
        slow.call(1, timeout + 1.0, timeout=timeout)
    assert timeout <= time.monotonic() - begin < timeout + 2.0
    until(lambda: system.has_started(2), "the job has ended")


def test_without_a_broker_it_is_unavailable(system: System) -> None:
    """After ``submit_timeout``, however short or long the timeout of the result is."""
    process = system.broker()
    app = system.app(submit_timeout=0.5)
    work = task(app, "work")
    work.delay(0)
    process.kill9()
    for timeout in (0.1, 30.0, None):
        begin = time.monotonic()
        with pytest.raises(BrokerUnavailable):
            work.call(1, timeout=timeout)
        assert 0.4 < time.monotonic() - begin < 5.0


def test_without_a_worker_the_receipt_keeps_it_waiting(system: System) -> None:
    """A broker that is there and has no result is no broker that is away."""
    system.broker()
    app = system.app(submit_timeout=1.5)
    with pytest.raises(ResultTimeout, match="no worker serves the queue"):
        task(app, "work").call(1, timeout=2.5)


def test_what_it_refuses(system: System) -> None:
    system.broker()
    system.worker()
    app = system.app()

    @app.task(name="survivor.work")
    def work(number: int, timeout: float = 1.0) -> int:
        raise AssertionError

    with app.batch(), pytest.raises(NotAllowed, match=r"use delay\(\) in it"):
        work.call(1)
    with pytest.raises(TypeError, match="give that one by position"):
        work.call(1, timeout=3.0)
    with pytest.raises(ValueError, match="allowed are seconds"):
        work.call(1, 2.0, timeout=-1)
    with pytest.raises(JobFailed, match="TypeError"):  # the worker's takes one argument
        work.call(1, 2.0, timeout=DEADLINE)
