"""Rate limits, concurrency limits and fair shares, kept by the broker over all workers."""

from __future__ import annotations

import pytest

from eventmq.errors import QueueFull
from eventmq.job import OutcomeKind
from eventmq.store.writes import SaveLimits
from eventmq.wire.commands import Error, Request
from tests.support.broker_harness import Broker, chunks, row
from tests.support.broker_workers import Workers, submit

_TASK = "task:mail.send,content-type:msgpack"
_OTHER = "task:mail.sort,content-type:msgpack"


# Rates


def test_a_rate_holds_over_time_and_over_workers(broker: Broker) -> None:
    """A burst at first, then one job for each new token: exact within one."""
    ids = submit(broker, 100, f"{_TASK},limit-rate:10/s")
    workers = Workers(broker, "a", "b")
    while workers.open:
        workers.finish()
    assert len(workers.got) == 10
    for second in range(1, 8):
        workers.wait(1.0)
        assert abs(len(workers.got) - 10 * (second + 1)) <= 1
    workers.wait(3.0)
    assert sorted(workers.got) == sorted(ids)


def test_the_broker_wakes_when_the_next_token_comes(broker: Broker) -> None:
    """Otherwise an idle broker would be late by half a heartbeat."""
    submit(broker, 2, f"{_TASK},limit-rate:1/m")
    workers = Workers(broker, "a")
    workers.finish()
    now = broker.clock.time
    assert broker.core.next_tick(now + 59.9) == pytest.approx(now + 60.0, abs=1e-3, rel=0.0)
    broker.clock.time = now + 60.0
    workers.ready("a")
    assert len(broker.dispatched) == 2


def test_a_restart_keeps_what_is_left_of_a_rate(broker: Broker) -> None:
    """Repeated restarts of the broker do not let more jobs start."""
    submit(broker, 30, f"{_TASK},limit-rate:10/m")
    workers = Workers(broker, "a")
    while workers.open:
        workers.finish()
    assert len(workers.got) == 10
    broker.crash()
    again = Workers(broker, "b")
    assert again.got == []
    again.wait(30.0)
    assert abs(len(again.got) - 5) <= 1


def test_rows_of_full_buckets_are_forgotten(broker: Broker) -> None:
    submit(broker, 1, f"{_TASK},limit-rate:10/s")
    workers = Workers(broker, "a")
    workers.finish()
    assert len(broker.store.engine.limits.rows()) == 1
    workers.wait(65.0)
    submit(broker, 1, _OTHER)
    assert broker.store.engine.limits.rows() == []
    assert broker.core.state.limiters.of == {}


def test_a_job_that_goes_back_unstarted_gives_its_token_back(broker: Broker) -> None:
    submit(broker, 1, f"{_TASK},limit-rate:1/h")
    workers = Workers(broker, "a")
    assert workers.running == 1
    workers.finish(OutcomeKind.HANDED_BACK)
    assert workers.running == 1


def test_the_newest_headers_count(broker: Broker) -> None:
    """A change by a deployment applies to jobs that wait already."""
    submit(broker, 20, f"{_TASK},limit-rate:1/h")
    workers = Workers(broker, "a")
    while workers.open:
        workers.finish()
    assert len(workers.got) == 1
    submit(broker, 1, f"{_TASK},limit-rate:100/s")
    workers.wait(1.0)
    assert len(workers.got) == 21


def test_a_job_that_says_no_limits_is_under_those_of_its_task(broker: Broker) -> None:
    """Such as one that another program submits by the name of the task."""
    submit(broker, 1, f"{_TASK},limit-running:1")
    workers = Workers(broker, "a", "b")
    submit(broker, 3, _TASK)
    workers.collect()
    assert workers.running == 1


# Concurrency


def test_so_many_run_at_a_time_over_two_workers(broker: Broker) -> None:
    ids = submit(broker, 30, f"{_TASK},limit-running:3")
    workers = Workers(broker, "a", "b")
    seen = set()
    while workers.open:
        seen.add(workers.running)
        workers.finish()
    assert max(seen) == 3
    assert sorted(workers.got) == sorted(ids)


def test_the_limit_counts_over_all_queues(broker: Broker) -> None:
    submit(broker, 2, f"{_TASK},limit-running:1")
    submit(broker, 2, f"{_TASK},limit-running:1", queue="other")
    queues = '[[10, "default"], [10, "other"]]'
    [(_, index)] = chunks(broker.worker(window=3, queues=queues))
    assert len(index.entries) == 1
    for _ in range(4):
        broker.answer(b"worker", broker.dispatched[-1], [row()])
    assert len(broker.dispatched) == 4
    assert {chunk.queue for chunk in broker.dispatched} == {"default", "other"}


def test_a_restart_keeps_what_runs(broker: Broker) -> None:
    """Its lease still exists, so its slot is occupied until the lease ends."""
    submit(broker, 3, f"{_TASK},limit-running:1")
    workers = Workers(broker, "a")
    assert workers.running == 1
    broker.crash()
    other = Workers(broker, "b")
    assert other.running == 0
    other.wait(broker.limits.heartbeat_timeout + 2.0)  # the worker does not reconnect
    assert len(other.got) == 3


def test_a_cancelled_job_frees_its_slot(broker: Broker) -> None:
    first, second = submit(broker, 2, f"{_TASK},limit-running:1")
    workers = Workers(broker, "a", "b")
    assert workers.got == [first]
    broker.call("cancel", ids=[first])
    workers.collect()
    assert workers.got == [first, second]


def test_a_retry_frees_its_slot_while_it_waits(broker: Broker) -> None:
    first, second = submit(broker, 2, f"{_TASK},limit-running:1,retry-count:3")
    workers = Workers(broker, "a")
    name, chunk = workers.open.pop(0)
    answer = row(0, OutcomeKind.RETRY, countdown=60.0)
    workers.take("a", broker.answer(name, chunk, [answer]))
    assert workers.got == [first, second]


def test_a_limit_counts_what_ran_before_it_was_known(broker: Broker) -> None:
    submit(broker, 1, _TASK)
    workers = Workers(broker, "a", "b")
    assert workers.running == 1
    submit(broker, 2, f"{_TASK},limit-running:2")
    workers.collect()
    assert workers.running == 2


def test_a_full_disk_leaves_the_count_right(broker: Broker) -> None:
    """The commit of a lease fails: its slot and its token are free again."""
    broker.worker()
    broker.call("pause", queue="default")
    submit(broker, 2, f"{_TASK},limit-running:1,limit-rate:2/h")
    state = broker.core.state
    [limiter] = state.limiters.of.values()
    state.queues["default"].counts.paused = False
    broker.core.decide(broker.clock.now())
    assert (limiter.running, limiter.tokens) == (1, 1.0)
    entries, settle = broker.core.take_batch()
    assert SaveLimits in map(type, entries)
    settle(QueueFull("no space"))
    assert (limiter.running, limiter.tokens, state.limiters.counted) == (0, 2.0, {})
    broker.wait(1.0)
    assert limiter.running == 1
    broker.answer(b"worker", broker.dispatched[0], [row()])
    broker.answer(b"worker", broker.dispatched[1], [row()])
    assert (limiter.running, state.limiters.counted) == (0, {})


# Blocked jobs do not stop others


def test_a_blocked_task_takes_no_slot(broker: Broker) -> None:
    """Jobs behind thousands of blocked ones run."""
    submit(broker, 6000, f"{_TASK},limit-running:1")
    others = submit(broker, 50, _OTHER)
    workers = Workers(broker, "a", "b")
    blocked, workers.open[:] = workers.open[:1], workers.open[1:]
    while workers.open:
        workers.finish()
    assert set(others) < set(workers.got)
    assert len(workers.got) == 51
    assert len(blocked) == 1


def test_a_blocked_task_is_not_read_into_memory_after_a_restart(broker: Broker) -> None:
    submit(broker, 6000, f"{_TASK},limit-running:1")
    Workers(broker, "a")
    broker.crash()
    broker.wait(1.0)
    assert len(broker.core.state.jobs) <= broker.limits.queue_window + 1


# Refusals


def test_jobs_without_guarantee_take_no_limits(broker: Broker) -> None:
    """They are dispatched at once and not stored."""
    headers = f"{_TASK},guarantee:False,limit-running:1,ack-requested"
    [error] = broker.tell(b"client", Request(broker.new_id(), "", headers, b"x"))
    assert isinstance(error, Error)
    assert (error.code, error.text) == (
        "bad-header",
        "guarantee:False and limits exclude each other",
    )


@pytest.mark.parametrize("value", ["", "100", "0/s", "5/x", "1/0s", "-1/s", "1.5/s", "5/ s"])
def test_a_rate_that_is_none_is_refused(broker: Broker, value: str) -> None:
    headers = f"{_TASK},limit-rate:{value}"
    [error] = broker.tell(b"client", Request(broker.new_id(), "", headers, b"x"))
    assert isinstance(error, Error)
    assert error.code == "bad-header"
    assert "a number per time, such as '5/s'" in error.text
