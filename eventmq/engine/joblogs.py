"""Table ``job_logs``: the logs of jobs whose task has ``keep_logs``, one row per attempt.

The rows of an unfinished or failed job stay as long as the job. Those of other ended jobs stay
until the time in their column ``until``. If the logs of one job exceed their limit in bytes, the
logs of the earliest attempts are emptied; their rows stay, so that readers see what is missing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING
from zlib import crc32

from eventmq.engine.rows import damage_of, data_crc, is_intact
from eventmq.job import JobState
from eventmq.store.reads import KeptLog

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from eventmq.engine.rows import Tables
    from eventmq.store.reads import ReadLogs
    from eventmq.store.writes import Finished, JobLog
    from eventmq.timekeeping import Timekeeper

__all__ = ["JobLogs"]

#: Maximum number of rows per job; those of the last attempts are kept.
MAX_LOGS = 10

#: Maximum number of rows that one commit deletes.
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
        #: Whether the table may have rows; if not, it is never read.
        self.used = any(True for _ in self.store.scan("job_logs", ("id",), limit=1))

    def add(self, logs: Sequence[JobLog]) -> None:
        """Store logs; each replaces the log of the same attempt, if there is one."""
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
        """Empty or delete logs of earlier attempts that exceed the limits of a job."""
        stored: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        columns = ("id", "attempt", "size")
        for job_id, attempt, size in self.store.get("job_logs", columns, [*logs], by="job_logs"):
            stored[job_id].append((attempt, size))
        emptied, surplus = [], []
        for job_id, rows in stored.items():
            newest, remaining = logs[job_id].attempt, logs[job_id].max_bytes
            for attempt, size in sorted(rows, reverse=True):
                remaining -= size
                if attempt <= newest - MAX_LOGS:
                    surplus.append((job_id, attempt))
                elif remaining < 0 and size and attempt != newest:
                    emptied.append((b"", _crc(job_id, attempt, b""), job_id, attempt))
        self.store.update("job_logs", ("body", "crc"), emptied)
        self.store.delete("job_logs", surplus)

    def read(self, write: ReadLogs) -> list[KeptLog]:
        """Return the logs of a job by attempt, the first one first."""
        logs, keeper = [], self.keeper
        columns = ("attempt", "at", "until", "crc", "body")
        for attempt, at, until, crc, body in self.tables.scan("job_logs", columns, (write.id,)):
            if until and until + keeper.spared(at) <= keeper.now:
                continue
            if not is_intact(crc, write.id, str(attempt), body):
                body = f"[{damage_of(write.id)}]\n".encode()  # noqa: PLW2901
            logs.append(KeptLog(attempt, at, body))
        return logs

    def sizes(self, ids: Sequence[str]) -> Counter[str]:
        """Return the size of the stored logs of each job, in bytes."""
        sizes: Counter[str] = Counter()
        if self.used:
            for job_id, size in self.store.get("job_logs", ("id", "size"), ids, by="job_logs"):
                sizes[job_id] += size
        return sizes

    def ended(self, rows: Iterable[Finished]) -> None:
        """Store until when to keep logs of earlier attempts, for ended jobs that did not fail."""
        if not self.used:
            return
        ends = {row.job.id: row.at for row in rows if row.state is not JobState.FAILED}
        stored = self.store.get("job_logs", ("id", "attempt", "ttl"), [*ends], by="job_logs")
        self.store.update("job_logs", ("until",), [
            (ends[job_id] + ttl, job_id, attempt) for job_id, attempt, ttl in stored
        ])  # fmt: skip

    def drop(self, ids: Iterable[str]) -> None:
        """Delete the logs of jobs."""
        for job_id in ids if self.used else ():
            self.store.delete_range("job_logs", (job_id,))

    def prune(self) -> bool:
        """Delete some logs past their time; return whether there may be more."""
        if not self.used:
            return False
        keeper, columns = self.keeper, ("until", "at", "id", "attempt")
        rows = list(self.store.scan("job_logs_until", columns, lt=(keeper.now,), limit=SLICE))
        expired = [row[2:] for row in rows if row[0] + keeper.spared(row[1]) <= keeper.now]
        self.store.delete("job_logs", expired)
        return len(expired) == SLICE
