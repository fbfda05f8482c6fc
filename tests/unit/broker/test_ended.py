"""The extension ``ended``: the row of a job to whoever asked for it with the REQUEST."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eventmq.broker.limits import Limits
from eventmq.job import OutcomeKind
from eventmq.wire.batches import unpack
from eventmq.wire.commands import Ack, Inform, Reply, Request
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
    """As the row that ``get`` would give."""
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
    """Nobody gets more than ``get`` would give."""
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


@pytest.mark.parametrize(
    ("wish", "coalesce"),
    [("", True), (",ack-requested", False), (",guarantee", False), (",guarantee:True", False)],
)
def test_the_receipt_waits_for_the_end_where_no_ack_is_requested(
    broker: Broker, wish: str, *, coalesce: bool
) -> None:
    """It goes out with the next message to the peer, or a little later."""
    inform(broker)
    request = Request(broker.new_id(), "default", f"{TASK},reply-requested{wish}", b"x")
    broker.put(b"client", request)
    broker.core.decide(broker.clock.now())
    entries, settle = broker.core.take_batch()
    broker.store.submit(entries)
    for write_results in broker.store.finished():
        settle(write_results)
    assert [coalesce] == [message.coalesce for message in broker.core.take_deferred_sends()]


def test_a_job_without_guarantee_ends_the_same_way(broker: Broker) -> None:
    inform(broker)
    job_id, _ = broker.submit(headers="reply-requested,guarantee:False")
    [(chunk, _)] = chunks(broker.worker())
    broker.answer(b"worker", chunk, [row(result=b"r", content_type="msgpack")])
    assert [(job_id, [job_id, "succeeded", "msgpack", b"r"])] == ends(broker.took(b"client"))


def test_where_no_reply_will_come_the_receipt_says_so(tmp_path: Path) -> None:
    """The peer asks by ``get`` then; who does not speak it is told nothing new."""
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
