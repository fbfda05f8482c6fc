"""A client, a broker and workers in one thread, driven by the test: no socket, no real time.

The machines are the real ones, with the store of memory; messages go from one to the other by
function calls. Nothing happens unless somebody calls: a submission is carried to its receipt, jobs
run in `Stage.run`, time goes on in `Stage.travel`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from eventmq.app.broker import limits_of
from eventmq.app.routing import make_routing
from eventmq.app.runner_worker import make_executor
from eventmq.broker.core import BrokerCore
from eventmq.client.machine import ClientMachine
from eventmq.headers import parse_headers
from eventmq.interfaces import PluginContext
from eventmq.plugins.queue_stores.memory import make_store
from eventmq.registry import QUEUE_ORDER
from eventmq.testing.inline_pool import InlinePool
from eventmq.wire.bulk import decode_batch
from eventmq.wire.commands import Heartbeat, Request, decode
from eventmq.wire.graphs import decode_graph
from eventmq.worker.manager import JobManager
from eventmq.worker.runner_spool import SpoolDirectory, new_spool
from eventmq.worker.session import SessionInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eventmq.app import EventMQ
    from eventmq.interfaces import QueueOrder
    from eventmq.testing.clock import FakeClock
    from eventmq.worker.execution import Executor

__all__ = ["Stage"]

#: Turns without a job in which everything must have come to rest.
TURNS = 100_000

#: Seconds; the broker looks at what waits for time at least so often.
STEP = 0.3

#: Parts and bytes of a stream: a generator runs to its end before anybody reads.
UNBOUNDED = 1 << 53

_CLIENT = b"client"

#: Weight of every queue: they share as equals, whatever the settings say of one worker.
_WEIGHT = 10


class Stage:
    """The machines of one app.

    Args:
        app: Its tasks run; its settings hold, but for the broker and the result backend.
        clock: The time of all machines.
    """

    def __init__(self, app: EventMQ, clock: FakeClock) -> None:
        self.app = app
        self.clock = clock
        #: What was submitted by id: queue, header text and body.
        self.submitted: dict[str, tuple[str, str, bytes]] = {}
        settings = app.settings
        limits = replace(
            limits_of(settings),
            chunk_jobs=1,
            stream_parts=UNBOUNDED,
            stream_bytes=UNBOUNDED,
            max_stream_bytes=UNBOUNDED,
        )
        self.core = BrokerCore(limits, make_routing(app), self._order)
        options = {"dedupe_window": settings.dedupe_window}
        self._store = make_store(PluginContext("memory", options, clock))
        self.core.recover(self._store.open(), clock.now(), self._order)
        self.machine = ClientMachine(["memory://"], session="0" * 32, name=app.name)
        self._inbox: deque[tuple[bytes, Sequence[bytes]]] = deque()
        self._workers: dict[bytes, JobManager] = {}
        self._joined = 0
        self.machine.opened(0, clock.monotonic())
        self.pump()

    def close(self) -> None:
        """Forget everything."""
        self._store.close()

    def _order(self) -> QueueOrder:
        return self.app.plugins.make(QUEUE_ORDER, self.app.settings.queue_order, app=self.app)

    # Messages

    def pump(self) -> None:
        """Carry messages until nobody has anything to say. Runs no job."""
        for _ in range(TURNS):
            if not self._turn():
                return
        raise RuntimeError("client, broker and worker never come to rest")

    def _turn(self) -> bool:
        now, inbox = self.clock.now(), self._inbox
        self.machine.flush(0, self._from_client, self.clock.monotonic())
        self._wake()
        for identity, manager in self._workers.items():
            manager.tick(self.clock.monotonic())
            inbox.extend((identity, frames) for frames in manager.take_outbox())
        moved = bool(inbox)
        while inbox:
            identity, frames = inbox.popleft()
            self.core.receive("main", [identity, *frames], now)
        self.core.decide(now)
        while self.core.has_writes:
            moved = True
            entries, settle = self.core.take_batch()
            self._store.submit(entries)
            for verdicts in self._store.finished():
                settle(verdicts)
            self.core.decide(now)
        outbox = self.core.take_outbox()
        for message in outbox:
            if not self._deliver(message.key.identity, message.frames):
                self.core.not_sent(message, now, reachable=False)
        self._wake()
        return moved or bool(outbox)

    def _from_client(self, frames: Sequence[bytes]) -> bool:
        message = decode(frames)
        if isinstance(message, Request):
            self._note(message)
        self._inbox.append((_CLIENT, frames))
        return True

    def _note(self, request: Request) -> None:
        """Remember what is submitted, for those who ask what waits with which arguments."""
        headers = parse_headers(request.headers)
        if not headers.batch and not headers.nodes:
            text = request.headers.removeprefix("ack-requested").removeprefix(",")
            self.submitted.setdefault(request.id, (request.queue, text, request.body))
            return
        if headers.nodes:
            templates, rows, _ = decode_graph(request.body, headers.nodes)
        else:
            templates, rows = decode_batch(request.body, headers.batch)
        for job_id, template, body in rows:
            self.submitted.setdefault(job_id, (*templates[template], body))

    def _deliver(self, identity: bytes, frames: Sequence[bytes]) -> bool:
        if identity == _CLIENT:
            self.machine.received(0, frames, self.clock.monotonic())
            return True
        manager = self._workers.get(identity)
        if manager is None:
            return False
        manager.receive(frames, self.clock.monotonic())
        return True

    def _wake(self) -> None:
        settled = self.machine.settled
        while settled:
            settled.pop(0).wake()

    # Jobs

    def run(self, limit: int, done: Callable[[], bool] = lambda: False) -> int:
        """Run what is due, one job after the other, until nothing is left.

        A job that itself waits for others is on the stack of this call, and calls it again.

        Args:
            limit: Most jobs.
            done: Ends it earlier.

        Returns:
            How many jobs were run.
        """
        ran = 0
        while True:
            queues = self._queues()
            ran += self._run_session(queues, limit - ran, done)
            # What ran may have used another queue for the first time.
            if ran >= limit or done() or self._queues() == queues:
                return ran

    def _run_session(self, queues: set[str], limit: int, done: Callable[[], bool]) -> int:
        """Be a worker that comes, works and goes."""
        spool = SpoolDirectory(new_spool())
        executor = make_executor(self.app, spool=str(spool.path))
        pool = InlinePool(executor)
        self._joined += 1
        identity = b"worker-%d" % self._joined
        info = _info(identity.decode(), queues, executor)
        manager = JobManager(info, pool=pool, clock=self.clock, spool=spool)
        self._workers[identity] = manager
        manager.connected(self.clock.monotonic())
        try:
            self.pump()
            while pool.ran < limit and not done():
                events = pool.run_next()
                if not events:
                    break
                manager.pool_events(events, self.clock.monotonic())
                self.pump()
        finally:
            spool.close()
            pool.take_back(0)  # the broker takes it back when the worker has gone
            manager.finish()
            self.pump()
            del self._workers[identity]
            pool.stop(0.0)
        return pool.ran

    def _queues(self) -> set[str]:
        settings = self.app.settings
        served = {name for _, name in settings.queues} | {settings.default_queue}
        return served | set(self.core.state.queues)

    # Time

    def travel(self, seconds: float) -> None:
        """Let time pass. Nothing runs, and nobody is missed for having been silent."""
        away = seconds - 2 * STEP
        if away > 0:
            self.clock.advance(away)
            self._stay_alive()
            self.core.shift(self.clock.now(), away)
            self.pump()
        for step in (STEP, STEP) if away > 0 else (seconds,):
            self.clock.advance(step)
            self.pump()

    def _stay_alive(self) -> None:
        frames: list[Any] = Heartbeat("alive", f"{self.clock.now():.2f}").frames()
        for identity in (_CLIENT, *self._workers):
            self._deliver(identity, frames)


def _info(session: str, queues: set[str], executor: Executor) -> SessionInfo:
    return SessionInfo(
        session=session,
        queues=tuple((_WEIGHT, name) for name in sorted(queues)),
        tasks=tuple(executor.tasks),
        callables=executor.allow_callables,
    )
