"""Link between the job manager and its slots: one socket, one thread.

The links are encrypted by CURVE: the public key of this end, made at its start, travels with the
Spark tasks, and so does a token that authenticates each slot.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from eventmq.sdk import Wakeup
from eventmq_contrib.spark.pool.frames import pack, unpack
from eventmq_contrib.spark.pool.remote import ALIVE_EVERY

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["SlotLink"]

#: Seconds that `SlotLink.close` waits for the last messages to leave.
_LINGER = 1.0


class SlotLink:
    """Sends and receives messages; all methods may be called from any thread.

    Args:
        host: Address of this machine to listen at.
        notify: Called in the thread of the link when messages have come.

    Attributes:
        inbox: Messages that have come, as (identity, message) pairs.
    """

    def __init__(self, host: str, notify: Callable[[], None]) -> None:
        import zmq

        self.inbox: deque[tuple[str, list[Any]]] = deque()
        self._notify = notify
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = int(_LINGER * 1000)
        self._socket.rcvhwm = self._socket.sndhwm = 0
        self._socket.router_mandatory = True
        self.public_key, self._socket.curve_secretkey = zmq.curve_keypair()
        self._socket.curve_publickey = self.public_key
        self._socket.curve_server = True
        port = self._socket.bind_to_random_port(f"tcp://{socket.gethostbyname(host)}")
        self.endpoint = f"tcp://{host}:{port}"
        self._outbox: deque[tuple[str, bytes]] = deque()
        self._wakeup = Wakeup()
        #: Identities of the slots that are sent pings.
        self.peers: set[str] = set()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="eventmq-spark-link", daemon=True)
        self._thread.start()

    def send(self, identity: str, *message: object) -> None:
        """Send a message; it is dropped if the slot is gone."""
        self._outbox.append((identity, pack(*message)))
        self._wakeup.set()

    def close(self) -> None:
        """Send the waiting messages and end; a second call does nothing."""
        if self._ended:
            return
        self._ended = True
        self._wakeup.set()
        self._thread.join()
        self._socket.close()
        self._context.term()
        self._wakeup.close()

    def _run(self) -> None:
        import zmq

        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wakeup.fd, zmq.POLLIN)
        ping_at = 0.0
        while True:
            poller.poll(int(ALIVE_EVERY * 1000))
            self._wakeup.clear()
            ended = self._ended
            self._send_all()
            if ended:
                return
            self._receive_all()
            if time.monotonic() >= ping_at:
                ping_at = time.monotonic() + ALIVE_EVERY
                self._outbox.extend((identity, pack("ping")) for identity in list(self.peers))
                self._send_all()

    def _send_all(self) -> None:
        import zmq

        while self._outbox:
            identity, data = self._outbox.popleft()
            with suppress(zmq.ZMQError):  # the slot is gone: the pool notices its silence
                self._socket.send_multipart([identity.encode(), data])

    def _receive_all(self) -> None:
        import zmq

        received = False
        while self._socket.poll(0, zmq.POLLIN):
            identity, data = self._socket.recv_multipart()
            # The sender is not authenticated yet: a malformed message must not end this thread.
            with suppress(Exception):
                self.inbox.append((identity.decode(), unpack(data)))
                received = True
        if received:
            self._notify()
