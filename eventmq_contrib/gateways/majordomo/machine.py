"""The broker's part of Majordomo: its workers, open requests, assigned jobs and dead workers.

Frames and the time go in, frames come out; what concerns jobs goes to a `MajordomoJobs`. No socket,
no clock. ``now`` is monotonic seconds.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from eventmq.errors import ProtocolError
from eventmq_contrib.gateways.majordomo import messages
from eventmq_contrib.gateways.majordomo.messages import (
    Disconnect,
    Final,
    Heartbeat,
    Partial,
    Ping,
    Ready,
    answer,
    command,
    decode_client,
    decode_worker,
    detect_version,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq_contrib.gateways.majordomo.messages import WorkerMessage

__all__ = ["AssignedJob", "ClientRequest", "MajordomoJobs", "MajordomoLimits", "MajordomoMachine"]

_log = logging.getLogger(__name__)

FRONT, BACK = "front", "back"

#: What the names of services begin with that the gateway answers itself, and the one that it has
#: (ZeroMQ RFC 8).
MMI, MMI_SERVICE = "mmi.", "mmi.service"

#: Services of which an unexpected message, or a peer of another version, is logged.
MAX_WARNINGS = 1000

#: The version that this gateway speaks, for the log.
_SPOKEN = (
    "the Majordomo draft 0.1: REQUEST, PARTIAL and FINAL have a request id, and a worker sends "
    "PING and is sent PONG, no HEARTBEAT"
)

#: Seconds between two tries to reach a client that was disconnected at its reply.
RETRY_AFTER = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class MajordomoLimits:
    """Names, bounds and times. Times are seconds.

    Attributes:
        client_name: NAME on the front port.
        worker_name: NAME on the back port.
        dead: Silence after which a worker is dead.
        workers: Number of workers.
        requests: Open requests of clients.
        id: Bytes of an identity, of a request id and of the name of a service.
        frames: Frames of one message.
        keep: How long a reply is kept for a client that is disconnected.
        kept: Replies that are kept, and ``kept_bytes`` in sum: the oldest are dropped first.
    """

    client_name: bytes = messages.CLIENT
    worker_name: bytes = messages.WORKER
    dead: float = 10.0
    workers: int = 256
    requests: int = 10_000
    id: int = 255
    frames: int = 900
    keep: float = 60.0
    kept: int = 1000
    kept_bytes: int = 64 * 1024 * 1024


class ClientRequest(NamedTuple):
    """A client's request; ``empty`` if an empty frame came before it, as from REQ sockets."""

    client: bytes
    id: bytes
    service: str
    empty: bool = False


class AssignedJob(NamedTuple):
    """A job for a worker: its id, client and request id of the reply, and the body.

    ``streams``: its PARTIALs are parts of the job's stream.
    """

    job_id: str
    client: bytes
    id: bytes
    body: Sequence[bytes]
    streams: bool = False


class MajordomoJobs(Protocol):
    """What the machine needs of the gateway. No method may block."""

    def key(self, request: ClientRequest) -> str:
        """Return the id of the job of a request: the same for the same client and request id."""

    def submit(self, job_id: str, request: ClientRequest, body: Sequence[bytes]) -> None:
        """Submit a job and wait for it; its end comes by `MajordomoMachine.finished`."""

    def find_service(self, job_id: str, service: str) -> None:
        """Look up whether a service has workers; `MajordomoMachine.finished` gets the code."""

    def attach(self, worker: int, service: str) -> bool:
        """Open a worker session for a service; jobs come by `MajordomoMachine.assign`.

        Returns False if there are too many sessions.
        """

    def part_received(self, worker: int, job_id: str, body: Sequence[bytes]) -> None:
        """Receive a worker's PARTIAL, which is a part of its job's stream."""

    def result_received(self, worker: int, job_id: str, body: Sequence[bytes]) -> None:
        """Receive a worker's FINAL: its job has succeeded."""

    def detach(self, worker: int, *, died: bool) -> None:
        """Close a worker's session; ``died`` if it died while it had a job."""


@dataclass(slots=True)
class _Worker:
    number: int
    identity: bytes
    service: str
    last_seen: float
    #: Its messages begin with an empty frame, and so do ours to it.
    empty: bool = False
    task: AssignedJob | None = None
    #: PARTIALs of the task so far.
    parts: int = 0


class MajordomoMachine:
    """Implements `eventmq.gateway.FrameMachine`.

    Args:
        limits: Names, bounds and times.
        jobs: What is done with jobs.

    Attributes:
        outbox: What is to be sent.
    """

    def __init__(self, limits: MajordomoLimits, jobs: MajordomoJobs) -> None:
        self.outbox: deque[tuple[str, list[bytes]]] = deque()
        self._limits = limits
        self._jobs = jobs
        self._numbers = 0
        self._workers: dict[bytes, _Worker] = {}
        self._by_number: dict[int, _Worker] = {}
        self._requests: dict[str, ClientRequest] = {}
        #: Jobs that ended while those of an earlier run are being recovered; None after that.
        self._ended: dict[str, None] | None = {}
        #: Job -> PARTIALs that its client was sent.
        self._parts: dict[str, int] = {}
        #: Replies for clients that are away: (until, frames).
        self._kept: deque[tuple[float, list[bytes]]] = deque()
        self._kept_due = 0.0
        #: Bytes of these, and how many each client has: what follows waits behind them.
        self._kept_size = 0
        self._kept_by_client: Counter[bytes] = Counter()
        #: Replies that were just tried again: id of the list of frames -> until.
        self._again: dict[int, float] = {}
        #: Services of which an unexpected message of a worker was logged.
        self._warned: set[str] = set()
        #: Port, service and version of peers that speak another one, of which that was logged.
        self._other_versions: set[tuple[str, str, str]] = set()
        self._now = 0.0

    # What comes in

    def receive(self, port: str, frames: list[bytes], now: float) -> None:
        """Take a message; what is invalid is dropped."""
        self._now = now
        identity, rest = frames[0], frames[1:]
        empty = bool(rest) and not rest[0]
        try:
            if len(rest) > self._limits.frames:
                raise ProtocolError(f"a message has at most {self._limits.frames} frames")
            if port == FRONT:
                self._receive_client(
                    identity, decode_client(rest, self._limits.client_name), empty=empty
                )
            else:
                message = decode_worker(rest, self._limits.worker_name)
                self._receive_worker(identity, message, now, empty=empty)
        except ProtocolError as error:
            _log.debug("a message on the %s port was dropped: %s", port, error)
            limits = self._limits
            name = limits.client_name if port == FRONT else limits.worker_name
            if (known := detect_version(rest, name)) is not None:
                self._warn_version(port, known, "its messages are dropped")

    def _warn_version(self, port: str, known: messages.OtherVersion, what: str) -> None:
        """Log once that a peer speaks another version; it has a new identity at every connect."""
        key = port, known.service, known.version
        too_long = len(known.service.encode()) > self._limits.id
        if too_long or key in self._other_versions or len(self._other_versions) >= MAX_WARNINGS:
            return
        self._other_versions.add(key)
        _log.warning(
            "a peer on the %s port for the service %s speaks %s (%s), and this gateway speaks %s; "
            "%s",
            port,
            known.service,
            known.version,
            known.sign,
            _SPOKEN,
            what,
        )

    # Clients

    def _receive_client(self, client: bytes, request: messages.Request, *, empty: bool) -> None:
        limits = self._limits
        if max(len(request.id), len(request.service.encode())) > limits.id:
            raise ProtocolError(f"a request id and a service have at most {limits.id} bytes")
        pending = ClientRequest(client, request.id, request.service, empty)
        job_id = self._jobs.key(pending)
        if job_id in self._requests:
            self._requests[job_id] = self._requests[job_id]._replace(empty=empty)
            return  # a repeat: it joins the first
        if len(self._requests) >= limits.requests:
            raise ProtocolError(f"there are {limits.requests} open requests")
        self._requests[job_id] = pending
        if request.service.startswith(MMI):
            self._manage(job_id, request)
        else:
            self._jobs.submit(job_id, pending, request.body)

    def _manage(self, job_id: str, request: messages.Request) -> None:
        """Answer a service of ZeroMQ RFC 8: ``mmi.service`` tells if a service has workers."""
        if request.service != MMI_SERVICE:
            self.finished(job_id, [b"501"])
            return
        try:
            service = request.body[0].decode()
        except UnicodeDecodeError:
            self.finished(job_id, [b"404"])
            return
        if any(worker.service == service for worker in self._workers.values()):
            self.finished(job_id, [b"200"])
        else:
            self._jobs.find_service(job_id, service)

    def expect(self, job_id: str, request: ClientRequest) -> bool:
        """Wait for the reply to a request of an earlier run; return False if it is known already.

        It may be of this run: open when the broker was asked, and ended since.
        """
        known = job_id in self._requests or job_id in (self._ended or ())
        if known or len(self._requests) >= self._limits.requests:
            return False
        self._requests[job_id] = request
        return True

    def recovered(self) -> None:
        """Forget ended jobs: all requests of an earlier run are known, `expect` is done."""
        self._ended = None

    def finished(self, job_id: str, body: Sequence[bytes]) -> None:
        """Send the client of a job its FINAL."""
        request = self._requests.pop(job_id, None)
        self._parts.pop(job_id, None)
        if self._ended is not None:
            self._ended[job_id] = None
            if len(self._ended) > self._limits.requests:
                del self._ended[next(iter(self._ended))]
        if request is not None:
            self._reply(request, body, final=True)

    def part(self, job_id: str, body: Sequence[bytes]) -> None:
        """Send the client of a job a PARTIAL; ignored after its FINAL."""
        request = self._requests.get(job_id)
        if request is not None:
            self._reply(request, body, final=False)

    def _reply(self, request: ClientRequest, body: Sequence[bytes], *, final: bool) -> None:
        frames = answer(self._limits.client_name, request.service, request.id, body, final=final)
        if request.empty:
            frames.insert(0, b"")
        if request.client in self._kept_by_client:
            self._keep([request.client, *frames], self._now + self._limits.keep)
        else:
            self.outbox.append((FRONT, [request.client, *frames]))

    # Workers

    def _receive_worker(
        self, identity: bytes, message: WorkerMessage, now: float, *, empty: bool
    ) -> None:
        worker = self._workers.get(identity)
        if worker is None:
            self._register(identity, message, now, empty=empty)
            return
        worker.last_seen = now
        match message:
            case Ping():
                self._send_command(identity, "PONG", empty=worker.empty)
            case Heartbeat():
                self._warn_version(
                    BACK,
                    messages.OtherVersion(
                        messages.RFC_18, worker.service, "it sends HEARTBEAT, 05"
                    ),
                    "it is kept while it sends that, hears none, and will leave and come again",
                )
            case Disconnect():
                self._remove(worker, died=False)
            case Partial() as part if self._fits(worker, part):
                self._receive_part(worker, part)
            case Ready() | Partial():  # valid, and not expected
                self._warn(worker.service, message)
                self._remove(worker, died=False)
                self._send_command(identity, "DISCONNECT", empty=worker.empty)

    def _warn(self, service: str, message: WorkerMessage) -> None:
        """Log once per service why its worker is disconnected: it comes back at once."""
        if service in self._warned or len(self._warned) >= MAX_WARNINGS:
            return
        self._warned.add(service)
        why = "it said READY twice"
        if isinstance(message, Partial):
            why = (
                f"it answered the request id {message.id[:40]!r}, which it does not have; an "
                "answer has client, empty frame, request id and body, as the REQUEST has them"
            )
        _log.warning("a worker of %s is sent away: %s", service, why)

    def _register(
        self, identity: bytes, message: WorkerMessage, now: float, *, empty: bool
    ) -> None:
        if isinstance(message, Disconnect):
            return
        worker = self._admit(identity, message, now, empty=empty)
        if worker is None:
            self._send_command(identity, "DISCONNECT", empty=empty)
        else:
            self._workers[identity] = self._by_number[worker.number] = worker
            _log.info("a worker serves %s", worker.service)

    def _admit(
        self, identity: bytes, message: WorkerMessage, now: float, *, empty: bool
    ) -> _Worker | None:
        """Return a new worker with a session, None for a peer that is none, or one too many."""
        if len(self._workers) >= self._limits.workers:
            _log.warning("a worker is turned away: there are %d", len(self._workers))
            return None
        if not isinstance(message, Ready):
            return None
        if message.service.startswith(MMI):
            _log.warning("a worker is turned away: services of the name %s* are ours", MMI)
            return None
        if len(message.service.encode()) > self._limits.id:
            raise ProtocolError(f"a service has at most {self._limits.id} bytes")
        self._numbers += 1
        worker = _Worker(self._numbers, identity, message.service, now, empty)
        return worker if self._jobs.attach(worker.number, message.service) else None

    @staticmethod
    def _fits(worker: _Worker, part: Partial) -> bool:
        task = worker.task
        return task is not None and (part.client, part.id) == (task.client, task.id)

    def _receive_part(self, worker: _Worker, part: Partial) -> None:
        task = worker.task
        assert task is not None  # noqa: S101 - it fits
        if isinstance(part, Final):
            worker.task, worker.parts = None, 0
            self._jobs.result_received(worker.number, task.job_id, part.body)
            return
        if task.streams:
            self._jobs.part_received(worker.number, task.job_id, part.body)
            return
        worker.parts += 1
        request = self._requests.get(task.job_id)
        # What a worker before this one has sent is not repeated.
        if request is not None and worker.parts > self._parts.get(task.job_id, 0):
            self._parts[task.job_id] = worker.parts
            self._reply(request, part.body, final=False)

    def assign(self, number: int, task: AssignedJob) -> None:
        """Send a worker a job; ignored if it has left."""
        worker = self._by_number.get(number)
        if worker is not None:
            worker.task, worker.parts = task, 0
            frames = messages.request(self._limits.worker_name, task.client, task.id, task.body)
            self._send(worker.identity, frames, empty=worker.empty)

    def session_ended(self, number: int) -> None:
        """Disconnect a worker whose session has ended: it must register again."""
        worker = self._by_number.get(number)
        if worker is not None:
            self._remove(worker, died=False)
            self._send_command(worker.identity, "DISCONNECT", empty=worker.empty)

    def _remove(self, worker: _Worker, *, died: bool) -> None:
        del self._workers[worker.identity], self._by_number[worker.number]
        _log.info("a worker of %s %s", worker.service, "is dead" if died else "has left")
        self._jobs.detach(worker.number, died=died and worker.task is not None)

    def _send_command(self, identity: bytes, what: str, *, empty: bool) -> None:
        self._send(identity, command(self._limits.worker_name, what), empty=empty)

    def _send(self, identity: bytes, frames: list[bytes], *, empty: bool) -> None:
        """Send to a worker, with an empty frame in front where it sends one."""
        self.outbox.append((BACK, [identity, *([b""] if empty else []), *frames]))

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self._workers)

    @property
    def requests(self) -> int:
        """Number of requests without a reply."""
        return len(self._requests)

    # What could not be sent

    def not_sent(self, port: str, frames: list[bytes], *, disconnected: bool) -> None:
        """Keep a reply for a client that is disconnected; remove a worker."""
        if port == FRONT:
            self._keep(frames, self._again.pop(id(frames), self._now + self._limits.keep))
            return
        worker = self._workers.get(frames[0])
        if worker is not None:
            self._remove(worker, died=False)

    def _keep(self, frames: list[bytes], until: float) -> None:
        limits, kept = self._limits, self._kept
        kept.append((until, frames))
        self._kept_by_client[frames[0]] += 1
        self._kept_size += sum(map(len, frames))
        while len(kept) > limits.kept or self._kept_size > limits.kept_bytes:
            _, oldest = kept.popleft()
            self._kept_size -= sum(map(len, oldest))
            self._kept_by_client[oldest[0]] -= 1
            if not self._kept_by_client[oldest[0]]:
                del self._kept_by_client[oldest[0]]

    def expel(self, port: str, peer: bytes) -> None:
        """Remove a worker whose key was revoked: its job goes to another one."""
        worker = self._workers.get(peer) if port == BACK else None
        if worker is not None:
            self._remove(worker, died=False)

    # Time

    def tick(self, now: float) -> None:
        """Remove dead workers, and send kept replies again."""
        self._now = now
        for worker in list(self._workers.values()):
            if now - worker.last_seen >= self._limits.dead:
                self._remove(worker, died=True)
        self._again.clear()
        if self._kept and now >= self._kept_due:
            self._kept_due = now + RETRY_AFTER
            kept, self._kept = self._kept, deque()
            self._kept_size = 0
            self._kept_by_client.clear()
            for until, frames in kept:
                if now < until:
                    self._again[id(frames)] = until
                    self.outbox.append((FRONT, frames))

    def wait(self, now: float) -> float:
        """Return in how many seconds `tick` has something to do."""
        last_seen = min(
            (worker.last_seen for worker in self._workers.values()), default=float("inf")
        )
        due = last_seen + self._limits.dead
        if self._kept:
            due = min(due, self._kept_due)
        return max(0.0, due - now)

    def close(self, now: float) -> None:
        """Tell the workers to register again."""
        for worker in list(self._workers.values()):
            self._remove(worker, died=False)
            self._send_command(worker.identity, "DISCONNECT", empty=worker.empty)
