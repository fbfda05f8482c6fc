"""``eventmq gateway``, ``eventmq emp call`` and ``eventmq dev --gateway`` as users run them."""

from __future__ import annotations

import json
import signal
import socket
import time

import pytest

from tests.contrib.gateways.raw_dealer import DEADLINE, RawDealer
from tests.support.shell import Shell, free_port

SHOP = """
from eventmq import EventMQ

app = EventMQ("shop")

@app.task(name="add")
def add(a, b):
    return a + b

@app.task(majordomo="turn")
def turn(frames):
    return frames[::-1]
"""
FREE = "tcp://127.0.0.1:0"


@pytest.fixture
def shell(tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    shell = Shell(tmp_path)
    yield shell
    shell.close()


def call(shell, address, *arguments):
    return json.loads(shell.output("emp", "call", address.rpartition("/")[2], *arguments))


def test_a_gateway_prints_ready_serves_and_ends_at_sigterm(shell):
    broker = shell.start("broker", "--bind", FREE).ready()["main"]
    shell.start("worker", "-A", "shop", "--broker", broker, "-c", "1").ready()
    gateway = shell.start("gateway", "emp", "-A", "shop", "--broker", broker, "--bind", FREE)
    ready = gateway.ready()
    assert "emp" == ready["gateway"]
    assert 3 == call(shell, ready["bind"], "add", '{"a": 1, "b": 2}')["result"]
    assert "default" in str(call(shell, ready["bind"], "list_queues"))
    done = shell.run("emp", "call", ready["bind"].rpartition("/")[2], "nothing")
    assert 4 == done.returncode
    assert "error: unknown_op: there is no operation 'nothing'" in done.stderr
    assert 0 == gateway.stop(signal.SIGTERM)
    code, message = shell.error("emp", "call", ready["bind"].rpartition("/")[2], "$echo")
    assert 3 == code
    assert "cannot talk EMP to 127.0.0.1" in message


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("gateway", "imap"), 2, "known are: emp, majordomo, mc0"),
        (("gateway", "emp", "--bind", "here"), 1, "'here' is not an address"),
        (("gateway", "emp", "--bind", "tcp://0.0.0.0:0"), 1, "or say --insecure"),
        (("gateway", "mc0", "--gateway-option", "x=1", "--bind", FREE), 1, "no option 'x'"),
        (("gateway", "emp", "--tls-cert", "none.pem"), 1, "'none.pem' cannot be used"),
        (
            ("gateway", "mc0", "--keys-dir", "none", "--bind", FREE),
            2,
            "none/broker.key_secret cannot",
        ),
        (("emp", "call", "127.0.0.1:1", "$echo", "[1]"), 2, "the data is not a JSON object"),
        (("emp", "call", "here", "$echo"), 1, "'here' is not an address"),
    ],
    ids=str,
)
def test_what_is_wrong_is_one_line(shell, arguments, code, text):
    actual_code, message = shell.error(*arguments)
    assert code == actual_code
    assert text in message


def test_an_address_that_is_taken_is_one_line(shell):
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        address = f"tcp://127.0.0.1:{occupied.getsockname()[1]}"
        for name in ("emp", "mc0"):
            code, message = shell.error("gateway", name, "--bind", address)
            assert (1, True) == (code, f"cannot bind {address}" in message)


def test_dev_runs_gateways_too_and_ends_them(shell):
    """The end of one does not affect the others."""
    port, other = free_port(), free_port()
    dev = shell.start(
        "dev", "-A", "shop", "--bind", FREE, "-c", "1",
        "--gateway", f"emp=tcp://127.0.0.1:{port}", "--gateway", f"mc0=tcp://127.0.0.1:{other}",
    )  # fmt: skip
    dev.ready()
    address = f"127.0.0.1:{port}"
    assert 3 == call(shell, address, "add", '{"a": 1, "b": 2}')["result"]
    assert 0 == dev.stop(signal.SIGINT)
    with pytest.raises(OSError, match=r"refused"):
        socket.create_connection(("127.0.0.1", port), 1.0)


def test_requests_survive_restarts_of_gateway_and_broker(shell, context):
    """A client with an identity gets its reply, despite any kill."""
    bind = f"tcp://127.0.0.1:{free_port()}"
    front, back = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    shell.environ["EVENTMQ_HEARTBEAT_INTERVAL"] = "0.5"
    shell.environ["EVENTMQ_HEARTBEAT_TIMEOUT"] = "3"

    def broker():
        program = shell.start("broker", "--bind", bind, "--data-dir", "data")
        program.ready()
        return program

    def gateway():
        addresses = ("--bind", front, "--worker-bind", back)
        program = shell.start("gateway", "majordomo", "--broker", bind, *addresses)
        program.ready()
        return program

    brokers, gateways = broker(), gateway()
    client = RawDealer(context, front, b"me")
    for number in range(20):
        client.send("MDPC02", b"\x01", "turn", b"%d" % number, b"a", b"%d" % number)
    deadline = time.monotonic() + DEADLINE
    while 20 != waiting(shell, bind):
        assert time.monotonic() < deadline
    gateways.stop(signal.SIGKILL)
    gateways = gateway()
    brokers.stop(signal.SIGKILL)
    broker()
    shell.start("worker", "-A", "shop", "--broker", bind, "-Q", "turn:1", "-c", "1").ready()
    replies = [client.next() for _ in range(20)]
    expected = [[b"MDPC02", b"\x03", b"turn", b"%d" % n, b"%d" % n, b"a"] for n in range(20)]
    assert sorted(expected) == sorted(replies)
    client.close()


def waiting(shell, bind):
    rows = json.loads(shell.output("queues", "--broker", bind, "--json"))
    return sum(row["waiting"] for row in rows if row["name"] == "turn")


def publish_until_heard(shell, bind, client, value):
    """Publish a value again and again, as a gateway may just be coming back to its broker."""
    deadline = time.monotonic() + DEADLINE
    expected = [b"", b"MESSAGE", b"TOPIC", b"news", b"", value.encode()]
    while time.monotonic() < deadline:
        shell.run("publish", "news", value, "--broker", bind)
        while (reply := client.next(0.3)) is not None:
            if reply == expected:
                return
    raise AssertionError(f"{value} was not heard within {DEADLINE} s")


def test_mc0_serves_without_a_broker_and_finds_it_again(shell, context):
    """Its own subscribers receive each other's messages all the time."""
    bind = f"tcp://127.0.0.1:{free_port()}"
    shell.environ["EVENTMQ_HEARTBEAT_INTERVAL"] = "0.5"
    shell.environ["EVENTMQ_HEARTBEAT_TIMEOUT"] = "3"
    address = shell.start("gateway", "mc0", "--broker", bind, "--bind", FREE).ready()["bind"]
    client = RawDealer(context, address)
    assert [b"", b"OK", b"ID", b"s"] == client.ask("", "SUB", "ID", "s", "", "news", "own")
    client.send("", "PUT", "TOPIC", "own", "", "x")
    assert [b"", b"MESSAGE", b"TOPIC", b"own", b"", b"x"] == client.next()
    for value in ("1", "2"):
        program = shell.start("broker", "--bind", bind, "--data-dir", "data")
        program.ready()
        publish_until_heard(shell, bind, client, value)
        program.stop(signal.SIGKILL)
    client.close()


def test_a_gateway_has_a_key_of_its_own_where_the_broker_has_keys(shell, context):
    """Both its sides use it: its submissions, and the jobs of foreign workers."""
    shell.output("keys", "new", "--broker")
    shell.output("keys", "new", "gate")
    queues = ("--serves", "echo", "--submits", "echo")
    shell.output("keys", "authorize", "gate.key", "--role", "gateway", *queues)
    broker = shell.start("broker", "--bind", FREE).ready()["main"]
    shell.environ["EVENTMQ_KEY_FILE"] = "gate.key_secret"
    shell.environ["EVENTMQ_BROKER_KEY_FILE"] = ".eventmq/keys/broker.key"
    addresses = ("--bind", FREE, "--worker-bind", FREE)
    ready = shell.start("gateway", "majordomo", "--broker", broker, *addresses).ready()
    client, worker = (RawDealer(context, ready[port]) for port in ("bind", "worker-bind"))
    worker.send("MDPW02", b"\x01", "echo")
    client.send("MDPC02", b"\x01", "echo", "id", "hello")
    name, kind, address, empty, id, body = worker.next()
    assert (b"MDPW02", b"\x02", b"hello") == (name, kind, body)
    worker.send(name, b"\x04", address, empty, id, b"done")
    assert [b"MDPC02", b"\x03", b"echo", b"id", b"done"] == client.next()
    client.close()
    worker.close()
