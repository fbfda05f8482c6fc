"""Limits by key: each key has its own limit and a fair share, however many keys there are."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import pytest

from eventmq.broker.limiters import Limiter
from eventmq.broker.limits import Limits
from eventmq.job import OutcomeKind
from eventmq.wire.commands import Error, Kbai, Request
from tests.support.broker_harness import Broker
from tests.support.broker_workers import Workers, submit

if TYPE_CHECKING:
    from pathlib import Path

_TASK = "task:mail.send,content-type:msgpack"
_OTHER = "task:mail.sort,content-type:msgpack"


def keyed(key: str, more: str = "") -> str:
    """Return the headers of a job with a key."""
    return f"{_TASK},limit-key:user%3A{key}" + (f",{more}" if more else "")


def test_keys_are_limited_each_by_itself(broker: Broker) -> None:
    submit(broker, 10, keyed("a", "limit-running:1"))
    submit(broker, 10, keyed("b", "limit-running:2"))
    workers = Workers(broker, "a", "b", "c", "d")
    seen = set()
    while workers.open:
        seen.add(workers.running)
        workers.finish()
    assert max(seen) == 3
    assert len(workers.got) == 20


def test_a_flood_of_one_tenant_stops_no_other(broker: Broker) -> None:
    """The ten jobs of b are among the first twenty or so, although they came last."""
    submit(broker, 1000, keyed("a"))
    second = submit(broker, 10, keyed("b"))
    workers = Workers(broker, "a")
    while len(workers.got) < 1010:
        workers.finish()
    assert max(workers.got.index(job_id) for job_id in second) < 22
    assert len(set(workers.got)) == 1010


def test_inside_of_a_key_jobs_go_as_they_came(broker: Broker) -> None:
    """Also jobs outside of memory, and with keys that appear and disappear."""
    broker.close()
    broker.limits = Limits(queue_window=64, chunk_jobs=7)
    broker.start()
    sent = {key: submit(broker, 200, keyed(key)) for key in ("a", "b", "c")}
    workers = Workers(broker, "a")
    while workers.open:
        workers.finish()
    for ids in sent.values():
        assert [job_id for job_id in workers.got if job_id in set(ids)] == ids


def test_a_key_that_was_blocked_does_not_catch_up(broker: Broker) -> None:
    """Jobs that it could not run give it no advantage."""
    slow = submit(broker, 40, keyed("a", "limit-rate:20/10s"))
    submit(broker, 300, keyed("b"))
    workers = Workers(broker, "w")
    while len(workers.got) < 200:
        workers.finish()
    assert len(set(slow) & set(workers.got)) == 20
    broker.clock.time += 10.0
    before = len(workers.got)
    workers.ready("w")
    while len(workers.got) < before + 20:
        workers.finish()
    later = workers.got[before : before + 20]
    assert 9 <= len(set(slow) & set(later)) <= 11


def test_a_chunk_costs_as_much_with_many_keys_as_with_few(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No scan of all keys, neither of free nor of blocked ones."""
    broker.close()
    broker.limits = Limits(chunk_jobs=2)
    broker.start()
    looks = []
    allowance = Limiter.allowance

    def looking(limiter: Limiter, now: float) -> int:
        looks.append(limiter)
        return allowance(limiter, now)

    keys = [f"{n}" for n in range(500)]
    for key in keys:
        submit(broker, 2, keyed(key, "limit-running:1,limit-rate:5/s"))
    workers = Workers(broker, "a")
    monkeypatch.setattr(Limiter, "allowance", looking)
    for _ in range(100):
        workers.finish()
    assert len(workers.got) > 100
    assert len(looks) < 20 * len(workers.got)


def test_a_free_key_is_found_again_by_workers_of_every_skill(broker: Broker) -> None:
    """Each eligibility has a heap of its own; a key is blocked or free in all of them."""
    submit(broker, 6, keyed("x", "limit-running:1"))
    submit(broker, 6, f"{_OTHER},limit-key:x,limit-running:1")
    first = Workers(broker, "any")
    broker.worker(b"sorter", "sorter", window=2, tasks=("mail.sort",))
    for _ in range(20):
        if first.open:
            first.finish()
    assert len(first.got) == 12


def test_a_queue_whose_last_key_is_gone_goes_by_rank_again(broker: Broker) -> None:
    """And by fair queueing again with the next key."""
    for _ in range(2):
        submit(broker, 6, keyed("a"))
        submit(broker, 3, keyed("b"))
        workers = Workers(broker, "w")
        while workers.open:
            workers.finish()
        assert len(workers.got) == 9
        broker.call("pause", queue="default")
        sent = [*submit(broker, 3, f"{_TASK},limit-running:9"), *submit(broker, 3, _OTHER)]
        broker.call("resume", queue="default")
        workers.wait(0.5)
        assert workers.got[9:] == sent
        broker.tell(b"w", Kbai("bye"))


def test_one_key_too_many_is_refused(broker: Broker) -> None:
    broker.close()
    broker.limits = Limits(max_keys=3)
    broker.start()
    for key in "abc":
        submit(broker, 1, keyed(key))
    submit(broker, 1, keyed("a"))
    [error] = broker.tell(b"client", Request(broker.new_id(), "", keyed("d"), b"x"))
    assert isinstance(error, Error)
    assert error.code == "too-many-keys"
    assert "has 3 limit keys already" in error.text
    workers = Workers(broker, "w")
    workers.wait(15.0)
    submit(broker, 1, keyed("d"))  # the others have ended


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_no_limit_is_passed_and_nothing_is_left(tmp_path: Path, seed: int) -> None:
    """Random ends, with more keys than fit in memory: all jobs end, all slots are free then."""
    random = Random(seed)
    broker = Broker(tmp_path, Limits(queue_window=8, chunk_jobs=5))
    keys = {f"k{n}": random.randint(1, 3) for n in range(12)}
    workers = Workers(broker, "a", "b", "c")
    of: dict[str, str] = {}
    for step in range(300):
        key, max_running = random.choice(list(keys.items()))
        if step < 150 and random.random() < 0.5:
            more = f"limit-running:{max_running},limit-rate:20/s"
            of |= dict.fromkeys(submit(broker, random.randint(1, 4), keyed(key, more)), key)
            workers.collect()
        elif workers.open:
            random.shuffle(workers.open)
            kinds = (OutcomeKind.SUCCEEDED, OutcomeKind.HANDED_BACK, OutcomeKind.DIED)
            workers.finish(random.choices(kinds, (6, 2, 1))[0])
        elif random.random() < 0.5:
            broker.call("cancel", ids=[random.choice(list(of))] if of else [])
            workers.collect()
        else:
            workers.wait(0.25)
        running = Counter(of[i] for i in broker.core.state.running)
        assert all(running[key] <= keys[key] for key in running)
    workers.wait(20.0)
    state = broker.core.state
    assert (state.running, state.limiters.counted) == ({}, {})
    assert all(limiter.running == 0 for limiter in state.limiters.of.values())
    assert state.queues["default"].counts.queued == 0
    broker.close()
