"""Peers that wait for the ends of jobs, and the results that the broker still has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.broker.limits import Limits
from eventmq.job import OutcomeKind
from eventmq.wire.batches import pack, unpack
from eventmq.wire.commands import Call, Reply, decode
from eventmq.wire.results import RemoteError, encode_error
from tests.support.broker_harness import Broker, chunks, row

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1024 * 1024


def run(broker: Broker, headers: str = "", **answer: Any) -> str:
    """Submit a job, let a worker answer it, and return its id."""
    job_id, _ = broker.submit(headers=headers)
    broker.worker(window=1)
    [(chunk, _)] = chunks(broker.dispatched[-1:])
    broker.answer(b"worker", chunk, [row(**answer)])
    return job_id


def answers(broker: Broker, peer: bytes) -> list[Any]:
    """Return the rows that a peer got for its ``get`` calls."""
    replies = [m for m in broker.took(peer) if isinstance(m, Reply)]
    return [row for reply in replies for row in unpack(reply.result, "rows")]


def test_jobs_that_had_ended_are_answered_in_the_order_of_their_ends(broker: Broker) -> None:
    """As ``as_completed`` requires."""
    ids = []
    for _ in range(20):
        ids.append(run(broker))
        broker.clock.time += 0.01
    call_get = [*ids[::2], "nobody", *ids[1::2]]
    assert [row[0] for row in broker.call("get", ids=call_get)] == ["nobody", *ids]


def test_many_peers_and_calls_wait_for_one_job(broker: Broker) -> None:
    """Each call is answered once; a forgotten one is not."""
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
        assert answers(broker, peer) == [[job_id, "succeeded", "msgpack", b"\x05"]] * count
    assert broker.core.state.waiters == {}


def test_a_result_is_forgotten_when_its_time_is_up_and_the_job_is_not(broker: Broker) -> None:
    """The client then raises `ResultUnavailable`, not `JobNotFound`; the state is kept."""
    job_id = run(broker, "result-ttl:60", result=b"\x05")
    broker.wait(59.0)
    assert broker.call("get", ids=[job_id]) == [[job_id, "succeeded", "msgpack", b"\x05"]]
    broker.wait(2.0)
    assert broker.call("get", ids=[job_id]) == [[job_id, "succeeded", "msgpack", None]]
    assert broker.call("state", ids=[job_id]) == [[job_id, "succeeded"]]
    broker.crash()
    assert broker.call("info", id=job_id)["state"] == "succeeded"


def test_an_ignored_result_is_not_kept_and_its_end_is_pushed(broker: Broker) -> None:
    job_id, _ = broker.submit(headers="ignore-result")
    assert broker.tell(b"c", Call("1", "get", pack({"ids": [job_id]}))) == []
    broker.worker()
    [(chunk, _)] = chunks(broker.dispatched)
    broker.answer(b"worker", chunk, [row(result=b"\x05")])
    assert answers(broker, b"c") == [[job_id, "succeeded", "msgpack", None]]
    assert broker.call("get", ids=[job_id]) == [[job_id, "succeeded", "msgpack", None]]


def test_the_error_of_an_ignored_result_is_kept(broker: Broker) -> None:
    """As long as the failed job, whatever the time to live of results."""
    error = encode_error(RemoteError("builtins.ValueError", "no"))
    job_id = run(
        broker, "ignore-result,result-ttl:1", kind=OutcomeKind.FAILED, result=error,
        content_type="error",
    )  # fmt: skip
    broker.wait(10.0)
    assert broker.call("get", ids=[job_id]) == [[job_id, "failed", "error", error]]


def call_get(broker: Broker, peer: bytes, ids: list[str]) -> None:
    """Send a ``get`` call of a peer, without a tick."""
    broker.put(peer, Call(broker.new_id(), "get", pack({"ids": ids})))


def test_many_large_results_are_read_in_several_turns_in_the_order_of_the_ends(
    tmp_path: Path,
) -> None:
    """A tick reads a quarter of the bytes that may wait for a peer."""
    broker = Broker(tmp_path, Limits(max_unsent_bytes=4 * MIB))
    ids = []
    for _ in range(6):
        ids.append(run(broker, result=b"r" * (MIB // 2)))
        broker.clock.time += 0.01
    turns = []
    call_get(broker, b"c", [*ids[::2], *ids[1::2], "nobody"])
    while broker.core.waiters.lookups.timeout < 1.0 or not turns:
        broker.core.decide(broker.clock.now())
        entries, settle = broker.core.take_batch()
        broker.store.submit(entries)
        [write_results] = broker.store.finished()
        settle(write_results)
        replies = [decode(message.frames) for message in broker.core.take_deferred_sends()]
        turns.append(
            [row[0] for m in replies if isinstance(m, Reply) for row in unpack(m.result, "rows")]
        )
    assert [answer_row for turn in turns for answer_row in turn] == ["nobody", *ids]
    assert max(map(len, turns)) <= 3
    assert broker.core.state.waiters == {}
    broker.close()


def test_for_a_peer_that_does_not_read_nothing_more_is_read(broker: Broker) -> None:
    """Neither requested results nor those of jobs that end meanwhile; other peers are served."""
    done, later = run(broker, result=b"r" * MIB), broker.submit()[0]
    waiting = {b"lazy": 40 * MIB}
    broker.core.waiters.lookups.unread = lambda key: waiting.get(key.identity, 0)
    for peer in (b"lazy", b"c"):
        call_get(broker, peer, [done, later])
    broker.ready(b"worker", 1, received=1)
    broker.answer(b"worker", broker.dispatched[-1], [row(result=b"s" * MIB)])
    assert [answer_row[0] for answer_row in answers(broker, b"c")] == [done, later]
    assert answers(broker, b"lazy") == []
    assert broker.core.next_tick(broker.clock.now()) < broker.clock.now() + 0.1
    waiting.clear()
    broker.tick()
    assert [(answer_row[0], len(answer_row[3])) for answer_row in answers(broker, b"lazy")] == [
        (done, MIB), (later, MIB),
    ]  # fmt: skip
    assert broker.core.state.waiters == {}


def test_what_was_asked_for_and_forgotten_is_not_read(broker: Broker) -> None:
    done = run(broker, result=b"r" * MIB)
    broker.core.waiters.lookups.unread = lambda _: 40 * MIB
    broker.tell(b"lazy", Call("7", "get", pack({"ids": [done]})))
    broker.tell(b"lazy", Call("8", "forget", pack({"call": "7"})))
    broker.core.waiters.lookups.unread = lambda _: 0
    broker.tick()
    assert answers(broker, b"lazy") == []
    assert broker.core.waiters.lookups.timeout > 1.0


def test_a_reply_that_was_asked_for_is_not_read_for_who_has_gone(broker: Broker) -> None:
    """Although the connection exists, and many bytes wait in it."""
    done = run(broker, result=b"r" * MIB)
    lookups = broker.core.waiters.lookups
    lookups.unread = lambda _: 40 * MIB
    broker.submit(done, headers="reply-requested", client=b"lazy")
    assert lookups.timeout < 1.0
    [peer] = [peer for key, peer in broker.core.state.peers.items() if key.identity == b"lazy"]
    broker.core.sessions.drop(peer)
    assert lookups.timeout > 1.0


def test_one_result_that_is_asked_for_often_is_answered_in_several_turns(broker: Broker) -> None:
    """It is read once per tick, but each answer is a message."""
    done = run(broker, result=b"r" * (4 * MIB))
    for _ in range(10):
        call_get(broker, b"c", [done])
    broker.core.decide(broker.clock.now())
    entries, settle = broker.core.take_batch()
    broker.store.submit(entries)
    settle(broker.store.finished()[0])
    assert len(broker.core.take_deferred_sends()) == 2
    broker.tick()
    assert len(answers(broker, b"c")) == 8


def test_calls_that_are_repeated_by_a_peer_that_does_not_read_take_no_memory(
    broker: Broker,
) -> None:
    """A call with the message id of an earlier one replaces that."""
    done = run(broker, result=b"r" * MIB)
    broker.core.waiters.lookups.unread = lambda _: 40 * MIB
    for number in range(100):
        ids = [f"{number}.{index}" for index in range(100)]
        broker.tell(b"lazy", Call("7", "get", pack({"ids": [*ids, done]})))
    broker.core.waiters.lookups.unread = lambda _: 0
    broker.tick()
    rows = answers(broker, b"lazy")
    assert len(rows) == 101
    assert {row[0].partition(".")[0] for row in rows if row[0] != done} == {"99"}
