"""The broker's directory of keys and its changes, the answers to libzmq, and the self-test."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zmq
from zmq.utils import z85

from eventmq.broker.authenticator import Authenticator
from eventmq.broker.core import BrokerCore
from eventmq.broker.grants import Grant
from eventmq.broker.limits import Limits
from eventmq.errors import KeyFileError, NotAllowed
from eventmq.wire import zap_thread
from eventmq.wire.connections import Connections
from eventmq.wire.curve import Certificate, fingerprint, write_new
from eventmq.wire.sockets import new_context, open_router
from eventmq.wire.zap_thread import KeyRing, ZapThread, has_keys, reread_keys
from tests.support.broker_harness import FirstQueue, FirstWorker
from tests.support.keyed_broker import Keys

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


def ring_of(keys: Keys) -> KeyRing:
    return KeyRing(keys.folder, Grant.read)


def refreshed(ring: KeyRing) -> Any:
    """Return the grants after a scan of the directory, even right after the last scan."""
    ring._refresh_at = 0.0
    return ring.refresh()


# SIGHUP


def test_keys_are_read_again_on_request_though_their_files_look_as_before(keys: Keys) -> None:
    """With the same size and time, as some tools write files, a scan does not see the change."""
    alice = keys.authorize("alice", "client")
    ring = ring_of(keys)
    path = keys.clients / "alice.key"
    before = path.stat()
    path.write_text(path.read_text().replace('"client"', '"worker"'))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert before.st_size == path.stat().st_size
    assert refreshed(ring)[alice.key] == alice
    assert reread_keys()
    assert refreshed(ring)[alice.key].roles == {"worker"}


def test_a_changed_key_of_the_server_itself_waits_for_a_restart(
    keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    ring = ring_of(keys)
    before = ring.broker
    ring.reread()
    refreshed(ring)
    assert "restart" not in caplog.text
    public, secret = (key.decode() for key in zmq.curve_keypair())
    own = keys.folder / "broker.key_secret"
    own.unlink()
    write_new(own, Certificate(public, secret), "test")
    ring.reread()
    refreshed(ring)
    assert "the server's own key has changed: the new one is used after a restart" in caplog.text
    own.unlink()
    ring.reread()
    refreshed(ring)
    assert "the server's own key cannot be read, the one in use stays" in caplog.text
    assert before == ring.broker


# The directory


def test_a_ring_has_the_grants_of_its_directory(keys: Keys) -> None:
    alice, gina = keys.authorize("alice", "client"), keys.authorize("gina", "gateway")
    ring = ring_of(keys)
    assert {alice.key, gina.key} == set(ring.grants)
    assert alice == ring.grants[alice.key]
    assert keys.broker[1].decode() == ring.broker.secret


def test_the_grants_are_the_same_object_while_nothing_changes(keys: Keys) -> None:
    """So one comparison shows that nothing has changed."""
    keys.authorize("alice", "client")
    ring = ring_of(keys)
    before = ring.grants
    assert refreshed(ring) is before
    keys.authorize("bob", "client")
    assert len(refreshed(ring)) == 2
    keys.revoke("alice")
    assert len(refreshed(ring)) == 1


def test_an_edited_file_is_read_again(keys: Keys) -> None:
    grant = keys.authorize("alice", "client")
    ring = ring_of(keys)
    path = keys.clients / "alice.key"
    path.write_text(path.read_text().replace('"client"', '"client,admin"'))
    assert frozenset({"client", "admin"}) == refreshed(ring)[grant.key].roles


def test_a_new_key_is_known_at_once(keys: Keys) -> None:
    """At its first handshake, since libzmq would not try again."""
    ring = ring_of(keys)
    for name in ("a", "b", "c"):
        grant = keys.authorize(name, "client")
        assert ring.knows(grant.key)
    assert not ring.knows("stranger")


@pytest.mark.parametrize(
    "text", ["", "garbage", 'curve\n    public-key = "short"\n', 'metadata\n    name = "x"\n']
)  # fmt: skip
def test_a_file_that_is_none_authorises_no_key_and_is_named(keys: Keys, text: str, caplog) -> None:
    """The other files are used."""
    alice = keys.authorize("alice", "client")
    (keys.clients / "odd.key").write_text(text)
    assert {alice.key} == set(ring_of(keys).grants)
    assert "odd.key" in caplog.text


def test_a_grant_without_a_known_role_authorises_no_key(keys: Keys, caplog) -> None:
    keys.authorize("alice", "client")
    path = keys.clients / "alice.key"
    path.write_text(path.read_text().replace('"client"', '"king"'))
    assert {} == ring_of(keys).grants
    assert "unknown role 'king'" in caplog.text


def test_one_key_under_two_names_is_refused(keys: Keys, caplog) -> None:
    """Otherwise revoking one name would not revoke the key."""
    keys.authorize("alice", "client")
    text = (keys.clients / "alice.key").read_text()
    (keys.clients / "twin.key").write_text(text.replace("alice", "twin"))
    assert {} == ring_of(keys).grants
    assert "two files have the same key" in caplog.text


def test_other_files_and_half_written_ones_are_left_alone(keys: Keys) -> None:
    keys.authorize("alice", "client")
    text = (keys.clients / "alice.key").read_text()
    for name in (".bob.key.1234", ".bob.key", "bob.key~", "README"):
        (keys.clients / name).write_text(text)
    assert 1 == len(ring_of(keys).grants)


def test_without_the_brokers_key_there_is_no_ring(tmp_path: Path) -> None:
    assert not has_keys(tmp_path)
    with pytest.raises(KeyFileError, match=r"broker\.key_secret cannot be read"):
        KeyRing(tmp_path, Grant.read)


def test_no_client_is_authorised_at_first(keys: Keys) -> None:
    keys.clients.rmdir()
    ring = ring_of(keys)
    assert {} == ring.grants
    keys.clients.mkdir()
    assert ring.knows(keys.authorize("alice", "client").key)


def test_a_file_that_goes_while_it_is_looked_at_revokes_no_other(keys: Keys, monkeypatch) -> None:
    alice = keys.authorize("alice", "client")
    ring = ring_of(keys)
    real = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda path: [*real(path), path / "gone.key"])
    assert {alice.key} == set(refreshed(ring))


def test_keys_that_cannot_be_read_for_a_while_stay(keys: Keys, monkeypatch, caplog) -> None:
    """Without free descriptors no key is revoked; one warning is logged."""
    alice = keys.authorize("alice", "client")
    ring = ring_of(keys)
    bob = keys.authorize("bob", "client")

    def fail(*_: object) -> None:
        raise OSError(24, "too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "iterdir", fail)
        assert {alice.key} == set(refreshed(ring)) == set(refreshed(ring))
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", fail)
        assert {alice.key} == set(refreshed(ring))
    assert 1 == caplog.text.count("those in use stay")
    assert {alice.key, bob.key} == set(refreshed(ring))


def test_a_start_without_readable_keys_is_an_error(keys: Keys, monkeypatch) -> None:
    def fail(_: object) -> None:
        raise OSError(5, "input/output error")

    monkeypatch.setattr(Path, "iterdir", fail)
    with pytest.raises(KeyFileError, match=r"clients cannot be read: .*input/output"):
        ring_of(keys)


# ZAP


def request(key: bytes = b"k" * 32, **more: bytes) -> list[bytes]:
    frames = {"version": b"1.0", "request": b"7", "domain": b"eventmq", "address": b"10.0.0.1",
              "identity": b"", "mechanism": b"CURVE", "key": key}  # fmt: skip
    return list((frames | more).values())


def test_an_authentication_request_is_read_and_answered() -> None:
    assert zap_thread.AuthenticationRequest(
        b"7", b"eventmq", "10.0.0.1", b"k" * 32
    ) == zap_thread.read_request(request())
    assert [b"1.0", b"7", b"200", b"OK", b"user", b""] == zap_thread.accept(b"7", "user")
    assert [b"1.0", b"7", b"400", b"why", b"", b""] == zap_thread.refuse(request(), "why")


@pytest.mark.parametrize(
    "frames",
    [[], [b"1.0"], request(mechanism=b"NULL"), request(mechanism=b"PLAIN"), request(version=b"2.0"),
     request()[:6], [*request(), b"more"]],
)  # fmt: skip
def test_a_request_that_is_not_about_curve_is_refused(frames: list[bytes]) -> None:
    assert zap_thread.read_request(frames) is None
    assert b"400" == zap_thread.refuse(frames)[2]


@pytest.fixture
def context() -> Iterator[zmq.Context]:
    context = new_context()
    yield context
    context.destroy(0)


def test_the_thread_answers_refuses_and_outlives_nonsense(
    keys: Keys, context: zmq.Context, caplog
) -> None:
    alice = keys.authorize("alice", "client")
    thread = ZapThread(context, ring_of(keys))
    asking = context.socket(zmq.REQ)
    asking.connect(zap_thread.ADDRESS)

    def ask(frames: list[bytes]) -> tuple[bytes, bytes]:
        asking.send_multipart(frames)
        assert asking.poll(5000)
        answer = asking.recv_multipart()
        return answer[2], answer[4]

    key = z85.decode(keys.pair("alice")[0])
    assert (b"200", alice.key.encode()) == ask(request(key))
    for _ in range(3):
        assert (b"400", b"") == ask(request(b"x" * 32))
    assert (b"400", b"") == ask(request(b"short"))
    assert (b"400", b"") == ask([b"nonsense"])
    assert (b"200", alice.key.encode()) == ask(request(key))
    asking.close(0)
    thread.stop()
    user = fingerprint(b"x" * 32)
    assert 1 == caplog.text.count(f"connection from 10.0.0.1 refused: its key {user}")


# The self-test


class Open(dict):
    """Grants that contain every key."""

    def __contains__(self, key: object) -> bool:
        return True


def _authenticator(keys: Keys, context: zmq.Context) -> tuple[Authenticator, KeyRing]:
    ring = ring_of(keys)
    core = BrokerCore(Limits(), FirstWorker(), FirstQueue)
    authenticator = Authenticator(core, ring, Connections(lambda _: None), rate=0.0)
    authenticator.open(context)
    return authenticator, ring


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "*"])
def test_the_self_test_sees_that_a_random_key_is_refused(
    keys: Keys, context: zmq.Context, host: str, caplog
) -> None:
    """The self-test logs no warning about its own key."""
    caplog.set_level(logging.INFO)
    authenticator, _ = _authenticator(keys, context)
    link = open_router(context, identified_by=authenticator.identified_by)
    authenticator.encrypt("main", link)
    authenticator.test({"main": link.bind(f"tcp://{host}:0")})
    authenticator.refresh(0.0, lambda: None)
    authenticator.close()
    link.close(0)
    assert "CURVE is on" in caplog.text
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


def test_the_self_test_finds_a_check_that_lets_everybody_in(
    keys: Keys, context: zmq.Context
) -> None:
    """Then the broker must not serve."""
    authenticator, ring = _authenticator(keys, context)
    ring.grants = Open()
    ring._refresh_at = time.monotonic() + 60
    link = open_router(context, identified_by=authenticator.identified_by)
    authenticator.encrypt("main", link)
    with pytest.raises(NotAllowed, match="an unauthorised key was let in"):
        authenticator.test({"main": link.bind("tcp://127.0.0.1:0")})
    authenticator.close()
    link.close(0)


def test_the_self_test_finds_a_socket_without_curve(
    keys: Keys, context: zmq.Context, monkeypatch
) -> None:
    monkeypatch.setattr("eventmq.wire.zap_thread.TEST_TIMEOUT", 0.5)
    authenticator, _ = _authenticator(keys, context)
    link = open_router(context)
    with pytest.raises(NotAllowed, match=r"the self-test of .* failed"):
        authenticator.test({"main": link.bind("tcp://127.0.0.1:0")})
    with pytest.raises(NotAllowed, match="inproc://x has no CURVE"):
        authenticator.test({"main": "inproc://x"})
    authenticator.close()
    link.close(0)


def test_without_the_zap_thread_no_peer_is_let_in(keys: Keys, context: zmq.Context) -> None:
    """libzmq would admit every peer; the ZAP domain requires a handler."""
    keys.authorize("alice", "client")
    authenticator, _ = _authenticator(keys, context)
    link = open_router(context, identified_by=authenticator.identified_by)
    authenticator.encrypt("main", link)
    address = link.bind("tcp://127.0.0.1:0")
    authenticator.close()
    peer = context.socket(zmq.DEALER)
    peer.curve_serverkey, peer.curve_publickey, peer.curve_secretkey = keys.of("alice")
    peer.connect(address)
    peer.send(b"hello")
    assert not link.socket.poll(300)
    peer.close(0)
    link.close(0)
