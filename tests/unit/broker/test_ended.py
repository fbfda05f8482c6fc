"""Extension ``ended``: the row of an ended job for the peer that requested a REPLY."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eventmq.broker.limits import Limits
from eventmq.broker.waiters import LATE_RECEIPT
from eventmq.job import OutcomeKind
from eventmq.wire.batches import unpack
from eventmq.wire.commands import Ack, Inform, Kbai, Reply, Request, decode
from eventmq.wire.features import EXTENSIONS, Features
from eventmq.wire.results import NO_REPLY
from tests.support.broker_harness import TASK, Broker, chunks, row

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from eventmq.wire.commands import Command


def inform(broker: Broker, *extensions: str) -> None:
    features = Features(extensions=extensions or EXTENSIONS, session="c")
    broker.tell(b"client", Inform("1", "", "client", features.format()))


def ends(messages: Sequence[Command]) -> list[tuple[str | None, object]]:
    return [
        (m.request, unpack(m.result, "row"))
        for m in messages
        if isinstance(m, Reply) and m.outcome == "ended"
    ]


def test_the_end_comes_without_a_get_behind_the_receipt(broker: Broker) -> None:
    """It has the row that ``get`` would answer."""
    inform(broker)
    job_id, got = broker.submit(headers="reply-requested")
    assert [(type(m), m.acked, m.extra) for m in got if isinstance(m, Ack)] == [(Ack, job_id, None)]
    assert ends(got) == []
    [(chunk, _)] = chunks(broker.worker())
    broker.answer(b"worker", chunk, [row(result=b"r", content_type="msgpack")])
    expected = [job_id, "succeeded", "msgpack", b"r"]
    assert [(job_id, expected)] == ends(broker.took(b"client"))
    assert broker.call("get", ids=[job_id]) == [expected]
    assert broker.call("status")["replies_owed"] == 0


def test_a_failed_job_ends_with_its_error(broker: Broker) -> None:
    inform(broker)
    job_id, _ = broker.submit(headers="reply-requested")
    [(chunk, _)] = chunks(broker.worker())
    failed = row(kind=OutcomeKind.FAILED, result=b"e", content_type="error")
    broker.answer(b"worker", chunk, [failed])
    assert [(job_id, [job_id, "failed", "error", b"e"])] == ends(broker.took(b"client"))


def test_a_result_that_is_not_kept_is_not_sent(broker: Broker) -> None:
    """The REPLY has no more than ``get`` would answer."""
    inform(broker)
    job_id, _ = broker.submit(headers="reply-requested,ignore-result")
    [(chunk, _)] = chunks(broker.worker())
    broker.answer(b"worker", chunk, [row(result=b"r", content_type="msgpack")])
    assert [(job_id, [job_id, "succeeded", "msgpack", None])] == ends(broker.took(b"client"))


def test_a_cancelled_job_ends_too(broker: Broker) -> None:
    inform(broker)
    job_id, _ = broker.submit(headers="reply-requested")
    broker.call("cancel", client=b"other", ids=[job_id], reason="no")
    [(of, end)] = ends(broker.took(b"client"))
    assert (of, end[:2]) == (job_id, [job_id, "cancelled"])  # type: ignore[index]


def test_a_repeated_request_of_a_job_that_has_ended_gets_its_end(broker: Broker) -> None:
    """A client that missed both sends the same message again."""
    inform(broker)
    job_id, _ = broker.submit()
    [(chunk, _)] = chunks(broker.worker())
    broker.answer(b"worker", chunk, [row(result=b"r", content_type="msgpack")])
    _, got = broker.submit(job_id, headers="reply-requested")
    kinds = [type(m) for m in got]
    assert kinds == [Ack, Reply]
    assert [(job_id, [job_id, "succeeded", "msgpack", b"r"])] == ends(got)


def submit_late_ack(
    broker: Broker, job_id: str = "", client: bytes = b"client"
) -> tuple[str, list[Command]]:
    """Submit a job whose receipt may be late; return its id and the answers."""
    job_id = job_id or broker.new_id()
    got = broker.tell(client, Request(job_id, "default", f"{TASK},late-ack", b"x"))
    return job_id, list(got)


def acks(messages: Sequence[Command]) -> list[tuple[str, bytes | None]]:
    return [(m.acked, m.extra) for m in messages if isinstance(m, Ack)]


def test_the_end_is_the_receipt_where_it_comes_within_a_second(broker: Broker) -> None:
    inform(broker)
    job_id, got = submit_late_ack(broker)
    assert got == []
    [(chunk, _)] = chunks(broker.worker())
    broker.wait(0.9)
    assert acks(broker.took(b"client")) == []
    broker.answer(b"worker", chunk, [row(result=b"r", content_type="msgpack")])
    broker.wait(5.0)
    got = broker.took(b"client")
    assert [(job_id, [job_id, "succeeded", "msgpack", b"r"])] == ends(got)
    assert acks(got) == []
    assert broker.core.waiters.next_receipt is None


def test_a_receipt_comes_a_second_after_the_commit_and_the_end_behind_it(broker: Broker) -> None:
    """It shows the client that the broker works and the job takes long."""
    inform(broker)
    job_id, _ = submit_late_ack(broker)
    broker.wait(LATE_RECEIPT - 0.1)
    assert broker.core.next_tick(broker.now()) - broker.now() == pytest.approx(0.1, abs=1e-3)
    assert acks(broker.took(b"client")) == []
    broker.wait(0.2)
    assert [(job_id, None)] == acks(broker.took(b"client"))
    [(chunk, _)] = chunks(broker.worker())
    broker.answer(b"worker", chunk, [row(result=b"r", content_type="msgpack")])
    got = broker.took(b"client")
    assert [(job_id, [job_id, "succeeded", "msgpack", b"r"])] == ends(got)
    assert acks(got) == []


def test_receipts_are_sent_before_the_broker_goes_away(broker: Broker) -> None:
    """Otherwise the client would take the job for lost."""
    inform(broker)
    job_id, _ = submit_late_ack(broker)
    broker.core.close(broker.clock.now())
    sent = [decode(message.frames) for message in broker.core.take_deferred_sends()]
    assert [(job_id, None)] == acks(sent)


@pytest.mark.parametrize("wish", [",ack-requested", ",guarantee"])
def test_who_asks_for_a_receipt_too_gets_it_at_once(broker: Broker, wish: str) -> None:
    inform(broker)
    request = Request(broker.new_id(), "default", f"{TASK},late-ack{wish}", b"x")
    assert [(request.id, None)] == acks(broker.tell(b"client", request))


@pytest.mark.parametrize("header", ["late-ack", "reply-requested"])
def test_a_peer_that_reads_no_rows_gets_the_receipt_at_once(broker: Broker, header: str) -> None:
    request = Request(broker.new_id(), "default", f"{TASK},{header}", b"x")
    assert [(request.id, None)] == acks(broker.tell(b"old", request))


def test_a_repeated_request_gets_the_receipt_late_again(broker: Broker) -> None:
    """A client whose connection was lost repeats its REQUEST."""
    inform(broker)
    job_id, _ = submit_late_ack(broker)
    broker.wait(0.6)
    submit_late_ack(broker, job_id)
    broker.wait(0.6)
    assert acks(broker.took(b"client")) == []
    broker.wait(0.6)
    assert [(job_id, None)] == acks(broker.took(b"client"))


def test_of_two_clients_that_submit_one_id_the_second_is_told_to_ask(broker: Broker) -> None:
    """The first relies on the REPLY."""
    for client in (b"client", b"second"):
        features = Features(extensions=EXTENSIONS, session=client.decode())
        broker.tell(client, Inform("1", "", "client", features.format()))
    job_id, _ = submit_late_ack(broker)
    _, got = submit_late_ack(broker, job_id, b"second")
    assert [(job_id, NO_REPLY)] == acks(got)
    [(chunk, _)] = chunks(broker.worker())
    broker.answer(b"worker", chunk, [row(result=b"r", content_type="msgpack")])
    assert [(job_id, [job_id, "succeeded", "msgpack", b"r"])] == ends(broker.took(b"client"))
    assert ends(broker.took(b"second")) == []


def test_a_client_that_goes_away_leaves_nothing_behind(broker: Broker) -> None:
    inform(broker)
    submit_late_ack(broker)
    broker.tell(b"client", Kbai("2"))
    broker.wait(2.0)
    assert broker.core.waiters.next_receipt is None
    assert broker.call("status", client=b"other")["replies_owed"] == 0


def test_a_repeated_request_of_a_job_whose_outcome_is_gone_is_told_so(broker: Broker) -> None:
    """As with ``get``: the broker still knows the id, but not the outcome."""
    inform(broker)
    job_id, _ = submit_late_ack(broker)
    [(chunk, _)] = chunks(broker.worker())
    broker.answer(b"worker", chunk, [row(result=b"r", content_type="msgpack")])
    broker.took(b"client")
    answer = broker.core.waiters.lookups._answer
    broker.core.waiters.lookups._answer = lambda peer, call, ids, _: answer(peer, call, ids, {})
    _, got = submit_late_ack(broker, job_id)
    assert [(job_id, [job_id, "", "", None])] == ends(got)


def test_a_job_without_guarantee_ends_the_same_way(broker: Broker) -> None:
    inform(broker)
    job_id, _ = broker.submit(headers="reply-requested,guarantee:False")
    [(chunk, _)] = chunks(broker.worker())
    broker.answer(b"worker", chunk, [row(result=b"r", content_type="msgpack")])
    assert [(job_id, [job_id, "succeeded", "msgpack", b"r"])] == ends(broker.took(b"client"))


def test_where_no_reply_will_come_the_receipt_says_so(tmp_path: Path) -> None:
    """The peer then calls ``get``; a peer without the extension gets a plain receipt."""
    broker = Broker(tmp_path, limits=Limits(max_replies=0))
    inform(broker)
    _, got = broker.submit(headers="reply-requested")
    assert [NO_REPLY] == [m.extra for m in got if isinstance(m, Ack)]
    _, legacy = broker.submit(client=b"plain", headers="reply-requested")
    assert [None] == [m.extra for m in legacy if isinstance(m, Ack)]
    broker.close()


def test_a_peer_without_it_gets_the_bytes_and_the_state(broker: Broker) -> None:
    inform(broker, "call", "error")
    job_id, _ = broker.submit(headers="reply-requested")
    [(chunk, _)] = chunks(broker.worker())
    broker.answer(b"worker", chunk, [row(result=b"r")])
    [reply] = [m for m in broker.took(b"client") if isinstance(m, Reply)]
    assert (reply.request, reply.result, reply.outcome) == (job_id, b"r", "succeeded")
