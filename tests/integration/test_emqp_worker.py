"""eMQP/1.0 as a worker sees it that knows only the published document.

Raw sockets, written from the sections "Global Frames", "eMQP / Worker" and "Heartbeating".
"""

from __future__ import annotations

import itertools
import json
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.raw_peer import QUIET, all_unheard, beat_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.emqp_broker import BrokerProcess, Connect, StartBroker
    from tests.support.raw_peer import RawPeer

BODY = b'["run", {"callable": "add", "path": "jobs", "args": [1, 2], "kwargs": {}}]'


#: Of brokers whose heartbeat timeout a test waits for.
SHORT = {"heartbeat_interval": 0.2, "lease_interval": 0.2, "heartbeat_timeout": 0.8}


@pytest.fixture
def submit(broker: BrokerProcess, connect: Connect) -> Callable[..., bytes]:
    client = connect(broker["main"])

    def send(queue: bytes = b"default", headers: bytes = b"guarantee") -> bytes:
        job = client.send(b"REQUEST", queue, headers, BODY)
        assert client.expect(b"ACK")[4] == job
        return job

    return send


@pytest.fixture
def worker(broker: BrokerProcess, connect: Connect) -> RawPeer:
    return connect(broker["main"])


def state_of(broker: BrokerProcess, connect: Connect) -> dict[str, int]:
    """Return how many messages wait, by queue, from STATUS."""
    admin = connect(broker["admin"])
    admin.send(b"STATUS")
    return json.loads(admin.expect(b"REPLY")[4])["waiting_messages_by_queue"]


# INFORM


@pytest.mark.parametrize("port", ["main", "worker"])
def test_inform_is_acknowledged_on_the_port_that_it_came_to(
    broker: BrokerProcess, connect: Connect, port: str
) -> None:
    """ACK has five frames: that of a peer without FEATURES has nothing behind the id."""
    ack = connect(broker[port]).inform(b"worker", b'[[10, "default"]]')
    assert len(ack) == 5


@pytest.mark.parametrize("port", ["main", "worker"])
def test_a_heartbeat_comes_right_behind_the_ack(
    start_broker: StartBroker, connect: Connect, port: str
) -> None:
    """A deployed job manager starts its workers only when it receives one."""
    worker = connect(start_broker(heartbeat_interval=60.0)[port])
    worker.inform(b"worker", b'[[10, "default"]]')
    beat = worker.expect(b"HEARTBEAT")
    assert len(beat) == 5
    assert abs(float(beat[4]) - time.time()) < 10


@pytest.mark.parametrize(
    "queues",
    [
        b'[[40, "email"]]', b"[40, 'email']", b'[40, "email"]', b"[10, 'other'], [40, 'email']",
        b'[[10, "other"], [40, "email"]]',
    ],
)  # fmt: skip
def test_queues_are_understood_in_the_forms_that_there_are(
    worker: RawPeer, submit: Callable[..., bytes], queues: bytes
) -> None:
    """Arrays of weight and name, as the document shows them and as JSON."""
    job = submit(b"email")
    worker.inform(b"worker", queues)
    worker.send(b"READY")
    assert worker.expect(b"REQUEST")[3] == job


def test_no_queues_are_the_default_one(worker: RawPeer, submit: Callable[..., bytes]) -> None:
    job = submit(b"")
    worker.inform(b"worker", b"")
    worker.send(b"READY")
    assert worker.expect(b"REQUEST")[3:5] == [job, b"default"]


def test_queues_that_are_none_are_not_acknowledged(worker: RawPeer) -> None:
    """Nor is the peer registered: it gets no heartbeats."""
    bad = worker.send(b"INFORM", b"[[10,", b"worker")
    assert worker.expect(b"ERROR")[4:6] == [bad, b"bad-queues"]
    assert worker.all_within(QUIET * 2) == []


# READY and REQUEST


def test_a_worker_gets_one_job_for_each_ready(
    worker: RawPeer, submit: Callable[..., bytes]
) -> None:
    """READY: one free slot."""
    jobs = [submit() for _ in range(4)]
    worker.inform(b"worker")
    assert worker.silent()
    worker.send(b"READY")
    worker.send(b"READY")
    got = [worker.expect(b"REQUEST")[3] for _ in range(2)]
    assert worker.silent()
    worker.send(b"READY")
    got.append(worker.expect(b"REQUEST")[3])
    assert got == jobs[:3]


def test_a_job_without_timeout_tells_deployed_software_that_it_has_none(
    worker: RawPeer, submit: Callable[..., bytes]
) -> None:
    """Absent and 0 mean no limit in the document, and 300 s in deployed software."""
    submit()
    worker.inform(b"worker")
    worker.send(b"READY")
    headers = worker.expect(b"REQUEST")[5].split(b",")
    [timeout] = [h for h in headers if h.startswith(b"timeout:")]
    assert int(timeout.partition(b":")[2]) > 10**9
    assert b"reply-requested" in headers


def test_a_worker_without_features_gets_text_and_nothing_typed(
    broker: BrokerProcess, worker: RawPeer, connect: Connect, submit: Callable[..., bytes]
) -> None:
    """Jobs with a content type are for workers that know it."""
    client = connect(broker["main"])
    client.send(b"REQUEST", b"default", b"ack-requested,content-type:msgpack,task:t", b"\x90\xff")
    client.expect(b"ACK")
    job = submit(headers=b"guarantee,x-unknown:1,priority:3")
    worker.inform(b"worker")
    worker.send(b"READY")
    worker.send(b"READY")
    request = worker.expect(b"REQUEST")
    assert request[3] == job
    assert worker.silent()
    names = {header.partition(b":")[0] for header in request[5].split(b",")}
    assert names == {b"reply-requested", b"timeout", b"guarantee"}


def test_two_workers_share_a_queue(broker: BrokerProcess, connect: Connect) -> None:
    """The broker may deliver on any basis, to any ready worker."""
    workers = [connect(broker["main"]), connect(broker["worker"])]
    for worker in workers:
        worker.inform(b"worker")
        worker.send(b"READY")
    client = connect(broker["main"])
    jobs = {client.send(b"REQUEST", b"default", b"", BODY) for _ in range(2)}
    assert {worker.expect(b"REQUEST")[3] for worker in workers} == jobs


# REPLY


def test_a_reply_of_five_frames_ends_the_oldest_job(
    broker: BrokerProcess, worker: RawPeer, connect: Connect, submit: Callable[..., bytes]
) -> None:
    """The document's REPLY has no frame that names the job."""
    submit()
    worker.inform(b"worker")
    worker.send(b"READY")
    worker.expect(b"REQUEST")
    worker.send(b"REPLY", b"done")
    worker.send(b"READY")
    assert worker.silent()
    assert state_of(broker, connect) == {"default": 0}


def test_a_reply_of_six_frames_ends_the_job_that_it_names(
    broker: BrokerProcess, worker: RawPeer, connect: Connect
) -> None:
    """Deployed software names the REQUEST in a sixth frame."""
    client = connect(broker["main"])
    jobs = [client.send(b"REQUEST", b"default", b"reply-requested", BODY) for _ in range(2)]
    for _ in jobs:
        client.expect(b"ACK")
    worker.inform(b"worker")
    for _ in jobs:
        worker.send(b"READY")
        worker.expect(b"REQUEST")
    worker.send(b"REPLY", b'{"value": 2}', jobs[1])
    worker.send(b"REPLY", b'{"value": 1}', jobs[0])
    replies = [client.expect(b"REPLY") for _ in jobs]
    assert [(r[5], r[4]) for r in replies] == [
        (jobs[1], b'{"value": 2}'), (jobs[0], b'{"value": 1}'),
    ]  # fmt: skip


# Heartbeats


def test_heartbeats_come_at_regular_intervals(worker: RawPeer) -> None:
    """Worker and broker must send heartbeats at regular and agreed-upon intervals."""
    worker.inform(b"worker")
    worker.expect(b"HEARTBEAT")
    times = []
    for _ in range(5):
        assert len(worker.expect(b"HEARTBEAT")) == 5
        times.append(time.monotonic())
        worker.send(b"HEARTBEAT", b"%f" % time.time())
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert all(0.1 < gap < 2.0 for gap in gaps), gaps


def test_a_heartbeat_is_never_answered(start_broker: StartBroker, connect: Connect) -> None:
    """It is valid at any time after INFORM."""
    worker = connect(start_broker(heartbeat_interval=30.0)["main"])
    worker.inform(b"worker")
    worker.expect(b"HEARTBEAT")
    for _ in range(5):
        worker.send(b"HEARTBEAT", b"1795217419.69")
    assert worker.all_within(QUIET) == []


def test_no_heartbeats_are_sent_beside_other_commands(
    start_broker: StartBroker, connect: Connect
) -> None:
    """Peers should not send HEARTBEAT commands while sending other commands.

    One may come where the machine let more than an interval pass since another command was due.
    """
    interval = 0.6
    broker = start_broker(heartbeat_interval=interval, lease_interval=interval)
    worker, client = connect(broker["main"]), connect(broker["main"])
    due_at = time.monotonic()
    worker.inform(b"worker")
    worker.expect(b"HEARTBEAT")
    for _ in range(15):
        last, due_at = due_at, time.monotonic()
        client.send(b"REQUEST", b"default", b"", BODY)
        worker.send(b"READY")
        frames = worker.receive()
        while frames is not None and frames[2] == b"HEARTBEAT":
            assert time.monotonic() - last >= interval
            frames = worker.receive()
        assert frames is not None
        assert frames[2] == b"REQUEST"
        worker.send(b"REPLY", b"1", frames[3])
        worker.socket.poll(80)
    assert worker.receive(0) is None or time.monotonic() - due_at >= interval


def test_any_command_counts_as_a_heartbeat(start_broker: StartBroker, connect: Connect) -> None:
    """A worker that sends READY and then never sends a HEARTBEAT."""
    broker = start_broker(**SHORT)
    worker, client = connect(broker["main"]), connect(broker["main"])
    worker.inform(b"worker")
    end = time.monotonic() + 1.5 * SHORT["heartbeat_timeout"]
    while time.monotonic() < end:
        worker.send(b"READY")
        worker.all_within(0.15)
    job = client.send(b"REQUEST", b"default", b"", BODY)
    assert worker.expect(b"REQUEST")[3] == job


def test_a_silent_worker_is_sent_nothing_any_more_and_its_job_goes_to_another(
    start_broker: StartBroker, connect: Connect
) -> None:
    """If the broker detects that a worker has disconnected it stops sending it messages."""
    broker = start_broker(**SHORT)
    silent, other, client = (connect(broker["main"]) for _ in range(3))
    silent.inform(b"worker")
    silent.send(b"READY")
    silent.send(b"READY")
    job = client.send(b"REQUEST", b"default", b"", BODY)
    assert silent.expect(b"REQUEST")[3] == job
    other.inform(b"worker")
    other.send(b"READY")
    got: list[bytes] = []

    def redelivered() -> bool:
        while (frames := other.receive(0)) is not None:
            if frames[2] == b"REQUEST":
                got.append(frames[3])
        return bool(got)

    beat_until(other, redelivered, 0.2, 5.0)
    assert got == [job]
    silent.all_within(0.1)
    client.send(b"REQUEST", b"default", b"", BODY)
    assert silent.all_within(0.6) == []


def test_a_worker_that_was_forgotten_starts_again_with_inform(
    start_broker: StartBroker, connect: Connect
) -> None:
    """If the worker detects that the broker disconnected it should restart the conversation.

    Silence is what it detects. A DISCONNECT would ask it to stop: only EventMQ 0.3 takes it as a
    wish to begin anew.
    """
    broker = start_broker(heartbeat_interval=0.2, lease_interval=0.2, heartbeat_timeout=0.5)
    worker, client = connect(broker["main"]), connect(broker["main"])
    worker.inform(b"worker")
    worker.all_within(2.0)
    worker.send(b"READY")
    worker.send(b"HEARTBEAT", b"1")
    assert worker.all_within(0.6) == []
    worker.inform(b"worker")
    worker.send(b"READY")
    job = client.send(b"REQUEST", b"default", b"", BODY)
    assert worker.expect(b"REQUEST")[3] == job


# KBAI


def test_after_kbai_a_worker_is_sent_nothing(
    broker: BrokerProcess, connect: Connect, submit: Callable[..., bytes]
) -> None:
    """The receiver must stop sending any messages to the disconnecting component."""
    workers = {word: connect(broker["main"]) for word in (b"KBAI", b"KBYE")}
    for word, worker in workers.items():
        worker.inform(b"worker")
        worker.send(b"READY")
        worker.send(word)
    for worker in workers.values():
        worker.all_within(0.1)
    submit()
    assert all_unheard(list(workers.values()), 0.7)


def test_after_kbai_what_the_worker_has_may_complete(
    broker: BrokerProcess, worker: RawPeer, connect: Connect
) -> None:
    """Its REPLY counts, and the client gets it."""
    client = connect(broker["main"])
    job = client.send(b"REQUEST", b"default", b"reply-requested", BODY)
    client.expect(b"ACK")
    worker.inform(b"worker")
    worker.send(b"READY")
    worker.expect(b"REQUEST")
    worker.send(b"KBAI")
    worker.send(b"REPLY", b'{"value": 3}', job)
    assert client.expect(b"REPLY")[4:] == [b'{"value": 3}', job]


# Restart of the broker


def test_after_kill_9_of_the_broker_the_reply_of_the_worker_is_taken(
    start_broker: StartBroker, connect: Connect
) -> None:
    """The worker held the job; the broker comes back on the same port with the same data."""
    broker = start_broker(**SHORT)
    worker, client = connect(broker["main"]), connect(broker["main"])
    job = client.send(b"REQUEST", b"default", b"guarantee", BODY)
    client.expect(b"ACK")
    worker.inform(b"worker")
    worker.send(b"READY")
    assert worker.expect(b"REQUEST")[3] == job
    broker.kill()
    broker.start()
    assert state_of(broker, connect) == {"default": 0}
    worker.send(b"REPLY", b'{"value": 3}', job)
    worker.inform(b"worker")
    worker.send(b"READY")

    def no_request() -> bool:
        return worker.silent(0.2)

    # Longer than the heartbeat timeout, after which it would come back.
    end = time.monotonic() + 1.4 * SHORT["heartbeat_timeout"]
    while time.monotonic() < end:
        worker.send(b"HEARTBEAT", b"1")
        assert no_request()
    assert state_of(broker, connect) == {"default": 0}


def test_after_kill_9_of_the_broker_an_unanswered_job_is_done_again(
    start_broker: StartBroker, connect: Connect
) -> None:
    """Its lease waits one heartbeat timeout for the worker, then goes to any ready worker."""
    broker = start_broker(**SHORT)
    worker, client = connect(broker["main"]), connect(broker["main"])
    job = client.send(b"REQUEST", b"default", b"guarantee", BODY)
    client.expect(b"ACK")
    worker.inform(b"worker")
    worker.send(b"READY")
    assert worker.expect(b"REQUEST")[3] == job
    worker.close()
    broker.kill()
    broker.start()
    other = connect(broker["main"])
    other.inform(b"worker")
    other.send(b"READY")
    got: list[bytes] = []

    def redelivered() -> bool:
        while (frames := other.receive(0)) is not None:
            if frames[2] == b"REQUEST":
                got.append(frames[3])
        return bool(got)

    beat_until(other, redelivered, 0.2, 10.0)
    assert got == [job]
    other.send(b"REPLY", b"1", job)
    other.send(b"READY")
    assert other.silent()
    assert state_of(broker, connect) == {"default": 0}


def test_a_worker_notices_a_dead_broker_by_its_silence_and_finds_the_next_one(
    broker: BrokerProcess, worker: RawPeer, submit: Callable[..., bytes]
) -> None:
    """If the worker detects that the broker disconnected it should restart the conversation."""
    worker.inform(b"worker")
    worker.expect(b"HEARTBEAT")
    broker.kill()
    worker.all_within(0.1)
    assert worker.receive(0.6) is None
    broker.start()
    assert len(worker.inform(b"worker")) == 5
    worker.send(b"READY")
    job = submit()
    assert worker.expect(b"REQUEST")[3] == job
