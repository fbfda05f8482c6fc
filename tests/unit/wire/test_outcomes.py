"""Arguments of a job in ``info``: decoded only if that runs no code."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pytest

from eventmq.plugins.serializers.json_ import Json
from eventmq.plugins.serializers.msgpack_ import Msgpack
from eventmq.wire.outcomes import OutcomeReader
from eventmq.wire.results import FRAMES_TYPE, encode_frames

BODY = msgpack.packb([[1, "x"], {"to": "a@b.c"}])


class Explosive:
    """A serializer whose decoding runs code."""

    def decode(self, data: bytes, envelope: object) -> Any:
        raise AssertionError("this must not be decoded")


SERIALIZERS = {"msgpack": Msgpack(), "json": Json(), "dill": Explosive(), "mine": Explosive()}


def shown(headers: str, body: bytes | None, **more: Any) -> tuple[Any, Any, str]:
    reader = OutcomeReader(SERIALIZERS.__getitem__, {"msgpack", "dill", "mine"})  # type: ignore[arg-type]
    row = {"id": "j1", "queue": "q", "headers": headers, "error": None, "attempts": []}
    info = reader.with_arguments({**row, "body": body, "body_bytes": len(body or b""), **more})
    assert {"body", "body_bytes"}.isdisjoint(info)
    return info["args"], info["kwargs"], info["args_note"]


def test_arguments_are_decoded() -> None:
    assert ([1, "x"], {"to": "a@b.c"}, "") == shown("task:t,content-type:msgpack", BODY)


@pytest.mark.parametrize("name", ["dill", "mine"])
def test_arguments_whose_decoding_may_run_code_are_not(name: str) -> None:
    """Even if ``accept_content`` allows to decode results with it."""
    note = f"they are 3 bytes of {name}: only json and msgpack are decoded to be shown"
    assert (None, None, note) == shown(f"content-type:{name}", b"abc")


def test_what_accept_content_does_not_name_is_not_decoded() -> None:
    args, _, note = shown("content-type:json", b"[[1], {}]")
    assert args is None
    assert "'json' is not in accept_content" in note


def test_the_results_that_a_job_takes_are_left_out() -> None:
    """Once its inputs are known, they follow its own body."""
    headers = "content-type:msgpack,graph:ni"
    assert ([1, "x"], {"to": "a@b.c"}, "") == shown(headers, BODY)
    assert ([1, "x"], {"to": "a@b.c"}, "") == shown(headers, msgpack.packb([BODY, b"result"]))


def test_a_legacy_job_has_its_arguments_in_json() -> None:
    body = json.dumps(["run", {"path": "m", "callable": "f", "args": [1], "kwargs": {"a": 2}}])
    assert ([1], {"a": 2}, "") == shown("", body.encode())


def test_frames_are_shown_as_they_are() -> None:
    headers = f"content-type:{FRAMES_TYPE}"
    assert ([b"a", b"b"], {}, "") == shown(headers, encode_frames([b"a", b"b"]))


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ("", b"no json"), ("", b"[1]"), ("", b'["run", {}]'), ("", b'["run", 7]'),
        ("content-type:msgpack", msgpack.packb(7)), ("content-type:msgpack", msgpack.packb([1])),
        ("content-type:msgpack", b"\xc1"),
    ],
)  # fmt: skip
def test_what_cannot_be_decoded_is_said_not_raised(headers: str, body: bytes) -> None:
    """``info`` must not fail because of what a client has sent."""
    args, kwargs, note = shown(headers, body)
    assert (None, None) == (args, kwargs)
    assert "cannot be decoded" in note


def test_missing_arguments_have_their_reason() -> None:
    assert (None, None, "they are not kept") == shown("content-type:msgpack", None)
    note = "they have 2000000 bytes, too many to be shown"
    assert note == shown("content-type:msgpack", None, body_bytes=2_000_000)[2]


def test_a_broker_that_does_not_know_of_it_is_no_error() -> None:
    row = {"id": "j1", "queue": "q", "headers": "", "error": None}
    info = OutcomeReader(SERIALIZERS.__getitem__, {"msgpack"}).with_arguments(row)  # type: ignore[arg-type]
    assert info["args"] is None
    assert "earlier version" in info["args_note"]
