"""Authenticates the peers of a broker and controls what each may do.

`Authenticator` turns CURVE on for the broker's sockets, answers libzmq through the ZAP thread,
tests at the start that an unknown key is refused, and records which key each connection uses.
`AccessControl` wraps the core's handlers: it limits rates and checks each message against the
`eventmq.broker.grants.Grant` of its sender. `BrokerRunner` makes them only if the broker has keys,
a rate limit, or addresses that other machines can reach; otherwise messages pay nothing for them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from eventmq.broker.grants import OWN_JOBS, REMOTE, Grant
from eventmq.broker.peers import Key
from eventmq.broker.state import DeferredSend
from eventmq.errors import KeyFileError, ProtocolError
from eventmq.store.reads import FindJobs
from eventmq.wire.batches import unpack
from eventmq.wire.commands import MAX_IDS, Call, Error, Inform, Publish, Request, Schedule
from eventmq.wire.curve import decode_key, fingerprint
from eventmq.wire.features import Features, parse_queues
from eventmq.wire.sockets import IdentifiedLink, encrypt
from eventmq.wire.zap_thread import ZapThread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import zmq

    from eventmq.broker.core import BrokerCore
    from eventmq.broker.peers import Peer
    from eventmq.store.reads import JobRow
    from eventmq.wire.connections import Connections
    from eventmq.wire.curve import Certificate
    from eventmq.wire.sockets import Link
    from eventmq.wire.zap_thread import KeyRing

    Handler = Callable[[Peer, Any], None]

__all__ = ["AccessControl", "Authenticator"]


logger = logging.getLogger("eventmq.broker")

#: Commands by which a peer requests something. The others answer the broker or keep a session
#: alive.
_REQUESTS = frozenset({Call, Inform, Publish, Request, Schedule})

#: Number of users whose first refusal is logged; refusals of more users are only counted.
_WARNED = 1000


class AccessControl:
    """Checks each message before the core handles it.

    Args:
        core: The broker.
        grants: Grants by user, the fingerprint of a key. None if the broker has no keys: then the
            user is the address of the peer.
        rate: Messages per second that a peer may send, 0.0 for any number.
        own: Fingerprint of the broker's own key, which other brokers of a shared store may have
            too; "" if the broker has no keys.
    """

    def __init__(
        self,
        core: BrokerCore,
        grants: Mapping[str, Grant] | None,
        *,
        rate: float = 0.0,
        own: str = "",
    ) -> None:
        self._core = core
        self._keyed = grants is not None
        self._own = {own: Grant(own, "broker", frozenset({"broker"}))} if own else {}
        self._grants = {**(grants or {}), **self._own}
        self._rate = rate
        #: Session -> the key that opened it.
        self._session_keys: dict[str, str] = {}
        self._warned: set[str] = set()
        core.guard(self._wrap)

    # The sender of a message

    def receive(self, port: str, frames: Sequence[bytes], user: str, now: float) -> None:
        """Pass a message to `BrokerCore.receive`, or refuse it if its user has no grant."""
        key = Key(port, frames[0])
        grant = self._grants.get(user) if self._keyed else _by_address(user)
        if grant is None and self._keyed:
            self._refuse(key, frames, user, now)
            return
        state = self._core.state
        peer = state.peers.get(key)
        if peer is None or peer.admitted is not grant:
            state.now = now
            if peer is not None:
                self._core.sessions.unreachable(peer)
            peer = self._core.peer(key, now, frames)
            if peer is None:
                return
            peer.grant = peer.admitted = grant
        self._core.receive(port, frames, now)

    def _refuse(self, key: Key, frames: Sequence[bytes], user: str, now: float) -> None:
        state = self._core.state
        state.now = now
        if (peer := state.peers.get(key)) is not None:
            self._core.sessions.drop(peer)
        state.counters["errors.not-allowed"] += 1
        if user not in self._warned and len(self._warned) < _WARNED:
            self._warned.add(user)
            logger.warning("message of key %s refused: it is not authorised any more", user)
        text = "this key is not authorised any more"
        error = Error(state.message_id(), self._core.id_of(frames), "not-allowed", text)
        state.deferred_sends.append(DeferredSend(key, error.frames()))

    def update(self, grants: Mapping[str, Grant], now: float) -> None:
        """Replace the grants; disconnect peers whose key lost its grant or got another one."""
        old, state = self._grants, self._core.state
        state.now = now
        self._grants = {
            user: old[user] if old.get(user) == grant else grant
            for user, grant in {**grants, **self._own}.items()
        }
        self._warned -= grants.keys()
        for peer in list(state.peers.values()):
            grant = peer.admitted
            if grant is not None and self._grants.get(grant.key) is not grant:
                logger.info(
                    "peer with key %r is disconnected: its grant was changed or revoked", grant.name
                )
                self._core.sessions.drop(peer)

    # What a peer may do

    def _wrap(self, kind: type, handler: Handler) -> Handler:
        checks: dict[type, Callable[[Peer, Any, Handler], None]] = {
            Call: self._call,
            Inform: self._inform,
        }
        check = checks.get(kind, _pass)
        limited = bool(self._rate) and kind in _REQUESTS

        def guarded(peer: Peer, message: Any) -> None:
            if limited:
                self._spend(peer)
            if peer.grant is None:
                handler(peer, message)
                return
            if peer.grant.is_broker and kind in _REQUESTS and kind is not Inform:
                raise ProtocolError("send INFORM with a sender first", code="inform-again")
            peer.grant.check_command(kind)
            check(peer, message, handler)

        return guarded

    def _spend(self, peer: Peer) -> None:
        """Take a token from the bucket of a peer, which holds the tokens of one second."""
        rate, now = self._rate, self._core.state.now
        size = max(1.0, rate)
        elapsed = max(0.0, now - peer.filled) if peer.filled else size
        peer.tokens = min(size, peer.tokens + elapsed * rate) if peer.filled else size
        peer.filled = now
        if peer.tokens < 1.0:
            raise ProtocolError(
                f"this peer sends more than {rate:g} messages a second", code="rate-limited"
            )
        peer.tokens -= 1.0

    def _inform(self, peer: Peer, message: Inform, handler: Handler) -> None:
        if message.features is not None and (text := Features.parse(message.features).sender):
            self._act_for(peer, text)
        grant, state = peer.grant, self._core.state
        assert grant is not None  # noqa: S101 - checked by `guarded`
        queues = parse_queues(message.queues) if message.role == "worker" else ()
        named = [name for _, name in queues] or [state.limits.default_queue]
        grant.check_inform(message.role, named)
        if message.role != "worker" or grant.keyless:
            handler(peer, message)
            return
        features = None if message.features is None else Features.parse(message.features)
        session_id = self._core.sessions.session_id(peer, features)
        owner = self._session_keys.get(session_id, grant.key)
        if session_id in state.sessions and owner != grant.key:
            raise ProtocolError("this session was begun with another key", code="not-allowed")
        handler(peer, message)
        self._session_keys[session_id] = grant.key
        if len(self._session_keys) > 2 * len(state.sessions) + 64:
            held = self._session_keys.items()
            self._session_keys = {name: key for name, key in held if name in state.sessions}

    @staticmethod
    def _act_for(peer: Peer, text: str) -> None:
        """Give the connection of a standby the grant of the peer whose messages it relays."""
        if peer.admitted is None or not peer.admitted.is_broker:
            raise ProtocolError(
                "only a broker of the same store relays messages: that needs the role broker",
                code="not-allowed",
            )
        try:
            peer.grant = Grant.parse(text)
        except KeyFileError as error:
            raise ProtocolError(f"sender in FEATURES: {error}", code="bad-features") from error

    def _call(self, peer: Peer, message: Call, handler: Handler) -> None:
        grant, state = peer.grant, self._core.state
        assert grant is not None  # noqa: S101 - checked by `guarded`
        grant.check_call(message.name)
        if self._core.standby:  # only the owner of the store knows who submitted the job
            handler(peer, message)
            return
        is_checked = not grant.keyless and message.name in OWN_JOBS
        arguments = unpack(message.arguments, "the arguments of the call") if is_checked else {}
        if is_checked and isinstance(arguments, dict):
            is_checked = not grant.sees(message.name, arguments=bool(arguments.get("args")))
        ids = _ids(message.name, arguments) if is_checked else ()
        transient = state.transient.find(ids, state.now)
        in_memory = {job_id: row.job for job_id, row in transient.items()}
        in_memory |= {job_id: state.jobs[job_id] for job_id in ids if job_id in state.jobs}
        for job in in_memory.values():
            _check_owner(grant, job.id, job.headers)
        in_store = [job_id for job_id in ids if job_id not in in_memory]
        if not in_store:
            handler(peer, message)
            return

        def settle(rows: Mapping[str, JobRow]) -> None:
            if state.peers.get(peer.key) is not peer:
                return
            try:
                for job_id, row in rows.items():
                    _check_owner(grant, job_id, row.job.headers)
                handler(peer, message)
            except ProtocolError as error:
                state.error(peer, message.id, error.code, str(error))

        state.write(FindJobs(in_store, 0), settle)


def _pass(peer: Peer, message: Any, handler: Handler) -> None:
    handler(peer, message)


def _by_address(address: str) -> Grant | None:
    """Return the grant of a peer without a key, None if it may do everything."""
    address = address.removeprefix("::ffff:")
    return None if not address or address == "::1" or address.startswith("127.") else REMOTE


def _check_owner(grant: Grant, job_id: str, headers: str) -> None:
    if not grant.owns(headers):
        hint = ""
        if "viewer" in grant.roles:
            hint = "; a viewer sees its arguments with eventmq keys authorize --show-arguments"
        raise ProtocolError(
            f"job {job_id!r} was submitted with another key than {grant.name!r}{hint}",
            code="not-allowed",
        )


def _ids(name: str, arguments: Any) -> Sequence[str]:
    """Return the ids that a call names, none if its handler will refuse the arguments."""
    value = arguments.get(OWN_JOBS[name]) if isinstance(arguments, dict) else None
    ids = value if isinstance(value, list) else [value]
    named = [job_id for job_id in ids if isinstance(job_id, str) and "\0" not in job_id]
    return named if len(named) == len(ids) <= MAX_IDS else ()


class Authenticator:
    """Admits peers by their keys, and knows the connection of each message.

    Args:
        core: The broker.
        ring: The keys of the broker; None without CURVE.
        connections: The connections of the watched ports.
        rate: Messages per second that a peer may send, 0.0 for any number.
    """

    def __init__(
        self,
        core: BrokerCore,
        ring: KeyRing[Grant] | None,
        connections: Connections,
        *,
        rate: float,
    ) -> None:
        self._ring = ring
        self._connections = connections
        connections.on_failure = self._count_failure
        self._grants = None if ring is None else ring.grants
        self._rate = rate
        self._own = "" if ring is None else fingerprint(decode_key(ring.broker.public))
        self._zap: ZapThread | None = None
        self._warned: set[str] = set()
        self.attach(core)

    def attach(self, core: BrokerCore) -> None:
        """Guard a core, instead of an earlier one."""
        self._access = AccessControl(core, self._grants, rate=self._rate, own=self._own)
        self._counters = core.state.counters

    @property
    def own_keys(self) -> Certificate | None:
        """The broker's own pair, None without keys."""
        return None if self._ring is None else self._ring.broker

    @property
    def identified_by(self) -> str:
        """The property of a connection that identifies its peer."""
        return "Peer-Address" if self._ring is None else "User-Id"

    def open(self, context: zmq.Context[Any]) -> None:
        """Start to answer libzmq. Call this before any socket is bound."""
        if self._ring is not None:
            own, knows = self._own, self._ring.knows
            self._zap = ZapThread(context, self._ring, lambda user, _: user == own or knows(user))

    def encrypt(self, port: str, link: Link) -> None:
        """Turn CURVE on for a link that is not bound yet, and watch it; do nothing without keys."""
        if self._ring is not None:
            encrypt(link, self._ring.broker.secret.encode())
            self._connections.watch(port, link)

    def test(self, addresses: Mapping[str, str]) -> None:
        """Check that a key which is not authorised is refused.

        Raises:
            NotAllowed: The key was let in, or libzmq did not answer. The broker must not serve.
        """
        if self._zap is None:
            return
        for port, address in addresses.items():
            self._zap.test(address, subscribing=port == "subscribe")
        logger.info("CURVE is on; an unauthorised key was refused on every address")

    def read(self, port: str, link: Link, limit: int, now: float) -> bool:
        """Receive up to ``limit`` messages of a link; return whether all were received."""
        assert isinstance(link, IdentifiedLink)  # noqa: S101 - the runner opens no other one here
        receive, check = link.receive, self._access.receive
        keyed, peers = self._ring is not None, self._connections.peers
        for _ in range(limit):
            frames = receive()
            if frames is None:
                return True
            if keyed and peers.get((port, frames[0])) != (link.connection, link.user):
                self._connections.add(port, frames[0], link.connection, link.user)
            check(port, frames, link.user, now)
        return False

    def is_connected(self, port: str, identity: bytes) -> bool:
        """Return whether the connection of a peer's last message is still open.

        If it is not, another peer that has not sent anything yet may have the routing id.
        """
        return self._ring is None or (port, identity) in self._connections.peers

    def refresh(self, now: float, on_revoked: Callable[[], None]) -> None:
        """Apply changes of the authorised keys.

        Args:
            now: Store time.
            on_revoked: Called if a key was revoked.
        """
        if self._ring is None or self._grants is None:
            return
        self._connections.read_all()
        grants = self._ring.refresh()
        if grants is not self._grants:
            old, self._grants = self._grants, grants
            self._access.update(grants, now)
            if old.keys() - grants.keys():
                on_revoked()

    def _count_failure(self, port: str) -> None:
        self._counters["errors.handshake"] += 1
        if port not in self._warned:
            self._warned.add(port)
            logger.warning(
                "a peer without CURVE or without this broker's key was refused on port %s, or left "
                "while it connected", port,
            )  # fmt: skip

    def close(self) -> None:
        """Stop the ZAP thread. Call this before the links close. Idempotent."""
        if self._zap is not None:
            self._zap.stop()
            self._zap = None
