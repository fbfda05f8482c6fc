"""Queues are limited for each peer and in total; unused ones are forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eventmq.broker.limits import Limits
from eventmq.broker.maintenance import QUEUES_AT_ONCE
from eventmq.plugins.database import first_row
from eventmq.wire.batches import encode_batch, encode_exceptions
from eventmq.wire.commands import Ack, Error, Heartbeat, Inform, Request
from tests.support.broker_harness import TASK, Broker, chunks, row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Seconds; a queue is recognised as idle some ticks later.
TTL, LATER = 600.0, 650.0


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Broker]:
    """A broker of eight queues, of which a peer may create three."""
    broker = Broker(tmp_path, Limits(max_queues=8, max_new_queues=3, empty_queue_ttl=TTL))
    yield broker
    broker.close()


def names(broker: Broker) -> list[str]:
    return sorted(queue["name"] for queue in broker.call("queues"))


def idle(broker: Broker, seconds: float = LATER) -> None:
    """Let time pass while workers send HEARTBEATs."""
    for _ in range(int(seconds / 5.0)):
        for peer in list(broker.core.state.peers.values()):
            if peer.session is not None:
                broker.put(peer.key.identity, Heartbeat(broker.new_id(), "1"))
        broker.clock.time += 5.0
        broker.tick()


def end(broker: Broker, job: str) -> None:
    broker.call("cancel", ids=[job])


def refused(messages: list[object]) -> str:
    [error] = [m for m in messages if isinstance(m, Error)]
    return error.text


def stored(broker: Broker) -> int:
    """Return how many queues the store knows, including forgotten ones."""
    return int(first_row(broker.store._db, "SELECT count(*) FROM queues")[0])


# Limits


def test_a_client_begins_so_many_queues_and_hears_what_the_setting_is(small: Broker) -> None:
    for n in range(3):
        _, got = small.submit(queue=f"q{n}")
        assert [type(m) for m in got] == [Ack]
    _, got = small.submit(queue="q3")
    assert refused(got) == (
        "the queue 'q3' would be one more than the 3 that one client may begin (setting "
        "max_new_queues); queues that stay empty and are not served go after 600 s"
    )
    _, got = small.submit(queue="q1")
    assert [type(m) for m in got] == [Ack], "what there is may be used"
    _, got = small.submit(queue="q3", client=b"other")
    assert [type(m) for m in got] == [Ack]
    assert names(small) == ["q0", "q1", "q2", "q3"]


def test_all_clients_together_begin_so_many(small: Broker) -> None:
    for n in range(9):
        _, got = small.submit(queue=f"q{n}", client=f"c{n // 3}".encode())
    assert "8 queues of this broker (setting max_queues)" in refused(got)
    assert len(names(small)) == 8


def test_the_queues_of_one_batch_count_together(small: Broker) -> None:
    templates = [(f"q{n}", TASK) for n in range(5)]
    ids = [small.new_id() for _ in templates]
    body = encode_batch(templates, [(ids[n], n, b"x") for n in range(5)])
    [ack] = small.tell(b"client", Request(small.new_id(), "", "batch:5", body))
    text = (
        "the queue 'q{}' would be one more than the 3 that one client may begin (setting "
        "max_new_queues); queues that stay empty and are not served go after 600 s"
    )
    assert ack.extra == encode_exceptions({n: ("queue-full", text.format(n)) for n in (3, 4)})
    assert names(small) == ["q0", "q1", "q2"]


def test_a_queue_that_a_worker_serves_does_not_count_to_who_began_it(small: Broker) -> None:
    for n in range(3):
        small.submit(queue=f"q{n}")
    small.worker(queues='[[10, "q0"], [10, "q1"]]')
    for n in (3, 4):
        _, got = small.submit(queue=f"q{n}")
        assert [type(m) for m in got] == [Ack]
    assert "max_new_queues" in refused(small.submit(queue="q5")[1])


def test_a_worker_that_names_other_queues_again_and_again_is_refused(small: Broker) -> None:
    for first in (0, 3):
        queues = ", ".join(f'[10, "w{n}"]' for n in range(first, first + 3))
        inform = Inform(small.new_id(), f"[{queues}]", "worker", "session:s,error")
        got = small.tell(b"worker", inform)
    assert "3 that one worker may begin" in refused(got)


# Forgotten queues


def test_an_empty_queue_that_is_not_served_is_forgotten_and_its_maker_may_begin_others(
    small: Broker,
) -> None:
    jobs = [small.submit(queue=f"q{n}")[0] for n in range(3)]
    for job in jobs[:2]:
        end(small, job)
    idle(small, TTL / 2)
    assert names(small) == ["q0", "q1", "q2"]
    idle(small)
    assert names(small) == ["q2"]
    assert small.core.state.counters["queues_forgotten"] == 2
    for n in (4, 5):
        _, got = small.submit(queue=f"q{n}")
        assert [type(m) for m in got] == [Ack]
    assert "max_new_queues" in refused(small.submit(queue="q6")[1])


@pytest.mark.parametrize("what", ["served", "waiting", "delayed", "paused", "failed", "transient"])
def test_a_queue_that_is_used_is_not_forgotten(small: Broker, what: str) -> None:
    headers = {"delayed": "countdown:100000", "transient": "guarantee:False"}.get(what, "")
    job, _ = small.submit(queue="q", headers=headers)
    if what == "paused":
        small.call("pause", queue="q")
    if what in {"served", "failed"}:
        [(chunk, _)] = chunks(small.worker(queues='[[10, "q"]]'))
        small.answer(b"worker", chunk, [row(0, 1 if what == "failed" else 0)])
    if what == "failed":
        small.core.sessions.goodbye(next(p for p in small.core.state.peers.values() if p.session))
    if what == "paused":
        end(small, job)
    idle(small)
    assert names(small) == ["q"]


def test_the_default_queue_and_those_with_limits_stay(tmp_path: Path) -> None:
    broker = Broker(tmp_path, Limits(queue_limits=(("slow", "", 3),)))
    end(broker, broker.submit()[0])
    idle(broker)
    assert names(broker) == ["default", "slow"]
    broker.close()


def test_where_unknown_queues_are_refused_none_is_forgotten(tmp_path: Path) -> None:
    """Otherwise its jobs would be refused while its workers are disconnected."""
    broker = Broker(tmp_path, Limits(legacy_queue_fallback="refuse"))
    broker.worker(queues='[[10, "q"]]')
    broker.core.sessions.goodbye(next(p for p in broker.core.state.peers.values() if p.session))
    idle(broker)
    _, got = broker.submit(queue="q")
    assert [type(m) for m in got] == [Ack]
    broker.close()


def test_a_forgotten_queue_comes_back_with_its_next_job_and_is_served(small: Broker) -> None:
    small.worker(queues='[[10, "default"], [10, "q"]]', window=0)
    small.core.sessions.goodbye(next(p for p in small.core.state.peers.values() if p.session))
    idle(small)
    assert names(small) == ["default"]
    small.worker(b"w2", "w2", queues='[[10, "default"]]', window=1)
    job, _ = small.submit(queue="q")
    assert names(small) == ["default", "q"]
    [(_, index)] = chunks(small.worker(b"w3", "w3", queues='[[10, "q"]]'))
    assert [entry.id for entry in index.entries] == [job]


def test_many_are_forgotten_a_slice_at_a_time(tmp_path: Path) -> None:
    broker = Broker(tmp_path, Limits(max_new_queues=10_000))
    count = 2 * QUEUES_AT_ONCE + 10
    templates = [(f"q{n}", TASK) for n in range(count)]
    ids = [broker.new_id() for _ in templates]
    body = encode_batch(templates, [(ids[n], n, b"x") for n in range(count)])
    broker.tell(b"client", Request(broker.new_id(), "", f"batch:{count}", body))
    for first in range(0, count, 1000):
        broker.call("cancel", ids=ids[first : first + 1000])
    sizes = {count}
    for _ in range(140):
        idle(broker, 5.0)
        sizes.add(len(broker.core.state.queues))
    assert sizes == {count, count - QUEUES_AT_ONCE, 10, 0}
    broker.close()


# In the store


def test_after_a_restart_they_are_still_forgotten(small: Broker) -> None:
    jobs = [small.submit(queue=f"q{n}")[0] for n in range(3)]
    for job in jobs[:2]:
        end(small, job)
    idle(small)
    small.crash()
    assert names(small) == ["q2"]
    idle(small)
    assert names(small) == ["q2"]


def test_those_that_a_broker_left_behind_are_forgotten_by_the_next(small: Broker) -> None:
    for n in range(3):
        end(small, small.submit(queue=f"q{n}")[0])
    small.crash()
    assert names(small) == ["q0", "q1", "q2"]
    idle(small)
    assert names(small) == []


def test_outcomes_keep_the_name_of_their_queue_and_its_number_is_not_used_again(
    small: Broker,
) -> None:
    old, _ = small.submit(queue="old")
    end(small, old)
    idle(small)
    assert names(small) == []
    small.submit(queue="new")
    assert small.call("info", id=old)["queue"] == "old"
    small.crash()
    assert small.call("info", id=old)["queue"] == "old"
    assert small.call("info", id=old)["state"] == "cancelled"
    small.submit(queue="old")
    assert stored(small) == 2, "one row for each name"


def test_the_rows_go_when_no_outcome_has_their_number(small: Broker) -> None:
    for n in range(3):
        end(small, small.submit(queue=f"q{n}")[0])
    idle(small)
    assert stored(small) == 3
    small.clock.time += 2 * 86_400.0
    small.core.shift(small.clock.now(), 2 * 86_400.0)
    end(small, small.submit(queue="fresh")[0])
    small.clock.time += 100.0
    end(small, small.submit(queue="fresh")[0])
    assert stored(small) == 1
