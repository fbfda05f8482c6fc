"""Visitors: peers that connect and leave, made of a few bytes of ZMTP over plain sockets.

They are cheap, and can do what no library does: leave by a reset, or stop in the middle of a
handshake or of a message.
"""

from __future__ import annotations

import random
import socket
import struct
from collections import Counter, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["KINDS", "Visitors"]

#: Kinds of visitors: informs, reads the answer and says goodbye; closes the connection without a
#: goodbye; resets it; stops in the middle of the handshake, or of a message, and stays; connects
#: and sends nothing; sends random bytes; informs, and then is silent.
KINDS = ("polite", "gone", "reset", "half-made", "half-said", "mute", "noise", "silent")

#: Kinds that stay until their connection is closed.
STAYING = frozenset({"half-made", "half-said", "mute", "silent"})

#: Seconds until an answer has failed to come.
DEADLINE = 20.0

#: Sends RST instead of FIN.
_RESET = struct.pack("ii", 1, 0)

#: ZMTP 3.0, "Connection": signature, version, mechanism, as-server, filler.
_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)


def _ready() -> bytes:
    """Return the READY command of a DEALER (ZMTP 3.0, "The NULL mechanism")."""
    kind = b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
    body = b"\x05READY" + kind + b"\x08Identity" + bytes(4)
    return bytes([4, len(body)]) + body


def _message(*frames: bytes) -> bytes:
    """Return a message of short frames, all but the last with the flag for more."""
    flags = [1] * (len(frames) - 1) + [0]
    return b"".join(bytes([more, len(f)]) + f for more, f in zip(flags, frames, strict=True))


class Visitors:
    """Source of visitors; a context manager.

    Args:
        address: Address of a broker, ``tcp://...``.
        seed: Seed of their kinds.
        max_staying: Most visitors that stay at a time; the oldest one leaves for a further one.
    """

    def __init__(self, address: str, seed: int = 0, *, max_staying: int = 500) -> None:
        host, _, port = address.rpartition("/")[2].rpartition(":")
        self._server = (host, int(port))
        self._chance = random.Random(seed)
        self._most = max_staying
        self._staying: deque[socket.socket] = deque()
        self._number = 0
        #: Number of visitors of each kind.
        self.came: Counter[str] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def come(self, kind: str = "") -> None:
        """Let one visitor come, of a kind or of a random one."""
        kind = kind or self._chance.choice(KINDS)
        self.came[kind] += 1
        connection = socket.create_connection(self._server, DEADLINE)
        self._talk(connection, kind)
        if kind in STAYING:
            self._staying.append(connection)
            if len(self._staying) > self._most:
                self._staying.popleft().close()
            return
        if kind == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        connection.close()

    def _talk(self, connection: socket.socket, kind: str) -> None:
        hello = _GREETING + _ready()
        if kind == "half-made":
            connection.sendall(hello[: self._chance.randrange(1, len(hello))])
        elif kind == "noise":
            connection.sendall(self._chance.randbytes(self._chance.randrange(1, 200)))
        elif kind != "mute":
            connection.sendall(hello)
            self._receive_until(connection, b"READY")  # libzmq accepts no message before
            message = self._inform()
            if kind == "half-said":
                message = message[: self._chance.randrange(1, len(message))]
            connection.sendall(message)
        if kind == "polite":
            self._receive_until(connection, b"ACK")
            connection.sendall(_message(b"", b"eMQP/1.0", b"KBAI", b"bye"))

    def _inform(self) -> bytes:
        self._number += 1
        return _message(b"", b"eMQP/1.0", b"INFORM", b"visit-%d" % self._number, b"[]", b"client")

    @staticmethod
    def _receive_until(connection: socket.socket, word: bytes) -> None:
        received = b""
        while word not in received:
            piece = connection.recv(4096)
            if not piece:
                raise ConnectionError(f"the broker closed before it said {word!r}: {received!r}")
            received += piece

    def leave(self) -> None:
        """Close the connections of all visitors that stay. Idempotent."""
        while self._staying:
            self._staying.pop().close()
