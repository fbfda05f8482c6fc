"""Dispatch: leases jobs to sessions, in chunks, and sends them.

The queue order of a session with credit chooses the queue that serves it; the routing strategy
chooses among the sessions that chose the same queue. A lease is a write, and the chunk is sent
after its commit. Windows that run low are refilled from the store. `Affinity` limits the jobs that
a session gets if the strategy has keys, and `InputPages` serves inputs that are too large for the
body of a job.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

from eventmq.broker.peers import LEGACY_ONLY, Eligibility, Lease
from eventmq.broker.state import DeferredSend
from eventmq.broker.subqueues import Load
from eventmq.errors import ProtocolError
from eventmq.graph import PAGED, flags_of
from eventmq.headers import Headers, format_headers, parse_headers
from eventmq.interfaces import WorkerView
from eventmq.job import JobState
from eventmq.store.reads import ReadInputs, ReadQueued
from eventmq.store.writes import BARRIER, Chunk, LeaseChunk, SaveLimits, subqueue_of
from eventmq.wire.batches import ASK, NOW, encode_chunk
from eventmq.wire.commands import Request, read_number, read_text
from eventmq.wire.owner import EPOCH
from eventmq.wire.results import ERROR_TYPE, RemoteError, encode_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from eventmq.broker.outcomes import Outcomes
    from eventmq.broker.peers import Peer, Session
    from eventmq.broker.queues import Queue
    from eventmq.broker.state import State
    from eventmq.broker.subqueues import Refuses, Subqueue
    from eventmq.interfaces import KeyedRouting, RoutingStrategy
    from eventmq.job import JobRecord
    from eventmq.store import Write
    from eventmq.store.reads import InputsPage

    CostOf = Callable[[str], float]

__all__ = [
    "NO_TIMEOUT",
    "PAGE_BYTES",
    "Affinity",
    "Dispatch",
    "InputPages",
    "chunk_frames",
    "is_paged",
    "legacy_frames",
]

logger = logging.getLogger("eventmq.broker")

#: Timeout sent to legacy workers for a job without one: they read 0, or none, as 300 s.
NO_TIMEOUT = 2_147_483_647

#: Seconds between the timeout of a job and the end of its legacy lease.
LEGACY_SLACK = 30.0

#: Timeout in seconds that is assumed for the legacy lease of a job without one.
LEGACY_TIMEOUT = 300.0

#: Largest number of bytes of results in a page, unless the first result is longer.
PAGE_BYTES = 1024 * 1024

#: Seconds after which sessions that got no job are tried again.
RESCAN_EVERY = 0.2


def chunk_frames(lease: Lease, wall: float, epoch: int = 0) -> list[bytes]:
    """Return the REQUEST that carries a chunk to a worker with FEATURES.

    Args:
        lease: The lease of the chunk.
        wall: Guarded wall time, which is included if a job has an expiry.
        epoch: Epoch of the owner of a shared store, 0 if the store is not shared.
    """
    rows = []
    expiring = False
    timeouts: dict[str, float] = {}
    for job, delivery in zip(lease.jobs, lease.deliveries, strict=True):
        if job is None:
            rows.append(("", delivery, 0, "", 0.0, 0.0, b""))
            continue
        text = job.headers
        timeout = timeouts.get(text)
        if timeout is None:
            timeout = timeouts[text] = parse_headers(text).timeout
        if job.expires:
            expiring = True
        rows.append((job.id, delivery, job.attempt, text, timeout, job.expires, job.body))
    headers = f"chunk:{lease.number},{ASK}:1" if lease.asks else f"chunk:{lease.number}"
    if expiring:
        headers += f",{NOW}:{wall:.3f}"
    if epoch:
        headers += f",{EPOCH}:{epoch}"
    body = encode_chunk(lease.queue, rows)
    return Request(lease.message_id, lease.queue, headers, body).frames()


def legacy_frames(lease: Lease) -> list[bytes]:
    """Return the REQUEST that carries the one job of a lease to a legacy worker."""
    job = next(job for job in lease.jobs if job is not None)
    known = parse_headers(job.headers)
    headers = Headers(
        reply_requested=True,
        retry_count=known.retry_count,
        guarantee=known.guarantee or None,
        run_count=known.run_count,
        timeout=known.timeout or float(NO_TIMEOUT),
    )
    return Request(job.id, job.queue, format_headers(headers), job.body).frames()


def is_paged(job: JobRecord) -> bool:
    """Return whether the body of a job has the ids of its inputs instead of the inputs."""
    return PAGED in flags_of(job.headers)


class InputPages:
    """Serves inputs of jobs in pages; fails jobs whose workers cannot read pages."""

    def __init__(self, state: State, outcomes: Outcomes) -> None:
        self.state = state
        self.outcomes = outcomes
        state.calls |= {"inputs": self.read, "begin": self.begin}

    # Pages

    def read(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        """Answer the CALL ``inputs``."""
        job_id, delivery = read_text(arguments, "id"), read_number(arguments, "delivery")
        self._check(peer.session, job_id, delivery)
        max_bytes = min(PAGE_BYTES, self.state.limits.max_frame // 2)

        def settle(page: InputsPage | None) -> None:
            if page is None:
                what = f"no results are kept for job {job_id!r}"
                self.state.error(peer, call, "inputs-gone", what)
            else:
                self.state.answer(peer, call, {"rows": page.rows, "next": page.next})

        self.state.write(ReadInputs(job_id, read_number(arguments, "cursor"), max_bytes), settle)

    def begin(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        """Answer the CALL ``begin``: the worker is about to start a suspect."""
        job_id, delivery = read_text(arguments, "id"), read_number(arguments, "delivery")
        self._check(peer.session, job_id, delivery).started = True
        self.state.answer(peer, call, None)

    def _check(self, session: Session | None, job_id: str, delivery: int) -> Lease:
        """Return the lease of a delivery; raise `ProtocolError` if the session does not hold it."""
        entry = self.state.running.get(job_id)
        if session is not None and entry is not None:
            owner, lease, position = entry
            if owner is session and lease.deliveries[position] == delivery:
                return lease
        raise ProtocolError(
            f"this peer does not hold delivery {delivery} of job {job_id[:255]!r}", code="not-held"
        )

    # Workers without pages

    def unsupported(self, session: Session) -> bool:
        """Return whether a session cannot read pages. Legacy sessions never get such jobs."""
        return not session.inputs and not session.legacy

    def refuses(self, queue: Queue) -> bool:
        """Return whether another session of the queue can read pages, and gets such jobs."""
        return any(
            session.inputs and any(name == queue.name for _, name in session.queues)
            for session in self.state.sessions.values()
        )

    def fail(self, jobs: Sequence[JobRecord]) -> None:
        """Fail jobs with inputs in pages, since no worker of their queue can read pages."""
        what = "the results that it takes are longer than max_frame, and no worker of the queue "
        what += "knows the extension 'inputs' to read them in pages: use EventMQ 1.0 or later"
        error = encode_error(RemoteError("eventmq.errors.ResultTooLarge", what))
        rows = [self.outcomes.row(job, JobState.FAILED, ERROR_TYPE, error) for job in jobs]
        logger.error(
            "%d jobs of the queue %r failed for good, the first is %s: %s",
            len(jobs), jobs[0].queue, jobs[0].id, what,
        )  # fmt: skip
        self.outcomes.finish(rows)


def _paging(text: str, seconds: float) -> float:
    """Return the cost of reading pages: high enough to end a chunk; 0 for a job without pages."""
    return seconds if PAGED in flags_of(text) else 0.0


class Dispatch:
    """Leases jobs to sessions, and sends the chunks."""

    def __init__(self, state: State, routing: RoutingStrategy, outcomes: Outcomes) -> None:
        self.state = state
        self.routing = routing
        self.affinity = Affinity(state, cast("KeyedRouting", routing)) if routing.by_key else None
        self.outcomes = outcomes
        self.inputs = InputPages(state, outcomes)
        #: Sessions with credit that are served from one queue in this round.
        self._competitors = 1

    def run(self) -> None:
        """Lease the jobs that can be leased now, and refill windows that run low."""
        state = self.state
        if self.outcomes.unsaved:
            self.outcomes.fail_unsaved()
        if state.busy:
            self._dispatch()
        state.subqueue_counts.coming.clear()
        limiters = state.limiters
        if limiters.changed:  # by the leases of this tick
            changed = set(limiters.changed)
            write = SaveLimits(limiters.take_rows())
            state.write(write, lambda _: None, lambda: limiters.changed.update(changed))

    @property
    def ready_at(self) -> float | None:
        """Time of the next token that jobs wait for, None if no job waits."""
        state = self.state
        if not state.limiters.of_queues:
            return state.limiters.ready_at if state.limiters.ready_times else None
        times = [
            limiter.next_start(state.now)
            for name, limiter in state.limiters.of_queues.items()
            if name in state.busy
        ]
        return min((at for at in (*times, state.limiters.ready_at) if at is not None), default=None)

    def _dispatch(self) -> None:
        state = self.state
        on_hold = state.now < state.hold_until
        if not state.closing and not on_hold:
            if state.limiters.ready_times or state.limiters.freed:
                state.limiters.unblock(state.now)
            if self.affinity is not None:
                self.affinity.rescan(state.busy.values())
            while self._round():
                pass
        for queue in list(state.busy.values()):
            queue.arriving.clear()
            if not on_hold:
                self._refill(queue)
            if not queue.subqueues:
                del state.busy[queue.name]

    # Choice

    def _round(self) -> bool:
        """Serve each session with credit once; return whether another round may lease more."""
        state = self.state
        if not state.busy:
            return False
        ready = {q.name for q in state.busy.values() if q.ready(state.now) and not q.counts.paused}
        if state.limiters.of_queues:
            ready = {name for name in ready if state.queues[name].allowance(state.now)}
        if not ready:
            return False
        votes: dict[str, list[Session]] = {}
        for session in state.sessions.values():
            if session.credit > 0:
                options = self._options(session, ready)
                if options:
                    votes.setdefault(session.choose(options), []).append(session)
        more = False
        for name, sessions in votes.items():
            more |= self._lease_among(state.queues[name], sessions)
        return more

    def _options(self, session: Session, ready: set[str]) -> list[tuple[int, str]]:
        queues = self.state.queues
        blocked = session.blocked
        options = [
            (weight, name)
            for weight, name in session.queues
            if name in ready and blocked.get(name) != queues[name].version
        ]
        if session.dedicated_to:  # the queue of its suspect comes first
            options = [o for o in options if o[1] == session.dedicated_queue] or options
        if len(options) == len(ready):  # no other queue is ready
            return options
        return options + self._unserved_for(session, ready)

    def _unserved_for(self, session: Session, ready: set[str]) -> list[tuple[int, str]]:
        limits = self.state.limits
        if limits.legacy_queue_fallback != "default":
            return []
        weight = session.weights.get(limits.default_queue, 0)
        if not weight:
            return []
        others = ready - session.weights.keys()
        return [(weight, name) for name in others if self._is_unserved(session, name)]

    def _is_unserved(self, session: Session, name: str) -> bool:
        queue = self.state.queues[name]
        old = self.state.now - queue.served_at >= self.state.limits.unserved_after
        return old and session.blocked.get(name) != queue.version

    def _lease_among(self, queue: Queue, sessions: list[Session]) -> bool:
        """Lease jobs of a queue to sessions; return whether another round may lease more."""
        self._competitors = len(sessions)
        if len(sessions) == 1:
            return self._lease(queue, sessions[0])
        views = [WorkerView(s.id, s.credit, len(s.leases)) for s in sessions]
        by_id = {session.id: session for session in sessions}
        more = False
        # Choose no more sessions than jobs: the strategy counts a chosen session as used.
        waiting = len(queue) + len(queue.arriving)
        chosen = self.routing.choose(queue.name, views, max(1, min(len(sessions), waiting)))
        if self.affinity is not None:  # jobs may be meant for any session
            chosen = list(dict.fromkeys([*chosen, *by_id]))
        for session_id in chosen:
            more |= self._lease(queue, by_id[session_id])
        return more

    # Leases

    def _lease(self, queue: Queue, session: Session) -> bool:
        """Lease jobs to a session, or record that it gets none.

        Returns:
            Whether another round may lease more, from this queue or from another one.
        """
        if queue.limiter is not None and not queue.allowance(self.state.now):
            return False  # another session took the last job that the limit allows
        jobs = self._select(queue, session)
        if not jobs:
            if self.affinity is not None:
                self.affinity.declined(queue, session)
            session.blocked[queue.name] = queue.version
            return True  # its other queues may have jobs for it
        session.charge(queue.name, len(jobs))
        lease = self._make_lease(queue, session, jobs)
        if self.affinity is not None:
            self.affinity.leased(queue, session)
        leases = [(job, job.delivery) for job in jobs]
        write: Write = LeaseChunk(Chunk(session.id, lease.number, leases, leased=lease.leased))
        if lease.transient:
            if all(other.sent for other in session.leases.values() if other is not lease):
                self._queue_chunk(session, lease)
                return True
            write = BARRIER  # chunks arrive in order, so it waits for stored ones
        self.state.write(
            write, lambda _: self._queue_chunk(session, lease), lambda: self._undo(session, lease)
        )
        return True

    def _limit(self, queue: Queue, session: Session, waiting: int) -> int:
        share = session.share(queue.name, waiting, self._competitors)
        if queue.limiter is not None:
            share = min(share, queue.allowance(self.state.now))
        return min(self.state.limits.chunk_jobs, share)

    def _select(self, queue: Queue, session: Session) -> list[JobRecord]:
        limits = self.state.limits
        cost_of, refuses = self._cost_of(queue, session), self._refuses(session, queue)
        eligibility = self._eligibility(queue, session)
        if self.affinity is not None:
            cost_of = self.affinity.narrow(queue, session, cost_of)
        arriving = not len(queue) and not queue.spilled
        limit = self._limit(queue, session, len(queue.arriving) if arriving else len(queue))
        if arriving:
            return self._select_arriving(queue, cost_of, refuses, limit)
        load = Load(limits.chunk_seconds, limit, limits.max_frame // 2)
        suspects = self.state.suspects
        if queue.name not in suspects.by_queue:
            return self._select_unexpired(queue, session, (eligibility, cost_of, refuses), load)

        def suits(job: JobRecord) -> bool:
            task = parse_headers(job.headers).task or None
            return eligibility.admits(task) and (refuses is None or not refuses(job))

        if suspects.wait(queue, self.state.jobs, self.state.running, suits):
            alone = self._only_suspects(session, refuses)
            one = load._replace(jobs=1)
            if jobs := self._select_unexpired(queue, session, (eligibility, cost_of, alone), one):
                return jobs
            if session.credit <= 0:  # it is dedicated to a suspect now
                return []
        others = self._no_suspects(refuses)
        return self._select_unexpired(queue, session, (eligibility, cost_of, others), load)

    def _only_suspects(self, session: Session, refuses: Refuses) -> Refuses:
        """Return a filter that refuses all jobs except the suspects that a session may get now."""
        may_go, now = self.state.suspects.may_go, self.state.now
        return lambda job: (refuses is not None and refuses(job)) or not may_go(job, session, now)

    def _no_suspects(self, refuses: Refuses) -> Refuses:
        """Return a filter that refuses suspects, which are sent in chunks of their own."""
        get = self.state.suspects.get
        return lambda job: (refuses is not None and refuses(job)) or get(job) is not None

    def _select_unexpired(
        self,
        queue: Queue,
        session: Session,
        suits: tuple[Eligibility, Callable[[str], float], Refuses],
        load: Load,
    ) -> list[JobRecord]:
        """Take jobs of the window for a session; end expired ones."""
        now, wall = self.state.now, self.state.wall
        while True:
            jobs = queue.select(*suits, load, now)
            stale = {id(job): job for job in jobs if job.expires and job.expires <= wall}
            if stale:
                rows = [self.outcomes.row(job, JobState.EXPIRED) for job in stale.values()]
                self.outcomes.finish(rows, ahead=self.state.keeper.ahead)
            unread: list[JobRecord] = []
            if self.inputs.unsupported(session):
                unread = [job for job in jobs if is_paged(job) and id(job) not in stale]
                if unread:
                    self.inputs.fail(unread)
            if not stale and not unread:
                return jobs
            dropped = {*stale, *map(id, unread)}
            fresh = [job for job in jobs if id(job) not in dropped]
            if fresh:
                return fresh

    def _select_arriving(
        self,
        queue: Queue,
        cost_of: Callable[[str], float],
        refuses: Callable[[JobRecord], bool] | None,
        limit: int,
    ) -> list[JobRecord]:
        """Take jobs that this commit admits; the others join the queue after the commit."""
        limits, wall = self.state.limits, self.state.wall
        budget, space = limits.chunk_seconds, limits.max_frame // 2
        jobs: dict[str, JobRecord] = {}  # an id may come twice in a tick, and is stored once
        running, known, transient = self.state.running, self.state.jobs, self.state.transient.jobs
        queue.arriving.sort(key=lambda job: (job.rank, job.seq))
        for job in queue.arriving:
            if len(jobs) >= limit or budget <= 0 or (jobs and space < len(job.body)):
                break
            cost = cost_of(job.headers)
            fits = cost >= 0 and not (refuses is not None and refuses(job))
            expired = job.expires and job.expires <= wall
            if not fits or expired or job.id in transient:
                continue
            if job.id not in running and job.id not in known and job.id not in jobs:
                jobs[job.id] = job
                budget -= cost
                space -= len(job.body)
        if jobs:
            leased = set(map(id, jobs.values()))
            queue.arriving = [job for job in queue.arriving if id(job) not in leased]
        return list(jobs.values())

    @staticmethod
    def _eligibility(queue: Queue, session: Session) -> Eligibility:
        """Return the eligibility of a session in a queue."""
        if queue.name in session.weights:
            return session.eligibility
        # The session is a fallback: the queue has no workers of its own now.
        return LEGACY_ONLY._replace(legacy=session.eligibility.legacy)

    def _cost_of(self, queue: Queue, session: Session) -> Callable[[str], float]:
        """Return a function: header text -> seconds that a job costs, below 0 if it is refused."""
        run_times, unmeasured = self.state.run_times, self.state.limits.chunk_seconds
        suits = self._eligibility(queue, session).admits

        if session.jobs:  # its slots share a chunk, so the run time does not limit it
            return lambda text: _paging(text, unmeasured) if suits(subqueue_of(text).task) else -1.0

        def cost_of(text: str) -> float:
            task = subqueue_of(text).task
            if not suits(task):
                return -1.0
            return _paging(text, unmeasured) or run_times.get(task or "", unmeasured)

        return cost_of

    def _refuses(
        self, session: Session, queue: Queue | None = None
    ) -> Callable[[JobRecord], bool] | None:
        """Return a filter that refuses jobs which a session must not get, None if it needs none."""
        refusals = self.state.refusals
        if queue is not None and self.inputs.unsupported(session) and self.inputs.refuses(queue):
            return lambda job: is_paged(job) or session.id in refusals.get(job.id, ())
        if not refusals:
            return None
        return lambda job: session.id in refusals.get(job.id, ())

    def _make_lease(self, queue: Queue, session: Session, jobs: list[JobRecord]) -> Lease:
        """Lease jobs as the next chunk of a session, and count the delivery of each."""
        number = session.next_number
        session.next_number = number + 1
        if session.dedicated_to:
            session.dedicated_to = ""
        if self.state.suspects.by_id:
            self.state.suspects.leased(jobs[0], session, self.state.now)
        message_id = jobs[0].id if session.legacy else f"{session.id[:64]}.{number}"
        lease = Lease(number, queue.name, list(jobs), [], message_id, remaining=len(jobs))
        lease.transient, lease.leased = subqueue_of(jobs[0].headers).transient, self.state.now
        if self.state.suspects.by_id and not session.legacy:
            lease.asks = self.state.suspects.get(jobs[0]) is not None
        for job in jobs:
            job.delivery += 1
        lease.deliveries = [job.delivery for job in jobs]
        self.state.leased_all(queue, jobs, session, lease)
        session.leases[number] = lease
        if session.legacy:
            session.free -= 1
            timeout = parse_headers(jobs[0].headers).timeout or LEGACY_TIMEOUT
            lease.until = self.state.now + timeout + LEGACY_SLACK
        return lease

    # Sending

    def _queue_chunk(self, session: Session, lease: Lease) -> None:
        """Queue the REQUEST of a chunk, or close the chunk if no job in it is open."""
        state = self.state
        if not lease.remaining:  # the commit has refused or ended all of its jobs
            session.free += session.legacy
            self.outcomes.close(session, lease)
            return
        lease.sent = state.now
        if session.peer is None:
            return
        epoch = 0 if state.owner is None else state.epoch
        frames = legacy_frames(lease) if session.legacy else chunk_frames(lease, state.wall, epoch)
        session.peer.sent = state.now
        state.counters["dispatched"] += lease.remaining
        if not lease.resent:
            session.assigned += lease.remaining
            state.queues[lease.queue].assigned += lease.remaining
        state.deferred_sends.append(DeferredSend(session.peer.key, frames, session, lease))

    def send_again(self, session: Session, lease: Lease) -> None:
        """Send a chunk that did not arrive again, with the same number."""
        self.state.counters["resent_chunks"] += 1
        lease.resent = True
        self._queue_chunk(session, lease)

    # Windows

    def _refill(self, queue: Queue) -> None:
        """Read jobs of the store into the subqueues that run low."""
        for subqueue, jobs, size in queue.pop_refills(self.state.now):
            self._read(queue, subqueue, jobs, size)

    def _read(self, queue: Queue, subqueue: Subqueue, limit: int, max_bytes: int) -> None:
        subqueue.reading = True
        write = ReadQueued(queue.name, subqueue.key, subqueue.edge, limit, max_bytes)

        def settle(write_result: tuple[list[JobRecord], bool]) -> None:
            jobs, more = write_result
            if queue.read_done(subqueue, write.after, jobs, more=more):
                self._join(queue, subqueue, self.outcomes.sort_out_damaged(jobs))
                queue.forget_if_empty(subqueue)

        self.state.write(write, settle, lambda: queue.read_failed(subqueue))

    # hot loop: python -m benchmarks drain
    def _join(self, queue: Queue, subqueue: Subqueue, jobs: list[JobRecord]) -> None:
        state = self.state
        state.busy[queue.name] = queue
        known, text, limited = state.jobs, "", False
        if state.transient.jobs:
            jobs = [job for job in jobs if not state.keep_out(job)]
        new = [job for job in jobs if job.id not in known]
        for job in new:
            known[job.id] = job
            if job.headers is not text:
                text = job.headers
                limited = "limit-" in text
            if limited:
                state.update_limits(text, job.seq)
            if job.deaths:
                state.suspects.add(job)
        for displaced in queue.fill(subqueue, new):
            known.pop(displaced.id, None)

    # Undoing

    def _undo(self, session: Session, lease: Lease) -> None:
        """Undo a lease whose commit has failed."""
        state = self.state
        session.leases.pop(lease.number, None)
        if session.legacy:
            session.free += 1
        for job in lease.jobs:
            if job is not None and state.released(job, unstarted=True):
                job.delivery -= 1
                if job.id in state.jobs:
                    state.enqueue(job)

    def not_sent(self, session: Session, lease: Lease, *, reachable: bool) -> None:
        """Requeue the jobs of a chunk that could not be sent; the session gets no chunk for now.

        A chunk that was sent again stays: another copy may have arrived, perhaps over the
        connection with which the session returned. The next STATUS or INFORM tells.
        """
        session.full = True
        session.free = session.free + 1 if reachable and session.legacy else 0
        if not lease.resent:
            self.outcomes.give_back(session, lease, unstarted=True)


class Affinity:
    """Asks a routing strategy with keys which session a job is meant for.

    The answers depend on loads and on the time. So a session that got no job is tried again when
    another one takes no more jobs, and every `RESCAN_EVERY` seconds.

    Args:
        state: The memory of the broker.
        routing: The strategy.
    """

    def __init__(self, state: State, routing: KeyedRouting) -> None:
        self._state = state
        self._routing = routing
        self._scanned_at = 0.0
        #: Queues and sessions that got a chunk when they were last tried.
        self._served: set[tuple[str, str]] = set()

    def narrow(self, queue: Queue, session: Session, cost_of: CostOf) -> CostOf:
        """Return ``cost_of``, but below 0 for jobs that are meant for another session."""
        routing, name, now = self._routing, queue.name, self._state.now
        views: dict[str, list[WorkerView]] = {}

        def narrowed(text: str) -> float:
            cost = cost_of(text)
            if cost < 0.0:
                return cost
            headers = parse_headers(text)
            key = routing.key(name, text) if headers.content_type else ""
            if not key:
                return cost
            workers = views.get(headers.task)
            if workers is None:
                workers = views[headers.task] = self._views(name, session, text)
            return cost if routing.prefer(name, key, workers, now) == session.id else -1.0

        return narrowed

    def _views(self, name: str, session: Session, text: str) -> list[WorkerView]:
        """Return the sessions that may get jobs with these headers, with or without credit."""
        refused = set().union(*self._state.refusals.values())
        return [
            WorkerView(s.id, max(s.credit, 0), len(s.leases))
            for s in self._state.sessions.values()
            if s is session
            or (
                s.peer is not None
                and not s.closing
                and s.id not in refused
                and any(own == name for _, own in s.queues)
                and s.eligibility.admits(subqueue_of(text).task)
            )
        ]

    def leased(self, queue: Queue, session: Session) -> None:
        """Record that a session got a chunk; without credit left it may pass keys on."""
        self._served.add((queue.name, session.id))
        if session.credit <= 0:
            self.declined(queue, session)

    def declined(self, queue: Queue, session: Session) -> None:
        """Let other sessions be tried again: one that takes no more jobs may pass keys on."""
        if (queue.name, session.id) in self._served:
            self._served.remove((queue.name, session.id))
            queue.version += 1

    def rescan(self, queues: Iterable[Queue]) -> None:
        """Let sessions be tried again, at most every `RESCAN_EVERY` seconds."""
        now = self._state.now
        if not 0.0 <= now - self._scanned_at < RESCAN_EVERY:
            self._scanned_at = now
            self._served.clear()
            for queue in queues:
                queue.version += 1
