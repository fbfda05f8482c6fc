"""Actors: whose name the events and log lines of a call have that changes something for others.

A call may name its actor in the argument ``actor``. The broker believes that only from a key with
the role ``admin`` or, where it has no keys, from a peer on its own machine. The actor of any other
call is the name of the peer's key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.errors import ProtocolError
from eventmq.store.writes import Act
from eventmq.wire.commands import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from eventmq.broker.peers import Peer
    from eventmq.broker.state import State

__all__ = ["MAX_ACTOR", "act_of", "by"]

#: Characters of the longest actor.
MAX_ACTOR = 200

#: Operation -> names of special cases of it, which a client may give instead.
_SPECIAL = {"cancel": frozenset({"purge"}), "schedule": frozenset({"enable", "disable"})}


def act_of(state: State, peer: Peer, arguments: Mapping[str, Any], operation: str) -> Act:
    """Return the operation of a call and its actor.

    Args:
        state: The memory of the broker.
        peer: The peer that made the call.
        arguments: The arguments of the call.
        operation: Name of the operation that the call carries out.

    Raises:
        ProtocolError: The actor is too long or has characters that are not printable, or the
            argument ``operation`` is not an operation of this call.
    """
    grant = peer.grant
    actor = grant.name if grant is not None and not grant.keyless else ""
    if grant is None or "admin" in grant.roles:
        named = read_text(arguments, "actor")
        if len(named) > MAX_ACTOR or not named.isprintable():
            raise ProtocolError(
                f"an actor has at most {MAX_ACTOR} characters, all of them printable",
                code="bad-arguments",
            )
        actor = named or actor
    special = read_text(arguments, "operation") or operation
    if special != operation and special not in _SPECIAL.get(operation, ()):
        raise ProtocolError(
            f"{special[:40]!r} is not what this call does; leave the argument operation out",
            code="bad-arguments",
        )
    return Act(special, actor, state.now)


def by(act: Act) -> str:
    """Return the end of a log line that names the actor; "" if the act has none."""
    return f", by {act.actor!r}" if act.actor else ""
