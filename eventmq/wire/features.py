"""FEATURES, STATUS and QUEUES: what peers announce about themselves.

FEATURES is the csv frame that ends INFORM and ACK: names of extensions and ``name:value`` pairs;
a value that is a list is joined by ``+``. STATUS is sent in READY and HEARTBEAT by workers with
FEATURES, absolute and never a delta. Both have the syntax of the header field (`eventmq.headers`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from eventmq.errors import ProtocolError
from eventmq.headers import split_headers

__all__ = [
    "EXTENSIONS",
    "Features",
    "Status",
    "format_queues",
    "format_waiting",
    "parse_queues",
    "parse_waiting",
]

#: The extensions of this implementation, in the order of the table in ``docs/protocol.rst``.
EXTENSIONS = (
    "session", "batch", "chunk", "outcome", "call", "cancel", "error", "graph", "stream", "inputs",
    "ended", "late-ack",
)  # fmt: skip

_SAFE = "_.-~*/"


def _join(values: tuple[str, ...]) -> str:
    return "+".join(quote(value, safe=_SAFE) for value in values)


def _split(text: str) -> tuple[str, ...]:
    return tuple(unquote(value) for value in text.split("+")) if text else ()


def _numbers(text: str, name: str) -> tuple[int, ...]:
    if not text:
        return ()
    parts = text.split("+")
    if not all(part.isascii() and part.isdigit() and len(part) < 16 for part in parts):  # noqa: PLR2004
        msg = f"{name} is {text[:80]!r}; allowed are whole numbers joined by +"
        raise ProtocolError(msg, code="bad-features")
    return tuple(map(int, parts))


def _number(text: str, name: str) -> int:
    numbers = _numbers(text, name)
    if len(numbers) > 1:
        raise ProtocolError(f"{name} is one number, not {text[:80]!r}", code="bad-features")
    return numbers[0] if numbers else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """A FEATURES frame.

    Attributes:
        extensions: Names of extensions that the peer understands.
        session: INFORM: the id of this run of the peer.
        name: INFORM: what people call the peer, such as ``host:pid``.
        tasks: INFORM of a worker: names of the tasks it knows.
        callables: INFORM of a worker: patterns of dotted paths that it runs (legacy jobs).
        received: INFORM of a worker: highest chunk number it ever received.
        held: INFORM of a worker: numbers of the chunks it holds and has not answered fully.
        epoch: ACK: number of this run of the broker.
        store: ACK: id of the broker's store.
        max_frame: ACK: longest frame in bytes that the broker takes.
        publish: ACK: address of the broker's PUB socket, empty if it has none.
    """

    extensions: tuple[str, ...] = EXTENSIONS
    session: str = ""
    name: str = ""
    tasks: tuple[str, ...] = ()
    callables: tuple[str, ...] = ()
    received: int = 0
    held: tuple[int, ...] = ()
    epoch: int = 0
    store: str = ""
    max_frame: int = 0
    publish: str = ""

    def format(self) -> str:
        """Return the text of the frame."""
        items = list(self.extensions)
        for name in ("session", "name", "store", "publish"):
            if value := getattr(self, name):
                items.append(f"{name}:{quote(value, safe=_SAFE)}")
        for name in ("tasks", "callables"):
            if values := getattr(self, name):
                items.append(f"{name}:{_join(values)}")
        for wire, number in (
            ("received", self.received),
            ("epoch", self.epoch),
            ("max-frame", self.max_frame),
        ):
            if number:
                items.append(f"{wire}:{number}")
        if self.held:
            items.append(f"held:{'+'.join(map(str, self.held))}")
        return ",".join(items)

    @classmethod
    def parse(cls, text: str) -> Features:
        """Read a frame; unknown names are passed over.

        Raises:
            ProtocolError: A number is not one.
        """
        pairs = dict(split_headers(text))
        return cls(
            extensions=tuple(name for name in EXTENSIONS if name in pairs),
            session=unquote(pairs.get("session", "")),
            name=unquote(pairs.get("name", "")),
            tasks=_split(pairs.get("tasks", "")),
            callables=_split(pairs.get("callables", "")),
            received=_number(pairs.get("received", ""), "received"),
            held=_numbers(pairs.get("held", ""), "held"),
            epoch=_number(pairs.get("epoch", ""), "epoch"),
            store=unquote(pairs.get("store", "")),
            max_frame=_number(pairs.get("max-frame", ""), "max-frame"),
            publish=unquote(pairs.get("publish", "")),
        )


@dataclass(frozen=True, slots=True)
class Status:
    """Status of a worker: the chunks that it holds, and its credit.

    Attributes:
        received: Highest chunk number received in this session.
        window: How many chunks the worker wants to hold at a time.
        held: Numbers of its held chunks.
        jobs: How many jobs it wants to hold at a time, 0 if it counts chunks only.
    """

    received: int
    window: int
    held: tuple[int, ...]
    jobs: int = 0

    def format(self) -> str:
        """Return the text of the frame."""
        held = "+".join(map(str, self.held))
        jobs = f",jobs:{self.jobs}" if self.jobs else ""
        return f"received:{self.received},window:{self.window},held:{held}{jobs}"

    @classmethod
    def parse(cls, text: str) -> Status:
        """Read a frame.

        Raises:
            ProtocolError: A number is not one.
        """
        pairs = dict(split_headers(text))
        return cls(
            _number(pairs.get("received", ""), "received"),
            _number(pairs.get("window", ""), "window"),
            _numbers(pairs.get("held", ""), "held"),
            _number(pairs.get("jobs", ""), "jobs"),
        )


def format_waiting(jobs: int) -> str:
    """Write the frame of a broker's HEARTBEAT to a worker with a session."""
    return f"waiting:{jobs}"


def parse_waiting(text: str) -> int | None:
    """Return how many jobs wait for a worker, None if the broker does not say.

    Raises:
        ProtocolError: It is no number.
    """
    value = dict(split_headers(text)).get("waiting")
    return None if value is None else _number(value, "waiting")


def format_queues(queues: tuple[tuple[int, str], ...]) -> str:
    """Write the QUEUES frame: JSON ``[[weight, name], ...]``."""
    return json.dumps([list(queue) for queue in queues])


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_weight(number: int) -> bool:
    return number is not True and 0 < number < 1 << 31


def _is_name(text: str) -> bool:
    """Return whether a name can be a frame: JSON can contain half of a surrogate pair."""
    return bool(text) and not any("\ud800" <= char <= "\udfff" for char in text)


def parse_queues(text: str) -> tuple[tuple[int, str], ...]:
    """Read the QUEUES frame of INFORM.

    Args:
        text: JSON ``[[10, "default"], ...]`` as deployed software sends, or the document's
            ``[40, "email"]``, also several of those separated by commas. Empty is no queue.

    Returns:
        (weight, name) pairs, in order.

    Raises:
        ProtocolError: It is not that, or a weight is below 1.
    """
    if not text.strip():
        return ()
    quoted = text.replace("'", '"')
    values = map(_json, (text, quoted, f"[{quoted}]"))
    value = next((value for value in values if value is not None), None)
    if isinstance(value, list) and len(value) == 2 and isinstance(value[0], int):  # noqa: PLR2004
        value = [value]
    pairs = []
    for entry in value if isinstance(value, list) else [None]:
        match entry:
            case [int(weight), str(name)] if _is_weight(weight) and _is_name(name):
                pairs.append((weight, name))
            case _:
                msg = f'QUEUES is {text[:80]!r}; allowed is JSON [[weight, "name"], ...]'
                raise ProtocolError(f"{msg}, weights from 1", code="bad-queues")
    return tuple(pairs)
