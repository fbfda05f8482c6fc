"""STATUS: the meaning of each key of EventMQ 0.3, and the names of workers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eventmq.broker import calls
from eventmq.wire.commands import Admin, Inform, Kbai, Ready, Reply, Request
from eventmq.wire.features import Features
from tests.support.broker_harness import Broker, chunks, row

BODY = b'["run", {"callable": "add", "path": "jobs"}]'


def ask(broker: Broker, command: str = "STATUS") -> dict[str, Any]:
    [reply] = broker.tell(b"admin", Admin("1", command), "admin")
    assert isinstance(reply, Reply)
    answer = json.loads(reply.result)
    assert isinstance(answer, dict)
    return answer


def submit(broker: Broker, headers: str = "guarantee") -> str:
    job_id = broker.new_id()
    broker.tell(b"c", Request(job_id, "default", headers, BODY))
    return job_id


def give(broker: Broker, identity: bytes = b"w") -> None:
    """Let a worker without FEATURES get a job."""
    if not any(key.identity == identity for key in broker.core.state.peers):
        broker.tell(identity, Inform("i", "", "worker"))
    broker.tell(identity, Ready("r"))


def test_latency_is_the_mean_age_of_what_workers_have_in_milliseconds(broker: Broker) -> None:
    """And the longest age; waiting jobs do not count."""
    submit(broker)
    broker.clock.time += 2.0
    submit(broker)
    submit(broker)
    give(broker)
    give(broker)
    broker.clock.time += 1.0
    status = ask(broker)
    assert status["inflight_messages_by_queue"] == {"default": 2}
    assert status["latency_messages_by_queue"] == {"default": 2000}
    assert status["max_latency_messages_by_queue"] == {"default": 3000}
    assert status["waiting_messages_by_queue"] == {"default": 1}


def test_jobs_without_guarantee_are_counted_as_well(broker: Broker) -> None:
    for _ in range(2):
        submit(broker, "guarantee:False,ack-requested")
    give(broker)
    status = ask(broker)
    assert status["inflight_messages_by_queue"] == {"default": 1}
    assert status["waiting_messages_by_queue"] == {"default": 1}
    assert status["processed_messages_by_worker"] == {"w": 1}


def test_what_is_in_flight_after_a_restart_is_counted(broker: Broker) -> None:
    """Jobs that were dispatched before the start do not count as processed."""
    submit(broker)
    give(broker)
    broker.crash()
    status = ask(broker)
    assert status["inflight_messages_by_queue"] == {"default": 1}
    assert status["processed_messages_by_queue"] == {}


def test_a_job_that_is_given_again_counts_again_and_a_resent_chunk_does_not(
    broker: Broker,
) -> None:
    broker.submit()
    [(chunk, _)] = chunks(broker.worker(b"w1", "one"))
    broker.worker(b"w1", "one")  # it informs again, and has received no chunk
    assert ask(broker)["processed_messages_by_queue"] == {"default": 1}
    broker.tell(b"w1", Kbai("k"))
    broker.worker(b"w2", "two")
    status = ask(broker)
    assert status["processed_messages_by_queue"] == {"default": 2}
    assert status["processed_messages_by_worker"] == {"one": 1, "two": 1}
    assert chunk


def test_a_worker_that_ends_a_job_has_processed_it(broker: Broker) -> None:
    broker.submit()
    [(chunk, _)] = chunks(broker.worker(b"w1", "one"))
    broker.answer(b"w1", chunk, [row()])
    status = ask(broker)
    assert status["inflight_messages_by_queue"] == {}
    assert status["processed_messages_by_worker"] == {"one": 1}


def test_two_workers_of_one_name_are_two(broker: Broker) -> None:
    for session in ("s1", "s2"):
        features = Features(session=session, name="same").format()
        broker.tell(session.encode(), Inform("i", '[[10, "default"]]', "worker", features))
    shown = ask(broker, "ROUTER_SHOW_WORKERS")
    assert list(shown["connected_workers"]) == ["same", "same.s2"]
    assert shown["connected_queues"] == {"default": [[10, "same"], [10, "same.s2"]]}


def test_a_worker_that_is_away_is_not_connected(broker: Broker) -> None:
    """Its session may reconnect within its grace."""
    submit(broker)
    give(broker)
    broker.crash()
    assert broker.core.state.sessions
    assert ask(broker, "ROUTER_SHOW_WORKERS") == {"connected_workers": {}, "connected_queues": {}}


def test_workers_that_have_gone_are_forgotten_in_the_end(broker: Broker, monkeypatch) -> None:
    """The first ones: a broker runs for years."""
    monkeypatch.setattr(calls, "FORMER_WORKERS", 2)
    for n in range(4):
        submit(broker)
        identity = f"w{n}".encode()
        give(broker, identity)
        broker.tell(identity, Reply("x", b"1"))
        broker.tell(identity, Kbai("k"))
        broker.wait(1.0)
    assert ask(broker)["processed_messages_by_worker"] == {"w2": 1, "w3": 1}
    assert ask(broker)["processed_messages_by_queue"] == {"default": 4}


def test_a_routing_id_that_is_no_text_is_hexadecimal(broker: Broker) -> None:
    for identity in (b"\xff", b"a\nb"):
        broker.tell(identity, Inform("i", "", "scheduler"))
    assert set(ask(broker, "ROUTER_SHOW_SCHEDULERS")["connected_schedulers"]) == {"ff", "610a62"}


def test_the_last_message_is_told_in_wall_time(broker: Broker) -> None:
    """People read it; store time does not step with the wall clock."""
    broker.tell(b"s", Inform("i", "", "scheduler"))
    broker.tell(b"w", Inform("i", "", "worker"))
    sent_at = broker.clock.time
    broker.clock.wrong = 30.0
    for command, key, peer in (
        ("ROUTER_SHOW_SCHEDULERS", "connected_schedulers", "s"),
        ("ROUTER_SHOW_WORKERS", "connected_workers", "w"),
    ):
        assert ask(broker, command)[key][peer]["hb"] == pytest.approx(sent_at + 30.0, abs=0.1)


# New jobs that are refused


def test_a_status_says_why_new_jobs_are_refused(broker: Broker) -> None:
    """While less than the reserve is free, and some time after a commit without space."""
    assert ({}, "") == told_of_space(broker)
    gauges = {"bytes": 5.0, "free_bytes": 256.0 * 2**20, "reserve_bytes": 256.0 * 2**20}
    broker.core.state.store_gauges = lambda: gauges
    assert "" == told_of_space(broker)[1]
    gauges["free_bytes"] = 12.0 * 2**20
    disk, refusing = told_of_space(broker)
    assert {"free_bytes": 12.0 * 2**20, "reserve_bytes": 256.0 * 2**20} == disk
    assert "the disk is nearly full: 12 MiB are free, and 256 MiB are to stay free" in refusing
    assert "disk_reserve" in refusing
    gauges.clear()
    broker.core.state.hold_until = broker.core.state.now + 1.0
    assert "the disk is full; nothing was stored" == told_of_space(broker)[1]


def told_of_space(broker: Broker) -> tuple[dict[str, float], str]:
    answer = broker.call("status")
    return answer["disk"], answer["refusing"]
