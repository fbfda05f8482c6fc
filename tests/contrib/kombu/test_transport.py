"""The transport as kombu's users see it: queues, exchanges, acknowledgements."""

from __future__ import annotations

import contextlib
import select
import signal
import subprocess
import sys
import threading
import time
from uuid import uuid4

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.exceptions import ChannelError, OperationalError
from kombu.utils.url import parse_url

from eventmq.sdk import pack
from eventmq_contrib.kombu import Transport
from eventmq_contrib.kombu.apps import app_of
from tests.support.system import DEADLINE, until


@pytest.fixture
def queue():
    return Queue(uuid4().hex)


def eventmq_of(connection):
    return connection.transport.app


def publish(connection, body, queue, **options):
    Producer(connection.default_channel).publish(
        body, exchange="", routing_key=queue.name, **options
    )


def row(connection, queue):
    rows = eventmq_of(connection).ask("queues")
    return next(row for row in rows if row["name"] == queue.name)


def consumers():
    return [thread for thread in threading.enumerate() if thread.name == "eventmq-consumer"]


class Taker:
    """Consumes a queue and keeps the messages."""

    def __init__(self, connection, *queues, prefetch=0, **options):
        self.connection = connection
        self.channel = connection.channel()
        self.channel.basic_qos(0, prefetch, False)
        self.messages = []
        self.consumer = Consumer(
            self.channel,
            queues,
            on_message=self.messages.append,
            accept=["json", "text/plain"],
            **options,
        )
        self.consumer.consume()

    def take(self, count=1):
        while len(self.messages) < count:
            self.connection.drain_events(timeout=DEADLINE)
        taken, self.messages[:] = self.messages[:count], self.messages[count:]
        return taken

    def nothing(self):
        with contextlib.suppress(TimeoutError):
            while True:  # a delivery without a consumer is an event as well
                self.connection.drain_events(timeout=0.2)
        return not self.messages


def test_messages_are_acknowledged_rejected_and_requeued_one_by_one(connection, queue):
    for number in range(3):
        publish(connection, {"n": number}, queue, headers={"x": number}, priority=0)
    taker = Taker(connection, queue, prefetch=3)
    first, second, third = taker.take(3)
    assert [(0, 0), (1, 1), (2, 2)] == [(m.payload["n"], m.headers["x"]) for m in
                                        (first, second, third)]  # fmt: skip
    assert not first.delivery_info["redelivered"]
    third.ack()
    second.reject()
    first.requeue()
    (again,) = taker.take()
    assert again.payload == {"n": 0}
    assert again.delivery_info["redelivered"]
    again.ack()

    def counts():
        return [row(connection, queue)[name] for name in ("failed", "waiting", "running")]

    until(lambda: counts() == [1, 0, 0], "the rejected one is kept, the others have ended")


def test_properties_that_amqp_has_not_are_left_out(connection, queue):
    publish(connection, 1, queue, reply_to="me", correlation_id="7", signal=object())
    (message,) = Taker(connection, queue).take()
    assert (message.properties["reply_to"], message.properties["correlation_id"]) == ("me", "7")
    assert "signal" not in message.properties


def test_a_prefetch_limits_what_is_unacknowledged_and_can_change(connection, queue):
    for number in range(4):
        publish(connection, number, queue)
    taker = Taker(connection, queue, prefetch=1)
    (message,) = taker.take()
    assert taker.nothing()
    message.ack()
    taker.take()
    taker.channel.basic_qos(0, 3, False)
    assert [2, 3] == [message.payload for message in taker.take(2)]


def test_ack_multiple_and_recover(connection, queue):
    for number in range(3):
        publish(connection, number, queue)
    taker = Taker(connection, queue)
    messages = taker.take(3)
    messages[1].ack(multiple=True)
    taker.channel.basic_recover(requeue=True)
    (again,) = taker.take()
    assert again.payload == 2
    assert taker.nothing()


def test_a_closed_channel_and_a_cancelled_consumer_return_messages(connection, url, queue):
    publish(connection, 1, queue)
    with Connection(url) as other:
        taker = Taker(other, queue)
        taker.take()
        taker.consumer.cancel()
        publish(connection, 2, queue)
        assert taker.nothing()
    taker = Taker(connection, queue)
    assert {1, 2} == {message.payload for message in taker.take(2)}


def test_higher_priorities_come_first(connection, queue):
    for priority in (0, 9, 5):
        publish(connection, priority, queue, priority=priority)
    taker = Taker(connection, queue, prefetch=1)
    seen = []
    for _ in range(3):
        (message,) = taker.take()
        seen.append(message.payload)
        message.ack()
    assert seen == [9, 5, 0]


def test_exchanges_route_to_durable_queues(connection):
    name = uuid4().hex
    direct, topic, fanout = (Exchange(f"{name}.{kind}", kind) for kind in
                             ("direct", "topic", "fanout"))  # fmt: skip
    one = Queue(f"{name}.1", exchange=direct, routing_key="one")
    some = Queue(f"{name}.2", exchange=topic, routing_key="a.*")
    all_ = Queue(f"{name}.3", exchange=fanout)
    also = Queue(f"{name}.4", exchange=fanout)
    taker = Taker(connection, one, some, all_, also)
    producer = Producer(connection.default_channel)
    producer.publish(1, exchange=direct, routing_key="one")
    producer.publish(2, exchange=direct, routing_key="two")
    producer.publish(3, exchange=topic, routing_key="a.b")
    producer.publish(4, exchange=topic, routing_key="b.a")
    producer.publish(5, exchange=fanout)
    assert sorted(message.payload for message in taker.take(4)) == [1, 3, 5, 5]
    assert taker.nothing()


def test_an_exchange_routes_for_a_process_that_has_not_bound_its_queues(connection, url):
    """What one process binds and unbinds is known to others after two seconds."""
    name = uuid4().hex
    exchange = Exchange(f"{name}.topic", "topic")
    queue = Queue(f"{name}.1", exchange=exchange, routing_key="a.*")
    code = f"""
import sys
from kombu import Connection, Exchange, Queue
import eventmq_contrib.kombu
queue = Queue({queue.name!r}, Exchange({exchange.name!r}, "topic"), routing_key="a.*")
bound = queue(Connection({url!r}).default_channel)
bound.declare()
if "unbind" in sys.argv:
    bound.unbind_from(queue.exchange, "a.*")
"""
    producer = Producer(connection.default_channel)

    bindings = connection.default_channel.connection.bindings

    def publish_from(*argv):
        subprocess.run([sys.executable, "-c", code, *argv], check=True)
        is_bound = "unbind" not in argv
        until(lambda: bool(bindings.table(exchange.name)) == is_bound, "the change is known here")
        producer.publish(1, exchange=exchange, routing_key="a.b", declare=[exchange])

    publish_from()
    assert row(connection, queue)["waiting"] == 1
    publish_from()  # binding again changes nothing
    assert row(connection, queue)["waiting"] == 2
    publish_from("unbind")
    assert row(connection, queue)["waiting"] == 2


def test_a_queue_that_lasts_takes_nothing_from_those_of_connections(connection, url):
    """As a collector of events beside ``celery events``."""
    exchange = Exchange(uuid4().hex, "topic")
    lasting = Queue(f"{exchange.name}.1", exchange, routing_key="#")
    monitor = Queue(f"{exchange.name}.2", exchange, routing_key="#", auto_delete=True)
    lasting(connection.default_channel).declare()
    with Connection(url) as other:
        taker = Taker(other, monitor, no_ack=True)
        Producer(connection.default_channel).publish(1, exchange=exchange, routing_key="task.sent")
        assert [1] == [message.payload for message in taker.take()]
    assert row(connection, lasting)["waiting"] == 1


def test_queues_of_a_connection_get_what_others_publish(connection, url):
    """As remote control and events: nothing is stored, and each subscriber gets a copy."""
    name = uuid4().hex
    exchanges = [Exchange(f"{name}.{k}", k, durable=False) for k in ("fanout", "topic", "direct")]
    with Connection(url) as other:
        takers = [
            Taker(where, *(Queue(f"{name}.{n}.{e.type}", e, "a.#" if e.type == "topic" else "a.b",
                                 auto_delete=True) for e in exchanges), no_ack=True)
            for n, where in enumerate([connection, other])
        ]  # fmt: skip
        with Connection(url) as third:
            producer = Producer(third.default_channel)
            for exchange in exchanges:
                for key in ("a.b", "b"):
                    producer.publish(key, exchange=exchange, routing_key=key, declare=[exchange])
        for taker in takers:
            assert sorted(message.payload for message in taker.take(4)) == [
                "a.b",
                "a.b",
                "a.b",
                "b",
            ]
            assert taker.nothing()
    assert not [row for row in eventmq_of(connection).ask("queues") if name in row["name"]]


def test_simple_queues_get_count_and_purge(connection, queue):
    bound = queue(connection.default_channel)
    assert bound.get() is None
    for number in range(3):
        publish(connection, number, queue)
    message = bound.get()
    assert message.payload == 0
    assert bound.queue_declare(passive=True).message_count == 2
    assert bound.purge() == 2
    message.requeue()
    until(lambda: bound.queue_declare(passive=True).message_count == 1, "it is back")
    assert bound.get(no_ack=True).payload == 0
    with pytest.raises(ChannelError, match="no queue 'nothing'"):
        connection.default_channel.queue_declare("nothing", passive=True)


def test_single_messages_leave_no_consumer_behind(connection, queue):
    bound = queue(connection.default_channel)
    for number in range(20):
        publish(connection, number, queue)
    taken = [bound.get(no_ack=number < 2) for number in range(20)]
    assert [message.payload for message in taken] == list(range(20))
    for number, message in enumerate(taken[2:]):
        if number % 2:
            message.ack()
        else:
            message.reject()
    until(lambda: not consumers(), "all have ended")
    assert row(connection, queue)["failed"] == 9
    assert row(connection, queue)["waiting"] == row(connection, queue)["running"] == 0


def test_the_answer_of_a_single_message_outlives_a_restart_of_the_broker(connection, queue, system):
    bound = queue(connection.default_channel)
    publish(connection, 1, queue)
    message = bound.get()
    next(process for process in system.processes if process.poll() is None).kill9()
    began = time.monotonic()
    message.ack()
    assert time.monotonic() - began < 4  # it is not waited for
    system.broker()
    until(lambda: not consumers(), "the broker has confirmed it")
    assert row(connection, queue)["waiting"] == row(connection, queue)["running"] == 0


@pytest.mark.parametrize("options", [{"auto_delete": True}, {"exclusive": True}])
def test_a_queue_of_a_connection_gets_what_is_sent_by_its_name(connection, url, options):
    """As ``apply_async(queue=...)`` of Celery does for every queue of a direct exchange."""
    name = uuid4().hex
    queue = Queue(name, Exchange(f"{name}.direct"), routing_key="a", **options)
    taker = Taker(connection, queue)
    with Connection(url) as other:
        publish(other, 1, queue)
        producer = Producer(other.default_channel)
        producer.publish(2, exchange=queue.exchange, routing_key="a", declare=[queue.exchange])
    assert sorted(message.payload for message in taker.take(2)) == [1, 2]
    taker.consumer.cancel()
    publish(connection, 3, queue)
    assert taker.nothing()


def test_a_queue_is_deleted_while_another_thread_declares_exchanges(connection, queue, monkeypatch):
    channel = connection.default_channel
    Exchange(queue.name)(channel).declare()
    table = channel.get_table

    def declares(exchange):
        Exchange(uuid4().hex)(channel).declare()
        return table(exchange)

    monkeypatch.setattr(channel, "get_table", declares)
    channel.queue_delete(queue.name)


def test_an_eta_is_kept_by_the_broker(connection, queue):
    eta = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(time.time() + 2))
    publish(connection, 1, queue, headers={"task": "later", "eta": eta})
    publish(connection, 2, queue, headers={"task": "now", "eta": None})
    taker = Taker(connection, queue)
    assert [2] == [message.payload for message in taker.take()]
    assert row(connection, queue)["delayed"] == 1
    assert [1] == [message.payload for message in taker.take()]


def test_a_worker_can_keep_an_eta(url, queue):
    with Connection(url, transport_options={"eta_in_broker": False}) as connection:
        publish(connection, 1, queue, headers={"task": "later", "eta": "2100-01-01T00:00:00Z"})
        taker = Taker(connection, queue)
        taker.take()[0].ack()


def test_the_descriptor_of_an_event_loop_is_readable_only_with_messages(connection, queue):
    taker = Taker(connection, queue)
    fd = connection.transport.inbox.fileno()
    assert taker.nothing()
    assert select.select([fd], [], [], 0)[0] == []
    for number in range(150):
        publish(connection, number, queue)
    assert select.select([fd], [], [], DEADLINE)[0] == [fd]
    until(lambda: row(connection, queue)["running"] == 150, "all are delivered")
    while select.select([fd], [], [], 0.2)[0]:
        connection.transport.on_readable(connection.connection, None)
    assert len(taker.messages) == 150


def test_jobs_that_are_no_messages_fail_with_a_reason(connection, queue, caplog):
    app = eventmq_of(connection)
    app.send_raw(queue.name, b"text", {"task": "other"})
    app.send_raw(queue.name, pack([2, "{}", True, b""]), {"task": "later", "content-type": "json"})
    publish(connection, 1, queue)
    taker = Taker(connection, queue)
    assert [1] == [message.payload for message in taker.take()]
    until(lambda: row(connection, queue)["failed"] == 2, "both are kept")
    assert "a message is not" in caplog.text
    assert "the message has format 2, and this worker reads 1: it is too old" in caplog.text


def test_options_without_effect_are_named(url, connection, queue, caplog):
    app_of([parse_url("eventmq://127.0.0.1:1")], {"visibility_timeout": 5})
    assert "the transport option 'visibility_timeout' has no effect with EventMQ" in caplog.text
    limited = Queue(queue.name, queue_arguments={"x-max-length": 5})
    limited(connection.default_channel).declare()
    assert f"argument 'x-max-length' of queue '{queue.name}' has no effect" in caplog.text


@pytest.mark.parametrize(
    ("address", "reason"),
    [("eventmq://me:secret@host", "no user and no password"), ("eventmq://host/v", "virtual host")],
)
def test_parts_of_a_url_without_meaning_are_refused(address, reason):
    with pytest.raises(ValueError, match=reason):
        _ = Connection(address).transport


def test_a_connection_closes_within_a_bound_while_the_broker_is_silent(url, system, queue):
    """Celery's test_connection_recovery asks that of Redis: 20 s for a worker that reconnects."""
    connection = Connection(url)
    publish(connection, 1, queue)
    taker = Taker(connection, queue)
    assert [1] == [message.payload for message in taker.take()]
    broker = next(process for process in system.processes if process.poll() is None)
    broker.freeze()
    began = time.monotonic()
    try:
        connection.close()
    finally:
        broker.send_signal(signal.SIGCONT)
    assert time.monotonic() - began < 20
    with Connection(url) as connection:
        (message,) = Taker(connection, queue).take()
        assert message.payload == 1


@pytest.mark.parametrize("second", ["eventmq://127.0.0.1:1", ""])
def test_a_list_of_brokers_uses_the_one_that_answers(url, queue, second):
    brokers = f"{url};{second}" if second else f"eventmq://127.0.0.1:1;{url}"
    with Connection(brokers) as connection:
        publish(connection, 1, queue)
        assert Taker(connection, queue).take()[0].payload == 1
        assert len(eventmq_of(connection).settings.broker) == 2


def test_a_list_of_brokers_is_that_of_its_copies(url):
    with Connection(f"{url};eventmq://127.0.0.1:1") as connection:
        connection.maybe_switch_next()
        connection.maybe_switch_next()
        copy = connection.clone()
        others = Connection(url, alternates=["eventmq://127.0.0.1:1"])
        apps = [eventmq_of(each) for each in (connection, copy)]
        assert apps[0] is apps[1]
        assert set(eventmq_of(others).settings.broker) == set(apps[0].settings.broker)


@pytest.mark.parametrize(
    "other", ["amqp://guest:guest@127.0.0.1//", "redis://127.0.0.1/0", "memory://"]
)
def test_other_kinds_of_brokers_in_a_list_are_not_of_eventmq(url, other):
    with Connection(f"{url};{other}") as connection:
        (address,) = eventmq_of(connection).settings.broker
        assert address == url.replace("eventmq://", "tcp://")


def test_a_broker_that_is_away_is_a_connection_error():
    options = {"submit_timeout": 0.2}
    with (
        Connection("eventmq://127.0.0.1:9", transport_options=options) as connection,
        pytest.raises(OperationalError),
    ):
        connection.ensure_connection(max_retries=1, interval_start=0)
    assert issubclass(Transport.connection_errors[0], Exception)
