"""Several apps share one queue: the jobs of one never hide those of the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eventmq.broker.lanes import Lane, Load
from eventmq.broker.limits import Limits
from eventmq.broker.queues import Queue
from eventmq.job import Job, JobState
from eventmq.wire.commands import Request
from tests.broker_harness import Broker, chunks, row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_A = "task:a.work,content-type:msgpack"
_B = "task:b.work,content-type:msgpack"
_ANY = Load(float("inf"), 1000, 1 << 30)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path, Limits(window=64, chunk_jobs=10))
    yield broker
    broker.close()


def job(seq: int, headers: str = _A, rank: int | None = None) -> Job:
    return Job(f"j{seq}", "q", headers, b"x", seq, seq if rank is None else rank, JobState.QUEUED)


def submit(broker: Broker, task: str) -> str:
    """Submit a job of a task for the default queue; return its id."""
    job_id = broker.new_id()
    headers = f"task:{task},content-type:msgpack,ack-requested"
    broker.tell(b"client", Request(job_id, "default", headers, b"x"))
    return job_id


def ids(chunk: Request) -> list[str]:
    """Return the ids of the jobs of a chunk."""
    return [entry.id for entry in chunks([chunk])[0][1].entries]


def flood(broker: Broker, count: int) -> None:
    """Let far more jobs of shop.add wait than the window holds, all in front."""
    for _ in range(count // 500):
        broker.submit_batch([broker.new_id() for _ in range(500)])


def worked_off(broker: Broker, worker: bytes, count: int) -> list[str]:
    """Answer chunks until so many jobs were sent; return their ids in order."""
    got: list[str] = []
    while len(got) < count:
        chunk = broker.dispatched[-1]
        got += ids(chunk)
        broker.answer(worker, chunk, [row(i) for i in range(len(ids(chunk)))])
    return got


def test_a_worker_gets_its_jobs_from_behind_a_flood_of_others(broker: Broker) -> None:
    """The window is full of jobs of a task whose workers are busy; the other app is idle."""
    broker.worker(b"a", "a", tasks=("shop.add",))
    flood(broker, 20_000)
    mine = submit(broker, "b.work")
    [(chunk, _)] = chunks(broker.worker(b"b", "b", tasks=("b.work",)))
    assert ids(chunk) == [mine]


def test_it_gets_them_also_after_a_restart(broker: Broker) -> None:
    """The store knows which lanes have jobs."""
    flood(broker, 2000)
    mine = [submit(broker, "b.work") for _ in range(30)]
    broker.crash()
    broker.worker(b"b", "b", tasks=("b.work",))
    assert worked_off(broker, b"b", len(mine)) == mine


def test_a_worker_of_both_gets_them_as_they_came(broker: Broker) -> None:
    """First come, first served holds across tasks, beyond the window too."""
    sent = [submit(broker, "b.work" if i % 7 == 0 else "a.work") for i in range(400)]
    broker.worker(b"w", "w", tasks=("a.work", "b.work"))
    assert worked_off(broker, b"w", len(sent)) == sent


def test_an_unknown_flood_fails_in_the_end_and_stops_nobody(broker: Broker) -> None:
    """Also what never was in memory fails when the grace is over."""
    broker.worker(b"b", "b", tasks=("b.work",))
    flood(broker, 1000)
    mine = submit(broker, "b.work")
    assert ids(broker.dispatched[-1]) == [mine]
    broker.answer(b"b", broker.dispatched[-1], [row()])
    grace = broker.limits.unknown_task_grace
    wait_with(broker, b"b", grace - 5.0)
    [queue] = broker.call("queues")
    assert (queue["waiting"], queue["failed"]) == (1000, 0)
    wait_with(broker, b"b", 60.0)
    [queue] = broker.call("queues")
    assert (queue["waiting"], queue["failed"]) == (0, 1000)


def wait_with(broker: Broker, worker: bytes, seconds: float) -> None:
    """Let time pass while a worker says that it lives."""
    for _ in range(int(seconds / 5.0)):
        broker.wait(5.0)
        broker.ready(worker, 1, received=1)


def test_a_lane_without_jobs_leaves_memory(broker: Broker) -> None:
    for i in range(50):
        submit(broker, f"task{i}")
    queue = broker.core.state.queues["default"]
    assert len(queue.lanes) == 50
    broker.worker()
    assert len(worked_off(broker, b"worker", 50)) == 50
    assert queue.lanes == {}
    assert "default" not in broker.core.state.busy


# The pure part


def test_lanes_share_the_window() -> None:
    queue = Queue("q", 64, 1 << 20, 0.0)
    assert queue.join(job(1)) == []
    assert queue.join(job(2, _B)) == []
    for seq in range(3, 203):
        queue.join(job(seq))
    assert len(queue.lane("a.work")) == 32
    assert queue.lane("a.work").outside
    assert not queue.lane("b.work").outside


def test_nothing_is_taken_past_a_job_that_is_in_the_store() -> None:
    """Else it would be overtaken."""
    queue = Queue("q", 64, 1 << 20, 0.0)
    for seq in (1, 5, 6):
        queue.join(job(seq))
    other = queue.lane("b.work")
    other.outside, other.edge = True, (3, 3)
    taken = queue.take(lambda _: True, lambda _: 0.0, None, _ANY)
    assert [each.seq for each in taken] == [1]
    assert queue.take(lambda _: True, lambda _: 0.0, None, _ANY) == []
    taken = queue.take(lambda task: task == "a.work", lambda _: 0.0, None, _ANY)
    assert [each.seq for each in taken] == [5, 6]


def test_the_load_is_for_all_lanes_together() -> None:
    queue = Queue("q", 64, 1 << 20, 0.0)
    for seq in range(1, 31):
        queue.join(job(seq, _A if seq % 2 else _B))
    take = queue.take
    assert len(take(lambda _: True, lambda _: 0.0, None, _ANY._replace(jobs=7))) == 7
    assert len(take(lambda _: True, lambda _: 1.0, None, _ANY._replace(seconds=4.0))) == 4
    assert len(take(lambda _: True, lambda _: 0.0, None, _ANY._replace(bytes=3))) == 3
    rest = take(lambda _: True, lambda _: 0.0, None, _ANY)
    assert [each.seq for each in rest] == list(range(15, 31))


def test_a_displaced_job_never_raises_the_edge() -> None:
    """What is in the store only ranks above it, whatever joins and leaves."""
    lane = Lane("a.work")
    for seq in (1, 2, 3, 4):
        lane.join(job(seq))
    assert lane.displace().seq == 4
    lane.edge = (2, 2)  # as a claim would leave it that read no further
    assert lane.displace().seq == 3
    assert lane.edge == (2, 2)
