"""Several apps share one queue: the jobs of one never hide those of the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eventmq.broker.limits import Limits
from eventmq.broker.peers import Eligibility
from eventmq.broker.queues import Queue
from eventmq.broker.subqueues import Load, Subqueue
from eventmq.job import JobRecord, JobState
from eventmq.store.writes import SubqueueKey
from eventmq.wire.batches import decode_exceptions, encode_batch
from eventmq.wire.commands import Ack, Error, Request
from tests.support.broker_harness import Broker, chunks, row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_A = "task:a.work,content-type:msgpack"
_B = "task:b.work,content-type:msgpack"
_ALL = Eligibility(None, legacy=True)
_ANY = Load(float("inf"), 1000, 1 << 30)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path, Limits(queue_window=64, chunk_jobs=10))
    yield broker
    broker.close()


def job(seq: int, headers: str = _A, rank: int | None = None) -> JobRecord:
    return JobRecord(
        f"j{seq}", "q", headers, b"x", seq, seq if rank is None else rank, JobState.QUEUED
    )


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
    """Submit far more jobs of shop.add than the window holds, ahead of all others."""
    for _ in range(count // 500):
        broker.submit_batch([broker.new_id() for _ in range(500)])


def worked_off(broker: Broker, worker: bytes, count: int) -> list[str]:
    """Answer chunks until a number of jobs was sent; return their ids in order."""
    got: list[str] = []
    while len(got) < count:
        chunk = broker.dispatched[-1]
        got += ids(chunk)
        broker.answer(worker, chunk, [row(i) for i in range(len(ids(chunk)))])
    return got


def test_a_worker_gets_its_jobs_from_behind_a_flood_of_others(broker: Broker) -> None:
    """The window is full of jobs whose workers are busy; the other app is idle."""
    broker.worker(b"a", "a", tasks=("shop.add",))
    flood(broker, 20_000)
    own = submit(broker, "b.work")
    [(chunk, _)] = chunks(broker.worker(b"b", "b", tasks=("b.work",)))
    assert ids(chunk) == [own]


def test_it_gets_them_also_after_a_restart(broker: Broker) -> None:
    """The store knows which subqueues have jobs."""
    flood(broker, 2000)
    own = [submit(broker, "b.work") for _ in range(30)]
    broker.crash()
    broker.worker(b"b", "b", tasks=("b.work",))
    assert worked_off(broker, b"b", len(own)) == own


def test_a_worker_of_both_gets_them_as_they_came(broker: Broker) -> None:
    """First come, first served holds across tasks, also outside of the window."""
    sent = [submit(broker, "b.work" if i % 7 == 0 else "a.work") for i in range(400)]
    broker.worker(b"w", "w", tasks=("a.work", "b.work"))
    assert worked_off(broker, b"w", len(sent)) == sent


def test_an_unknown_flood_fails_in_the_end_and_stops_no_other(broker: Broker) -> None:
    """Also jobs that were never in memory fail after the grace."""
    broker.worker(b"b", "b", tasks=("b.work",))
    flood(broker, 1000)
    own = submit(broker, "b.work")
    assert ids(broker.dispatched[-1]) == [own]
    broker.answer(b"b", broker.dispatched[-1], [row()])
    grace = broker.limits.unknown_task_grace
    wait_with(broker, b"b", grace - 5.0)
    [queue] = broker.call("queues")
    assert (queue["waiting"], queue["failed"]) == (1000, 0)
    wait_with(broker, b"b", 60.0)
    [queue] = broker.call("queues")
    assert (queue["waiting"], queue["failed"]) == (0, 1000)


def wait_with(broker: Broker, worker: bytes, seconds: float) -> None:
    """Let time pass while a worker sends HEARTBEATs."""
    for _ in range(int(seconds / 5.0)):
        broker.wait(5.0)
        broker.ready(worker, 1, received=1)


def test_a_subqueue_without_jobs_leaves_memory(broker: Broker) -> None:
    for i in range(50):
        submit(broker, f"task{i}")
    queue = broker.core.state.queues["default"]
    assert len(queue.subqueues) == 50
    broker.worker()
    assert len(worked_off(broker, b"worker", 50)) == 50
    assert queue.subqueues == {}
    assert "default" not in broker.core.state.busy


@pytest.mark.parametrize("restart", [False, True])
def test_a_thousand_tasks_do_not_use_more_memory_than_one(
    broker: Broker,
    restart: bool,
) -> None:
    """The tasks share the window; other jobs are read when a worker needs them."""
    names = [f"t{i}" for i in range(1000)]
    sent = [batch(broker, names) for _ in range(3)]
    assert len(broker.core.state.jobs) <= 64
    if restart:
        broker.crash()
        broker.tick()
        assert len(broker.core.state.jobs) <= 64
    broker.worker(b"b", "b", tasks=("t999", "t500"))
    own = [ids[position] for ids in sent for position in (500, 999)]
    assert worked_off(broker, b"b", len(own)) == own
    assert len(broker.core.state.jobs) <= 64


def test_a_worker_of_everything_gets_a_thousand_tasks_as_they_came(broker: Broker) -> None:
    """First come, first served, whether a subqueue is in memory or not."""
    sent = [job_id for _ in range(2) for job_id in batch(broker, [f"t{i}" for i in range(300)])]
    broker.worker(b"w", "w")
    assert worked_off(broker, b"w", len(sent)) == sent
    assert broker.core.state.subqueue_counts.total == 0


def batch(broker: Broker, tasks: list[str]) -> list[str]:
    """Submit one job of each task for the default queue in one message; return their ids."""
    ids = [broker.new_id() for _ in tasks]
    templates = [("default", f"task:{task},content-type:msgpack") for task in tasks]
    body = encode_batch(templates, [(job_id, i, b"x") for i, job_id in enumerate(ids)])
    [ack] = broker.tell(b"client", Request(broker.new_id(), "", f"batch:{len(ids)}", body))
    assert isinstance(ack, Ack)
    assert ack.extra is None
    return ids


def test_a_job_of_one_task_too_many_is_refused_with_a_clear_error(tmp_path: Path) -> None:
    """Jobs of known tasks are accepted; an ended subqueue makes room."""
    broker = Broker(tmp_path, Limits(max_subqueues=2))
    submit(broker, "a.work")
    submit(broker, "b.work")
    headers = "task:c.work,content-type:msgpack,ack-requested"
    [error] = broker.tell(b"client", Request(broker.new_id(), "default", headers, b"x"))
    assert isinstance(error, Error)
    assert (error.code, "'c.work'" in error.text) == ("too-many-subqueues", True)
    [error] = broker.tell(b"client", Request(broker.new_id(), "other", headers, b"x"))
    assert isinstance(error, Error)
    limited = "task:a.work,limit-key:acme,content-type:msgpack,ack-requested"
    [error] = broker.tell(b"client", Request(broker.new_id(), "default", limited, b"x"))
    assert isinstance(error, Error)
    assert "none of task 'a.work' with the limit key 'acme' in queue 'default'" in error.text
    submit(broker, "a.work")
    assert broker.call("queues")[0]["waiting"] == 3
    broker.worker(b"b", "b", tasks=("b.work",))
    broker.answer(b"b", broker.dispatched[-1], [row()])
    [ack] = broker.tell(b"client", Request(broker.new_id(), "default", headers, b"x"))
    assert isinstance(ack, Ack)
    broker.close()


def test_one_message_cannot_begin_more_subqueues_than_allowed(tmp_path: Path) -> None:
    """Its receipt names the jobs that were refused."""
    broker = Broker(tmp_path, Limits(max_subqueues=2))
    templates = [("default", f"task:t{i},content-type:msgpack") for i in range(4)]
    body = encode_batch(templates, [(broker.new_id(), i, b"x") for i in range(4)])
    [ack] = broker.tell(b"client", Request(broker.new_id(), "", "batch:4", body))
    assert isinstance(ack, Ack)
    assert ack.extra is not None
    refused = {position: why[0] for position, why in decode_exceptions(ack.extra).items()}
    assert refused == {2: "too-many-subqueues", 3: "too-many-subqueues"}
    broker.close()


def test_a_queue_without_work_for_a_worker_does_not_hold_up_its_other_one(broker: Broker) -> None:
    """The first queue gets a new job of an unknown task in every tick."""
    broker.worker(b"b", "b", tasks=("b.work",), queues='[[9, "first"], [1, "second"]]')
    broker.tell(b"client", Request(broker.new_id(), "first", _A, b"x"))
    broker.put(b"client", Request(broker.new_id(), "first", _A, b"x"))
    commit(broker)
    own = Request(broker.new_id(), "second", _B, b"x")
    broker.put(b"client", own)
    broker.core.decide(broker.clock.now())
    assert list(broker.core.state.running) == [own.id]


def commit(broker: Broker) -> None:
    """End the reading part of a tick, and settle its commit."""
    broker.core.decide(broker.clock.now())
    entries, settle = broker.core.take_batch()
    broker.store.submit(entries)
    for write_results in broker.store.finished():
        settle(write_results)


# The pure part


def test_subqueues_share_the_window() -> None:
    """A subqueue may use the share of others, and gives it back when they need it."""
    queue = Queue("q", 64, 1 << 20, 0.0)
    assert queue.join(job(1)) == []
    assert queue.join(job(2, _B)) == []
    for seq in range(3, 203):
        queue.join(job(seq))
    assert (len(queue.subqueue(SubqueueKey("a.work"))), len(queue)) == (63, 64)
    assert queue.subqueue(SubqueueKey("a.work")).spilled
    for seq in range(203, 303):
        queue.join(job(seq, _B))
    assert (
        len(queue.subqueue(SubqueueKey("a.work"))),
        len(queue.subqueue(SubqueueKey("b.work"))),
    ) == (32, 32)


def test_nothing_is_taken_past_a_job_that_is_in_the_store() -> None:
    """Otherwise that job would be overtaken."""
    queue = Queue("q", 64, 1 << 20, 0.0)
    for seq in (1, 5, 6):
        queue.join(job(seq))
    other = queue.subqueue(SubqueueKey("b.work"))
    other.spilled, other.edge = True, (3, 3)
    taken = queue.select(_ALL, lambda _: 0.0, None, _ANY)
    assert [each.seq for each in taken] == [1]
    assert queue.select(_ALL, lambda _: 0.0, None, _ANY) == []
    taken = queue.select(
        Eligibility(frozenset({"a.work"}), legacy=False), lambda _: 0.0, None, _ANY
    )
    assert [each.seq for each in taken] == [5, 6]


def test_the_load_is_for_all_subqueues_together() -> None:
    queue = Queue("q", 64, 1 << 20, 0.0)
    for seq in range(1, 31):
        queue.join(job(seq, _A if seq % 2 else _B))
    select = queue.select
    assert len(select(_ALL, lambda _: 0.0, None, _ANY._replace(jobs=7))) == 7
    assert len(select(_ALL, lambda _: 1.0, None, _ANY._replace(seconds=4.0))) == 4
    assert len(select(_ALL, lambda _: 0.0, None, _ANY._replace(bytes=3))) == 3
    rest = select(_ALL, lambda _: 0.0, None, _ANY)
    assert [each.seq for each in rest] == list(range(15, 31))


def test_a_displaced_job_never_raises_the_edge() -> None:
    """All jobs in the store only rank after it, whatever joins and leaves."""
    subqueue = Subqueue(SubqueueKey("a.work"))
    for seq in (1, 2, 3, 4):
        subqueue.join(job(seq))
    assert subqueue.displace().seq == 4
    subqueue.edge = (2, 2)  # as after a read up to here
    assert subqueue.displace().seq == 3
    assert subqueue.edge == (2, 2)
