"""Limits of whole queues, applied by the broker over all workers, tasks and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eventmq.broker.limits import Limits
from eventmq.errors import QueueFull
from eventmq.job import OutcomeKind
from eventmq.wire.commands import Ack, Inform, Ready, Reply, Request
from tests.support.broker_harness import Broker, chunks
from tests.support.broker_workers import Workers, submit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_SEND = "task:mail.send,content-type:msgpack"
_SORT = "task:mail.sort,content-type:msgpack"
_TRANSIENT = f"{_SEND},guarantee:False"
_BOTH = '[[10, "default"], [10, "other"]]'


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Start a broker with rate and concurrency for the queue ``default``."""
    brokers = []

    def start(rate: str = "", max_running: int = 0, **limits: int) -> Broker:
        limits_ = Limits(queue_limits=(("default", rate, max_running),), **limits)
        brokers.append(Broker(tmp_path, limits_))
        return brokers[-1]

    yield start
    for broker in brokers:
        broker.close()


def test_so_many_of_a_queue_run_at_a_time_whatever_their_task(
    start: Callable[..., Broker],
) -> None:
    """Over tasks, keys and workers; jobs of another queue run."""
    broker = start(max_running=3)
    ids = submit(broker, 10, _SEND) + submit(broker, 10, f"{_SORT},limit-key:a")
    others = submit(broker, 10, _SEND, queue="other")
    workers = Workers(broker, "a", "b", queues=_BOTH, window=5)
    seen = set()
    while workers.open:
        leased = [e.id for _, i in chunks([c for _, c in workers.open]) for e in i.entries]
        seen.add(len(set(ids) & set(leased)))
        workers.finish()
    assert max(seen) == 3
    assert sorted(workers.got) == sorted(ids + others)


def test_the_rate_of_a_queue_holds_over_time_and_tasks(start: Callable[..., Broker]) -> None:
    broker = start("10/s")
    submit(broker, 50, _SEND)
    submit(broker, 50, _SORT)
    workers = Workers(broker, "a", "b")
    while workers.open:
        workers.finish()
    assert len(workers.got) == 10
    for second in range(1, 6):
        workers.wait(1.0)
        assert abs(len(workers.got) - 10 * (second + 1)) <= 1
    workers.wait(5.0)
    assert len(set(workers.got)) == 100


def test_jobs_that_arrive_while_workers_wait_are_counted_too(start: Callable[..., Broker]) -> None:
    """They are leased in the commit that admits them."""
    broker = start("3/h")
    workers = Workers(broker, "a", "b", window=5)
    submit(broker, 10, _SEND)
    workers.collect()
    assert workers.running == 3


def test_the_broker_wakes_when_the_queue_has_its_next_token(start: Callable[..., Broker]) -> None:
    broker = start("1/m")
    submit(broker, 2, _SEND)
    workers = Workers(broker, "a")
    workers.finish()
    now = broker.clock.time
    assert broker.core.next_tick(now + 59.9) == pytest.approx(now + 60.0, abs=1e-3, rel=0.0)
    broker.clock.time = now + 60.0
    workers.ready("a")
    assert len(broker.dispatched) == 2


def test_a_job_must_pass_the_limits_of_its_task_and_of_its_queue(
    start: Callable[..., Broker],
) -> None:
    broker = start(max_running=3)
    submit(broker, 5, f"{_SEND},limit-running:1")
    submit(broker, 5, _SORT)
    workers = Workers(broker, "a", "b", window=5)
    got = [entry.id for _, index in chunks([c for _, c in workers.open]) for entry in index.entries]
    assert len(got) == 3
    limiters = broker.core.state.limiters
    assert [limiter.running for limiter in limiters.of.values()] == [1]
    while workers.open:
        workers.finish()
    assert len(workers.got) == 10
    assert {limiter.running for limiter in limiters.of.values()} == {0}
    assert limiters.of_queues["default"].running == 0
    assert limiters.counted == {}


def test_a_token_of_a_job_that_never_started_comes_back(start: Callable[..., Broker]) -> None:
    broker = start("1/h")
    submit(broker, 2, _SEND)
    workers = Workers(broker, "a")
    assert workers.running == 1
    workers.finish(OutcomeKind.HANDED_BACK)
    assert workers.running == 1
    workers.finish()
    assert workers.running == 0


def test_a_restart_keeps_what_is_left_of_the_rate_and_what_runs(
    start: Callable[..., Broker],
) -> None:
    broker = start("10/m", 2)
    submit(broker, 30, _SEND)
    workers = Workers(broker, "a")
    for _ in range(8):
        workers.finish()
    assert len(workers.got) == 10
    assert workers.running == 2
    broker.crash()
    limiter = broker.core.state.limiters.of_queues["default"]
    assert (limiter.running, limiter.allowance(broker.clock.time)) == (2, 0)
    again = Workers(broker, "b")
    assert again.got == []
    again.wait(broker.limits.heartbeat_timeout + 1.0)
    assert 0 < len(again.got) <= 3  # one token every six seconds


def test_a_queue_whose_limit_is_gone_after_a_restart_is_free(start: Callable[..., Broker]) -> None:
    broker = start("1/h")
    submit(broker, 5, _SEND)
    Workers(broker, "a").finish()
    broker.limits = Limits()
    broker.crash()
    again = Workers(broker, "b")
    while again.open:
        again.finish()
    assert len(again.got) == 4


def test_a_commit_that_fails_leaves_the_count_right(start: Callable[..., Broker]) -> None:
    broker = start("2/h", 1)
    broker.worker()
    broker.put(b"client", Request(broker.new_id(), "default", f"{_SEND},ack-requested", b"x"))
    broker.core.decide(broker.clock.now())
    limiter = broker.core.state.limiters.of_queues["default"]
    assert (limiter.running, limiter.tokens) == (1, 1.0)
    _, settle = broker.core.take_batch()
    settle(QueueFull("no space"))
    assert (limiter.running, limiter.tokens) == (0, 2.0)
    assert broker.core.state.limiters.counted == {}


def test_a_cancelled_job_makes_room(start: Callable[..., Broker]) -> None:
    broker = start(max_running=1)
    first, second = submit(broker, 2, _SEND)
    workers = Workers(broker, "a", "b")
    assert workers.got == [first]
    broker.call("cancel", ids=[first])
    workers.collect()
    assert workers.got == [first, second]


# Jobs without guarantee


def test_jobs_without_guarantee_are_under_the_limits_of_their_queue(
    start: Callable[..., Broker],
) -> None:
    """They are blocked and counted like stored jobs."""
    broker = start("4/m", 2)
    submit(broker, 4, _TRANSIENT)
    submit(broker, 4, _SEND)
    workers = Workers(broker, "a", "b", window=5)
    seen = set()
    while workers.open:
        seen.add(workers.running)
        workers.finish()
    assert max(seen) == 2
    assert len(workers.got) == 4
    workers.wait(61.0)
    assert len(workers.got) == 8
    assert broker.core.state.limiters.of_queues["default"].running == 0


@pytest.mark.parametrize("end", ["lost", "cancelled", "back"])
def test_a_job_without_guarantee_makes_room_however_it_ends(
    start: Callable[..., Broker], end: str
) -> None:
    broker = start(max_running=1)
    first, second = submit(broker, 2, _TRANSIENT)
    workers = Workers(broker, "a")
    assert workers.got == [first]
    if end == "cancelled":
        broker.call("cancel", ids=[first])
    elif end == "lost":
        broker.wait(broker.limits.heartbeat_timeout + 1.0)
        workers = Workers(broker, "b")
    else:
        workers.finish(OutcomeKind.HANDED_BACK)
        assert workers.got == [first, first]
        workers.finish()
    workers.collect()
    assert workers.got[-1] == second
    while workers.open:
        workers.finish()
    assert broker.core.state.limiters.counted == {}


def test_a_legacy_worker_is_held_back_too(start: Callable[..., Broker]) -> None:
    """It has one job per slot, and its REPLY frees the limit."""
    broker = start(max_running=1)
    body = b'["run", {"path": "jobs", "callable": "work"}]'
    for _ in range(3):
        [ack] = broker.tell(b"client", Request(broker.new_id(), "", "ack-requested", body))
        assert isinstance(ack, Ack)
    broker.tell(b"old", Inform("i", '[[10, "default"]]', "worker"))
    for n in range(3):
        broker.put(b"old", Ready(f"r{n}"))
    broker.tick()
    for done in range(3):
        assert len(broker.dispatched) == done + 1
        broker.tell(b"old", Reply(broker.new_id(), b"1", broker.dispatched[-1].id))
        broker.tell(b"old", Ready(f"again{done}"))


# Status


def test_the_limits_of_queues_are_shown(start: Callable[..., Broker]) -> None:
    """With their usage."""
    broker = start("10/m", 3)
    submit(broker, 5, _SEND)
    submit(broker, 1, _SEND, queue="other")
    workers = Workers(broker, "a")
    rows = {row["name"]: row["limits"] for row in broker.call("queues")}
    assert rows == {"default": "rate=10/m,concurrency=3", "other": ""}
    [(name, usage)] = broker.call("status")["queue_limits"].items()
    assert (name, usage["limits"]) == ("default", "rate=10/m,concurrency=3")
    assert (usage["running"], usage["may_start"]) == (workers.running, 3 - workers.running)
