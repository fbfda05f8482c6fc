"""Slots of the pool ``spark`` in the job manager, and the link to the Spark tasks that serve them.

The link is one socket with one thread, encrypted by CURVE. Its public key, made at the start, and a
token that authenticates each slot travel with the Spark tasks.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import zmq

from eventmq.sdk import JobsEnded, PoolEvent, Running, SlotDied, Wakeup
from eventmq_contrib.spark.pool.remote import PING_INTERVAL, pack, read_event, unpack

__all__ = ["SlotLink", "SparkSlot"]

#: Seconds that `SlotLink.close` waits for the last messages to leave.
_LINGER = 1.0


class SlotLink:
    """Sends and receives messages; all methods may be called from any thread.

    Args:
        host: Address of this machine to listen at.
        notify: Called in the thread of the link when messages have arrived.

    Attributes:
        inbox: Received messages, as (identity, message) pairs.
    """

    def __init__(self, host: str, notify: Callable[[], None]) -> None:
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
        """Send a message; it is dropped if the slot is not connected."""
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
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wakeup.fd, zmq.POLLIN)
        ping_at, ended = 0.0, False
        while not ended:
            poller.poll(int(PING_INTERVAL * 1000))
            self._wakeup.clear()
            ended = self._ended
            if time.monotonic() >= ping_at:
                ping_at = time.monotonic() + PING_INTERVAL
                self._outbox.extend((identity, pack("ping")) for identity in list(self.peers))
            while self._outbox:
                identity, data = self._outbox.popleft()
                with suppress(
                    zmq.ZMQError
                ):  # the slot is not connected: the pool notices its silence
                    self._socket.send_multipart([identity.encode(), data])
            self._receive_all()

    def _receive_all(self) -> None:
        received = False
        while self._socket.poll(0, zmq.POLLIN):
            identity, data = self._socket.recv_multipart()
            # The sender is not authenticated yet: a malformed message must not end this thread.
            with suppress(Exception):
                self.inbox.append((identity.decode(), unpack(data)))
                received = True
        if received:
            self._notify()


class SparkSlot:
    """One slot of the pool. Each Spark task that serves it has an identity of its own.

    Attributes:
        number: Number of the slot.
        identity: Identity of the task that serves or will serve the slot, "" for none.
        up: Whether the task has connected.
        unused: Whether the slot has no task because the pool was scaled down.
        ended: Why the task cannot continue, "" while it can.
        started: Monotonic time at which the task was requested.
        last_seen: Monotonic time at which its last message arrived.
        served: Whether the task has ended a job.
        pid: Id of the process of the task, on its machine.
    """

    def __init__(self, number: int, link: SlotLink) -> None:
        self.number = number
        self.unused = False
        self.served = False
        self._link = link
        self._generation = 0
        self.identity = ""
        #: (chunk, body, number of jobs) of chunks assigned before the task had connected.
        self._waiting: list[tuple[int, bytes, int]] = []
        self._reset()

    def _reset(self) -> None:
        self.up = False
        self.ended = ""
        self.pid = 0
        self.token = ""
        self.started = self.last_seen = time.monotonic()
        self.bye = False
        self._deaths = 0
        self._running: Running | None = None
        self._last_ended = (0, -1)
        self._requests = 0
        self.withdrawn: int | None = None

    def begin(self) -> tuple[str, str]:
        """Return identity and token of the next task."""
        self._reset()
        self._generation += 1
        self.served = False
        self.identity = f"slot-{self.number}.{self._generation}"
        self.token = secrets.token_hex(16)
        return self.identity, self.token

    def clear(self) -> None:
        """Forget the task and its assigned chunks."""
        self._waiting.clear()
        self._link.peers.discard(self.identity)
        self._reset()
        self.identity = ""

    # To the task

    def send(self, *message: object) -> None:
        """Send a message to the task, if it has connected."""
        if self.up:
            self._link.send(self.identity, *message)

    def assign(self, chunk: int, body: bytes, count: int) -> None:
        """Assign a chunk to the task, or keep it until the task has connected."""
        if self.up:
            self.send("assign", self._deaths, chunk, count, body)
        else:
            self._waiting.append((chunk, body, count))

    def request_withdrawal(self) -> None:
        """Ask the task to withdraw the jobs that have not started."""
        self._requests += 1
        self.withdrawn = None
        self.send("take", self._requests)

    def cancel_withdrawal(self) -> None:
        """Stop waiting for the answer: the task keeps its jobs."""
        self.withdrawn = 0
        self.send("keep", self._requests)

    @property
    def silence(self) -> float:
        """Seconds since the last message of the task."""
        return time.monotonic() - self.last_seen

    @property
    def withdrawing(self) -> bool:
        """Whether the task has not answered a request to withdraw."""
        return self.up and self.withdrawn is None

    def withdraw(self) -> int:
        """Withdraw the chunks that wait for the task; return how many jobs they have."""
        waiting, self._waiting = self._waiting, []
        return sum(count for _, _, count in waiting)

    # From the task

    def receive(self, name: str, fields: list[Any]) -> PoolEvent | None:
        """Handle a message of the task; return its pool event, if it has one."""
        self.last_seen = time.monotonic()
        if name in {"hello", "failed"}:
            self._hello(name, *fields)
        elif not self.up:  # the sender has not shown the token
            return None
        elif name == "note":
            chunk, position, seconds = fields
            runs = position >= 0
            self._running = Running(chunk, position, self.last_seen - seconds) if runs else None
        elif name == "taken":
            self._withdrawn(*fields)
        elif name == "bye":
            self.bye = True
        elif name == "event":
            return self._event(read_event(self.number, fields[0], fields[1:]))
        return None

    def _withdrawn(self, request: int, count: int) -> None:
        if request == self._requests and self.withdrawn is None:
            self.withdrawn = count
        elif count:  # these jobs are lost
            self.ended = "it was told too late to keep its jobs"

    def _hello(self, name: str, token: str, value: Any) -> None:
        if not hmac.compare_digest(token.encode(), self.token.encode()) or self.up:
            return
        if name == "failed":
            self.ended = str(value)
            return
        self.up, self.pid = True, value
        self._link.peers.add(self.identity)
        waiting, self._waiting = self._waiting, []
        for assigned in waiting:
            self.assign(*assigned)

    def _event(self, event: PoolEvent) -> PoolEvent:
        if isinstance(event, JobsEnded):
            self.served = True
            chunk, before = self._last_ended
            self._last_ended = (event.chunk, event.count + (before if chunk == event.chunk else -1))
        elif isinstance(event, SlotDied):
            self._deaths += 1
            self._running = None
        return event

    def running(self) -> Running | None:
        """Return the running job as last reported, None if it has ended since."""
        running = self._running
        return None if running is not None and running[:2] <= self._last_ended else running

    def death(self, reason: str) -> SlotDied:
        """Return the death of the slot, with the job that ran as last reported."""
        running = self.running()
        chunk, position = (0, -1) if running is None else running[:2]
        return SlotDied(self.number, chunk, position, reason)
