"""The authorisation matrix over real sockets: refused peers, served peers, log lines.

No key, a wrong key, a revoked key, the right key in the wrong role, another peer's identity: all
refused, each logged once per peer, while the neighbours are served.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
import zmq

from eventmq.wire.batches import decode_exceptions, encode_batch
from tests.support.keyed_broker import House
from tests.support.raw_peer import DEADLINE, QUIET, RawPeer, all_unheard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BODY = b'["run", {"callable": "add", "path": "jobs"}]'
FEATURES = "session:{},error,call,batch"


@pytest.fixture
def house(tmp_path: Path, context: zmq.Context) -> Iterator[House]:
    house = House(tmp_path, context)
    authorize = house.keys.authorize
    for name in ("alice", "bob"):
        authorize(name, "client")
    for name in ("carol", "dave"):
        authorize(name, "client", group="shop")
    for name in ("wendy", "walt"):
        authorize(name, "worker")
    authorize("sam", "scheduler")
    authorize("gina", "gateway", serves=frozenset({"in"}), submits=frozenset({"out"}))
    authorize("root", "admin")
    authorize("vera", "viewer")
    authorize("vic", "viewer", show_arguments=True)
    house.start()
    yield house
    house.stop()


def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def call(peer: RawPeer, name: str, **arguments: Any) -> Any:
    """Return the answer to a call, or the code of its ERROR."""
    id = peer.send(b"CALL", name.encode(), msgpack.packb(arguments))
    while True:
        frames = peer.receive()
        assert frames is not None
        if frames[2] == b"ERROR" and frames[4] == id:
            return frames[5].decode()
        if frames[2] == b"REPLY" and frames[5] == id:
            return msgpack.unpackb(frames[4])


class Neighbours:
    """A client and a worker with good keys, which continue their work."""

    def __init__(self, house: House) -> None:
        self.client, self.worker = house.peer("alice"), house.peer("wendy")
        self.worker.inform(b"worker", b'[[10, "neighbour"]]')

    def work(self) -> None:
        job = self.client.send(b"REQUEST", b"neighbour", b"reply-requested", BODY)
        assert self.client.expect(b"ACK")[4] == job
        self.worker.send(b"READY")
        assert self.worker.expect(b"REQUEST")[3] == job
        self.worker.send(b"REPLY", b'{"value": 3}', job)
        assert self.client.expect(b"REPLY")[4:] == [b'{"value": 3}', job]


@pytest.fixture
def neighbours(house: House) -> Neighbours:
    neighbours = Neighbours(house)
    neighbours.work()
    return neighbours


# Keys

ALL_PORTS = ["main", "worker", "admin", "publish"]


@pytest.mark.parametrize("port", ALL_PORTS)
def test_without_a_key_no_message_is_received(
    house: House, neighbours: Neighbours, port: str
) -> None:
    peers = [house.stranger(port) for _ in range(3)]
    for peer in peers:
        peer.send_unheard(b"INFORM", b"", b"client")
    until(lambda: house.warnings("without CURVE"), "nothing was logged")
    assert all_unheard(peers)
    assert 1 == house.warnings("without CURVE")
    neighbours.work()


@pytest.mark.parametrize("port", ALL_PORTS)
def test_a_key_that_is_not_authorised_is_refused(
    house: House, neighbours: Neighbours, port: str
) -> None:
    peers = [house.peer("mallory", port) for _ in range(3)]
    for peer in peers:
        peer.send_unheard(b"INFORM", b"", b"client")
    until(lambda: house.warnings("not authorised"), "nothing was logged")
    assert all_unheard(peers)
    assert 1 == house.warnings("not authorised")
    neighbours.work()


def test_another_brokers_key_connects_no_client(house: House, neighbours: Neighbours) -> None:
    """A client talks to no broker but its own."""
    other = zmq.curve_keypair()[0]
    peer = house.stranger(keys=(other, *house.keys.pair("alice")))
    peer.send_unheard(b"INFORM", b"", b"client")
    assert peer.all_within(QUIET) == []
    neighbours.work()


def test_the_secret_key_is_needed_not_only_the_public_one(
    house: House, neighbours: Neighbours
) -> None:
    """Public keys are public: a peer that presents another's key is not accepted."""
    public, _ = house.keys.pair("root")
    _, secret = zmq.curve_keypair()
    peer = house.stranger(keys=(house.keys.broker[0], public, secret))
    peer.send_unheard(b"DISCONNECT")
    assert peer.all_within(QUIET) == []
    neighbours.work()


def test_a_key_is_authorised_while_the_broker_runs(house: House) -> None:
    """It is known from the next handshake on; nothing is restarted."""
    peer = house.peer("late")
    peer.send_unheard(b"INFORM", b"", b"client")
    until(lambda: house.warnings("not authorised"), "it was not refused first")
    house.keys.authorize("late", "client")
    house.peer("late").inform(b"client")


# Revocation


def test_a_revoked_client_is_refused_at_its_next_message(
    house: House, neighbours: Neighbours
) -> None:
    bob = house.peer("bob")
    bob.inform(b"client", b"", FEATURES.format("b").encode())
    house.keys.revoke("bob")
    until(lambda: call(bob, "ping") == "not-allowed", "it was served on")
    for _ in range(3):
        assert "not-allowed" == call(bob, "ping")
        sent = bob.send(b"REQUEST", b"neighbour", b"guarantee", BODY)
        assert bob.expect(b"ERROR")[4:6] == [sent, b"not-allowed"]
    assert 1 == house.warnings("not authorised any more")
    again = house.peer("bob")
    again.send_unheard(b"INFORM", b"", b"client")
    assert again.all_within(QUIET) == []
    neighbours.work()


def test_what_a_revoked_worker_had_goes_to_another(house: House) -> None:
    walt, wendy, alice = house.peer("walt"), house.peer("wendy"), house.peer("alice")
    walt.inform(b"worker")
    walt.send(b"READY")
    job = alice.send(b"REQUEST", b"default", b"reply-requested", BODY)
    assert walt.expect(b"REQUEST")[3] == job
    house.keys.revoke("walt")
    wendy.inform(b"worker")
    wendy.send(b"READY")
    assert wendy.expect(b"REQUEST")[3] == job
    walt.send(b"REPLY", b'{"value": "forged"}', job)
    assert walt.expect(b"ERROR")[5] == b"not-allowed"
    wendy.send(b"REPLY", b'{"value": 1}', job)
    alice.expect(b"ACK")
    assert alice.expect(b"REPLY")[4:] == [b'{"value": 1}', job]


def test_a_revoked_client_gets_nothing_more(house: House) -> None:
    """Neither results that it waits for nor messages that it subscribed to."""
    bob, wendy, alice = house.peer("bob"), house.peer("wendy"), house.peer("alice")
    bob.inform(b"client", b"", FEATURES.format("b").encode())
    wendy.inform(b"worker")
    job = bob.send(b"REQUEST", b"default", b"reply-requested", BODY)
    bob.expect(b"ACK")
    bob.send(b"CALL", b"subscribe", msgpack.packb({"topics": ["news"]}))
    bob.expect(b"REPLY")
    house.keys.revoke("bob")
    until(lambda: call(bob, "ping") == "not-allowed", "it was served on")
    wendy.send(b"READY")
    assert wendy.expect(b"REQUEST")[3] == job
    wendy.send(b"REPLY", b'{"value": 1}', job)
    alice.send(b"PUBLISH", b"news", b"ack-requested", b"x")
    alice.expect(b"ACK")
    assert bob.silent()


def test_a_role_is_taken_while_the_peer_is_connected(house: House) -> None:
    house.keys.authorize("eve", "client", "admin")
    eve = house.peer("eve")
    assert isinstance(call(eve, "jobs"), dict)
    house.keys.authorize("eve", "client")
    until(lambda: call(eve, "jobs") == "not-allowed", "it kept its role")
    assert isinstance(call(eve, "queues"), list)


# Roles


def _batch(queue: str) -> bytes:
    return encode_batch([(queue, "task:x,content-type:msgpack")], [("id-1", 0, b"\xc0")])


INFORM, CALL, REQUEST = b"INFORM", b"CALL", b"REQUEST"
NOTHING = msgpack.packb({})

#: Role of a key, and the messages that it may not send.
WRONG: list[tuple[str, tuple[bytes, ...]]] = [
    ("alice", (INFORM, b'[[10, "default"]]', b"worker")),
    ("alice", (INFORM, b"", b"scheduler")),
    ("alice", (b"READY",)),
    ("alice", (b"READY", b"received:0,window:9,held:")),
    ("alice", (b"REPLY", b'{"value": 1}', b"some-job")),
    ("alice", (b"DISCONNECT",)),
    ("alice", (b"STATUS",)),
    ("alice", (b"ROUTER_SHOW_WORKERS",)),
    *(
        ("alice", (CALL, name, NOTHING))
        for name in (b"jobs", b"failed", b"workers", b"status", b"bulk", b"sweep", b"retry",
                     b"drop", b"pause", b"resume", b"clock.accept")
    ),
    ("wendy", (REQUEST, b"default", b"guarantee", BODY)),
    ("wendy", (REQUEST, b"", b"batch:1", _batch("default"))),
    ("wendy", (b"PUBLISH", b"topic", b"x")),
    ("wendy", (b"SCHEDULE", b"default", b"interval:5", BODY)),
    ("wendy", (b"UNSCHEDULE", b"default", b"", BODY)),
    ("wendy", (INFORM, b"", b"scheduler")),
    ("wendy", (CALL, b"get", msgpack.packb({"ids": ["x"]}))),
    ("wendy", (CALL, b"cancel", msgpack.packb({"ids": ["x"]}))),
    ("wendy", (CALL, b"subscribe", msgpack.packb({"topics": [""]}))),
    ("wendy", (b"DISCONNECT",)),
    ("sam", (INFORM, b"", b"worker")),
    ("sam", (b"READY",)),
    ("sam", (CALL, b"pause", msgpack.packb({"queue": "default"}))),
    ("sam", (CALL, b"clock.accept", NOTHING)),
    ("sam", (b"DISCONNECT",)),
    ("gina", (INFORM, b'[[10, "in"], [10, "default"]]', b"worker")),
    ("gina", (INFORM, b"", b"worker")),
    ("gina", (REQUEST, b"default", b"guarantee", BODY)),
    ("gina", (REQUEST, b"", b"guarantee", BODY)),
    ("gina", (REQUEST, b"", b"batch:1", _batch("default"))),
    ("gina", (CALL, b"jobs", NOTHING)),
    ("gina", (b"DISCONNECT",)),
    ("vera", (INFORM, b"", b"worker")),
    ("vera", (b"READY",)),
    ("vera", (REQUEST, b"default", b"guarantee", BODY)),
    ("vera", (b"PUBLISH", b"topic", b"x")),
    ("vera", (b"SCHEDULE", b"default", b"interval:5", BODY)),
    ("vera", (b"STATUS",)),
    ("vera", (b"DISCONNECT",)),
    *(
        ("vera", (CALL, name, NOTHING))
        for name in (b"get", b"stream", b"cancel", b"cancel_graph", b"bulk", b"retry", b"drop",
                     b"pause", b"resume", b"clock.accept", b"subscribe", b"schedules.save",
                     b"schedules.remove", b"events.read")
    ),
    ("root", (INFORM, b"", b"worker")),
    ("root", (b"READY",)),
    ("root", (b"REPLY", b'{"value": 1}', b"some-job")),
]  # fmt: skip


def test_a_key_in_the_wrong_role_is_refused(house: House, neighbours: Neighbours) -> None:
    """Each of them, with not-allowed; logged once per peer; the broker serves on."""
    for name, (command, *frames) in WRONG:
        peer = house.peer(name)
        for _ in range(2):
            sent = peer.send(command, *frames)
            error = peer.expect(b"ERROR")
            assert error[4:6] == [sent, b"not-allowed"], (name, command, frames, error)
    assert len(WRONG) == house.warnings("not-allowed")
    neighbours.work()


def test_no_claim_in_a_message_gives_a_role(house: House, neighbours: Neighbours) -> None:
    """To have informed as a worker with the worker's key helps no other connection."""
    bob = house.peer("bob", identity=b"worker")
    bob.inform(b"client", b'[[10, "default"]]', b"session:w,name:wendy,callables:*,error,admin")
    for frames in [(b"READY",), (b"DISCONNECT",), (b"STATUS",)]:
        sent = bob.send(*frames)
        assert bob.expect(b"ERROR")[4:6] == [sent, b"not-allowed"]
    neighbours.work()


def test_every_role_is_served_in_its_own(house: House) -> None:
    sam, gina, root = house.peer("sam"), house.peer("gina"), house.peer("root", "admin")
    sam.inform(b"scheduler")
    gina.inform(b"worker", b'[[10, "in"]]')
    out = gina.send(b"REQUEST", b"out", b"guarantee", BODY)
    assert gina.expect(b"ACK")[4] == out
    job = sam.send(b"REQUEST", b"in", b"guarantee", BODY)
    assert sam.expect(b"ACK")[4] == job
    gina.send(b"READY")
    assert gina.expect(b"REQUEST")[3] == job
    sent = root.send(b"STATUS")
    assert root.expect(b"REPLY")[5] == sent
    assert isinstance(call(root, "workers"), list)


@pytest.mark.parametrize("port", ["main", "admin"])
def test_an_admin_ends_the_broker_on_either_port(house: House, port: str) -> None:
    root = house.peer("root", port)
    sent = root.send(b"DISCONNECT")
    assert root.expect(b"ACK")[4] == sent
    assert 0 == house.broker.wait()


def test_the_role_does_not_open_another_port(house: House) -> None:
    """The administration port is for administration, with any key."""
    root = house.peer("root", "admin")
    sent = root.send(b"REQUEST", b"default", b"guarantee", BODY)
    assert root.expect(b"ERROR")[4:6] == [sent, b"not-allowed"]


# Results


def _submit(peer: RawPeer, headers: bytes = b"guarantee") -> str:
    id = peer.send(b"REQUEST", b"default", headers, BODY)
    assert peer.expect(b"ACK")[4] == id
    return id.decode()


def _work_off(house: House, value: bytes) -> None:
    worker = house.peer("wendy")
    worker.inform(b"worker")
    worker.send(b"READY")
    job = worker.expect(b"REQUEST")[3]
    worker.send(b"REPLY", value, job)
    worker.send(b"KBAI")


def _reads(house: House, name: str, job: str) -> Any:
    """Return the result of a job as this client gets it."""
    return call(house.peer(name), "get", ids=[job])


@pytest.mark.parametrize("restarted", [False, True])
def test_a_result_is_read_by_whose_key_submitted_it(house: House, restarted: bool) -> None:
    """While the job waits, when it has ended, and by the next broker on the same store."""
    job = _submit(house.peer("alice"))
    for name in ("bob", "carol", "sam"):
        assert "not-allowed" == _reads(house, name, job)
        for what in ("state", "cancel"):
            assert "not-allowed" == call(house.peer(name), what, ids=[job])
        for options in ({}, {"args": True}, {"logs": True}):
            assert "not-allowed" == call(house.peer(name), "info", id=job, **options)
    for name in ("alice", "root"):
        assert BODY == call(house.peer(name), "info", id=job, args=True)["body"]
    _work_off(house, b'{"value": "hers"}')
    expected = [[job, "succeeded", "plain", b'{"value": "hers"}']]
    assert expected == _reads(house, "alice", job)
    if restarted:
        house.broker.stop()
        house.broker.start()
    assert expected == _reads(house, "alice", job)
    assert expected == _reads(house, "root", job)
    for name in ("bob", "carol", "sam"):
        assert "not-allowed" == _reads(house, name, job)
        assert "not-allowed" == call(house.peer(name), "info", id=job)


def test_a_viewer_sees_jobs_of_all_but_no_result_and_arguments_only_if_it_may(
    house: House,
) -> None:
    job = _submit(house.peer("alice"))
    vera, vic = house.peer("vera"), house.peer("vic")
    for peer in (vera, vic):
        assert call(peer, "state", ids=[job]) == [[job, "queued"]]
        assert call(peer, "info", id=job, logs=True)["queue"] == "default"
        assert [row["id"] for row in call(peer, "jobs")["jobs"]] == [job]
        assert call(peer, "count", action="cancel", queue="default")["count"] == 1
        assert call(peer, "get", ids=[job]) == "not-allowed"
    assert call(vera, "info", id=job, args=True) == "not-allowed"
    assert call(vera, "events.read") == "not-allowed"
    assert call(vic, "info", id=job, args=True)["body"] == BODY
    assert call(vic, "events.read")["rows"]


def test_a_group_reads_its_results(house: House) -> None:
    job = _submit(house.peer("carol"))
    _work_off(house, b'{"value": 1}')
    assert _reads(house, "dave", job)[0][1] == "succeeded"
    assert "not-allowed" == _reads(house, "alice", job)


@pytest.mark.parametrize("guarantee", [b"guarantee", b"guarantee:False,ack-requested"])
def test_waiting_for_another_ones_job_gives_nothing(house: House, guarantee: bytes) -> None:
    """Nor does handing the same id in again, with a wish for its REPLY."""
    alice, bob = house.peer("alice"), house.peer("bob")
    job = _submit(alice, guarantee + b",reply-requested")
    bob.send(b"REQUEST", b"default", guarantee + b",reply-requested", BODY, id=job.encode())
    assert bob.expect(b"ERROR")[4:6] == [job.encode(), b"not-allowed"]
    assert "not-allowed" == call(bob, "get", ids=[job])
    _work_off(house, b'{"value": "hers"}')
    assert alice.expect(b"REPLY")[4:] == [b'{"value": "hers"}', job.encode()]
    bob.send(b"REQUEST", b"default", guarantee + b",reply-requested", BODY, id=job.encode())
    assert bob.expect(b"ERROR")[4:6] == [job.encode(), b"not-allowed"]
    assert bob.silent()


def test_no_receipt_is_given_for_a_job_whose_id_another_key_has(house: House) -> None:
    """The first client of an id keeps it; in a batch only that job is refused."""
    alice, bob = house.peer("alice"), house.peer("bob")
    job = _submit(alice)
    alice.send(b"REQUEST", b"default", b"guarantee", BODY, id=job.encode())
    assert alice.expect(b"ACK")[4] == job.encode()
    rows = [("his-1", 0, b"x"), (job, 0, b"x"), ("his-2", 0, b"x")]
    body = encode_batch([("default", "task:x,content-type:x")], rows)
    bob.send(b"REQUEST", b"", b"batch:3", body)
    assert [1] == list(decode_exceptions(bob.expect(b"ACK")[5]))
    assert [["his-1", "queued"], ["his-2", "queued"]] == call(bob, "state", ids=["his-1", "his-2"])
    root = house.peer("root")
    root.send(b"REQUEST", b"default", b"guarantee", BODY, id=job.encode())
    assert root.expect(b"ACK")[4] == job.encode()


def test_one_strange_id_among_ones_own_refuses_the_call(house: House) -> None:
    """The answer names it, so that it can be left out."""
    alice, bob = house.peer("alice"), house.peer("bob")
    hers, his = _submit(alice), _submit(bob)
    assert "not-allowed" == call(bob, "state", ids=[his, hers])
    assert [[his, "queued"], ["unknown", ""]] == call(bob, "state", ids=[his, "unknown"])


def test_a_client_cannot_forge_the_owner(house: House) -> None:
    """Neither of a single job nor in a batch."""
    grant = house.keys.authorize("bob", "client")
    headers = f"guarantee,owner:{grant.key}"
    alice, bob = house.peer("alice"), house.peer("bob")
    job = _submit(alice, headers.encode())
    body = encode_batch([("default", f"content-type:x,owner:{grant.key}")], [("in-batch", 0, b"")])
    alice.send(b"REQUEST", b"", b"batch:1", body)
    alice.expect(b"ACK")
    for job_id in (job, "in-batch"):
        assert "not-allowed" == call(bob, "get", ids=[job_id])
        owner = call(alice, "info", id=job_id)["headers"].rpartition("owner:")[2]
        assert owner != grant.key
        assert 1 == call(alice, "info", id=job_id)["headers"].count("owner")


# Identities


def test_an_identity_is_not_taken_over(house: House, neighbours: Neighbours) -> None:
    """Bob uses Alice's routing id, while she is connected and after she has left."""
    alice = house.peer("alice", identity=b"alice")
    alice.inform(b"client")
    job = alice.send(b"REQUEST", b"default", b"reply-requested", BODY)
    alice.expect(b"ACK")
    bob = house.peer("bob", identity=b"alice")
    bob.send(b"INFORM", b"", b"client")
    assert bob.all_within(QUIET) == []
    alice.close()
    assert bob.silent(QUIET)
    bob = house.peer("bob", identity=b"alice")
    bob.inform(b"client", b"", FEATURES.format("b").encode())
    assert "not-allowed" == call(bob, "get", ids=[job.decode()])
    _work_off(house, b'{"value": "hers"}')
    assert bob.silent()
    neighbours.work()


def test_a_message_to_a_peer_that_has_left_reaches_no_other_peer_with_its_routing_id(
    house: House,
) -> None:
    """Bob has connected with Alice's routing id, but sent nothing yet; then her result arrives."""
    alice = house.peer("alice", identity=b"same")
    job = alice.send(b"REQUEST", b"default", b"reply-requested", BODY)
    assert alice.expect(b"ACK")[4] == job
    alice.close()
    peers = [house.peer("bob", identity=b"same") for _ in range(3)]
    assert all(peer.all_within(QUIET) == [] for peer in peers)
    _work_off(house, b'{"value": "hers"}')
    assert all(peer.all_within(QUIET) == [] for peer in peers)


def test_a_session_is_not_taken_over(house: House) -> None:
    """Another worker's key does not get its jobs by naming its session."""
    wendy, walt = house.peer("wendy"), house.peer("walt")
    features = FEATURES.format("wendys").encode() + b",chunk,outcome"
    wendy.inform(b"worker", b"", features)
    sent = walt.send(b"INFORM", b"", b"worker", features)
    assert walt.expect(b"ERROR")[4:6] == [sent, b"not-allowed"]
    again = house.peer("wendy")
    again.inform(b"worker", b"", features)


# Topics


def _subscriber(house: House, keys: tuple[bytes, bytes, bytes] | None) -> zmq.Socket:
    socket = house.context.socket(zmq.SUB)
    socket.linger = 0
    if keys is not None:
        socket.curve_serverkey, socket.curve_publickey, socket.curve_secretkey = keys
    socket.subscribe(b"")
    socket.connect(house.broker["subscribe"])
    return socket


def _hears(publisher: RawPeer, socket: zmq.Socket) -> bool:
    publisher.send(b"PUBLISH", b"news", b"text")
    return bool(socket.poll(50))


def test_topics_are_for_those_with_a_key(house: House) -> None:
    """A revoked subscriber is cut, the others come back by themselves."""
    alice = house.peer("alice", "publish")
    bob, carol = (
        _subscriber(house, house.keys.of("bob")),
        _subscriber(house, house.keys.of("carol")),
    )
    others = [_subscriber(house, None), _subscriber(house, house.keys.of("mallory"))]
    until(lambda: _hears(alice, bob), "bob receives nothing")
    until(lambda: _hears(alice, carol), "carol receives nothing")
    assert not any(socket.poll(50) for socket in others)
    house.keys.revoke("bob")
    refused = f"its key {house.keys.user('bob')} is not authorised"
    until(lambda: house.warnings(refused), "bob was not cut")
    for socket in (bob, carol):
        while socket.poll(50):
            socket.recv_multipart()
    until(lambda: _hears(alice, carol), "carol did not come back")
    assert not bob.poll(50)
    for socket in (bob, carol, *others):
        socket.close(0)
