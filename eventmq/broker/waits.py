"""Who waits for the ends of jobs: ``get`` calls of our clients, reply-requested of plain ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.broker.lookups import Lookups
from eventmq.job import TERMINAL
from eventmq.wire.bulk import pack
from eventmq.wire.results import ENDED, plain_result

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from eventmq.broker.peers import Peer
    from eventmq.broker.state import State
    from eventmq.broker.streams import Streams
    from eventmq.entries import Finished, Found
    from eventmq.job import Job, JobState

__all__ = ["Waits"]

#: Bytes of results that are given to a peer for which much waits already.
SHORT = 64 * 1024

#: [id, state, content type, bytes or None]
Row = tuple[str, str, str, "bytes | None"]


class Waits:
    """Answers those who wait."""

    def __init__(self, state: State, streams: Streams) -> None:
        self.state = state
        self.streams = streams
        self.lookups = Lookups(state, self._wanted, self._looked_up)
        #: Rows of this turn by (peer, call), sent together by `flush`.
        self._rows: dict[tuple[Peer, str], list[Row]] = {}

    # Asking

    def get(self, peer: Peer, call: str, ids: list[str]) -> None:
        """Answer for each id once its job has ended; an unknown id is answered now."""
        state = self.state
        wanted = set(ids)
        if not wanted:
            state.reply(peer, pack([]), call)
            return
        self.forget(peer, call)  # the same id again is the same call
        peer.calls[call] = wanted
        peer.waiting += len(wanted)
        for job_id in wanted:
            state.waiters.setdefault(job_id, []).append((peer, call))
        unknown = [job_id for job_id in wanted if job_id not in state.jobs]
        volatile = state.volatile.find(unknown, state.now)
        if volatile and sum(len(known.result or b"") for known in volatile.values()) <= SHORT:
            self._found(peer, call, list(volatile), volatile)
            self.flush()
            unknown = [job_id for job_id in unknown if job_id not in volatile]
        if unknown:
            self.lookups.ask(peer, call, unknown)

    def _wanted(self, peer: Peer, call: str, ids: Iterable[str]) -> list[str]:
        """Return of which jobs the ends are still to be answered."""
        if call:
            left = peer.calls.get(call, set())
            return [job_id for job_id in ids if job_id in left]
        return [job_id for job_id in ids if self.state.reply_to.get(job_id) is peer]

    def _looked_up(
        self, peer: Peer, call: str, ids: Sequence[str], found: Mapping[str, Found]
    ) -> None:
        """Answer a call, or without one send the REPLYs that were asked for."""
        if call:
            self._found(peer, call, self._wanted(peer, call, ids), found)
        else:
            for job_id in self._wanted(peer, "", ids):
                self._late(job_id, found)

    def _found(self, peer: Peer, call: str, ids: Iterable[str], found: Mapping[str, Found]) -> None:
        """Answer for the jobs that have ended, in the order of their ends, and for unknown ones."""
        ends = {job_id: known.at for job_id, known in found.items()}
        for job_id in sorted(ids, key=lambda job_id: ends.get(job_id, 0.0)):
            known = found.get(job_id)
            if known is None:
                if job_id not in self.state.jobs and job_id not in self.state.volatile.jobs:
                    self._answer(peer, call, (job_id, "", "", None))
            elif not self._may_read(peer, known.job.headers):
                self._answer(peer, call, (job_id, "", "", None))
            elif known.job.state in TERMINAL:
                state = known.job.state.value
                self._answer(peer, call, (job_id, state, known.content_type, known.result))

    @staticmethod
    def _may_read(peer: Peer, headers: str) -> bool:
        return peer.grant is None or peer.grant.owns(headers)

    def reply_later(self, job_id: str, peer: Peer) -> None:
        """Send a REPLY to this peer when the job has ended, unless too many are owed already."""
        other = self.state.reply_to.get(job_id)
        if other is not None and other.grant is not peer.grant:
            return  # the id of somebody else's job
        if len(self.state.reply_to) < self.state.limits.max_replies:
            self.reply_never(job_id)
            self.state.reply_to[job_id] = peer
            peer.owed += 1
        else:
            self.state.counters["replies_dropped"] += 1

    def reply_never(self, job_id: str) -> Peer | None:
        """Owe no REPLY for a job any more; return the peer that was owed one."""
        peer = self.state.reply_to.pop(job_id, None)
        if peer is not None:
            peer.owed -= 1
        return peer

    def look_again(self, job_id: str) -> None:
        """Send the REPLY that a repeated REQUEST asked for, if the job has ended already."""
        peer = self.state.reply_to.get(job_id)
        if peer is not None:
            self.lookups.ask(peer, "", [job_id])

    def _late(self, job_id: str, found: Mapping[str, Found]) -> None:
        known = found.get(job_id)
        if known is not None and known.job.state in TERMINAL:
            self._owed(known.job, known.job.state, known.content_type, known.result)

    # Answering

    # hot loop: benchmarks/drain.py
    def ended(self, rows: Sequence[Finished]) -> None:
        """Tell whoever waits for jobs that have just ended."""
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
                        self.lookups.ask(peer, call, [job_id])  # once it has read
                        continue
                    readable = peer.grant is None or peer.grant.owns(row.job.headers)
                    self._answer(peer, call, answer if readable else (job_id, "", "", None))
            if job_id in reply_to:
                self._owed(row.job, row.state, row.content_type, row.result, kept=row.ttl > 0)

    def _owed(
        self,
        job: Job,
        state: JobState,
        content_type: str,
        result: bytes | None,
        *,
        kept: bool = True,
    ) -> None:
        """Send the REPLY that a REQUEST asked for; plain peers read text only, and no OUTCOME."""
        peer = self.reply_never(job.id)
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
            self.state.reply(peer, plain_result(state, result), job_id)

    def _answer(self, peer: Peer, call: str, row: Row) -> None:
        left = peer.calls.get(call)
        if left is None or row[0] not in left:
            return
        left.discard(row[0])
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
        """Send the answers of this turn, one REPLY per call."""
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
        """Cut answers into messages that keep to the frame limit; each has one row at least."""
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

    def forget(self, peer: Peer, call: str) -> None:
        """End a call early."""
        self.lookups.forget(peer, call)
        for job_id in peer.calls.pop(call, set()):
            peer.waiting -= 1
            self._unwait(job_id, peer, call)
        peer.topics.pop(call, None)
        self.streams.forget(peer, call)

    def miss(self, peer: Peer) -> None:
        """Send no more parts to a peer that may have missed one: a stream has no gap.

        One of ours that has not informed since it was forgotten is told so at its next HEARTBEAT,
        and asks again.
        """
        for call in [*peer.streams]:
            self.forget(peer, call)

    def gone(self, peer: Peer) -> None:
        """Forget all that a peer waits for."""
        for call in [*peer.calls, *peer.topics, *peer.streams]:
            self.forget(peer, call)
        self.lookups.forget(peer, "")
        lost = [job_id for job_id, waiter in self.state.reply_to.items() if waiter is peer]
        for job_id in lost:
            self.reply_never(job_id)

    def snapshot(self) -> dict[str, Any]:
        """Return figures for ``status``."""
        return {
            "waited_for": len(self.state.waiters),
            "replies_owed": len(self.state.reply_to),
            "streams": len(self.streams.of),
            "unread_bytes": self.state.unread_bytes(),
        }
