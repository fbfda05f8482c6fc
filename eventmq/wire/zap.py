"""ZAP 1.0 (ZeroMQ RFC 27): the frames of an authentication request and of its answers.

libzmq asks once per connection, after the client has proven that it has the secret key, and puts
the user id of the answer on every message of that connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ADDRESS", "DOMAIN", "AuthenticationRequest", "accept", "read", "refuse"]

#: Address of the handler that libzmq asks, the same in every context.
ADDRESS = "inproc://zeromq.zap.01"

#: Domain of our sockets, so that libzmq admits no peer while there is no handler.
DOMAIN = b"eventmq"

_VERSION = b"1.0"


class AuthenticationRequest(NamedTuple):
    """Asks whether the peer at ``address`` with this key may connect to the socket of a domain."""

    request_id: bytes
    domain: bytes
    address: str
    key: bytes


def read(frames: Sequence[bytes]) -> AuthenticationRequest | None:
    """Return the request, None if it is malformed or not about CURVE: to be refused."""
    if len(frames) != 7 or frames[0] != _VERSION or frames[5] != b"CURVE":  # noqa: PLR2004
        return None
    return AuthenticationRequest(
        frames[1], frames[2], frames[3].decode(errors="replace"), frames[6]
    )


def accept(request_id: bytes, user: str) -> list[bytes]:
    """Return the answer that admits a peer as this user."""
    return [_VERSION, request_id, b"200", b"OK", user.encode(), b""]


def refuse(frames: Sequence[bytes], why: str = "this key is not authorised") -> list[bytes]:
    """Return the answer that refuses a peer."""
    request_id = frames[1] if len(frames) > 1 else b""
    return [_VERSION, request_id, b"400", why.encode(), b"", b""]
