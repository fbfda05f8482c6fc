"""A router that behaves as that of EventMQ 0.3.13 does, made of pyzmq alone.

Measured properties of it, which apply here:

- Every frame is decoded as UTF-8, the routing id too; one that is not ends it.
- It answers INFORM of a scheduler with an ACK of five frames. It does not answer that of a client,
  which it knows nothing of.
- It says REPLY with the id of the REQUEST, in five frames, when a worker had a free slot for it,
  and nothing when the REQUEST has to wait. It ignores unknown messages.

With ``answers_clients`` it is a broker that a third party wrote from the published document.
"""

from __future__ import annotations

import threading
import time

import zmq

PROTOCOL = "eMQP/1.0"


class OriginalRouter:
    """Runs in a thread.

    Attributes:
        got: All messages, from the command on.
        ended: Why it ended, "" while it lives.
    """

    def __init__(self, *, answers_clients: bool = False) -> None:
        self.got: list[list[str]] = []
        self.ended = ""
        self._answers_clients = answers_clients
        self._ids = 0
        self._changed = threading.Condition()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.address = f"tcp://127.0.0.1:{port}"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                if not self._socket.poll(20):
                    continue
                frames = [frame.decode() for frame in self._socket.recv_multipart()]
                self._take(frames[0], frames[3], frames[4:])
        except UnicodeDecodeError as error:
            self.ended = str(error)
        finally:
            self._socket.close(0)
            with self._changed:
                self._changed.notify_all()

    def _take(self, peer: str, command: str, rest: list[str]) -> None:
        if command == "INFORM" and (rest[2] == "scheduler" or self._answers_clients):
            self._send(peer, "ACK", rest[0])
        elif command == "REQUEST":
            self._send(peer, "REPLY", rest[0])
        with self._changed:
            self.got.append([command, *rest])
            self._changed.notify_all()

    def _send(self, peer: str, command: str, *rest: str) -> None:
        self._ids += 1
        frames = [peer, "", PROTOCOL, command, f"router-{self._ids}", *rest]
        self._socket.send_multipart([frame.encode() for frame in frames])

    def commands(self) -> set[str]:
        """Return the commands that it got."""
        return {message[0] for message in self.got}

    def requests(self, count: int, seconds: float = 10.0) -> list[list[str]]:
        """Return the first REQUESTs, from the message id on, when there are so many."""
        end = time.monotonic() + seconds
        with self._changed:
            while True:
                requests = [message[1:] for message in self.got if message[0] == "REQUEST"]
                if len(requests) >= count:
                    return requests
                assert self._changed.wait(end - time.monotonic()), f"it got {self.got}"
                assert not self.ended, self.ended

    def stop(self) -> None:
        """End it."""
        self._stop.set()
        self._thread.join(10.0)
        assert not self._thread.is_alive()
        self._context.term()
