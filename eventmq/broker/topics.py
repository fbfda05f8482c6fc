"""PUBLISH: what the broker passes on to others without storing it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.broker.peers import Key
from eventmq.broker.state import Outgoing
from eventmq.errors import ProtocolError
from eventmq.headers import parse_headers
from eventmq.wire.bulk import pack

if TYPE_CHECKING:
    from eventmq.broker.peers import Peer
    from eventmq.broker.state import State
    from eventmq.wire.commands import Publish

__all__ = ["Topics"]

#: Where a published message for the PUB socket is addressed to.
_SUBSCRIBE = Key("subscribe", b"")


class Topics:
    """Passes messages on to subscribers."""

    def __init__(self, state: State) -> None:
        self.state = state

    def publish(self, peer: Peer, message: Publish) -> None:
        """Send a message to the PUB socket and to the calls that subscribed to its topic."""
        state = self.state
        headers = message.headers or ""
        wants_ack = parse_headers(headers).ack_requested
        if len(message.topic) > state.limits.max_id:
            msg = f"a topic has at most {state.limits.max_id} characters"
            raise ProtocolError(msg, code="too-large")
        state.counters["published"] += 1
        if "subscribe" in state.addresses:
            frames = [message.topic.encode(), message.body]
            state.outbox.append(Outgoing(_SUBSCRIBE, frames))
        part = pack([message.topic, headers, message.body])
        for other in list(state.peers.values()):
            for call, topics in other.topics.items():
                if message.topic.startswith(topics):
                    state.reply(other, part, call, "part")
        if wants_ack:
            state.ack(peer, message.id)
