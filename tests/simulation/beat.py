"""Scheduler process: the real `BeatRunner` on the broker's schedule store.

A beat waits for answers in the middle of a tick. Here the simulation goes on while it waits: other
processes have their ticks, and the beat itself may be stopped or die before the answer has come.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from eventmq.client.requests import PendingCall, PendingSubmit
from eventmq.plugins.schedule_stores import BrokerSchedules
from eventmq.plugins.triggers import Every
from eventmq.policies import Timing
from eventmq.schedule import Schedule
from eventmq.scheduler.runner import BeatRunner
from eventmq.wire.batches import encode_batch
from eventmq.wire.commands import Request
from tests.simulation.client import ClientProcess
from tests.simulation.pool import make_body
from tests.simulation.scenario import JobPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eventmq.client.requests import PendingRequest
    from eventmq.scheduler.runner import ScheduledJob

__all__ = ["BeatProcess", "make_schedule"]

#: Seconds until a request without an answer fails.
ANSWER_TIMEOUT = 5.0

#: Runs of the jobs of schedules.
RUNS = ((0.01, "ok"),)


class Killed(BaseException):
    """The process was killed; no handler of the code under test may catch this."""


def make_schedule(name: str, seconds: float) -> Schedule:
    """Return a schedule that makes up for every missed fire time."""
    return Schedule(
        name=name, task=f"sim.{name}", queue="q0",
        headers=f"task:sim.{name},content-type:msgpack",
        body=make_body(RUNS), trigger=f'every:{{"seconds":{seconds}}}', source="code", app="sim",
        misfire="all",
    )  # fmt: skip


def make_trigger(text: str) -> Every:
    return Every(**Timing.parse(text).options)


class BeatProcess(ClientProcess):
    """One beat with all its restarts.

    Attributes:
        declared: Schedules in the code of its app, by name.
    """

    declared: Mapping[str, Schedule] = {}

    def start(self) -> None:
        self._busy = False
        self._beat_at = 0.0
        super().start()
        self.runner = BeatRunner(
            open_store=lambda: BrokerSchedules(self._ask, self._begin_ask),
            client=self,
            make_trigger=make_trigger,
            declared=lambda: self.declared,
            app="sim",
            owner=f"{self.name}.{self._life}",
            clock=self.clock,
            batch=1,
        )

    def die(self) -> None:
        if self.alive:
            super().die()
            self.runner._store = None  # nothing is given back
            self.runner.close()

    def tick(self) -> None:
        super().tick()
        if self._busy or not self.alive:
            return
        now = self.clock.monotonic()
        if now >= self._beat_at:
            self._busy = True
            try:
                wait = self.runner._guarded_tick()
            except Killed:
                return
            self._busy = False
            self._beat_at = self.clock.monotonic() + wait
        self.wake(max(0.001, self._beat_at - self.clock.monotonic()))

    def _wait(self, request: PendingRequest) -> None:
        """Run the simulation until a request is done; raise `Killed` if the beat dies meanwhile."""
        life = self._life
        while not request.done:
            self.world.step(self.world.now + ANSWER_TIMEOUT)
            if self._life != life or not self.alive:
                raise Killed

    def _ask(self, name: str, arguments: Mapping[str, Any]) -> Any:
        return self._begin_ask(name, arguments)()

    def _begin_ask(self, name: str, arguments: Mapping[str, Any]) -> Callable[[], Any]:
        self._calls += 1
        call = PendingCall(
            [], id=f"{self.name}.{self._life}.ask{self._calls}", name=name,
            arguments=dict(arguments), deadline=self.clock.monotonic() + ANSWER_TIMEOUT,
        )  # fmt: skip
        self.begin(call)
        return partial(self._answer, call)

    def _answer(self, call: PendingCall) -> Any:
        self._wait(call)
        if call.error is not None:
            raise call.error
        return call.answers.popleft()

    # Client of a `BeatRunner`

    def received_schedules(self) -> Sequence[tuple[Schedule, bool]]:
        return ()

    def submit(self, jobs: Sequence[ScheduledJob]) -> Callable[[], Sequence[bool | None]]:
        plans = [JobPlan(job.id, job.queue, job.headers, RUNS) for job in jobs]
        self.auditor.intend(plans)
        templates = list(dict.fromkeys((job.queue, job.headers) for job in jobs))
        rows = [(o.id, templates.index((o.queue, o.headers)), o.body) for o in jobs]
        self._calls += 1
        message = f"{self.name}.{self._life}.batch{self._calls}"
        body = encode_batch(templates, rows)
        pending = PendingSubmit(
            Request(message, "", f"batch:{len(rows)}", body).frames(), id=message,
            deadline=self.clock.monotonic() + ANSWER_TIMEOUT, count=len(rows),
        )  # fmt: skip
        self.begin(pending)
        return partial(self._receipts, plans, pending)

    def _receipts(self, plans: Sequence[JobPlan], pending: PendingSubmit) -> Sequence[bool | None]:
        self._wait(pending)
        confirmed = set(self.auditor.receipt(plans, pending))
        return [plan.id in confirmed for plan in plans]

    def now(self) -> float:
        now: float = self._ask("ping", {})["now"]
        return now

    def unfinished(self, ids: Sequence[str]) -> Mapping[str, bool]:
        rows = self._ask("state", {"ids": list(ids)})
        return {job_id: state in {"queued", "running", "delayed"} for job_id, state in rows}
