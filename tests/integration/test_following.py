"""Clients, workers and beats of brokers that share a store: they follow its owner."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from eventmq import every
from eventmq.errors import BrokerUnavailable
from eventmq.wire.curve import Certificate, write_new
from tests.support.cli_harness import Cli, open_cli
from tests.support.keyed_broker import Keys
from tests.support.shared_brokers import DEADLINE, Shop, StoppedStore, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def shop() -> Iterator[Shop]:
    shop = Shop()
    yield shop
    shop.close()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_jobs_and_their_results_survive_the_end_of_the_owner(
    shop: Shop, order: tuple[int, int]
) -> None:
    """For any order of the addresses: waiting jobs, running jobs and waiting clients continue."""
    both = shop.broker(), shop.broker()
    addresses = [both[index] for index in order]
    app = shop.app(*addresses)
    shop.work(shop.app(*addresses))
    running = app.send("hold", (1,))
    waiting = [app.send("hold", (n,)) for n in range(2, 10)]
    wait_for(lambda: len(shop.ran) == 4)
    assert shop.stop_owner() == both[1]
    later = app.send("note", (10,))
    shop.release.set()
    results = [job.get(timeout=DEADLINE) for job in (running, *waiting, later)]
    assert results == [2 * n for n in range(1, 11)]
    assert sorted(shop.ran) == list(range(1, 11))
    assert running.info()["delivery"] == 1


def test_one_address_is_enough_to_find_the_owner(shop: Shop) -> None:
    owner, standby = shop.broker(), shop.broker()
    app = shop.app(standby)
    shop.work(shop.app(standby))
    assert app.send("note", (1,)).get(timeout=DEADLINE) == 2
    assert app.ask("status")["role"] == "standby"
    assert app.ask("status")["owner"] == owner
    assert shop.stop_owner() == standby
    assert app.send("note", (2,)).get(timeout=DEADLINE) == 4
    assert app.ask("status")["role"] == "active"


def test_an_owner_that_begins_anew_is_given_what_it_may_have_lost(shop: Shop) -> None:
    """Its connection to the database was lost, before or after a commit."""
    address = shop.broker()
    app = shop.app(address)
    shop.work(shop.app(address))
    for number, fault in enumerate(["before", "after", "before", "after"]):
        shop.database.faults += ["", fault]
        assert app.send("note", (number,)).get(timeout=DEADLINE) == 2 * number
    assert sorted(set(shop.ran)) == [0, 1, 2, 3]
    assert shop.database.row.epoch > 4


def test_a_chunk_of_an_owner_that_was_stopped_is_not_started(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """The next owner finds the lease in the store, and sends the chunk itself."""
    store = StoppedStore(shop.database.store())
    addresses = shop.broker(store), shop.broker()
    app = shop.app(*addresses)
    shop.work(shop.app(*addresses))
    job = app.send("note", (1,))
    assert job.get(timeout=DEADLINE) == 2
    assert store.stopped
    assert shop.database.row.address == addresses[1]
    store.resume.set()
    ignored = "messages of a broker that does not own the store are ignored; the owner has"
    wait_for(lambda: ignored in caplog.text)
    assert app.send("note", (2,)).get(timeout=DEADLINE) == 4
    assert shop.ran == [1, 2]


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Keys]:
    """The keys of two brokers that let the same peer in."""
    folders = {name: Keys(tmp_path / name) for name in ("first", "second")}
    for own in folders.values():
        own.pairs["peer"] = folders["first"].pair("peer")
        own.authorize("peer", "admin", "client", "worker")
    public, secret = (key.decode() for key in folders["first"].pair("peer"))
    write_new(tmp_path / "peer.key_secret", Certificate(public, secret), "test")
    return folders


def broker_key(keys: Keys) -> str:
    return str(keys.folder / "broker.key")


def test_each_broker_of_a_store_may_have_its_own_key(
    shop: Shop, keys: dict[str, Keys], tmp_path: Path
) -> None:
    """Peers reach the next owner with its key, even at an address that was not configured."""
    first, second = (shop.broker(keys_dir=own.folder) for own in keys.values())
    files = [broker_key(own) for own in keys.values()]
    key_file = {"key_file": str(tmp_path / "peer.key_secret")}
    app = shop.app(first, second, broker_key_file=files, **key_file)
    shop.work(shop.app(second, first, broker_key_file=files[::-1], **key_file))
    assert app.send("note", (1,)).get(timeout=DEADLINE) == 2
    assert shop.stop_owner() == second
    assert app.send("note", (2,)).get(timeout=DEADLINE) == 4


def test_a_standby_that_cannot_be_used_is_named_in_the_log(
    shop: Shop, keys: dict[str, Keys], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not only after the end of the owner."""
    first, second = (shop.broker(keys_dir=own.folder) for own in keys.values())
    shop.work(
        shop.app(
            first, second, broker_key_file=broker_key(keys["first"]),
            key_file=str(tmp_path / "peer.key_secret"),
        )
    )  # fmt: skip
    wait_for(lambda: f"the broker at {second} cannot be used: the handshake failed" in caplog.text)


def test_an_owner_whose_key_is_not_configured_is_not_used(
    shop: Shop, keys: dict[str, Keys], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The error names the setting."""
    first, second = (shop.broker(keys_dir=own.folder) for own in keys.values())
    app = shop.app(
        second, broker_key_file=broker_key(keys["second"]), submit_timeout=1.0,
        key_file=str(tmp_path / "peer.key_secret"),
    )  # fmt: skip
    known = keys["first"].broker[0].decode()
    expected = (
        f"the owner is {first}, but its public key {known} is not in broker_key_file: add its"
    )
    with pytest.raises(BrokerUnavailable) as raised:
        app.send("note", (1,))
    assert expected in str(raised.value)
    assert expected in caplog.text


def test_while_no_broker_owns_the_store_a_call_waits_until_its_deadline(shop: Shop) -> None:
    address = shop.broker()
    app = shop.app(address)
    app.send("note", (1,))
    shop.database.go_away()
    with pytest.raises(BrokerUnavailable, match="the database cannot be reached"):
        shop.app(address, submit_timeout=1.0).send("note", (3,))
    waiting: list[Any] = []
    thread = threading.Thread(target=lambda: waiting.append(app.send("note", (2,))))
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()
    shop.database.down = False
    thread.join(DEADLINE)
    assert not thread.is_alive()
    assert app.job(waiting[0].id).state == "queued"


def test_schedules_go_on_with_the_next_owner(shop: Shop) -> None:
    addresses = shop.broker(), shop.broker()
    app = shop.app(*addresses)
    shop.work(shop.app(*addresses))
    app.schedule("often", app.tasks["note"].s(1), every(seconds=0.2))
    shop.beat(shop.app(*addresses))
    wait_for(lambda: len(shop.ran) > 2)
    shop.stop_owner()
    before = len(shop.ran)
    wait_for(lambda: len(shop.ran) > before + 2)


def test_a_handover_that_a_standby_is_asked_for_happens_once(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command finds the owner; the next one does not hand the store back."""
    cli: Cli = open_cli(tmp_path, monkeypatch)
    first, second = shop.broker(), shop.broker()
    for options in (["--broker", second], ["--broker", f"{first},{second}"]):
        before = shop.database.row
        result = cli.run("broker", "handover", *options, "--json")
        assert result.exit_code == 0, result.stderr
        answer = json.loads(result.stdout)
        assert answer["owner"] == shop.database.row.address != before.address
        assert answer["epoch"] == shop.database.row.epoch == before.epoch + 1
