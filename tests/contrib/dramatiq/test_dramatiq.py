"""Actors of Dramatiq on EventMQ: messages, consumers, retries, dead letters, results."""

from __future__ import annotations

import itertools
import math
import os
import re
import threading
import time

import dramatiq
import pytest
from dramatiq.middleware import CurrentMessage, Middleware
from dramatiq.results import ResultFailure, ResultMissing, Results, ResultTimeout

from eventmq import BrokerUnavailable, EventMQ, SettingsError
from eventmq.gateway import Delivery
from eventmq.sdk import decode_error
from eventmq_contrib.dramatiq import EventMQBackend, EventMQBroker
from eventmq_contrib.dramatiq.broker import DeliveredMessage
from tests.contrib.dramatiq.kills import run
from tests.support.system import DEADLINE, System, until

#: Milliseconds of waits, also of consumers for a message.
LIMIT = int(DEADLINE * 1000)


def message(*args, queue="default", actor="do", **options):
    return dramatiq.Message(queue, actor, args, {}, options)


def row(broker, queue="default"):
    """The waiting, delayed and running jobs of a queue, and the failed ones."""
    rows = {row["name"]: row for row in broker.app.ask("queues")}
    found = rows[broker.job_queue(queue)]
    return found["waiting"], found["delayed"], found["running"], found["failed"]


def dead(broker, queue="default"):
    """The failed jobs of a queue."""
    return broker.app.ask("failed", {"queue": broker.job_queue(queue)})["failed"]


@pytest.fixture
def consume(broker):
    """Call it to get a consumer of a queue."""
    broker.declare_queue("default")
    made = []

    def consume(prefetch=1, timeout=LIMIT):
        made.append(broker.consume("default", prefetch, timeout))
        return made[-1]

    yield consume
    for consumer in made:
        consumer.close()


# Messages


def test_a_message_is_stored_when_enqueue_returns(broker):
    broker.enqueue(message(1))
    assert row(broker) == (1, 0, 0, 0)
    (job,) = broker.app.ask("jobs", {"queue": broker.job_queue("default")})["jobs"]
    assert (job["task"], job["state"]) == ("do", "queued")


def test_actors_run_in_the_workers_of_dramatiq(broker, work):
    seen = []

    @dramatiq.actor
    def do(number, *, more):
        seen.append((number, more))

    work()
    for number in range(50):
        do.send(number, more=-number)
    broker.join("default", timeout=LIMIT)
    assert sorted(seen) == [(n, -n) for n in range(50)]


def test_a_delayed_message_waits_in_the_broker(broker, consume):
    sent = broker.enqueue(message(1), delay=600)
    assert (sent.queue_name, row(broker)) == ("default.DQ", (0, 1, 0, 0))
    assert sent.options["eta"] >= time.time() * 1000
    consumer, began = consume(), time.time() * 1000
    assert next(broker.consume("default.DQ", timeout=1)) is None
    received = next(consumer)
    assert time.time() * 1000 >= min(sent.options["eta"], began + 600)
    assert (received.args, received.queue_name, received.options) == ((1,), "default", {})
    consumer.ack(received)


def test_the_option_eta_is_a_delay(broker, consume):
    broker.enqueue(message(1, eta=int(time.time() * 1000) + 300))
    assert row(broker) == (0, 1, 0, 0)
    consumer = consume()
    received = next(consumer)
    assert received.options == {}
    consumer.ack(received)


def test_messages_of_a_higher_broker_priority_come_first(broker, consume):
    for number, priority in enumerate([0, 5, 9]):
        broker.enqueue(message(number, broker_priority=priority))
    consumer, seen = consume(), []
    for _ in range(3):
        received = next(consumer)
        seen += received.args
        consumer.ack(received)
    assert seen == [2, 1, 0]


def test_a_broker_priority_out_of_range_is_refused(broker):
    with pytest.raises(SettingsError, match="priority"):
        broker.enqueue(message(broker_priority=256))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *itertools.product(("eta", "delay", "result_ttl"), (math.nan, math.inf, 1e300, 10**400)),
        ("delay", "x"),
        ("result_ttl", "x"),
        ("result_ttl", None),
    ],
    ids=lambda value: str(value)[:10],
)
def test_what_is_no_number_of_milliseconds_is_refused(broker, option, value):
    @dramatiq.actor(store_results=True)
    def do(): ...

    with pytest.raises(SettingsError, match=r"; allowed is "):
        do.send_with_options(**{option: value})
    assert broker.app.ask("jobs", {"queue": broker.job_queue("default")})["jobs"] == []


def test_the_same_message_can_be_sent_twice(broker, work):
    seen = []

    @dramatiq.actor(store_results=True)
    def do():
        seen.append(1)
        return len(seen)

    again = do.message()
    broker.enqueue(again)
    broker.enqueue(again)
    work()
    broker.join("default", timeout=LIMIT)
    assert len(seen) == 2
    assert again.get_result(block=True) in {1, 2}


def test_the_same_message_can_be_sent_twice_at_the_same_time(broker, work, monkeypatch):
    seen, send = [], type(broker.app).send_raw

    @dramatiq.actor(store_results=True)
    def do():
        seen.append(1)
        return len(seen)

    again = do.message()

    def send_after_another(self, *args, **options):
        monkeypatch.undo()
        broker.enqueue(again)
        return send(self, *args, **options)

    monkeypatch.setattr(type(broker.app), "send_raw", send_after_another)
    broker.enqueue(again)
    assert row(broker) == (2, 0, 0, 0)
    work()
    broker.join("default", timeout=LIMIT)
    assert len(seen) == 2
    assert again.get_result(block=True, timeout=LIMIT) in {1, 2}


def test_a_message_with_a_receipt_is_sent_where_the_broker_is_away_after_it(broker, monkeypatch):
    sent, send, ask = [], type(broker.app).send_raw, type(broker.app).ask

    def send_and_remember(self, *args, **options):
        sent.append(send(self, *args, **options))

    def away_after_the_receipt(self, name, *arguments):
        if name == "info" and sent:
            raise BrokerUnavailable("away")
        return ask(self, name, *arguments)

    @dramatiq.actor(store_results=True)
    def do():
        pass

    monkeypatch.setattr(type(broker.app), "send_raw", send_and_remember)
    monkeypatch.setattr(type(broker.app), "ask", away_after_the_receipt)
    do.send()
    assert row(broker) == (1, 0, 0, 0)


def test_a_message_that_has_ended_before_enqueue_returns_runs_once(broker, work, monkeypatch):
    seen, send = [], type(broker.app).send_raw

    def send_and_wait(self, *args, **options):
        job = send(self, *args, **options)
        until(job.ready, "the job has ended")
        return job

    @dramatiq.actor(store_results=True)
    def do():
        seen.append(1)
        return len(seen)

    work()
    monkeypatch.setattr(type(broker.app), "send_raw", send_and_wait)
    sent = do.send()
    broker.join("default", timeout=LIMIT)
    assert sent.get_result() == len(seen) == 1


def test_an_option_eta_that_is_no_number_is_no_delay(broker, work):
    @dramatiq.actor(store_results=True)
    def do():
        return 1

    work()
    assert do.send_with_options(eta="soon").get_result(block=True, timeout=LIMIT) == 1


def test_a_name_of_a_queue_may_be_as_long_as_the_broker_allows(broker, work):
    length = 255 - len(broker.job_queue(""))

    @dramatiq.actor(queue_name="q" * length, store_results=True)
    def do():
        return 1

    work()
    assert do.send().get_result(block=True, timeout=LIMIT) == 1
    with pytest.raises(SettingsError, match="has a name of more than 255 characters"):
        broker.declare_queue("q" * (length + 1))


# Consumers


def test_a_consumer_holds_no_more_than_its_prefetch(broker, consume):
    for number in range(3):
        broker.enqueue(message(number))
    consumer = consume(prefetch=2, timeout=200)
    first, second = next(consumer), next(consumer)
    assert (next(consumer), row(broker)) == (None, (1, 0, 2, 0))
    consumer.ack(second)
    third = next(consumer)
    assert third.args == (2,)
    consumer.ack(first)
    consumer.ack(third)
    broker.join("default", timeout=LIMIT)


def test_a_message_wakes_a_waiting_consumer(broker, consume):
    consumer = consume(timeout=LIMIT)
    timer = threading.Timer(0.3, broker.enqueue, [message(1)])
    timer.start()
    began = time.monotonic()
    consumer.ack(next(consumer))
    timer.join()
    assert 0.3 <= time.monotonic() - began < 3.0


def test_a_requeued_message_comes_back_first(broker, consume):
    for number in range(3):
        broker.enqueue(message(number))
    consumer = consume(prefetch=2)
    consumer.requeue(iter([next(consumer), next(consumer)]))
    consumer.close()
    after = consume()
    received = next(after)
    assert (received.args, received.options) == ((0,), {})
    after.ack(received)


def test_what_a_closed_consumer_has_not_passed_on_is_handed_back(broker, consume):
    for number in range(3):
        broker.enqueue(message(number))
    first = consume(prefetch=3)
    held = next(first)
    first.close()
    second = consume(prefetch=3)
    again = [next(second), next(second)]
    assert [received.args for received in again] == [(1,), (2,)]
    second.ack(held)  # Dramatiq's worker asks its present consumer
    for received in again:
        second.ack(received)
    broker.join("default", timeout=LIMIT)
    assert row(broker) == (0, 0, 0, 0)


def test_a_rejected_message_is_a_failed_job(broker, consume):
    broker.enqueue(message(1))
    consumer = consume()
    received = next(consumer)
    received.stuff_exception(ValueError("no stock"))
    consumer.nack(received)
    until(lambda: dead(broker), "a dead letter")
    (job,) = dead(broker)
    info = broker.app.job(job["id"]).info()
    assert (info["error"].type, info["error"].message) == ("ValueError", "no stock")


def test_a_job_that_is_no_message_is_a_dead_letter(broker, consume):
    headers = {"task": "do", "content-type": "x"}
    job = broker.app.send_raw(broker.job_queue("default"), b"\xff", headers)
    assert next(consume()) is None
    until(lambda: job.state == "failed", "it failed")
    error = job.info()["error"]
    assert error.type == "dramatiq.errors.DecodeError"
    assert error.message.startswith("not a message of Dramatiq's encoder JSONEncoder: ")


def test_a_message_with_wrong_fields_is_a_dead_letter(broker, consume):
    body = dramatiq.get_encoder().encode({**message().asdict(), "options": None})
    job = broker.app.send_raw(broker.job_queue("default"), body, {"task": "do"})
    assert next(consume()) is None
    until(lambda: job.state == "failed", "it failed")


def test_a_message_is_answered_that_was_meant_for_another_queue(broker, work):
    @dramatiq.actor(store_results=True)
    def do():
        return 1

    job = broker.app.send_raw(
        broker.job_queue("default"), message(queue="other").encode(), {"task": "do"}
    )
    work()
    until(lambda: job.state == "succeeded", "it is acknowledged")


def test_a_queue_must_be_declared_to_be_consumed(broker):
    with pytest.raises(dramatiq.QueueNotFound):
        broker.consume("other")


def test_a_message_of_another_broker_is_not_answered(broker, consume):
    with pytest.raises(TypeError, match="was not delivered by an EventMQBroker"):
        consume().ack(dramatiq.MessageProxy(message()))


def test_a_pause_repeats_no_message(broker, work):
    started, go, seen = threading.Event(), threading.Event(), []

    @dramatiq.actor
    def do(number):
        started.set()
        go.wait(DEADLINE)
        seen.append(number)

    worker = work()
    for number in range(20):
        do.send(number)
    assert started.wait(DEADLINE)
    pause = threading.Thread(target=worker.pause)
    pause.start()
    until(lambda: all(each.paused for each in worker.workers), "the worker pauses")
    go.set()
    pause.join(DEADLINE)
    worker.resume()
    broker.join("default", timeout=LIMIT)
    assert sorted(seen) == list(range(20))


# Retries and dead letters


def test_a_retry_is_the_next_attempt_of_the_same_job(broker, work):
    seen = []

    @dramatiq.actor(store_results=True, min_backoff=10, max_backoff=20)
    def do(_):
        current = CurrentMessage.get_current_message()
        seen.append({**current.options, "attempt": current.delivery.attempt})
        if len(seen) < 3:
            raise ValueError(f"attempt {len(seen)}")
        return "done"

    sent = do.send_with_options(args=("x",), mark="kept")
    work()
    assert sent.get_result(block=True, timeout=LIMIT) == "done"
    assert [options["attempt"] for options in seen] == [1, 2, 3]
    assert [options.get("retries", 0) for options in seen] == [0, 1, 2]
    assert [options["mark"] for options in seen] == ["kept"] * 3
    assert seen[1]["requeue_timestamp"] <= seen[2]["requeue_timestamp"]
    assert "ValueError: attempt 2" in seen[2]["traceback"]
    (job,) = broker.app.ask("jobs", {"queue": broker.job_queue("default")})["jobs"]
    attempts = broker.app.ask("info", {"id": job["id"]})["attempts"]
    assert [decode_error(each["error"]).message for each in attempts] == ["attempt 1", "attempt 2"]


def test_exhausted_retries_are_a_dead_letter_that_can_be_retried(broker, work):
    healed = threading.Event()

    @dramatiq.actor(store_results=True, max_retries=1, min_backoff=10, max_backoff=10)
    def do():
        if not healed.is_set():
            raise ZeroDivisionError("by night")
        return CurrentMessage.get_current_message().options["retries"]

    sent = do.send()
    work()
    with pytest.raises(ResultFailure, match="actor raised ZeroDivisionError: by night") as failed:
        sent.get_result(block=True, timeout=LIMIT)
    assert failed.value.orig_exc_type == "ZeroDivisionError"
    (job,) = dead(broker)
    assert job["attempt"] == 2
    healed.set()
    broker.app.ask("retry", {"ids": [job["id"]]})
    assert sent.get_result(block=True, timeout=LIMIT) == 2
    assert dead(broker) == []


class Unshown(Exception):
    def __str__(self):
        raise RuntimeError


def test_an_exception_without_readable_text_ends_its_message(broker, work):
    @dramatiq.actor(store_results=True, max_retries=1, min_backoff=10, max_backoff=10)
    def do():
        raise Unshown

    sent = do.send()
    work()
    text = re.escape("Unshown: Unshown (its text cannot be shown)")
    with pytest.raises(ResultFailure, match=text):
        sent.get_result(block=True, timeout=LIMIT)
    (job,) = dead(broker)
    assert job["attempt"] == 2


def test_the_error_of_a_message_is_unicode(broker):
    broker.declare_queue("mail")
    message = dramatiq.Message("mail", "do", (), {}, {})
    delivery = Delivery("id", "dramatiq.mail", "", b"", 1, 1, 1, 0)
    delivered = DeliveredMessage(message, broker.consume("mail"), delivery)
    delivered.stuff_exception(OSError("file \udc80"))
    error = delivered.error()
    assert (error.type, error.message) == ("OSError", "file ?")


def test_options_that_cannot_be_encoded_do_not_stop_a_retry(broker, work, caplog):
    class Marking(Middleware):
        def before_process_message(self, broker, message):
            message.options["mark"] = object()

    broker.add_middleware(Marking())

    @dramatiq.actor(store_results=True, min_backoff=10, max_backoff=10)
    def do():
        retries = CurrentMessage.get_current_message().options.get("retries", 0)
        if not retries:
            raise ValueError
        return retries

    sent = do.send()
    work()
    assert sent.get_result(block=True, timeout=LIMIT) == 1
    assert "cannot be encoded, and are not kept" in caplog.text


def test_options_that_cannot_be_decoded_do_not_stop_a_retry(broker, consume, monkeypatch, caplog):
    broker.enqueue(message())
    consumer = consume()
    received = next(consumer)
    received.options["retries"] = 1
    broker.enqueue(received, delay=1)
    consumer.ack(received)
    decode, seen = dramatiq.get_encoder().decode, []

    def decode_first(data):
        seen.append(data)
        if len(seen) > 1:
            raise ValueError("a key that was replaced")
        return decode(data)

    monkeypatch.setattr(dramatiq.get_encoder(), "decode", decode_first)
    again = next(consumer)
    assert (len(seen), again.options) == (2, {"retries": 1})
    assert "left are not known: a key that was replaced" in caplog.text
    consumer.ack(again)


def test_a_message_of_an_unknown_actor_is_a_dead_letter(broker, work):
    broker.declare_queue("default")
    work()
    broker.enqueue(message(actor="unknown"))
    until(lambda: dead(broker), "a dead letter")
    error = broker.app.job(dead(broker)[0]["id"]).info()["error"]
    assert (error.type, error.message) == ("dramatiq.errors.ActorNotFound", "unknown")


def test_a_message_that_fails_after_its_retry_was_decided_does_both(broker, work):
    class Failing(Middleware):
        def after_process_message(self, broker, message, *, result=None, exception=None):
            if exception is not None:
                message.fail()

    # The signal goes through the middleware from the last to the first.
    broker.add_middleware(Failing(), before=type(broker.middleware[0]))
    seen = []

    @dramatiq.actor(min_backoff=10, max_backoff=10)
    def do():
        seen.append(CurrentMessage.get_current_message().options.get("retries", 0))
        if len(seen) == 1:
            raise ValueError

    do.send()
    work()
    until(lambda: len(seen) == 2, "the retry")
    broker.join("default", timeout=LIMIT)
    assert (seen, len(dead(broker))) == ([0, 1], 1)


# Looking and waiting


def test_flush_drops_waiting_delayed_and_dead_messages(broker, consume):
    consumer = consume()
    broker.enqueue(message(0))
    consumer.nack(next(consumer))
    until(lambda: dead(broker), "a dead letter")
    consumer.close()
    broker.enqueue(message(1))
    broker.enqueue(message(2), delay=60_000)
    broker.declare_queue("never_used")
    broker.flush_all()
    assert row(broker) == (0, 0, 0, 0)
    assert dead(broker) == []


def test_join_waits_for_delayed_messages_up_to_its_timeout(broker):
    broker.enqueue(message(1), delay=60_000)
    with pytest.raises(dramatiq.QueueJoinTimeout):
        broker.join("default", timeout=100)


def test_a_broker_that_is_not_there_is_a_closed_connection():
    with EventMQ(broker="tcp://127.0.0.1:1", submit_timeout=0.2) as app:
        broker = EventMQBroker(app=app)
        with pytest.raises(dramatiq.ConnectionClosed):
            broker.enqueue(message())


def test_an_address_is_a_url_or_that_of_an_app():
    with pytest.raises(ValueError, match="give either url or app"):
        EventMQBroker(url="tcp://127.0.0.1:1", app=EventMQ())
    with pytest.raises(SettingsError, match="can connect to, not memory://"):
        EventMQBroker(url="memory://")
    broker = EventMQBroker(url="eventmq://127.0.0.1:1", namespace="")
    assert list(broker.app.settings.broker) == ["tcp://127.0.0.1:1"]
    assert broker.job_queue("mail.DQ") == "mail"
    broker.close()


# Results


def test_a_result_is_missing_or_late_until_it_is_there(broker, work):
    go = threading.Event()

    @dramatiq.actor(store_results=True)
    def do():
        go.wait(DEADLINE)
        return {"a": [1, None]}

    unsent = do.message()
    with pytest.raises(ResultMissing):
        unsent.get_result()
    with pytest.raises(ResultTimeout):
        unsent.get_result(block=True, timeout=50)
    sent = do.send()
    work()
    with pytest.raises(ResultMissing):
        sent.get_result()
    with pytest.raises(ResultTimeout):
        sent.get_result(block=True, timeout=150)
    go.set()
    assert sent.get_result(block=True, timeout=LIMIT) == {"a": [1, None]}
    alike = dramatiq.Message("default", "do", (), {}, {}, message_id=sent.message_id)
    assert alike.get_result() == {"a": [1, None]}


def test_the_results_of_a_pipeline_come_one_after_the_other(broker, work):
    @dramatiq.actor(store_results=True)
    def add(x, y):
        return x + y

    pipe = dramatiq.pipeline([add.message(1, 2), add.message(3), add.message(4)]).run()
    work()
    assert pipe.get_result(block=True, timeout=LIMIT) == 10
    assert list(pipe.get_results(block=True, timeout=LIMIT)) == [3, 6, 10]


def test_a_flushed_message_has_no_result(broker):
    @dramatiq.actor(store_results=True)
    def do(): ...

    sent = do.send()
    broker.flush("default")
    with pytest.raises(ResultFailure, match="flushed") as failed:
        sent.get_result(block=True, timeout=LIMIT)
    assert failed.value.orig_exc_type == "JobCancelled"


def test_a_result_that_is_too_large_says_so(broker, work):
    size = broker.app.settings.max_frame

    @dramatiq.actor(store_results=True)
    def do():
        return "x" * size

    sent = do.send()
    work()
    with pytest.raises(ResultFailure, match=f"the result has {size + 2} bytes; the limit is"):
        sent.get_result(block=True, timeout=LIMIT)


def test_results_of_other_messages_are_refused(broker):
    backend = EventMQBackend(broker.app)
    with pytest.raises(TypeError, match="was not delivered by an EventMQBroker"):
        backend.store_result(dramatiq.MessageProxy(message()), 1, 1000)


def test_a_result_is_waited_for_until_the_timeout(broker):
    began = time.monotonic()
    with pytest.raises(ResultTimeout):
        message().get_result(block=True, timeout=900)
    assert time.monotonic() - began >= 0.9


def test_a_result_that_is_not_encoded_as_bytes_does_not_stop_its_message(broker, work):
    class Text(dramatiq.JSONEncoder):
        def encode(self, data):
            return super().encode(data).decode()

    broker.get_results_backend().encoder = Text()

    @dramatiq.actor(store_results=True)
    def do():
        return 1

    do.send()
    work()
    broker.join("default", timeout=LIMIT)
    assert row(broker) == (0, 0, 0, 0)


def test_a_client_that_does_not_declare_the_actor_gets_its_result(broker, work):
    client = EventMQBroker(app=broker.app, namespace=broker.namespace)
    client.add_middleware(Results(backend=EventMQBackend(client.app)))

    @dramatiq.actor(store_results=True)
    def do():
        return 1

    @dramatiq.actor
    def forget(): ...

    work()
    options = {"backend": client.get_results_backend(), "block": True, "timeout": LIMIT}
    assert client.enqueue(message()).get_result(**options) == 1
    with pytest.raises(ResultMissing):
        client.enqueue(message(actor="forget")).get_result(**options)


# Processes


def test_a_forked_child_sends_messages_and_leaves_those_of_its_parent(broker, consume):
    broker.enqueue(message("before"))
    consumer = consume(prefetch=2)
    held = next(consumer)
    pid = os.fork()
    if not pid:
        try:
            broker.enqueue(message("child"))
            consumer.ack(held)
        finally:
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    received = next(consumer)
    assert (received.args, row(broker)) == (("child",), (0, 0, 2, 0))
    for each in (held, received):
        consumer.ack(each)
    broker.join("default", timeout=LIMIT)


def test_a_consumer_goes_on_after_a_restart_of_the_broker(tmp_path):
    system = System(tmp_path)
    process = system.broker()
    broker = EventMQBroker(app=system.app())
    broker.declare_queue("default")
    try:
        for number in range(2):
            broker.enqueue(message(number))
        consumer = broker.consume("default", 1, LIMIT)
        held = next(consumer)
        process.kill9()
        system.broker()
        consumer.ack(held)
        received = next(consumer)
        assert (held.args, received.args) == ((0,), (1,))
        consumer.ack(received)
        broker.join("default", timeout=LIMIT)
    finally:
        broker.close()
        system.stop()


@pytest.mark.timeout(120)
def test_kills_of_workers_and_broker_lose_nothing(tmp_path):
    outcome = run(tmp_path, messages=200, kills=2, deadline=DEADLINE)
    assert (outcome.lost, outcome.failed) == ([], 0)
