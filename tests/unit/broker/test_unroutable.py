"""Jobs whose task no worker knows: the broker logs that once, and early."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from eventmq.broker.peers import Session
from eventmq.broker.unroutable import TASKS, UnroutableLog
from eventmq.wire.commands import Heartbeat
from tests.support.broker_harness import Broker, FirstQueue

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, "eventmq.broker")
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_job_that_no_worker_knows_is_logged_when_it_becomes_unroutable(
    broker: Broker, log
) -> None:
    """Long before it fails, with task, queue, workers and time."""
    broker.worker(b"w1", "host:1", tasks=("other.task",))
    for _ in range(3):
        broker.submit()
    broker.wait(2.0)
    (line,) = log()
    assert line == (
        "no worker of the queue 'default' knows the task 'shop.add'; it is served by 'host:1'; "
        "such jobs wait, and fail after 300 s unless a worker that does connects"
    )


def test_their_end_is_an_error(broker: Broker, log, caplog: pytest.LogCaptureFixture) -> None:
    broker.worker(b"w1", "host:1", tasks=("other.task",))
    broker.submit()
    broker.submit()
    for _ in range(31):
        broker.tell(b"w1", Heartbeat(broker.new_id(), "1"))
        broker.wait(10.0)
    assert caplog.records[-1].levelname == "ERROR"
    assert log()[-1] == (
        "2 jobs of the task 'shop.add' in the queue 'default' failed for good: no worker knows it"
    )


def test_it_is_told_of_once_however_workers_come_and_go(broker: Broker, log) -> None:
    broker.submit()
    for n in range(3):
        broker.worker(b"w%d" % n, f"host:{n}", tasks=("other.task",))
        broker.wait(2.0)
    assert len(log()) == 1


def test_time_that_passed_at_once_is_no_time_without_a_worker(broker: Broker) -> None:
    """After a sleep of the machine, or a jump of store time, each job has its whole grace."""
    broker.worker(b"w1", "host:1", tasks=("other.task",))
    job, _ = broker.submit()
    broker.wait(2.0)
    broker.clock.time += 3600.0
    broker.core.shift(broker.now(), 3600.0)
    broker.tell(b"w1", Heartbeat(broker.new_id(), "1"))
    broker.wait(2.0)
    assert broker.call("info", id=job)["state"] == "queued"


def test_a_queue_that_no_worker_serves_is_no_unknown_task(broker: Broker, log) -> None:
    broker.submit()
    broker.wait(10.0)
    assert log() == []


def test_a_legacy_job_has_no_task_to_name(log) -> None:
    UnroutableLog().warn("q", "", [Session("s1", FirstQueue())], 300.0)
    (line,) = log()
    assert "knows what a legacy job names (see --allow-callables); it is served by 's1';" in line


def test_many_workers_are_not_all_named(log) -> None:
    sessions = [Session(f"s{n}", FirstQueue()) for n in range(8)]
    UnroutableLog().warn("q", "t", sessions, 300.0)
    assert "'s4' and 3 more;" in log()[0]
    assert "'s5'" not in log()[0]


def test_names_that_clients_make_up_fill_neither_memory_nor_log(log) -> None:
    unknown = UnroutableLog()
    for n in range(3 * TASKS):
        unknown.warn("q", f"t{n}", [Session("s", FirstQueue())], 300.0)
    assert len(log()) == TASKS + 1
    assert log()[-1] == (
        f"jobs of more than {TASKS} unknown tasks wait; further ones are not logged"
    )


def test_a_name_cannot_forge_a_line(log) -> None:
    UnroutableLog().warn("q\n1", "t\n2", [Session("s\n3", FirstQueue())], 300.0)
    assert "\n" not in log()[0]
