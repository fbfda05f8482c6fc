"""FEATURES, STATUS and QUEUES, which peers announce about themselves; and routing ids.

FEATURES is the last frame of INFORM and ACK: names of extensions and ``name:value`` pairs,
separated by commas; a list as value is joined by ``+``. Workers with FEATURES send STATUS in READY
and HEARTBEAT; its values are absolute, never deltas. Both have the syntax of the header field
(`eventmq.headers`).

A broker recognises peers of EventMQ 1 by their routing ids before their first message. Software
without FEATURES decodes a routing id as UTF-8, and the 0.3 router ends at one that is not UTF-8,
such as those that libzmq makes. So every connecting socket of EventMQ 1 has a routing id in ASCII.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from eventmq.errors import ProtocolError
from eventmq.headers import split_headers
from eventmq.wire.owner import OwnerInfo

__all__ = [
    "EXTENSIONS",
    "ROUTING_PREFIX",
    "Features",
    "Status",
    "format_queues",
    "format_waiting",
    "is_ours",
    "is_version_0_3",
    "parse_queues",
    "parse_waiting",
    "routing_id",
]

#: The extensions of this implementation, in the order of the table in ``docs/protocol.rst``.
EXTENSIONS = (
    "session", "batch", "chunk", "outcome", "call", "cancel", "error", "graph", "stream", "inputs",
    "ended", "late-ack", "owner", "logs",
)  # fmt: skip

_SAFE = "_.-~*/"

#: Prefix of the routing ids of clients, workers and schedulers of EventMQ 1.
ROUTING_PREFIX = "eventmq1:"

#: Bytes of the longest routing id that libzmq accepts.
_MAX_BYTES = 255

#: The routing ids that EventMQ 0.3 makes: a random UUID as text.
_UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def _join(values: tuple[str, ...]) -> str:
    return "+".join(quote(value, safe=_SAFE) for value in values)


def _split(text: str) -> tuple[str, ...]:
    return tuple(unquote(value) for value in text.split("+")) if text else ()


def _numbers(text: str, name: str) -> tuple[int, ...]:
    if not text:
        return ()
    parts = text.split("+")
    if not all(part.isascii() and part.isdigit() and len(part) < 16 for part in parts):  # noqa: PLR2004
        raise ProtocolError(
            f"{name} is {text[:80]!r}; allowed are whole numbers joined by +", code="bad-features"
        )
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
        name: INFORM: name of the peer for people, such as ``host:pid``.
        tasks: INFORM of a worker: names of the tasks that it knows.
        callables: INFORM of a worker: patterns of dotted paths that it runs (legacy jobs).
        pool: INFORM of a worker: name of its pool, for people.
        slots: INFORM of a worker: how many jobs it can run at once, for people.
        version: INFORM of a worker: version of its software, for people.
        received: INFORM of a worker: highest chunk number that it has received.
        held: INFORM of a worker: numbers of the chunks that it holds and has not answered fully.
        epoch: ACK: number of this run of the broker.
        store: ACK: id of the broker's store.
        max_frame: ACK: longest frame in bytes that the broker accepts.
        publish: ACK: address of the broker's PUB socket, empty if it has none.
        owner: ACK of a broker with a shared store: its report about the owner.
        sender: INFORM of a standby to the owner of the store: grant of the peer whose messages it
            relays (`eventmq.broker.grants`), empty without keys.
    """

    extensions: tuple[str, ...] = EXTENSIONS
    session: str = ""
    name: str = ""
    tasks: tuple[str, ...] = ()
    callables: tuple[str, ...] = ()
    pool: str = ""
    slots: int = 0
    version: str = ""
    received: int = 0
    held: tuple[int, ...] = ()
    epoch: int = 0
    store: str = ""
    max_frame: int = 0
    publish: str = ""
    owner: OwnerInfo | None = None
    sender: str = ""

    def format(self) -> str:
        """Return the text of the frame."""
        items = [name for name in self.extensions if self.owner is None or name != "owner"]
        for name in ("session", "name", "pool", "version", "store", "publish", "sender"):
            if value := getattr(self, name):
                items.append(f"{name}:{quote(value, safe=_SAFE)}")
        for name in ("tasks", "callables"):
            if values := getattr(self, name):
                items.append(f"{name}:{_join(values)}")
        numbers = (self.slots, self.received, self.epoch, self.max_frame)
        pairs = zip(("slots", "received", "epoch", "max-frame"), numbers, strict=True)
        items += [f"{wire}:{number}" for wire, number in pairs if number]
        if self.held:
            items.append(f"held:{'+'.join(map(str, self.held))}")
        if self.owner is not None:
            items.append(self.owner.format())
        return ",".join(items)

    @classmethod
    def parse(cls, text: str) -> Features:
        """Read a frame; ignore unknown names.

        Raises:
            ProtocolError: A number or the owner is malformed.
        """
        pairs = dict(split_headers(text))
        return cls(
            extensions=tuple(name for name in EXTENSIONS if name in pairs),
            session=unquote(pairs.get("session", "")),
            name=unquote(pairs.get("name", "")),
            tasks=_split(pairs.get("tasks", "")),
            callables=_split(pairs.get("callables", "")),
            pool=unquote(pairs.get("pool", "")),
            slots=_number(pairs.get("slots", ""), "slots"),
            version=unquote(pairs.get("version", "")),
            received=_number(pairs.get("received", ""), "received"),
            held=_numbers(pairs.get("held", ""), "held"),
            epoch=_number(pairs.get("epoch", ""), "epoch"),
            store=unquote(pairs.get("store", "")),
            max_frame=_number(pairs.get("max-frame", ""), "max-frame"),
            publish=unquote(pairs.get("publish", "")),
            owner=OwnerInfo.parse(pairs.get("owner", "")),
            sender=unquote(pairs.get("sender", "")),
        )


@dataclass(frozen=True, slots=True)
class Status:
    """Status of a worker: the chunks that it holds, and its credit.

    Attributes:
        received: Highest chunk number received in this session.
        window: Number of chunks that the worker wants to hold at a time.
        held: Numbers of its held chunks.
        jobs: Number of jobs that it wants to hold at a time, 0 if it counts only chunks.
        rss: Resident memory of its processes in bytes, 0 if it is not known.
    """

    received: int
    window: int
    held: tuple[int, ...]
    jobs: int = 0
    rss: int = 0

    def format(self) -> str:
        """Return the text of the frame."""
        held = "+".join(map(str, self.held))
        jobs = f",jobs:{self.jobs}" if self.jobs else ""
        rss = f",rss:{self.rss}" if self.rss else ""
        return f"received:{self.received},window:{self.window},held:{held}{jobs}{rss}"

    @classmethod
    def parse(cls, text: str) -> Status:
        """Read a frame.

        Raises:
            ProtocolError: A number is malformed.
        """
        pairs = dict(split_headers(text))
        return cls(
            _number(pairs.get("received", ""), "received"),
            _number(pairs.get("window", ""), "window"),
            _numbers(pairs.get("held", ""), "held"),
            _number(pairs.get("jobs", ""), "jobs"),
            _number(pairs.get("rss", ""), "rss"),
        )


def format_waiting(jobs: int | None, owner: OwnerInfo | None = None) -> str | None:
    """Return frame 5 of a broker's HEARTBEAT, None if it is not needed.

    Args:
        jobs: For a worker with a session: number of waiting jobs in its queues.
        owner: For a peer with the extension ``owner``: report about the owner of a shared store.
    """
    items = [] if jobs is None else [f"waiting:{jobs}"]
    if owner is not None:
        items.append(owner.format())
    return ",".join(items) or None


def parse_waiting(text: str) -> int | None:
    """Return the number of jobs that wait for a worker, None if it is not in the frame.

    Raises:
        ProtocolError: The number is malformed.
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


def _is_queue(weight: int, name: str) -> bool:
    """Return whether weight and name are valid; JSON allows NUL and lone surrogates in a name."""
    whole = not any(char == "\0" or "\ud800" <= char <= "\udfff" for char in name)
    return weight is not True and 0 < weight < 1 << 31 and bool(name) and whole


def parse_queues(text: str) -> tuple[tuple[int, str], ...]:
    """Read the QUEUES frame of INFORM.

    Args:
        text: JSON ``[[10, "default"], ...]`` as deployed software sends, or the document's
            ``[40, "email"]``, also several of these separated by commas. Empty for no queue.

    Returns:
        (weight, name) pairs, in order.

    Raises:
        ProtocolError: The text is malformed, or a weight is below 1.
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
            case [int(weight), str(name)] if _is_queue(weight, name):
                pairs.append((weight, name))
            case _:
                msg = f'QUEUES is {text[:80]!r}; allowed is JSON [[weight, "name"], ...]'
                raise ProtocolError(f"{msg}, weights from 1", code="bad-queues")
    return tuple(pairs)


def routing_id(kind: str, unique: str) -> bytes:
    """Return a routing id.

    Args:
        kind: Kind of the peer: ``client``, ``worker`` or ``scheduler``.
        unique: A text that is unique among all sockets.

    Raises:
        ValueError: The routing id would be too long, or not printable ASCII.
    """
    text = f"{ROUTING_PREFIX}{kind}.{unique}"
    if not text.isascii() or not text.isprintable() or len(text) > _MAX_BYTES:
        raise ValueError(
            f"a routing id has at most {_MAX_BYTES} printable ASCII characters, not {text[:80]!r}"
        )
    return text.encode("ascii")


def is_ours(identity: bytes) -> bool:
    """Return whether a routing id is that of a peer which understands ERROR ``inform-again``."""
    return identity.startswith(ROUTING_PREFIX.encode())


def is_version_0_3(identity: bytes) -> bool:
    """Return whether a routing id is one that EventMQ 0.3 makes."""
    return _UUID.fullmatch(identity) is not None
