"""Consumers: other software that takes jobs one by one and answers them in any order."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from eventmq.errors import JobFailed, SettingsError
from eventmq.gateway import Consumer, Delivery
from eventmq.sdk import RemoteError, decode_error
from tests.support.system import DEADLINE, System, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventmq import EventMQ

HEADERS = {"task": "order", "content-type": "text"}

#: Takes a job and holds it.
HOLDER = """
import queue, sys
from eventmq import EventMQ
from eventmq.gateway import Consumer

inbox = queue.SimpleQueue()
with Consumer(EventMQ(broker=sys.argv[1]), inbox.put, queues=["orders"]):
    inbox.get()
    print("held", flush=True)
    inbox.get()
"""


@pytest.fixture
def system(tmp_path) -> Iterator[System]:
    system = System(tmp_path)
    system.broker()
    yield system
    system.stop()


@pytest.fixture
def app(system: System) -> EventMQ:
    return system.app()


@pytest.fixture
def inbox() -> queue.SimpleQueue[Delivery]:
    return queue.SimpleQueue()


def take(inbox: queue.SimpleQueue[Delivery], count: int = 1) -> list[Delivery]:
    return [inbox.get(timeout=DEADLINE) for _ in range(count)]


def waiting(app: EventMQ, name: str = "orders") -> int:
    return next(row["waiting"] for row in app.ask("queues") if row["name"] == name)


def sessions(app: EventMQ) -> list[str]:
    return [row["pool"] for row in app.ask("workers")]


def test_deliveries_are_answered_in_any_order(app, inbox):
    jobs = [app.send_raw("orders", b"%d" % n, HEADERS) for n in range(3)]
    with Consumer(app, inbox.put, queues=["orders"], prefetch=3) as consumer:
        held = take(inbox, 3)
        assert [(jobs[n].id, "orders", b"%d" % n, "order", 1, 1) for n in range(3)] == [
            (d.id, d.queue, d.body, d.task, d.number, d.attempt) for d in held
        ]
        assert consumer.ack(held[2])
        assert consumer.fail(held[0], "no stock")
        assert consumer.ack(held[1], b'"done"', "json")
        assert [False, False] == [consumer.ack(held[1]), consumer.requeue(held[0])]
        assert jobs[1].get(timeout=DEADLINE) == "done"
        with pytest.raises(JobFailed, match="no stock"):
            jobs[0].get(timeout=DEADLINE)


def test_no_more_than_the_prefetch_is_held(app, inbox):
    for n in range(5):
        app.send_raw("orders", b"%d" % n, HEADERS)
    with Consumer(app, inbox.put, queues=["orders"], prefetch=2) as consumer:
        first = take(inbox, 2)
        assert [waiting(app), inbox.empty()] == [3, True]
        consumer.ack(first[0])
        assert [delivery.body for delivery in take(inbox)] == [b"2"]
        assert [waiting(app), inbox.empty()] == [2, True]
        consumer.set_prefetch(4)
        assert [delivery.body for delivery in take(inbox, 2)] == [b"3", b"4"]
    assert waiting(app) == 4


def test_a_requeued_job_comes_back_at_once_and_with_a_countdown_later(app, inbox):
    app.send_raw("orders", b"0", HEADERS)
    with Consumer(app, inbox.put, queues=["orders"]) as consumer:
        consumer.requeue(*take(inbox))
        (again,) = take(inbox)
        assert (again.body, again.number, again.attempt) == (b"0", 2, 1)
        app.send_raw("orders", b"1", HEADERS)
        consumer.requeue(again, countdown=0.3)
        (other,) = take(inbox)
        assert other.body == b"1"
        consumer.ack(other)
        (third,) = take(inbox)
        assert (third.body, third.number, third.attempt) == (b"0", 3, 2)


def test_errors_of_attempts_have_a_traceback(app, inbox):
    job = app.send_raw("orders", b"1", HEADERS)
    error = RemoteError("shop.Closed", "at night", "line 1\n", state={"shop": "north"})
    with Consumer(app, inbox.put, queues=["orders"]) as consumer:
        consumer.requeue(*take(inbox), countdown=0.01, reason=error)
        (again,) = take(inbox)
        attempts = app.ask("info", {"id": again.id})["attempts"]
        assert [decode_error(row["error"]) for row in attempts] == [error]
        consumer.fail(again, error._replace(message="for good"))
        with pytest.raises(JobFailed, match="for good") as failed:
            job.get(timeout=DEADLINE)
    assert (failed.value.remote_type, failed.value.remote_traceback) == ("shop.Closed", "line 1\n")


def test_queues_come_and_go(app, inbox):
    consumer = Consumer(app, inbox.put, prefetch=10)
    consumer.start()
    assert sessions(app) == []
    for name in ("a", "b"):
        app.send_raw(name, name.encode(), HEADERS)
        consumer.add_queue(name)
        (delivery,) = take(inbox)
        assert delivery.queue == name
        consumer.ack(delivery)
    consumer.remove_queue("a")
    until(lambda: [row["queues"] for row in app.ask("workers")] == [[[10, "b"]]], "only b")
    app.send_raw("a", b"2", HEADERS)
    consumer.remove_queue("b")
    until(lambda: [row["window"] for row in app.ask("workers")] == [0], "no credit")
    app.send_raw("b", b"2", HEADERS)
    consumer.add_queue("a")
    consumer.ack(*take(inbox))
    assert (waiting(app, "a"), waiting(app, "b")) == (0, 1)
    consumer.close()
    consumer.close()
    assert sessions(app) == []


def test_what_arrives_while_it_closes_is_handed_back(app, inbox, caplog):
    for n in range(2):
        app.send_raw("orders", b"%d" % n, HEADERS)
    closing = threading.Event()

    def receive(delivery):
        inbox.put(delivery)
        closing.wait(DEADLINE)

    consumer = Consumer(app, receive, queues=["orders"], prefetch=2)
    consumer.start()
    take(inbox)
    closer = threading.Thread(target=consumer.close)
    closer.start()
    until(lambda: not consumer._pool._held, "it has handed back the first")
    closing.set()
    closer.join(DEADLINE)
    assert [inbox.empty(), waiting(app)] == [True, 2]
    assert "aborted" not in caplog.text


def test_a_cancelled_job_is_given_up(app, inbox):
    job = app.send_raw("orders", b"1", HEADERS)
    with Consumer(app, inbox.put, queues=["orders"]) as consumer:
        (delivery,) = take(inbox)
        job.cancel()
        until(lambda: job.state == "cancelled", "the job is cancelled")
        assert not consumer.ack(delivery)
        app.send_raw("orders", b"2", HEADERS)
        consumer.ack(*take(inbox))


def test_a_job_that_cannot_be_received_fails(app, caplog):
    def receive(delivery: Delivery) -> None:
        raise ValueError(delivery.body)

    job = app.send_raw("orders", b"1", HEADERS)
    with Consumer(app, receive, queues=["orders"]), pytest.raises(JobFailed, match="ValueError"):
        job.get(timeout=DEADLINE)
    assert "a delivery of queue orders cannot be received" in caplog.text


def test_what_a_killed_process_held_comes_back(system, app, inbox):
    app.send_raw("orders", b"1", HEADERS)
    command = [sys.executable, "-c", HOLDER, system.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGKILL)
    with Consumer(app, inbox.put, queues=["orders"]) as consumer:
        (delivery,) = take(inbox)
        assert delivery.number == 2
        consumer.ack(delivery)


def test_answers_outlive_a_restart_of_the_broker(system, app, inbox):
    jobs = [app.send_raw("orders", b"%d" % n, HEADERS) for n in range(2)]
    with Consumer(app, inbox.put, queues=["orders"], prefetch=2) as consumer:
        first, second = take(inbox, 2)
        system.processes[0].kill9()
        assert consumer.ack(first)
        system.broker()
        assert consumer.ack(second)
        until(lambda: [job.state for job in jobs] == ["succeeded"] * 2, "both are answered")
        assert inbox.empty()


def test_a_released_consumer_ends_once_the_broker_has_its_answers(system, app, inbox):
    answered, other = (app.send_raw("orders", b"%d" % n, HEADERS) for n in range(2))
    consumer = Consumer(app, inbox.put, queues=["orders"], prefetch=2)
    consumer.start()
    deliveries = take(inbox, 2)
    system.processes[0].kill9()
    assert consumer.ack(deliveries[0])
    consumer.release()
    assert not consumer.ack(deliveries[1])
    system.broker()
    consumer.close(DEADLINE)
    assert [answered.state, other.state] == ["succeeded", "queued"]
    assert sessions(app) == []


def test_it_does_nothing_in_a_forked_child(app, inbox):
    job = app.send_raw("orders", b"1", HEADERS)
    with Consumer(app, inbox.put, queues=["orders"]) as consumer:
        (delivery,) = take(inbox)
        pid = os.fork()
        if not pid:
            answers = [consumer.ack(delivery), consumer.close(), consumer.add_queue("more")]
            os._exit(answers != [False, None, None])
        assert os.waitpid(pid, 0)[1] == 0
        assert job.state == "running"
        assert consumer.ack(delivery)
        until(lambda: job.state == "succeeded", "the parent has answered")


@pytest.mark.parametrize("prefetch", [-1, 10_001])
def test_a_prefetch_out_of_range_is_refused(app, prefetch):
    with pytest.raises(SettingsError, match=f"prefetch is {prefetch}; allowed is 0 to 10000"):
        Consumer(app, print, prefetch=prefetch)
