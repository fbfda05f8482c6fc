"""CALL: the operations of `eventmq.wire.calls.CALLS`, answered by REPLY or ERROR."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from eventmq.broker.peers import Key
from eventmq.broker.state import DeferredSend
from eventmq.broker.status import schedulers, status_keys, workers
from eventmq.errors import ProtocolError
from eventmq.headers import parse_headers
from eventmq.job import HELD, JobState
from eventmq.store.reads import FindJobs, FindLineage, History, Lineage, ListJobs
from eventmq.store.writes import Attempt
from eventmq.wire.batches import pack, unpack
from eventmq.wire.calls import CALLS, read_limit, read_text, read_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eventmq.broker.peers import Peer
    from eventmq.broker.state import State
    from eventmq.broker.waiters import ResultWaiters
    from eventmq.store.reads import JobRow
    from eventmq.wire.commands import Admin, Call, Publish

__all__ = ["Calls", "Topics", "answer"]


#: States of jobs that have an error, or the reason why they were cancelled.
_WITH_ERROR = frozenset({JobState.FAILED, JobState.CANCELLED})

#: Attempts in an ``info``, the last ones.
MAX_ATTEMPTS = 10

_ANSWERS = {
    "STATUS": status_keys,
    "ROUTER_SHOW_WORKERS": workers,
    "ROUTER_SHOW_SCHEDULERS": schedulers,
}

#: Where messages for the PUB socket go.
_SUBSCRIBE = Key("subscribe", b"")


class Calls:
    """Answers calls."""

    def __init__(self, state: State, waiters: ResultWaiters) -> None:
        self.state = state
        self.waiters = waiters
        self._handlers: dict[str, Callable[[Peer, str, Mapping[str, Any]], None]] = {
            "get": self._get,
            "forget": self._forget,
            "state": self._state,
            "info": self._info,
            "jobs": self._jobs,
            "queues": lambda peer, call, _: self._answer(peer, call, self._queues()),
            "workers": lambda peer, call, _: self._answer(peer, call, self._workers()),
            "status": lambda peer, call, _: self._answer(peer, call, self._status()),
            "ping": lambda peer, call, _: self._answer(peer, call, self._ping()),
            "stream": waiters.streams.open,
            "subscribe": self._subscribe,
        }

    def add(self, handlers: Mapping[str, Callable[[Peer, str, Mapping[str, Any]], None]]) -> None:
        """Let other parts of the broker answer calls."""
        self._handlers.update(handlers)

    def call(self, peer: Peer, message: Call) -> None:
        """Answer one CALL."""
        handler = self._handlers.get(message.name)
        if handler is None:
            known = ", ".join(CALLS)
            msg = f"unknown call {message.name[:80]!r}; known are {known}"
            raise ProtocolError(msg, code="unknown-call")
        arguments = unpack(message.arguments, "the arguments of the call")
        if not isinstance(arguments, dict):
            raise ProtocolError("the arguments of a call must be a map", code="bad-arguments")
        handler(peer, message.id, arguments)

    def _answer(self, peer: Peer, call: str, value: object) -> None:
        self.state.reply(peer, pack(value), call)

    # Jobs

    def _get(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        ids = read_texts(arguments, "ids")
        if peer.waiting + len(ids) > self.state.limits.max_waits:
            msg = (
                f"this peer waits for {peer.waiting} jobs and asks for {len(ids)} more; at most "
                f"{self.state.limits.max_waits} are allowed"
            )
            raise ProtocolError(msg, code="too-many")
        self.waiters.get(peer, call, ids)

    def _forget(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        self.waiters.end_call(peer, read_text(arguments, "call"))
        self._answer(peer, call, None)

    def _state(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        ids = read_texts(arguments, "ids")

        def settle(stored: Mapping[str, JobRow]) -> None:
            rows = {**self.state.transient.find(ids, self.state.now), **stored}
            states = [(i, self._state_of(rows[i]) if i in rows else "") for i in ids]
            self._answer(peer, call, states)

        self.state.write(FindJobs(ids, 0), settle)

    def _state_of(self, row: JobRow) -> str:
        state = row.job.state
        if state is JobState.QUEUED and row.job.id in self.state.running:
            state = JobState.RUNNING
        return state.value

    def _info(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        job_id = read_text(arguments, "id")
        rows: dict[str, JobRow] = {}
        lineage: list[Lineage | None] = []

        def settle(history: Sequence[Attempt]) -> None:
            rows.update({**self.state.transient.find([job_id], self.state.now), **rows})
            if job_id in rows:
                attempts = _attempts(rows[job_id], history, self.state.keeper.wall_of)
                progress = self.waiters.streams.progress.get(job_id)
                row = {**self.row(rows[job_id]), "attempts": attempts, "progress": progress}
                row |= (lineage[0] or Lineage("", ""))._asdict()
                self._answer(peer, call, row)
            else:
                self.state.error(peer, call, "job-not-found", f"no job with id {job_id!r}")

        self.state.write(FindJobs([job_id], 0), rows.update)
        self.state.write(FindLineage(job_id), lineage.append)
        self.state.write(History(job_id), settle)

    def row(self, stored: JobRow) -> dict[str, Any]:
        """Return what ``info`` and the listings say of a job."""
        job, wall_of = stored.job, self.state.keeper.wall_of
        headers = parse_headers(job.headers)
        # HELD is taken off: it marks a job that waits for a unique key
        due = job.eta or (job.ready_at % HELD and wall_of(job.ready_at % HELD))
        entry = self.state.running.get(job.id)
        live = self.state.jobs.get(job.id, job)
        worker = entry[0].name if entry is not None else stored.worker
        return {
            "id": job.id, "task": headers.task, "queue": job.queue, "state": self._state_of(stored),
            "attempt": live.attempt, "delivery": live.delivery, "priority": headers.priority,
            "created": wall_of(job.created), "due": due, "expires": job.expires,
            "started": stored.started, "ran": stored.run_time, "worker": worker,
            "finished": wall_of(stored.at) if stored.at else 0.0,
            "error": stored.result if job.state in _WITH_ERROR else None,
            "content_type": stored.content_type, "headers": job.headers,
            "leased": wall_of(entry[1].leased) if entry is not None and entry[1].leased else 0.0,
        }  # fmt: skip

    def _jobs(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        name = read_text(arguments, "state")
        try:
            wanted = JobState(name) if name else None
        except ValueError:
            states = ", ".join(JobState)
            msg = f"state is one of {states}, not {name[:40]!r}"
            raise ProtocolError(msg, code="bad-arguments") from None
        entry = ListJobs(
            wanted, read_text(arguments, "queue") or None, read_text(arguments, "task") or None,
            read_text(arguments, "cursor"), read_limit(arguments),
        )  # fmt: skip

        def settle(write_result: tuple[list[JobRow], str]) -> None:
            rows, cursor = self.state.transient.merge(entry, *write_result, self.state.now)
            maps = [self.row(row) for row in rows]
            maps = [row for row in maps if wanted is None or row["state"] == wanted.value]
            self._answer(peer, call, {"jobs": maps, "cursor": cursor})

        self.state.write(entry, settle)

    # The broker

    def _queues(self) -> list[dict[str, Any]]:
        sessions = self.state.sessions.values()
        return [
            {
                "name": queue.name,
                "waiting": queue.counts.queued - queue.running,
                "delayed": queue.counts.delayed,
                "running": queue.running,
                "failed": queue.counts.failed,
                "paused": queue.counts.paused,
                "workers": sum(
                    1 for s in sessions if s.peer and any(n == queue.name for _, n in s.queues)
                ),
                "limits": (queue.limiter.headers or "") if queue.limiter else "",
            }
            for queue in sorted(self.state.queues.values(), key=lambda queue: queue.name)
        ]

    def _workers(self) -> list[dict[str, Any]]:
        now = self.state.now
        return [
            {
                "session": s.id,
                "name": s.name,
                "queues": [list(pair) for pair in s.queues],
                "tasks": sorted(s.tasks),
                "window": s.max_chunks,
                "chunks": len(s.leases),
                "running": sum(lease.remaining for lease in s.leases.values()),
                "seen": round(now - s.peer.last_seen, 3) if s.peer else None,
                "plain": s.legacy,
            }
            for s in self.state.sessions.values()
        ]

    def _ping(self) -> dict[str, Any]:
        state = self.state
        return {
            "version": state.version, "epoch": state.epoch, "store": state.store_id,
            "now": state.wall,
        }  # fmt: skip

    def _status(self) -> dict[str, Any]:
        state = self.state
        return {
            **self._ping(),
            "started": state.started + state.keeper.ahead,
            "clock": state.keeper.status(),
            "addresses": dict(state.addresses),
            "peers": len(state.peers),
            "counters": dict(state.counters),
            "queue_limits": self._queue_limits(),
            **self.waiters.snapshot(),
            **status_keys(state),
        }

    def _queue_limits(self) -> dict[str, dict[str, Any]]:
        """Return what is left of the limits of each limited queue."""
        return {
            name: {
                "limits": limiter.headers,
                "running": limiter.running,
                "may_start": limiter.allowance(self.state.now),
            }
            for name, limiter in self.state.limiters.of_queues.items()
        }

    # Topics

    def _subscribe(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        topics = tuple(read_texts(arguments, "topics"))
        if len(peer.topics) >= self.state.limits.max_subscriptions:
            msg = (
                f"this peer has {len(peer.topics)} subscriptions, as many as are allowed; end one "
                "first"
            )
            raise ProtocolError(msg, code="too-many")
        peer.topics[call] = topics
        self.state.reply(peer, pack(None), call, "part")


def _attempts(
    stored: JobRow, history: Sequence[Attempt], wall_of: Callable[[float], float]
) -> list[dict[str, Any]]:
    """Return the failed attempts, with the last one where the job failed."""
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


def answer(state: State, peer: Peer, message: Admin) -> None:
    """Answer STATUS, ROUTER_SHOW_WORKERS or ROUTER_SHOW_SCHEDULERS with JSON."""
    keys = _ANSWERS[message.name](state)
    state.reply(peer, json.dumps(keys).encode(), message.id)


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
            state.deferred_sends.append(DeferredSend(_SUBSCRIBE, frames))
        part = pack([message.topic, headers, message.body])
        for other in list(state.peers.values()):
            for call, topics in other.topics.items():
                if message.topic.startswith(topics):
                    state.reply(other, part, call, "part")
        if wants_ack:
            state.ack(peer, message.id)
