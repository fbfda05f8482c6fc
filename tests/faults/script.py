"""Script: some hundred jobs on the broker's core with a real store, and a record of its promises.

A client submits jobs of all kinds, and a worker answers; some jobs fail. Times, ids and outcomes
are the same in each run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eventmq.broker.core import BrokerCore
from eventmq.broker.limits import Limits
from eventmq.graph import Expression, Group, Signature, build
from eventmq.headers import parse_headers
from eventmq.job import OutcomeKind
from eventmq.plugins.queue_stores.sqlite.store import SqliteStore
from eventmq.wire.batches import (
    LoggedRow,
    decode_chunk,
    decode_exceptions,
    encode_batch,
    encode_graph,
)
from eventmq.wire.commands import Ack, Request
from tests.support.broker_harness import TASK, Broker, FakeClock, FirstQueue, FirstWorker, row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["Promises", "Script", "Stuck", "finish", "run_script"]

#: Jobs whose number is divisible by this fail at their first attempts.
FAILS_EVERY = 7

#: Header texts that batches use in turn.
KINDS = (
    TASK,
    f"{TASK},retry-count:2",
    f"{TASK},priority:3",
    f"{TASK},countdown:5.0",
    f"{TASK},limit-key:red,limit-running:5",
    f"{TASK},retry-count:1,countdown:1.0",
)


class Stuck(AssertionError):
    """Some jobs did not end in time."""


@dataclass
class Promises:
    """Record of the messages of the broker to its peers, with the number of commits before each."""

    #: Jobs that the client submitted, in order.
    intended: list[str] = field(default_factory=list)
    #: Job -> number of commits before its receipt was sent.
    confirmed: dict[str, int] = field(default_factory=dict)
    #: Job -> number of commits before the ACK of its outcome was sent.
    settled: dict[str, int] = field(default_factory=dict)
    #: Job -> number of commits before it was first submitted.
    submitted: dict[str, int] = field(default_factory=dict)
    #: Executions: number of commits before, and id of the job.
    executions: list[tuple[int, str]] = field(default_factory=list)
    #: Jobs whose bodies were altered.
    altered: list[str] = field(default_factory=list)


class Script(Broker):
    """Broker that counts its commits and records its promises."""

    def __init__(self, path: Path, clock: FakeClock | None = None, vfs: str | None = None) -> None:
        self.vfs = vfs
        self.commits = 0
        self.promises = Promises()
        self.ended = self._nothing
        self._asked: dict[str, Sequence[str]] = {}
        #: Requests of the client: number of commits before, ids of the jobs, message.
        self.requests: list[tuple[int, Sequence[str], Request]] = []
        self._worked = self.received = 0
        self._done: set[str] = set()
        super().__init__(path, Limits(heartbeat_interval=1.0), clock or FakeClock())

    def _nothing(self) -> None:
        """Do nothing after a commit; tests replace it."""

    def start(self) -> None:
        self.store = self.make_store()
        self.core = BrokerCore(self.limits, FirstWorker(), FirstQueue, version="test")
        recovered = self.store.open()
        self.keeper, self._jumped = recovered.keeper, 0.0
        self.core.recover(recovered, self.now())
        self.sent = {}
        submit = self.store.submit

        def counted(batch: Any) -> None:
            submit(batch)
            self.commits += 1
            self.ended()

        self.store.submit = counted

    def make_store(self) -> Any:
        """Return a durable store."""
        return SqliteStore(self.path, self.clock, reserve=0, vfs=self.vfs)

    # The client

    def _ask(self, ids: Sequence[str], message: Request) -> None:
        self.promises.intended += ids
        self.promises.submitted |= dict.fromkeys(ids, self.commits)
        self.requests.append((self.commits, ids, message))
        self.ask(ids, message)

    def ask(self, ids: Sequence[str], message: Request) -> None:
        """Send a message with jobs, for the first time or again, and record the receipts."""
        self._asked[message.id] = ids
        for answer in self.tell(b"client", message):
            if isinstance(answer, Ack) and answer.acked in self._asked:
                refused = decode_exceptions(answer.extra) if answer.extra else {}
                for index, job_id in enumerate(self._asked[answer.acked]):
                    if index not in refused:
                        self.promises.confirmed.setdefault(job_id, self.commits)

    def batch(self, n: int, headers: str, ids: Sequence[str] = ()) -> None:
        """Submit jobs of one kind."""
        ids = ids or [self.new_id() for _ in range(n)]
        rows = [(job_id, 0, job_id.encode()) for job_id in ids]
        body = encode_batch([("default", headers)], rows)
        self._ask(ids, Request(self.new_id(), "", f"batch:{len(ids)},ack-requested", body))

    def graph(self, expression: Expression) -> list[str]:
        """Submit a graph; return the ids of its jobs by node index."""
        nodes, plan, _ = build(expression)
        ids = [self.new_id() for _ in nodes]
        templates = [
            ("default", f"task:{n.signature.task},content-type:json,graph:{n.flags}") for n in nodes
        ]
        rows = [(job_id, template, b"body") for template, job_id in enumerate(ids)]
        body = encode_graph(templates, rows, plan)
        self._ask(ids, Request(ids[0], "", f"ack-requested,nodes:{len(nodes)}", body))
        return ids

    # The worker

    def join(self, name: str, received: int = 0, held: tuple[int, ...] = ()) -> None:
        """Connect as a new worker, or as one that has received chunks up to a number."""
        self._worked = len(self.dispatched)
        self.received, self._done = received, set()
        self.worker(b"worker", name, window=2, received=received, held=held)

    def work(self, fails: Callable[[str, int], bool], chunks: int = 1000) -> None:
        """Answer chunk after chunk until no further one comes."""
        while self._worked < len(self.dispatched) and chunks:
            chunk = self.dispatched[self._worked]
            self._worked += 1
            if chunk.headers not in self._done:  # it may be sent twice
                self._done.add(chunk.headers)
                chunks -= 1
                self._answer(chunk, fails)
        self._report_held()

    def _report_held(self) -> None:
        """Send READY with the held chunks: those received and not yet answered."""
        waiting = {number_of(chunk) for chunk in self.dispatched[self._worked :]}
        seen = {number_of(chunk) for chunk in self.dispatched if chunk.headers in self._done}
        self.received = max([self.received, *waiting, *seen])
        self.ready(b"worker", 2, self.received, tuple(waiting - seen))

    def _answer(self, chunk: Request, fails: Callable[[str, int], bool]) -> None:
        index = decode_chunk(chunk.body)
        rows, ends = [], []
        for position, entry in enumerate(index.entries):
            self.promises.executions.append((self.commits, entry.id))
            payload = index.payload(chunk.body, entry)
            if "graph:" not in index.templates[entry.template] and payload != entry.id.encode():
                self.promises.altered.append(entry.id)
            kind = OutcomeKind.SUCCEEDED
            if fails(entry.id, entry.attempt):
                more = entry.attempt <= parse_headers(index.templates[entry.template]).retry_count
                kind = OutcomeKind.RETRY if more else OutcomeKind.FAILED
            if kind is not OutcomeKind.RETRY:
                ends.append(entry.id)
            answer = row(position, int(kind), entry.id.encode(), content_type="json")
            log = b"" if kind is OutcomeKind.SUCCEEDED else b"job %s\n" % entry.id.encode()
            rows.append(LoggedRow.of(answer, log))
        messages = self.answer(b"worker", chunk, rows)
        if any(isinstance(message, Ack) for message in messages):
            self.promises.settled |= dict.fromkeys(ends, self.commits)


def number_of(chunk: Request) -> int:
    """Return the number of a chunk."""
    return int(chunk.headers.partition(":")[2])


def fails(job_id: str, attempt: int) -> bool:
    """Return whether an attempt of a job fails."""
    return int(job_id[-6:], 16) % FAILS_EVERY == 0 and attempt < 3


def run_script(script: Script, jobs: int = 500) -> None:
    """Submit jobs, and run many of them."""
    a, b = Signature("a"), Signature("b")
    expressions = (a | b, Group((a,) * 8) | b, (Group((a, b)) | a) | b)
    script.join("first")
    round_ = 0
    while len(script.promises.intended) < jobs:
        script.batch(20, KINDS[round_ % len(KINDS)])
        script.graph(expressions[round_ % len(expressions)])
        script.batch(1, f"{TASK},unique:k{round_ % 3},unique-mode:replace")
        script.work(fails, chunks=1)
        script.wait(0.5)
        round_ += 1


def finish(script: Script) -> None:
    """Run all jobs to their end."""
    for _ in range(60):
        for _ in range(5):
            script.work(fails)
        script.wait(1.0)
        counts = [queue.counts for queue in script.core.state.queues.values()]
        if not any(count.queued + count.delayed + count.blocked for count in counts):
            return
    raise Stuck(f"jobs do not end: {counts}")
