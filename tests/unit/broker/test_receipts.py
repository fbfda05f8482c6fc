"""Receipts and REPLYs of repeated and refused REQUESTs, and of those in the last commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eventmq.broker.grants import Grant
from eventmq.broker.limits import Limits
from eventmq.broker.peers import Key
from eventmq.errors import QueueFull
from eventmq.store.writes import Admit, WriteResult
from eventmq.wire.batches import decode_exceptions, encode_batch, pack, unpack
from eventmq.wire.commands import Ack, Call, Disconnect, Error, Inform, Kbai, Reply, Request, decode
from eventmq.wire.features import EXTENSIONS, Features
from tests.support.broker_harness import TASK, Broker, chunks, row
from tests.support.graph_jobs import A, B
from tests.support.graph_jobs import request as graph_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from eventmq.wire.commands import Command


def inform(client: bytes, *extensions: str) -> Inform:
    features = Features(extensions=extensions or EXTENSIONS, session=client.decode())
    return Inform("1", "", "client", features.format())


def request(job_id: str, wish: str = "late-ack") -> Request:
    return Request(job_id, "default", f"{TASK},{wish}", b"x")


def acks(messages: Sequence[Command]) -> list[tuple[str, bytes | None]]:
    return [(m.acked, m.extra) for m in messages if isinstance(m, Ack)]


def codes(messages: Sequence[Command]) -> list[str]:
    return [m.code for m in messages if isinstance(m, Error)]


def ends(messages: Sequence[Command]) -> list[object]:
    return [unpack(m.result, "row") for m in messages if isinstance(m, Reply)]


def accepted(broker: Broker, client: bytes = b"client") -> str:
    """Submit a job, and return its id after its receipt."""
    broker.tell(client, inform(client))
    job_id = broker.new_id()
    broker.tell(client, request(job_id))
    broker.wait(2.0)
    assert [(job_id, None)] == acks(broker.took(client))
    return job_id


def run(broker: Broker) -> None:
    """Run the one job."""
    [(chunk, _)] = chunks(broker.worker())
    broker.answer(b"worker", chunk, [row(result=b"r", content_type="msgpack")])


class FullDisk:
    """A store whose commits all fail."""

    def submit(self, writes: object) -> None: ...

    def finished(self) -> list[object]:
        return [QueueFull("no space")]


class NearlyFullDisk:
    """A store at its disk reserve, which accepts no new jobs."""

    def submit(self, writes: Sequence[object]) -> None:
        self.writes = writes

    def finished(self) -> list[list[object]]:
        full = WriteResult("full", "the disk is nearly full")
        return [[dict.fromkeys(range(len(w.jobs)), full) for w in self.writes if type(w) is Admit]]


# Peers that change what they read


def test_a_peer_that_reads_rows_no_more_gets_the_receipt_of_a_cancelled_job(broker: Broker) -> None:
    """All in one tick: the REPLY is sent before the receipt is due."""
    broker.tell(b"client", inform(b"client"))
    job_id = broker.new_id()
    broker.tell(b"client", request(job_id))
    broker.wait(2.0)
    broker.took(b"client")
    broker.put(b"client", Call("k", "cancel", pack({"ids": [job_id], "reason": ""})))
    broker.put(b"client", request(job_id))
    broker.put(b"client", inform(b"client", "call"))
    broker.tick()
    assert (job_id, None) in acks(broker.took(b"client"))
    broker.wait(3.0)
    assert broker.core.waiters.next_receipt is None
    assert acks(broker.took(b"client")) == []


def test_a_peer_that_reads_rows_no_more_gets_the_receipt_where_no_reply_is_owed(
    tmp_path: Path,
) -> None:
    broker = Broker(tmp_path, limits=Limits(max_replies=0))
    broker.tell(b"client", inform(b"client"))
    job_id = broker.new_id()
    broker.put(b"client", request(job_id))
    broker.put(b"client", inform(b"client", "call"))
    broker.tick()
    assert (job_id, None) in acks(broker.took(b"client"))
    broker.wait(3.0)
    assert acks(broker.took(b"client")) == []
    broker.close()


def test_a_receipt_of_a_peer_that_has_gone_is_not_sent(broker: Broker) -> None:
    broker.core.waiters.expect_receipt("gone")
    broker.wait(3.0)
    assert broker.core.waiters.next_receipt is None
    assert broker.sent == {}


# Refused REQUESTs


def refuse_by_commit(broker: Broker, client: bytes, message: Request) -> Sequence[Command]:
    store, broker.store = broker.store, FullDisk()
    got = broker.tell(client, message)
    broker.store = store
    broker.wait(5.0)  # dispatch is held after a full disk
    return got


def refuse_by_reserve(broker: Broker, client: bytes, message: Request) -> Sequence[Command]:
    store, broker.store = broker.store, NearlyFullDisk()
    got = broker.tell(client, message)
    broker.store = store
    return got


def refuse_without_room(broker: Broker, client: bytes, message: Request) -> Sequence[Command]:
    """Submit it without guarantee, while the stored job with its id is not in memory."""
    stored = broker.core.state.jobs.pop(message.id)
    headers = f"{message.headers},guarantee:False"
    got = broker.tell(client, Request(message.id, message.queue, headers, message.body))
    broker.core.state.jobs[message.id] = stored
    return got


@pytest.mark.parametrize("second", [b"client", b"second"])
@pytest.mark.parametrize(
    ("refuse", "code"),
    [
        (refuse_by_commit, "store-full"),
        (refuse_by_reserve, "store-full"),
        (refuse_without_room, "queue-full"),
    ],
)
def test_a_refused_second_request_leaves_the_reply_of_the_first(
    tmp_path: Path,
    refuse: Callable[[Broker, bytes, Request], Sequence[Command]],
    code: str,
    second: bytes,
) -> None:
    broker = Broker(tmp_path, limits=Limits(transient_jobs=0))
    job_id = accepted(broker)
    broker.tell(second, inform(second))
    broker.took(b"client")
    assert [code] == codes(refuse(broker, second, request(job_id)))
    run(broker)
    assert [[job_id, "succeeded", "msgpack", b"r"]] == ends(broker.took(b"client"))
    assert broker.call("status")["replies_owed"] == 0
    broker.close()


def test_a_refused_batch_leaves_the_reply_for_a_job_with_one_of_its_ids(broker: Broker) -> None:
    job_id = accepted(broker)
    batch = encode_batch([("default", TASK)], [(job_id, 0, b"x")])
    refuse_by_commit(broker, b"second", Request("batch", "", "batch:1", batch))
    run(broker)
    assert [[job_id, "succeeded", "msgpack", b"r"]] == ends(broker.took(b"client"))


def test_a_refused_second_request_gives_the_reply_back_to_a_peer_without_rows(
    broker: Broker,
) -> None:
    """If accepted, the second peer would have got the REPLY."""
    job_id, _ = broker.submit(client=b"old", headers="reply-requested")
    broker.tell(b"second", inform(b"second"))
    assert ["store-full"] == codes(refuse_by_commit(broker, b"second", request(job_id)))
    run(broker)
    assert [job_id] == [m.request for m in broker.took(b"old") if isinstance(m, Reply)]
    assert ends(broker.took(b"second")) == []
    peers = broker.core.state.peers.values()
    assert [peer.owed for peer in peers if peer.key.identity in {b"old", b"second"}] == [0, 0]


def test_a_refused_second_request_gives_no_reply_to_a_peer_that_has_gone(broker: Broker) -> None:
    job_id, _ = broker.submit(client=b"old", headers="reply-requested")
    broker.tell(b"second", inform(b"second"))
    broker.put(b"second", request(job_id))
    broker.put(b"old", Kbai("2"))
    store, broker.store = broker.store, FullDisk()
    broker.tick()
    broker.store = store
    assert ["store-full"] == codes(broker.took(b"second"))
    assert broker.call("status")["replies_owed"] == 0


@pytest.mark.parametrize("guarantee", ["", ",guarantee:False"])
def test_a_request_with_the_id_of_another_owner_is_owed_no_reply(
    broker: Broker, guarantee: str
) -> None:
    for name in ("alice", "bob"):
        client = name.encode()
        broker.tell(client, inform(client))
        grant = Grant(name, name, frozenset({"client"}))
        broker.core.state.peers[Key("main", client)].grant = grant
    job_id = broker.new_id()
    got = broker.tell(b"alice", request(job_id, f"ack-requested{guarantee}"))
    assert [(job_id, None)] == acks(got)
    assert ["not-allowed"] == codes(broker.tell(b"bob", request(job_id, f"late-ack{guarantee}")))
    assert {} == broker.core.state.reply_to
    run(broker)
    assert ends(broker.took(b"bob")) == []


@pytest.mark.parametrize("refuse", [refuse_by_commit, refuse_by_reserve])
def test_two_refused_requests_of_one_tick_leave_no_reply(
    broker: Broker, refuse: Callable[[Broker, bytes, Request], Sequence[Command]]
) -> None:
    broker.tell(b"client", inform(b"client"))
    message = request(broker.new_id())
    broker.put(b"client", message)
    assert ["store-full"] * 2 == codes(refuse(broker, b"client", message))
    assert broker.call("status")["replies_owed"] == 0
    broker.wait(3.0)
    assert acks(broker.took(b"client")) == []


def test_a_repeated_request_with_a_receipt_at_once_gets_no_late_one(broker: Broker) -> None:
    broker.tell(b"client", inform(b"client"))
    job_id = broker.new_id()
    broker.tell(b"client", request(job_id))
    got = broker.tell(b"client", request(job_id, "ack-requested,reply-requested"))
    assert [(job_id, None)] == acks(got)
    broker.wait(3.0)
    assert acks(broker.took(b"client")) == []


def test_a_repeated_request_does_not_hold_up_the_receipts_of_others(broker: Broker) -> None:
    broker.tell(b"client", inform(b"client"))
    first, other = broker.new_id(), broker.new_id()
    broker.tell(b"client", request(first))
    broker.wait(0.3)
    broker.tell(b"client", request(other))
    broker.wait(0.3)
    broker.tell(b"client", request(first))
    broker.wait(0.8)
    assert [(other, None)] == acks(broker.took(b"client"))
    broker.wait(0.5)
    assert [(first, None)] == acks(broker.took(b"client"))


# The last commit


def commit(broker: Broker) -> list[Command]:
    """Commit the tick as a stopping runner does; return the messages that are sent then."""
    writes, settle = broker.core.take_batch()
    broker.store.submit(writes)
    for write_results in broker.store.finished():
        settle(write_results)
    return [decode(message.frames) for message in broker.core.take_deferred_sends()]


@pytest.mark.parametrize("wish", ["late-ack", "ack-requested,reply-requested"])
def test_the_receipt_of_a_job_of_the_last_commit_is_sent(broker: Broker, wish: str) -> None:
    """The broker has no later tick for late receipts."""
    broker.tell(b"client", inform(b"client"))
    job_id = broker.new_id()
    broker.put(b"client", request(job_id, wish))
    broker.core.decide(broker.now())
    broker.core.close(broker.now())
    assert [(job_id, None)] == acks(commit(broker))
    assert broker.core.waiters.next_receipt is None


def test_the_receipt_of_a_job_before_a_disconnect_is_sent_with_its_commit(broker: Broker) -> None:
    """A broker without running jobs ends after that."""
    broker.tell(b"client", inform(b"client"))
    job_id = broker.new_id()
    broker.put(b"client", request(job_id))
    broker.put(b"admin", Disconnect("d"), "admin")
    broker.tick()
    assert [(job_id, None)] == acks(broker.took(b"client"))


# Repeated REQUESTs to a full queue


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Broker]:
    """A broker whose queues accept one job."""
    broker = Broker(tmp_path, limits=Limits(max_queue_length=1))
    broker.tell(b"client", inform(b"client"))
    yield broker
    broker.close()


@pytest.mark.parametrize("wish", ["", "guarantee:False", "reply-requested,countdown:9"])
@pytest.mark.parametrize("again", [b"client", b"other"])
def test_a_repeated_request_gets_its_receipt_from_a_full_queue(
    full: Broker, wish: str, again: bytes
) -> None:
    """Otherwise its caller would take an accepted job for a refused one."""
    job_id, got = full.submit(headers=wish)
    assert [job_id] == [acked for acked, _ in acks(got)]
    _, got = full.submit(job_id, headers=wish, client=again)
    assert ([job_id], []) == ([acked for acked, _ in acks(got)], codes(got))
    _, got = full.submit(headers=wish)
    assert ["queue-full"] == codes(got)
    assert full.core.state.queues["default"].length == 1


def test_a_repeated_request_of_a_leased_job_gets_its_receipt_from_a_full_queue(
    full: Broker,
) -> None:
    job_id, _ = full.submit()
    full.worker()
    assert job_id in full.core.state.running
    full.submit()
    _, got = full.submit(job_id)
    assert ([(job_id, None)], []) == (acks(got), codes(got))


def test_a_repeated_request_of_one_tick_gets_its_receipt_from_a_full_queue(full: Broker) -> None:
    """The broker collects the ids of a commit anew in each tick."""
    full.put(b"client", request("late", "ack-requested"))  # fills the queue
    for _ in range(2):
        full.put(b"client", request("late", "ack-requested"))
        full.put(b"client", request("other", "ack-requested"))
    full.tick()
    got = full.took(b"client")
    assert ([("late", None)] * 3, ["queue-full"] * 2) == (acks(got), codes(got))
    full.call("cancel", ids=["late"])
    for job_id in ("other", "third", "other", "third"):
        full.put(b"client", request(job_id, "ack-requested"))
    full.tick()
    got = full.took(b"client")
    assert ([("other", None)] * 2, ["queue-full"] * 2) == (acks(got), codes(got))


def test_a_repeated_batch_is_refused_only_new_jobs_of_a_full_queue(full: Broker) -> None:
    job_id, new = full.new_id(), full.new_id()
    full.submit_batch([job_id])
    [ack] = full.submit_batch([job_id, new])
    assert isinstance(ack, Ack)
    assert ack.extra is not None
    assert {1: "queue-full"} == {i: code for i, (code, _) in decode_exceptions(ack.extra).items()}


def test_a_repeated_graph_gets_its_receipt_from_a_full_queue(tmp_path: Path) -> None:
    broker = Broker(tmp_path, limits=Limits(max_queue_length=2))
    ids, message = graph_request(broker, A | B)
    for _ in range(2):
        assert [(ids[0], None)] == acks(broker.tell(b"client", message))
    for _ in range(2):  # in the same tick as a new one
        broker.put(b"client", message)
    broker.put(b"client", graph_request(broker, A | B)[1])
    broker.tick()
    got = broker.took(b"client")
    assert ([(ids[0], None)] * 2, ["queue-full"]) == (acks(got), codes(got))
    broker.close()


def test_a_repeated_request_begins_no_queue_that_is_one_too_many(tmp_path: Path) -> None:
    broker = Broker(tmp_path, limits=Limits(max_queues=1))
    job_id, _ = broker.submit()
    _, got = broker.submit(job_id, queue="another")
    assert ["queue-full"] == codes(got)
    assert ["default"] == [*broker.core.state.queues]
    broker.close()


def test_a_stored_job_beside_one_without_guarantee_needs_a_place(full: Broker) -> None:
    """It is another job with the same id."""
    job_id, _ = full.submit(headers="guarantee:False")
    _, got = full.submit(job_id)
    assert ["queue-full"] == codes(got)
