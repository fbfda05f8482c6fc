"""Inputs too large for a REQUEST: only the session that holds the job reads them, in pages."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.broker.grants import Grant
from eventmq.broker.limits import Limits
from eventmq.errors import ProtocolError
from eventmq.graph import PAGED, Group, Signature, flags_of
from eventmq.job import OutcomeKind
from eventmq.wire.batches import decode_chunk, pack, unpack
from eventmq.wire.commands import Call, Error, Inform, Reply, Request
from eventmq.wire.features import EXTENSIONS, Features
from eventmq.wire.results import decode_error
from tests.support.broker_harness import Broker, row
from tests.support.graph_jobs import states, submit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MEMBERS = 40
A, B = map(Signature, "ab")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """Return a broker with a chord whose callback waits for a worker; results have 3 kB."""
    broker = Broker(tmp_path, Limits(max_frame=70_000))
    broker.worker(b"w", "first", window=0)
    broker.ids = submit(broker, Group((A,) * MEMBERS) | B)  # type: ignore[attr-defined]
    received = 0
    while "q" in states(broker, broker.ids):  # type: ignore[attr-defined]
        broker.ready(b"w", 1, received=received)
        chunk = broker.dispatched[-1]
        received += 1
        broker.ready(b"w", 0, received=received, held=(received,))
        for position in range(len(decode_chunk(chunk.body).entries)):
            broker.answer(b"w", chunk, [row(position, result=b"x" * 3000)])
        if states(broker, broker.ids)[:MEMBERS] == "s" * MEMBERS:  # type: ignore[attr-defined]
            break
    broker.dispatched.clear()
    broker.received = received  # type: ignore[attr-defined]
    yield broker
    broker.close()


def dispatch(broker: Any) -> tuple[str, int, Request]:
    """Send the callback to the worker; return its id and delivery, and the chunk."""
    if not broker.dispatched:
        broker.ready(b"w", 9, received=broker.received)
    chunk = broker.dispatched[-1]
    index = decode_chunk(chunk.body)
    [entry] = index.entries
    assert PAGED in flags_of(index.templates[entry.template])
    return entry.id, entry.delivery, chunk


def ask(broker: Broker, identity: bytes, **arguments: Any) -> Any:
    """Make the call; return the page, or the code of the error."""
    [answer] = broker.tell(identity, Call(broker.new_id(), "inputs", pack(arguments)))
    assert isinstance(answer, Reply | Error)
    return answer.code if isinstance(answer, Error) else unpack(answer.result, "a page")


def test_the_callback_comes_with_ids_and_its_worker_reads_the_pages(broker: Any) -> None:
    job, delivery, chunk = dispatch(broker)
    index = decode_chunk(chunk.body)
    _, value = unpack(index.payload(chunk.body, index.entries[0]), "a body")
    ids = unpack(value, "an input")
    assert ids == broker.ids[:MEMBERS]
    rows: list[Any] = []
    cursor, pages = 0, 0
    while pages == 0 or cursor:
        page = ask(broker, b"w", id=job, delivery=delivery, cursor=cursor)
        assert sum(len(data) for _, _, data in page["rows"]) <= 35_000
        rows, cursor, pages = rows + page["rows"], page["next"], pages + 1
    assert [each[0] for each in rows] == ids
    assert {each[2] for each in rows} == {b"x" * 3000}
    assert pages == 4
    broker.answer(b"w", chunk, [row(0)])
    assert states(broker, broker.ids) == "s" * (MEMBERS + 1)
    assert ask(broker, b"w", id=job, delivery=delivery) == "not-held"


def test_no_other_session_may_read_them(broker: Any) -> None:
    """A session without the lease, another delivery, a client, a peer without INFORM."""
    job, delivery, _ = dispatch(broker)
    broker.worker(b"other", "second")
    assert ask(broker, b"other", id=job, delivery=delivery) == "not-held"
    assert ask(broker, b"client", id=job, delivery=delivery) == "not-held"
    assert ask(broker, b"stranger", id=job, delivery=delivery) == "not-held"
    assert ask(broker, b"w", id=job, delivery=delivery + 1) == "not-held"
    assert ask(broker, b"w", id=broker.ids[0], delivery=1) == "not-held"
    assert ask(broker, b"w", id="nobody", delivery=1) == "not-held"


@pytest.mark.parametrize(
    "arguments",
    [{"id": 5}, {"delivery": "1"}, {"delivery": -1}, {"cursor": -1}, {"cursor": True},
     {"cursor": 1 << 63}],
)  # fmt: skip
def test_arguments_are_checked(broker: Any, arguments: dict[str, Any]) -> None:
    job, delivery, _ = dispatch(broker)
    call_arguments = {"id": job, "delivery": delivery, **arguments}
    assert ask(broker, b"w", **call_arguments) == "bad-arguments"


def test_a_cursor_beyond_the_end_gives_nothing(broker: Any) -> None:
    job, delivery, _ = dispatch(broker)
    page = ask(broker, b"w", id=job, delivery=delivery, cursor=(1 << 63) - 1)
    assert page == {"rows": [], "next": 0}


def test_a_job_without_pages_says_so(broker: Any) -> None:
    """Also a job whose letter was set by a client."""
    broker.ready(b"w", 0, received=broker.received)
    job, _ = broker.submit(headers="graph:ip")
    broker.ready(b"w", 9, received=broker.received)
    assert ask(broker, b"w", id=job, delivery=1) == "inputs-gone"


def test_another_worker_reads_them_when_the_first_has_died(broker: Any) -> None:
    """The first worker may not read them any more."""
    job, delivery, _ = dispatch(broker)
    broker.worker(b"w2", "second", window=0)
    broker.wait(broker.limits.heartbeat_timeout + 1.0)
    broker.worker(b"w2", "second", window=1)
    again = decode_chunk(broker.dispatched[-1].body).entries[0]
    assert (again.id, again.delivery) == (job, delivery + 1)
    assert len(ask(broker, b"w2", id=job, delivery=delivery + 1)["rows"]) == 11
    broker.worker(b"w", "first", received=broker.received + 1)
    assert ask(broker, b"w", id=job, delivery=delivery) == "not-held"


def test_a_restarted_broker_goes_on_with_the_pages(broker: Any) -> None:
    """For the session that holds the job, after it has informed."""
    job, delivery, _ = dispatch(broker)
    held = broker.received + 1
    broker.crash()
    assert ask(broker, b"w", id=job, delivery=delivery) == "not-held"
    broker.worker(b"w", "first", received=held, held=(held,))
    assert len(ask(broker, b"w", id=job, delivery=delivery)["rows"]) == 11


def inform(broker: Broker, identity: bytes, session: str) -> None:
    """Inform as a worker of an older EventMQ."""
    known = tuple(name for name in EXTENSIONS if name != "inputs")
    text = replace(Features(session=session), extensions=known).format()
    broker.tell(identity, Inform(broker.new_id(), '[[10, "default"]]', "worker", text))


def test_a_worker_that_cannot_page_fails_the_job_where_no_worker_can(broker: Any) -> None:
    broker.core.sessions.end(broker.core.state.sessions["first"])
    inform(broker, b"old", "old")
    broker.ready(b"old", 5)
    assert states(broker, broker.ids)[-1] == "f"
    error = decode_error(broker.call("info", id=broker.ids[-1])["error"])
    assert error.type == "eventmq.errors.ResultTooLarge"
    assert "no worker of the queue knows the extension 'inputs'" in error.message
    assert broker.dispatched == []


def test_a_worker_that_cannot_page_leaves_the_job_to_one_that_can(broker: Any) -> None:
    inform(broker, b"old", "old")
    broker.ready(b"old", 5)
    assert states(broker, broker.ids)[-1] == "q"
    other, _ = broker.submit()
    assert [entry.id for entry in decode_chunk(broker.dispatched[-1].body).entries] == [other]
    broker.dispatched.clear()
    job, _, _ = dispatch(broker)
    assert job == broker.ids[-1]


def test_a_job_that_cannot_be_paged_fails_as_before(tmp_path: Path) -> None:
    """The bytes that one job takes are limited."""
    broker = Broker(tmp_path, Limits(max_frame=70_000, max_input_bytes=5000))
    ids = submit(broker, Group((A, A)) | B)
    broker.worker(window=9)
    for chunk in list(broker.dispatched):
        positions = range(len(decode_chunk(chunk.body).entries))
        rows = [row(position, int(OutcomeKind.SUCCEEDED), b"x" * 3000) for position in positions]
        broker.answer(b"worker", chunk, rows)
    assert states(broker, ids) == "ssf"
    error = decode_error(broker.call("info", id=ids[2])["error"])
    assert error.type == "eventmq.errors.ResultTooLarge"
    assert "from the setting max_input_bytes" in error.message
    broker.close()


def test_nothing_travels_behind_a_job_that_has_to_be_fetched_for(broker: Any) -> None:
    for _ in range(5):
        broker.submit()
    broker.ready(b"w", 9, received=broker.received)
    sizes = [len(decode_chunk(chunk.body).entries) for chunk in broker.dispatched]
    assert (sizes[0], sum(sizes)) == (1, 6)


@pytest.mark.parametrize(
    ("role", "allowed"),
    [("worker", True), ("gateway", True), ("client", False), ("admin", False)],
)
def test_a_key_needs_the_role_of_a_worker(role: str, allowed: bool) -> None:
    grant = Grant("k", "somebody", frozenset({role}))
    if allowed:
        grant.check_call("inputs")
    else:
        with pytest.raises(ProtocolError, match="needs the role gateway or worker"):
            grant.check_call("inputs")
