"""The broker's part of Majordomo: who is there, who asked what, who works on what, who is dead.

Frames and the time go in, frames come out; what concerns jobs goes to a `Jobs`. No socket, no
clock. ``now`` is monotonic seconds.
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
    foreign,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq_contrib.gateways.majordomo.messages import WorkerMessage

__all__ = ["Asked", "Jobs", "MajordomoLimits", "MajordomoMachine", "Task"]

_log = logging.getLogger(__name__)

FRONT, BACK = "front", "back"

#: What the names of services begin with that the gateway answers itself, and the one that it has
#: (ZeroMQ RFC 8).
MMI, MMI_SERVICE = "mmi.", "mmi.service"

#: Services of which an unexpected message is logged, or that a peer of another version names.
MOST_WARNED = 1000

#: What is spoken here, for those who speak something else.
_SPOKEN = (
    "the Majordomo draft 0.1: REQUEST, PARTIAL and FINAL have a request id, and a worker sends "
    "PING and is sent PONG, no HEARTBEAT"
)

#: Seconds between two tries to reach a client that was not there for its reply.
TRY_AGAIN = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class MajordomoLimits:
    """Names, bounds and times. Times are seconds.

    Attributes:
        client_name: NAME on the front port.
        worker_name: NAME on the back port.
        dead: A worker that is silent for so long is dead.
        workers: At a time.
        requests: Of clients, that are not answered.
        id: Bytes of an identity, of a request id and of the name of a service.
        frames: Of one message.
        keep: A reply waits so long for a client that is away.
        kept: Replies that wait so, and ``kept_bytes`` of them together: the oldest go first.
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


class Asked(NamedTuple):
    """A client's request; ``empty`` says that an empty frame came before it, as REQ sockets do."""

    client: bytes
    id: bytes
    service: str
    empty: bool = False


class Task(NamedTuple):
    """A job on its way to a worker: its id, where the reply goes by the draft, and the body.

    ``streams`` says that its PARTIALs are parts of the job's stream.
    """

    job_id: str
    client: bytes
    id: bytes
    body: Sequence[bytes]
    streams: bool = False


class Jobs(Protocol):
    """What the machine wants done with jobs. Nothing may block."""

    def key(self, asked: Asked) -> str:
        """Return the id of the job of a request: the same for the same client and request id."""

    def submit(self, job_id: str, asked: Asked, body: Sequence[bytes]) -> None:
        """Submit a job and wait for it; its end comes by `MajordomoMachine.finished`."""

    def look_up(self, job_id: str, service: str) -> None:
        """See whether a service is there; the code comes by `MajordomoMachine.finished`."""

    def attach(self, worker: int, service: str) -> bool:
        """Work for a service, if there is room; jobs come by `MajordomoMachine.assign`."""

    def parted(self, worker: int, job_id: str, body: Sequence[bytes]) -> None:
        """A worker has sent a PARTIAL of its job, which is a part of the job's stream."""

    def answered(self, worker: int, job_id: str, body: Sequence[bytes]) -> None:
        """A worker has done its job."""

    def detach(self, worker: int, *, died: bool) -> None:
        """Work no more for this worker; with ``died``, it died of what it was doing perhaps."""


@dataclass(slots=True)
class _Worker:
    number: int
    identity: bytes
    service: str
    heard: float
    #: Its messages begin with an empty frame, and so do ours to it.
    empty: bool = False
    task: Task | None = None
    #: PARTIALs of the task so far.
    parts: int = 0


class MajordomoMachine:
    """Implements `eventmq.gateway.router.FrameMachine`.

    Args:
        limits: Names, bounds and times.
        jobs: What is done with jobs.

    Attributes:
        outbox: What is to be sent.
    """

    def __init__(self, limits: MajordomoLimits, jobs: Jobs) -> None:
        self.outbox: deque[tuple[str, list[bytes]]] = deque()
        self._limits = limits
        self._jobs = jobs
        self._numbers = 0
        self._workers: dict[bytes, _Worker] = {}
        self._by_number: dict[int, _Worker] = {}
        self._asked: dict[str, Asked] = {}
        #: Jobs that ended while those of an earlier run are looked for; None once they were.
        self._ended: dict[str, None] | None = {}
        #: Job -> PARTIALs that its client was sent.
        self._parts: dict[str, int] = {}
        #: Replies for clients that are away: (until, frames).
        self._kept: deque[tuple[float, list[bytes]]] = deque()
        self._kept_due = 0.0
        #: Bytes of these, and how many each client has: what follows waits behind them.
        self._kept_size = 0
        self._kept_of: Counter[bytes] = Counter()
        #: Replies that were just tried again: id of the list of frames -> until.
        self._again: dict[int, float] = {}
        #: Services of which an unexpected message of a worker was logged.
        self._warned: set[str] = set()
        #: Port, service and version of peers that speak another one, of which that was logged.
        self._foreign: set[tuple[str, str, str]] = set()
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
                self._ask(identity, decode_client(rest, self._limits.client_name), empty=empty)
            else:
                message = decode_worker(rest, self._limits.worker_name)
                self._hear(identity, message, now, empty=empty)
        except ProtocolError as error:
            _log.debug("a message on the %s port was dropped: %s", port, error)
            limits = self._limits
            name = limits.client_name if port == FRONT else limits.worker_name
            if (known := foreign(rest, name)) is not None:
                what = "its messages are dropped"
                self._warn_foreign(port, known, what)

    def _warn_foreign(self, port: str, known: messages.Foreign, what: str) -> None:
        """Say once that a peer speaks another version; it has a new identity each time it comes."""
        key = port, known.service, known.version
        too_long = len(known.service.encode()) > self._limits.id
        if too_long or key in self._foreign or len(self._foreign) >= MOST_WARNED:
            return
        self._foreign.add(key)
        told = f"{known.version} ({known.sign}), and this gateway speaks {_SPOKEN}"
        _log.warning(
            "a peer on the %s port for the service %s speaks %s; %s",
            port,
            known.service,
            told,
            what,
        )

    # Clients

    def _ask(self, client: bytes, request: messages.Request, *, empty: bool) -> None:
        limits = self._limits
        if max(len(request.id), len(request.service.encode())) > limits.id:
            raise ProtocolError(f"a request id and a service have at most {limits.id} bytes")
        asked = Asked(client, request.id, request.service, empty)
        job_id = self._jobs.key(asked)
        if job_id in self._asked:
            self._asked[job_id] = self._asked[job_id]._replace(empty=empty)
            return  # a repeat: it joins the first
        if len(self._asked) >= limits.requests:
            raise ProtocolError(f"there are {limits.requests} open requests")
        self._asked[job_id] = asked
        if request.service.startswith(MMI):
            self._manage(job_id, request)
        else:
            self._jobs.submit(job_id, asked, request.body)

    def _manage(self, job_id: str, request: messages.Request) -> None:
        """Answer a service of ZeroMQ RFC 8: ``mmi.service`` says whether another one is there."""
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
            self._jobs.look_up(job_id, service)

    def expect(self, job_id: str, asked: Asked) -> bool:
        """Wait for the reply of an earlier run's request; False if it is known already.

        It may be one of this run, which was open when the broker was asked and has ended since.
        """
        known = job_id in self._asked or job_id in (self._ended or ())
        if known or len(self._asked) >= self._limits.requests:
            return False
        self._asked[job_id] = asked
        return True

    def looked_back(self) -> None:
        """Note that `expect` is called no more."""
        self._ended = None

    def finished(self, job_id: str, body: Sequence[bytes]) -> None:
        """Give the client of a job its FINAL."""
        asked = self._asked.pop(job_id, None)
        self._parts.pop(job_id, None)
        if self._ended is not None:
            self._ended[job_id] = None
            if len(self._ended) > self._limits.requests:
                del self._ended[next(iter(self._ended))]
        if asked is not None:
            self._reply(asked, body, final=True)

    def part(self, job_id: str, body: Sequence[bytes]) -> None:
        """Give the client of a job a PARTIAL; nothing happens if it has had its FINAL."""
        asked = self._asked.get(job_id)
        if asked is not None:
            self._reply(asked, body, final=False)

    def _reply(self, asked: Asked, body: Sequence[bytes], *, final: bool) -> None:
        name = self._limits.client_name
        frames = answer(name, asked.service, asked.id, body, final=final)
        if asked.empty:
            frames.insert(0, b"")
        if asked.client in self._kept_of:
            self._keep([asked.client, *frames], self._now + self._limits.keep)
        else:
            self.outbox.append((FRONT, [asked.client, *frames]))

    # Workers

    def _hear(self, identity: bytes, message: WorkerMessage, now: float, *, empty: bool) -> None:
        worker = self._workers.get(identity)
        if worker is None:
            self._hear_stranger(identity, message, now, empty=empty)
            return
        worker.heard = now
        match message:
            case Ping():
                self._say(identity, "PONG", empty=worker.empty)
            case Heartbeat():
                known = messages.Foreign(messages.RFC_18, worker.service, "it sends HEARTBEAT, 05")
                what = "it is kept while it sends that, hears none, and will leave and come again"
                self._warn_foreign(BACK, known, what)
            case Disconnect():
                self._remove(worker, died=False)
            case Partial() as part if self._fits(worker, part):
                self._take(worker, part)
            case Ready() | Partial():  # valid, and not expected
                self._warn(worker.service, message)
                self._remove(worker, died=False)
                self._say(identity, "DISCONNECT", empty=worker.empty)

    def _warn(self, service: str, message: WorkerMessage) -> None:
        """Say once for each service why a worker of it is sent away: it comes back at once."""
        if service in self._warned or len(self._warned) >= MOST_WARNED:
            return
        self._warned.add(service)
        why = "it said READY twice"
        if isinstance(message, Partial):
            why = (
                f"it answered the request id {message.id[:40]!r}, which it does not have; an "
                "answer has client, empty frame, request id and body, as the REQUEST has them"
            )
        _log.warning("a worker of %s is sent away: %s", service, why)

    def _hear_stranger(
        self, identity: bytes, message: WorkerMessage, now: float, *, empty: bool
    ) -> None:
        if isinstance(message, Disconnect):
            return
        full = len(self._workers) >= self._limits.workers
        if not isinstance(message, Ready) or full:
            if full:
                _log.warning("a worker is turned away: there are %d", len(self._workers))
            self._say(identity, "DISCONNECT", empty=empty)
            return
        if message.service.startswith(MMI):
            _log.warning("a worker is turned away: services of the name %s* are ours", MMI)
            self._say(identity, "DISCONNECT", empty=empty)
            return
        if len(message.service.encode()) > self._limits.id:
            raise ProtocolError(f"a service has at most {self._limits.id} bytes")
        self._numbers += 1
        worker = _Worker(self._numbers, identity, message.service, now, empty)
        if not self._jobs.attach(worker.number, message.service):
            self._say(identity, "DISCONNECT", empty=empty)
            return
        self._workers[identity] = self._by_number[worker.number] = worker
        _log.info("a worker serves %s", message.service)

    @staticmethod
    def _fits(worker: _Worker, part: Partial) -> bool:
        task = worker.task
        return task is not None and (part.client, part.id) == (task.client, task.id)

    def _take(self, worker: _Worker, part: Partial) -> None:
        task = worker.task
        assert task is not None  # noqa: S101 - it fits
        if isinstance(part, Final):
            worker.task, worker.parts = None, 0
            self._jobs.answered(worker.number, task.job_id, part.body)
            return
        if task.streams:
            self._jobs.parted(worker.number, task.job_id, part.body)
            return
        worker.parts += 1
        asked = self._asked.get(task.job_id)
        # What a worker before this one has sent is not repeated.
        if asked is not None and worker.parts > self._parts.get(task.job_id, 0):
            self._parts[task.job_id] = worker.parts
            self._reply(asked, part.body, final=False)

    def assign(self, number: int, task: Task) -> None:
        """Give a worker a job; nothing happens if it has left."""
        worker = self._by_number.get(number)
        if worker is not None:
            worker.task, worker.parts = task, 0
            asked = messages.request(self._limits.worker_name, task.client, task.id, task.body)
            self._send(worker.identity, asked, empty=worker.empty)

    def withdrawn(self, number: int) -> None:
        """The session of a worker has ended by itself: it must register again."""
        worker = self._by_number.get(number)
        if worker is not None:
            self._remove(worker, died=False)
            self._say(worker.identity, "DISCONNECT", empty=worker.empty)

    def _remove(self, worker: _Worker, *, died: bool) -> None:
        del self._workers[worker.identity], self._by_number[worker.number]
        _log.info("a worker of %s %s", worker.service, "is dead" if died else "has left")
        self._jobs.detach(worker.number, died=died and worker.task is not None)

    def _say(self, identity: bytes, what: str, *, empty: bool) -> None:
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
        return len(self._asked)

    # What could not be sent

    def not_sent(self, port: str, frames: list[bytes], *, gone: bool) -> None:
        """Keep a reply for a client that is away; give up a worker."""
        if port == FRONT:
            self._keep(frames, self._again.pop(id(frames), self._now + self._limits.keep))
            return
        worker = self._workers.get(frames[0])
        if worker is not None:
            self._remove(worker, died=False)

    def _keep(self, frames: list[bytes], until: float) -> None:
        limits, kept = self._limits, self._kept
        kept.append((until, frames))
        self._kept_of[frames[0]] += 1
        self._kept_size += sum(map(len, frames))
        while len(kept) > limits.kept or self._kept_size > limits.kept_bytes:
            _, oldest = kept.popleft()
            self._kept_size -= sum(map(len, oldest))
            self._kept_of[oldest[0]] -= 1
            if not self._kept_of[oldest[0]]:
                del self._kept_of[oldest[0]]

    def expel(self, port: str, peer: bytes) -> None:
        """Give up who has no key any more: a worker's request goes to another."""
        worker = self._workers.get(peer) if port == BACK else None
        if worker is not None:
            self._remove(worker, died=False)

    # Time

    def tick(self, now: float) -> None:
        """Give up who is dead, and try again to reach clients that were away."""
        self._now = now
        for worker in list(self._workers.values()):
            if now - worker.heard >= self._limits.dead:
                self._remove(worker, died=True)
        self._again.clear()
        if self._kept and now >= self._kept_due:
            self._kept_due = now + TRY_AGAIN
            kept, self._kept = self._kept, deque()
            self._kept_size = 0
            self._kept_of.clear()
            for until, frames in kept:
                if now < until:
                    self._again[id(frames)] = until
                    self.outbox.append((FRONT, frames))

    def wait(self, now: float) -> float:
        """Return in how many seconds `tick` has something to do."""
        heard = min((worker.heard for worker in self._workers.values()), default=float("inf"))
        due = heard + self._limits.dead
        if self._kept:
            due = min(due, self._kept_due)
        return max(0.0, due - now)

    def close(self, now: float) -> None:
        """Tell the workers to register again."""
        for worker in list(self._workers.values()):
            self._remove(worker, died=False)
            self._say(worker.identity, "DISCONNECT", empty=worker.empty)
