"""The setting ``queue_limits`` reaches the broker of an app."""

from __future__ import annotations

import threading

from eventmq.app import EventMQ


def test_two_tasks_of_a_queue_with_room_for_one_never_run_together():
    """The jobs of both go on, one after the other."""
    lock, met = threading.Lock(), []
    limits = {"mail": {"max_concurrency": 1}}
    with EventMQ("shop", broker="memory://", queue_limits=limits) as app:

        def alone():
            met.append(lock.acquire(blocking=False))
            lock.release()

        one = app.task(name="one", queue="mail")(alone)
        two = app.task(name="two", queue="mail")(alone)
        for job in one.map([()] * 5) + two.map([()] * 5):
            job.get()
        limited = {row["name"]: row["limits"] for row in app.ask("queues") if row["limits"]}
    assert met == [True] * 10
    assert limited == {"mail": "concurrency=1"}
