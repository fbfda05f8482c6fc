"""Chunks of a worker that serves several queues: each queue gets its share of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.broker.peers import Session
from eventmq.job import OutcomeKind
from eventmq.plugins.routing import WeightedFair
from eventmq.wire.batches import encode_batch
from eventmq.wire.commands import Request
from tests.support.broker_harness import TASK, chunks, row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.broker_harness import Broker

QUEUES = '[[30, "a"], [10, "b"]]'


class Recorder(WeightedFair):
    """A queue order that records its charges."""

    def __init__(self) -> None:
        super().__init__()
        self.charged: list[tuple[str, int, int]] = []

    def charge(self, queue: str, weight: int, jobs: int) -> None:
        self.charged.append((queue, weight, jobs))
        super().charge(queue, weight, jobs)


def start(
    broker: Broker, jobs: int, queues: Sequence[str] = ("a", "b"), window: int = 1
) -> Recorder:
    """Fill queues with jobs of a measured task, then connect a worker; return its queue order."""
    broker.core.state.run_times["shop.add"] = 0.00001
    order = Recorder()
    broker.core.sessions.new_order = lambda: order
    for queue in queues:
        rows = [(broker.new_id(), 0, b"x") for _ in range(jobs)]
        body = encode_batch([(queue, TASK)], rows)
        broker.tell(b"client", Request(broker.new_id(), "", f"batch:{jobs}", body))
    broker.worker(queues=QUEUES, window=window)
    return order


def sizes(broker: Broker) -> list[tuple[str, int]]:
    return [(chunk.queue, len(index.entries)) for chunk, index in chunks(broker.dispatched)]


def hand_back(broker: Broker) -> None:
    """Let the worker run the first job of its only chunk, and hand back the others."""
    [(chunk, index)] = chunks(broker.dispatched)
    back = [row(n, OutcomeKind.HANDED_BACK, b"") for n in range(1, len(index.entries))]
    broker.answer(b"worker", chunk, [row(run_time=0.05), *back])


def test_where_several_queues_wait_a_chunk_has_twice_the_jobs_of_the_last_one(
    broker: Broker,
) -> None:
    """By weight: 450 jobs of the second queue would keep it waiting for 1,350 of the first."""
    start(broker, 900, window=3)
    assert sizes(broker) == [("a", 300), ("b", 200), ("a", 600)]


def test_a_queue_without_competition_gets_whole_chunks(broker: Broker) -> None:
    start(broker, 900, ["b"])
    assert sizes(broker) == [("b", 900)]


def test_what_is_handed_back_is_charged_back(broker: Broker) -> None:
    order = start(broker, 100)
    hand_back(broker)
    assert order.charged[:2] == [("a", 30, 100), ("a", 30, -99)]


def test_after_chunks_were_handed_back_those_of_other_queues_are_small() -> None:
    """The estimates of their run times may be outdated too."""
    session = Session("s", WeightedFair(), weights={"a": 30, "b": 10}, max_chunks=1)
    session.charge("a", 300)
    session.charge("b", 100)
    session.charge("a", 300, handed_back=299)
    served = []
    for _ in range(8):
        queue = session.choose([(30, "a"), (10, "b")])
        served.append((queue, session.share(queue, 1000, 1)))
        session.charge(queue, 1)
    assert [jobs for queue, jobs in served if queue == "b"] == [1, 1]


def test_a_weight_below_one_counts_as_one() -> None:
    """Other implementations of workers may send one."""
    session = Session("s", WeightedFair(), weights={"a": 0, "b": -3})
    session.charge("a", 4)
    session.charge("b", 4)
    assert session.choose([(0, "a"), (-3, "b")]) in {"a", "b"}
    assert session.share("a", 100, 1) >= 1
