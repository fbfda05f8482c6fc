"""The gateway ``majordomo`` with real brokers, workers and sockets."""

from __future__ import annotations

import asyncio
import os
import queue
import random
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from eventmq.errors import (
    BrokerUnavailable,
    JobNotFound,
    NotAllowed,
    PluginError,
    TimeLimitExceeded,
)
from eventmq.gateway import Consumer
from eventmq.registry.names import GATEWAY
from eventmq_contrib.gateways.emp import EmpClient
from eventmq_contrib.gateways.majordomo.gateway import MajordomoGateway
from eventmq_contrib.gateways.majordomo.machine import MajordomoMachine
from tests.contrib.gateways.majordomo_peers import NAME, answer, ask, final, next_request, register
from tests.contrib.gateways.raw_dealer import DEADLINE
from tests.contrib.gateways.raw_emp import split
from tests.support.fuzz import GROWTH, MESSAGES, endless, rss

EXAMPLES = Path(__file__).parents[4] / "examples"


def test_a_request_goes_to_a_worker_and_back(farm, dealer):
    """The frames are kept apart, empty ones too; parts come before the end."""
    _, (front, back) = farm.gateway()
    client = dealer(front, b"me")
    ask(client, "echo", b"id-1", b"a", b"", b"\xff")
    worker = register(dealer, back, "echo")
    address, id, body = next_request(worker)
    assert (b"me", b"id-1", [b"a", b"", b"\xff"]) == (address, id, body)
    answer(worker, b"\x03", address, id, [b"part"])
    answer(worker, b"\x04", address, id, [b"r", b""])
    assert [b"MDPC02", b"\x02", b"echo", b"id-1", b"part"] == client.next()
    assert final("echo", b"id-1", b"r", b"") == client.next()


def test_a_request_is_answered_by_the_next_owner_of_a_shared_store(shop, dealer):
    """Gateway and brokers continue with the jobs of the worker, and with the waiting client."""
    app = shop.app(shop.broker(), shop.broker())
    gateway = app.plugins.make(GATEWAY, "majordomo", options={"bind": "tcp://127.0.0.1:0"})
    front, back = gateway.start()
    try:
        client = dealer(front, b"me")
        ask(client, "echo", b"1", b"a")
        worker = register(dealer, back, "echo")
        address, id, body = next_request(worker)
        shop.stop_owner()
        answer(worker, b"\x04", address, id, body)
        assert final("echo", b"1", b"a") == client.next()
        ask(client, "echo", b"2", b"b")
        address, id, body = next_request(worker)
        answer(worker, b"\x04", address, id, body)
        assert final("echo", b"2", b"b") == client.next()
    finally:
        gateway.stop(0.0)


def test_a_client_with_a_req_socket_and_a_worker_of_a_common_library(farm, dealer, context):
    """Both put an empty frame first, and expect one in received messages."""
    _, (front, back) = farm.gateway()
    worker = dealer(back)
    worker.send(b"", NAME, b"\x01", "echo")
    with context.socket(zmq.REQ) as client:
        client.linger = 0
        client.connect(front)
        client.send_multipart([b"MDPC02", b"\x01", b"echo", b"1", b"x"])
        empty, name, kind, *rest = worker.next()
        assert (b"", NAME, b"\x02") == (empty, name, kind)
        address, envelope, id, body = rest
        assert (b"", b"1", b"x") == (envelope, id, body)
        worker.send(b"", NAME, b"\x04", address, b"", id, b"r")
        assert client.poll(DEADLINE * 1000)
        assert final("echo", b"1", b"r") == client.recv_multipart()
        worker.send(b"", NAME, b"PING")
        assert [b"", NAME, b"PONG"] == worker.next()


def test_a_restarted_gateway_answers_a_req_socket_in_its_form(farm, dealer, context):
    gateway, (front, back) = farm.gateway()
    with context.socket(zmq.REQ) as client:
        client.linger = 0
        client.identity = b"me"
        client.connect(front)
        client.send_multipart([b"MDPC02", b"\x01", b"echo", b"1", b"x"])
        worker = register(dealer, back, "echo")
        next_request(worker)
        worker.close()
        gateway.stop(0.0)
        _, (_, back) = farm.gateway(bind=front)
        worker = register(dealer, back, "echo")
        address, id, _ = next_request(worker)
        answer(worker, b"\x04", address, id, [b"r"])
        assert client.poll(DEADLINE * 1000)
        assert final("echo", b"1", b"r") == client.recv_multipart()


def test_whether_a_service_is_there(farm, dealer):
    """A worker of the draft, workers of EventMQ, and no worker (ZeroMQ RFC 8)."""

    @farm.app.task(majordomo="turn")
    def turn(frames):
        return frames[::-1]

    farm.work("turn")
    _, (front, back) = farm.gateway()
    client, worker = dealer(front), register(dealer, back, "echo")
    job = farm.app.send_raw("echo", [b"x"])
    next_request(worker)
    for number, (service, code) in enumerate([("echo", b"200"), ("turn", b"200"), ("no", b"404")]):
        ask(client, "mmi.service", b"%d" % number, service)
        assert final("mmi.service", b"%d" % number, code) == client.next()
    assert "running" == job.state


def test_a_task_of_ours_answers_requests(farm, dealer):
    @farm.app.task(majordomo="turn")
    def turn(frames):
        return frames[::-1]

    farm.work("turn")
    _, (front, _) = farm.gateway()
    client = dealer(front)
    for number in range(20):
        ask(client, "turn", b"%d" % number, b"a", b"%d" % number)
    replies = [client.next() for _ in range(20)]
    expected = [final("turn", b"%d" % n, b"%d" % n, b"a") for n in range(20)]
    assert sorted(expected) == sorted(replies)


def test_what_a_task_of_ours_yields_are_partials(farm, dealer):
    """And its return value is the FINAL; one that fails in the middle has an error as its FINAL."""

    @farm.app.task(majordomo="count")
    def count(frames):
        for frame in frames:
            if frame == b"fail":
                raise ValueError("no")
            yield [b"part", frame]
        return b"end"

    farm.work("count")
    _, (front, _) = farm.gateway()
    client = dealer(front)
    ask(client, "count", b"1", b"a", b"", b"c")
    for part in (b"a", b"", b"c"):
        assert [b"MDPC02", b"\x02", b"count", b"1", b"part", part] == client.next()
    assert final("count", b"1", b"end") == client.next()
    ask(client, "count", b"2", b"x", b"fail")
    assert [b"MDPC02", b"\x02", b"count", b"2", b"part", b"x"] == client.next()
    assert final("count", b"2", b"", b"ERROR", b"failed") == client.next()[:7]


def test_the_parts_of_a_service_reach_whoever_streams_its_job(farm):
    @farm.app.task(majordomo="count")
    def count(frames):
        yield from frames

    farm.work("count")
    job = farm.app.send_raw("count", [b"a", b"b"])
    assert [[b"a"], [b"b"]] == list(job.stream(timeout=DEADLINE))
    assert [] == job.get(timeout=DEADLINE)


def test_a_job_of_an_app_is_done_by_a_foreign_worker(farm, dealer):
    _, (_, back) = farm.gateway()
    worker = register(dealer, back, "echo")
    job = farm.app.send_raw("echo", [b"a", b"b"])
    client, id, body = next_request(worker)
    assert [b"a", b"b"] == body
    answer(worker, b"\x04", client, id, [b"r1", b"r2"])
    assert [b"r1", b"r2"] == job.get(timeout=DEADLINE)


def test_only_jobs_of_frames_are_offered_to_foreign_workers(farm, dealer):
    """A task's job in the same queue waits for a worker of EventMQ."""
    _, (_, back) = farm.gateway()
    worker = register(dealer, back, "echo")
    other = farm.app.send("some.task", (1,), queue="echo")
    farm.app.send_raw("echo", b"raw", {"content-type": "msgpack", "task": "x"})
    farm.app.send_raw("echo", [b"mine"])
    assert [b"mine"] == next_request(worker)[2]
    assert "queued" == other.state


def test_a_repeat_joins_the_first_also_when_it_is_done(farm, dealer):
    _, (front, back) = farm.gateway()
    client, worker = dealer(front, b"me"), register(dealer, back, "echo")
    for _ in range(2):
        ask(client, "echo", b"1", b"x")
    address, id, _ = next_request(worker)
    answer(worker, b"\x04", address, id, [b"once"])
    assert final("echo", b"1", b"once") == client.next()
    ask(client, "echo", b"1", b"x")
    assert final("echo", b"1", b"once") == client.next()
    worker.send(NAME, b"PING")
    assert [NAME, b"PONG"] == worker.next()


def test_a_dead_workers_request_goes_to_another(farm, dealer):
    _, (front, back) = farm.gateway(dead=0.5)
    client, worker = dealer(front), register(dealer, back, "echo")
    ask(client, "echo", b"1", b"x")
    next_request(worker)
    other = register(dealer, back, "echo")
    stop = threading.Event()
    with ExitStack() as stack:
        replies = []

        def live():
            while not stop.wait(0.1):
                other.send(NAME, b"PING")
                while (frames := other.next(0.01)) is not None:
                    if frames[1] == b"\x02":
                        replies.append(frames)
                        answer(other, b"\x04", frames[2], frames[4], [b"done"])

        thread = threading.Thread(target=live)
        stack.callback(thread.join, DEADLINE)
        stack.callback(stop.set)
        thread.start()
        assert final("echo", b"1", b"done") == client.next()
    assert 1 == len(replies)


def test_a_worker_that_leaves_gives_its_request_back(farm, dealer):
    _, (front, back) = farm.gateway()
    client, worker = dealer(front), register(dealer, back, "echo")
    ask(client, "echo", b"1", b"x")
    next_request(worker)
    worker.send(NAME, b"\x06")
    other = register(dealer, back, "echo")
    address, id, body = next_request(other)
    answer(other, b"\x04", address, id, body)
    assert final("echo", b"1", b"x") == client.next()


def test_a_failed_job_is_a_final_with_the_error(farm, dealer):
    """The draft has no errors: an empty frame, ERROR, a code and a text."""

    @farm.app.task(majordomo="fail")
    def fail(frames):
        raise ValueError("no")

    farm.work("fail")
    _, (front, _) = farm.gateway()
    client = dealer(front)
    ask(client, "fail", b"1", b"x")
    frames = client.next()
    assert [b"MDPC02", b"\x03", b"fail", b"1", b"", b"ERROR", b"failed"] == frames[:7]
    assert b"ValueError: no" in frames[7]


def test_a_job_over_its_time_limit_fails_and_its_worker_is_sent_away(farm, dealer):
    """The draft cannot cancel a request; a late FINAL is ignored."""
    _, (_, back) = farm.gateway()
    worker = register(dealer, back, "echo")
    job = farm.app.send_raw("echo", [b"x"], {"timeout": 0.3})
    client, id, body = next_request(worker)
    with pytest.raises(TimeLimitExceeded):
        job.get(timeout=DEADLINE)
    assert [NAME, b"\x06"] == worker.next()
    answer(worker, b"\x04", client, id, body)
    assert [NAME, b"\x06"] == worker.next()
    worker.send(NAME, b"\x01", b"echo")
    farm.app.send_raw("echo", [b"y"])
    assert [b"y"] == next_request(worker)[2]


def test_a_request_too_large_for_the_broker_is_a_final_with_the_error(farm, dealer):
    """Each frame keeps to the limit, all together do not: of a request, and of a reply."""
    _, (front, back) = farm.gateway()
    client, worker = dealer(front), register(dealer, back, "echo")
    half = b"x" * (9 << 20)
    ask(client, "echo", b"1", half, half)
    assert final("echo", b"1", b"", b"ERROR", b"refused") == client.next()[:7]
    ask(client, "echo", b"2", b"x")
    address, id, _ = next_request(worker)
    answer(worker, b"\x04", address, id, [half, half])
    reply = client.next()
    assert final("echo", b"2", b"", b"ERROR", b"failed") == reply[:7]
    assert b"the result has 18874379 bytes; the limit is 16777216" in reply[7]


def test_a_restart_of_the_gateway_loses_nothing(farm, dealer):
    """A client with an identity of its own gets the reply without asking again."""
    gateway, (front, back) = farm.gateway()
    client, worker = dealer(front, b"me"), register(dealer, back, "echo")
    ask(client, "echo", b"1", b"x")
    next_request(worker)
    gateway.stop(0.0)
    farm.gateway(bind=front, worker_bind=back)
    other = register(dealer, back, "echo")
    address, id, body = next_request(other)
    assert (b"me", b"1", [b"x"]) == (address, id, body)
    answer(other, b"\x04", address, id, [b"late"])
    assert final("echo", b"1", b"late") == client.next()


def test_a_reply_comes_once_where_its_request_was_taken_for_one_of_an_earlier_run(
    farm, dealer, monkeypatch
):
    """The broker still lists it as open; when the gateway reads it, it has ended."""
    seen, go_on = threading.Event(), threading.Event()
    page = MajordomoGateway._page

    async def slow_page(self, state, cursor):
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, requested.wait, DEADLINE)
        rows = await page(self, state, cursor)
        if any(row["queue"] == "echo" for row in rows["jobs"]):
            seen.set()
            await loop.run_in_executor(None, go_on.wait, DEADLINE)
        return rows

    requested = threading.Event()
    recovered = threading.Event()
    end = MajordomoMachine.recovered
    monkeypatch.setattr(MajordomoGateway, "_page", slow_page)
    monkeypatch.setattr(MajordomoMachine, "recovered", lambda self: (end(self), recovered.set()))
    _, (front, back) = farm.gateway()
    client, worker = dealer(front, b"me"), register(dealer, back, "echo")
    for number in (b"1", b"2"):
        ask(client, "echo", number, b"x")
        address, id, _ = next_request(worker)
        requested.set()
        assert seen.wait(DEADLINE)
        answer(worker, b"\x04", address, id, [b"done"])
        assert final("echo", number, b"done") == client.next()
        go_on.set()
        assert recovered.wait(DEADLINE)


def _stopped_with_an_open_request(farm, dealer):
    """Return the client of a request whose gateway has stopped, and the address for clients."""
    gateway, (front, back) = farm.gateway()
    client, worker = dealer(front, b"me"), register(dealer, back, "echo")
    ask(client, "echo", b"1", b"x")
    next_request(worker)
    worker.close()
    gateway.stop(0.0)
    return client, front


def test_a_reply_comes_where_its_job_ends_before_a_restarted_gateway_has_listed_it(
    farm, dealer, monkeypatch
):
    client, front = _stopped_with_an_open_request(farm, dealer)
    ended = threading.Event()
    page = MajordomoGateway._page

    async def late_page(self, state, cursor):
        await asyncio.get_running_loop().run_in_executor(None, ended.wait, DEADLINE)
        return await page(self, state, cursor)

    monkeypatch.setattr(MajordomoGateway, "_page", late_page)
    _, (_, back) = farm.gateway(bind=front)
    worker = register(dealer, back, "echo")
    address, id, _ = next_request(worker)
    answer(worker, b"\x04", address, id, [b"r"])
    assert final("echo", b"1", b"r") == client.next()
    ended.set()


def test_a_job_that_returns_to_its_queue_while_a_gateway_lists_them_is_found(
    farm, dealer, monkeypatch
):
    gateway, (front, _) = farm.gateway()
    client = dealer(front, b"me")
    deliveries = queue.SimpleQueue()
    consumer = Consumer(farm.app, deliveries.put, queues=["echo"])
    with consumer:
        ask(client, "echo", b"1", b"x")
        job = farm.app.job(deliveries.get(timeout=DEADLINE).id)
        gateway.stop(0.0)

        listed = []
        page = MajordomoGateway._page

        async def page_after_the_return(self, state, cursor):
            if state == "running" and ("running", 0) not in listed:
                await asyncio.get_running_loop().run_in_executor(None, consumer.close)
                assert "queued" == await job.astate()
            rows = await page(self, state, cursor)
            listed.append((state, len(rows["jobs"])))
            return rows

        recovered = threading.Event()
        end = MajordomoMachine.recovered
        monkeypatch.setattr(MajordomoGateway, "_page", page_after_the_return)
        monkeypatch.setattr(
            MajordomoMachine, "recovered", lambda self: (end(self), recovered.set())
        )
        _, (_, back) = farm.gateway(bind=front)
        assert recovered.wait(DEADLINE)
    assert ("running", 0) in listed
    worker = register(dealer, back, "echo")
    address, id, _ = next_request(worker)
    answer(worker, b"\x04", address, id, [b"r"])
    assert final("echo", b"1", b"r") == client.next()


def test_a_restarted_gateway_asks_again_for_a_job_while_the_broker_is_away(
    farm, dealer, monkeypatch
):
    find, errors = farm.app.ajob, [BrokerUnavailable("away"), BrokerUnavailable("away")]

    async def ajob(job_id):
        if errors:
            raise errors.pop()
        return await find(job_id)

    monkeypatch.setattr(farm.app, "ajob", ajob)
    client, front = _stopped_with_an_open_request(farm, dealer)
    _, (_, back) = farm.gateway(bind=front)
    worker = register(dealer, back, "echo")
    address, id, _ = next_request(worker)
    answer(worker, b"\x04", address, id, [b"r"])
    assert final("echo", b"1", b"r") == client.next()
    assert not errors


def test_a_request_of_an_earlier_run_whose_job_is_gone_has_failed(farm, dealer, monkeypatch):
    async def ajob(job_id):
        raise JobNotFound(job_id)

    monkeypatch.setattr(farm.app, "ajob", ajob)
    client, front = _stopped_with_an_open_request(farm, dealer)
    farm.gateway(bind=front)
    *_, error, code, text = client.next()
    assert (b"ERROR", b"unavailable") == (error, code)
    assert b"no job with id" in text


def test_an_emp_client_a_majordomo_worker_and_an_mc0_subscriber(farm, dealer):
    """Cross traffic: three protocols, one broker."""
    _, (emp,) = farm.gateway("emp")
    _, (mc0,) = farm.gateway("mc0")
    _, (_, back) = farm.gateway()
    subscriber = dealer(mc0)
    assert [b"", b"OK", b"ID", b"s"] == subscriber.ask("", "SUB", "ID", "s", "", "done")
    worker = register(dealer, back, "echo")
    with EmpClient(*split(emp)) as client:
        job_id = client.call("submit_job", {"queue": "echo", "frames": ["hello"]})["job_id"]
        address, id, body = next_request(worker)
        answer(worker, b"\x04", address, id, [body[0].upper()])
        job = client.call("get_job", {"job_id": job_id, "wait": 10})
        assert ("succeeded", ["HELLO"]) == (job["state"], job["result"])
        client.call("publish", {"topic": "done", "value": job["result"][0]})
    assert [b"", b"MESSAGE", b"TOPIC", b"done", b"", b"HELLO"] == subscriber.next()


def test_thousands_of_malformed_messages_leave_it_serving(farm, dealer):
    """Messages of any frames on either port, and some without an end; neighbours are served."""
    before = rss()
    _, (front, back) = farm.gateway(max_workers=8)
    dice = random.Random(11)
    words = [b"", NAME, b"MDPC02", b"\x01", b"\x03", b"\x04", b"\x05", b"\x06", b"PING", b"s"]
    for address in (front, back):
        hostile = [dealer(address) for _ in range(5)]
        endless(dealer(address).socket)
        for _ in range(MESSAGES):
            frames = [
                dice.choice(words) if dice.random() < 0.9 else dice.randbytes(dice.randrange(300))
                for _ in range(dice.randrange(1, 8))
            ]
            dice.choice(hostile).send(*frames)
        assert rss() - before < 2 * GROWTH  # of both sides: they share a process
        hostile[0].send(*[b""] * 3000)
        hostile[1].send(NAME, b"\x01", b"x" * (20 << 20))
        for peer in hostile:
            peer.send(NAME, b"\x06")
    client, worker = dealer(front), register(dealer, back, "echo")
    ask(client, "echo", b"1", b"x")
    address, id, body = next_request(worker)
    answer(worker, b"\x04", address, id, body)
    assert final("echo", b"1", b"x") == client.next()


def test_the_examples_talk_to_each_other(farm):
    """They know nothing of EventMQ."""
    _, (front, back) = farm.gateway()
    worker = subprocess.Popen(
        [sys.executable, EXAMPLES / "majordomo_worker.py", back, "upper"],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        assert worker.stdout is not None
        assert "ready service=upper\n" == worker.stdout.readline()
        command = [sys.executable, EXAMPLES / "majordomo_client.py", front, "upper", "hello", "you"]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)
        assert "part HELLO\nfinal YOU\n" == shown.stdout
    finally:
        worker.kill()
        worker.communicate()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"bind": "x"}, "not an address"),
        ({"worker_bind": "x"}, "not an address"),
        ({"dead": 0}, "above 0, not 0"),
        ({"client_name": ""}, "not empty"),
    ],
    ids=str,
)
def test_a_wrong_option_is_a_plugin_error(start, options, match):
    with pytest.raises(PluginError, match=match):
        start("majordomo", **options)


def test_a_broker_inside_a_process_cannot_be_served(start):
    with pytest.raises(NotAllowed, match="memory://"):
        start("majordomo", bind="tcp://127.0.0.1:0")


def test_a_client_that_never_reads_does_not_fill_the_gateway(farm, dealer, caplog):
    """Others are served meanwhile, and it gets all replies, in order, once it reads."""

    @farm.app.task(majordomo="large")
    def large(frames):
        return [frames[0], b"x" * 900_000]

    farm.work("large")
    _, (front, _) = farm.gateway(max_unsent_bytes=4 * 1024 * 1024)
    lazy, neighbour = dealer(front, b"lazy", cramped=True), dealer(front)
    count = 20
    for number in range(count):
        ask(lazy, "large", b"%d" % number, b"%d" % number)
        request = ("MDPC02", b"\x01", "large", b"%d" % number, b"%d" % number)
        neighbour.send_when_routable(*request)
        assert [b"%d" % number] * 2 == neighbour.next()[3:5]
    assert 1 == caplog.text.count("slow to read")
    lengths = [int(lazy.next()[3]) for _ in range(count)]
    assert list(range(count)) == sorted(lengths)
