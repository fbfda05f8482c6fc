"""The table ``job_logs``: what tasks logged, a row per attempt of a job whose task keeps its log.

A row lives as long as its job: while that is unfinished or among the failed ones, else until a time
of its own. Of one job the logs of the last attempts are kept, up to a number of bytes; a log that
made room for later ones is empty, so that a reader sees what is missing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING
from zlib import crc32

from eventmq.engine.rows import damage_of, data_crc, is_sound
from eventmq.job import JobState
from eventmq.store.reads import KeptLog

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from eventmq.engine.rows import Tables
    from eventmq.store.reads import ReadLogs
    from eventmq.store.writes import Finished, JobLog
    from eventmq.timekeeping import Timekeeper

__all__ = ["JobLogs"]

#: Rows of one job that are kept, those of the last attempts.
KEPT = 10

#: Rows that one commit deletes at most.
SLICE = 1000

_ROW = ("id", "attempt", "at", "ttl", "until", "crc", "body")


def _crc(job_id: str, attempt: int, body: bytes) -> int:
    return data_crc(crc32(job_id.encode()), str(attempt), body)


class JobLogs:
    """Writes and reads logs of jobs. Handles `ReadLogs`."""

    def __init__(self, tables: Tables, keeper: Timekeeper) -> None:
        self.tables = tables
        self.store = tables.store
        self.keeper = keeper
        #: Whether there may be rows: else nothing is looked for.
        self.used = any(True for _ in self.store.scan("job_logs", ("id",), limit=1))

    def add(self, logs: Sequence[JobLog]) -> None:
        """Keep logs, each in the place of one of the same attempt."""
        if not logs:
            return
        self.used = True
        self.store.put("job_logs", _ROW, [
            (
                log.job_id, log.attempt, log.at, log.ttl, log.until,
                _crc(log.job_id, log.attempt, log.text), log.text,
            )
            for log in logs
        ])  # fmt: skip
        later = {log.job_id: log for log in logs if log.attempt > 1}
        if later:
            self._make_room(later)

    def _make_room(self, logs: dict[str, JobLog]) -> None:
        """Empty, or delete, logs of earlier attempts that are too many."""
        found: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        columns = ("id", "attempt", "size")
        for job_id, attempt, size in self.store.get("job_logs", columns, [*logs], by="job_logs"):
            found[job_id].append((attempt, size))
        emptied, gone = [], []
        for job_id, rows in found.items():
            newest, room = logs[job_id].attempt, logs[job_id].most
            for attempt, size in sorted(rows, reverse=True):
                room -= size
                if attempt <= newest - KEPT:
                    gone.append((job_id, attempt))
                elif room < 0 and size and attempt != newest:
                    emptied.append((b"", _crc(job_id, attempt, b""), job_id, attempt))
        self.store.update("job_logs", ("body", "crc"), emptied)
        self.store.delete("job_logs", gone)

    def read(self, write: ReadLogs) -> list[KeptLog]:
        """Return the logs of a job, those of the first attempt first."""
        logs, keeper = [], self.keeper
        columns = ("attempt", "at", "until", "crc", "body")
        for attempt, at, until, crc, body in self.tables.scan("job_logs", columns, (write.id,)):
            if until and until + keeper.spared(at) <= keeper.now:
                continue
            if not is_sound(crc, write.id, str(attempt), body):
                body = f"[{damage_of(write.id)}]\n".encode()  # noqa: PLW2901
            logs.append(KeptLog(attempt, at, body))
        return logs

    def sizes(self, ids: Sequence[str]) -> Counter[str]:
        """Return the bytes of the logs that are kept of jobs."""
        sizes: Counter[str] = Counter()
        if self.used:
            for job_id, size in self.store.get("job_logs", ("id", "size"), ids, by="job_logs"):
                sizes[job_id] += size
        return sizes

    def ended(self, rows: Iterable[Finished]) -> None:
        """Write until when logs of earlier attempts are kept, of jobs that ended and not failed."""
        if not self.used:
            return
        ends = {row.job.id: row.at for row in rows if row.state is not JobState.FAILED}
        found = self.store.get("job_logs", ("id", "attempt", "ttl"), [*ends], by="job_logs")
        self.store.update("job_logs", ("until",), [
            (ends[job_id] + ttl, job_id, attempt) for job_id, attempt, ttl in found
        ])  # fmt: skip

    def drop(self, ids: Iterable[str]) -> None:
        """Forget the logs of jobs."""
        for job_id in ids if self.used else ():
            self.store.delete_range("job_logs", (job_id,))

    def prune(self) -> bool:
        """Forget some logs whose time is over; return whether there may be more."""
        if not self.used:
            return False
        keeper, columns = self.keeper, ("until", "at", "id", "attempt")
        rows = list(self.store.scan("job_logs_until", columns, lt=(keeper.now,), limit=SLICE))
        gone = [row[2:] for row in rows if row[0] + keeper.spared(row[1]) <= keeper.now]
        self.store.delete("job_logs", gone)
        return len(gone) == SLICE
