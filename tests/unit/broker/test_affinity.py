"""Keys in the broker: jobs with a key go to the same worker, and no key waits for ever."""

from __future__ import annotations

from random import Random

import pytest

from eventmq.plugins.routing import Sticky
from eventmq.wire.batches import OutcomeRow
from eventmq.wire.commands import Heartbeat, Ready
from eventmq.wire.features import Status
from tests.support import broker_harness
from tests.support.broker_harness import Broker, chunks, row


@pytest.fixture(name="broker")
def sticky_broker(tmp_path, monkeypatch):
    monkeypatch.setattr(broker_harness, "FirstWorker", Sticky)
    broker = Broker(tmp_path)
    yield broker
    broker.close()


def join(broker, *names, window=4, **more):
    for name in names:
        broker.worker(name.encode(), name, window=window, **more)


def submit(broker, key):
    return broker.submit(headers=f"routing-key:{key}")[0]


def held(broker, name):
    """Return the ids that a session holds."""
    session = broker.core.state.sessions[name]
    return [job.id for lease in session.leases.values() for job in lease.jobs if job]


def holders(broker, *names):
    return {job_id: name for name in names for job_id in held(broker, name)}


def answer_all(broker, name):
    """Answer all chunks that a worker was sent, and those that it is sent for the answers."""
    remaining = chunks(broker.took(name.encode()))
    while remaining:
        chunk, index = remaining.pop()
        rows = [row(position) for position in range(len(index.entries))]
        remaining += chunks(broker.answer(name.encode(), chunk, rows))


def test_jobs_of_one_key_go_to_one_worker(broker):
    join(broker, "a", "b", "c")
    seen = {}
    for number in range(40):
        key = f"tenant-{number % 8}"
        job_id = submit(broker, key)
        where = holders(broker, "a", "b", "c")[job_id]
        assert seen.setdefault(key, where) == where
        for name in "abc":
            answer_all(broker, name)
    assert set(seen.values()) == set("abc")


def test_a_backlog_is_dealt_by_key(broker):
    """The jobs arrived before the workers."""
    ids = {submit(broker, f"tenant-{n % 8}"): n % 8 for n in range(40)}
    join(broker, "a", "b", "c", window=0)
    for name in "abc":
        broker.ready(name.encode(), 100)
    keys = {}
    for job_id, name in holders(broker, "a", "b", "c").items():
        keys.setdefault(ids[job_id], set()).add(name)
    broker.wait(2.0)
    assert all(len(names) == 1 for names in keys.values())
    assert set(holders(broker, "a", "b", "c")) == set(ids)


def test_a_key_goes_to_another_worker_when_its_own_is_full_for_a_while(broker):
    join(broker, "a", "b", window=1)
    first = submit(broker, "k")
    owner = holders(broker, "a", "b")[first]
    (other,) = {"a", "b"} - {owner}
    second = submit(broker, "k")
    assert second not in holders(broker, "a", "b")
    broker.wait(1.0)
    assert holders(broker, "a", "b")[second] == other


def test_a_worker_with_more_than_its_share_passes_its_keys_on_at_once(broker):
    """Even if other workers were tried already and got no job."""
    for _ in range(40):
        submit(broker, "k")
    join(broker, "a", "b", "c", "d", window=0)
    for name in "abcd":
        broker.put(name.encode(), Ready(broker.new_id(), Status(0, 4, ()).format()))
    broker.tick()
    held_by = sorted(len(held(broker, name)) for name in "abcd")
    assert held_by == [0, 1, 4, 4]
    broker.wait(1.0)
    assert len(holders(broker, "a", "b", "c", "d")) == 16


def test_a_job_without_a_key_waits_for_no_worker(broker):
    join(broker, "a", "b", window=1)
    first = submit(broker, "k")
    owner = holders(broker, "a", "b")[first]
    submit(broker, "k")
    job_id, _ = broker.submit()
    assert holders(broker, "a", "b")[job_id] != owner


def test_a_key_does_not_wait_for_a_worker_that_cannot_run_its_task(broker):
    """A worker that knows other tasks, or serves other queues, is not a candidate."""
    join(broker, "a", tasks=("shop.other",))
    join(broker, "b", queues='[[10, "other"]]')
    join(broker, "c")
    ids = [submit(broker, f"tenant-{n}") for n in range(9)]
    answer_all(broker, "c")
    assert [] == held(broker, "a") + held(broker, "b")
    assert all(broker.call("state", ids=[job_id])[0][1] == "succeeded" for job_id in ids)


def test_keys_of_a_worker_that_died_go_to_others(broker):
    join(broker, "a", "b")
    ids = [submit(broker, f"tenant-{n}") for n in range(8)]
    join(broker, "b", window=100)
    broker.core.sessions.end(broker.core.state.sessions["a"])
    broker.tick()
    broker.wait(1.0)
    assert set(ids) == set(held(broker, "b"))


def test_a_refused_key_goes_to_a_worker_that_did_not_refuse(broker):
    """The refusing worker announces every task, but does not know this one."""
    join(broker, "a", "b")
    job_id = submit(broker, "k")
    owner = holders(broker, "a", "b")[job_id]
    (other,) = {"a", "b"} - {owner}
    for chunk, _ in chunks(broker.took(owner.encode())):
        broker.answer(owner.encode(), chunk, [OutcomeRow(0, 6, 1.0, 0.0, "", b"")])
    broker.wait(1.0)
    assert job_id in held(broker, other)


def test_a_task_that_no_worker_knows_fails_as_ever(broker):
    """Repeated scans do not keep its job from becoming unroutable."""
    join(broker, "a", "b", tasks=("shop.other",))
    job_id = submit(broker, "k")
    broker.wait(10.0)
    assert broker.call("state", ids=[job_id])[0][1] == "queued"
    for _ in range(int(broker.limits.unknown_task_grace / 5) + 1):
        for name in (b"a", b"b"):
            broker.ready(name, 4)
        broker.wait(5.0)
    assert broker.call("state", ids=[job_id])[0][1] == "failed"


@pytest.mark.parametrize("seed", range(5))
def test_whatever_comes_and_goes_every_job_ends(broker, seed):
    """Jobs with and without keys, workers that connect and leave, answers in any order."""
    random = Random(seed)
    ids, names, number = [], set(), 0
    for _ in range(300):
        what = random.random()
        if what < 0.5:
            key = random.choice(["", *"abcdef"])
            ids.append(submit(broker, key) if key else broker.submit()[0])
        elif what < 0.6 and len(names) < 5:
            number += 1
            names.add(f"w{number}")
            join(broker, f"w{number}", window=random.randint(1, 4))
        elif what < 0.63 and len(names) > 1:
            removed = random.choice(sorted(names))
            names.remove(removed)
            session = broker.core.state.sessions[removed]
            broker.core.sessions.end(session, silent=True)  # cut off: no death counts
            broker.tick()
        elif what < 0.9 and names:
            answer_held(broker, random.choice(sorted(names)), random)
        else:
            live_on(broker, names, random.random())
    join(broker, "last")
    for _ in range(len(ids)):
        for name in sorted({*names, "last"}):
            answer_held(broker, name, random)
        live_on(broker, {*names, "last"}, 0.5)
    states = dict(broker.call("state", ids=ids))
    assert [job_id for job_id in ids if states[job_id] != "succeeded"] == []


def live_on(broker, names, seconds):
    """Let time pass while workers send HEARTBEATs."""
    for name in sorted(names):
        broker.put(name.encode(), Heartbeat(broker.new_id(), "1.0"))
    broker.wait(seconds)


def answer_held(broker, name, random):
    """Answer one of the chunks that a session holds."""
    session = broker.core.state.sessions[name]
    if session.leases:
        number = random.choice(sorted(session.leases))
        sent = [m for m in broker.dispatched if m.id == f"{name}.{number}"][-1]
        rows = [row(position) for position in range(len(session.leases[number].jobs))]
        broker.answer(name.encode(), sent, rows)
