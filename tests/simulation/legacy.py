"""A worker that knows the legacy protocol only, as deployed software does: no FEATURES.

It informs once, and offers its slots by a READY each when it gets the first HEARTBEAT, and again
after each ACK that follows, those too that are busy: what comes for them waits. It answers jobs by
REPLY, says READY after each, and repeats nothing. Every message is a sign of life to it, those too
that it does not understand, as an ERROR. When nothing has come for a while it begins anew, with
another routing id. A DISCONNECT makes it do so at once, unless it still waits for the ACK of its
INFORM.
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
    """Encode a legacy job: what happens in each of its runs stands in its arguments."""
    call = {"callable": "job", "path": "sim", "args": [list(map(list, runs))]}
    return json.dumps(["run", call]).encode()


class PlainEntry(NamedTuple):
    """What the auditor wants to know of a job; a legacy REQUEST says no delivery."""

    id: str
    delivery: int
    attempt: int = 1


class LegacyWorker(Process):
    """One legacy worker over its lives; its arguments are those of `WorkerProcess`."""

    def __init__(
        self, world: World, network: Network, auditor: Auditor, *, number: int, slots: int,
        queues: tuple[tuple[int, str], ...], limits: Limits,
    ) -> None:  # fmt: skip
        super().__init__(world)
        self.name = f"plain{number}"
        self.network = network
        self.auditor = auditor
        self.slots = slots
        self.queues = queues
        self.limits = limits
        self._ids = self._sockets = 0

    def start(self) -> None:
        self.live()
        self.world.tell(self.name, "starts")
        self._running: set[str] = set()
        self._waiting: deque[Request] = deque()
        self._started = False
        self._open()

    def _open(self) -> None:
        self._sockets += 1
        # A random UUID as text, another one for each socket.
        made = hashlib.sha256(f"{self.name}-{self._sockets}".encode()).digest()
        self.socket = Socket(self.network, self, str(uuid.UUID(bytes=made[:16], version=4)))
        self._backlog: list[list[bytes]] = []
        self._known = False
        self._heard = self._beaten = self.clock.monotonic()
        queues = json.dumps([list(queue) for queue in self.queues])
        self._say(Inform(self._id(), queues, "worker"))
        self.wake()

    def die(self) -> None:
        if self.alive:
            super().die()
            self.socket.close()
            self._running.clear()
            self._waiting.clear()

    def terminate(self) -> None:
        """End as by SIGTERM."""
        if self.alive:
            self._say(Kbai(self._id(), "KBYE"))
            self.die()

    @property
    def idle(self) -> bool:
        return not self._running and not self._waiting

    def _id(self) -> str:
        self._ids += 1
        return f"{self.name}.{self._ids}"

    def _say(self, message: Inform | Ready | Reply | Heartbeat | Kbai) -> None:
        self._backlog.append(message.frames())
        while self._backlog and self.socket.send(self._backlog[0]):
            self._backlog.pop(0)

    def turn(self) -> None:
        now = self.clock.monotonic()
        while self.socket.inbox:
            if self._take(self.socket.inbox.popleft(), now):
                self.socket.close()
                self._open()
        self.socket.events.clear()
        if now - self._heard > self.limits.heartbeat_timeout:
            self.socket.close()
            self._open()
        if now - self._beaten >= self.limits.heartbeat_interval:
            self._beaten = now
            self._say(Heartbeat(self._id(), f"{self.clock.now():.2f}"))
        while self._backlog and self.socket.send(self._backlog[0]):
            self._backlog.pop(0)
        self.wake(0.5)

    def _take(self, frames: list[bytes], now: float) -> bool:
        """Take a message; return whether it makes the worker begin anew."""
        self._heard = now
        match decode(frames):
            case Ack():
                self._known = True
                if self._started:
                    self._offer()
            case Heartbeat():
                if self._known and not self._started:
                    self._started = True
                    self._offer()
            case Request() as request:
                self._waiting.append(request)
                self._begin()
            case Disconnect():
                assert self._known, "a job manager that waits for an ACK dies of a DISCONNECT"
                self._say(Kbai(self._id(), "KBYE"))
                return True
        return False

    def _offer(self) -> None:
        for _ in range(self.slots):
            self._say(Ready(self._id()))

    def _begin(self) -> None:
        while self._waiting and len(self._running) < self.slots:
            self._run(self._waiting.popleft())

    def _run(self, request: Request) -> None:
        known = self.auditor.job(request.id)
        entry = PlainEntry(request.id, len(known.executions) + 1)
        execution = self.auditor.started(entry, request.body, self)
        [_, call] = json.loads(request.body)
        runs = call["args"][0]
        seconds, fate = runs[min(execution.run, len(runs)) - 1]
        life = self._life
        self._running.add(request.id)
        self.world.at(
            self.world.now + seconds, lambda: self._over(request.id, execution, fate, life)
        )

    def _over(self, job_id: str, execution: Execution, fate: str, life: int) -> None:
        if not self.alive or life != self._life:
            self.auditor.broke_off(execution)
            return
        self._running.discard(job_id)
        died = fate == "die"
        self.auditor.ended(execution, OutcomeKind.DIED if died else OutcomeKind.SUCCEEDED)
        if not died:
            result = json.dumps({"value": f"{job_id}/1"}).encode()
            self._say(Reply(self._id(), result, job_id))
        self._say(Ready(self._id()))
        self._begin()
        self.wake()
