"""Celery clients and workers and EventMQ clients and workers call each other's tasks."""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing, suppress
from queue import SimpleQueue
from types import ModuleType
from uuid import uuid4

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError, TaskRevokedError

from eventmq import JobNotFound, SerializationError, SettingsError
from eventmq.gateway import Consumer
from eventmq.sdk import pack
from eventmq_contrib.celery import bridge, find_job, revoke
from eventmq_contrib.kombu.messages import VERSION
from tests.support.system import DEADLINE, until


def call(old, name, *args, **options):
    return old.send_task(name, args, **options)


def sign(old, name, *args, **options):
    return old.signature(name, args=args, app=old, **options)


class CardRefused(Exception):
    def __init__(self, card, code):
        super().__init__(card, code)
        self.code = code


def test_a_celery_client_calls_a_task_of_eventmq(old, workers):
    result = call(old, "shop.add", 2, 3)
    assert (result.get(timeout=DEADLINE), result.state) == (5, "SUCCESS")
    start = time.monotonic()
    assert call(old, "shop.add", 2, 3, countdown=1).get(timeout=DEADLINE) == 5
    assert time.monotonic() - start >= 1


def test_options_of_the_task_hold_for_a_celery_client(old, workers):
    """Its retries and its limit, which Celery's message does not have."""
    assert [2, "new", ["a"]] == call(old, "shop.retried", "a").get(timeout=DEADLINE)
    result = call(old, "shop.fail", "no book")
    with pytest.raises(Exception, match="no book") as caught:
        result.get(timeout=DEADLINE)
    assert type(caught.value).__name__ == "NoStock"
    assert "raise NoStock(name)" in result.traceback
    hanging = call(old, "shop.hang")
    with pytest.raises(Exception, match="timeout"):
        hanging.get(timeout=DEADLINE)


def test_an_exception_keeps_its_class_and_arguments(old, workers, monkeypatch):
    with pytest.raises(KeyError) as caught:
        call(old, "shop.refuse", "k").get(timeout=DEADLINE)
    assert caught.value.args == ("k",)
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))  # the client has imported it
    sys.modules["shop"].CardRefused = CardRefused
    with pytest.raises(CardRefused) as refused:
        call(old, "shop.refuse", None).get(timeout=DEADLINE)
    assert (refused.value.args, refused.value.code) == (("4111", 51), 51)


def test_errbacks_of_celery(old, workers, system):
    """One with three arguments, one with an id, and one that has moved."""
    errbacks = [sign(old, name) for name in ("old.errback", "old.errback_of_id", "shop.errback")]
    result = call(old, "shop.fail", f"errback {workers}", link_error=errbacks)
    with pytest.raises(Exception, match="errback"):
        result.get(timeout=DEADLINE)
    recorded(
        system, f"NoStock('errback {workers}') {result.id} shop.fail\n",
        f"('failed', '{result.id}')\n", f"moved {result.id}\n",
    )  # fmt: skip


def test_wrong_arguments_come_back_as_an_error(old, new, workers):
    with pytest.raises(Exception, match="missing"):
        call(old, "shop.add", 1).get(timeout=DEADLINE)
    with pytest.raises(Exception, match="expected int"):
        call(old, "shop.typed", "many").get(timeout=DEADLINE)


def test_a_task_of_eventmq_in_a_canvas_of_celery(old, workers):
    adds = [sign(old, "shop.add", n, n) for n in range(4)]
    assert [0, 2, 4, 6] == group(adds, app=old).delay().get(timeout=DEADLINE)
    assert chord(adds, sign(old, "old.total"), app=old).delay().get(timeout=DEADLINE) == 12
    linked = chain(sign(old, "shop.add", 1, 1), sign(old, "shop.add", 3), app=old)
    assert linked.delay().get(timeout=DEADLINE) == 5
    failing = chord([*adds, sign(old, "shop.fail", "x")], sign(old, "old.total"), app=old)
    with pytest.raises(Exception, match="x"):
        failing.delay().get(timeout=DEADLINE)


def test_links_of_celery(old, workers, system):
    result = call(old, "shop.add", 1, 2, link=sign(old, "old.note", f"link {workers}"))
    result.get(timeout=DEADLINE)
    recorded(system, f"(3, 'link {workers}')")


def test_a_task_that_ignores_its_result_stores_none(old, workers, system):
    result = call(old, "shop.quiet", link=sign(old, "old.note", f"quiet {workers}"))
    recorded(system, f"quiet {workers}")
    assert result.state == "PENDING"


def recorded(system, *texts):
    system.record.touch()
    until(lambda: all(text in system.record.read_text() for text in texts), f"{texts} ran")


def test_a_cancelled_job_is_a_revoked_task(old, new, workers):
    result = call(old, "shop.wait")
    until(lambda: state_of(new, result.id) == "running", "it runs")
    find_job(new, result.id).cancel()
    with pytest.raises(TaskRevokedError):
        result.get(timeout=DEADLINE)


def test_a_task_is_revoked(old, new, moved, workers):
    """While it runs, and while its message waits for a worker."""
    result = call(old, "shop.wait")
    until(lambda: state_of(new, result.id) == "running", "it runs")
    assert revoke(moved, result.id)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=DEADLINE)
    assert not revoke(moved, result.id)
    for options in ({}, {"countdown": 60}, {"kwargs": {"pad": "x" * 2_500_000}}):
        waiting = call(old, "shop.add", 1, 2, queue="unread", **options)
        assert revoke(moved, waiting.id)
        with pytest.raises(TaskRevokedError):
            waiting.get(timeout=DEADLINE)


@pytest.mark.parametrize(
    ("steps", "revoked"),
    [
        ("take submit ack", True),
        ("take submit", True),
        ("take search submit", True),
        ("take", True),
        ("take ack", False),
    ],
)
def test_a_message_that_a_worker_takes_meanwhile_is_revoked(
    old, new, moved, monkeypatch, steps, revoked
):
    """The steps of the worker begin when the message was found; the job is cancelled too."""
    monkeypatch.setattr(bridge, "SEARCHES", (0.0, 0.0))
    result = call(old, "shop.add", 1, 2, queue="taken")
    find, left, submitted, deliveries = bridge._find, steps.split(), [], SimpleQueue()

    def find_and_proceed(*args, **options):
        try:
            return find(*args, **options)
        finally:
            proceed()

    def proceed():
        while left and (step := left.pop(0)) != "search":
            if step == "take":
                consumer.start()
                deliveries.put(deliveries.get(timeout=DEADLINE))
            elif step == "submit":
                headers = {"task": "shop.add", bridge.HEADER: result.id}
                submitted.append(new.send_raw("unread", b"", headers))
            else:
                taken = deliveries.get()
                consumer.ack(taken)
                until(new.job(taken.id).ready, "the message is acknowledged")

    monkeypatch.setattr(bridge, "_find", find_and_proceed)
    with closing(
        Consumer(new, deliveries.put, queues=("taken",), prefetch=1, name="taking")
    ) as consumer:
        assert revoke(moved, result.id) is revoked
    assert [job.state for job in submitted] == ["cancelled"] * steps.count("submit")
    assert result.state == ("REVOKED" if steps == "take" else "PENDING")


def test_odd_messages_are_no_calls(old, new, moved):
    waiting = call(old, "shop.add", 1, 2, queue="unread")
    for headers in ([], None, {}, {"id": None}):
        body = pack([VERSION, json.dumps(["application/json", "utf-8", headers, {}]), True, b"x"])
        new.send_raw("unread", body, {"task": "odd", "content-type": "application/json"})
    assert not revoke(moved, "unknown")
    assert revoke(moved, waiting.id)


@pytest.mark.parametrize("empty", ["", None])
def test_an_id_is_not_empty(new, moved, empty):
    for act, app in ((revoke, moved), (find_job, new)):
        with pytest.raises(ValueError, match="celery_id must not be empty"):
            act(app, empty)


def test_an_id_may_be_a_uuid(old, moved, workers):
    assert call(old, "shop.add", 1, 2, task_id=uuid4()).get(timeout=DEADLINE) == 3
    waiting = call(old, "shop.add", 1, 2, queue="unread", task_id=uuid4())
    assert revoke(moved, waiting.id)
    with pytest.raises(TaskRevokedError):
        waiting.get(timeout=DEADLINE)


def test_a_chord_ends_with_a_revoked_task(old, moved, workers):
    header = [sign(old, "shop.add", 1, 1), sign(old, "shop.add", 1, 1).set(queue="unread")]
    result = chord(header, sign(old, "old.total"), app=old).delay()
    assert revoke(moved, result.parent.results[1].id)
    with pytest.raises((ChordError, TaskRevokedError), match="revoked"):
        result.get(timeout=DEADLINE)


def test_results_are_not_read_for_a_revocation(old, new, moved, monkeypatch):
    old.backend.store_result("stored", 1, "SUCCESS")
    read, begin_ask = [], new.begin_ask

    def asked(name, arguments):
        read.append(arguments["id"])
        return begin_ask(name, arguments)

    monkeypatch.setattr(new, "begin_ask", asked)
    with pytest.raises(JobNotFound):
        find_job(new, "nothing")
    assert not [job_id for job_id in read if "stored" in job_id]


def test_what_cannot_be_revoked(old, new, moved):
    assert not revoke(moved, "unknown")
    waiting = call(old, "shop.add", 1, 2, queue="unread")
    with pytest.raises(SettingsError, match="needs the option 'app' of the plugin 'celery'"):
        revoke(new, waiting.id)
    pickled = call(old, "shop.add", 1, 2, queue="unread", serializer="pickle")
    with pytest.raises(SerializationError, match="untrusted content of type pickle"):
        revoke(moved, pickled.id)
    assert ["queued"] * 2 == [find_job(new, each.id).state for each in (waiting, pickled)]


def state_of(new, celery_id):
    with suppress(JobNotFound):
        return find_job(new, celery_id).state


def test_a_task_without_result_runs_and_stores_none(old, workers):
    result = call(old, "shop.add", 1, 2, ignore_result=True)
    assert call(old, "shop.add", 1, 2).get(timeout=DEADLINE) == 3
    assert result.state == "PENDING"


def test_a_task_of_eventmq_calls_one_of_celery(old, new, workers):
    task_id = new.send("shop.call_old", ([1, 2, 3],), queue="new").get(timeout=DEADLINE)
    assert old.AsyncResult(task_id).get(timeout=DEADLINE) == 6


def test_a_task_of_celery_calls_one_of_eventmq(old, workers):
    task_id = call(old, "old.call_new", 4, 5).get(timeout=DEADLINE)
    assert old.AsyncResult(task_id).get(timeout=DEADLINE) == 9


def test_an_eventmq_client_calls_a_moved_task(new, workers):
    assert new.send("shop.add", (2, 3), queue="new").get(timeout=DEADLINE) == 5


def test_a_state_is_the_progress_of_the_job(new, workers):
    job = new.send("shop.report", queue="new")
    until(lambda: job.info().get("progress"), "a progress")
    progress = job.info()["progress"]
    assert (progress["done"], progress["total"]) == (3, 4)
    assert json.loads(progress["note"]) == {"state": "PROGRESS", "step": "zip"}
    job.cancel()


def test_pickle_is_refused_and_kept(old, new, workers):
    result = call(old, "shop.add", 1, 2, serializer="pickle")
    until(lambda: any(kept(new)), "it is among the failed jobs")
    assert result.state == "PENDING"


def kept(new):
    for row in new.ask("failed", {"queue": "new"})["failed"]:
        yield "application/x-python-serialize" in str(row["error"])


def test_the_result_of_a_task_whose_worker_was_killed_arrives(old, system):
    """It runs again elsewhere, as any job does."""
    worker = ("worker", "-A", "shop", "--broker", system.address, "-c", "1", "-Q", "killed")
    victim, _ = system.start(*worker, "--pool", "threads")
    result = call(old, "shop.slow", "mark", queue="killed")
    until((system.folder / "mark").exists, "it runs")
    victim.kill9()
    second, _ = system.start(*worker, "--pool", "threads")
    assert result.get(timeout=DEADLINE) == 2
    second.terminate()
    assert second.wait(DEADLINE) == 0
