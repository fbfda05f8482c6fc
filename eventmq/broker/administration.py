"""What the administration port answers, in the JSON of deployed software."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from eventmq.broker.status import schedulers, status_keys, workers

if TYPE_CHECKING:
    from eventmq.broker.peers import Peer
    from eventmq.broker.state import State
    from eventmq.wire.commands import Admin

__all__ = ["answer"]

_ANSWERS = {
    "STATUS": status_keys,
    "ROUTER_SHOW_WORKERS": workers,
    "ROUTER_SHOW_SCHEDULERS": schedulers,
}


def answer(state: State, peer: Peer, message: Admin) -> None:
    """Answer STATUS, ROUTER_SHOW_WORKERS or ROUTER_SHOW_SCHEDULERS with JSON."""
    keys = _ANSWERS[message.name](state)
    state.reply(peer, json.dumps(keys).encode(), message.id)
