"""Keys of a server: their directory, and the thread that checks keys for libzmq by ZAP 1.0.

libzmq sends one request per connection, after the client has proven that it has the secret key, and
puts the user id of the answer on every message of that connection (ZeroMQ RFC 27).

The directory has ``broker.key`` and ``broker.key_secret``, the server's own pair, and in
``clients`` a public certificate for each authorised client, whose metadata are its grant. Removing
the file revokes the key, without a restart. Brokers and gateways use this module.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import zmq

from eventmq.errors import KeyFileError, NotAllowed
from eventmq.wakeup import Wakeup
from eventmq.wire.curve import (
    PUBLIC,
    SECRET,
    ClientKeys,
    decode_key,
    fingerprint,
    read_public,
    read_secret,
)
from eventmq.wire.sockets import HANDSHAKES, Link, new_keys, use_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eventmq.wire.curve import Certificate

__all__ = [
    "ADDRESS",
    "BROKER",
    "CLIENTS",
    "AuthenticationRequest",
    "KeyRing",
    "ZapThread",
    "accept",
    "has_keys",
    "read_request",
    "refuse",
    "reread_keys",
]

logger = logging.getLogger("eventmq.keys")

#: Type of a grant, as the owner of a `KeyRing` reads it from a certificate.
GrantT = TypeVar("GrantT")

#: Seconds that the self-test of one address may take.
TEST_TIMEOUT = 5.0

#: Name of the server's own pair, and of the directory with the keys of its clients.
BROKER, CLIENTS = "broker", "clients"

#: Shortest time in seconds between two scans of the directory, however many peers connect.
REFRESH_EVERY = 0.2

#: Errors of a single file; other errors, such as no free descriptors, concern the whole machine.
_OF_THE_FILE = (FileNotFoundError, PermissionError, IsADirectoryError)

#: Largest number of refused (key, address) pairs that are logged.
_WARNED = 1000

#: Address of the ZAP handler, which is the same in every context.
ADDRESS = "inproc://zeromq.zap.01"

_VERSION = b"1.0"


def has_keys(directory: Path) -> bool:
    """Return whether a directory has the key pair of a server, which then uses CURVE."""
    return (directory / f"{BROKER}{SECRET}").exists()


#: The rings of this process, since SIGHUP concerns all of them.
_RINGS: weakref.WeakSet[KeyRing[Any]] = weakref.WeakSet()


def reread_keys() -> bool:
    """Let every ring of this process read its keys again; return whether it has any."""
    rings = list(_RINGS)
    for ring in rings:
        ring.reread()
    return bool(rings)


class KeyRing(Generic[GrantT]):
    """The keys of a directory, read again when it changes. Thread-safe.

    Args:
        directory: Directory of the keys, as described above.
        read: Called with the fingerprint of a key and the metadata of its certificate; returns
            its grant, or raises `KeyFileError`.

    Raises:
        KeyFileError: The server's own pair is missing or invalid.
    """

    def __init__(self, directory: Path, read: Callable[[str, Mapping[str, str]], GrantT]) -> None:
        self.broker: Certificate = read_secret(directory / f"{BROKER}{SECRET}")
        #: User (fingerprint of a key) -> its grant.
        self.grants: Mapping[str, GrantT] = {}
        self._grant = read
        self._own = directory / f"{BROKER}{SECRET}"
        self._clients = directory / CLIENTS
        self._seen: object = None
        self._refresh_at = 0.0
        self._changed = 0
        self._warned = self._rereads = False
        self._lock = threading.Lock()
        self.refresh()
        _RINGS.add(self)

    def knows(self, user: str) -> bool:
        """Return whether a key is authorised; read the directory again if it has changed."""
        if user in self.refresh():
            return True
        try:
            changed = self._clients.stat().st_mtime_ns != self._changed
        except OSError:
            changed = False
        if changed:
            self._refresh_at = 0.0
        return user in self.refresh()

    def refresh(self) -> Mapping[str, GrantT]:
        """Return the grants; the same object if nothing has changed.

        While the directory cannot be read, for instance without free descriptors, the last grants
        stay valid: an empty result would revoke all keys.
        """
        now = time.monotonic()
        if now < self._refresh_at:
            return self.grants
        with self._lock:
            self._refresh_at = now + REFRESH_EVERY
            reread, self._rereads = self._rereads, False
            if reread:
                self._check_own()
            try:
                seen = self._scan()
                if reread or seen != self._seen:
                    self.grants = self._read([self._clients / name for name, *_ in seen])
                    self._seen = seen
                    logger.info("%d keys are authorised", len(self.grants))
            except OSError as error:
                self._keep_grants(error)
        return self.grants

    def reread(self) -> None:
        """Let the next `refresh` read all files, also unchanged ones."""
        self._rereads = True
        self._refresh_at = 0.0

    def _check_own(self) -> None:
        """Log a warning if the server's own pair has changed; the pair in use stays."""
        try:
            changed = read_secret(self._own) != self.broker
        except KeyFileError as error:
            logger.warning("the server's own key cannot be read, the one in use stays: %s", error)
            return
        if changed:
            logger.warning("the server's own key has changed: the new one is used after a restart")

    def _keep_grants(self, error: OSError) -> None:
        if self._seen is None:
            raise KeyFileError(f"the keys in {self._clients} cannot be read: {error}") from error
        if not self._warned:
            self._warned = True
            logger.warning("the keys cannot be read, and those in use stay: %s", error)

    def _scan(self) -> list[tuple[str, int, int, int]]:
        """Return a value that changes when a certificate is added, removed or written."""
        try:
            self._changed = self._clients.stat().st_mtime_ns
            names = [path.name for path in self._clients.iterdir()]
        except FileNotFoundError:  # no client yet
            return []
        files = []
        for name in sorted(names):
            if name.endswith(PUBLIC) and not name.startswith("."):
                with suppress(FileNotFoundError):  # removed since
                    stat = (self._clients / name).stat()
                    files.append((name, stat.st_mtime_ns, stat.st_size, stat.st_ino))
        return files

    def _read(self, paths: Sequence[Path]) -> dict[str, GrantT]:
        """Return the grants of files; an invalid one is skipped with a warning."""
        grants: dict[str, GrantT] = {}
        duplicates = set()
        for path in paths:
            try:
                certificate = read_public(path)
                user = fingerprint(decode_key(certificate.public))
                grant = self._grant(user, certificate.metadata)
            except KeyFileError as error:
                cause = error.__cause__
                if isinstance(cause, OSError) and not isinstance(cause, _OF_THE_FILE):
                    raise cause from None
                logger.warning("a key is not authorised: %s: %s", path.name, error)
                continue
            if user in grants:
                logger.warning("two files have the same key, and neither is used: %s", path.name)
                duplicates.add(user)
            grants[user] = grant
        return {user: grant for user, grant in grants.items() if user not in duplicates}


class ZapThread:
    """ZAP handler of a context: answers libzmq's authentication requests in a thread of its own.

    Args:
        context: Context of the sockets.
        ring: Authorised keys.
        allows: Called in the thread with a user and the ZAP domain of the socket; returns whether
            the user may connect. None admits the users of the ring.

    Raises:
        zmq.ZMQError: The context has a handler already.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        ring: KeyRing[Any],
        allows: Callable[[str, bytes], bool] | None = None,
    ) -> None:
        self._context = context
        self._ring = ring
        self._allows = allows or (lambda user, _: ring.knows(user))
        #: Keys of self-tests, whose refusals are not logged.
        self._quiet: set[str] = set()
        self._warned: set[tuple[str, str]] = set()
        self._socket = context.socket(zmq.REP)
        self._socket.set(zmq.LINGER, 0)
        self._wakeup = Wakeup()
        try:
            self._socket.bind(ADDRESS)
        except BaseException:
            self._socket.close(0)
            self._wakeup.close()
            raise
        self._thread = threading.Thread(target=self._main, name="eventmq-zap", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wakeup.fd, zmq.POLLIN)
        while self._wakeup.fd not in dict(poller.poll()):
            frames = self._socket.recv_multipart()
            try:
                answer = self._answer(frames)
            except Exception:
                logger.exception("a connection was refused: the check of its key failed")
                answer = refuse(frames, "internal error")
            self._socket.send_multipart(answer)
        self._socket.close(0)

    def _answer(self, frames: list[bytes]) -> list[bytes]:
        request = read_request(frames)
        if request is None:
            return refuse(frames, "only CURVE connects here")
        user = fingerprint(request.key)
        if self._allows(user, request.domain):
            return accept(request.request_id, user)
        self._warn(user, request.address)
        return refuse(frames)

    def _warn(self, user: str, address: str) -> None:
        pair = (user, address)
        if user in self._quiet or pair in self._warned or len(self._warned) >= _WARNED:
            return
        self._warned.add(pair)
        logger.warning("connection from %s refused: its key %s is not authorised", address, user)

    def test(self, address: str, *, subscribing: bool = False) -> None:
        """Test that an unauthorised key is refused.

        Args:
            address: Address of a bound socket.
            subscribing: Whether that is a PUB socket.

        Raises:
            NotAllowed: The key was accepted, or there was no answer. The server must not serve.
        """
        if address.startswith("inproc:"):
            raise NotAllowed(f"{address} has no CURVE: keys do not apply within one process")
        public, secret = new_keys()
        self._quiet.add(fingerprint(decode_key(public.decode())))
        keys = ClientKeys(self._ring.broker.public.encode(), public, secret)
        connected = _try_key(
            self._context, address, keys, subscribing=subscribing, timeout=TEST_TIMEOUT
        )
        if connected is not False:
            outcome = "let in" if connected else "not answered"
            raise NotAllowed(
                f"the self-test of {address} failed: an unauthorised key was {outcome}"
            )

    def stop(self) -> None:
        """End the thread and close the socket."""
        self._wakeup.set()
        self._thread.join()
        self._wakeup.close()


def _try_key(
    context: zmq.Context[zmq.Socket[bytes]],
    address: str,
    keys: ClientKeys,
    *,
    subscribing: bool,
    timeout: float,
) -> bool | None:
    """Connect; return whether the key was let in, None if there was no clear answer.

    Args:
        context: The context.
        address: Address of a ROUTER, or with ``subscribing`` of a PUB.
        keys: Keys to connect with.
        subscribing: Whether that is a PUB socket.
        timeout: Seconds to wait for the answer.
    """
    socket = context.socket(zmq.SUB if subscribing else zmq.DEALER)
    socket.set(zmq.LINGER, 0)
    use_keys(socket, keys)
    link = Link(socket)
    link.watch(HANDSHAKES)
    assert link.monitor is not None  # noqa: S101 - it watches
    try:
        socket.connect(address.replace("://0.0.0.0:", "://127.0.0.1:").replace("[::]", "[::1]"))
        link.monitor.socket.poll(int(timeout * 1000))
        event = next((event for event, _ in link.events()), 0)
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            return True
        return False if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH else None
    finally:
        link.close(0)


class AuthenticationRequest(NamedTuple):
    """ZAP request: may the peer at ``address`` with this key connect to the socket of a domain?"""

    request_id: bytes
    domain: bytes
    address: str
    key: bytes


def read_request(frames: Sequence[bytes]) -> AuthenticationRequest | None:
    """Return the request; None if it must be refused: it is malformed or not about CURVE."""
    if len(frames) != 7 or frames[0] != _VERSION or frames[5] != b"CURVE":  # noqa: PLR2004
        return None
    return AuthenticationRequest(
        frames[1], frames[2], frames[3].decode(errors="replace"), frames[6]
    )


def accept(request_id: bytes, user: str) -> list[bytes]:
    """Return the answer that admits a peer as this user."""
    return [_VERSION, request_id, b"200", b"OK", user.encode(), b""]


def refuse(frames: Sequence[bytes], why: str = "this key is not authorised") -> list[bytes]:
    """Return the answer that refuses a peer."""
    request_id = frames[1] if len(frames) > 1 else b""
    return [_VERSION, request_id, b"400", why.encode(), b"", b""]
