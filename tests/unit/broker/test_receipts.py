"""Receipts and REPLYs of repeated, refused and last REQUESTs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.broker.limits import Limits
from eventmq.wire.batches import pack
from eventmq.wire.commands import Ack, Call, Inform, Request
from eventmq.wire.features import EXTENSIONS, Features
from tests.support.broker_harness import TASK, Broker

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from eventmq.wire.commands import Command


def inform(client: bytes, *extensions: str) -> Inform:
    features = Features(extensions=extensions or EXTENSIONS, session=client.decode())
    return Inform("1", "", "client", features.format())


def request(job_id: str, wish: str = "late-ack") -> Request:
    return Request(job_id, "default", f"{TASK},{wish}", b"x")


def acks(messages: Sequence[Command]) -> list[tuple[str, bytes | None]]:
    return [(m.acked, m.extra) for m in messages if isinstance(m, Ack)]


# Peers that change what they read


def test_a_peer_that_reads_rows_no_more_gets_the_receipt_of_a_cancelled_job(broker: Broker) -> None:
    """All in one tick: the REPLY has gone before the receipt is due."""
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
