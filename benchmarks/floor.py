"""The yardstick: SQLite's own insert of the same rows in batches of 100, each batch synced.

It uses the same table and indexes, WAL, ``synchronous=FULL``, one process and prepared rows, and so
measures the limit of the disk and SQLite on this machine at this time. Figures of EventMQ are given
as ratios to it.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from eventmq.clock import SystemClock
from eventmq.engine.rows import INSERT_ROW
from eventmq.job import IdFactory
from eventmq.plugins.database import connect
from eventmq.plugins.queue_stores.sqlite.schema import prepare

__all__ = ["inserts_per_second"]


def inserts_per_second(rows: int = 100_000, body: int = 20, batch: int = 100) -> float:
    """Return rows per second."""
    ids = IdFactory(SystemClock()).new_many(rows)
    headers, payload = "task:benchmarks.bench_app.nothing,content-type:msgpack", b"x" * body
    values = [
        (i, job_id, 1, i, 2, 1, 0, 0, 0.0, 0.0, 1.8e9, headers, payload, 0.0, i, i)
        for i, job_id in enumerate(ids)
    ]
    marks = ", ".join("?" * 16)
    insert = f"INSERT INTO jobs ({', '.join(INSERT_ROW)}) VALUES ({marks})"  # noqa: S608 - marks only
    with tempfile.TemporaryDirectory(prefix="eventmq-floor-") as folder:
        db = connect(Path(folder) / "floor.sqlite", busy=0.0)
        prepare(db, "the floor")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        begin = time.perf_counter()
        for start in range(0, rows, batch):
            db.execute("BEGIN IMMEDIATE")
            db.executemany(insert, values[start : start + batch])
            db.execute("COMMIT")
        seconds = time.perf_counter() - begin
        db.close()
    return rows / seconds
