"""The yardstick: SQLite's own insert of the same rows in batches of 100, each batch synced.

WAL, ``synchronous=FULL``, one process, rows made beforehand: what the disk and SQLite allow on
this machine in this minute. Figures of EventMQ are given as ratios to it.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from pathlib import Path

from eventmq.clock import SystemClock
from eventmq.job import IdFactory

__all__ = ["inserts_per_second"]

_TABLE = """CREATE TABLE jobs (seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, queue INTEGER,
  rank INTEGER, state INTEGER, attempt INTEGER, delivery INTEGER, deaths INTEGER, due REAL,
  expires REAL, created REAL, headers TEXT, body BLOB)"""


def inserts_per_second(rows: int = 100_000, body: int = 20, batch: int = 100) -> float:
    """Return rows per second."""
    ids = IdFactory(SystemClock()).new_many(rows)
    headers, payload = "task:benchmarks.bench_app.nothing,content-type:msgpack", b"x" * body
    values = [
        (i, job_id, 1, i, 2, 1, 0, 0, 0.0, 0.0, 1.8e9, headers, payload)
        for i, job_id in enumerate(ids)
    ]
    marks = ", ".join("?" * 13)
    insert = f"INSERT INTO jobs VALUES ({marks})"  # noqa: S608 - marks only
    with tempfile.TemporaryDirectory(prefix="eventmq-floor-") as folder:
        db = sqlite3.connect(Path(folder) / "floor.sqlite", isolation_level=None)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute(_TABLE)
        begin = time.perf_counter()
        for start in range(0, rows, batch):
            db.execute("BEGIN IMMEDIATE")
            db.executemany(insert, values[start : start + batch])
            db.execute("COMMIT")
        seconds = time.perf_counter() - begin
        db.close()
    return rows / seconds
