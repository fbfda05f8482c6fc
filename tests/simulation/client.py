"""A client's process: `ClientMachine` in the turns of its loop, and what its user does."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from eventmq.client.machine import ClientMachine
from eventmq.client.requests import PendingCall, PendingSubmit
from eventmq.errors import BrokerUnavailable
from eventmq.wire.batches import encode_batch
from eventmq.wire.commands import Request
from tests.simulation.graphs import write_graph
from tests.simulation.legacy import legacy_body
from tests.simulation.network import Socket
from tests.simulation.pool import make_body
from tests.simulation.reader import Reader
from tests.simulation.world import Process

if TYPE_CHECKING:
    from eventmq.broker.limits import Limits
    from eventmq.client.requests import PendingRequest
    from tests.simulation.auditor import Auditor
    from tests.simulation.network import Network
    from tests.simulation.scenario import JobPlan
    from tests.simulation.world import World

__all__ = ["ClientProcess"]

#: Seconds that a submission may take, and a call.
SUBMIT, ASK = 5.0, 60.0

#: How often a user submits again, under the same id, what has no receipt in time.
AGAIN = 3


def body_of(job: JobPlan) -> bytes:
    """Encode what happens in the runs of a job."""
    return (make_body if "content-type:" in job.headers else legacy_body)(job.runs)


class ClientProcess(Process):
    """One client over its lives.

    Args:
        world: Time.
        network: Between it and the broker.
        auditor: Is told which receipts and results it holds.
        number: Of the client.
        limits: Of the broker, whose intervals it shares.
        role: What it informs as.
    """

    def __init__(
        self, world: World, network: Network, auditor: Auditor, *, number: int, limits: Limits,
        role: str = "client",
    ) -> None:  # fmt: skip
        super().__init__(world)
        self.name = f"{role}{number}"
        self.network = network
        self.auditor = auditor
        self.limits = limits
        self.role = role
        self._calls = 0

    def start(self) -> None:
        """Begin a run of the client."""
        self.live()
        self.machine = ClientMachine(
            ["sim"],
            session=f"{self.name}.{self._life}",
            heartbeat=self.limits.heartbeat_interval,
            heartbeat_timeout=self.limits.heartbeat_timeout,
            role=self.role,
        )
        self.readers: list[Reader] = []
        self.world.tell(self.name, "starts")
        self._open()

    def _open(self) -> None:
        self.socket = Socket(self.network, self)
        self.machine.opened(0, self.clock.monotonic())
        self.wake()

    def die(self) -> None:
        if self.alive:
            super().die()
            self.socket.close()

    @property
    def idle(self) -> bool:
        """Whether nothing is open."""
        return not self.machine.busy

    def turn(self) -> None:
        machine, now = self.machine, self.clock.monotonic()
        events, inbox = self.socket.events, self.socket.inbox
        while events:
            if events.popleft():
                machine.restored(0, now)
            else:
                machine.lost(0, now)
        while inbox:
            machine.received(0, inbox.popleft(), now)
        machine.tick(now, self.clock.now())
        self._settle()
        while machine.reopen:
            machine.reopen.clear()
            self.socket.close()
            self._open()
        taken = machine.flush(0, self.socket.send, now)
        self._settle()
        due = machine.next_tick() - now
        if due != float("inf"):
            self.wake((max(0, int(due * 1000)) + 1) / 1000)
        if not taken:
            self.wake(0.1)

    def _settle(self) -> None:
        settled = self.machine.to_notify
        while settled:
            requests, settled[:] = list(settled), []
            for request in requests:
                request.notify()

    def begin(self, request: PendingRequest) -> None:
        """Hand a request to the machine."""
        self.machine.begin(request, self.clock.monotonic())
        self.wake()

    # What its user does: named by `Op.what`

    def submit(self, jobs: list[JobPlan], get: bool = False) -> None:
        """Submit one job, or several in one message; what one yields is read."""
        frames, message, count = self._request(jobs)
        self._deliver(jobs, frames, message, count, AGAIN, get)

    def graph(self, jobs: list[JobPlan], expression: Any, get: bool = False) -> None:
        """Submit a graph."""
        frames = write_graph(jobs, expression)
        self._deliver(jobs, frames, jobs[0].id, 0, AGAIN, get)

    def _request(self, jobs: list[JobPlan]) -> tuple[list[bytes], str, int]:
        if len(jobs) == 1:
            job = jobs[0]
            text = f"{job.headers},ack-requested"
            return Request(job.id, job.queue, text, body_of(job)).frames(), job.id, 0
        templates = list(dict.fromkeys((job.queue, job.headers) for job in jobs))
        rows = [(job.id, templates.index((job.queue, job.headers)), body_of(job)) for job in jobs]
        body = encode_batch(templates, rows)
        message = f"{self.name}.batch.{jobs[0].id}"
        return Request(message, "", f"batch:{len(jobs)}", body).frames(), message, len(jobs)

    def _deliver(
        self, jobs: list[JobPlan], frames: list[bytes], message: str, count: int, left: int,
        get: bool,
    ) -> None:  # fmt: skip
        self.auditor.intend(jobs)
        deadline = self.clock.monotonic() + SUBMIT
        pending = PendingSubmit(frames, id=message, deadline=deadline, count=count)
        life = self._life

        def settled() -> None:
            if self._life != life:
                return
            again = isinstance(pending.error, BrokerUnavailable) and left
            if again:
                self._deliver(jobs, frames, message, count, left - 1, get)
                return
            got = self.auditor.receipt(jobs, pending)
            self.world.tell(
                self.name, "has a receipt of", [i[-6:] for i in got], pending.error or ""
            )
            for plan in jobs:
                if ",stream" in plan.headers and plan.id in got:
                    self.readers.append(Reader(self, plan.id))
            if get and got:
                self.ask("get", {}, ids=got)

        pending.notify = settled
        self.begin(pending)

    def ask(self, name: str, arguments: dict[str, Any], ids: list[str] | None = None) -> None:
        """Make a call, and give the answers to the auditor."""
        self._calls += 1
        call = PendingCall(
            [], id=f"{self.name}.{self._life}.ask{self._calls}", name=name, arguments=arguments,
            deadline=self.clock.monotonic() + ASK, ids=set(ids or ()),
        )  # fmt: skip
        call.notify = partial(self._answered, call)
        self.auditor.asked(name, arguments)
        self.begin(call)

    def _answered(self, call: PendingCall) -> None:
        while call.answers:
            answer = call.answers.popleft()
            self.world.tell(self.name, f"hears of {call.name}", answer)
            self.auditor.answered(call.name, call.arguments, answer)
