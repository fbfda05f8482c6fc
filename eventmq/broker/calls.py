"""CALLs about jobs and the broker (`eventmq.wire.calls.CALLS`), topics, and administration.

The answer to STATUS has all keys of EventMQ 0.3 with their meaning, since deployed command lines
and monitors read them, and newer keys as well.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from eventmq.broker.acts import act_of, by
from eventmq.broker.peers import Key
from eventmq.broker.state import FULL, DeferredSend
from eventmq.errors import ProtocolError
from eventmq.headers import parse_headers
from eventmq.job import HELD, JobState
from eventmq.store.reads import FindJobs, FindLineage, History, Lineage, ReadLogs
from eventmq.store.writes import Attempt, RecordOperation
from eventmq.wire.batches import pack
from eventmq.wire.commands import read_flag, read_number, read_text, read_texts
from eventmq.wire.features import Features
from eventmq.wire.owner import ACTIVE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eventmq.broker.peers import Peer, Session
    from eventmq.broker.state import State
    from eventmq.broker.waiters import ResultWaiters
    from eventmq.store.reads import JobRow, KeptLog
    from eventmq.wire.commands import Admin, Publish

__all__ = ["SUBSCRIBE", "Calls", "answer", "forget_worker", "schedulers", "status_keys", "workers"]

logger = logging.getLogger("eventmq.broker")

#: States of jobs that have an error, or the reason why they were cancelled.
_WITH_ERROR = frozenset({JobState.FAILED, JobState.CANCELLED})

#: Bytes of the longest body, or part of a body, that the answer to ``info`` includes.
MAX_BODY = 1024 * 1024

#: Number of jobs in a row of ``workers``.
MAX_SHOWN = 10

#: Number of attempts in the answer to ``info``: the last ones.
MAX_ATTEMPTS = 10

#: Key of messages for the PUB socket.
SUBSCRIBE = Key("subscribe", b"")

#: Number of former workers for which the number of assigned jobs is kept.
FORMER_WORKERS = 1000


class Calls:
    """Answers calls."""

    def __init__(self, state: State, waiters: ResultWaiters) -> None:
        self.state = state
        self.waiters = waiters
        state.calls |= {
            "state": self._state,
            "info": self._info,
            "queues": lambda peer, call, _: self.state.answer(peer, call, self._queues()),
            "workers": lambda peer, call, _: self.state.answer(peer, call, self._workers()),
            "status": lambda peer, call, _: self.state.answer(peer, call, self._status()),
            "ping": lambda peer, call, _: self.state.answer(peer, call, self._ping()),
            "handover": self._hand_over,
            "subscribe": self._subscribe,
        }

    # Jobs

    def _state(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        ids = read_texts(arguments, "ids")

        def settle(stored: Mapping[str, JobRow]) -> None:
            rows = {**self.state.transient.find(ids, self.state.now), **stored}
            states = [(i, self._state_of(rows[i]) if i in rows else "") for i in ids]
            self.state.answer(peer, call, states)

        self.state.write(FindJobs(ids, 0), settle)

    def _state_of(self, row: JobRow) -> str:
        state = row.job.state
        if state is JobState.QUEUED and row.job.id in self.state.running:
            state = JobState.RUNNING
        return state.value

    def _info(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        job_id, with_body = read_text(arguments, "id"), read_flag(arguments, "args")
        with_logs, in_parts = read_flag(arguments, "logs"), "offset" in arguments
        offset = read_number(arguments, "offset")
        rows: dict[str, JobRow] = {}
        lineage: list[Lineage | None] = []
        logs: list[KeptLog] = []

        def settle(history: Sequence[Attempt]) -> None:
            rows.update({**self.state.transient.find([job_id], self.state.now), **rows})
            if job_id in rows:
                attempts = _attempts(rows[job_id], history, self.state.keeper.wall_of)
                progress = self.waiters.streams.progress.get(job_id)
                row = {**self.row(rows[job_id]), "attempts": attempts, "progress": progress}
                row |= (lineage[0] or Lineage("", ""))._asdict()
                if with_body:
                    body = rows[job_id].job.body
                    row["body_bytes"] = len(body)
                    part = body[offset : offset + MAX_BODY]
                    row["body"] = part if part and (in_parts or part == body) else None
                if with_logs:
                    row["logs"] = _logs(logs, self.state.keeper.wall_of)
                self.state.answer(peer, call, row)
            else:
                self.state.error(peer, call, "job-not-found", f"no job with id {job_id!r}")

        self.state.write(FindJobs([job_id], None if with_body else 0), rows.update)
        self.state.write(FindLineage(job_id), lineage.append)
        if with_logs:
            self.state.write(ReadLogs(job_id), logs.extend)
        self.state.write(History(job_id), settle)

    def row(self, stored: JobRow) -> dict[str, Any]:
        """Return a job as ``info`` and the listings show it."""
        job, wall_of = stored.job, self.state.keeper.wall_of
        headers = parse_headers(job.headers)
        # HELD is subtracted: it marks a job that waits for a unique key
        ready_at = job.eta or (job.ready_at % HELD and wall_of(job.ready_at % HELD))
        entry = self.state.running.get(job.id)
        live = self.state.jobs.get(job.id, job)
        worker = entry[0].name if entry is not None else stored.worker
        # The clock is read before the messages of a step, and a worker has a clock of its own: a
        # short job may have begun after the time at which the broker stored its end.
        finished = max(wall_of(stored.at), stored.started or 0.0) if stored.at else 0.0
        return {
            "id": job.id, "task": headers.task, "queue": job.queue, "state": self._state_of(stored),
            "attempt": live.attempt, "delivery": live.delivery, "priority": headers.priority,
            "created": wall_of(job.created), "due": ready_at, "expires": job.expires,
            "started": stored.started, "ran": stored.run_time, "worker": worker,
            "finished": finished,
            "error": stored.result if job.state in _WITH_ERROR else None,
            "content_type": stored.content_type, "headers": job.headers,
            "leased": wall_of(entry[1].leased) if entry is not None and entry[1].leased else 0.0,
        }  # fmt: skip

    # The broker

    def _queues(self) -> list[dict[str, Any]]:
        serving = [s.queues for s in self.state.sessions.values() if s.peer]
        workers = Counter(chain.from_iterable({name for _, name in queues} for queues in serving))
        return [
            {
                "name": queue.name,
                "waiting": queue.counts.queued - queue.running,
                "delayed": queue.counts.delayed,
                "running": queue.running,
                "failed": queue.counts.failed,
                "paused": queue.counts.paused,
                "workers": workers[queue.name],
                "limits": (queue.limiter.headers or "") if queue.limiter else "",
                "waited": round(queue.waited(self.state.now), 3),
            }
            for queue in sorted(self.state.queues.values(), key=lambda queue: queue.name)
        ]

    def _workers(self) -> list[dict[str, Any]]:
        now = self.state.now
        return [
            {
                **self._announced(s),
                "session": s.id,
                "name": s.name,
                "queues": [list(pair) for pair in s.queues],
                "tasks": sorted(s.tasks),
                "window": s.max_chunks,
                "chunks": len(s.leases),
                "running": sum(lease.remaining for lease in s.leases.values()),
                "seen": round(now - s.peer.last_seen, 3) if s.peer else None,
                "plain": s.legacy,
                "rss": s.rss,
            }
            for s in self.state.sessions.values()
        ]

    def _announced(self, session: Session) -> dict[str, Any]:
        """Return what a worker announced in INFORM, and the jobs that it runs or runs next."""
        about = session.about or Features()
        first_jobs = [
            (lease, job)
            for lease in sorted(session.leases.values(), key=attrgetter("leased"))
            for job in [*filter(None, lease.jobs)][:1]
        ]
        return {
            "pool": about.pool,
            "slots": about.slots or session.slots,
            "version": about.version,
            "jobs": [
                {
                    "id": job.id,
                    "task": parse_headers(job.headers).task,
                    "leased": self.state.keeper.wall_of(lease.leased) if lease.leased else 0.0,
                }
                for lease, job in first_jobs[:MAX_SHOWN]
            ],
        }

    def _ping(self) -> dict[str, Any]:
        state = self.state
        return {
            "version": state.version, "epoch": state.epoch, "store": state.store_id,
            "events_id": state.events_id or state.store_id, "now": state.wall,
        }  # fmt: skip

    def _hand_over(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        if self.state.owner is None:
            raise ProtocolError(
                "the store of this broker is not shared: no other can take it over",
                code="no-standby",
            )
        act = act_of(self.state, peer, arguments, "handover")
        logger.info("the store is handed over%s", by(act))
        self.state.record(RecordOperation(act))
        self.state.handover.append((peer.key, call))  # the runner answers

    def _status(self) -> dict[str, Any]:
        state = self.state
        owner = state.owner
        return {
            **self._ping(),
            "role": ACTIVE if owner is None else owner.role,
            "shared": owner is not None,
            "owner": state.addresses.get("main", "") if owner is None else owner.address,
            "standbys": state.store_gauges().get("standbys"),
            "durability": state.durability,
            "trouble": state.unavailable_reason(),
            **_space(state),
            "started": state.started + state.keeper.ahead,
            "clock": state.keeper.status(),
            "addresses": dict(state.addresses),
            "peers": len(state.peers),
            "counters": dict(state.counters),
            "queue_limits": {  # usage of the limits of each limited queue
                name: {
                    "limits": limiter.headers,
                    "running": limiter.running,
                    "may_start": limiter.allowance(state.now),
                }
                for name, limiter in state.limiters.of_queues.items()
            },
            **self.waiters.snapshot(),
            **status_keys(state),
        }

    # Topics

    def _subscribe(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        topics = tuple(read_texts(arguments, "topics"))
        if len(peer.topics) >= self.state.limits.max_subscriptions:
            raise ProtocolError(
                f"this peer has {len(peer.topics)} subscriptions, as many as are allowed; end one "
                "first",
                code="too-many",
            )
        peer.topics[call] = topics
        self.state.reply(peer, pack(None), call, "part")

    def publish(self, peer: Peer, message: Publish) -> None:
        """Send a message to the PUB socket and to the calls that subscribed to its topic."""
        state = self.state
        headers = message.headers or ""
        wants_ack = parse_headers(headers).ack_requested
        if len(message.topic) > state.limits.max_id:
            raise ProtocolError(
                f"a topic has at most {state.limits.max_id} characters", code="too-large"
            )
        state.counters["published"] += 1
        if "subscribe" in state.addresses:
            frames = [message.topic.encode(), message.body]
            state.deferred_sends.append(DeferredSend(SUBSCRIBE, frames))
        part = pack([message.topic, headers, message.body])
        for other in list(state.peers.values()):
            for call, topics in other.topics.items():
                if message.topic.startswith(topics):
                    state.reply(other, part, call, "part")
        if wants_ack:
            state.ack(peer, message.id)


def _space(state: State) -> dict[str, Any]:
    """Return the free and the reserved bytes of the store's disk, and why new jobs are refused."""
    gauges = state.store_gauges()
    disk = {name: gauges[name] for name in ("free_bytes", "reserve_bytes") if name in gauges}
    refusing = FULL[1] if state.now < state.hold_until else ""
    if len(disk) == 2 and disk["free_bytes"] < disk["reserve_bytes"]:  # noqa: PLR2004 - both
        free, reserve = disk["free_bytes"] / 2**20, disk["reserve_bytes"] / 2**20
        refusing = (
            f"the disk is nearly full: {free:,.0f} MiB are free, and {reserve:,.0f} MiB are to "
            "stay free (setting disk_reserve)"
        )
    return {"disk": disk, "refusing": refusing}


def _attempts(
    stored: JobRow, history: Sequence[Attempt], wall_of: Callable[[float], float]
) -> list[dict[str, Any]]:
    """Return the failed attempts, including the last one if the job has failed."""
    job = stored.job
    rows = [attempt._asdict() for attempt in history]
    if job.state is JobState.FAILED:
        last = Attempt(
            job.id, job.attempt, job.delivery, stored.at, stored.started, stored.run_time,
            stored.worker, stored.content_type, stored.result or b"",
        )  # fmt: skip
        rows.append(last._asdict())
    for row in rows:
        del row["job_id"]
        row["at"], row["ran"] = wall_of(row["at"]), row.pop("run_time")
    return rows[-MAX_ATTEMPTS:]


def _logs(logs: Sequence[KeptLog], wall_of: Callable[[float], float]) -> list[dict[str, Any]]:
    return [
        {"attempt": log.attempt, "at": wall_of(log.at), "text": log.text.decode(errors="replace")}
        for log in logs
    ]


def status_keys(state: State) -> dict[str, Any]:
    """Return the answer to STATUS of the administration port."""
    return {**_messages(state), **workers(state), **schedulers(state)}


def _messages(state: State) -> dict[str, dict[str, int]]:
    """Return the keys of STATUS that EventMQ 0.3 has; times are whole milliseconds."""
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
    """Keep the number of jobs that were assigned to a worker that leaves."""
    if not session.assigned:
        return
    name = _names(state).get(session.id) or _name(session)
    former = state.assigned_to_former
    former[name] = former.pop(name, 0) + session.assigned  # last in order: forgotten last
    session.assigned = 0
    while len(former) > FORMER_WORKERS:
        del former[next(iter(former))]


def _names(state: State) -> dict[str, str]:
    """Return the unique names that the answers use, by session id."""
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
    """Return a routing id as text, in hexadecimal if it is not printable."""
    try:
        text = identity.decode()
    except UnicodeDecodeError:
        return identity.hex()
    return text if text.isprintable() else identity.hex()


_ANSWERS = {
    "STATUS": status_keys,
    "ROUTER_SHOW_WORKERS": workers,
    "ROUTER_SHOW_SCHEDULERS": schedulers,
}


def answer(state: State, peer: Peer, message: Admin) -> None:
    """Answer STATUS, ROUTER_SHOW_WORKERS or ROUTER_SHOW_SCHEDULERS with JSON."""
    state.reply(peer, json.dumps(_ANSWERS[message.name](state)).encode(), message.id)
