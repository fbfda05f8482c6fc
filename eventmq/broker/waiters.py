"""Sends results to the peers that wait for them, by ``get`` calls or requested REPLYs.

`ResultWaiters` knows which peers wait for which jobs. `Lookups` reads the results that are not in
memory, in slices, and only as fast as the peers read their messages.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.errors import ProtocolError
from eventmq.job import TERMINAL
from eventmq.store.reads import FindJobs
from eventmq.wire.batches import pack
from eventmq.wire.commands import read_text, read_texts
from eventmq.wire.results import ENDED, legacy_result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from eventmq.broker.peers import Key, Peer
    from eventmq.broker.state import State
    from eventmq.broker.streams import Streams
    from eventmq.job import JobRecord, JobState
    from eventmq.store.reads import JobRow
    from eventmq.store.writes import Finished

    Remaining = Callable[[Peer, str, Sequence[str]], list[str]]
    Answer = Callable[[Peer, str, Sequence[str], Mapping[str, JobRow]], None]

__all__ = ["Lookups", "ResultWaiters"]


#: Largest number of bytes of results that one tick reads.
MAX_BYTES = 8 * 1024 * 1024

#: Largest number of ids that one tick reads.
MAX_IDS = 2000

#: Part of ``max_unsent_bytes`` up to which more is read for a peer; part of the allowed bytes that
#: one tick reads.
FULL, PART = 0.5, 0.25

#: Smallest limit of the bytes of results that one tick reads, however little may be sent.
MIN_BYTES = 1024 * 1024

#: Bytes of an answer without its result; bytes of an answer up to which it is sent unchecked.
_ROW, _SMALL = 256, 64 * 1024

#: Seconds until a peer with many unsent bytes is checked again.
RETRY_AFTER = 0.02

#: Bytes of the longest result that is sent to a peer with many unsent bytes.
SHORT = 64 * 1024

#: Seconds after the commit within which the result of a job replaces its receipt.
LATE_RECEIPT = 1.0

#: [id, state, content type, bytes or None]
Row = tuple[str, str, str, "bytes | None"]


class _Lookup(NamedTuple):
    peer: Peer
    call: str
    ids: list[str]


class Lookups:
    """Reads results from the store for waiting peers, as fast as these read their messages.

    Args:
        state: The memory of the broker.
        remaining: Called with a peer, a call and ids; returns the ids that it still waits for.
        answer: Called with a peer, a call, ids and their rows, without unread results.

    Attributes:
        unread: Returns how many bytes wait for a peer; the runner sets it.
        allowance: Returns how many bytes may wait for a peer now; the runner sets it.
        allocate: Returns whether a peer can be sent a message; called with its key, the bytes of
            the message, and the bytes planned before it for this peer and for all. The runner sets
            it.
        requested: Peer -> call -> ids to read, in order.
    """

    def __init__(self, state: State, remaining: Remaining, answer: Answer) -> None:
        self.unread: Callable[[Key], int] = lambda _: 0
        self.allowance: Callable[[], int] = lambda: state.limits.max_unsent_bytes
        self.allocate: Callable[[Key, int, int, int], bool] = lambda *_: True
        self._state = state
        self._remaining = remaining
        self._answer = answer
        self.requested: dict[Peer, OrderedDict[str, list[str]]] = {}
        self._reading = False
        #: Peer -> bytes of its next result, if that could not be sent.
        self._next_size: dict[Peer, int] = {}

    def request(self, peer: Peer, call: str, ids: Sequence[str]) -> None:
        """Request reads of jobs, which answer the call."""
        self.requested.setdefault(peer, OrderedDict()).setdefault(call, []).extend(ids)

    def cancel(self, peer: Peer, call: str) -> None:
        """Drop the requests of a call."""
        calls = self.requested.get(peer)
        if calls is not None:
            calls.pop(call, None)
            if not calls:
                del self.requested[peer]
                self._next_size.pop(peer, None)

    def full(self, peer: Peer) -> bool:
        """Return whether too many bytes wait, for the peer or for all, to send it a result now."""
        size = self._next_size.get(peer)
        if size is not None:
            return not self.allocate(peer.key, size, 0, 0)
        return self.unread(peer.key) > FULL * self._state.limits.max_unsent_bytes

    @property
    def timeout(self) -> float:
        """Seconds until `run` must be called."""
        return RETRY_AFTER if self.requested else float("inf")

    def run(self) -> None:
        """Read a slice of the requested jobs."""
        if not self.requested or self._reading:
            return
        chosen = self._choose()
        if chosen:
            ids = list(dict.fromkeys(job_id for lookup in chosen for job_id in lookup.ids))
            self._reading = True
            self._state.write(FindJobs(ids, self._room), lambda rows: self._on_rows(chosen, rows))

    @property
    def _room(self) -> int:
        return min(MAX_BYTES, max(MIN_BYTES, int(PART * self.allowance())))

    def _choose(self) -> list[_Lookup]:
        """Pop requested jobs, peer by peer in turn; skip peers that do not read."""
        chosen: list[_Lookup] = []
        budget = MAX_IDS
        for peer in list(self.requested):
            if self.full(peer):
                continue
            calls = self.requested.pop(peer)
            self._next_size.pop(peer, None)
            while calls and budget > 0:
                call, requested = calls.popitem(last=False)
                ids = self._remaining(peer, call, requested)
                budget -= len(ids)
                if ids:
                    chosen.append(_Lookup(peer, call, ids))
            if calls:
                self.requested[peer] = calls
            if budget <= 0:
                break
        return chosen

    def _on_rows(self, chosen: list[_Lookup], stored: Mapping[str, JobRow]) -> None:
        """Answer the calls with the rows, each in the order of ends; request the others again."""
        self._reading = False
        state, room = self._state, self._room
        rest: list[_Lookup] = []
        planned: Counter[Peer] = Counter()
        for peer, call, remaining in chosen:
            if peer in self._next_size:  # an earlier result comes first, and does not fit
                rest.append(_Lookup(peer, call, list(remaining)))
                continue
            rows = stored
            if state.transient.jobs or state.transient.results.kept:
                rows = {**stored, **state.transient.find(remaining, state.now)}
            ids = _by_end(remaining, rows)
            ready, room_after = _fitting(ids, rows, room)
            sent = self._count_sendable(peer, ids[:ready], rows, planned)
            ready, room = (sent, room) if sent < ready else (ready, room_after)
            self._answer(peer, call, ids[:ready], rows)
            if ids[ready:]:
                rest.append(_Lookup(peer, call, ids[ready:]))
        for peer, call, others in reversed(rest):
            calls = self.requested.setdefault(peer, OrderedDict())
            calls[call] = [*others, *calls.get(call, ())]  # then the jobs that have ended meanwhile
            calls.move_to_end(call, last=False)

    def _allocate(self, peer: Peer, size: int, planned: Counter[Peer]) -> bool:
        return self.allocate(peer.key, size, planned[peer], planned.total())

    def _count_sendable(
        self,
        peer: Peer,
        ids: Sequence[str],
        rows: Mapping[str, JobRow],
        planned: Counter[Peer],
    ) -> int:
        """Return how many of the results can be sent now; record the size of the next one.

        Args:
            peer: The peer.
            ids: Ids of the jobs.
            rows: Rows of the jobs.
            planned: Bytes by peer that will be sent in this tick; updated.
        """
        for position, job_id in enumerate(ids):
            row = rows.get(job_id)
            size = _ROW + (0 if row is None or row.result is None else len(row.result))
            if size > _SMALL and not self._allocate(peer, size, planned):
                self._next_size[peer] = size
                return position
            planned[peer] += size
        return len(ids)


def _by_end(ids: Sequence[str], rows: Mapping[str, JobRow]) -> list[str]:
    return sorted(ids, key=lambda job_id: rows[job_id].at if job_id in rows else 0.0)


def _fitting(ids: Sequence[str], rows: Mapping[str, JobRow], room: int) -> tuple[int, int]:
    """Return how many of the ids can be answered now, and the bytes that remain after them."""
    for position, job_id in enumerate(ids):
        row = rows.get(job_id)
        size = 0 if row is None or row.result is None else len(row.result)
        if row is not None and (row.unread or (size and room <= 0)):
            return position, room
        room -= size
    return len(ids), room


class ResultWaiters:
    """Records which peers wait for which jobs, and answers them."""

    def __init__(self, state: State, streams: Streams) -> None:
        self.state = state
        self.streams = streams
        self.lookups = Lookups(state, self._remaining, self._resolve)
        #: Job whose REPLY may replace its receipt -> time at which the receipt is sent.
        self.receipts: dict[str, float] = {}
        #: Rows of this tick by (peer, call), sent together by `flush`.
        self._rows: dict[tuple[Peer, str], list[Row]] = {}
        state.calls |= {"get": self._get, "forget": self._forget}

    # Requests

    def _get(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        """Handle ``get``: answer each id when its job has ended, and an unknown id now."""
        state = self.state
        ids = read_texts(arguments, "ids")
        if peer.waiting + len(ids) > state.limits.max_waits:
            raise ProtocolError(
                f"this peer waits for {peer.waiting} jobs and asks for {len(ids)} more; at most "
                f"{state.limits.max_waits} are allowed",
                code="too-many",
            )
        remaining = set(ids)
        if not remaining:
            state.answer(peer, call, [])
            return
        self.end_call(peer, call)  # the same message id is the same call, repeated
        peer.calls[call] = remaining
        peer.waiting += len(remaining)
        for job_id in remaining:
            state.waiters.setdefault(job_id, []).append((peer, call))
        unknown = [job_id for job_id in remaining if job_id not in state.jobs]
        if unknown and (state.transient.jobs or state.transient.results.kept):
            unknown = self._answer_transient(peer, call, unknown)
        if unknown:
            self.lookups.request(peer, call, unknown)

    def _forget(self, peer: Peer, call: str, arguments: Mapping[str, Any]) -> None:
        self.end_call(peer, read_text(arguments, "call"))
        self.state.answer(peer, call, None)

    def _answer_transient(self, peer: Peer, call: str, ids: list[str]) -> list[str]:
        """Answer short results of jobs without guarantee at once; return the other ids."""
        rows = self.state.transient.find(ids, self.state.now)
        if not rows or sum(len(row.result or b"") for row in rows.values()) > SHORT:
            return ids
        self._answer_ended(peer, call, list(rows), rows)
        self.flush()
        return [job_id for job_id in ids if job_id not in rows]

    def _remaining(self, peer: Peer, call: str, ids: Iterable[str]) -> list[str]:
        """Return the ids of the jobs whose ends were not answered yet."""
        if call:
            unanswered = peer.calls.get(call, set())
            return [job_id for job_id in ids if job_id in unanswered]
        return [job_id for job_id in ids if self.state.reply_to.get(job_id) is peer]

    def _resolve(
        self, peer: Peer, call: str, ids: Sequence[str], rows: Mapping[str, JobRow]
    ) -> None:
        """Answer a call; without a call, send the requested REPLYs."""
        if call:
            self._answer_ended(peer, call, self._remaining(peer, call, ids), rows)
        else:
            for job_id in self._remaining(peer, "", ids):
                self._reply_if_ended(job_id, rows)

    def _answer_ended(
        self, peer: Peer, call: str, ids: Iterable[str], rows: Mapping[str, JobRow]
    ) -> None:
        """Answer the ids of ended jobs, in the order of their ends, and of unknown jobs."""
        ends = {job_id: row.at for job_id, row in rows.items()}
        for job_id in sorted(ids, key=lambda job_id: ends.get(job_id, 0.0)):
            row = rows.get(job_id)
            if row is None:
                if not self._is_in_memory(job_id):
                    self._answer(peer, call, (job_id, "", "", None))
            elif not self._may_read(peer, row.job.headers):
                self._answer(peer, call, (job_id, "", "", None))
            elif row.job.state in TERMINAL:
                state = row.job.state.value
                self._answer(peer, call, (job_id, state, row.content_type, row.result))

    def _is_in_memory(self, job_id: str) -> bool:
        return job_id in self.state.jobs or job_id in self.state.transient.jobs

    @staticmethod
    def _may_read(peer: Peer, headers: str) -> bool:
        return peer.grant is None or peer.grant.owns(headers)

    def owe_reply(self, job_id: str, peer: Peer) -> bool:
        """Register a peer for a REPLY when the job has ended, unless too many are owed already.

        Returns:
            Whether the registration is new; False if it existed, or the peer gets no REPLY.
        """
        other = self.state.reply_to.get(job_id)
        if other is peer:
            return False
        if other is not None and other.grant is not peer.grant:
            return False  # the job belongs to another owner
        if other is not None and other.reads_rows:
            return False  # that peer relies on the REPLY; this one is told that none comes
        if len(self.state.reply_to) >= self.state.limits.max_replies:
            self.state.counters["replies_dropped"] += 1
            return False
        self.cancel_reply(job_id)
        self.state.reply_to[job_id] = peer
        peer.owed += 1
        return True

    def return_reply(self, job_id: str, former: Peer | None) -> None:
        """Register the former peer for the REPLY of a job again, if it is still connected."""
        self.cancel_reply(job_id)
        if former is not None and self.state.peers.get(former.key) is former:
            self.state.reply_to[job_id] = former
            former.owed += 1

    def cancel_reply(self, job_id: str) -> Peer | None:
        """Cancel the registration for the REPLY of a job; return the peer."""
        peer = self.state.reply_to.pop(job_id, None)
        if peer is not None:
            peer.owed -= 1
            self.receipts.pop(job_id, None)
        return peer

    def expect_receipt(self, job_id: str) -> None:
        """Send the receipt of a job after `LATE_RECEIPT`, unless its REPLY was sent by then."""
        self.receipts.pop(job_id, None)  # keeps them in the order of their times
        self.receipts[job_id] = self.state.now + LATE_RECEIPT

    def send_receipts(self, until: float) -> None:
        """Send the receipts that are due by a time."""
        while self.receipts:
            job_id, send_at = next(iter(self.receipts.items()))
            if send_at > until:
                return
            del self.receipts[job_id]
            peer = self.state.reply_to.get(job_id)
            if peer is not None:
                self.state.receipt(peer, job_id)

    @property
    def next_receipt(self) -> float | None:
        """Time at which the next receipt is due, None if there is none."""
        return next(iter(self.receipts.values()), None)

    def check_ended(self, job_id: str) -> None:
        """Send the REPLY to a repeated REQUEST, if its job has ended already."""
        peer = self.state.reply_to.get(job_id)
        if peer is not None:
            self.lookups.request(peer, "", [job_id])

    def _reply_if_ended(self, job_id: str, rows: Mapping[str, JobRow]) -> None:
        row = rows.get(job_id)
        if row is not None:
            if row.job.state in TERMINAL:
                self._send_owed(row.job, row.job.state, row.content_type, row.result)
            return
        peer = self.state.reply_to[job_id]
        if peer.reads_rows and not self._is_in_memory(job_id):
            self.cancel_reply(job_id)
            self.state.reply(peer, pack((job_id, "", "", None)), job_id, ENDED)

    # Answering

    # hot loop: python -m benchmarks drain
    def ended(self, rows: Sequence[Finished]) -> None:
        """Answer the peers that wait for jobs which have just ended."""
        if self.streams.of or self.streams.progress:
            self.streams.ended(rows)
        waiters, reply_to = self.state.waiters, self.state.reply_to
        if not waiters and not reply_to:
            return
        for row in rows:
            job_id = row.job.id
            if job_id in waiters:
                result = row.result if row.ttl > 0 else None
                answer = (job_id, row.state.value, row.content_type, result)
                for peer, call in list(waiters[job_id]):
                    if result is not None and len(result) > SHORT and self.lookups.full(peer):
                        self.lookups.request(peer, call, [job_id])  # sent when the peer has read
                        continue
                    readable = peer.grant is None or peer.grant.owns(row.job.headers)
                    self._answer(peer, call, answer if readable else (job_id, "", "", None))
            if job_id in reply_to:
                self._send_owed(row.job, row.state, row.content_type, row.result, kept=row.ttl > 0)

    def _send_owed(
        self,
        job: JobRecord,
        state: JobState,
        content_type: str,
        result: bytes | None,
        *,
        kept: bool = True,
    ) -> None:
        """Send the requested REPLY of a job; for legacy peers as text and without OUTCOME."""
        peer = self.cancel_reply(job.id)
        if peer is None:
            return
        job_id, readable = job.id, self._may_read(peer, job.headers)
        if peer.reads_rows:
            row = (job_id, state.value, content_type, result if kept else None)
            self.state.reply(peer, pack(row if readable else (job_id, "", "", None)), job_id, ENDED)
        elif not readable:
            return
        elif peer.features is not None:
            self.state.reply(peer, result or b"", job_id, state.value)
        else:
            self.state.reply(peer, legacy_result(state, result), job_id)

    def _answer(self, peer: Peer, call: str, row: Row) -> None:
        unanswered = peer.calls.get(call)
        if unanswered is None or row[0] not in unanswered:
            return
        unanswered.discard(row[0])
        peer.waiting -= 1
        self._unwait(row[0], peer, call)
        self._rows.setdefault((peer, call), []).append(row)

    def _unwait(self, job_id: str, peer: Peer, call: str) -> None:
        entries = self.state.waiters.get(job_id, [])
        if (peer, call) in entries:
            entries.remove((peer, call))
        if not entries:
            self.state.waiters.pop(job_id, None)

    def flush(self) -> None:
        """Send the answers of this tick, one REPLY per call."""
        rows, self._rows = self._rows, {}
        for (peer, call), answers in rows.items():
            more = bool(peer.calls.get(call))
            if not more:
                peer.calls.pop(call, None)
            *parts, last = self._parts(answers)
            for part in parts:
                self.state.reply(peer, pack(part), call, "part")
            self.state.reply(peer, pack(last), call, "part" if more else None)

    def _parts(self, answers: list[Row]) -> list[list[Row]]:
        """Split answers into messages within the frame limit, each with at least one row."""
        parts: list[list[Row]] = [[]]
        room = self.state.limits.max_frame
        for row in answers:
            size = len(row[3] or b"") + 128
            if size > room and parts[-1]:
                parts.append([])
                room = self.state.limits.max_frame
            parts[-1].append(row)
            room -= size
        return parts

    # Leaving

    def end_call(self, peer: Peer, call: str) -> None:
        """End a call early."""
        self.lookups.cancel(peer, call)
        for job_id in peer.calls.pop(call, set()):
            peer.waiting -= 1
            self._unwait(job_id, peer, call)
        peer.topics.pop(call, None)
        if call in peer.streams:
            self.streams.remove_reader(peer, call)

    def end_streams(self, peer: Peer) -> None:
        """End the streams of a peer that may have missed a part, since a stream has no gaps.

        A client that was forgotten gets an ERROR at its next HEARTBEAT, informs and calls again.
        """
        for call in [*peer.streams]:
            self.end_call(peer, call)

    def remove_peer(self, peer: Peer) -> None:
        """Forget all calls and requested REPLYs of a peer."""
        for call in [*peer.calls, *peer.topics, *peer.streams]:
            self.end_call(peer, call)
        self.lookups.cancel(peer, "")
        lost = [job_id for job_id, waiter in self.state.reply_to.items() if waiter is peer]
        for job_id in lost:
            self.cancel_reply(job_id)

    def snapshot(self) -> dict[str, Any]:
        """Return the numbers of waiting peers and streams for ``status``."""
        return {
            "waited_for": len(self.state.waiters),
            "replies_owed": len(self.state.reply_to),
            "streams": len(self.streams.of),
            "unread_bytes": self.state.unread_bytes(),
        }
