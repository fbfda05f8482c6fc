"""Peers that behave as EventMQ 0.3.13 does, made of pyzmq alone: nothing of EventMQ is imported.

Measured properties of it, which apply here:

- Every frame is decoded as UTF-8; one that is not ends the peer.
- It informs, then waits for the ACK for ever, and reads nothing else meanwhile.
- Every message is a sign of life, those too that it has no handler for, as ERROR. Nothing makes it
  inform again but silence: three times five seconds in which nothing came. Then it has a new socket
  with a new routing id, a random UUID as text.
- A DISCONNECT makes a job manager begin anew at once, by an accident of its own. While it waits for
  an ACK, the same ends it. It always ends a scheduler.
- A job manager starts its workers when it receives a HEARTBEAT. After that it says READY for each
  worker at every ACK, and REPLY, if that was requested, and READY after each job. It looks for
  ended jobs once in a turn, in which it reads one message.
- A scheduler sends its REQUESTs with ``reply-requested``, and reads no REPLY.
- The command line says HELLO before anything else, and reads whatever comes as JSON in frame 4.

Times are scaled by ``pace``, so that a test need not wait for 15 seconds.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import Counter, deque
from typing import Any

import zmq

PROTOCOL = "eMQP/1.0"

#: Seconds between two HEARTBEATs, seconds of silence that are a miss, and misses until it gives up.
INTERVAL, TIMEOUT, LIVENESS = 3.0, 5.0, 3

#: Seconds that a turn waits for a message at most.
TURN = 1.0


class Ended(Exception):
    """A message ended the deployed software; the text has the reason."""


class DeployedPeer(threading.Thread):
    """Common part of a job manager and a scheduler.

    Args:
        address: Of the broker.
        pace: Factor of the times of the deployed software.

    Attributes:
        informs: When it informed, by `time.monotonic`.
        got: How often it got each command.
        ended: Why it ended, "" while it lives.
    """

    role = ""
    queues = ""

    def __init__(self, address: str, pace: float = 1.0) -> None:
        super().__init__(daemon=True)
        self.address = address
        self.pace = pace
        self.informs: list[float] = []
        self.got: Counter[str] = Counter()
        self.ended = ""
        self._halt = threading.Event()
        self._ids = 0
        self._last_seen = self._beaten = 0.0
        self._misses = 0

    def run(self) -> None:
        with zmq.Context() as context:
            try:
                while not self._halt.is_set():
                    with context.socket(zmq.DEALER) as self.socket:
                        self.socket.linger = 0
                        self.socket.identity = self.identity()
                        self.socket.connect(self.address)
                        self._begin()
                        self._serve()
            except Exception as error:  # noqa: BLE001 - the test asks for it
                self.ended = f"{type(error).__name__}: {error}"

    def identity(self) -> bytes:
        """Return the routing id of the next socket."""
        return str(uuid.uuid4()).encode()

    def stop(self) -> None:
        """End it from without."""
        self._halt.set()
        self.join(10.0)
        assert not self.is_alive()

    def send(self, command: str, *rest: str) -> str:
        """Send a message, which waits in the socket while there is no broker."""
        self._ids += 1
        id = f"{self.name}-{self._ids}"
        self.socket.send_multipart([text.encode() for text in ("", PROTOCOL, command, id, *rest)])
        return id

    def _receive(self, seconds: float) -> list[str] | None:
        if not self.socket.poll(int(seconds * self.pace * 1000)):
            return None
        frames = [frame.decode() for frame in self.socket.recv_multipart()]
        self.got[frames[2]] += 1
        return frames

    def _begin(self) -> None:
        """Inform, and wait for the ACK."""
        self.send("INFORM", self.queues, self.role)
        self.informs.append(time.monotonic())
        while not self._halt.is_set():
            frames = self._receive(0.2)
            if frames is None:
                continue
            if frames[2] == "DISCONNECT":
                raise Ended("it was sent a DISCONNECT while it waited for an ACK")
            if frames[2] == "ACK":
                self._last_seen, self._misses = time.monotonic(), 0
                return

    def _serve(self) -> None:
        """Continue until no more messages arrive."""
        self.acknowledged()
        while not self._halt.is_set():
            frames = self._receive(self.idle())
            if frames is not None:
                self._last_seen, self._misses = time.monotonic(), 0
                if frames[2] == "DISCONNECT":
                    self.send("KBYE")
                    self.disconnected()
                    return
                self.take(frames[2], frames[3:])
            self.work()
            now = time.monotonic()
            if now - self._beaten >= INTERVAL * self.pace:
                self._beaten = now
                self.send("HEARTBEAT", f"{time.time():.2f}")
            if now - self._last_seen >= TIMEOUT * self.pace:
                self._misses, self._last_seen = self._misses + 1, now
            if self._misses >= LIVENESS and frames is None:
                return

    def idle(self) -> float:
        """Return how long a turn may wait for a message, before `pace`."""
        return TURN

    def acknowledged(self) -> None:
        """Continue after an ACK."""

    def disconnected(self) -> None:
        """Take a DISCONNECT."""

    def take(self, command: str, frames: list[str]) -> None:
        """Handle a message; ``frames`` start with its id."""

    def work(self) -> None:
        """Do the work of a tick."""


class JobManager(DeployedPeer):
    """A job manager; its jobs last some seconds and do nothing.

    Attributes:
        done: Ids of the jobs that ended, in order.
    """

    role = "worker"
    queues = '[[10, "default"]]'

    def __init__(
        self, address: str, pace: float = 1.0, *, slots: int = 4, seconds: float = 0.0
    ) -> None:
        super().__init__(address, pace)
        self.done: list[str] = []
        self._slots, self._seconds = slots, seconds
        self._has_workers = False
        self._waiting: deque[tuple[str, bool]] = deque()
        self._running: list[tuple[float, str, bool]] = []

    @property
    def busy(self) -> float:
        """How many seconds it takes at least until one of its jobs ends, 0.0 if it has none."""
        now = time.monotonic()
        return min((entry[0] - now for entry in list(self._running)), default=0.0)

    def idle(self) -> float:
        return 0.02 if self._running else TURN

    def acknowledged(self) -> None:
        if self._has_workers:
            self._offer()

    def _offer(self) -> None:
        for _ in range(self._slots):
            self.send("READY")

    def take(self, command: str, frames: list[str]) -> None:
        if command == "HEARTBEAT" and not self._has_workers:
            self._has_workers = True
            self._offer()
        elif command == "REQUEST":
            id, _queue, headers, body = frames
            kind, options = json.loads(body)
            assert kind == "run"
            assert {"callable", "path"} <= options.keys()
            self._waiting.append((id, "reply-requested" in headers))

    def work(self) -> None:
        now = time.monotonic()
        while self._waiting and len(self._running) < self._slots:
            self._running.append((now + self._seconds, *self._waiting.popleft()))
        over = [entry for entry in self._running if entry[0] <= now]
        for entry in over:
            self._running.remove(entry)
            _, id, reply = entry
            self.done.append(id)
            if reply:
                self.send("REPLY", '{"value": null}', id)
            self.send("READY")


class DocumentWorker(JobManager):
    """A worker made from the published document: a DISCONNECT asks it to stop."""

    def identity(self) -> bytes:
        return f"document-{uuid.uuid4().hex}".encode()

    def disconnected(self) -> None:
        raise Ended("a DISCONNECT asked it to stop")


class Scheduler(DeployedPeer):
    """A scheduler.

    Attributes:
        fired: Ids of its REQUESTs.
        schedules: Bodies of the SCHEDULEs that reached it, in order.
    """

    role = "scheduler"

    def __init__(self, address: str, pace: float = 1.0) -> None:
        super().__init__(address, pace)
        self.fired: list[str] = []
        self.schedules: list[str] = []
        self._jobs: dict[str, list[Any]] = {}

    def idle(self) -> float:
        return 0.05 / self.pace

    def disconnected(self) -> None:
        raise Ended("a DISCONNECT ended the scheduler")

    def take(self, command: str, frames: list[str]) -> None:
        if command == "SCHEDULE":
            _id, queue, headers, interval, body, _cron = frames
            self.schedules.append(body)
            self._jobs[body] = [time.monotonic() + int(interval), int(interval), queue]
            if "nohaste" not in headers:
                self._fire(queue, body)

    def work(self) -> None:
        now = time.monotonic()
        for body, job in self._jobs.items():
            if job[0] <= now:
                job[0] += job[1]
                self._fire(job[2], body)

    def _fire(self, queue: str, body: str) -> None:
        self.fired.append(self.send("REQUEST", queue, "reply-requested", body))


class CommandLine:
    """``emq-cli``: it sends HELLO, and takes the next message for the answer."""

    def __init__(self, context: zmq.Context, address: str) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.identity = str(uuid.uuid4()).encode()
        self.socket.connect(address)
        self._send("HELLO")

    def _send(self, command: str) -> None:
        id = f"admin:{uuid.uuid4()}"
        self.socket.send_multipart([text.encode() for text in ("", PROTOCOL, command, id)])

    def ask(self, command: str, seconds: float = 10.0) -> Any:
        """Send a command and return the next message, None after a timeout."""
        self._send(command)
        return self.read(seconds)

    def read(self, seconds: float) -> Any:
        """Return the next answer, None if there is none in time."""
        if not self.socket.poll(int(seconds * 1000)):
            return None
        frames = [frame.decode() for frame in self.socket.recv_multipart()]
        return json.loads(frames[4])
