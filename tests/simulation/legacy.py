"""Legacy worker: speaks only the published protocol, without FEATURES, as deployed software does.

It sends one INFORM. At the first HEARTBEAT it offers each slot by a READY, and again after each
ACK that follows, busy slots too; jobs for busy slots wait. It answers a job by REPLY, sends READY
after it, and repeats no message. Every message counts as a sign of life, even an ERROR that it
does not understand. When nothing has come for a while, it reconnects with another routing id. A
DISCONNECT makes it do so at once, unless it still waits for the ACK of its INFORM.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from eventmq.job import OutcomeKind
from eventmq.wire.commands import (
    Ack,
    Disconnect,
    Heartbeat,
    Inform,
    Kbai,
    Ready,
    Reply,
    Request,
    decode,
)
from tests.simulation.network import Socket
from tests.simulation.world import Process

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.broker.limits import Limits
    from tests.simulation.auditor import Auditor, Execution
    from tests.simulation.network import Network
    from tests.simulation.world import World

__all__ = ["LegacyWorker", "legacy_body"]


def legacy_body(runs: Sequence[tuple[float, str]]) -> bytes:
    """Encode a legacy job, whose arguments are the runs of its plan."""
    call = {"callable": "job", "path": "sim", "args": [list(map(list, runs))]}
    return json.dumps(["run", call]).encode()


class LegacyEntry(NamedTuple):
    """Job as the auditor wants it; a legacy REQUEST has no delivery number."""

    id: str
    delivery: int
    attempt: int = 1


class LegacyWorker(Process):
    """One legacy worker with all its restarts; its arguments are those of `WorkerProcess`."""

    def __init__(
        self, world: World, networks: Sequence[Network], auditor: Auditor, *, number: int,
        slots: int, queues: tuple[tuple[int, str], ...], limits: Limits,
    ) -> None:  # fmt: skip
        super().__init__(world)
        self.name = f"legacy{number}"
        self.networks = networks
        self.auditor = auditor
        self.slots = slots
        self.queues = queues
        self.limits = limits
        self._ids = self._sockets = 0

    def start(self) -> None:
        self.live()
        self.world.trace(self.name, "starts")
        self._running: set[str] = set()
        self._waiting: deque[Request] = deque()
        self._started = False
        self._open()

    def _open(self) -> None:
        self._sockets += 1
        # The routing id is a random UUID as text, another one for each socket.
        made = hashlib.sha256(f"{self.name}-{self._sockets}".encode()).digest()
        self._socket = Socket(self.networks[0], self, str(uuid.UUID(bytes=made[:16], version=4)))
        self._backlog: list[list[bytes]] = []
        self._registered = False
        self._last_received = self._last_heartbeat = self.clock.monotonic()
        queues = json.dumps([list(queue) for queue in self.queues])
        self._send(Inform(self._id(), queues, "worker"))
        self.wake()

    def socket(self, _: Network) -> Socket | None:
        """Return its socket, None while the process is down."""
        return self._socket if self.alive else None

    def die(self) -> None:
        if self.alive:
            super().die()
            self._socket.close()
            self._running.clear()
            self._waiting.clear()

    def terminate(self) -> None:
        """End as by SIGTERM."""
        if self.alive:
            self._send(Kbai(self._id(), "KBYE"))
            self.die()

    @property
    def idle(self) -> bool:
        return not self._running and not self._waiting

    def _id(self) -> str:
        self._ids += 1
        return f"{self.name}.{self._ids}"

    def _send(self, message: Inform | Ready | Reply | Heartbeat | Kbai) -> None:
        self._backlog.append(message.frames())
        while self._backlog and self._socket.send(self._backlog[0]):
            self._backlog.pop(0)

    def tick(self) -> None:
        now = self.clock.monotonic()
        while self._socket.inbox:
            if self._receive(self._socket.inbox.popleft(), now):
                self._socket.close()
                self._open()
        self._socket.events.clear()
        if now - self._last_received > self.limits.heartbeat_timeout:
            self._socket.close()
            self._open()
        if now - self._last_heartbeat >= self.limits.heartbeat_interval:
            self._last_heartbeat = now
            self._send(Heartbeat(self._id(), f"{self.clock.now():.2f}"))
        while self._backlog and self._socket.send(self._backlog[0]):
            self._backlog.pop(0)
        self.wake(0.5)

    def _receive(self, frames: list[bytes], now: float) -> bool:
        """Handle a message; return whether the worker must reconnect."""
        self._last_received = now
        match decode(frames):
            case Ack():
                self._registered = True
                if self._started:
                    self._offer()
            case Heartbeat():
                if self._registered and not self._started:
                    self._started = True
                    self._offer()
            case Request() as request:
                self._waiting.append(request)
                self._start_waiting()
            case Disconnect():
                assert self._registered, "a job manager that waits for an ACK dies of a DISCONNECT"
                self._send(Kbai(self._id(), "KBYE"))
                return True
        return False

    def _offer(self) -> None:
        for _ in range(self.slots):
            self._send(Ready(self._id()))

    def _start_waiting(self) -> None:
        while self._waiting and len(self._running) < self.slots:
            self._run(self._waiting.popleft())

    def _run(self, request: Request) -> None:
        audited = self.auditor.job(request.id)
        entry = LegacyEntry(request.id, len(audited.executions) + 1)
        execution = self.auditor.started(entry, request.body, self)
        [_, call] = json.loads(request.body)
        runs = call["args"][0]
        seconds, fate = runs[min(execution.run, len(runs)) - 1]
        life = self._life
        self._running.add(request.id)
        self.world.at(
            self.world.now + seconds, lambda: self._run_ended(request.id, execution, fate, life)
        )

    def _run_ended(self, job_id: str, execution: Execution, fate: str, life: int) -> None:
        if not self.alive or life != self._life:
            self.auditor.interrupted(execution)
            return
        self._running.discard(job_id)
        died = fate == "die"
        self.auditor.ended(execution, OutcomeKind.DIED if died else OutcomeKind.SUCCEEDED)
        if not died:
            result = json.dumps({"value": f"{job_id}/1"}).encode()
            self._send(Reply(self._id(), result, job_id))
        self._send(Ready(self._id()))
        self._start_waiting()
        self.wake()
