"""Waiting for results, without a worker: who stores them is another backend."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from uuid import UUID

import pytest
from celery import Celery
from kombu.utils.uuid import uuid

from eventmq_contrib.kombu import backend as module
from tests.support.system import DEADLINE, until


@pytest.fixture
def shop(url):
    app = Celery("client", broker=url, backend=url, set_as_current=False)
    yield app
    app.backend.result_consumer.stop()
    app.close()


def same_bucket(task_id: str) -> str:
    """Return another id whose result is announced under the same topic."""
    while module._bucket(other := uuid()) != module._bucket(task_id):
        pass
    return other


def test_a_forked_process_waits_for_results(url):
    # The parent waits for a result too. The child gets that one, and one of the same topic, which
    # are stored once it waits: it would read them again after minutes only.
    program = """
        import os, sys
        from celery import Celery
        from tests.contrib.kombu.test_backend import module, same_bucket, uuid

        module.READ_EVERY = 600.0
        app = Celery("client", broker=sys.argv[1], backend=sys.argv[1])
        first = app.AsyncResult(uuid())
        second = app.AsyncResult(same_bucket(first.id))
        app.backend.add_pending_result(first)
        for result in first, second:
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    waits = lambda: os.write(writer, b"!")
                    os._exit(result.get(timeout=20, on_interval=waits))
                finally:
                    os._exit(1)
            os.read(reader, 1)
            app.backend.store_result(result.id, 7, "SUCCESS")
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert first.get(timeout=20) == 7
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), url], check=True, timeout=90)


def test_threads_that_wait_share_the_subscription_of_a_topic(shop, monkeypatch):
    subscribe = shop.backend.eventmq.subscribe
    both = threading.Barrier(2)
    subscriptions = []

    def slowly(topic):
        subscriptions.append(subscribe(topic))
        with suppress(threading.BrokenBarrierError):
            both.wait(0.3)  # until another thread subscribes too
        return subscriptions[-1]

    monkeypatch.setattr(shop.backend.eventmq, "subscribe", slowly)
    first = uuid()
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(shop.backend.result_consumer.consume_from, [first, same_bucket(first)]))
    assert len(subscriptions) == 1


def test_a_missed_announcement_is_read_while_others_begin_to_wait(shop, monkeypatch):
    monkeypatch.setattr(module, "READ_EVERY", 0.5)
    consumer, result = shop.backend.result_consumer, shop.AsyncResult(uuid())
    shop.backend.add_pending_result(result)
    with monkeypatch.context() as patch:
        patch.setattr(shop.backend.eventmq, "publish_raw", lambda *_: None)
        shop.backend.store_result(result.id, 7, "SUCCESS")

    def ready() -> bool:
        other = uuid()
        consumer.consume_from(other)
        consumer.drain_events(0.01)
        consumer.cancel_for(other)
        return bool(result._cache)

    until(ready, "the result")


def test_an_id_under_which_no_result_fits_is_refused(shop):
    longest = "é" * 200
    shop.send_task("unserved", task_id=longest, queue="unserved")
    shop.backend.store_result(longest, "x" * (module.PART + 1), "SUCCESS")
    assert shop.AsyncResult(longest).get(timeout=DEADLINE) == "x" * (module.PART + 1)
    with pytest.raises(ValueError, match="task_id has 201 characters; allowed are 200"):
        shop.send_task("unserved", task_id=f"{longest}x", queue="unserved")


def test_an_id_may_be_a_uuid(shop, monkeypatch):
    """As with the backends of Celery, which take no number either."""
    monkeypatch.setattr(module, "READ_EVERY", 600.0)  # the announcement has to arrive
    consumer = shop.backend.result_consumer
    result = shop.send_task("unserved", task_id=UUID(uuid()), queue="unserved")
    shop.backend.add_pending_result(result)
    shop.backend.store_result(result.id, 7, "SUCCESS")

    def ready() -> bool:
        consumer.drain_events(0.01)
        return bool(result._cache)

    until(ready, "the result")
    assert shop.AsyncResult(str(result.id)).result == result.get(timeout=DEADLINE) == 7
    with pytest.raises(TypeError, match="found"):
        shop.send_task("unserved", task_id=5, queue="unserved")


def test_results_are_read_from_the_broker_of_a_list_that_answers(url):
    brokers = f"eventmq://127.0.0.1:1;{url}"
    app = Celery("client", broker=brokers, backend=brokers, set_as_current=False)
    result = app.AsyncResult(uuid())
    app.backend.store_result(result.id, 7, "SUCCESS")
    assert (result.get(timeout=DEADLINE), app.backend.as_uri()) == (7, brokers)
