"""Encoding of values and errors, for peers with FEATURES and for legacy peers."""

from __future__ import annotations

import json

import pytest

from eventmq.job import JobState
from eventmq.wire.batches import pack
from eventmq.wire.results import (
    MESSAGE_LIMIT,
    TRACEBACK_LIMIT,
    RemoteError,
    decode_error,
    encode_error,
    legacy_result,
)


def test_an_error_comes_back_as_it_was() -> None:
    error = RemoteError("shop.OutOfStock", "none left", "Traceback ...", ("book", 3))
    assert decode_error(encode_error(error)) == error


def test_an_error_without_arguments_has_none() -> None:
    error = RemoteError("builtins.ValueError", "no")
    assert decode_error(encode_error(error)) == error


@pytest.mark.parametrize("argument", [object(), 1 << 70, {1, 2}, 1j, "\ud800"])
def test_arguments_that_are_no_plain_data_are_left_out(argument: object) -> None:
    """Any client can read an error, whatever serializer the task uses."""
    error = decode_error(encode_error(RemoteError("t", "m", "", (argument,))))
    assert error == RemoteError("t", "m", "", None)


def test_arguments_that_are_too_long_are_left_out() -> None:
    error = encode_error(RemoteError("t", "m", "", ("x" * 10 * TRACEBACK_LIMIT,)))
    assert decode_error(error).arguments is None


def test_a_long_traceback_loses_its_middle() -> None:
    """Its beginning and its end, 16 KiB of text, are the most useful."""
    traceback = "begin" + "x" * 2 * TRACEBACK_LIMIT + "end"
    short = decode_error(encode_error(RemoteError("t", "m", traceback))).traceback
    assert len(short) <= TRACEBACK_LIMIT + 20
    assert short.startswith("begin")
    assert "\n  [...]\n" in short
    assert short.endswith("end")


def test_a_long_message_is_cut() -> None:
    long = RemoteError("t", "x" * 2 * MESSAGE_LIMIT)
    assert decode_error(encode_error(long)).message == "x" * MESSAGE_LIMIT


@pytest.mark.parametrize("data", [b"why", pack(["a", "b"]), pack({}), pack([1, 2, 3, 4])])
def test_what_is_no_error_becomes_a_message(data: bytes) -> None:
    """A job fails with any bytes that its worker sends."""
    assert decode_error(data) == RemoteError("", data.decode(errors="replace"))


def test_arguments_that_are_no_list_are_none() -> None:
    assert decode_error(pack(["t", "m", "", 7])) == RemoteError("t", "m", "", None)


# Legacy peers


def legacy_value(state: JobState, result: bytes | None = None) -> object:
    return json.loads(legacy_result(state, result))


def test_a_legacy_peer_gets_text_as_it_came() -> None:
    assert legacy_result(JobState.SUCCEEDED, b'{"value": 4}') == b'{"value": 4}'


@pytest.mark.parametrize("result", [None, b"", b"\xff\xfe"])
def test_no_information_is_a_true_value(result: bytes | None) -> None:
    """emqp-1.0, Headers: if there is no information, reply with a True value."""
    assert legacy_value(JobState.SUCCEEDED, result) == {"value": True}


def test_an_exception_is_its_text() -> None:
    error = encode_error(RemoteError("builtins.KeyError", "'x'"))
    assert legacy_value(JobState.FAILED, error) == {"value": "'x'"}


def test_the_error_of_a_legacy_job_is_text_already() -> None:
    assert legacy_value(JobState.FAILED, b"division by zero") == {"value": "division by zero"}


def test_an_exception_without_text_is_its_type() -> None:
    error = encode_error(RemoteError("builtins.KeyError", ""))
    assert legacy_value(JobState.FAILED, error) == {"value": "builtins.KeyError"}


def test_a_time_out_is_the_text_that_deployed_software_says() -> None:
    error = encode_error(RemoteError("eventmq.errors.TimeLimitExceeded", "5 s"))
    assert legacy_value(JobState.FAILED, error) == {"value": "TimeoutError"}


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED])
def test_an_end_without_an_error_is_its_state(state: JobState) -> None:
    assert legacy_value(state) == {"value": state.value}
