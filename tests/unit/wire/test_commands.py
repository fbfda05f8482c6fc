"""The commands of eMQP/1.0, frame by frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eventmq.errors import ProtocolError
from eventmq.wire import commands
from eventmq.wire.commands import (
    MAX_TEXT,
    Ack,
    Admin,
    Call,
    Cancel,
    Command,
    Credit,
    Disconnect,
    Error,
    Heartbeat,
    Hello,
    Inform,
    Kbai,
    Publish,
    Ready,
    Reply,
    Request,
    Schedule,
    decode,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Messages, and their frames from frame 2 on. The first of each command has the document's form.
FORMS: list[tuple[Command, list[bytes]]] = [
    (Ack("a", "1"), [b"ACK", b"a", b"1"]),
    (Ack("a", "1", b"session"), [b"ACK", b"a", b"1", b"session"]),
    (Ack("a", "1", b"\x81\x00\x92"), [b"ACK", b"a", b"1", b"\x81\x00\x92"]),
    (Reply("r", b"\xff"), [b"REPLY", b"r", b"\xff"]),
    (Reply("r", b"", "1"), [b"REPLY", b"r", b"", b"1"]),
    (Reply("r", b"x", "1", "chunk:7"), [b"REPLY", b"r", b"x", b"1", b"chunk:7"]),
    (Heartbeat("h", "1795217419.69"), [b"HEARTBEAT", b"h", b"1795217419.69"]),
    (Heartbeat("h", "1", "held:"), [b"HEARTBEAT", b"h", b"1", b"held:"]),
    (Disconnect("d"), [b"DISCONNECT", b"d"]),
    (Kbai("k"), [b"KBAI", b"k"]),
    (Kbai("k", "KBYE"), [b"KBYE", b"k"]),
    (Request("q", "email", "", b"\xff"), [b"REQUEST", b"q", b"email", b"", b"\xff"]),
    (Publish("p", "news", "", b"\xff"), [b"PUBLISH", b"p", b"news", b"", b"\xff"]),
    (Publish("p", "news", None, b"\xff"), [b"PUBLISH", b"p", b"news", b"\xff"]),
    (Schedule("s", "q", "cron:@daily", b"b"), [b"SCHEDULE", b"s", b"q", b"cron:@daily", b"b"]),
    (
        Schedule("s", "q", "nohaste", b"b", "60", ""),
        [b"SCHEDULE", b"s", b"q", b"nohaste", b"60", b"b", b""],
    ),
    (Schedule("s", "", "", b"b", remove=True), [b"UNSCHEDULE", b"s", b"", b"", b"b"]),
    (
        Schedule("s", "", "", b"b", "-1", "* * * * *", remove=True),
        [b"UNSCHEDULE", b"s", b"", b"", b"-1", b"b", b"* * * * *"],
    ),
    (Inform("i", "", "scheduler"), [b"INFORM", b"i", b"", b"scheduler"]),
    (Inform("i", "[]", "worker", "error"), [b"INFORM", b"i", b"[]", b"worker", b"error"]),
    (Ready("r"), [b"READY", b"r"]),
    (Ready("r", "window:1"), [b"READY", b"r", b"window:1"]),
    (Hello("s"), [b"HELLO", b"s"]),
    (Admin("s", "STATUS"), [b"STATUS", b"s"]),
    (Admin("s", "ROUTER_SHOW_WORKERS"), [b"ROUTER_SHOW_WORKERS", b"s"]),
    (Admin("s", "ROUTER_SHOW_SCHEDULERS"), [b"ROUTER_SHOW_SCHEDULERS", b"s"]),
    (Call("c", "ping", b"\x80"), [b"CALL", b"c", b"ping", b"\x80"]),
    (Cancel("c", "j", "2", "why"), [b"CANCEL", b"c", b"j", b"2", b"why"]),
    (Credit("c", "j", "2", "7"), [b"CREDIT", b"c", b"j", b"2", b"7"]),
    (Error("e", "1", "version", "sorry \u2603"), [b"ERROR", b"e", b"1", b"version",
     b"sorry \xe2\x98\x83"]),
]  # fmt: skip


@pytest.mark.parametrize(("message", "rest"), FORMS, ids=lambda form: type(form).__name__)
def test_a_message_is_its_frames_and_back(message: Command, rest: list[bytes]) -> None:
    frames = [b"", b"eMQP/1.0", *rest]
    assert message.frames() == frames
    assert decode(frames) == message


def test_there_is_a_form_of_every_command() -> None:
    """A command missing in the table above would not be tested."""
    assert {form[1][0] for form in FORMS} == set(commands._DECODERS)
    assert {form[1][0].decode() for form in FORMS} >= set(commands.ADMIN_COMMANDS)


def problem_of(frames: Sequence[bytes]) -> tuple[str, str]:
    with pytest.raises(ProtocolError) as caught:
        decode(frames)
    return caught.value.code, str(caught.value)


ENVELOPE = "a message begins with an empty frame, eMQP/1.0, a command and a message id"


@pytest.mark.parametrize(
    ("frames", "code", "text"),
    [
        ([], "envelope", ENVELOPE),
        ([b""], "envelope", ENVELOPE),
        ([b"", b"eMQP/1.0", b"READY"], "envelope", ENVELOPE),
        ([b"eMQP/1.0", b"READY", b"1", b""], "envelope", ENVELOPE),
        (
            [b"", b"eMQP/2.0", b"READY", b"1"],
            "version",
            "frame 1 is b'eMQP/2.0'; this peer speaks eMQP/1.0",
        ),
        ([b"", b"eMQP/1.0", b"ready", b"1"], "unknown-command", "unknown command b'ready'"),
        ([b"", b"eMQP/1.0", b"", b"1"], "unknown-command", "unknown command b''"),
        (
            [b"", b"eMQP/1.0", b"DISCONNECT", b"1", b""],
            "frame-count",
            "DISCONNECT has 4 frames, this one 5",
        ),
        (
            [b"", b"eMQP/1.0", b"REPLY", b"1"],
            "frame-count",
            "REPLY has 5 to 7 frames, this one 4",
        ),
        (
            [b"", b"eMQP/1.0", b"SCHEDULE", b"1", b"", b"", b"", b""],
            "frame-count",
            "SCHEDULE has 7 frames (emqp-1.0) or 9 (deployed software), not 8",
        ),
        ([b"", b"eMQP/1.0", b"READY", b""], "no-id", "frame 3, the message id, is empty"),
        (
            [b"", b"eMQP/1.0", b"READY", b"\xff"],
            "not-utf8",
            "a text frame of READY is not UTF-8",
        ),
        (
            [b"", b"eMQP/1.0", b"REQUEST", b"1", b"q", b"\xed\xa0\x80", b""],
            "not-utf8",
            "a text frame of REQUEST is not UTF-8",
        ),
        (
            [b"", b"eMQP/1.0", b"REQUEST", b"1", b"q\0", b"", b""],
            "not-utf8",
            "a text frame has a NUL character",
        ),
        (
            [b"", b"eMQP/1.0", b"REQUEST", b"1", b"q", b"task:a%00b", b""],
            "not-utf8",
            "a text frame has a NUL character",
        ),
        (
            [b"", b"eMQP/1.0", b"INFORM", b"1", b"x" * (MAX_TEXT + 1), b"worker"],
            "too-large",
            "a text frame has at most 1048576 bytes",
        ),
    ],
)
def test_a_malformed_message_is_refused_exactly(frames: list[bytes], code: str, text: str) -> None:
    assert problem_of(frames) == (code, text)


@pytest.mark.parametrize("command", sorted(commands._DECODERS))
def test_every_command_has_a_least_and_a_most(command: bytes) -> None:
    """A message with one frame fewer or more is refused."""
    min_frames, max_frames, _ = commands._DECODERS[command]
    for count in (min_frames - 1, max_frames + 1):
        frames = [b"", b"eMQP/1.0", command, *[b"1"] * count]
        code = "envelope" if len(frames) < 4 else "frame-count"
        assert problem_of(frames)[0] == code


def test_bodies_are_never_decoded() -> None:
    """A body may have any bytes, and be longer than any text."""
    body = b"\xff" * (MAX_TEXT + 1)
    request = Request("1", "q", "", body)
    assert decode(request.frames()) == request


def test_a_message_that_names_nothing_unknown_in_full() -> None:
    """Texts of unknown peers are cut before they are logged or sent back."""
    assert len(problem_of([b"", b"x" * 1000, b"READY", b"1"])[1]) < 100
    assert len(problem_of([b"", b"eMQP/1.0", b"x" * 1000, b"1"])[1]) < 100
