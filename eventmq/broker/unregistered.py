"""Unregistered peers: they send messages without an INFORM to this run of the broker.

They registered before the broker was restarted. Peers with FEATURES get ERROR ``inform-again``.
EventMQ 0.3 takes every message for a sign of life and knows no ERROR: its job managers and
schedulers send INFORM again only when nothing has come for 15 seconds. So they are muted: nothing
is sent to them, not even an ACK, until they do.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from eventmq.wire.commands import Disconnect, Heartbeat, Inform, Ready, Reply
from eventmq.wire.identity import is_ours, is_version_0_3

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventmq.broker.peers import Peer
    from eventmq.broker.state import State
    from eventmq.wire.commands import Command

__all__ = ["UnregisteredPeers", "reads_refusal"]

logger = logging.getLogger("eventmq.broker")


#: Commands that EventMQ 0.3 sends only when it takes itself for registered.
_AFTER_INFORM = frozenset({b"HEARTBEAT", b"READY", b"REPLY"})


def reads_refusal(frames: Sequence[bytes]) -> bool:
    """Return whether an ERROR is safe to send to an unknown peer, judged by its first message.

    Args:
        frames: From the routing id on, not checked in any way.
    """
    return is_ours(frames[0]) or not _AFTER_INFORM.intersection(frames[3:4])


class UnregisteredPeers:
    """Decides what is sent to peers without INFORM.

    Args:
        state: Of the broker.
    """

    def __init__(self, state: State) -> None:
        self.state = state

    def received(self, peer: Peer, message: Command) -> None:
        """Mute or unmute a peer that sent no INFORM, before its message is handled."""
        kind = type(message)
        if kind is Inform:
            peer.muted = False
            return
        if kind not in {Heartbeat, Ready, Reply} or _reads_errors(peer, message):
            return
        if not peer.muted:
            peer.muted = peer.warned = True
            self.state.counters["muted"] += 1
            logger.info("peer %s has not informed; it is sent nothing until it does", peer.key)
        if kind is not Heartbeat:
            self._dismiss(peer)

    def _dismiss(self, peer: Peer) -> None:
        """Make a job manager of EventMQ 0.3 inform again, by a DISCONNECT.

        A DISCONNECT asks other peers to stop, and ends a scheduler of EventMQ 0.3. So it is sent
        only where the message shows a job manager, and the routing id shows EventMQ 0.3.
        """
        if peer.dismissed or self.state.closing or not is_version_0_3(peer.key.identity):
            return
        peer.dismissed, peer.muted = True, False
        self.state.send(peer, Disconnect(self.state.message_id()).frames())
        peer.muted = True


def _reads_errors(peer: Peer, message: Command) -> bool:
    """Return whether a peer understands an ERROR, or is certainly not EventMQ 0.3.

    Any of these proves it: its routing id; its key, since EventMQ 0.3 knows no CURVE; a frame that
    only peers with FEATURES send.
    """
    if is_ours(peer.key.identity) or (peer.grant is not None and not peer.grant.keyless):
        return True
    if isinstance(message, Reply):
        return message.outcome is not None
    return isinstance(message, Heartbeat | Ready) and message.status is not None
