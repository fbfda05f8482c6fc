"""The client of EMP 1 against servers that end, refuse, and come back."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

import pytest

from eventmq.errors import BrokerUnavailable
from eventmq_contrib.gateways.emp import EmpClient, EmpError
from eventmq_contrib.gateways.emp import client as client_module
from eventmq_contrib.gateways.emp.client import MAX_BACKOFF, MIN_BACKOFF, back_off
from eventmq_contrib.gateways.emp.protocol import (
    Decoder,
    EmpResult,
    Error,
    Hello,
    Request,
    Response,
    decode_operation,
    encode,
    encode_result,
)
from tests.contrib.gateways.raw_emp import DEADLINE


class RawServer:
    """A server that accepts connections one by one, and acts as configured on each.

    Attributes:
        requests: The application data of all requests.
        connections: How many there were.
    """

    def __init__(self):
        self.requests = []
        self.connections = 0
        self._answers = []
        self._lock = threading.Condition()
        self._listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _listen(self, address=("127.0.0.1", 0)):
        self.socket = socket.create_server(address)
        self.address = self.socket.getsockname()

    def then(self, *answers):
        """Set the answers of the next connections to their requests, in order."""
        with self._lock:
            self._answers += answers

    def _serve(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            with connection, suppress(ConnectionError):
                self._talk(connection)

    def _talk(self, connection):
        connection.sendall(encode(Hello()))
        decoder = Decoder(1 << 20)
        with self._lock:
            self.connections += 1
            self._lock.notify_all()
        while True:
            data = connection.recv(65536)
            if not data:
                return
            decoder.feed(data)
            for message in decoder.messages():
                if isinstance(message, Request):
                    self.requests.append(message.data)
                    with self._lock:
                        answer = self._answers.pop(0)
                    if answer == "end":
                        return
                    connection.sendall(encode(answer(message.id)))

    def wait_for_connections(self, number):
        with self._lock:
            assert self._lock.wait_for(lambda: self.connections >= number, DEADLINE)

    def close(self):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()


def ok(data):
    return lambda id: Response(id, encode_result(EmpResult(True, data)))


def refused(code, text):
    return lambda _: Error(code, text)


@pytest.fixture
def server():
    server = RawServer()
    yield server
    server.close()


@pytest.fixture
def client(server, monkeypatch):
    monkeypatch.setattr(client_module, "MIN_BACKOFF", 0.01)
    with EmpClient(*server.address) as client:
        yield client


def test_no_data_are_sent_as_an_empty_object(server, client):
    """Deployed servers refuse a request without data."""
    server.then(ok({}), ok({}))
    client.call("list")
    client.call("list", {"a": 1})
    assert server.requests == [b'{"op":"list","data":{}}', b'{"op":"list","data":{"a":1}}']
    assert {} == decode_operation(server.requests[0]).data


def test_a_connection_that_ends_is_made_again(server, client):
    """Requests sent over it fail, since the server may have executed them."""
    server.then("end", ok({"n": 1}))
    with pytest.raises(BrokerUnavailable, match="the connection ended"):
        client.call("once", timeout=DEADLINE)
    assert {"n": 1} == client.call("again", timeout=DEADLINE)
    assert 2 == server.connections
    assert 2 == len(server.requests), "nothing is sent twice"


def test_what_is_asked_while_there_is_no_connection_waits_for_one(server, client, monkeypatch):
    there = threading.Event()
    connect = client._connect

    async def held():
        if not there.is_set():
            raise ConnectionRefusedError("not yet")
        return await connect()

    monkeypatch.setattr(client, "_connect", held)
    server.then("end", ok({"n": 1}))
    with pytest.raises(BrokerUnavailable):
        client.call("once", timeout=DEADLINE)
    with pytest.raises(BrokerUnavailable, match=r"no response to 'x' .*: no connection to .*"):
        client.call("x", timeout=0.2)
    future = client.begin("again")
    there.set()
    assert {"n": 1} == future.result(DEADLINE).data
    assert 2 == len(server.requests), "the withdrawn request is not sent"


def test_a_refused_request_is_no_server_that_is_away(server, client):
    """ERROR 4 ends the connection, and the client has another one for the next request."""
    server.then(refused(4, "data is missing"), ok({}))
    with pytest.raises(EmpError, match="EMP error 4: the other side says: data is missing") as got:
        client.call("x", timeout=DEADLINE)
    assert 4 == got.value.code
    assert {} == client.call("y", timeout=DEADLINE)


@pytest.mark.parametrize("code", [0, 2])
def test_a_server_that_reports_that_it_is_unavailable_is_unavailable(server, client, code):
    server.then(refused(code, "going down"))
    with pytest.raises(BrokerUnavailable, match="going down"):
        client.call("x", timeout=DEADLINE)


def test_a_request_over_the_limit_is_refused_here(server):
    limits = client_module.EmpLimits(max_frame=100)
    with EmpClient(*server.address, limits=limits) as client:
        with pytest.raises(EmpError, match="over the limit of 100 bytes"):
            client.call("x", {"a": "b" * 200})
        server.then(ok({}))
        assert {} == client.call("x")


def test_a_client_that_is_closed_does_not_come_back(server, client):
    client.close()
    with pytest.raises(BrokerUnavailable, match="not connected"):
        client.begin("x")
    client.close()
    assert 1 == server.connections


def test_closing_ends_what_waits_for_a_connection(server, monkeypatch):
    monkeypatch.setattr(client_module, "MIN_BACKOFF", 60.0)
    monkeypatch.setattr(client_module, "MAX_BACKOFF", 60.0)
    server.then("end")
    with EmpClient(*server.address) as client:
        with pytest.raises(BrokerUnavailable):
            client.call("x", timeout=DEADLINE)
        future = client.begin("y")
    assert future.cancelled()


def test_the_back_off_doubles_up_to_its_most():
    for tries, max_wait in (
        (0, MIN_BACKOFF),
        (1, 2 * MIN_BACKOFF),
        (3, 8 * MIN_BACKOFF),
        (7, MAX_BACKOFF),
        (10**6, MAX_BACKOFF),
    ):
        waits = [back_off(tries) for _ in range(50)]
        assert max_wait / 2 <= min(waits)
        assert max(waits) <= max_wait
        assert len(set(waits)) > 1, "clients do not come all at once"


def test_a_server_that_ends_each_connection_is_not_asked_faster_and_faster(server, monkeypatch):
    """It shakes hands and hangs up: the tries count on."""
    seen = []

    def counted(tries):
        seen.append(tries)
        return 0.0

    monkeypatch.setattr(client_module, "back_off", counted)
    server.then(*["end"] * 3, ok({}))
    with EmpClient(*server.address) as client:
        for _ in range(3):
            with pytest.raises(BrokerUnavailable):
                client.call("x", timeout=DEADLINE)
        assert {} == client.call("x", timeout=DEADLINE)
    assert [0, 1, 2] == seen[:3]
