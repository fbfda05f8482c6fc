"""Graphs on a broker's core: submits them, and runs their jobs like a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.graph import TAKES, Expression, Signature, build, flags_of
from eventmq.job import OutcomeKind
from eventmq.wire.batches import decode_chunk, encode_graph, unpack
from eventmq.wire.commands import Ack, Request
from tests.support.broker_harness import Broker, row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


A, B, C, D = map(Signature, "abcd")


def request(broker: Broker, expression: Expression, **headers: str) -> tuple[list[str], Request]:
    """Return the ids of an expression's jobs by node index, and the message."""
    nodes, plan, _ = build(expression)
    ids = [broker.new_id() for _ in nodes]
    templates = [
        ("default", f"task:{n.signature.task},content-type:json,graph:{n.flags}"
         + headers.get(n.signature.task, ""))
        for n in nodes
    ]  # fmt: skip
    rows = [
        (job_id, i, node.signature.task.encode())
        for i, (job_id, node) in enumerate(zip(ids, nodes, strict=True))
    ]
    body = encode_graph(templates, rows, plan)
    return ids, Request(ids[0], "", f"ack-requested,nodes:{len(nodes)}", body)


def submit(broker: Broker, expression: Expression, **headers: str) -> list[str]:
    """Submit an expression and return the ids of its jobs by node index."""
    ids, message = request(broker, expression, **headers)
    assert [type(answer) for answer in broker.tell(b"client", message)] == [Ack]
    return ids


def states(broker: Broker, ids: Sequence[str]) -> str:
    """Return the first letters of the states of jobs."""
    rows = broker.call("state", client=b"looker", ids=list(ids))
    return "".join(state[:1] for _, state in rows)


def as_text(value: Any) -> str:
    """Return an input as text, with a list of results in brackets."""
    if value and isinstance(value[0], str):
        return str(value[-1].decode()) if len(value) == 3 else f"{value[1]}"
    return "[" + " ".join(map(as_text, value)) + "]"


def result_of(text: str, body: bytes) -> bytes:
    """Return the result of a test's task: ``name(input)``."""
    if TAKES not in flags_of(text):
        return body
    own, value = unpack(body, "a body")
    return own + f"({as_text(unpack(value, 'an input'))})".encode()


class Worker:
    """Answers chunk after chunk."""

    def __init__(self, broker: Broker, fails: Callable[[str], bool] = lambda text: False) -> None:
        self.broker = broker
        self.fails = fails
        self.ran: list[str] = []
        self.sessions = 0

    def join(self) -> None:
        """Connect as a new session."""
        self.sessions += 1
        self.broker.worker(b"w%d" % self.sessions, f"s{self.sessions}", window=3)

    def work(self) -> None:
        """Answer chunks until no more arrive."""
        done = 0
        while done < len(self.broker.dispatched):
            chunk = self.broker.dispatched[done]
            done += 1
            self.answer(chunk)
            self.broker.ready(b"w%d" % self.sessions, 3, received=done)
        self.broker.dispatched.clear()

    def answer(self, chunk: Request) -> None:
        index = decode_chunk(chunk.body)
        rows = []
        for position, entry in enumerate(index.entries):
            text = index.templates[entry.template]
            result = result_of(text, index.payload(chunk.body, entry))
            self.ran.append(result.decode())
            kind = OutcomeKind.FAILED if self.fails(result.decode()) else OutcomeKind.SUCCEEDED
            rows.append(row(position, int(kind), result, content_type="json"))
        self.broker.answer(b"w%d" % self.sessions, chunk, rows)


def run(broker: Broker, fails: Callable[[str], bool] = lambda text: False) -> list[str]:
    """Run all jobs by a worker; return the executed tasks in order."""
    worker = Worker(broker, fails)
    worker.join()
    worker.work()
    return worker.ran
