"""State machine of a Majordomo broker: workers, open requests, assigned jobs and dead workers.

It receives frames and the time, and returns frames; jobs are handled by a `MajordomoJobs`. It uses
no socket and no clock. ``now`` is monotonic seconds.
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
    command,
    decode_client,
    decode_worker,
    detect_version,
    reply,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq_contrib.gateways.majordomo.messages import WorkerMessage

__all__ = ["AssignedJob", "ClientRequest", "MajordomoJobs", "MajordomoLimits", "MajordomoMachine"]

_log = logging.getLogger(__name__)

FRONT, BACK = "front", "back"

#: Prefix of the services that the gateway answers itself, and the only one that exists (ZeroMQ
#: RFC 8).
MMI, MMI_SERVICE = "mmi.", "mmi.service"

#: Maximum number of services with a logged unexpected message, and of logged versions.
MAX_WARNINGS = 1000

#: The version that this gateway speaks, for the log.
_SPOKEN = (
    "the Majordomo draft 0.1: REQUEST, PARTIAL and FINAL have a request id, and a worker sends "
    "PING and gets PONG, no HEARTBEAT"
)

#: Seconds between two attempts to send a reply to a client that is disconnected.
RETRY_AFTER = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class MajordomoLimits:
    """Names, bounds and times. Times are seconds.

    Attributes:
        client_name: NAME on the front port.
        worker_name: NAME on the back port.
        dead: Silence after which a worker is dead.
        workers: Maximum number of workers.
        requests: Maximum number of open requests of clients.
        id: Maximum bytes of an identity, of a request id and of the name of a service.
        frames: Maximum number of frames of a message.
        reply_ttl: How long a reply is kept for a client that is disconnected.
        max_replies: Maximum number of replies that are kept; the oldest are dropped first.
        max_reply_bytes: Maximum bytes of these replies in total.
    """

    client_name: bytes = messages.CLIENT
    worker_name: bytes = messages.WORKER
    dead: float = 10.0
    workers: int = 256
    requests: int = 10_000
    id: int = 255
    frames: int = 900
    reply_ttl: float = 60.0
    max_replies: int = 1000
    max_reply_bytes: int = 64 * 1024 * 1024


class ClientRequest(NamedTuple):
    """A client's request; ``empty``: it was preceded by an empty frame, as REQ sockets send it."""

    client: bytes
    id: bytes
    service: str
    empty: bool = False


class AssignedJob(NamedTuple):
    """A job for a worker: its id, client and request id of the reply, and the body.

    ``streams``: the worker's PARTIALs are parts of the job's stream.
    """

    job_id: str
    client: bytes
    id: bytes
    body: Sequence[bytes]
    streams: bool = False


class MajordomoJobs(Protocol):
    """Handler of jobs, implemented by the gateway. No method may block."""

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
        """Close a worker's session; ``died``: it died while it had a job."""


@dataclass(slots=True)
class _Worker:
    number: int
    identity: bytes
    service: str
    last_seen: float
    #: Its messages begin with an empty frame, and so do those to it.
    empty: bool = False
    task: AssignedJob | None = None
    #: PARTIALs of the task so far.
    parts: int = 0


class MajordomoMachine:
    """Implements `eventmq.gateway.FrameMachine`.

    Args:
        limits: Names, bounds and times.
        jobs: Handler of jobs.

    Attributes:
        outbox: Messages to send.
    """

    def __init__(self, limits: MajordomoLimits, jobs: MajordomoJobs) -> None:
        self.outbox: deque[tuple[str, list[bytes]]] = deque()
        self._limits = limits
        self._jobs = jobs
        self._numbers = 0
        self._workers: dict[bytes, _Worker] = {}
        self._by_number: dict[int, _Worker] = {}
        self._requests: dict[str, ClientRequest] = {}
        #: Ids of jobs that ended during the recovery of an earlier run's jobs; None after that.
        self._ended: dict[str, None] | None = {}
        #: Job id -> number of PARTIALs sent to its client.
        self._parts: dict[str, int] = {}
        #: Replies for disconnected clients: (until, frames).
        self._replies: deque[tuple[float, list[bytes]]] = deque()
        self._retry_at = 0.0
        #: Bytes of these replies, and their number by client: later messages wait behind them.
        self._reply_bytes = 0
        self._replies_by_client: Counter[bytes] = Counter()
        #: Replies that were just sent again: id of the list of frames -> until.
        self._retried: dict[int, float] = {}
        #: Services with a logged unexpected message of a worker.
        self._warned: set[str] = set()
        #: Logged (port, service, version) of peers that speak another version.
        self._logged_versions: set[tuple[str, str, str]] = set()
        self._now = 0.0

    # Input

    def receive(self, port: str, frames: list[bytes], now: float) -> None:
        """Handle a message; an invalid one is dropped."""
        self._now = now
        identity, body = frames[0], frames[1:]
        empty = bool(body) and not body[0]
        try:
            if len(body) > self._limits.frames:
                raise ProtocolError(f"a message has at most {self._limits.frames} frames")
            if port == FRONT:
                self._receive_client(
                    identity, decode_client(body, self._limits.client_name), empty=empty
                )
            else:
                message = decode_worker(body, self._limits.worker_name)
                self._receive_worker(identity, message, now, empty=empty)
        except ProtocolError as error:
            _log.debug("a message on the %s port was dropped: %s", port, error)
            limits = self._limits
            name = limits.client_name if port == FRONT else limits.worker_name
            if (other := detect_version(body, name)) is not None:
                self._warn_version(port, other, "its messages are dropped")

    def _warn_version(self, port: str, other: messages.OtherVersion, consequence: str) -> None:
        """Log once that a peer speaks another version; it has a new identity at every connect."""
        key = port, other.service, other.version
        too_long = len(other.service.encode()) > self._limits.id
        if too_long or key in self._logged_versions or len(self._logged_versions) >= MAX_WARNINGS:
            return
        self._logged_versions.add(key)
        _log.warning(
            "a peer on the %s port for the service %s speaks %s (%s), and this gateway speaks %s; "
            "%s",
            port,
            other.service,
            other.version,
            other.evidence,
            _SPOKEN,
            consequence,
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
            return  # a repeated request
        if len(self._requests) >= limits.requests:
            raise ProtocolError(f"there are {limits.requests} open requests")
        self._requests[job_id] = pending
        if request.service.startswith(MMI):
            self._manage(job_id, request)
        else:
            self._jobs.submit(job_id, pending, request.body)

    def _manage(self, job_id: str, request: messages.Request) -> None:
        """Answer a service of ZeroMQ RFC 8: ``mmi.service`` tells if one has workers."""
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

        The request may be of this run: it was open when the broker listed it, and has ended since.
        """
        known = job_id in self._requests or job_id in (self._ended or ())
        if known or len(self._requests) >= self._limits.requests:
            return False
        self._requests[job_id] = request
        return True

    @property
    def recovering(self) -> bool:
        """Whether `recovered` is still to come."""
        return self._ended is not None

    def recovered(self) -> None:
        """Forget ended jobs: `expect` was called for all requests of an earlier run."""
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
        frames = reply(self._limits.client_name, request.service, request.id, body, final=final)
        if request.empty:
            frames.insert(0, b"")
        if request.client in self._replies_by_client:
            self._store_reply([request.client, *frames], self._now + self._limits.reply_ttl)
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
                    "it stays connected while it sends HEARTBEAT, but gets none and will reconnect",
                )
            case Disconnect():
                self._remove(worker, died=False)
            case Partial() as part if self._is_answer(worker, part):
                self._receive_part(worker, part)
            case Ready() | Partial():  # valid, but unexpected
                self._warn(worker.service, message)
                self._remove(worker, died=False)
                self._send_command(identity, "DISCONNECT", empty=worker.empty)

    def _warn(self, service: str, message: WorkerMessage) -> None:
        """Log once per service why its worker is disconnected: it reconnects at once."""
        if service in self._warned or len(self._warned) >= MAX_WARNINGS:
            return
        self._warned.add(service)
        why = "it sent READY twice"
        if isinstance(message, Partial):
            why = (
                f"it answered the request id {message.id[:40]!r}, which it does not have; an "
                "answer has client, empty frame, request id and body, as in the REQUEST"
            )
        _log.warning("a worker of %s is disconnected: %s", service, why)

    def _register(
        self, identity: bytes, message: WorkerMessage, now: float, *, empty: bool
    ) -> None:
        if isinstance(message, Disconnect):
            return
        worker = self._accept(identity, message, now, empty=empty)
        if worker is None:
            self._send_command(identity, "DISCONNECT", empty=empty)
        else:
            self._workers[identity] = self._by_number[worker.number] = worker
            _log.info("a worker serves %s", worker.service)

    def _accept(
        self, identity: bytes, message: WorkerMessage, now: float, *, empty: bool
    ) -> _Worker | None:
        """Return a new worker with a session; None for an unexpected message or at a limit."""
        if len(self._workers) >= self._limits.workers:
            _log.warning("a worker is refused: there are already %d", len(self._workers))
            return None
        if not isinstance(message, Ready):
            return None
        if message.service.startswith(MMI):
            _log.warning("a worker is refused: service names %s* are reserved", MMI)
            return None
        if len(message.service.encode()) > self._limits.id:
            raise ProtocolError(f"a service has at most {self._limits.id} bytes")
        self._numbers += 1
        worker = _Worker(self._numbers, identity, message.service, now, empty)
        return worker if self._jobs.attach(worker.number, message.service) else None

    @staticmethod
    def _is_answer(worker: _Worker, part: Partial) -> bool:
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
        # Parts that an earlier worker of this job has sent are not repeated.
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
        _log.info(
            "a worker of %s %s", worker.service, "was silent too long" if died else "has left"
        )
        self._jobs.detach(worker.number, died=died and worker.task is not None)

    def _send_command(self, identity: bytes, name: str, *, empty: bool) -> None:
        self._send(identity, command(self._limits.worker_name, name), empty=empty)

    def _send(self, identity: bytes, frames: list[bytes], *, empty: bool) -> None:
        """Send to a worker, preceded by an empty frame if its own messages are."""
        self.outbox.append((BACK, [identity, *([b""] if empty else []), *frames]))

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self._workers)

    @property
    def requests(self) -> int:
        """Number of requests without a reply."""
        return len(self._requests)

    # Undelivered messages

    def not_sent(self, port: str, frames: list[bytes], *, disconnected: bool) -> None:
        """Keep a reply for a disconnected client, or remove a disconnected worker."""
        if port == FRONT:
            self._store_reply(
                frames, self._retried.pop(id(frames), self._now + self._limits.reply_ttl)
            )
            return
        worker = self._workers.get(frames[0])
        if worker is not None:
            self._remove(worker, died=False)

    def _store_reply(self, frames: list[bytes], until: float) -> None:
        limits, replies = self._limits, self._replies
        replies.append((until, frames))
        self._replies_by_client[frames[0]] += 1
        self._reply_bytes += sum(map(len, frames))
        while len(replies) > limits.max_replies or self._reply_bytes > limits.max_reply_bytes:
            _, oldest = replies.popleft()
            self._reply_bytes -= sum(map(len, oldest))
            self._replies_by_client[oldest[0]] -= 1
            if not self._replies_by_client[oldest[0]]:
                del self._replies_by_client[oldest[0]]

    def expel(self, port: str, peer: bytes) -> None:
        """Remove a worker whose key was revoked; its job goes to another worker."""
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
        self._retried.clear()
        if self._replies and now >= self._retry_at:
            self._retry_at = now + RETRY_AFTER
            replies, self._replies = self._replies, deque()
            self._reply_bytes = 0
            self._replies_by_client.clear()
            for until, frames in replies:
                if now < until:
                    self._retried[id(frames)] = until
                    self.outbox.append((FRONT, frames))

    def wait(self, now: float) -> float:
        """Return the seconds until `tick` must be called."""
        last_seen = min(
            (worker.last_seen for worker in self._workers.values()), default=float("inf")
        )
        deadline = last_seen + self._limits.dead
        if self._replies:
            deadline = min(deadline, self._retry_at)
        return max(0.0, deadline - now)

    def close(self, now: float) -> None:
        """Tell the workers to register again."""
        for worker in list(self._workers.values()):
            self._remove(worker, died=False)
            self._send_command(worker.identity, "DISCONNECT", empty=worker.empty)
