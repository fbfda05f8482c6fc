"""What the administration port answers, in the JSON of deployed software."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from eventmq.broker.calls import status_keys

if TYPE_CHECKING:
    from eventmq.broker.peers import Peer
    from eventmq.broker.state import State
    from eventmq.wire.commands import Admin

__all__ = ["answer"]


def answer(state: State, peer: Peer, message: Admin) -> None:
    """Answer STATUS, ROUTER_SHOW_WORKERS or ROUTER_SHOW_SCHEDULERS with JSON."""
    keys = status_keys(state)
    if message.name == "ROUTER_SHOW_WORKERS":
        keys = {
            "connected_workers": {
                s.name: {
                    "queues": [list(pair) for pair in s.queues],
                    "available_slots": max(0, s.room),
                    "hb": s.peer.heard if s.peer else None,
                }
                for s in state.sessions.values()
            },
            "connected_queues": keys["connected_queues"],
        }
    elif message.name == "ROUTER_SHOW_SCHEDULERS":
        keys = {"connected_schedulers": keys["connected_schedulers"]}
    state.reply(peer, json.dumps(keys).encode(), message.id)
