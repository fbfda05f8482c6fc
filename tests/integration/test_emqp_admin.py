"""eMQP/1.0 as an administrator sees it: DISCONNECT of the document, STATUS of deployed software."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.raw_peer import QUIET, beat_until

if TYPE_CHECKING:
    from tests.integration.emqp_broker import BrokerProcess, Connect
    from tests.integration.raw_peer import RawPeer

BODY = b'["run", {"callable": "add", "path": "jobs"}]'


@pytest.fixture
def admin(broker: BrokerProcess, connect: Connect) -> RawPeer:
    return connect(broker["admin"])


def ask(admin: RawPeer, command: bytes) -> Any:
    id = admin.send(command)
    reply = admin.expect(b"REPLY")
    assert len(reply) == 6
    assert reply[5] == id
    return json.loads(reply[4])


# STATUS


def test_status_has_the_keys_of_deployed_software(
    broker: BrokerProcess, admin: RawPeer, connect: Connect
) -> None:
    worker, scheduler, client = (connect(broker["main"]) for _ in range(3))
    worker.inform(b"worker", b'[[10, "default"], [20, "email"]]')
    scheduler.inform(b"scheduler")
    client.send(b"REQUEST", b"later", b"guarantee", BODY)
    client.expect(b"ACK")
    status = ask(admin, b"STATUS")
    assert set(status) >= {
        "connected_workers", "connected_queues", "connected_schedulers",
        "waiting_messages_by_queue",
    }  # fmt: skip
    assert len(status["connected_workers"]) == len(status["connected_schedulers"]) == 1
    assert status["connected_queues"] == ["default", "email"]
    assert status["waiting_messages_by_queue"]["later"] == 1


def test_workers_are_shown_with_queues_and_free_slots(
    broker: BrokerProcess, admin: RawPeer, connect: Connect
) -> None:
    worker = connect(broker["worker"])
    worker.inform(b"worker", b'[[10, "default"]]')
    worker.send(b"READY")
    worker.send(b"READY")
    worker.silent(0.1)
    shown = ask(admin, b"ROUTER_SHOW_WORKERS")
    [one] = shown["connected_workers"].values()
    assert one["queues"] == [[10, "default"]]
    assert one["available_slots"] == 2
    assert one["hb"] > 0
    assert shown["connected_queues"] == ["default"]


def test_schedulers_are_shown(broker: BrokerProcess, admin: RawPeer, connect: Connect) -> None:
    connect(broker["main"], b"beat").inform(b"scheduler")
    assert ask(admin, b"ROUTER_SHOW_SCHEDULERS") == {"connected_schedulers": [b"beat".hex()]}


def test_an_empty_broker_has_empty_answers(admin: RawPeer) -> None:
    assert ask(admin, b"STATUS") == {
        "connected_workers": [], "connected_queues": [], "connected_schedulers": [],
        "waiting_messages_by_queue": {},
    }  # fmt: skip


@pytest.mark.parametrize("command", [b"REQUEST", b"PUBLISH"])
def test_the_administration_port_is_for_administration(admin: RawPeer, command: bytes) -> None:
    sent = admin.send(command, b"default", b"", BODY)
    assert admin.expect(b"ERROR")[4:6] == [sent, b"not-allowed"]


# DISCONNECT


@pytest.mark.parametrize("port", ["main", "worker", "publish"])
def test_disconnect_is_refused_on_any_other_port(
    broker: BrokerProcess, admin: RawPeer, connect: Connect, port: str
) -> None:
    """Whoever may hand in jobs may not stop the broker."""
    peer = connect(broker[port])
    sent = peer.send(b"DISCONNECT")
    assert peer.expect(b"ERROR")[4:6] == [sent, b"not-allowed"]
    assert ask(admin, b"STATUS")


def test_disconnect_is_acknowledged_and_ends_an_idle_broker(
    broker: BrokerProcess, admin: RawPeer
) -> None:
    sent = admin.send(b"DISCONNECT")
    ack = admin.expect(b"ACK")
    assert len(ack) == 5
    assert ack[4] == sent
    assert broker.wait() == 0


def test_disconnect_sends_kbai_to_all_connected_components(
    broker: BrokerProcess, admin: RawPeer, connect: Connect
) -> None:
    """On every port; KBYE as well, which is what deployed software waits for."""
    peers = [connect(broker[port]) for port in ("main", "worker", "main")]
    for peer, role in zip(peers, (b"worker", b"worker", b"scheduler"), strict=True):
        peer.inform(role)
    admin.send(b"DISCONNECT")
    for peer in peers:
        kbai = peer.expect(b"KBAI")
        assert len(kbai) == 4
        assert len(peer.expect(b"KBYE")) == 4
        assert peer.all_within(QUIET) == []
    assert broker.wait() == 0


def test_disconnect_lets_pending_jobs_complete(
    broker: BrokerProcess, admin: RawPeer, connect: Connect
) -> None:
    """It stops sending and taking messages, but a running job ends and its client hears of it."""
    worker, client, other = (connect(broker["main"]) for _ in range(3))
    worker.inform(b"worker")
    worker.send(b"READY")
    worker.send(b"READY")
    job = client.send(b"REQUEST", b"default", b"reply-requested", BODY)
    client.expect(b"ACK")
    assert worker.expect(b"REQUEST")[3] == job
    admin.send(b"DISCONNECT")
    worker.expect(b"KBAI")
    worker.expect(b"KBYE")
    late = other.send(b"REQUEST", b"default", b"guarantee", BODY)
    assert other.expect(b"ERROR")[4:6] == [late, b"closing"]
    assert worker.all_within(0.7) == []
    worker.send(b"REPLY", b'{"value": 3}', job)
    assert client.expect(b"REPLY")[4:] == [b'{"value": 3}', job]
    assert broker.wait() == 0


def test_what_waited_at_disconnect_is_there_after_the_next_start(
    broker: BrokerProcess, admin: RawPeer, connect: Connect
) -> None:
    """Pending messages are not lost."""
    client = connect(broker["main"])
    job = client.send(b"REQUEST", b"default", b"guarantee", BODY)
    client.expect(b"ACK")
    admin.send(b"DISCONNECT")
    assert broker.wait() == 0
    broker.start()
    worker = connect(broker["main"])
    worker.inform(b"worker")
    worker.send(b"READY")
    assert worker.expect(b"REQUEST")[3] == job


def test_sigterm_says_goodbye_too(broker: BrokerProcess, connect: Connect) -> None:
    """A broker that is stopped by the system leaves as politely."""
    worker = connect(broker["main"])
    worker.inform(b"worker")
    broker.stop()
    got: list[bytes] = []

    def said() -> bool:
        while (frames := worker.receive(0)) is not None:
            got.append(frames[2])
        return b"KBAI" in got

    beat_until(worker, said, 0.1, 5.0)
    assert got[-2:] == [b"KBAI", b"KBYE"]
