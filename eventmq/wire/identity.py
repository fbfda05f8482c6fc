"""Routing ids: how a broker tells peers of EventMQ 1 from others before their first message.

Software without FEATURES decodes a routing id as UTF-8, and the 0.3 router ends where it is none,
as those that libzmq makes are. So every socket of EventMQ 1 that connects has one in ASCII.
"""

from __future__ import annotations

import re

__all__ = ["PREFIX", "is_ours", "is_version_0_3", "routing_id"]

#: What the routing ids of clients, workers and schedulers of EventMQ 1 begin with.
PREFIX = "eventmq1:"

_PREFIX = PREFIX.encode()

#: Bytes of the longest routing id that libzmq takes.
_MAX_BYTES = 255

#: The routing ids that EventMQ 0.3 makes: a random UUID as text.
_UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def routing_id(kind: str, unique: str) -> bytes:
    """Return a routing id.

    Args:
        kind: Kind of the peer: ``client``, ``worker`` or ``scheduler``.
        unique: A text that no other socket has.

    Raises:
        ValueError: It would be no routing id, or one that is not ASCII.
    """
    text = f"{PREFIX}{kind}.{unique}"
    if not text.isascii() or not text.isprintable() or len(text) > _MAX_BYTES:
        msg = f"a routing id has at most {_MAX_BYTES} printable ASCII characters, not {text[:80]!r}"
        raise ValueError(msg)
    return text.encode("ascii")


def is_ours(identity: bytes) -> bool:
    """Return whether a routing id is one of a peer that understands ERROR ``inform-again``."""
    return identity.startswith(_PREFIX)


def is_version_0_3(identity: bytes) -> bool:
    """Return whether a routing id is one that EventMQ 0.3 makes."""
    return _UUID.fullmatch(identity) is not None
