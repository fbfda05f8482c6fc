"""Answers to STATUS and the like: the keys and shapes of EventMQ 0.3, and newer ones beside them.

Deployed command lines and monitors read them, so each key means what it means there.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eventmq.broker.peers import Session
    from eventmq.broker.state import State

__all__ = ["forget_worker", "schedulers", "status_keys", "workers"]

#: Former workers of which the number of assigned jobs is kept.
REMEMBERED = 1000


def status_keys(state: State) -> dict[str, Any]:
    """Return the answer to STATUS of the administration port."""
    return {**_messages(state), **workers(state), **schedulers(state)}


def _messages(state: State) -> dict[str, dict[str, int]]:
    """Return the keys of EventMQ 0.3; times are whole milliseconds."""
    ages: dict[str, list[float]] = {}
    for _, lease, position in state.running.values():
        job = lease.jobs[position]
        if job is not None:
            ages.setdefault(job.queue, []).append(max(0.0, state.now - job.waiting_since))
    names, assigned = _names(state), Counter(state.assigned_to_former)
    for session in state.sessions.values():
        if session.assigned:
            assigned[names[session.id]] += session.assigned
    queues = state.queues.values()
    return {
        "inflight_messages_by_queue": {name: len(each) for name, each in ages.items()},
        "latency_messages_by_queue": {
            name: int(sum(each) / len(each) * 1000) for name, each in ages.items()
        },
        "max_latency_messages_by_queue": {
            name: int(max(each) * 1000) for name, each in ages.items()
        },
        "waiting_messages_by_queue": {
            queue.name: queue.counts.queued - queue.running for queue in queues
        },
        "processed_messages_by_queue": {
            queue.name: queue.assigned for queue in queues if queue.assigned
        },
        "processed_messages_by_worker": dict(assigned),
    }


def workers(state: State) -> dict[str, Any]:
    """Return the answer to ROUTER_SHOW_WORKERS; ``hb`` is wall time."""
    names = _names(state)
    connected: dict[str, dict[str, Any]] = {}
    queues: dict[str, list[list[Any]]] = {}
    for session in state.sessions.values():
        if session.peer is not None:
            name = names[session.id]
            connected[name] = {
                "queues": [list(pair) for pair in session.queues],
                "hb": session.peer.last_seen + state.keeper.ahead,
                "available_slots": max(0, session.credit),
            }
            for weight, queue in session.queues:
                queues.setdefault(queue, []).append([weight, name])
    for pairs in queues.values():
        pairs.sort(key=lambda pair: -pair[0])
    return {"connected_workers": connected, "connected_queues": queues}


def schedulers(state: State) -> dict[str, Any]:
    """Return the answer to ROUTER_SHOW_SCHEDULERS."""
    peers = [peer for peer in state.peers.values() if peer.role == "scheduler"]
    ahead = state.keeper.ahead
    shown = {_text(peer.key.identity): {"hb": peer.last_seen + ahead} for peer in peers}
    return {"connected_schedulers": shown}


def forget_worker(state: State, session: Session) -> None:
    """Keep how many jobs were assigned to a worker that leaves."""
    if not session.assigned:
        return
    name = _names(state).get(session.id) or _name(session)
    former = state.assigned_to_former
    former[name] = former.pop(name, 0) + session.assigned  # last in order: forgotten last
    session.assigned = 0
    while len(former) > REMEMBERED:
        del former[next(iter(former))]


def _names(state: State) -> dict[str, str]:
    """Return session id -> the unique name that the answers use."""
    names: dict[str, str] = {}
    used: set[str] = set()
    for session in state.sessions.values():
        name = _name(session)
        if name in used:
            name = f"{name}.{session.id}"
        used.add(name)
        names[session.id] = name
    return names


def _name(session: Session) -> str:
    """Return the name of a worker; of a legacy one its routing id, as EventMQ 0.3 does."""
    if not session.legacy:
        return session.name
    return _text(bytes.fromhex(session.id.rpartition(".")[2]))


def _text(identity: bytes) -> str:
    """Return a routing id as text, or in hexadecimal where it is none."""
    try:
        text = identity.decode()
    except UnicodeDecodeError:
        return identity.hex()
    return text if text.isprintable() else identity.hex()
