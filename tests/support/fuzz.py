"""How much nonsense the tests tell everybody, and what is common to nonsense over sockets.

``EVENTMQ_TEST_FUZZ=100000`` makes it more.
"""

from __future__ import annotations

import os
from pathlib import Path

import zmq

__all__ = ["GROWTH", "MESSAGES", "endless", "rss"]

#: Malformed messages for each port.
MESSAGES = int(os.environ.get("EVENTMQ_TEST_FUZZ", "20000"))

#: Bytes by which a server may grow while it is told nonsense.
GROWTH = 64 * 1024 * 1024

#: Frames of a message that has no end.
_PARTS = 50_000


def rss(pid: int | str = "self") -> int:
    """Return the bytes of memory that a process has."""
    fields = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def endless(socket: zmq.Socket[bytes]) -> None:
    """Begin a message and send parts of it, but never the last one; then leave."""
    for _ in range(_PARTS):
        try:
            socket.send(b"part", zmq.SNDMORE | zmq.DONTWAIT)
        except zmq.Again:
            break
    socket.close(0)
