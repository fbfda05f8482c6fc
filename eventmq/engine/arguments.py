"""Arguments of ended jobs that ask for it with the header ``keep-arguments``.

A failed job is kept whole in any case. Of the others headers and body are a row of the table
``attempts`` with the number 0, so they stay as long as the outcome. Other jobs cost nothing here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from eventmq.engine.rows import JOB_ROW, data_crc, is_intact
from eventmq.headers import parse_headers
from eventmq.job import TERMINAL, JobState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from eventmq.engine.rows import Tables
    from eventmq.job import JobRecord
    from eventmq.store.reads import JobRow
    from eventmq.store.writes import Finished

__all__ = ["ATTEMPT", "HEADER", "KeptArguments"]

#: The header.
HEADER = "keep-arguments"

#: Number of the attempt in whose row the arguments are.
ATTEMPT = 0

#: Bytes of bodies that are read at once, unless one job has more.
_PORTION = 8 * 1024 * 1024

_ROW = (
    "id", "attempt", "delivery", "at", "started", "run_time", "worker", "content_type", "error",
    "crc", "ended",
)  # fmt: skip


class KeptArguments:
    """Writes and reads the arguments of ended jobs."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.store = tables.store

    def add(self, rows: Sequence[Finished]) -> None:
        """Keep the arguments of jobs that end, of those that were read with their bodies."""
        self._put([
            (row.job, row.at) for row in rows
            if row.state is not JobState.FAILED and _are_kept(row.job)
        ])  # fmt: skip

    def add_stored(self, jobs: Iterable[JobRecord], at: float) -> None:
        """Keep the arguments of jobs that were read without their bodies and end now.

        Call this while they are in the store.
        """
        seqs = [job.seq for job in jobs if not job.body and _are_kept(job)]
        portion: list[int] = []
        total = 0
        for seq, size in self.store.get("jobs", ("seq", "size"), seqs) if seqs else ():
            total += size
            if portion and total > _PORTION:
                self._put_stored(portion, at)
                portion, total = [], size
            portion.append(seq)
        if portion:
            self._put_stored(portion, at)

    def _put_stored(self, seqs: Sequence[int], at: float) -> None:
        self._put([(self.tables.job(row), at) for row in self.tables.get("jobs", JOB_ROW, seqs)])

    def _put(self, ends: Iterable[tuple[JobRecord, float]]) -> None:
        self.store.put("attempts", _ROW, [
            (
                job.id, ATTEMPT, job.delivery, at, 0.0, 0.0, 0, job.headers, job.body,
                data_crc(crc32(job.id.encode()), job.headers, job.body), at,
            )
            for job, at in ends if job.body and not job.damaged
        ])  # fmt: skip

    def restore(self, rows: Mapping[str, JobRow]) -> None:
        """Give ended jobs the headers and the body that they had, if these are kept."""
        keys = [
            (job_id, ATTEMPT) for job_id, row in rows.items()
            if row.job.state in TERMINAL and row.job.state is not JobState.FAILED
        ]  # fmt: skip
        columns = ("id", "at", "content_type", "error", "crc")
        for job_id, at, headers, body, crc in self.tables.get("attempts", columns, keys):
            # A job with the same id may have ended before, so long ago that it was forgotten.
            if at == rows[job_id].at and is_intact(crc, job_id, headers, body):
                rows[job_id].job.headers, rows[job_id].job.body = headers, body


def _are_kept(job: JobRecord) -> bool:
    return HEADER in job.headers and parse_headers(job.headers).keep_arguments
