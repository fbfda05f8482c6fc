"""Admission: REQUESTs of clients, their checks, the write, and the receipt once it is on disk.

`Admission` admits jobs, batches and graphs. `UniqueAdmission` updates the broker's memory after the
store has applied unique keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from eventmq.broker.grants import set_owner
from eventmq.broker.transient import header_refusal
from eventmq.errors import ProtocolError
from eventmq.graph import flags_of
from eventmq.headers import parse_headers
from eventmq.job import HELD, JobRecord, JobState
from eventmq.store.reads import FindJobs
from eventmq.store.writes import Admit, AdmitGraph, subqueue_of, unique_rule
from eventmq.wire.batches import decode_batch, decode_graph, encode_exceptions, is_text
from eventmq.wire.results import NO_REPLY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eventmq.broker.grants import Grant
    from eventmq.broker.peers import Peer
    from eventmq.broker.state import State
    from eventmq.broker.waiters import ResultWaiters
    from eventmq.graph import Plan
    from eventmq.headers import Headers
    from eventmq.store import Write
    from eventmq.store.reads import JobRow
    from eventmq.store.writes import Finished, WriteResult
    from eventmq.wire.commands import Request

__all__ = ["Admission", "UniqueAdmission"]

#: Number of deliveries of a job without guarantee that each owner of a shared store may use. With
#: numbers of its own, an owner never mistakes the parts of a stream that a worker yields for an
#: earlier owner for parts of its own delivery.
EPOCH_DELIVERIES = 1000

#: Ranks are whole microseconds.
_MICRO = 1_000_000


class UniqueAdmission:
    """Updates jobs in memory after the store has applied their unique keys."""

    def __init__(self, state: State, waiters: ResultWaiters) -> None:
        self.state = state
        self.waiters = waiters

    def admitted(self, job: JobRecord, write_result: WriteResult) -> bool:
        """Update a job and those that it replaced; return whether it is stored."""
        if write_result.code == "held":
            job.state = JobState.DELAYED
            job.ready_at += HELD
            return True
        if write_result.code != "replaced":
            return False
        rule = unique_rule(job.headers)
        if rule is not None and rule.mode == "keep_last":
            replaced = write_result.ended[0].job
            job.state, job.rank = replaced.state, replaced.rank
            job.ready_at, job.eta = replaced.ready_at, replaced.eta
        self._remove_replaced(write_result.ended)
        return True

    def _remove_replaced(self, rows: Sequence[Finished]) -> None:
        """Forget replaced jobs, and notify the peers that wait for them."""
        state = self.state
        for row in rows:
            old = row.job
            queue = state.queue(old.queue)
            if not state.keep_out(old):
                live = state.jobs.pop(old.id, None)
                if live is not None:
                    queue.remove(live)
                state.refusals.pop(old.id, None)
            queue.counts.delayed -= old.state is JobState.DELAYED
            queue.counts.queued -= old.state is not JobState.DELAYED
            state.counters[row.state.value] += 1
        state.counters["ended"] += len(rows)
        state.counters["replaced"] += len(rows)
        self.waiters.ended(rows)

    def ended(self, rows: Sequence[Finished]) -> None:
        """Promote delayed jobs soon if one may have waited for a unique key of ended jobs."""
        state, text = self.state, ""
        for row in rows:
            if row.job.headers is text:  # most jobs of a chunk share their headers
                continue
            text = row.job.headers
            if "unique:" in text:
                ready_at = state.next_ready_at
                state.next_ready_at = state.now if ready_at is None else min(ready_at, state.now)
                return


class _BatchIds:
    """The ids of the jobs in the commit of this tick, collected when an id is looked up."""

    def __init__(self, state: State) -> None:
        self._state = state
        #: The writes of this tick, how many of them were scanned, and the ids in those.
        self._writes: Sequence[Write] | None = None
        self._scanned = 0
        self._ids: set[str] = set()

    def __contains__(self, job_id: str) -> bool:
        writes = self._state.writes
        if writes is not self._writes:
            self.clear()
            self._writes = writes
        for write in writes[self._scanned :]:
            if isinstance(write, (Admit, AdmitGraph)):
                self._ids.update(job.id for job in write.jobs)
        self._scanned = len(writes)
        return job_id in self._ids

    def clear(self) -> None:
        """Forget the ids: the commit has ended."""
        self._writes, self._scanned, self._ids = None, 0, set()


class _Submission(NamedTuple):
    """A message with jobs that is being committed.

    Attributes:
        positions: Positions of ``jobs`` in the message.
        refused: Error code and text of the refused jobs, by position in the message.
        wants_reply: The client wants a REPLY with the result.
        late_ack: The client needs the ACK only if the REPLY takes long.
        owed: The submission has registered its peer for the REPLY.
        replaced: The peer that was registered before.
    """

    peer: Peer
    message_id: str
    wants_ack: bool
    batch: bool
    jobs: list[JobRecord]
    positions: list[int]
    refused: dict[int, tuple[str, str]]
    wants_reply: bool = False
    late_ack: bool = False
    owed: bool = False
    replaced: Peer | None = None


class _Graph(NamedTuple):
    """A graph that is being committed."""

    peer: Peer
    id: str
    jobs: list[JobRecord]
    plan: Plan


class Admission:
    """Admits jobs, and graphs of them."""

    def __init__(self, state: State, waiters: ResultWaiters) -> None:
        self.state = state
        self.waiters = waiters
        self.unique = UniqueAdmission(state, waiters)
        #: New queues of the message, and the peer that names them, until its jobs are admitted.
        self._new_queues: dict[str, Peer] = {}
        #: Queue -> number of jobs of the message that fit in it, and how many of them are stored.
        self._allocated: dict[str, int] = {}
        self._coming: dict[str, int] = {}
        self._batch_ids = _BatchIds(state)

    def request(self, peer: Peer, message: Request) -> None:
        """Admit the job, the batch or the graph of a REQUEST."""
        state = self.state
        self._new_queues.clear()
        self._coming = {}
        self._allocated = {}
        if state.closing:
            state.error(peer, message.id, "closing", "this broker is shutting down")
            return
        headers = self._headers(message.headers)
        if headers.nodes:
            self._request_graph(peer, message, headers.nodes)
            return
        if headers.batch:
            self._batch(peer, message, headers.batch)
            return
        self._check_sizes(message.id, message.queue, message.body)
        make = self._job_factory(peer, message.queue, message.headers, headers)
        transient = headers.guarantee is False
        refusal = header_refusal(headers) if transient else None
        refusal = refusal or self._allocate(peer, message.queue, 1, message.headers, headers)
        if refusal and not self._is_repeat(message.id, message.queue, headers, refusal):
            state.error(peer, message.id, *refusal)
            return
        job = make(message.id, message.body, self._take_seqs(1))
        submission = self._submission(peer, message.id, headers, job)
        if transient:
            self._begin_queues()
            refusal = self._admit_transient(job)
            if refusal:
                self._cancel_reply(submission, job.id)
            self._receipt(submission, {0: refusal} if refusal else {})
        else:
            self._admit(submission)

    def _submission(
        self, peer: Peer, message_id: str, headers: Headers, job: JobRecord
    ) -> _Submission:
        """Return the submission of one job; register the peer for a REPLY at its end."""
        wants_reply = headers.reply_requested or headers.late_ack
        wants_ack = headers.ack_requested or bool(headers.guarantee)
        replaced = self.state.reply_to.get(job.id)
        owed = wants_reply and self.waiters.owe_reply(job.id, peer)
        return _Submission(
            peer, message_id, wants_reply or wants_ack, batch=False, jobs=[job], positions=[0],
            refused={},
            wants_reply=wants_reply,
            late_ack=headers.late_ack and not wants_ack and peer.reads_rows,
            owed=owed, replaced=replaced,
        )  # fmt: skip

    def _cancel_reply(self, submission: _Submission, job_id: str) -> None:
        """Undo the registration of a refused submission for a REPLY, but not an earlier one."""
        if submission.owed and self.state.reply_to.get(job_id) is submission.peer:
            self.waiters.return_reply(job_id, submission.replaced)

    def _headers(self, text: str) -> Headers:
        if len(text) > self.state.limits.max_headers:
            raise ProtocolError(
                f"the headers are longer than {self.state.limits.max_headers} characters",
                code="too-large",
            )
        headers = parse_headers(text)
        if len(text) > self.state.limits.max_unique // 4:  # bytes that a character has at most
            self._check_keys(headers)
        if headers.unique:
            unique_rule(text)
        return headers

    def _check_keys(self, headers: Headers) -> None:
        """Raise `ProtocolError` for a key that is too long for an index of the store."""
        max_bytes = self.state.limits.max_unique
        for what, key in (
            ("unique key", headers.unique),
            ("limit key", headers.limit_key),
            ("task name", headers.task),
        ):
            if (size := len(key.encode())) > max_bytes:
                raise ProtocolError(
                    f"a {what} has at most {max_bytes:,} bytes of UTF-8, and this one has "
                    f"{size:,}: {key[:40]!r}",
                    code="too-large",
                )

    def _check_sizes(self, job_id: str, queue: str, body: bytes) -> None:
        limits = self.state.limits
        if len(body) > limits.max_frame:
            raise ProtocolError(
                f"a body of {len(body)} bytes is over the limit of {limits.max_frame}",
                code="too-large",
            )
        if len(job_id) > limits.max_id or len(queue) > limits.max_id:
            raise ProtocolError(
                f"an id or queue name has at most {limits.max_id} characters", code="too-large"
            )

    def _allocate(
        self, peer: Peer, queue: str, n: int, text: str, headers: Headers
    ) -> tuple[str, str] | None:
        """Allocate the queue, subqueue and limits of new jobs; return why they are refused."""
        queue = queue or self.state.limits.default_queue
        refusal = (
            self._allocate_queue(peer, queue, n)
            or self._allocate_subqueue(queue, text)
            or self._apply_limits(text, headers)
        )
        if refusal is None:
            self._allocated[queue] = self._allocated.get(queue, 0) + n
            if headers.guarantee is not False:
                self._coming[queue] = self._coming.get(queue, 0) + n
        return refusal

    def _is_repeat(
        self, job_id: str, queue: str, headers: Headers, refusal: tuple[str, str]
    ) -> bool:
        """Return whether a job that does not fit in a full queue is known to be in it already.

        The broker knows the jobs in memory, those of this tick, and those whose REPLY it owes. For
        any other job it would have to read the store at every REQUEST to a full queue.
        """
        state = self.state
        if refusal[0] != "queue-full" or (queue or state.limits.default_queue) not in state.queues:
            return False
        transient = job_id in state.transient.jobs
        if headers.guarantee is False:
            return transient or job_id in state.jobs
        if transient:
            return False  # the stored job is another one than the transient job in memory
        return job_id in state.jobs or job_id in state.reply_to or job_id in self._batch_ids

    def _allocate_queue(self, peer: Peer, name: str, n: int) -> tuple[str, str] | None:
        """Allocate a queue if it is new; return why the queue or its jobs are refused, or None."""
        state, limits = self.state, self.state.limits
        queue = state.queues.get(name)
        if queue is None and name not in self._new_queues:
            if limits.legacy_queue_fallback == "refuse":
                return "unknown-queue", f"no worker ever served the queue {name!r}"
            refusal = state.queue_refusal(name, peer, "client", len(self._new_queues))
            if refusal:
                return "queue-full", refusal
        n += self._allocated.get(name, 0)
        length = 0 if queue is None else queue.length
        if length + n > limits.max_queue_length:
            return "queue-full", (
                f"the queue {name!r} has {length} jobs, and may have {limits.max_queue_length} "
                "(setting max_queue_length)"
            )
        if queue is None:
            self._new_queues[name] = peer
        return None

    def _allocate_subqueue(self, name: str, text: str) -> tuple[str, str] | None:
        """Reserve a subqueue if it is new; return the refusal if there are too many."""
        state, limits = self.state, self.state.limits
        subqueue, queue = subqueue_of(text), state.queues.get(name)
        if queue is not None and subqueue in queue.subqueues:
            return None
        coming = state.subqueue_counts.coming
        if (name, subqueue) not in coming:
            if state.subqueue_counts.total + len(coming) >= limits.max_subqueues:
                what = f"task {subqueue.task!r}" if subqueue.task is not None else "legacy jobs"
                what += f" with the limit key {subqueue.key!r}" if subqueue.key else ""
                msg = f"jobs of {limits.max_subqueues} tasks and limit keys wait already, and none "
                msg += f"of {what} in queue {name!r}; their workers have to go on first"
                return "too-many-subqueues", msg
            coming.add((name, subqueue))
        return None

    def _apply_limits(self, text: str, headers: Headers) -> tuple[str, str] | None:
        """Apply the limits of new jobs; return the refusal if there are too many keys."""
        state = self.state
        max_keys = state.limits.max_keys
        if headers.guarantee is False:
            return None
        of = state.limiters.of
        if headers.limit_key and len(of) >= max_keys and subqueue_of(text) not in of:
            state.prune_limiters()
            if len(of) >= max_keys:
                text = f"this broker has {max_keys} limit keys already"
                return "too-many-keys", f"{text}; use limit_key with fewer values"
        state.update_limits(text, state.next_seq)
        return None

    def _job_factory(
        self, peer: Peer, queue: str, text: str, headers: Headers
    ) -> Callable[[str, bytes, int], JobRecord]:
        """Return a factory of jobs that differ only in its arguments: id, body and number."""
        limits, now = self.state.limits, self.state.now
        ready_at = now + headers.countdown if headers.countdown else 0.0
        eta = headers.eta if headers.eta - self.state.keeper.ahead > max(ready_at, now) else 0.0
        ready_at = eta - self.state.keeper.ahead if eta else ready_at
        delayed = ready_at > now
        ready_at = ready_at if delayed else 0.0
        rank = int(((ready_at or now) - headers.priority * limits.priority_seconds) * _MICRO)
        name = queue or limits.default_queue
        if peer.grant is not None:
            peer.grant.check_submit(name)
            text = set_owner(text, peer.grant.owner)
        elif headers.owner:
            text = set_owner(text, "")
        state = JobState.DELAYED if delayed else JobState.QUEUED
        expires = headers.expires

        def make(job_id: str, body: bytes, seq: int) -> JobRecord:
            return JobRecord(
                job_id, name, text, body, seq, rank, state, 1, 0, ready_at, expires, now, eta=eta
            )

        def make_legacy(job_id: str, body: bytes, seq: int) -> JobRecord:
            if not is_text(body):
                raise ProtocolError(
                    "a job without content-type is text: legacy workers read nothing else",
                    code="bad-body",
                )
            return make(job_id, body, seq)

        return make if headers.content_type else make_legacy

    def _take_seqs(self, n: int) -> int:
        """Return the first of ``n`` new numbers."""
        seq = self.state.next_seq
        self.state.next_seq = seq + n
        return seq

    # hot loop: python -m benchmarks enqueue_bulk
    def _batch(self, peer: Peer, message: Request, count: int) -> None:
        self._check_sizes(message.id, "", message.body)
        if count > self.state.limits.max_batch:
            raise ProtocolError(
                f"a batch has at most {self.state.limits.max_batch} jobs", code="too-many"
            )
        templates, rows = decode_batch(message.body, count)
        max_length = self.state.limits.max_id
        if any(len(queue) > max_length for queue, _ in templates):
            raise ProtocolError(
                f"a queue name has at most {max_length} characters", code="too-large"
            )
        headers = [self._headers(text) for _, text in templates]
        factories = [
            self._job_factory(peer, queue, text, h)
            for (queue, text), h in zip(templates, headers, strict=True)
        ]
        per_template = [0] * len(templates)
        for _, index, _ in rows:
            per_template[index] += 1
        refusals = [
            (header_refusal(known) if known.guarantee is False else None)
            or self._allocate(peer, queue, n, text, known)
            for (queue, text), n, known in zip(templates, per_template, headers, strict=True)
        ]
        jobs: list[JobRecord] = []
        positions: list[int] = []
        refused: dict[int, tuple[str, str]] = {}
        seq = self._take_seqs(count)
        for i, (job_id, index, body) in enumerate(rows):
            refusal = refusals[index]
            if refusal is not None:
                queue, known = templates[index][0], headers[index]
                refusal = None if self._is_repeat(job_id, queue, known, refusal) else refusal
            if refusal is None and len(job_id) > max_length:
                refusal = ("too-large", f"an id has at most {max_length} characters")
            if refusal is None:
                jobs.append(factories[index](job_id, body, seq + i))
                positions.append(i)
            else:
                refused[i] = refusal
        self._begin_queues()
        if any(h.guarantee is False for h in headers):
            jobs, positions = self._sift_transient(jobs, positions, refused)
        submission = _Submission(peer, message.id, True, True, jobs, positions, refused)  # noqa: FBT003
        if jobs:
            self._admit(submission)
        else:
            self._receipt(submission, refused)

    def _sift_transient(
        self, jobs: list[JobRecord], positions: list[int], refused: dict[int, tuple[str, str]]
    ) -> tuple[list[JobRecord], list[int]]:
        """Admit the jobs without guarantee of a batch; return the others and their positions."""
        stored: list[tuple[JobRecord, int]] = []
        for job, position in zip(jobs, positions, strict=True):
            if not subqueue_of(job.headers).transient:
                stored.append((job, position))
            elif (refusal := self._admit_transient(job)) is not None:
                refused[position] = refusal
        return [job for job, _ in stored], [position for _, position in stored]

    def _admit_transient(self, job: JobRecord) -> tuple[str, str] | None:
        """Keep a job without guarantee in memory; return the refusal, None if it is admitted."""
        state, memory = self.state, self.state.transient
        row = memory.find([job.id], state.now).get(job.id)
        known = state.jobs.get(job.id) if row is None else row.job
        if known is not None:
            state.counters["duplicates"] += 1
            if parse_headers(known.headers).owner != parse_headers(job.headers).owner:
                return "not-allowed", f"another key has submitted a job with the id {job.id!r}"
            self.waiters.check_ended(job.id)
            return None
        refusal = memory.full(job)
        if refusal is not None:
            return refusal
        memory.add(job)
        if state.owner is not None:  # the deliveries of an earlier owner are not known
            job.delivery = (state.epoch - 1) * EPOCH_DELIVERIES
        state.counters["admitted_transient"] += 1
        counts = state.queue(job.queue).counts
        if job.state is JobState.DELAYED:
            counts.delayed += 1
        else:
            counts.queued += 1
            state.enqueue(job)
        return None

    def _begin_queues(self) -> None:
        for name, peer in self._new_queues.items():
            self.state.begin_queues((name,), peer)
        self._new_queues.clear()

    def _expect(self) -> dict[str, int]:
        """Count the jobs of a message in their queues until its commit ends; return the counts."""
        coming = self._coming
        for name, n in coming.items():
            self.state.queue(name).coming += n
        return coming

    def _committed(self, coming: Mapping[str, int]) -> None:
        self._batch_ids.clear()
        for name, n in coming.items():
            self.state.queue(name).coming -= n

    def _admit(self, submission: _Submission) -> None:
        state = self.state
        if self._new_queues:
            self._begin_queues()
        limited = state.limiters.of
        queue, text, waiters = None, "", False
        for job in submission.jobs:
            if queue is None or queue.name != job.queue:
                queue = state.queue(job.queue)
                queue.version += 1  # sessions that got no job before may get these
                state.busy[job.queue] = queue
            if job.headers is not text:  # most jobs of a batch share their headers
                text = job.headers
                waiters = (  # of another job's end, or of a limit
                    "unique:" in text
                    or "limit-" in text
                    or (bool(limited) and subqueue_of(text) in limited)
                )
            if job.state is JobState.QUEUED and not waiters:
                queue.arriving.append(job)
        coming = self._expect()
        state.write(
            Admit(submission.jobs, state.running),
            lambda write_result: self._settled(submission, write_result, coming),
            lambda: self._undone(submission, coming),
        )

    # hot loop: python -m benchmarks enqueue_bulk
    def _settled(
        self,
        submission: _Submission,
        write_result: Mapping[int, WriteResult],
        coming: Mapping[str, int],
    ) -> None:
        state = self.state
        self._committed(coming)
        running, queues, enqueue = state.running, state.queues, state.enqueue
        state.counters["admitted"] += len(submission.jobs)
        for i, job in enumerate(submission.jobs):
            if i in write_result and not self.unique.admitted(job, write_result[i]):
                self._not_stored(submission, i, job, write_result[i])
                continue
            queue = queues[job.queue]
            if job.expires:
                state.record_expiry(job)
            if job.state is not JobState.QUEUED:
                queue.counts.delayed += 1
                if state.next_ready_at is None or job.ready_at < state.next_ready_at:
                    state.next_ready_at = job.ready_at
                continue
            queue.counts.queued += 1
            entry = running.get(job.id)
            if entry is not None and entry[1].jobs[entry[2]] is job:
                state.jobs[job.id] = job
            elif queue.takes(job):
                enqueue(job)
        same = (
            [i for i in write_result if write_result[i].code == "same_id"] if write_result else ()
        )
        if same and submission.peer.grant is not None:
            self._check_owners(submission, same, submission.peer.grant)
        else:
            self._receipt(submission, submission.refused)

    def _check_owners(self, submission: _Submission, same: Sequence[int], grant: Grant) -> None:
        """Refuse jobs whose ids another key has used: the stored jobs are not this peer's."""
        ids = [submission.jobs[i].id for i in same]

        def settle(rows: Mapping[str, JobRow]) -> None:
            for i, job_id in zip(same, ids, strict=True):
                if job_id in rows and not grant.owns(rows[job_id].job.headers):
                    text = f"another key has submitted a job with the id {job_id!r}"
                    submission.refused[submission.positions[i]] = ("not-allowed", text)
                    self._cancel_reply(submission, job_id)
            self._receipt(submission, submission.refused)

        self.state.write(FindJobs(ids, 0), settle)

    def _receipt(self, submission: _Submission, refused: dict[int, tuple[str, str]]) -> None:
        state = self.state
        if submission.batch:
            extra = encode_exceptions(refused) if refused else None
            state.receipt(submission.peer, submission.message_id, extra)
        elif refused:
            state.error(submission.peer, submission.message_id, *refused[0])
        elif submission.wants_ack:
            peer, job_id = submission.peer, submission.jobs[0].id
            owed = submission.wants_reply and state.reply_to.get(job_id) is peer
            if submission.late_ack and owed and not state.closing:  # no later tick may come
                self.waiters.expect_receipt(job_id)
            else:
                if owed:
                    self.waiters.receipts.pop(job_id, None)  # the receipt of an earlier REQUEST
                no_reply = submission.wants_reply and not owed and peer.reads_rows
                state.receipt(peer, submission.message_id, NO_REPLY if no_reply else None)

    def _not_stored(
        self, submission: _Submission, i: int, job: JobRecord, write_result: WriteResult
    ) -> None:
        state = self.state
        state.counters["admitted"] -= 1
        self._withdraw(job)
        if write_result.code == "same_id":
            state.counters["duplicates"] += 1
            self.waiters.check_ended(job.id)
            return
        self._cancel_reply(submission, job.id)
        code = "store-full" if write_result.code == "full" else "duplicate"
        submission.refused[submission.positions[i]] = (code, write_result.detail)

    def _withdraw(self, job: JobRecord) -> None:
        """Take back the lease of a job that the same commit refused."""
        entry = self.state.running.get(job.id)
        if entry is not None and entry[1].jobs[entry[2]] is job:
            _, lease, position = entry
            lease.jobs[position] = None
            lease.remaining -= 1
            self.state.released(job, unstarted=True)

    def _undone(self, submission: _Submission, coming: Mapping[str, int]) -> None:
        state = self.state
        self._committed(coming)
        for job in submission.jobs:
            self._withdraw(job)
            self._cancel_reply(submission, job.id)
        if submission.batch:
            refused = dict.fromkeys(submission.positions, state.failure) | submission.refused
            state.ack(submission.peer, submission.message_id, encode_exceptions(refused))
        else:
            state.error(submission.peer, submission.message_id, *state.failure)

    # Graphs

    def _request_graph(self, peer: Peer, message: Request, count: int) -> None:
        self._check_sizes(message.id, "", message.body)
        graph = self._graph(peer, message, count)
        if isinstance(graph, _Graph):
            self._admit_graph(graph)
        else:
            self.state.error(peer, message.id, *graph)

    def _graph(self, peer: Peer, message: Request, count: int) -> _Graph | tuple[str, str]:
        """Return the jobs of a graph, or why they are refused."""
        templates, rows, plan = decode_graph(message.body, count)
        headers = [self._check_template(queue, text) for queue, text in templates]
        factories = [
            self._job_factory(peer, queue, text, known)
            for (queue, text), known in zip(templates, headers, strict=True)
        ]
        sizes = [0] * len(templates)
        for _, index, _ in rows:
            sizes[index] += 1
        for (queue, text), n, known in zip(templates, sizes, headers, strict=True):
            refusal = self._allocate(peer, queue, n, text, known)
            if refusal is not None and not self._is_repeat(message.id, queue, known, refusal):
                return refusal
        max_length = self.state.limits.max_id
        if rows[0][0] != message.id or any(len(job_id) > max_length for job_id, _, _ in rows):
            msg = f"the id of a graph is that of its first job, of at most {max_length} characters"
            return "bad-body", msg
        seq = self._take_seqs(count)
        jobs = [
            factories[index](job_id, body, seq + i) for i, (job_id, index, body) in enumerate(rows)
        ]
        # Jobs that wait for others, and those that handle a failure.
        waiting = [node for node, join in enumerate(plan.inputs) if join >= 0]
        for node in (*waiting, *(handler.node for handler in plan.handlers)):
            job = jobs[node]
            job.state, job.ready_at, job.eta, job.rank = JobState.BLOCKED, 0.0, 0.0, 0
        return _Graph(peer, message.id, jobs, plan)

    def _check_template(self, queue: str, text: str) -> Headers:
        headers = self._headers(text)
        self._check_sizes("", queue, b"")
        if not flags_of(text) or not headers.content_type or headers.batch or headers.nodes:
            raise ProtocolError(
                "a job of a graph has the headers graph and content-type", code="bad-header"
            )
        if headers.guarantee is False or headers.unique:
            what = "a unique key" if headers.unique else "guarantee:False"
            raise ProtocolError(f"a job of a graph cannot have {what}", code="bad-header")
        return headers

    def _admit_graph(self, graph: _Graph) -> None:
        state = self.state
        state.graphs = True
        self._begin_queues()
        for name in {job.queue for job in graph.jobs}:
            state.busy[name] = state.queue(name)
        coming = self._expect()

        def settle(write_result: WriteResult | None) -> None:
            self._committed(coming)
            self._graph_settled(graph, write_result)

        def undo() -> None:
            self._committed(coming)
            state.error(graph.peer, graph.id, *state.failure)

        state.write(AdmitGraph(graph.jobs, graph.plan), settle, undo)

    def _graph_settled(self, graph: _Graph, write_result: WriteResult | None) -> None:
        state = self.state
        if write_result is None:
            self._graph_stored(graph)
            state.receipt(graph.peer, graph.id)
        elif write_result.code == "same_id":
            self._repeat_graph(graph)
        elif write_result.code == "taken":
            text = f"a job with the id {write_result.detail!r} exists already"
            state.error(graph.peer, graph.id, "bad-body", text)
        else:
            state.error(graph.peer, graph.id, "store-full", write_result.detail)

    def _repeat_graph(self, graph: _Graph) -> None:
        """Send the receipt of a graph that was admitted before, unless by another key."""
        state, grant = self.state, graph.peer.grant
        state.counters["duplicates"] += len(graph.jobs)
        if grant is None:
            state.receipt(graph.peer, graph.id)
            return

        def settle(rows: Mapping[str, JobRow]) -> None:
            if graph.id in rows and not grant.owns(rows[graph.id].job.headers):
                text = f"another key has submitted a job with the id {graph.id!r}"
                state.error(graph.peer, graph.id, "not-allowed", text)
            else:
                state.receipt(graph.peer, graph.id)

        state.write(FindJobs([graph.id], 0), settle)

    def _graph_stored(self, graph: _Graph) -> None:
        state = self.state
        state.counters["admitted"] += len(graph.jobs)
        state.counters["graphs"] += 1
        for _, _, seconds in graph.plan.deadlines:
            deadline = state.now + seconds
            state.next_deadline = min(deadline, state.next_deadline or deadline)
        for job in graph.jobs:
            state.count_waiting(job)
            if job.state is JobState.QUEUED and state.queues[job.queue].takes(job):
                state.enqueue(job)
