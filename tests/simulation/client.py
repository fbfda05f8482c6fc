"""Client process: the real `ClientMachine`, and the user that calls it."""

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
    from collections.abc import Sequence

    from eventmq.broker.limits import Limits
    from eventmq.client.requests import PendingRequest
    from tests.simulation.auditor import Auditor
    from tests.simulation.network import Network
    from tests.simulation.scenario import JobPlan
    from tests.simulation.world import World

__all__ = ["ClientProcess"]

#: Timeouts of submissions and of calls, in seconds.
SUBMIT, ASK = 5.0, 60.0

#: Times that a user submits jobs again, under the same ids, after a timeout.
RESUBMITS = 3


def body_of(job: JobPlan) -> bytes:
    """Encode the runs of a job as its body."""
    return (make_body if "content-type:" in job.headers else legacy_body)(job.runs)


class ClientProcess(Process):
    """One client with all its restarts.

    Args:
        world: Event queue and clock.
        networks: Network to each broker.
        auditor: Gets the receipts, results and parts that the client has received.
        number: Number of the client, for its name.
        limits: Limits of the broker; the client uses their intervals.
        role: Role in its INFORM.
    """

    def __init__(
        self, world: World, networks: Sequence[Network], auditor: Auditor, *, number: int,
        limits: Limits, role: str = "client",
    ) -> None:  # fmt: skip
        super().__init__(world)
        self.name = f"{role}{number}"
        self.networks = networks
        self.auditor = auditor
        self.limits = limits
        self.role = role
        self._calls = 0

    def start(self) -> None:
        """Start the client."""
        self.live()
        self.machine = ClientMachine(
            [network.address for network in self.networks],
            session=f"{self.name}.{self._life}",
            heartbeat=self.limits.heartbeat_interval,
            heartbeat_timeout=self.limits.heartbeat_timeout,
            role=self.role,
        )
        self.readers: list[Reader] = []
        self.world.trace(self.name, "starts")
        self.sockets = [self._open(index) for index in range(len(self.networks))]

    def _open(self, index: int) -> Socket:
        socket = Socket(self.networks[index], self)
        self.machine.opened(index, self.clock.monotonic())
        self.wake()
        return socket

    def socket(self, network: Network) -> Socket | None:
        """Return the socket of a network, None while the process is down."""
        return self.sockets[self.networks.index(network)] if self.alive else None

    def die(self) -> None:
        if self.alive:
            super().die()
            for socket in self.sockets:
                socket.close()

    @property
    def idle(self) -> bool:
        """Whether no request is in flight."""
        return not self.machine.busy

    def tick(self) -> None:
        machine, now = self.machine, self.clock.monotonic()
        for index, socket in enumerate(self.sockets):
            events, inbox = socket.events, socket.inbox
            while events:
                if events.popleft():
                    machine.restored(index, now)
                else:
                    machine.lost(index, now)
            while inbox:
                machine.received(index, inbox.popleft(), now)
        machine.tick(now, self.clock.now())
        self._notify_requests()
        while machine.reopen:
            index = machine.reopen.pop()
            self.sockets[index].close()
            self.sockets[index] = self._open(index)
        flushed = True
        for index, socket in enumerate(self.sockets):
            flushed = machine.flush(index, socket.send, now) and flushed
        self._notify_requests()
        wait = machine.next_tick() - now
        if wait != float("inf"):
            self.wake((max(0, int(wait * 1000)) + 1) / 1000)
        if not flushed:
            self.wake(0.1)

    def _notify_requests(self) -> None:
        to_notify = self.machine.to_notify
        while to_notify:
            requests, to_notify[:] = list(to_notify), []
            for request in requests:
                request.notify()

    def begin(self, request: PendingRequest) -> None:
        """Give a request to the client machine."""
        self.machine.begin(request, self.clock.monotonic())
        self.wake()

    # Operations of the user, named by `Op.method`

    def submit(self, jobs: list[JobPlan], get: bool = False) -> None:
        """Submit one job, or several in one message; streams are read.

        Of single jobs whose result is wanted every other one is a call: one exchange.
        """
        call = get and len(jobs) == 1 and jobs[0].id[-1] in "02468ace"
        frames, message, count = self._request(jobs, "late-ack" if call else "ack-requested")
        self._deliver(jobs, frames, message, count, RESUBMITS, get, call=call)

    def graph(self, jobs: list[JobPlan], expression: Any, get: bool = False) -> None:
        """Submit a graph."""
        frames = write_graph(jobs, expression)
        self._deliver(jobs, frames, jobs[0].id, 0, RESUBMITS, get)

    def _request(self, jobs: list[JobPlan], requested: str) -> tuple[list[bytes], str, int]:
        if len(jobs) == 1:
            job = jobs[0]
            text = f"{job.headers},{requested}"
            return Request(job.id, job.queue, text, body_of(job)).frames(), job.id, 0
        templates = list(dict.fromkeys((job.queue, job.headers) for job in jobs))
        rows = [(job.id, templates.index((job.queue, job.headers)), body_of(job)) for job in jobs]
        body = encode_batch(templates, rows)
        message = f"{self.name}.batch.{jobs[0].id}"
        return Request(message, "", f"batch:{len(jobs)}", body).frames(), message, len(jobs)

    def _deliver(
        self, jobs: list[JobPlan], frames: list[bytes], message: str, count: int, resubmits: int,
        get: bool, *, call: bool = False,
    ) -> None:  # fmt: skip
        self.auditor.intend(jobs)
        deadline = self.clock.monotonic() + SUBMIT
        pending = PendingSubmit(frames, id=message, deadline=deadline, count=count)
        life = self._life

        def submitted() -> None:
            if self._life != life:
                return
            again = isinstance(pending.error, BrokerUnavailable) and resubmits
            if again:
                self._deliver(jobs, frames, message, count, resubmits - 1, get, call=call)
                return
            confirmed = self.auditor.receipt(jobs, pending)
            self.world.trace(
                self.name, "has a receipt of", [i[-6:] for i in confirmed], pending.error or ""
            )
            for plan in jobs:
                if ",stream" in plan.headers and plan.id in confirmed:
                    self.readers.append(Reader(self, plan.id))
            if get and confirmed and not call:
                self.ask("get", {}, ids=confirmed)

        pending.notify = submitted
        if call:
            self.ask("get", {}, ids=[message], submit=pending)
        else:
            self.begin(pending)

    def ask(
        self, name: str, arguments: dict[str, Any], ids: list[str] | None = None,
        submit: PendingSubmit | None = None,
    ) -> None:  # fmt: skip
        """Make a call, with a submission before it; its answers go to the auditor."""
        self._calls += 1
        call = PendingCall(
            [], id=f"{self.name}.{self._life}.ask{self._calls}", name=name, arguments=arguments,
            deadline=self.clock.monotonic() + ASK, ids=set(ids or ()), submit=submit,
            subject=submit.id if submit is not None else "",
        )  # fmt: skip
        call.notify = partial(self._answered, call)
        self.auditor.requested(name, arguments)
        self.begin(call)

    def _answered(self, call: PendingCall) -> None:
        while call.answers:
            answer = call.answers.popleft()
            self.world.trace(self.name, f"gets the answer to {call.name}", answer)
            self.auditor.answered(call.name, call.arguments, answer)
