"""eMQP/1.0 as an administrator sees it: DISCONNECT of the document, STATUS of deployed software."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.deployed_peers import CommandLine
from tests.support.raw_peer import QUIET, beat_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import zmq

    from tests.support.emqp_broker import BrokerProcess, Connect
    from tests.support.raw_peer import RawPeer

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


@pytest.fixture
def command_line(broker: BrokerProcess, context: zmq.Context) -> Iterator[CommandLine]:
    shell = CommandLine(context, broker["admin"])
    yield shell
    shell.socket.close(0)


# STATUS


#: What EventMQ 0.3 answers to STATUS: each is a map of names to whole numbers.
DEPLOYED = {
    "inflight_messages_by_queue", "latency_messages_by_queue", "max_latency_messages_by_queue",
    "waiting_messages_by_queue", "processed_messages_by_queue", "processed_messages_by_worker",
}  # fmt: skip


def test_hello_is_not_answered(command_line: CommandLine) -> None:
    """The deployed command line sends it first, and would take any answer for the next one's."""
    assert command_line.read(QUIET) is None
    assert command_line.ask("STATUS").keys() >= DEPLOYED
    assert command_line.read(QUIET) is None, "one answer for each command"


def test_the_deployed_command_line_gets_an_answer_to_each_of_its_commands(
    broker: BrokerProcess, connect: Connect, command_line: CommandLine
) -> None:
    """It decodes every frame as UTF-8, and reads frame 4 as JSON."""
    worker, scheduler = connect(broker["worker"], b"w-1"), connect(broker["main"], b"s-1")
    worker.inform(b"worker", b'[[10, "default"], [20, "email"]]')
    scheduler.inform(b"scheduler")
    status = command_line.ask("STATUS")
    assert all(isinstance(value, int) for key in DEPLOYED for value in status[key].values())
    shown = command_line.ask("ROUTER_SHOW_WORKERS")
    assert set(shown) == {"connected_workers", "connected_queues"}
    assert set(shown["connected_workers"]["w-1"]) == {"queues", "hb", "available_slots"}
    assert shown["connected_queues"] == {"default": [[10, "w-1"]], "email": [[20, "w-1"]]}
    shown = command_line.ask("ROUTER_SHOW_SCHEDULERS")
    assert set(shown) == {"connected_schedulers"}
    assert set(shown["connected_schedulers"]["s-1"]) == {"hb"}


def test_status_counts_what_its_keys_mean(
    broker: BrokerProcess, admin: RawPeer, connect: Connect
) -> None:
    """Two jobs with a worker, one of them ended, and three that wait."""
    client, worker = connect(broker["main"]), connect(broker["main"], b"w-1")
    for queue in (b"default", b"default", b"later", b"later", b"later"):
        client.send(b"REQUEST", queue, b"guarantee", BODY)
        client.expect(b"ACK")
    worker.inform(b"worker", b'[[10, "default"]]')
    jobs = []
    for _ in range(2):
        worker.send(b"READY")
        jobs.append(worker.expect(b"REQUEST")[3])
    worker.send(b"REPLY", b'{"value": 1}', jobs[0])
    worker.all_within(QUIET)
    status = ask(admin, b"STATUS")
    [latency] = status["latency_messages_by_queue"].values()
    assert {key: status[key] for key in sorted(DEPLOYED)} == {
        "inflight_messages_by_queue": {"default": 1},
        "latency_messages_by_queue": {"default": latency},
        "max_latency_messages_by_queue": {"default": latency},
        "processed_messages_by_queue": {"default": 2},
        "processed_messages_by_worker": {"w-1": 2},
        "waiting_messages_by_queue": {"default": 0, "later": 3},
    }
    assert QUIET * 1000 * 0.9 <= latency <= 30_000, "milliseconds"


def test_status_lists_the_connected_peers_as_well(
    broker: BrokerProcess, admin: RawPeer, connect: Connect
) -> None:
    """The two other commands show the same."""
    connect(broker["main"], b"w-1").inform(b"worker", b'[[10, "default"]]')
    connect(broker["main"], b"s-1").inform(b"scheduler")
    status = ask(admin, b"STATUS")
    assert set(status) == DEPLOYED | {
        "connected_workers", "connected_queues", "connected_schedulers",
    }  # fmt: skip
    assert list(status["connected_workers"]) == ["w-1"]
    assert list(status["connected_schedulers"]) == ["s-1"]
    assert status["connected_queues"] == {"default": [[10, "w-1"]]}


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
    [[weight, name]] = shown["connected_queues"]["default"]
    assert weight == 10
    assert name in shown["connected_workers"]


def test_the_heaviest_worker_of_a_queue_comes_first(
    broker: BrokerProcess, admin: RawPeer, connect: Connect
) -> None:
    for weight in (10, 30, 20):
        queues = b'[[%d, "default"]]' % weight
        connect(broker["worker"], b"w-%d" % weight).inform(b"worker", queues)
    shown = ask(admin, b"ROUTER_SHOW_WORKERS")
    assert shown["connected_queues"] == {"default": [[30, "w-30"], [20, "w-20"], [10, "w-10"]]}


def test_schedulers_are_shown(broker: BrokerProcess, admin: RawPeer, connect: Connect) -> None:
    connect(broker["main"], b"beat").inform(b"scheduler")
    connect(broker["main"], b"\xff\xfe").inform(b"scheduler")
    shown = ask(admin, b"ROUTER_SHOW_SCHEDULERS")["connected_schedulers"]
    assert list(shown) == ["beat", "fffe"], "bytes that are not UTF-8 are shown in hexadecimal"
    assert all(entry["hb"] > 0 for entry in shown.values())


def test_an_empty_broker_has_empty_answers(admin: RawPeer) -> None:
    connected = {"connected_workers", "connected_queues", "connected_schedulers"}
    assert ask(admin, b"STATUS") == {key: {} for key in DEPLOYED | connected}


@pytest.mark.parametrize("command", [b"REQUEST", b"PUBLISH"])
def test_the_administration_port_is_for_administration(admin: RawPeer, command: bytes) -> None:
    sent = admin.send(command, b"default", b"", BODY)
    assert admin.expect(b"ERROR")[4:6] == [sent, b"not-allowed"]


# DISCONNECT


@pytest.mark.parametrize("port", ["main", "worker", "publish"])
def test_disconnect_is_refused_on_any_other_port(
    broker: BrokerProcess, admin: RawPeer, connect: Connect, port: str
) -> None:
    """A peer that may submit jobs may not stop the broker."""
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
    """It sends and accepts no messages, but a running job ends and its client gets the result."""
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
    after = other.send(b"REQUEST", b"default", b"guarantee", BODY)
    assert other.expect(b"ERROR")[4:6] == [after, b"closing"]
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


def test_sigterm_sends_goodbye_too(broker: BrokerProcess, connect: Connect) -> None:
    """A broker that is stopped by the system leaves as politely."""
    worker = connect(broker["main"])
    worker.inform(b"worker")
    broker.stop()
    got: list[bytes] = []

    def has_left() -> bool:
        while (frames := worker.receive(0)) is not None:
            got.append(frames[2])
        return b"KBAI" in got

    beat_until(worker, has_left, 0.1, 5.0)
    assert got[-2:] == [b"KBAI", b"KBYE"]
