"""One connection of EMP 1: the flow of the document, without sockets or waiting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventmq_contrib.gateways.emp.protocol import (
    Bye,
    Decoder,
    EmpConnection,
    EmpError,
    EmpLimits,
    EmpResult,
    Error,
    Hello,
    Ping,
    Pong,
    Request,
    Response,
    encode,
    encode_result,
)

LIMITS = EmpLimits(max_frame=1000, max_pending=3)
OK = encode_result(EmpResult(True, {}))


def open_one(now=0.0, *, ready=True, limits=LIMITS):
    connection = EmpConnection(limits, now)
    if ready:
        connection.receive(encode(Hello()), now)
        connection.take_output()
    return connection


def sent_messages(connection):
    """Return the messages of the connection since the last call."""
    decoder = Decoder(100_000)
    decoder.feed(connection.take_output())
    return list(decoder.messages())


def code_of(connection):
    """Return the code of the ERROR by which the connection ended."""
    *_, last = sent_messages(connection)
    assert isinstance(last, Error)
    assert connection.closed
    return last.code


# Handshake


def test_hello_is_sent_at_once():
    assert [Hello(1)] == sent_messages(open_one(ready=False))


def test_hello_from_both_sides_opens_it():
    connection = open_one(ready=False)
    assert not connection.ready
    connection.receive(encode(Hello(1)), 0.0)
    assert connection.ready
    assert not connection.closed


@pytest.mark.parametrize(
    "first", [Ping(), Pong(), Request(1, b'{"op":"x"}'), Response(1, OK)], ids=repr
)
def test_another_first_message_is_error_1(first):
    connection = open_one(ready=False)
    connection.receive(encode(first), 0.0)
    assert 1 == code_of(connection)


@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_version_is_error_1(version):
    connection = open_one(ready=False)
    connection.receive(encode(Hello(version)), 0.0)
    assert 1 == code_of(connection)


@pytest.mark.parametrize("first", [Bye(), Error(0, "x")], ids=repr)
def test_bye_and_error_close_the_handshake(first):
    """Nothing is answered."""
    connection = open_one(ready=False)
    connection.take_output()
    connection.receive(encode(first), 0.0)
    assert connection.closed
    assert [] == sent_messages(connection)


def test_no_hello_within_5_seconds_is_error_1():
    connection = open_one(ready=False)
    connection.tick(4.9)
    assert not connection.closed
    assert pytest.approx(0.1) == connection.wait(4.9)
    connection.tick(5.0)
    assert 1 == code_of(connection)


def test_a_second_hello_is_error_1():
    connection = open_one()
    connection.receive(encode(Hello()), 0.0)
    assert 1 == code_of(connection)


# Termination


def test_bye_closes_and_what_follows_is_ignored():
    connection = open_one()
    connection.receive(encode(Bye()) + encode(Ping()), 0.0)
    connection.receive(encode(Ping()), 0.0)
    assert connection.closed
    assert connection.error is None
    assert [] == sent_messages(connection)


def test_an_error_of_the_other_side_is_kept():
    connection = open_one()
    connection.receive(encode(Error(2, "full")), 0.0)
    assert connection.closed
    assert isinstance(connection.error, EmpError)
    assert (2, "the other side says: full") == (connection.error.code, connection.error.description)


def test_our_bye_is_sent_once():
    connection = open_one()
    connection.bye()
    connection.bye()
    connection.fail(EmpError(0, "late"))
    assert [Bye()] == sent_messages(connection)


# Ping-pong


def test_a_ping_is_answered():
    connection = open_one()
    connection.receive(encode(Ping()) * 2, 0.0)
    assert [Pong(), Pong()] == sent_messages(connection)


def test_our_ping_goes_out_at_the_interval_one_at_a_time():
    connection = open_one()
    connection.tick(29.9)
    assert [] == sent_messages(connection)
    connection.tick(30.0)
    connection.tick(35.0)
    assert [Ping()] == sent_messages(connection)
    connection.receive(encode(Pong()), 36.0)
    connection.tick(65.9)
    assert [] == sent_messages(connection)
    connection.tick(66.0)
    assert [Ping()] == sent_messages(connection)


def test_a_missing_pong_closes():
    """Any other message in the mean time does not help."""
    connection = open_one()
    connection.tick(30.0)
    connection.receive(encode(Ping()), 35.0)
    connection.tick(40.0)
    assert 0 == code_of(connection)


def test_silence_is_ignored_while_we_do_not_read():
    """With as many requests as may wait nothing is read, not even a pong."""
    connection = open_one()
    connection.tick(30.0)
    for id in (1, 2, 3):
        connection.receive(encode(Request(id, b'{"op":"x"}')), 31.0)
    assert connection.full
    connection.tick(45.0)
    assert not connection.closed


def test_long_requests_that_wait_stop_the_reading_too():
    """Their bytes together are bounded, as their number is."""
    connection = open_one(limits=EmpLimits(max_frame=100, max_pending=10))
    data = b'{"op":"x","data":{"a":"%s"}}' % (b"x" * 40)
    connection.receive(encode(Request(1, data)), 0.0)
    assert not connection.full
    connection.receive(encode(Request(2, data)), 0.0)
    assert connection.full
    connection.respond(1, EmpResult(True, {}))
    assert not connection.full


# Requests and responses


def test_requests_are_handed_on_in_order_and_answered_under_their_id():
    connection = open_one()
    connection.receive(encode(Request(7, b'{"op":"a"}')) + encode(Request(3, b'{"op":"b"}')), 0.0)
    assert [(7, ("a", {})), (3, ("b", {}))] == list(connection.requests)
    connection.respond(7, EmpResult(True, {}))
    assert [Response(7, b'{"status":"success"}')] == sent_messages(connection)


@pytest.mark.parametrize("ids", [[0], [5, 5]], ids=str)
def test_an_invalid_id_is_error_3(ids):
    connection = open_one()
    for id in ids:
        connection.receive(encode(Request(id, b'{"op":"a"}')), 0.0)
    assert 3 == code_of(connection)


def test_an_id_can_come_again_when_it_was_answered():
    connection = open_one()
    for _ in range(2):
        connection.receive(encode(Request(5, b'{"op":"a"}')), 0.0)
        connection.respond(5, EmpResult(True, {}))
    assert not connection.closed


def test_an_unmatched_response_is_error_3():
    connection = open_one()
    id = connection.request("x")
    connection.receive(encode(Response(id, OK)), 0.0)
    assert [(id, EmpResult(True, {}))] == list(connection.responses)
    connection.receive(encode(Response(id, OK)), 0.0)
    assert 3 == code_of(connection)


def test_our_ids_count_from_1():
    connection = open_one()
    assert [1, 2] == [connection.request("x", {}), connection.request("y")]
    expected = [Request(1, b'{"op":"x","data":{}}'), Request(2, b'{"op":"y","data":{}}')]
    assert expected == sent_messages(connection)


def test_bad_application_data_are_error_4():
    connection = open_one()
    connection.receive(encode(Request(1, b"{}")), 0.0)
    assert 4 == code_of(connection)


def test_a_message_over_the_limit_is_error_1():
    connection = open_one()
    connection.receive(encode(Request(1, b" " * 1000)), 0.0)
    assert 1 == code_of(connection)


def test_a_response_that_cannot_be_sent_is_a_failure():
    """Too large, or not JSON: the connection lives on."""
    connection = open_one()
    for id, value in ((1, "x" * 2000), (2, {1, 2}), (3, float("nan"))):
        connection.receive(encode(Request(id, b'{"op":"x"}')), 0.0)
        connection.respond(id, EmpResult(True, {"job_id": "j", "result": value}))
    answers = [message.data for message in sent_messages(connection)]
    assert ["too_large", "not_json", "not_json"] == [
        answer.split(b'"code":"')[1].split(b'"')[0].decode() for answer in answers
    ]
    assert all(b'"data":{"job_id":"j"}' in answer for answer in answers)
    assert not connection.closed


def test_a_request_of_ours_over_the_limit_is_refused_here():
    connection = open_one()
    with pytest.raises(EmpError, match="over the limit"):
        connection.request("x", {"a": "x" * 1000})
    assert [] == sent_messages(connection)


MESSAGES = st.one_of(
    st.builds(Hello, st.integers(0, 255)),
    st.sampled_from([Bye(), Ping(), Pong()]),
    st.builds(Error, st.integers(0, 255), st.text(max_size=10)),
    st.builds(Request, st.integers(0, 4), st.sampled_from([b'{"op":"x"}', b"{}", b"\xff"])),
    st.builds(Response, st.integers(0, 4), st.sampled_from([OK, b"{}", b"\xff"])),
)


@given(st.lists(st.one_of(MESSAGES, st.binary(max_size=20), st.floats(0, 100))))
def test_any_conversation_ends_by_the_rules(events):
    """No exception is raised; after the end no message is sent; the last one may be an ERROR."""
    connection = open_one()
    now = 0.0
    received = []
    for event in events:
        if isinstance(event, float):
            now += event
            connection.tick(now)
        else:
            connection.receive(event if isinstance(event, bytes) else encode(event), now)
        ended = bool(received) and isinstance(received[-1], (Error, Bye))
        new = sent_messages(connection)
        assert not (ended and new)
        received += new
        assert connection.wait(now) >= 0.0
    assert connection.closed or not any(isinstance(message, Error) for message in received)
