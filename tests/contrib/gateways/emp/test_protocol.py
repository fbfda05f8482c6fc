"""EMP 1 on the wire: bytes written by hand from the document, and malformed messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventmq_contrib.gateways.emp.protocol import (
    Bye,
    Decoder,
    EmpError,
    EmpResult,
    Error,
    Hello,
    Ping,
    Pong,
    Request,
    Response,
    decode_operation,
    decode_result,
    encode,
    encode_operation,
    encode_result,
)

#: From the tables of the document ("Message types" and the formats below it), with the length.
VECTORS = [
    (Hello(1), "00000008 00000000 01000000"),
    (Bye(), "00000004 01000000"),
    (Ping(), "00000004 02000000"),
    (Pong(), "00000004 03000000"),
    # the character string `hello` is the document's own example
    (Error(1, "hello"), "0000000f 04000000 01000000 0005 68656c6c6f"),
    (Error(0, ""), "0000000a 04000000 00000000 0000"),
    (Request(1, b"{}"), "0000000e 05000000 0000000000000001 7b7d"),
    (Request(2**64 - 1, b""), "0000000c 05000000 ffffffffffffffff"),
    (Response(258, b"x"), "0000000d 06000000 0000000000000102 78"),
]


def decode(data, limit=1000):
    decoder = Decoder(limit)
    decoder.feed(data)
    return list(decoder.messages())


@pytest.mark.parametrize(("message", "text"), VECTORS, ids=[v[1] for v in VECTORS])
def test_a_message_is_these_bytes(message, text):
    data = bytes.fromhex(text)
    assert data == encode(message)
    assert [message] == decode(data)


def test_unused_bytes_are_ignored():
    """In the header and in the bodies of hello and error."""
    data = bytes.fromhex("00000008 00ffffff 01ffffff 0000000a 04aaaaaa 03bbbbbb 0000")
    assert [Hello(1), Error(3, "")] == decode(data)


def test_a_long_description_is_cut_between_characters():
    """A character string has at most 65,535 bytes."""
    data = encode(Error(0, "\u00e9" * 40_000))
    assert (65_534).to_bytes(2, "big") == data[12:14]
    assert "\u00e9" * 32_767 == data[14:].decode()


WRONG = {
    "no header": "00000003 000000",
    "empty": "00000000",
    "over the limit": "000003e9",
    "unknown type": "00000004 07000000",
    "hello without a version": "00000004 00000000",
    "long hello": "00000009 00000000 0100000000",
    "bye with a body": "00000005 01000000 00",
    "ping with a body": "00000005 02000000 00",
    "pong with a body": "00000005 03000000 00",
    "short error": "00000009 04000000 01000000 00",
    "error shorter than its string": "0000000a 04000000 01000000 0001",
    "error longer than its string": "0000000b 04000000 01000000 0000 61",
    "error that is not UTF-8": "0000000b 04000000 01000000 0001 ff",
    "short request": "0000000b 05000000 00000000000001",
    "short response": "0000000b 06000000 00000000000001",
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_a_malformed_message_is_error_1(text):
    with pytest.raises(EmpError) as error:
        decode(bytes.fromhex(text))
    assert 1 == error.value.code


def test_bytes_come_in_any_pieces():
    data = b"".join(encode(message) for message, _ in VECTORS)
    decoder = Decoder(1000)
    messages = []
    for cut in range(len(data)):
        decoder.feed(data[cut : cut + 1])
        messages += decoder.messages()
    assert [message for message, _ in VECTORS] == messages


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_any_bytes_are_messages_or_error_1(pieces):
    """The decoder raises no other exception, and what it read is encoded to the same bytes."""
    decoder = Decoder(100)
    try:
        for piece in pieces:
            decoder.feed(piece)
            for message in decoder.messages():
                assert [message] == decode(encode(message))
    except EmpError as error:
        assert 1 == error.code  # noqa: PT017 - it may also not be raised


# Application data


def test_the_requests_of_the_document():
    data = b"""{"op": "cancel_job", "data": {
        "job_id": "ee20d7b2-0887-48bf-9982-3b9b3730f26d", "reason": "workflow_deleted"}}"""
    job_id = "ee20d7b2-0887-48bf-9982-3b9b3730f26d"
    expected = ("cancel_job", {"job_id": job_id, "reason": "workflow_deleted"})
    assert expected == decode_operation(data)
    assert ("x", {}) == decode_operation(b'{"op":"x"}')
    assert b'{"op":"x","data":{}}' == encode_operation("x")
    assert b'{"op":"x","data":{}}' == encode_operation("x", {})


def test_the_responses_of_the_document():
    data = b"""{"status": "failure", "code": "unknown_job",
        "description": "unknown job ee20", "data": {"job_id": "ee20"}}"""
    failure = EmpResult(False, {"job_id": "ee20"}, "unknown_job", "unknown job ee20")
    assert failure == decode_result(data)
    assert failure == decode_result(encode_result(failure))
    assert b'{"status":"success"}' == encode_result(EmpResult(True, {}))
    assert b'{"status":"success","data":{"a":1}}' == encode_result(EmpResult(True, {"a": 1}))


BAD_REQUESTS = [
    b"", b"{", b"[]", b"1", b"null", b'"op"', b"{}", b'{"op":1}', b'{"op":null}',
    b'{"op":"x","data":1}', b'{"op":"x","data":null}', b'{"op":"x","data":[]}',
    b'\xef\xbb\xbf{"op":"x"}', b'{"op":"\xff"}', b'{"op":"x"} {}', b'{"op":"x","data":{"a":NaN}}',
    b'{"op":"x","data":{"a":Infinity}}', b"[" * 100_000, '{"op":"x"}'.encode("utf-16"),
    b'{"op":"x","data":{"a":' + b"1" * 10_000 + b"}}",
]  # fmt: skip


@pytest.mark.parametrize("data", BAD_REQUESTS, ids=lambda data: str(data[:40]))
def test_a_bad_request_is_error_4(data):
    with pytest.raises(EmpError) as error:
        decode_operation(data)
    assert 4 == error.value.code


BAD_RESPONSES = [
    b"{}", b'{"status":"ok"}', b'{"status":"failure"}', b'{"status":"failure","description":1}',
    b'{"status":"success","data":[]}', b'{"status":1}', b'{"status":"success","code":1}',
]  # fmt: skip


@pytest.mark.parametrize("data", BAD_RESPONSES, ids=str)
def test_a_bad_response_is_error_4(data):
    with pytest.raises(EmpError) as error:
        decode_result(data)
    assert 4 == error.value.code


@given(st.binary(max_size=200))
def test_any_data_are_read_or_error_4(data):
    for decode_data in (decode_operation, decode_result):
        try:
            decode_data(data)
        except EmpError as error:
            assert 4 == error.code  # noqa: PT017 - it may also not be raised
