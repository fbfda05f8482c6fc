"""Who acts: the name in the events and log lines of calls that change something for others.

A call may say it in the argument ``actor``: that counts only from a key with the role ``admin``,
and where there are no keys from the broker's own machine, which needs none. For all others the name
of their key counts, whatever they say.
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

#: Operation -> what a client may call it instead: a special case of it.
_SPECIAL = {"cancel": frozenset({"purge"}), "schedule": frozenset({"enable", "disable"})}


def act_of(state: State, peer: Peer, arguments: Mapping[str, Any], operation: str) -> Act:
    """Return who does what with a call.

    Args:
        state: The memory of the broker.
        peer: Who made the call.
        arguments: Of the call.
        operation: What the call does.

    Raises:
        ProtocolError: The actor is too long or has characters that are not printable, or the
            argument ``operation`` is none that the call can do.
    """
    grant = peer.grant
    actor = grant.name if grant is not None and not grant.keyless else ""
    if grant is None or "admin" in grant.roles:
        said = read_text(arguments, "actor")
        if len(said) > MAX_ACTOR or not said.isprintable():
            raise ProtocolError(
                f"an actor has at most {MAX_ACTOR} characters, all of them printable",
                code="bad-arguments",
            )
        actor = said or actor
    special = read_text(arguments, "operation") or operation
    if special != operation and special not in _SPECIAL.get(operation, ()):
        raise ProtocolError(
            f"{special[:40]!r} is not what this call does; leave the argument operation out",
            code="bad-arguments",
        )
    return Act(special, actor, state.now)


def by(act: Act) -> str:
    """Return the end of a log line about an act: who did it."""
    return f", by {act.actor!r}" if act.actor else ""
