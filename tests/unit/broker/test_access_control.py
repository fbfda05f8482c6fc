"""Access control before the handlers of a broker: rates, addresses, and changes of grants."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eventmq.broker.authenticator import AccessControl
from eventmq.broker.grants import REMOTE, Grant
from eventmq.graph import Plan
from eventmq.wire.batches import encode_graph, pack
from eventmq.wire.commands import Call, Disconnect, Error, Heartbeat, Inform, Ready, Request
from tests.support.broker_harness import Broker

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from eventmq.wire.commands import Command

ALICE = Grant("A", "alice", frozenset({"client"}))
WENDY = Grant("W", "wendy", frozenset({"worker"}))
ROOT = Grant("R", "root", frozenset({"admin"}))
EVERYBODY = {grant.key: grant for grant in (ALICE, WENDY, ROOT)}


class GuardedBroker:
    """A broker behind its access control, with methods to send it messages."""

    def __init__(self, folder: Path, grants: Mapping[str, Grant] | None, rate: float = 0.0) -> None:
        self.broker = Broker(folder)
        self.core = self.broker.core
        self.access = AccessControl(self.core, grants, rate=rate)

    def send(self, user: str, message: Command, who: bytes = b"peer") -> list[Command]:
        """Pass a message to the broker; return the messages that it sends to this peer."""
        now = self.broker.clock.now()
        self.access.receive("main", [who, *message.frames()], user, now)
        self.broker.tick()
        return self.broker.took(who)


def codes(messages: list[Command]) -> list[str]:
    return [message.code for message in messages if isinstance(message, Error)]


@pytest.fixture
def make(tmp_path: Path) -> Iterator:
    made: list[GuardedBroker] = []

    def make(grants: Mapping[str, Grant] | None, rate: float = 0.0) -> GuardedBroker:
        made.append(GuardedBroker(tmp_path, grants, rate))
        return made[-1]

    yield make
    for guarded in made:
        guarded.broker.close()


def request(id: str) -> Request:
    return Request(id, "default", "guarantee,content-type:x", b"")


# Rates


def test_a_peer_over_its_rate_is_refused_and_later_served_again(make) -> None:
    """A bucket holds the messages of one second."""
    guarded = make(None, rate=10.0)
    results = [codes(guarded.send("", request(f"job-{i}"))) for i in range(13)]
    assert [[]] * 10 + [["rate-limited"]] * 3 == results
    guarded.broker.clock.time += 0.5
    results = [codes(guarded.send("", request(f"later-{i}"))) for i in range(7)]
    assert [[]] * 5 + [["rate-limited"]] * 2 == results
    assert 15 == guarded.core.state.counters["admitted"]


def test_the_rate_is_counted_for_each_peer(make) -> None:
    guarded = make(None, rate=1.0)
    assert [[], ["rate-limited"]] == [
        codes(guarded.send("", request(f"a{i}"), b"a")) for i in range(2)
    ]
    assert [[], ["rate-limited"]] == [
        codes(guarded.send("", request(f"b{i}"), b"b")) for i in range(2)
    ]


def test_signs_of_life_and_answers_are_not_counted(make) -> None:
    """Otherwise a worker under load would seem dead, and its results would be lost."""
    guarded = make(None, rate=1.0)
    guarded.send("", Inform("i", "", "worker"))
    for i in range(50):
        assert [] == codes(guarded.send("", Heartbeat(f"h{i}", "1.0")))
        assert [] == codes(guarded.send("", Ready(f"r{i}")))


def test_a_clock_that_goes_back_fills_no_bucket(make) -> None:
    guarded = make(None, rate=1.0)
    guarded.send("", request("one"))
    guarded.broker.clock.time -= 3600
    assert ["rate-limited"] == codes(guarded.send("", request("two")))
    guarded.broker.clock.time += 2
    assert [] == codes(guarded.send("", request("three")))


# Addresses


@pytest.mark.parametrize("address", ["", "127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"])
def test_without_keys_this_machine_may_do_everything(make, address: str) -> None:
    guarded = make(None)
    [reply] = guarded.send(address, Call("c", "pause", pack({"queue": "nowhere"})))
    assert "queue-not-found" == reply.code


@pytest.mark.parametrize("address", ["10.0.0.5", "192.168.1.2", "fe80::1", "::ffff:10.0.0.5"])
def test_without_keys_another_machine_does_not_administer(make, address: str) -> None:
    """With --insecure it may do everything else."""
    guarded = make(None)
    pause = Call("c", "pause", pack({"queue": "nowhere"}))
    assert ["not-allowed"] == codes(guarded.send(address, pause))
    assert ["not-allowed"] == codes(guarded.send(address, Disconnect("d")))
    assert [] == codes(guarded.send(address, request("job")))
    assert [] == codes(guarded.send(address, Call("j", "jobs", pack({}))))
    assert [] == codes(guarded.send(address, Call("i", "info", pack({"id": "job"}))))
    assert [] == codes(guarded.send(address, Inform("w", "", "worker"), b"worker"))
    assert REMOTE is guarded.core.state.peers["main", b"peer"].grant


def test_jobs_of_a_broker_without_keys_have_no_owner(make) -> None:
    guarded = make(None)
    guarded.send("10.0.0.5", Request("job", "default", "guarantee,content-type:x,owner:A", b""))
    assert "guarantee,content-type:x" == guarded.core.state.jobs["job"].headers


# Changes


def test_an_unknown_user_is_refused_and_costs_no_peer(make) -> None:
    guarded = make(EVERYBODY)
    for i in range(20):
        who = f"peer-{i}".encode()
        assert ["not-allowed"] == codes(guarded.send("M", request("job"), who))
    assert {} == guarded.core.state.peers
    assert 20 == guarded.core.state.counters["errors.not-allowed"]


def test_the_same_routing_id_with_another_key_is_another_peer(make) -> None:
    """It does not inherit the session, calls and subscriptions of the former peer."""
    guarded = make(EVERYBODY)
    guarded.send("A", Inform("i", "", "client"))
    guarded.send("A", Call("s", "subscribe", pack({"topics": [""]})))
    first = guarded.core.state.peers["main", b"peer"]
    assert first.topics
    guarded.send("R", Heartbeat("h", "1.0"))
    second = guarded.core.state.peers["main", b"peer"]
    assert second is not first
    assert (ROOT, {}, "") == (second.grant, second.topics, second.role)
    assert {} == first.topics


def test_who_is_not_touched_by_a_change_stays(make) -> None:
    guarded = make(EVERYBODY)
    for user in EVERYBODY:
        guarded.send(user, Heartbeat("h", "1.0"), user.encode())
    before = dict(guarded.core.state.peers)
    changed = Grant("A", "alice", frozenset({"client"}), group="shop")
    guarded.access.update({"A": changed, "W": Grant("W", "wendy", frozenset({"worker"}))}, 1.0)
    peers = guarded.core.state.peers
    assert [b"W"] == [key.identity for key in peers]
    guarded.send("W", Heartbeat("h2", "1.0"), b"W")
    assert peers["main", b"W"] is before["main", b"W"]
    guarded.send("A", Heartbeat("h2", "1.0"), b"A")
    assert peers["main", b"A"].grant is changed


def test_bad_arguments_are_told_of_as_without_keys(make) -> None:
    """The check of owners adds no other errors and no exceptions."""
    guarded = make(EVERYBODY)
    nul = {"ids": ["a\0b"]}  # a store may not be able to look it up
    for arguments in (nul, {"ids": 7}, {"ids": [7]}, {"ids": ["x"] * 1001}, {}, {"ids": None}):
        assert ["bad-arguments"] == codes(guarded.send("A", Call("c", "get", pack(arguments))))
    assert ["bad-arguments"] == codes(guarded.send("A", Call("c", "get", pack([1]))))
    assert ["bad-arguments"] == codes(guarded.send("A", Call("c", "info", pack({"id": b"x"}))))
    now = guarded.broker.clock.now()
    guarded.access.receive("main", [b"peer", *Call("c", "get", pack(nul)).frames()], "A", now)
    assert not guarded.core.state.writes
    guarded.broker.tick()
    assert ["bad-arguments"] == codes(guarded.broker.took(b"peer"))
    assert ["unknown-call"] == codes(guarded.send("A", Call("c", "dance", pack({}))))
    assert ["job-not-found"] == codes(guarded.send("A", Call("c", "info", pack({"id": "x"}))))


def test_what_is_remembered_of_sessions_is_bounded(make) -> None:
    guarded = make(EVERYBODY)
    for i in range(500):
        guarded.send("W", Inform(f"i{i}", "", "worker", f"session:s{i}"))
    assert 1 == len(guarded.core.state.sessions)
    assert len(guarded.access._session_keys) < 100


# Graphs


def test_a_graph_belongs_to_the_key_that_submitted_it(make) -> None:
    """No other key may read or cancel it, or get a receipt for its id."""
    bob = Grant("B", "bob", frozenset({"client"}))
    guarded = make({**EVERYBODY, "B": bob})
    rows = [(job_id, 0, b"") for job_id in ("g1", "g2")]
    body = encode_graph([("default", "content-type:x,graph:n")], rows, Plan([-1, 0], [0]))
    graph = Request("g1", "", "ack-requested,nodes:2", body)
    assert [] == codes(guarded.send("A", graph, b"alice"))
    assert [] == codes(guarded.send("A", graph, b"alice"))
    assert ["not-allowed"] == codes(guarded.send("B", graph, b"bob"))
    for name in ("graph", "cancel_graph"):
        call = Call(f"{name}-of-bob", name, pack({"id": "g2"}))
        assert ["not-allowed"] == codes(guarded.send("B", call, b"bob"))
        assert [] == codes(guarded.send("A", call, b"alice"))
