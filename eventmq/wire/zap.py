"""ZAP 1.0 (ZeroMQ RFC 27) as frames: who may connect is asked here, and answered elsewhere.

libzmq asks once per connection, after the client has proven that it has the secret key, and puts
the user id of the answer on every message of that connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ADDRESS", "DOMAIN", "Enquiry", "accept", "read", "refuse"]

#: Where libzmq asks, in every context.
ADDRESS = "inproc://zeromq.zap.01"

#: Said by our sockets, so that libzmq connects nobody while there is no handler.
DOMAIN = b"eventmq"

_VERSION = b"1.0"


class Enquiry(NamedTuple):
    """One question: may the peer at ``address`` with this key connect to the socket of a domain?"""

    request: bytes
    domain: bytes
    address: str
    key: bytes


def read(frames: Sequence[bytes]) -> Enquiry | None:
    """Return what is asked, None if it is not about CURVE or malformed: to be refused."""
    if len(frames) != 7 or frames[0] != _VERSION or frames[5] != b"CURVE":  # noqa: PLR2004
        return None
    return Enquiry(frames[1], frames[2], frames[3].decode(errors="replace"), frames[6])


def accept(request: bytes, user: str) -> list[bytes]:
    """Return the answer that lets a peer in, as this user."""
    return [_VERSION, request, b"200", b"OK", user.encode(), b""]


def refuse(frames: Sequence[bytes], why: str = "this key is not authorised") -> list[bytes]:
    """Return the answer that keeps a peer out."""
    request = frames[1] if len(frames) > 1 else b""
    return [_VERSION, request, b"400", why.encode(), b"", b""]
