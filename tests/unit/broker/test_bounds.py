"""Limits of the broker's core: each refuses external input with an error."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from eventmq.broker.limits import Limits
from eventmq.broker.peers import Key
from eventmq.errors import QueueFull
from eventmq.job import OutcomeKind
from eventmq.wire.batches import encode_batch, pack
from eventmq.wire.commands import (
    Ack,
    Call,
    Error,
    Heartbeat,
    Inform,
    Kbai,
    Publish,
    Ready,
    Reply,
    Request,
)
from eventmq.wire.features import Features
from tests.support.broker_harness import TASK, Broker, chunks, row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    made: list[Broker] = []

    def maker(**limits: Any) -> Broker:
        made.append(Broker(tmp_path / str(len(made)), Limits(**limits)))
        return made[-1]

    yield maker
    for broker in made:
        broker.close()


@pytest.fixture
def broker(make: Callable[..., Broker]) -> Broker:
    return make()


def code_of(messages: list[Any]) -> str:
    [error] = messages
    assert isinstance(error, Error)
    return error.code


LONG = "x" * 256


@pytest.mark.parametrize(
    "message",
    [
        Request(LONG, "q", "", b""),
        Request("1", LONG, "", b""),
        Request("1", "q", "x" * 65_537, b""),
        Request("1", "q", "", b"x" * 2001),
        Request("1", "q", "batch:1", b"x" * 2001),
        Call(LONG, "ping", b"\x80"),
        Publish("1", LONG, None, b""),
        Inform("1", "", "client", Features(session=LONG).format()),
        Inform("1", "", "client", Features(name=LONG).format()),
        Inform("1", "", "worker", "x" * 3001),
        Inform("1", "x" * 3001, "worker"),
        Inform("1", f'[[1, "q"], [1, "{LONG}"]]', "worker"),
        Request("1", "q", f"task:{'x' * 1025},content-type:msgpack", b""),
        Request("1", "q", f"{TASK},unique:{'x' * 1025}", b""),
        Request("1", "q", f"{TASK},limit-key:{'x' * 1025}", b""),
        Request("1", "q", f"{TASK},limit-key:{quote('€' * 342)}", b""),
    ],
)
def test_what_is_too_long_is_refused_as_too_large(
    make: Callable[..., Broker], message: Any
) -> None:
    """Frames, ids, names and headers are limited."""
    assert code_of(make(max_frame=2000, max_inform=3000).tell(b"c", message)) == "too-large"


def test_a_batch_is_bounded_in_jobs(make: Callable[..., Broker]) -> None:
    """However small they are."""
    body = encode_batch([("q", TASK)], [(str(i), 0, b"") for i in range(3)])
    broker = make(max_batch=2)
    assert code_of(broker.tell(b"c", Request("1", "", "batch:3", body))) == "too-many"
    assert broker.call("queues") == []


def test_a_batch_with_a_long_queue_name_is_refused_whole(broker: Broker) -> None:
    body = encode_batch([("q", TASK), (LONG, TASK)], [("a", 0, b""), ("b", 1, b"")])
    assert code_of(broker.tell(b"c", Request("1", "", "batch:2", body))) == "too-large"


def test_a_batch_with_a_legacy_job_that_is_no_text_is_refused_whole(broker: Broker) -> None:
    """Legacy workers read nothing else."""
    body = encode_batch([("q", TASK), ("q", "")], [("a", 0, b"\xff"), ("b", 1, b"\xff")])
    assert code_of(broker.tell(b"c", Request("1", "", "batch:2", body))) == "bad-body"
    assert broker.call("queues") == []


def test_queues_are_bounded(make: Callable[..., Broker]) -> None:
    broker = make(max_queues=1)
    broker.submit(queue="a")
    _, refused = broker.submit(queue="b")
    assert code_of(refused) == "queue-full"


def test_queues_of_one_worker_are_bounded(make: Callable[..., Broker]) -> None:
    broker = make(max_inform_queues=1)
    assert code_of(broker.tell(b"w", Inform("1", '[[1, "a"], [1, "b"]]', "worker"))) == "bad-queues"


def test_a_broker_can_refuse_queues_that_no_worker_served(make: Callable[..., Broker]) -> None:
    """legacy_queue_fallback = refuse."""
    broker = make(legacy_queue_fallback="refuse")
    _, refused = broker.submit(queue="b")
    assert code_of(refused) == "unknown-queue"
    broker.tell(b"w", Inform("1", '[[1, "b"]]', "worker"))
    _, [ack] = broker.submit(queue="b")
    assert isinstance(ack, Ack)


def test_waits_of_one_peer_are_bounded(make: Callable[..., Broker]) -> None:
    broker = make(max_waits=2)
    ids = [broker.submit()[0] for _ in range(3)]
    assert code_of(broker.tell(b"c", Call("1", "get", pack({"ids": ids})))) == "too-many"
    assert broker.tell(b"c", Call("1", "get", pack({"ids": ids[:2]}))) == []
    assert code_of(broker.tell(b"c", Call("2", "get", pack({"ids": ids[2:]})))) == "too-many"


def test_a_get_with_the_id_of_an_earlier_one_takes_its_place(broker: Broker) -> None:
    """The ids of the earlier call are forgotten, and no longer count."""
    first, second = broker.submit()[0], broker.submit()[0]
    for job_id in (first, second):
        broker.tell(b"c", Call("1", "get", pack({"ids": [job_id]})))
    assert list(broker.core.state.waiters) == [second]
    assert [p.waiting for k, p in broker.core.state.peers.items() if k.identity == b"c"] == [1]


def test_subscriptions_of_one_peer_are_bounded(make: Callable[..., Broker]) -> None:
    broker = make(max_subscriptions=1)
    broker.tell(b"c", Call("1", "subscribe", pack({"topics": ["a"]})))
    again = broker.tell(b"c", Call("2", "subscribe", pack({"topics": ["a"]})))
    assert code_of(again) == "too-many"


def test_owed_replies_are_bounded(make: Callable[..., Broker]) -> None:
    """More jobs get no REPLY, and are counted."""
    broker = make(max_replies=1)
    for _ in range(2):
        broker.submit(headers="reply-requested")
    assert broker.call("status")["counters"]["replies_dropped"] == 1
    assert broker.call("status")["replies_owed"] == 1


def test_a_refused_job_is_owed_no_reply(broker: Broker) -> None:
    """A failed commit leaves nothing in memory."""

    class Full:
        def submit(self, entries: object) -> None: ...

        def finished(self) -> list[object]:
            return [QueueFull("no space")]

    store, broker.store = broker.store, Full()
    _, refused = broker.submit(headers="reply-requested")
    broker.store = store
    assert code_of(refused) == "store-full"
    assert broker.call("status")["replies_owed"] == 0


def test_a_peer_with_too_many_bad_messages_is_logged_once(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """All are counted; the first one per peer is logged as a warning."""
    with caplog.at_level(logging.DEBUG, "eventmq.broker"):
        for n in range(5):
            broker.tell(b"eventmq1:one", Heartbeat(str(n), "1"))
        broker.tell(b"eventmq1:two", Heartbeat("1", "1"))
    assert [r.levelname for r in caplog.records] == ["WARNING", "WARNING"]
    assert broker.call("status")["counters"]["errors.inform-again"] == 6


# Sessions


def inform(broker: Broker, session: str, role: str = "worker") -> list[Any]:
    return broker.tell(b"w", Inform("1", "", role, Features(session=session).format()))


@pytest.mark.parametrize(("session", "role"), [("two", "worker"), ("one", "client")])
def test_a_connection_that_informs_as_another_gives_back_what_it_held(
    broker: Broker, session: str, role: str
) -> None:
    """A connection has one session: the former one ends."""
    broker.submit()
    broker.worker(b"w", "one")
    inform(broker, session, role)
    assert [row["session"] for row in broker.call("workers")] == (
        ["two"] if role == "worker" else []
    )
    assert broker.call("queues")[0]["running"] == 0
    if role == "worker":
        [(_, index)] = chunks(broker.ready(b"w", 1))
        assert index.entries[0].delivery == 2


def test_no_peer_can_take_the_session_of_a_legacy_worker(broker: Broker) -> None:
    """The broker makes the ids of these sessions."""
    broker.tell(b"p", Inform("1", "", "worker"))
    broker.tell(b"p", Ready("2"))
    [known] = broker.call("workers")
    assert code_of(inform(broker, known["session"])) == "bad-features"


@pytest.mark.parametrize(
    "outcome", ["", "chunk", "chunk:", "chunk:x", "chunk:\N{SUPERSCRIPT TWO}", "chunk:" + "9" * 99]
)
def test_a_reply_of_a_worker_of_ours_names_its_chunk(broker: Broker, outcome: str) -> None:
    """OUTCOME is chunk:NUMBER."""
    broker.worker()
    got = broker.tell(b"worker", Reply("1", b"\x90", "x", outcome))
    assert code_of(got) == "bad-outcome"


@pytest.mark.parametrize("field", ["started", "run_time", "countdown"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e12])
def test_times_of_outcomes_are_times(broker: Broker, field: str, value: float) -> None:
    """Other values would stop the store, or never become due."""
    job_id, _ = broker.submit()
    [(chunk, _)] = chunks(broker.worker())
    rows = [row(kind=OutcomeKind.RETRY, **{field: value})]
    assert code_of(broker.answer(b"worker", chunk, rows)) == "bad-body"
    assert broker.call("state", ids=[job_id]) == [[job_id, "running"]]


@pytest.mark.parametrize("cursor", ["jobs:\N{SUPERSCRIPT TWO}", "jobs:" + "9" * 40, ":", "x:y"])
def test_a_cursor_that_no_answer_had_begins_at_the_beginning(broker: Broker, cursor: str) -> None:
    job_id, _ = broker.submit()
    listed = broker.call("jobs", cursor=cursor)
    assert [job["id"] for job in listed["jobs"]] == [job_id]


def test_a_peer_that_left_is_a_stranger(broker: Broker) -> None:
    """KBAI removes all references to the peer."""
    inform(broker, "one", "client")
    broker.tell(b"w", Kbai("2"))
    assert broker.tell(b"w", Heartbeat("3", "1")) == []
    assert not broker.core.state.peers[Key("main", b"w")].role
