"""The gateway ``emp`` over real sockets: operations, order, limits, and what strangers send."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from eventmq.app import EventMQ
from eventmq.errors import BrokerUnavailable, PluginError
from eventmq.registry.names import GATEWAY
from eventmq.wire.calls import CALLS
from eventmq_contrib.gateways.emp import EmpClient, EmpFailure
from eventmq_contrib.gateways.emp.protocol import (
    Bye,
    Error,
    Hello,
    Ping,
    Pong,
    Request,
    Response,
    decode_result,
    encode,
    encode_operation,
)
from tests.contrib.gateways.raw_emp import DEADLINE, RawEmp, split
from tests.support.fuzz import GROWTH, MESSAGES, rss


@pytest.fixture
def address(start):
    return start("emp", bind="tcp://127.0.0.1:0")[0]


@pytest.fixture
def client(address):
    with EmpClient(*split(address)) as client:
        yield client


# EmpOperations


def test_a_task_is_an_operation(client):
    answer = client.call("add", {"a": 1, "b": 2})
    assert 3 == answer["result"]
    assert "succeeded" == client.call("get_job", {"job_id": answer["job_id"]})["state"]


def test_parameters_can_have_any_name(app, client):
    app.task(name="names")(lambda **names: sorted(names))
    assert ["args", "self", "task"] == client.call("names", {"self": 1, "task": 2, "args": 3})[
        "result"
    ]


def test_all_operations_are_listed(client):
    ops = client.call("$list_ops")["ops"]
    broker = {"$echo", "$list_ops", "submit_job", "get_job", "cancel_job", "list_queues", "publish"}
    assert {*broker, "add", "fail", "odd", "data"} <= set(ops)
    assert sorted(ops) == ops


def test_echo_gives_the_data_back(client):
    data = {"a": [1, None, "\u00e9\ud800"], "b": {"c": 1.5}}
    assert data == client.call("$echo", data)
    assert {} == client.call("$echo")


def test_a_job_is_submitted_waited_for_and_inspected(client):
    job_id = client.call("submit_job", {"task": "add", "args": [1], "kwargs": {"b": 4}})["job_id"]
    job = client.call("get_job", {"job_id": job_id, "wait": 10})
    expected = {"job_id": job_id, "queue": "default", "task": "add", "state": "succeeded"}
    assert {**expected, "result": 5} == {key: job[key] for key in [*expected, "result"]}


def test_a_job_id_makes_submitting_again_safe(client):
    data = {"task": "add", "args": [1, 2], "job_id": "mine"}
    assert ["mine"] * 2 == [client.call("submit_job", data)["job_id"] for _ in range(2)]


def test_a_job_for_later_is_delayed(client):
    data = {"task": "add", "args": [1, 2], "countdown": 3600, "queue": "later"}
    job_id = client.call("submit_job", data)["job_id"]
    assert "delayed" == client.call("get_job", {"job_id": job_id})["state"]
    names = [row["name"] for row in client.call("list_queues")["queues"]]
    assert "later" in names


def test_a_failed_job_shows_the_reason_when_it_is_inspected(client):
    job_id = client.call("submit_job", {"task": "fail", "args": ["so"]})["job_id"]
    job = client.call("get_job", {"job_id": job_id, "wait": 10})
    assert ("failed", "so") == (job["state"], job["error"])
    assert "builtins.ValueError" == job["error_type"]


def test_bytes_are_text_or_base64(client):
    assert ["text", {"base64": "/w=="}] == client.call("data")["result"]


@pytest.mark.skipif("cancel" not in CALLS, reason="this broker cannot cancel")
def test_a_job_is_cancelled(client):
    data = {"task": "add", "args": [1, 2], "countdown": 3600}
    job_id = client.call("submit_job", data)["job_id"]
    answer = client.call("cancel_job", {"job_id": job_id, "reason": "workflow_deleted"})
    assert {"job_id": job_id, "state": "cancelled", "cancelled": True} == answer
    assert "cancelled" == client.call("get_job", {"job_id": job_id})["state"]


def test_what_is_published_reaches_subscribers(app, client):
    with app.subscribe("news") as messages:
        client.call("publish", {"topic": "news", "value": {"a": 1}})
        assert {"a": 1} == next(messages).value


FAILURES = [
    ("nothing", {}, "unknown_op"),
    ("$list_op", {}, "unknown_op"),
    ("", {}, "unknown_op"),
    ("a\ud800", {}, "unknown_op"),
    ("add", {}, "invalid_data"),
    ("add", {"a": 1, "b": 2, "c": 3}, "invalid_data"),
    ("add", {"a": 1, "b": "x"}, "job_failed"),
    ("fail", {}, "job_failed"),
    ("odd", {}, "not_json"),
    ("get_job", {}, "invalid_data"),
    ("get_job", {"job_id": 1}, "invalid_data"),
    ("get_job", {"job_id": "nobody"}, "unknown_job"),
    ("get_job", {"job_id": "nobody", "wait": -1}, "unknown_job"),
    ("get_job", {"job": "nobody"}, "invalid_data"),
    *([("cancel_job", {"job_id": "nobody"}, "unknown_job")] if "cancel" in CALLS else []),
    ("cancel_job", {"job_id": "a\ud800"}, "invalid_data"),
    ("submit_job", {}, "invalid_data"),
    ("submit_job", {"task": "add", "args": {}}, "invalid_data"),
    ("submit_job", {"task": "add", "kwargs": []}, "invalid_data"),
    ("submit_job", {"task": "add", "countdown": "x"}, "invalid_data"),
    ("submit_job", {"task": "add", "priority": 256}, "invalid_data"),
    ("submit_job", {"task": "add", "color": 1}, "invalid_data"),
    ("submit_job", {"frames": [1], "queue": "q"}, "invalid_data"),
    ("submit_job", {"frames": [{"base64": "?"}], "queue": "q"}, "invalid_data"),
    ("list_queues", {"all": True}, "invalid_data"),
    ("publish", {"value": 1}, "invalid_data"),
]


@pytest.mark.parametrize(("op", "data", "code"), FAILURES, ids=lambda v: str(v)[:30])
def test_what_cannot_be_done_is_a_failure_and_the_connection_lives(client, op, data, code):
    """Never a dropped connection; the description names the problem."""
    with pytest.raises(EmpFailure) as failure:
        client.call(op, data)
    assert code == failure.value.code
    assert failure.value.description
    assert {"a": 1} == client.call("$echo", {"a": 1})


def test_a_job_that_takes_too_long_is_a_failure(app, start):
    """The job continues, and its id is in the data."""
    release = threading.Event()

    @app.task(name="slow")
    def slow():
        release.wait(DEADLINE)
        return "done"

    (address,) = start("emp", bind="tcp://127.0.0.1:0", timeout=0.2)
    with EmpClient(*split(address)) as client:
        with pytest.raises(EmpFailure) as failure:
            client.call("slow")
        assert "timeout" == failure.value.code
        release.set()
        assert "done" == app.job(failure.value.data["job_id"]).get(timeout=DEADLINE)


def test_a_failure_inside_the_gateway_is_one_too(app, client, monkeypatch, caplog):
    async def broken(*_):
        raise RuntimeError

    monkeypatch.setattr(app, "aask", broken)
    with pytest.raises(EmpFailure) as failure:
        client.call("list_queues")
    assert "internal_error" == failure.value.code
    assert "an operation failed by an error of the gateway" in caplog.text


# Order


def test_pipelined_requests_are_answered_in_order(address):
    """More than may wait, with slow and quick ones mixed."""
    with RawEmp(address) as peer:
        for id in range(1, 301):
            op = "add" if id % 3 == 0 else "$echo"
            peer.send(Request(id, encode_operation(op, {"a": id, "b": 0})))
        answers = [peer.next() for _ in range(300)]
        assert list(range(1, 301)) == [answer.id for answer in answers]
        assert all(decode_result(answer.data).ok for answer in answers)


def test_many_clients_are_served_at_once(address):
    def work(number):
        with EmpClient(*split(address)) as client:
            return [client.call("$echo", {"n": number})["n"] for _ in range(20)]

    with ThreadPoolExecutor(10) as pool:
        assert [[n] * 20 for n in range(20)] == list(pool.map(work, range(20)))


# The flow


def test_hello_comes_at_once_and_a_ping_is_answered(address):
    with RawEmp(address, greet=False) as peer:
        assert Hello(1) == peer.next()
        peer.send(Hello(), Ping())
        assert Pong() == peer.next()


def test_bye_closes(address):
    with RawEmp(address) as peer:
        peer.send(Bye())
        assert [] == peer.rest()


def test_a_silent_peer_is_pinged_and_closed(start):
    (address,) = start("emp", bind="tcp://127.0.0.1:0", ping_interval=0.3, ping_timeout=1.0)
    with RawEmp(address) as peer:
        assert Ping() == peer.next()
        peer.send(Pong())
        assert Ping() == peer.next()
        (last,) = peer.rest()
        assert 0 == last.code


def test_a_client_answers_pings_while_it_has_nothing_to_do(start):
    (address,) = start("emp", bind="tcp://127.0.0.1:0", ping_interval=0.3, ping_timeout=1.0)
    with EmpClient(*split(address)) as client:
        with RawEmp(address) as peer:  # tells how the time goes
            for _ in range(4):
                assert Ping() == peer.next()
                peer.send(Pong())
        assert {} == client.call("$echo")


BROKEN = {
    "no hello": (encode(Ping()), 1),
    "version 2": (encode(Hello(2)), 1),
    "http": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 1),
    "id 0": (encode(Hello()) + encode(Request(0, b'{"op":"$echo"}')), 3),
    "unmatched response": (encode(Hello()) + encode(Response(9, b'{"status":"success"}')), 3),
    "bad json": (encode(Hello()) + encode(Request(1, b"{")), 4),
    "over the limit": (encode(Hello()) + b"\x7f\xff\xff\xff", 1),
    "no such type": (encode(Hello()) + bytes.fromhex("00000004 63000000"), 1),
}


@pytest.mark.parametrize(("data", "code"), BROKEN.values(), ids=BROKEN)
def test_what_breaks_the_rules_ends_by_an_error(address, client, data, code):
    """The ERROR arrives, then the end; others are served on."""
    with RawEmp(address, greet=False) as peer:
        peer.socket.sendall(data)
        first, *_, last = peer.rest()
        assert Hello(1) == first
        assert isinstance(last, Error)
        assert code == last.code
    assert {} == client.call("$echo")


def test_more_connections_than_the_limit_are_refused(start):
    (address,) = start("emp", bind="tcp://127.0.0.1:0", max_peers=2)
    with RawEmp(address), RawEmp(address), RawEmp(address, greet=False) as third:
        first, last = third.rest()
        assert (Hello(1), 2) == (first, last.code)


def test_pending_requests_are_answered_before_the_end(app):
    """The grace of a stop is for them; then comes BYE."""
    started, release = threading.Event(), threading.Event()

    @app.task(name="slow")
    def slow():
        started.set()
        release.wait(DEADLINE)
        return "done"

    gateway = app.plugins.make(GATEWAY, "emp", options={"bind": "tcp://127.0.0.1:0"})
    (address,) = gateway.start()
    with RawEmp(address) as peer:
        peer.send(Request(1, encode_operation("slow")))
        assert started.wait(DEADLINE)
        stopper = threading.Thread(target=gateway.stop, args=(DEADLINE,))
        stopper.start()
        release.set()
        answer, bye = peer.rest()
        assert ("done", Bye()) == (decode_result(answer.data).data["result"], bye)
    stopper.join(DEADLINE)
    assert not gateway.running()


def test_a_peer_that_does_not_read_harms_no_other_peer(address, client):
    """Megabytes wait for it; others are served, and so is it when it reads."""
    with RawEmp(address) as peer:
        data = {"text": "x" * 100_000}
        for id in range(1, 61):
            peer.send(Request(id, encode_operation("$echo", data)))
        assert {"n": 1} == client.call("$echo", {"n": 1})
        assert list(range(1, 61)) == [peer.next().id for _ in range(60)]


def _send_all(peer, messages):
    for message in messages:
        peer.send(message)


def test_a_peer_that_never_reads_is_not_read_either(address, client):
    """Bytes that wait for it are bounded: then only its own writing is held up."""
    before = rss()
    request = encode_operation("$echo", {"text": "x" * 300_000})
    with RawEmp(address) as peer:
        peer.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            _send_all(peer, (Request(id, request) for id in range(1, 1001)))
        assert rss() - before < GROWTH
        assert {"n": 1} == client.call("$echo", {"n": 1})


#: Messages that one connection of `_garbage` sends, as a mean.
PIECES = 3


def _garbage(dice):
    """Return messages that a confused or hostile peer might send."""
    hello = encode(Hello()) if dice.random() < 0.8 else b""
    pieces = []
    for _ in range(dice.randrange(1, 6)):
        body = dice.randbytes(dice.randrange(0, 40))
        match dice.randrange(5):
            case 0:
                pieces.append(body)
            case 1:
                pieces.append((len(body) + 4).to_bytes(4, "big") + bytes([dice.randrange(9)]))
                pieces.append(b"\0\0\0" + body)
            case 2:
                pieces.append(encode(Request(dice.randrange(4), body)))
            case 3:
                data = encode_operation(dice.choice(["$echo", "nothing", "get_job"]), {"job_id": 1})
                pieces.append(encode(Request(dice.randrange(9), data)))
            case _:
                pieces.append(encode(dice.choice([Ping(), Pong(), Bye(), Error(1, "x")])))
    data = hello + b"".join(pieces)
    return data[: dice.randrange(len(data) + 1)] if dice.random() < 0.3 else data


def test_thousands_of_malformed_messages_leave_it_serving(address, client):
    """Connections with some messages each; a neighbour is served all the while."""
    before = rss()
    dice = random.Random(7)
    for number in range(MESSAGES // PIECES):
        with RawEmp(address, greet=False) as peer:
            peer.socket.sendall(_garbage(dice))
        if number % 500 == 0:
            assert {"n": number} == client.call("$echo", {"n": number})
    assert 3 == client.call("add", {"a": 1, "b": 2})["result"]
    assert rss() - before < 2 * GROWTH  # of both sides: they share a process


# The client


def test_a_missing_server_is_broker_unavailable():
    client = EmpClient("127.0.0.1", 1)
    with pytest.raises(BrokerUnavailable, match=r"cannot talk EMP to 127\.0\.0\.1:1"):
        client.connect()
    client.close()
    with pytest.raises(BrokerUnavailable, match="not connected"):
        client.call("$echo")


def test_an_answer_that_does_not_come_is_broker_unavailable(app, client):
    release = threading.Event()
    app.task(name="slow")(lambda: release.wait(DEADLINE))
    with pytest.raises(BrokerUnavailable, match="no response to 'slow'"):
        client.call("slow", timeout=0.1)
    release.set()
    assert {} == client.call("$echo", timeout=DEADLINE)


def test_the_end_of_the_server_is_reported_to_waiting_clients(app, start, client):
    release = threading.Event()
    app.task(name="slow")(lambda: release.wait(DEADLINE))
    waiting = client.begin("slow")
    client.close()
    with pytest.raises(Exception, match=r"closed|not open"):
        waiting.result(DEADLINE)
    release.set()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"bind": "here"}, "not an address"),
        ({"bind": "tcp://127.0.0.1:99999"}, "not an address"),
        ({"timeout": 0}, "above 0, not 0"),
        ({"max_peers": "many"}, "whole number"),
        ({"colour": "red"}, "no option 'colour'"),
        ({"tls_key": "x"}, "tls_cert"),
        ({"tls_cert": "/nothing"}, "cannot be used"),
    ],
    ids=str,
)
def test_a_wrong_option_is_a_plugin_error(start, options, match):
    with pytest.raises(PluginError, match=match):
        start("emp", **options)


def test_a_broker_that_is_away_is_a_failure(address):
    """The gateway serves on; what needs no broker is answered."""
    with EventMQ("away", broker="tcp://127.0.0.1:1", submit_timeout=0.2) as app:
        gateway = app.plugins.make(GATEWAY, "emp", options={"bind": "tcp://127.0.0.1:0"})
        try:
            with EmpClient(*split(gateway.start()[0])) as client:
                for op, data in (("list_queues", {}), ("submit_job", {"task": "add"})):
                    with pytest.raises(EmpFailure) as failure:
                        client.call(op, data)
                    assert "unavailable" == failure.value.code
                assert {} == client.call("$echo")
        finally:
            gateway.stop(0.0)
