"""Peers that come and go, by a few bytes of ZMTP over plain sockets: a thousand cost nothing here.

They know neither pyzmq nor EventMQ, so they can do what no library does: leave by a reset, stop in
the middle of a handshake, or of a message.
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

#: What a visitor does: greets, informs, hears the answer and says goodbye; leaves without a word;
#: resets its connection; stops in the middle of a handshake, or of a message, and stays; connects
#: and says nothing; says something else; informs, and from then on is silent.
KINDS = ("polite", "gone", "reset", "half-made", "half-said", "mute", "noise", "silent")

#: Those that stay until somebody ends their connection.
STAYING = frozenset({"half-made", "half-said", "mute", "silent"})

#: Seconds that an answer may take.
DEADLINE = 20.0

#: Sends RST instead of FIN.
_RESET = struct.pack("ii", 1, 0)

#: ZMTP 3.0, "Connection": signature, version, mechanism, as-server, filler.
_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)


def _ready() -> bytes:
    """Return the command with which a DEALER says what it is (ZMTP 3.0, "The NULL mechanism")."""
    kind = b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
    body = b"\x05READY" + kind + b"\x08Identity" + bytes(4)
    return bytes([4, len(body)]) + body


def _message(*frames: bytes) -> bytes:
    """Return a message of short frames; all but the last say that more come."""
    flags = [1] * (len(frames) - 1) + [0]
    return b"".join(bytes([more, len(f)]) + f for more, f in zip(flags, frames, strict=True))


class Visitors:
    """Comes as often as it is told to; for ``with``.

    Args:
        address: Of a broker, ``tcp://...``.
        seed: Of who comes.
        most: Visitors that stay at a time; the first of them leaves for a further one.
    """

    def __init__(self, address: str, seed: int = 0, *, most: int = 500) -> None:
        host, _, port = address.rpartition("/")[2].rpartition(":")
        self._server = (host, int(port))
        self._chance = random.Random(seed)
        self._most = most
        self._staying: deque[socket.socket] = deque()
        self._number = 0
        #: How many of each kind came.
        self.came: Counter[str] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def come(self, kind: str = "") -> None:
        """Come once, as one of `KINDS` or as any of them."""
        kind = kind or self._chance.choice(KINDS)
        self.came[kind] += 1
        connection = socket.create_connection(self._server, DEADLINE)
        self._say(connection, kind)
        if kind in STAYING:
            self._staying.append(connection)
            if len(self._staying) > self._most:
                self._staying.popleft().close()
            return
        if kind == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        connection.close()

    def _say(self, connection: socket.socket, kind: str) -> None:
        hello = _GREETING + _ready()
        if kind == "half-made":
            connection.sendall(hello[: self._chance.randrange(1, len(hello))])
        elif kind == "noise":
            connection.sendall(self._chance.randbytes(self._chance.randrange(1, 200)))
        elif kind != "mute":
            connection.sendall(hello)
            self._hear(connection, b"READY")  # libzmq takes nothing else before
            said = self._inform()
            if kind == "half-said":
                said = said[: self._chance.randrange(1, len(said))]
            connection.sendall(said)
        if kind == "polite":
            self._hear(connection, b"ACK")
            connection.sendall(_message(b"", b"eMQP/1.0", b"KBAI", b"bye"))

    def _inform(self) -> bytes:
        self._number += 1
        return _message(b"", b"eMQP/1.0", b"INFORM", b"visit-%d" % self._number, b"[]", b"client")

    @staticmethod
    def _hear(connection: socket.socket, word: bytes) -> None:
        heard = b""
        while word not in heard:
            piece = connection.recv(4096)
            if not piece:
                raise ConnectionError(f"the broker closed before it said {word!r}: {heard!r}")
            heard += piece

    def leave(self) -> None:
        """Close what has stayed. Idempotent."""
        while self._staying:
            self._staying.pop().close()
