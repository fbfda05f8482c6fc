"""Who waits for the ends of jobs, and what the broker still knows of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from eventmq.job import OutcomeKind
from eventmq.wire.bulk import pack, unpack
from eventmq.wire.commands import Call, Reply
from eventmq.wire.results import RemoteError, encode_error
from tests.broker_harness import Broker, chunks, row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    yield broker
    broker.close()


def run(broker: Broker, headers: str = "", **answer: Any) -> str:
    """Submit a job, let a worker answer it, and return its id."""
    job_id, _ = broker.submit(headers=headers)
    broker.worker(window=1)
    [(chunk, _)] = chunks(broker.dispatched[-1:])
    broker.answer(b"worker", chunk, [row(**answer)])
    return job_id


def told(broker: Broker, peer: bytes) -> list[Any]:
    """Return the rows of a ``get`` that a peer was told."""
    replies = [m for m in broker.took(peer) if isinstance(m, Reply)]
    return [row for reply in replies for row in unpack(reply.result, "rows")]


def test_jobs_that_had_ended_are_answered_in_the_order_of_their_ends(broker: Broker) -> None:
    """What ``as_completed`` promises."""
    ids = []
    for _ in range(20):
        ids.append(run(broker))
        broker.clock.time += 0.01
    asked = [*ids[::2], "nobody", *ids[1::2]]
    assert [found[0] for found in broker.call("get", ids=asked)] == ["nobody", *ids]


def test_many_peers_and_calls_wait_for_one_job(broker: Broker) -> None:
    """Each call is answered once; one that was forgotten is not."""
    job_id, _ = broker.submit()
    peers = [b"a", b"b"]
    for peer in peers:
        for call in range(50):
            assert broker.tell(peer, Call(f"{call}", "get", pack({"ids": [job_id]}))) == []
    broker.tell(b"b", Call("x", "forget", pack({"call": "7"})))
    broker.worker()
    [(chunk, _)] = chunks(broker.dispatched)
    broker.answer(b"worker", chunk, [row(result=b"\x05")])
    for peer, count in zip(peers, (50, 49), strict=True):
        assert told(broker, peer) == [[job_id, "succeeded", "msgpack", b"\x05"]] * count
    assert broker.core.state.waiters == {}


def test_a_result_is_forgotten_when_its_time_is_up_and_the_job_is_not(broker: Broker) -> None:
    """The client says `ResultUnavailable` then, not `JobNotFound`; the state stays."""
    job_id = run(broker, "result-ttl:60", result=b"\x05")
    broker.wait(59.0)
    assert broker.call("get", ids=[job_id]) == [[job_id, "succeeded", "msgpack", b"\x05"]]
    broker.wait(2.0)
    assert broker.call("get", ids=[job_id]) == [[job_id, "succeeded", "msgpack", None]]
    assert broker.call("state", ids=[job_id]) == [[job_id, "succeeded"]]
    broker.crash()
    assert broker.call("info", id=job_id)["state"] == "succeeded"


def test_an_ignored_result_is_kept_for_nobody_and_its_end_is_pushed(broker: Broker) -> None:
    job_id, _ = broker.submit(headers="ignore-result")
    assert broker.tell(b"c", Call("1", "get", pack({"ids": [job_id]}))) == []
    broker.worker()
    [(chunk, _)] = chunks(broker.dispatched)
    broker.answer(b"worker", chunk, [row(result=b"\x05")])
    assert told(broker, b"c") == [[job_id, "succeeded", "msgpack", None]]
    assert broker.call("get", ids=[job_id]) == [[job_id, "succeeded", "msgpack", None]]


def test_the_error_of_an_ignored_result_is_kept(broker: Broker) -> None:
    """As long as its job is among the failed ones, whatever the time to live of results."""
    error = encode_error(RemoteError("builtins.ValueError", "no"))
    job_id = run(
        broker, "ignore-result,result-ttl:1", kind=OutcomeKind.FAILED, result=error,
        content_type="error",
    )  # fmt: skip
    broker.wait(10.0)
    assert broker.call("get", ids=[job_id]) == [[job_id, "failed", "error", error]]
