"""Reports of a broker of a shared store about its owner; other brokers send none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eventmq.broker.admission import EPOCH_DELIVERIES
from eventmq.headers import split_headers
from eventmq.wire.batches import decode_chunk
from eventmq.wire.commands import Ack, Command, Heartbeat, Inform, Ready, Request
from eventmq.wire.features import EXTENSIONS, Features
from eventmq.wire.owner import OwnerInfo, parse_epoch
from tests.support.broker_harness import Broker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: The extensions of peers that do not know ``owner``.
OLD = tuple(name for name in EXTENSIONS if name != "owner")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    broker.tick()
    yield broker
    broker.close()


def share(broker: Broker) -> OwnerInfo:
    """Mark the store as shared with other brokers."""
    state = broker.core.state
    state.owner = OwnerInfo(state.epoch, "active", "tcp://10.0.0.5:1", "", state.store_id)
    return state.owner


def inform(
    broker: Broker, identity: bytes, extensions: tuple[str, ...], role: str = "client"
) -> list[Command]:
    features = Features(extensions=extensions, session=identity.decode())
    return broker.tell(identity, Inform(broker.new_id(), "", role, features.format()))


def owner_of(message: Command) -> OwnerInfo | None:
    assert isinstance(message, Heartbeat)
    return None if message.status is None else OwnerInfo.of_heartbeat(message.status)


@pytest.mark.parametrize("role", ["client", "worker", "scheduler"])
def test_ack_and_heartbeat_name_the_owner(broker: Broker, role: str) -> None:
    owner = share(broker)
    ack, heartbeat = inform(broker, b"peer", EXTENSIONS, role)
    assert isinstance(ack, Ack)
    assert ack.extra is not None
    assert Features.parse(ack.extra.decode()).owner == owner
    assert owner_of(heartbeat) == owner
    broker.wait(4.0)
    later = [message for message in broker.took(b"peer") if isinstance(message, Heartbeat)]
    assert later
    assert {owner_of(message) for message in later} == {owner}


@pytest.mark.parametrize(("role", "waiting"), [("client", None), ("worker", "waiting:0")])
def test_a_peer_that_does_not_read_it_gets_heartbeats_as_before(
    broker: Broker, role: str, waiting: str | None
) -> None:
    share(broker)
    _, heartbeat = inform(broker, b"peer", OLD, role)
    assert isinstance(heartbeat, Heartbeat)
    assert heartbeat.status == waiting


def test_a_legacy_peer_is_told_nothing(broker: Broker) -> None:
    share(broker)
    ack, heartbeat = broker.tell(b"old", Inform("i", "", "scheduler"))
    assert isinstance(ack, Ack)
    assert isinstance(heartbeat, Heartbeat)
    assert (ack.extra, heartbeat.status) == (None, None)


def test_a_broker_with_a_store_for_itself_says_what_it_always_has(broker: Broker) -> None:
    """The ACK, the HEARTBEATs and the chunks are the same byte by byte."""
    ack, heartbeat = inform(broker, b"client", EXTENSIONS)
    state = broker.core.state
    assert isinstance(ack, Ack)
    assert isinstance(heartbeat, Heartbeat)
    assert ack.extra == (
        "session,batch,chunk,outcome,call,cancel,error,graph,stream,inputs,ended,late-ack,logs,"
        f"store:{state.store_id},epoch:{state.epoch},max-frame:{state.limits.max_frame}"
    ).encode()  # fmt: skip
    assert heartbeat.status is None
    broker.worker()
    broker.submit()
    assert [chunk.headers for chunk in broker.dispatched] == ["chunk:1"]


def test_chunks_of_a_shared_store_carry_the_epoch(broker: Broker) -> None:
    """Also a chunk that another owner sends again."""
    owner = share(broker)
    broker.worker()
    broker.submit(headers="expires:99999999999")
    [chunk] = broker.dispatched
    headers = dict(split_headers(chunk.headers))
    assert parse_epoch(headers["epoch"]) == owner.epoch > 0
    assert set(headers) == {"chunk", "now", "epoch"}
    broker.crash()
    again = share(broker)
    broker.worker()
    assert again.epoch > owner.epoch
    assert parse_epoch(dict(split_headers(broker.dispatched[-1].headers))["epoch"]) == again.epoch


def test_deliveries_of_a_job_without_guarantee_are_other_ones_with_each_owner(
    broker: Broker,
) -> None:
    """The deliveries of an earlier owner are not known, and its worker may still send parts."""
    deliveries = []
    for _ in range(2):
        share(broker)
        broker.worker()
        broker.submit("01a3185c53df70018000000000000001", headers="guarantee:False")
        [entry] = decode_chunk(broker.dispatched.pop().body).entries
        deliveries.append(entry.delivery)
        broker.crash()
    assert deliveries == [1, EPOCH_DELIVERIES + 1]


def test_chunks_of_a_legacy_worker_carry_no_epoch(broker: Broker) -> None:
    """Their headers are those of the document."""
    share(broker)
    broker.tell(b"old", Inform("i", '[[10, "default"]]', "worker"))
    broker.tell(b"old", Ready("r"))
    plain = b'["run", {"callable": "f", "path": "m", "args": [], "kwargs": {}}]'
    broker.tell(b"c", Request(broker.new_id(), "default", "ack-requested", plain))
    [job] = [message for message in broker.took(b"old") if isinstance(message, Request)]
    assert "epoch" not in job.headers
