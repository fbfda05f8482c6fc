"""Messages between the job manager and the fork server: length, JSON, and passed descriptors.

Manager to server: first a map with ``path``, ``loader``, ``arguments`` and ``recycling`` (jobs and
bytes of memory after which a child ends, 0 for never); then ``{"spawn": slot}``
with the four descriptors of `eventmq.execution.processes.pipes.ChildPipes`. Server to manager:
``{"ready": true}`` or ``{"failed": [type, text]}``, then ``{"spawned": slot, "pid": pid}`` and
``{"exited": slot, "pid": pid, "reason": text, "code": status or -signal, "peak": bytes}``. The
end of the socket ends the server.
"""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["receive", "send"]

_MAX_FDS = 8


def send(sock: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Send a message; block until it is written."""
    body = json.dumps(message).encode()
    head = len(body).to_bytes(4, "big")
    if fds:
        socket.send_fds(sock, [head], list(fds))
    else:
        sock.sendall(head)
    sock.sendall(body)


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return the next message and its descriptors.

    Raises:
        EOFError: The other side has closed the socket.
        TimeoutError: The socket's time-out passed first.
    """
    try:
        head, fds, _, _ = socket.recv_fds(sock, 4, _MAX_FDS)
        for fd in fds:
            os.set_inheritable(fd, False)  # noqa: FBT003 - positional only
        if not head:
            raise EOFError
        head += _exactly(sock, 4 - len(head))
        message = json.loads(_exactly(sock, int.from_bytes(head, "big")))
    except ConnectionError as error:
        raise EOFError from error
    return message, fds
