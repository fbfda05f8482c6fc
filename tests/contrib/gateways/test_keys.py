"""CURVE on the ports of mc0 and majordomo: served, refused and disconnected peers."""

from __future__ import annotations

import time

import pytest
import zmq

from eventmq.errors import KeyFileError, NotAllowed, PluginError
from tests.contrib.gateways.majordomo_peers import NAME, answer, ask, final, next_request, register
from tests.contrib.gateways.raw_dealer import DEADLINE
from tests.support.keyed_broker import Keys

#: Seconds during which no message may arrive.
QUIET = 0.4

OK = [b"", b"OK", b"ID", b"1"]


@pytest.fixture
def keys(tmp_path):
    keys = Keys(tmp_path)
    for name in ("alice", "bob"):
        keys.authorize(name, "client")
    keys.authorize("wendy", "worker")
    return keys


@pytest.fixture
def mc0(start, keys):
    return start("mc0", bind="tcp://127.0.0.1:0", keys_dir=str(keys.folder))[0]


@pytest.fixture
def majordomo(farm, keys):
    return farm.gateway(keys_dir=str(keys.folder))[1]


def noop(peer):
    return peer.ask("", "NOOP", "ID", "1")


def until(condition, what):
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def test_a_listed_client_is_served(dealer, keys, mc0):
    assert OK == noop(dealer(mc0, b"", keys.of("alice")))


def test_strangers_are_refused_and_logged_once(dealer, keys, mc0, caplog):
    """No key, an unlisted key, another server's key; a neighbour is served."""
    mallory = [dealer(mc0, b"", keys.of("mallory")) for _ in range(2)]
    plain = dealer(mc0)
    other = dealer(mc0, b"", (zmq.curve_keypair()[0], *keys.pair("alice")))
    _, secret = zmq.curve_keypair()
    shown = dealer(mc0, b"", (keys.broker[0], keys.pair("alice")[0], secret))
    peers = [*mallory, plain, other, shown]
    for peer in peers:
        peer.send_if_connected("", "NOOP", "ID", "1")
    assert OK == noop(dealer(mc0, b"", keys.of("alice")))
    until(lambda: "is not authorised" in caplog.text, "mallory was not logged")
    until(lambda: "without CURVE" in caplog.text, "the peer without a key was not logged")
    assert [None] * len(peers) == [peer.next(QUIET / 4) for peer in peers]
    assert 1 == caplog.text.count("is not authorised")
    assert 1 == caplog.text.count("without CURVE")


def test_a_role_is_for_its_port(dealer, keys, majordomo):
    """A client's key is refused where workers connect, and a worker's where clients do."""
    front, back = majordomo
    worker = dealer(back, b"", keys.of("alice"))
    worker.send_if_connected(NAME, b"\x01", "echo")
    client = dealer(front, b"", keys.of("wendy"))
    client.send_if_connected("MDPC02", b"\x01", "echo", b"1", b"x")
    worker.send_if_connected(NAME, b"PING")
    assert [None, None] == [worker.next(QUIET), client.next(QUIET)]


def test_requests_of_listed_clients_are_done_by_listed_workers(dealer, keys, majordomo):
    front, back = majordomo
    client = dealer(front, b"me", keys.of("alice"))
    worker = register(dealer, back, "echo", keys.of("wendy"))
    ask(client, "echo", b"1", b"x")
    address, id, body = next_request(worker)
    answer(worker, b"\x04", address, id, body)
    assert final("echo", b"1", b"x") == client.next()


def test_a_routing_id_gives_no_client_the_reply_of_another(dealer, keys, majordomo):
    """Bob calls himself as Alice did before her reply came, and asks what she asked."""
    front, back = majordomo
    alice = dealer(front, b"same", keys.of("alice"))
    worker = register(dealer, back, "echo", keys.of("wendy"))
    ask(alice, "echo", b"1", b"hers")
    address, id, _ = next_request(worker)
    alice.close()
    silent = [dealer(front, b"same", keys.of("bob")) for _ in range(3)]
    assert [None] * 3 == [peer.next(QUIET / 2) for peer in silent]
    answer(worker, b"\x04", address, id, [b"hers"])
    assert [None] * 3 == [peer.next(QUIET / 2) for peer in silent]
    for peer in silent:
        peer.close()
    bob = None
    while bob is None:
        bob = _asked(dealer(front, b"same", keys.of("bob")), worker)
    assert final("echo", b"1", b"his") == bob.next()
    assert bob.next(QUIET) is None


def _asked(bob, worker):
    """Ask as bob and answer that; None if the routing id was still that of the other connection."""
    ask(bob, "echo", b"1", b"his")
    frames = worker.next(0.3)
    if frames is None:
        bob.close()
        return None
    assert [b"his"] == frames[5:]
    answer(worker, b"\x04", frames[2], frames[4], [b"his"])
    return bob


def test_a_revoked_subscriber_receives_nothing_more(app, dealer, keys, mc0, caplog):
    """Nor are its messages read; other peers are still served, without a restart."""
    alice, bob = (dealer(mc0, b"", keys.of(name)) for name in ("alice", "bob"))
    for peer in (alice, bob):
        assert OK == peer.ask("", "SUB", "ID", "1", "", "t")
    keys.revoke("bob")
    while f"{keys.user('bob')} refused: it is not authorised any more" not in caplog.text:
        bob.send_if_connected("", "NOOP", "ID", "1")
        until(lambda: bob.next(0.02) or "any more" in caplog.text, "neither served nor refused")
    app.publish("t", b"secret")
    assert [b"", b"MESSAGE", b"TOPIC", b"t", b"", b"secret"] == alice.next()
    assert [] == [frames for frames in iter(lambda: bob.next(QUIET), None) if frames != OK]
    assert OK == noop(alice)


def test_what_a_revoked_worker_had_goes_to_another(dealer, keys, majordomo):
    front, back = majordomo
    keys.authorize("walt", "worker")
    client = dealer(front, b"", keys.of("alice"))
    wendy = register(dealer, back, "echo", keys.of("wendy"))
    ask(client, "echo", b"1", b"x")
    address, id, _ = next_request(wendy)
    keys.revoke("wendy")
    walt = register(dealer, back, "echo", keys.of("walt"))
    forged = (address, id, [b"forged"])
    address, id, body = next_request(walt)
    answer(wendy, b"\x04", *forged)
    answer(walt, b"\x04", address, id, body)
    assert final("echo", b"1", b"x") == client.next()


def test_a_key_is_listed_while_the_gateway_runs(dealer, keys, mc0):
    assert _refused(dealer(mc0, b"", keys.of("late")))
    keys.authorize("late", "client")
    assert OK == noop(dealer(mc0, b"", keys.of("late")))


def _refused(peer):
    peer.send_if_connected("", "NOOP", "ID", "1")
    return peer.next(QUIET) is None


def test_any_key_is_served_where_the_operator_lists_none(dealer, keys, start):
    """Encrypted, but unchecked; without CURVE no peer is served."""
    options = {"bind": "tcp://127.0.0.1:0", "keys_dir": str(keys.folder), "any_key": True}
    (address,) = start("mc0", **options)
    assert OK == noop(dealer(address, b"", keys.of("mallory")))
    assert _refused(dealer(address))


@pytest.mark.parametrize("name", ["mc0", "majordomo"])
def test_off_loopback_wants_keys(farm, keys, dealer, name):
    with pytest.raises(NotAllowed, match="--keys-dir, or say --insecure"):
        farm.gateway(name, bind="tcp://0.0.0.0:0")
    assert farm.gateway(name, bind="tcp://0.0.0.0:0", keys_dir=str(keys.folder))[1]


def test_the_self_test_ends_a_gateway_that_accepts_any_key(keys, start, monkeypatch):
    monkeypatch.setattr("eventmq.gateway.access.GatewayAuthenticator._connects", _anybody)
    with pytest.raises(NotAllowed, match="an unauthorised key was let in"):
        start("mc0", bind="tcp://127.0.0.1:0", keys_dir=str(keys.folder))


def _anybody(*_):
    return True


def test_options_that_cannot_be_are_refused(keys, start, tmp_path):
    with pytest.raises(KeyFileError, match=r"broker\.key_secret cannot be read"):
        start("mc0", keys_dir=str(tmp_path / "none"))
    with pytest.raises(PluginError, match="'any_key' needs 'keys_dir'"):
        start("mc0", any_key=True)
