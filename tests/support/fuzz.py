"""Fuzzing over sockets: the number of malformed messages, and common helpers.

``EVENTMQ_TEST_FUZZ=100000`` sets a higher number.
"""

from __future__ import annotations

import os
from pathlib import Path

import zmq

__all__ = ["GROWTH", "MESSAGES", "endless", "rss"]

#: Malformed messages for each port.
MESSAGES = int(os.environ.get("EVENTMQ_TEST_FUZZ", "20000"))

#: Bytes by which a server may grow while it gets malformed messages.
GROWTH = 64 * 1024 * 1024

#: Number of frames of an endless message.
_PARTS = 50_000


def rss(pid: int | str = "self") -> int:
    """Return the resident bytes of a process."""
    fields = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def endless(socket: zmq.Socket[bytes]) -> None:
    """Start a message, send frames but never the last one, then disconnect."""
    for _ in range(_PARTS):
        try:
            socket.send(b"part", zmq.SNDMORE | zmq.DONTWAIT)
        except zmq.Again:
            break
    socket.close(0)
