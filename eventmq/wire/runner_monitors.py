"""What the monitor of a socket says: connections made and lost, and why a handshake failed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import zmq

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["HANDSHAKES", "event_fd", "event_of", "handshake_trouble", "lost_connection"]

#: Events of a monitor that end a handshake.
HANDSHAKES = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


def event_fd(socket: zmq.Socket[bytes]) -> int:
    """Return a descriptor that becomes readable when the socket may have a message.

    It says so once, and only behind a look that found no message: whoever polls it reads until
    there is none, before the first poll too. A poll of the socket itself costs 2 us more, also
    where nothing ever comes, as from a monitor. Source: zmq_getsockopt(3), ZMQ_FD.
    """
    fd = socket.get(zmq.FD)
    assert isinstance(fd, int)  # noqa: S101 - pyzmq types it as int or bytes
    return fd


def event_of(frames: Sequence[bytes]) -> int:
    """Return which event a message of a socket's monitor is about.

    Source: zmq_socket_monitor(3). pyzmq's own reader imports asyncio, which each command of the
    command line would pay for.
    """
    return int.from_bytes(frames[0][:2], sys.byteorder)


def handshake_trouble(event: int) -> str:
    """Return what an event of a monitor says of a failed handshake, for people; else ""."""
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return "it refused the key: the broker's administrator authorises it"
    if event & HANDSHAKES & ~zmq.EVENT_HANDSHAKE_SUCCEEDED:
        return (
            "the handshake failed: one side uses CURVE keys and the other none, or not this "
            "broker's; see the settings key_file and broker_key_file"
        )
    return ""


def lost_connection(frames: Sequence[bytes]) -> int | None:
    """Return which connection was lost, None for a handshake that failed.

    Args:
        frames: What `eventmq.wire.socket.watch_failures` told; the first has event and value.
    """
    event, value = int.from_bytes(frames[0][:2], "little"), frames[0][2:6]
    return int.from_bytes(value, "little") if event == zmq.EVENT_DISCONNECTED else None
