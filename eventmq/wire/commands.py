"""The commands of eMQP/1.0: one class each, which encodes and decodes the frames.

Frames are shown from frame 0 as a DEALER sends them: empty, ``eMQP/1.0``, command, message id,
then what the class lists (emqp-1.0, and ``docs/protocol.rst`` for what deployed software sends).
A ROUTER's identity frame is not part of them. Every text frame is UTF-8; bodies are bytes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "ADMIN_COMMANDS",
    "MAX_IDS",
    "MAX_ROWS",
    "MAX_TEXT",
    "PROTOCOL",
    "Ack",
    "Admin",
    "Call",
    "Cancel",
    "Command",
    "Credit",
    "Disconnect",
    "Error",
    "Heartbeat",
    "Hello",
    "Inform",
    "Kbai",
    "Publish",
    "Ready",
    "Reply",
    "Request",
    "Schedule",
    "decode",
    "read_flag",
    "read_limit",
    "read_number",
    "read_numbers",
    "read_text",
    "read_texts",
    "read_time",
]

#: Frame 1 of every message.
PROTOCOL = b"eMQP/1.0"

#: Bytes of the longest text frame; headers, FEATURES and STATUS are much shorter.
MAX_TEXT = 1024 * 1024

#: Largest number of ids in one call.
MAX_IDS = 1000

#: Largest number of rows in one listing.
MAX_ROWS = 1000

#: Queries of the administration port.
ADMIN_COMMANDS = ("STATUS", "ROUTER_SHOW_WORKERS", "ROUTER_SHOW_SCHEDULERS")


def _head(command: bytes, msg_id: str) -> list[bytes]:
    return [b"", PROTOCOL, command, msg_id.encode()]


def _optional(text: str | None) -> list[bytes]:
    """Return the frame of an optional text as a list, empty for None."""
    return [] if text is None else [text.encode()]


class Inform(NamedTuple):
    """Registers a peer. ``queues`` is the text of frame 4, see `features.parse_queues`."""

    id: str
    queues: str
    role: str
    features: str | None = None

    def frames(self) -> list[bytes]:
        """Return the frames from frame 0 on."""
        head = _head(b"INFORM", self.id)
        return [*head, self.queues.encode(), self.role.encode(), *_optional(self.features)]


class Ack(NamedTuple):
    """Receipt for a message.

    ``extra`` is the FEATURES text in the answer to INFORM and the packed exceptions by index in
    the answer to a batch (`batches.encode_exceptions`); otherwise absent.
    """

    id: str
    acked: str
    extra: bytes | None = None

    def frames(self) -> list[bytes]:
        """Return the frames from frame 0 on."""
        head = [*_head(b"ACK", self.id), self.acked.encode()]
        return head if self.extra is None else [*head, self.extra]


class Ready(NamedTuple):
    """A worker has credit: one slot for a legacy peer, ``status`` (absolute) for others."""

    id: str
    status: str | None = None

    def frames(self) -> list[bytes]:
        """Return the frames from frame 0 on."""
        return _head(b"READY", self.id) + _optional(self.status)


class Request(NamedTuple):
    """A job, or many with the header ``batch`` or ``chunk``."""

    id: str
    queue: str
    headers: str
    body: bytes

    def frames(self) -> list[bytes]:
        """Return the frames from frame 0 on."""
        return [*_head(b"REQUEST", self.id), self.queue.encode(), self.headers.encode(), self.body]


class Reply(NamedTuple):
    """A result; ``request`` is the id of the message that it answers.

    ``outcome`` is the kind of the result: to a client ``ended`` or ``part``, from a worker
    ``chunk:N``, ``part:...`` or ``progress:...``. Legacy peers leave it out.
    """

    id: str
    result: bytes
    request: str | None = None
    outcome: str | None = None

    def frames(self) -> list[bytes]:
        """Return the frames from frame 0 on."""
        frames = [*_head(b"REPLY", self.id), self.result]
        if self.request is not None:
            frames.append(self.request.encode())
            if self.outcome is not None:
                frames.append(self.outcome.encode())
        return frames


class Heartbeat(NamedTuple):
    """A sign of life. ``timestamp`` is Unix time as text; ``status`` is as in `Ready`."""

    id: str
    timestamp: str
    status: str | None = None

    def frames(self) -> list[bytes]:
        """Return the frames from frame 0 on."""
        head = _head(b"HEARTBEAT", self.id)
        return [*head, self.timestamp.encode(), *_optional(self.status)]


class Schedule(NamedTuple):
    """SCHEDULE, or UNSCHEDULE if ``remove`` is true.

    The form of the document has seven frames and the trigger in a header. The form of deployed
    software has nine: queue, headers, interval, body, cron.
    """

    id: str
    queue: str
    headers: str
    body: bytes
    interval: str | None = None
    cron: str | None = None
    remove: bool = False

    def frames(self) -> list[bytes]:
        """Return the frames from frame 0 on."""
        command = b"UNSCHEDULE" if self.remove else b"SCHEDULE"
        head = [*_head(command, self.id), self.queue.encode(), self.headers.encode()]
        if self.interval is None:
            return [*head, self.body]
        return [*head, self.interval.encode(), self.body, (self.cron or "").encode()]


class Publish(NamedTuple):
    """A message for a topic: six frames without headers (None), seven with them."""

    id: str
    topic: str
    headers: str | None
    body: bytes

    def frames(self) -> list[bytes]:
        """Return the frames from frame 0 on."""
        head = _head(b"PUBLISH", self.id)
        return [*head, self.topic.encode(), *_optional(self.headers), self.body]


class Kbai(NamedTuple):
    """The sender leaves; ``word`` is KBAI (document) or KBYE (deployed software)."""

    id: str
    word: str = "KBAI"

    def frames(self) -> list[bytes]:
        """Return the frames from frame 0 on."""
        return _head(self.word.encode(), self.id)


class Disconnect(NamedTuple):
    """Asks the receiver to stop, on behalf of an administrator."""

    id: str

    def frames(self) -> list[bytes]:
        """Return the frames from frame 0 on."""
        return _head(b"DISCONNECT", self.id)


class Hello(NamedTuple):
    """First message of the command line of EventMQ 0.3, which decodes any answer as JSON."""

    id: str

    def frames(self) -> list[bytes]:
        """Return the frames from frame 0 on."""
        return _head(b"HELLO", self.id)


class Admin(NamedTuple):
    """A query on the administration port: one of `ADMIN_COMMANDS`."""

    id: str
    name: str

    def frames(self) -> list[bytes]:
        """Return the frames from frame 0 on."""
        return _head(self.name.encode(), self.id)


class Call(NamedTuple):
    """Extension ``call``: a named operation with packed arguments, see ``docs/protocol.rst``."""

    id: str
    name: str
    arguments: bytes

    def frames(self) -> list[bytes]:
        """Return the frames from frame 0 on."""
        return [*_head(b"CALL", self.id), self.name.encode(), self.arguments]


class Cancel(NamedTuple):
    """Extension ``cancel``: the broker tells a worker to stop one delivery of a job."""

    id: str
    job: str
    delivery: str
    reason: str

    def frames(self) -> list[bytes]:
        """Return the frames from frame 0 on."""
        return [*_head(b"CANCEL", self.id), *map(str.encode, self[1:])]


class Credit(NamedTuple):
    """Extension ``stream``: acknowledges parts, with their absolute number. It is never answered.

    From a reader ``subject`` is the message id of its call ``stream``; to a worker it is the job.
    """

    id: str
    subject: str
    delivery: str
    taken: str

    def frames(self) -> list[bytes]:
        """Return the frames from frame 0 on."""
        return [*_head(b"CREDIT", self.id), *map(str.encode, self[1:])]

    def numbers(self) -> tuple[int, int]:
        """Return delivery and number of parts.

        Raises:
            ProtocolError: One of them is not a number.
        """
        pair = self.delivery, self.taken
        if not all(text.isascii() and text.isdigit() and len(text) < 17 for text in pair):  # noqa: PLR2004
            raise ProtocolError(
                f"CREDIT says {pair!r}; allowed are a delivery and a number of parts",
                code="bad-arguments",
            )
        return int(self.delivery), int(self.taken)


class Error(NamedTuple):
    """Extension ``error``: the reason why the message ``request`` was refused, as code and text."""

    id: str
    request: str
    code: str
    text: str

    def frames(self) -> list[bytes]:
        """Return the frames from frame 0 on."""
        return [*_head(b"ERROR", self.id), *map(str.encode, self[1:])]


Command = (
    Inform | Ack | Ready | Request | Reply | Heartbeat | Schedule | Publish | Kbai | Disconnect
    | Hello | Admin | Call | Cancel | Credit | Error
)  # fmt: skip


def _text(frames: Sequence[bytes]) -> list[str]:
    texts = _any_text(frames)
    whole = " ".join(texts)
    if "\0" in whole or "%00" in whole:  # %00 decodes to NUL
        raise ProtocolError("a text frame has a NUL character", code="not-utf8")
    return texts


def _any_text(frames: Sequence[bytes]) -> list[str]:
    if max(map(len, frames)) > MAX_TEXT:
        raise ProtocolError(f"a text frame has at most {MAX_TEXT} bytes", code="too-large")
    return [str(frame, "utf-8") for frame in frames]


def _ack(frames: Sequence[bytes]) -> Ack:
    msg_id, acked = _text(frames[:2])
    return Ack(msg_id, acked, *frames[2:])


def _request(frames: Sequence[bytes]) -> Request:
    msg_id, queue, headers = _text(frames[:3])
    return Request(msg_id, queue, headers, frames[3])


def _reply(frames: Sequence[bytes]) -> Reply:
    msg_id, *texts = _text([frames[0], *frames[2:]])
    return Reply(msg_id, frames[1], *texts)


def _schedule(frames: Sequence[bytes], *, remove: bool) -> Schedule:
    msg_id, queue, headers = _text(frames[:3])
    if len(frames) == 4:  # noqa: PLR2004 - the document's form
        return Schedule(msg_id, queue, headers, frames[3], remove=remove)
    if len(frames) == 5:  # noqa: PLR2004 - neither form
        raise ProtocolError(
            "SCHEDULE has 7 frames (emqp-1.0) or 9 (deployed software), not 8", code="frame-count"
        )
    interval, cron = _text([frames[3], frames[5]])
    return Schedule(msg_id, queue, headers, frames[4], interval, cron, remove=remove)


def _publish(frames: Sequence[bytes]) -> Publish:
    msg_id, topic, *headers = _text(frames[:-1])
    return Publish(msg_id, topic, headers[0] if headers else None, frames[-1])


#: Old names of calls, from before 1.0 -> current names.
_OLD_CALLS = {"sweep": "bulk"}


def _call(frames: Sequence[bytes]) -> Call:
    msg_id, name = _text(frames[:2])
    return Call(msg_id, _OLD_CALLS.get(name, name), frames[2])


#: Command frame -> (smallest and largest number of frames from frame 3 on, decoder of these
#: frames).
_DECODERS: dict[bytes, tuple[int, int, Callable[[Sequence[bytes]], Command]]] = {
    b"REQUEST": (4, 4, _request),
    b"REPLY": (2, 4, _reply),
    b"ACK": (2, 3, _ack),
    b"HEARTBEAT": (2, 3, lambda f: Heartbeat(*_text(f))),
    b"READY": (1, 2, lambda f: Ready(*_text(f))),
    b"INFORM": (3, 4, lambda f: Inform(*_text(f))),
    b"CALL": (3, 3, _call),
    b"ERROR": (4, 4, lambda f: Error(*_any_text(f))),  # the message that it quotes may have a NUL
    b"CANCEL": (4, 4, lambda f: Cancel(*_text(f))),
    b"CREDIT": (4, 4, lambda f: Credit(*_text(f))),
    b"PUBLISH": (3, 4, _publish),
    b"SCHEDULE": (4, 6, lambda f: _schedule(f, remove=False)),
    b"UNSCHEDULE": (4, 6, lambda f: _schedule(f, remove=True)),
    b"KBAI": (1, 1, lambda f: Kbai(_text(f)[0], "KBAI")),
    b"KBYE": (1, 1, lambda f: Kbai(_text(f)[0], "KBYE")),
    b"DISCONNECT": (1, 1, lambda f: Disconnect(*_text(f))),
    b"HELLO": (1, 1, lambda f: Hello(*_text(f))),
    b"STATUS": (1, 1, lambda f: Admin(_text(f)[0], "STATUS")),
    b"ROUTER_SHOW_WORKERS": (1, 1, lambda f: Admin(_text(f)[0], "ROUTER_SHOW_WORKERS")),
    b"ROUTER_SHOW_SCHEDULERS": (1, 1, lambda f: Admin(_text(f)[0], "ROUTER_SHOW_SCHEDULERS")),
}


def decode(frames: Sequence[bytes]) -> Command:
    """Decode one message.

    Args:
        frames: From frame 0 (empty) on, without a ROUTER's identity.

    Raises:
        ProtocolError: The codes are ``envelope`` (frame 0 is not empty, or too few frames),
            ``version``, ``unknown-command``, ``frame-count``, ``no-id``, ``not-utf8`` and
            ``too-large`` (a text frame over `MAX_TEXT`).
    """
    if len(frames) < 4 or frames[0]:  # noqa: PLR2004 - the shortest message
        raise ProtocolError(
            "a message begins with an empty frame, eMQP/1.0, a command and a message id",
            code="envelope",
        )
    if frames[1] != PROTOCOL:
        raise ProtocolError(
            f"frame 1 is {bytes(frames[1][:40])!r}; this peer speaks eMQP/1.0", code="version"
        )
    entry = _DECODERS.get(frames[2])
    if entry is None:
        raise ProtocolError(f"unknown command {bytes(frames[2][:40])!r}", code="unknown-command")
    min_frames, max_frames, decoder = entry
    if not min_frames <= len(frames) - 3 <= max_frames:
        allowed = (
            str(min_frames + 3)
            if min_frames == max_frames
            else f"{min_frames + 3} to {max_frames + 3}"
        )
        raise ProtocolError(
            f"{str(frames[2], 'ascii')} has {allowed} frames, this one {len(frames)}",
            code="frame-count",
        )
    if not frames[3]:
        raise ProtocolError("frame 3, the message id, is empty", code="no-id")
    try:
        return decoder(frames[3:])
    except UnicodeDecodeError:
        raise ProtocolError(
            f"a text frame of {str(frames[2], 'ascii')} is not UTF-8", code="not-utf8"
        ) from None


# Arguments of CALL


def _read(
    arguments: Mapping[str, Any],
    name: str,
    what: str,
    fits: Callable[[Any], bool],
    default: Any = None,
) -> Any:
    """Return a checked argument of a call; ``what`` describes the allowed values in the error."""
    value = arguments.get(name, default)
    if not fits(value):
        raise ProtocolError(f"argument {name!r} is {what}", code="bad-arguments")
    return value


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def read_text(arguments: Mapping[str, Any], name: str) -> str:
    """Return a text, "" if it was left out."""
    return str(_read(arguments, name, "a str", lambda value: isinstance(value, str), ""))


def read_texts(arguments: Mapping[str, Any], name: str) -> list[str]:
    """Return a list of texts."""

    def fits(value: Any) -> bool:
        few = isinstance(value, list) and len(value) <= MAX_IDS
        return few and all(isinstance(item, str) for item in value)

    return list(_read(arguments, name, f"a list of at most {MAX_IDS} str", fits))


def read_flag(arguments: Mapping[str, Any], name: str) -> bool:
    """Return a bool, False if it was left out."""
    return bool(
        _read(arguments, name, "a bool", lambda value: isinstance(value, bool), default=False)
    )


def read_number(arguments: Mapping[str, Any], name: str) -> int:
    """Return a whole number from 0; 0 if it was left out."""
    return int(_read(arguments, name, "a whole number from 0", _is_number, 0))


def read_numbers(arguments: Mapping[str, Any], name: str) -> list[int]:
    """Return a list of whole numbers, empty if it was left out."""

    def fits(value: Any) -> bool:
        few = isinstance(value, list) and len(value) <= MAX_IDS
        return value is None or (few and all(map(_is_number, value)))

    what = f"a list of at most {MAX_IDS} whole numbers from 0"
    return list(_read(arguments, name, what, fits) or ())


def read_time(arguments: Mapping[str, Any], name: str) -> float:
    """Return a Unix time in seconds, 0.0 if it was left out."""

    def fits(value: Any) -> bool:
        return type(value) in {int, float} and math.isfinite(value)

    return float(_read(arguments, name, "a Unix time in seconds", fits, 0.0))


def read_limit(arguments: Mapping[str, Any]) -> int:
    """Return the requested number of rows; `MAX_ROWS` if it was left out."""
    value = arguments.get("limit", MAX_ROWS)
    if not isinstance(value, int) or not 0 < value <= MAX_ROWS:
        raise ProtocolError(f"limit is 1 to {MAX_ROWS}", code="bad-arguments")
    return value
