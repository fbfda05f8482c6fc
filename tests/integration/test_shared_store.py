"""Brokers with one store: one owns it, the others stand by, and peers know the owner."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from eventmq.broker.relays import PREFIX
from eventmq.broker.runner import BrokerRunner
from eventmq.clock import SystemClock
from eventmq.errors import BindError, StoreError
from eventmq.plugins.queue_stores.sqlite.store import SqliteStore
from eventmq.plugins.routing import LeastRecentlyUsed, WeightedFair
from eventmq.store.lease import Claimant
from eventmq.wire.commands import (
    Error,
    Kbai,
)
from eventmq.wire.owner import OwnerInfo
from tests.support.cli_harness import Cli, open_cli
from tests.support.keyed_broker import Keys
from tests.support.owner_harness import DEADLINE, LIMITS, Brokers, is_again, legacy
from tests.support.shared_store import SharedLease

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    return open_cli(tmp_path, monkeypatch)


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    brokers = Brokers()
    yield brokers
    brokers.close()


def test_the_second_broker_stands_by_and_names_the_owner(brokers: Brokers) -> None:
    first, second = brokers.start(), brokers.start()
    owner = brokers.peer(first).inform()
    assert owner == OwnerInfo(1, "active", first.addresses["main"], "", "s1")
    peer = brokers.peer(second)
    assert peer.inform() == owner._replace(role="standby")
    refused = peer.submit()
    error = peer.until(lambda m: isinstance(m, Error) and m.request == refused)
    assert isinstance(error, Error)
    assert error.code == "no-owner"
    assert owner.address in error.text
    assert peer.until_owner(lambda _: True) == owner._replace(role="standby")
    assert brokers.database.epochs.count(2) == 0


def test_status_shows_role_and_owner(brokers: Brokers) -> None:
    first, second = brokers.start(), brokers.start()
    for runner, role in ((first, "active"), (second, "standby")):
        status = brokers.peer(runner).call("status")
        assert (status["role"], status["owner"]) == (role, first.addresses["main"])
        assert (status["epoch"], status["store"]) == (1, "s1")


def test_an_owner_that_ends_leaves_the_store_to_a_standby(brokers: Brokers) -> None:
    """Its peers get its goodbye, those of the standby a message about the new owner at once."""
    first, second = brokers.start(), brokers.start()
    peer, other = brokers.peer(first), brokers.peer(second)
    peer.inform()
    other.inform()
    job = peer.submit()
    peer.receipt(job)
    brokers.stop(first)
    peer.until(lambda m: isinstance(m, Kbai))
    owner = other.until_owner(lambda o: o.role == "active")
    assert owner == OwnerInfo(2, "active", second.addresses["main"], "", "s1")
    other.until(is_again)
    assert other.inform() == owner
    assert other.call("state", ids=[job]) == [[job, "queued"]]


def test_a_commit_whose_end_is_not_known_is_read_anew(brokers: Brokers) -> None:
    """The broker owns the store in another epoch; repeated messages are stored once."""
    for fault in ("after", "before"):
        runner = brokers.start()
        peer = brokers.peer(runner)
        epoch = peer.inform().epoch
        brokers.database.faults.append(fault)
        job = peer.submit()
        owner = peer.until_owner(lambda o: o.role == "active" and o.epoch > epoch)  # noqa: B023
        assert owner.epoch == epoch + 1
        peer.until(is_again)
        peer.inform()
        peer.submit(job)
        peer.receipt(job)
        queues = {row["name"]: row for row in peer.call("queues")}
        assert queues["default"]["waiting"] == 1 + (fault == "before")
        brokers.stop(runner)


def test_while_the_database_is_away_peers_stay_and_get_the_reason(brokers: Brokers) -> None:
    runner = brokers.start()
    peer = brokers.peer(runner)
    peer.inform()
    brokers.database.go_away()
    peer.until_owner(lambda o: o.role == "standby" and not o.address)
    peer.until(is_again)
    assert peer.inform().epoch == 1
    refused = peer.submit()
    error = peer.until(lambda m: isinstance(m, Error) and m.request == refused)
    assert isinstance(error, Error)
    assert error.code == "no-owner"
    assert "the database cannot be reached" in error.text
    brokers.database.down = False
    owner = peer.until_owner(lambda o: o.role == "active")
    assert owner.epoch == 2
    peer.inform()
    peer.submit(refused)
    peer.receipt(refused)


def test_an_owner_that_was_overtaken_stands_by(brokers: Brokers) -> None:
    """It notices at its next renewal at the latest, even without messages."""
    runner = brokers.start()
    peer = brokers.peer(runner)
    peer.inform()
    lease = SharedLease(brokers.database)
    assert lease.claim(lease.look(), Claimant("third", "tcp://10.0.0.3:1")) == 2
    owner = peer.until_owner(lambda o: o.epoch == 2)
    assert owner == OwnerInfo(2, "standby", "tcp://10.0.0.3:1", "", "s1")
    peer.until(is_again)
    peer.inform()
    lease.close()  # and is gone
    assert peer.until_owner(lambda o: o.role == "active").epoch == 3


def test_handover_returns_when_another_broker_owns_the_store(brokers: Brokers) -> None:
    first, second = brokers.start(), brokers.start()
    peer = brokers.peer(first)
    peer.inform()
    job = peer.submit()
    assert peer.call("handover") == {"owner": second.addresses["main"], "epoch": 2}
    assert brokers.peer(second).call("state", ids=[job]) == [[job, "queued"]]
    assert brokers.peer(second).call("handover")["owner"] == first.addresses["main"]


def test_handover_without_a_standby_is_an_error(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventmq.broker.ownership.HANDOVER", 0.3)
    runner = brokers.start()
    peer = brokers.peer(runner)
    error = peer.call("handover")
    assert (type(error), error.code) == (Error, "no-standby")
    assert brokers.peer(runner).inform().role == "active"
    assert brokers.database.row.epoch == 2


def test_peers_get_the_advertised_address(brokers: Brokers) -> None:
    first = brokers.start(advertise="tcp://broker-1.example:47291")
    second = brokers.start()
    assert brokers.peer(first).inform().address == "tcp://broker-1.example:47291"
    assert brokers.peer(second).inform().address == "tcp://broker-1.example:47291"


@pytest.mark.parametrize("host", ["*", "0.0.0.0", "[::]"])
def test_a_wildcard_needs_an_address_for_peers(brokers: Brokers, host: str) -> None:
    runner = brokers.make(f"tcp://{host}:0", insecure=True)
    with pytest.raises(BindError, match="--advertise tcp://HOST:PORT"):
        runner.bind()
    assert brokers.database.row.epoch == 0


def test_a_broker_does_not_start_without_the_database(brokers: Brokers) -> None:
    """Nor with another store than the expected one."""
    brokers.database.down = True
    with pytest.raises(StoreError, match="cannot be reached"):
        brokers.make().bind()
    brokers.database.down = False
    with pytest.raises(StoreError, match="the store has the id s1, and expect_store says s2"):
        brokers.make(expect_store="s2").bind()
    assert brokers.database.row.epoch == 0


def test_peers_get_the_key_of_the_owner(brokers: Brokers, tmp_path: Path) -> None:
    """Each broker has its own; the owner checks the role of a key, and reloads keys."""
    one, two = Keys(tmp_path / "one"), Keys(tmp_path / "two")
    for keys in (one, two):
        keys.pairs["admin"] = one.pair("admin")
        keys.pairs["client"] = one.pair("client")
        keys.authorize("admin", "admin", "client")
        keys.authorize("client", "client")
    first = brokers.start(keys_dir=one.folder)
    second = brokers.start(keys_dir=two.folder)
    peer, other = brokers.peer(first, one.of("client")), brokers.peer(second, two.of("client"))
    address, key = first.addresses["main"], one.broker[0].decode()
    assert peer.inform() == OwnerInfo(1, "active", address, key, "s1")
    assert other.inform() == OwnerInfo(1, "standby", address, key, "s1")
    peer.receipt(peer.submit())
    assert peer.call("handover").code == "not-allowed"
    answer = brokers.peer(first, one.of("admin")).call("handover")
    assert answer == {"owner": second.addresses["main"], "epoch": 2}
    other.until(is_again)
    assert other.inform().key == two.broker[0].decode()
    other.receipt(other.submit())
    assert other.call("handover").code == "not-allowed"


# The command line


def test_health_is_an_exit_code(brokers: Brokers, cli: Cli) -> None:
    """A standby is ready while it knows the owner; it is alive in any case."""
    first, second = brokers.start(), brokers.start()
    for runner in (first, second):
        address = runner.addresses["main"]
        for check in (["--check"], ["--check", "ready"], ["--check", "live"]):
            result = cli.run("status", *check, "--broker", address)
            assert (result.exit_code, result.output) == (0, "")
    brokers.stop(first)
    brokers.peer(second).until_status(lambda status: status["role"] == "active")
    brokers.database.go_away()
    brokers.peer(second).until_status(lambda status: status["trouble"])
    address = second.addresses["main"]
    assert cli.run("status", "--check", "--broker", address).exit_code == 1
    assert cli.run("status", "--check", "live", "--broker", address).exit_code == 0
    shown = cli.run("status", "--broker", address)
    assert "attention: the store cannot be used now: the database cannot be" in shown.output
    brokers.database.down = False


def test_status_shows_the_role(brokers: Brokers, cli: Cli) -> None:
    first, second = brokers.start(), brokers.start()
    address = first.addresses["main"]
    for runner, role in ((first, "active"), (second, "standby")):
        status = cli.json("status", "--json", "--broker", runner.addresses["main"])
        assert (status["role"], status["owner"]) == (role, address)
        assert (status["epoch"], status["store_id"]) == (1, "s1")
    text = cli.run("status", "--broker", f"{address},{second.addresses['main']}").output
    assert f"owner of the store, epoch 1, at {address}" in text
    assert "0 waiting" in text
    text = cli.run("status", "--broker", second.addresses["main"]).output
    assert "since 1970" not in text
    assert "waiting" not in text  # of jobs the owner knows
    assert f"standby; the owner of the store is epoch 1 at {address}" in text


def test_the_command_hands_the_store_over(brokers: Brokers, cli: Cli) -> None:
    first, second = brokers.start(), brokers.start()
    answer = cli.json("broker", "handover", "--json", "--broker", first.addresses["main"])
    assert answer == {"owner": second.addresses["main"], "epoch": 2}


def test_the_command_waits_until_no_other_broker_has_taken_the_store(
    brokers: Brokers, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For any value of the setting for jobs."""
    monkeypatch.setattr("eventmq.broker.ownership.HANDOVER", 1.0)
    monkeypatch.setenv("EVENTMQ_SUBMIT_TIMEOUT", "0.5")
    address = brokers.start().addresses["main"]
    code, text = cli.error("broker", "handover", "--broker", address)
    assert (code, "no other broker took the store over" in text) == (1, True)
    assert brokers.database.row.epoch == 2


def test_a_store_that_is_not_shared_cannot_be_handed_over(cli: Cli, tmp_path: Path) -> None:
    alone = BrokerRunner(
        store=SqliteStore(tmp_path, SystemClock(), reserve=0), limits=LIMITS,
        routing=LeastRecentlyUsed(), queue_order=WeightedFair,
        binds={"main": "tcp://127.0.0.1:0"}, clock=SystemClock(),
    )  # fmt: skip
    alone.bind()
    thread = threading.Thread(target=alone.run)
    thread.start()
    try:
        address = alone.addresses["main"]
        code, text = cli.error("broker", "handover", "--broker", address)
        assert (code, "is not shared" in text) == (1, True)
        status = cli.json("status", "--json", "--broker", address)
        assert (status["role"], status["owner"]) == ("active", address)
    finally:
        alone.stop()
        thread.join(DEADLINE)


def test_a_standby_that_cannot_use_the_store_is_not_ready(brokers: Brokers, cli: Cli) -> None:
    """It could not take over, although it knows the last owner of the store."""
    brokers.start()
    second = brokers.start()
    brokers.database.go_away()
    brokers.peer(second).until_status(lambda status: status["trouble"])
    assert brokers.peer(second).call("status")["owner"]
    assert cli.run("status", "--check", "--broker", second.addresses["main"]).exit_code == 1
    brokers.database.down = False
    brokers.peer(second).until_status(lambda status: not status["trouble"])


# Legacy peers


PLAIN = b'["run", {"callable": "f", "path": "m", "args": [], "kwargs": {}}]'


def test_a_standby_passes_messages_of_legacy_peers_on_to_the_owner(brokers: Brokers) -> None:
    """A job from a legacy client of a standby to a legacy worker of a standby, and back."""
    first, second = brokers.start(), brokers.start()
    client, worker = legacy(brokers, second, b"old-client"), legacy(brokers, second)
    worker.inform(b"worker", b'[[10, "q"]]')
    worker.send(b"READY")
    job = client.send(b"REQUEST", b"q", b"guarantee,reply-requested", PLAIN)
    assert client.expect(b"ACK")[4] == job
    request = worker.expect(b"REQUEST")
    assert (request[3], request[6]) == (job, PLAIN)
    worker.send(b"REPLY", b'{"value": 7}', job)
    assert client.expect(b"REPLY")[4:6] == [b'{"value": 7}', job]
    assert worker.expect(b"HEARTBEAT")
    status = brokers.peer(first).call("status")
    assert len(status["connected_workers"]) == 1
    assert brokers.peer(second).call("status")["connected_workers"] == {}


def test_what_was_passed_on_is_never_passed_on_again(brokers: Brokers) -> None:
    """Otherwise two standbys that each take the other for the owner would forward for ever."""
    first, second = brokers.start(), brokers.start()
    peer = legacy(brokers, second, PREFIX + b"x")
    peer.send(b"REQUEST", b"q", b"guarantee", PLAIN)
    assert peer.silent()
    assert brokers.peer(first).call("queues") == []


def test_a_standby_that_takes_over_serves_its_legacy_peers_itself(brokers: Brokers) -> None:
    first, second = brokers.start(), brokers.start()
    client = legacy(brokers, second)
    job = client.send(b"REQUEST", b"q", b"guarantee", PLAIN)
    assert client.expect(b"ACK")[4] == job
    brokers.stop(first)
    brokers.peer(second).until_status(lambda status: status["role"] == "active")
    other = client.send(b"REQUEST", b"q", b"guarantee", PLAIN)
    assert client.expect(b"ACK")[4] == other
    assert brokers.peer(second).call("queues")[0]["waiting"] == 2


def test_without_an_owner_a_legacy_peer_finds_no_one(brokers: Brokers) -> None:
    """As if the broker were down; it gets no messages about owners, which it does not know."""
    runner = brokers.start()
    peer = brokers.peer(runner)
    peer.inform()
    brokers.database.go_away()
    peer.until_owner(lambda o: not o.address)
    client = legacy(brokers, runner)
    client.send(b"REQUEST", b"q", b"guarantee", PLAIN)
    assert client.silent()
    brokers.database.down = False
    peer.until_status(lambda status: status["role"] == "active")
    job = client.send(b"REQUEST", b"q", b"guarantee", PLAIN)
    assert client.expect(b"ACK")[4] == job
