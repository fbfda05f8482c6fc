"""Makes up what a broker's journal may hold: jobs of many fates, interleaved, with planted damage.

A `History` is the journal of one broker, without files: its rows are dictionaries with the columns
of `EVENTS`, those that are null left out. Many of them go into one DataFrame, told apart by their
``broker_id``, so that one query of Spark checks hundreds:

    rows = [row for n in range(300) for row in story(Random(n), f"b{n}").rows]
    events = frame(spark, rows)

What was planted is in the attributes of a history, for tests that want to find it again.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from eventmq.events import COLUMNS, SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["FATES", "START_US", "History", "examples", "frame", "story", "write_journal"]

#: Saturday, 2026-11-21, 08:00 UTC, in microseconds.
START_US = 1_795_248_000_000_000

_SECOND = 1_000_000

_ERRORS = (
    ("builtins.ValueError", "a" * 16),
    ("builtins.OSError", "b" * 16),
    ("shop.OutOfStock", "c" * 16),
)

_LOST = "eventmq.errors.WorkerLost"

Row = dict[str, Any]


@dataclass
class Life:
    """The events of one job so far, each with its time; they are numbered at the end."""

    id: str
    task: str
    queue: str
    release: str
    now: int
    chance: Random
    attempt: int = 1
    delivery: int = 0
    leased: int = 0
    worker: str = ""
    events: list[tuple[int, Row]] = field(default_factory=list)

    def add_event(self, kind: str, **columns: Any) -> None:
        row = {
            "ts_us": self.now, "kind": kind, "job_id": self.id, "task": self.task,
            "queue": self.queue, "release": self.release, **columns,
        }  # fmt: skip
        self.events.append((self.now, row))

    def wait(self, limit: float) -> int:
        """Let some time pass, up to so many seconds; return the microseconds."""
        passed = self.chance.randrange(1, max(2, round(limit * _SECOND)))
        self.now += passed
        return passed

    def lease(self) -> None:
        self.delivery += 1
        self.leased = self.now
        self.worker = f"host{self.chance.randrange(3)}:{self.chance.randrange(4)}"

    def held(self) -> Row:
        """The columns of an event that tells of a lease."""
        return {
            "attempt": self.attempt, "delivery": self.delivery, "worker_id": self.worker,
            "host": self.worker.partition(":")[0], "leased_us": self.leased,
        }  # fmt: skip

    def admit(self) -> None:
        self.add_event("enqueued", bytes_in=self.chance.randrange(300))

    def run(self, limit: float = 1.0) -> Row:
        """Wait for a worker and run; return the columns of an outcome."""
        ready = self.now
        self.wait(5.0)
        self.lease()
        started = self.now
        ran = self.wait(limit)
        return {
            **self.held(), "wait_us": started - ready, "run_us": ran, "started_us": started,
            "bytes_out": self.chance.randrange(900),
        }  # fmt: skip

    def fault(self) -> Row:
        error, fingerprint = self.chance.choice(_ERRORS)
        return {"error_type": error, "error_fingerprint": fingerprint}


# What may become of a job


def succeeds(job: Life) -> None:
    job.add_event("succeeded", **job.run())


def fails(job: Life) -> None:
    job.add_event("failed", **job.run(), **job.fault())


def retries(job: Life) -> None:
    """One or two attempts fail, then one ends well, or not."""
    for _ in range(job.chance.randrange(1, 3)):
        outcome = {**job.run(), **job.fault()}
        if job.chance.random() < 0.5:
            del outcome["wait_us"]  # as in journals of earlier versions
        due_us = job.now + 2 * _SECOND
        job.add_event("retry", **outcome, due_us=due_us)
        job.now = due_us
        job.attempt += 1
        job.add_event("enqueued", attempt=job.attempt, delivery=job.delivery)
    job.chance.choice((succeeds, fails))(job)


def lasts(job: Life) -> None:
    """It runs so long that its lease is noted."""
    ready = job.now
    job.wait(2.0)
    job.lease()
    started = job.now
    job.now += 5 * _SECOND
    job.add_event("leased", **job.held())
    for _ in range(job.chance.randrange(3)):
        job.now += 20 * _SECOND
        job.add_event("progress", **job.held())
    job.wait(10.0)
    outcome = {"wait_us": started - ready, "run_us": job.now - started, "started_us": started}
    job.add_event("succeeded", **job.held(), **outcome)


def dies(job: Life) -> None:
    """Its worker is lost, once or twice."""
    for _ in range(job.chance.randrange(1, 3)):
        job.run(3.0)
        reason = job.chance.choice(({}, {"error_type": _LOST, "error_fingerprint": "d" * 16}))
        job.add_event("lease_lost", **job.held(), **reason)
    succeeds(job)


def is_handed_back(job: Life) -> None:
    job.run()
    job.add_event("handed_back", **job.held())
    succeeds(job)


def is_replayed(job: Life) -> None:
    fails(job)
    job.wait(9.0)
    job.attempt += 1
    job.add_event("replayed", attempt=job.attempt, delivery=job.delivery)
    job.chance.choice((succeeds, fails))(job)


def is_cancelled(job: Life) -> None:
    job.wait(3.0)
    job.add_event("cancelled", attempt=job.attempt, delivery=job.delivery)


def expires(job: Life) -> None:
    """While it waits for a worker, or before it is ready."""
    job.wait(3.0)
    due_column = {"due_us": job.now + _SECOND} if job.chance.random() < 0.3 else {}
    job.add_event("expired", attempt=job.attempt, delivery=job.delivery, **due_column)


def is_submitted_again(job: Life) -> None:
    job.wait(1.0)
    job.add_event("duplicate", bytes_in=9)
    succeeds(job)


def is_used_again(job: Life) -> None:
    """Its id comes a second time, long after it ended."""
    succeeds(job)
    job.wait(60.0)
    job.delivery, job.attempt = 0, 1
    job.admit()
    succeeds(job)


def waits(job: Life) -> None:
    """Nothing happens to it any more."""


def runs(job: Life) -> None:
    """It has a worker when the journal ends; how long, the end decides."""
    job.wait(2.0)
    job.lease()
    job.now += 5 * _SECOND
    job.add_event("leased", **job.held())


#: Fate -> how many of a hundred jobs have it.
FATES = {
    succeeds: 60, fails: 6, retries: 8, lasts: 4, dies: 4, is_handed_back: 2, is_replayed: 3,
    is_cancelled: 3, expires: 2, is_submitted_again: 2, is_used_again: 1, waits: 3, runs: 2,
}  # fmt: skip


class History:
    """The journal of one broker.

    Args:
        broker_id: Whose.
        chance: Random generator of the choices.
        first: Number of the first event: the ring may have dropped those before.
    """

    def __init__(self, broker_id: str, chance: Random, *, first: int = 1) -> None:
        self.broker_id = broker_id
        self.chance = chance
        self.first = first
        self.jobs: list[Life] = []
        self._rows: list[Row] | None = None
        #: Numbers that were removed without a gap event.
        self.missing: set[int] = set()

    def job(self, fate: Any = None, *, at: float | None = None) -> Life:
        """Add a job that comes at some second of the first minutes."""
        chance = self.chance
        start = START_US + round((chance.uniform(0, 300) if at is None else at) * _SECOND)
        n = len(self.jobs)
        life = Life(
            f"{self.broker_id}-{n:08d}", f"shop.{chance.choice('abc')}",
            chance.choice(("default", "email")), chance.choice(("1.0", "1.1")), start, chance,
        )  # fmt: skip
        if fate is None:
            [fate] = chance.choices(list(FATES), weights=list(FATES.values()))
        life.admit()
        fate(life)
        self.jobs.append(life)
        return life

    @property
    def rows(self) -> list[Row]:
        """Return the rows of the journal; no job can be added after that."""
        if self._rows is None:
            events = sorted(
                (event for job in self.jobs for event in job.events), key=lambda e: e[0]
            )
            self._rows = [
                {
                    "broker_id": self.broker_id, "seq": seq, "schema_version": SCHEMA_VERSION,
                    **row,
                }
                for seq, (_, row) in enumerate(events, self.first)
            ]  # fmt: skip
        return self._rows

    # Damage

    def lose(self, first: int, last: int) -> None:
        """Remove the numbers of a range, like a missing file."""
        gone = {row["seq"] for row in self.rows if first <= row["seq"] <= last}
        self._rows = [row for row in self.rows if row["seq"] not in gone]
        self.missing |= gone

    def gap(self, first: int, last: int) -> None:
        """Remove the numbers of a range, and let the next event be a gap event about them."""
        after = [row for row in self.rows if row["seq"] > last]
        before = [row for row in self.rows if row["seq"] < first]
        at = after[0]["ts_us"] if after else START_US
        for row in after:
            row["seq"] += 1
        self.missing = {n + 1 if n > last else n for n in self.missing if not first <= n <= last}
        gap_event = {
            "broker_id": self.broker_id, "seq": last + 1, "ts_us": at, "kind": "gap",
            "schema_version": SCHEMA_VERSION, "gap_first": first, "gap_last": last,
        }  # fmt: skip
        self._rows = [*before, gap_event, *after]

    def lease_twice(self, job: Life) -> None:
        """Let a second worker have had the job while the one that ended it had it."""
        end = next(row for row in reversed(self.rows) if row.get("job_id") == job.id)
        start = end["leased_us"]
        other = {
            **end, "kind": "leased", "ts_us": start + 1, "leased_us": start - 1,
            "worker_id": "other:1", "host": "other", "delivery": end["delivery"] + 1,
        }  # fmt: skip
        for name in ("wait_us", "run_us", "started_us", "bytes_out", "error_type"):
            other.pop(name, None)
        index = self.rows.index(end)
        for row in self.rows[index:]:
            row["seq"] += 1
        other["seq"] = end["seq"] - 1
        self.rows.insert(index, other)


def story(chance: Random, broker_id: str, *, jobs: int = 30, damage: bool = True) -> History:
    """Return a history of some jobs; with damage, sometimes: losses, gaps, repeated rows."""
    history = History(broker_id, chance, first=chance.choice((1, 1, 1000)))
    for _ in range(jobs):
        history.job()
    if damage:
        for plant in (history.lose, history.gap):
            if chance.random() < 0.3 and history.rows:
                seq = chance.choice(history.rows)["seq"]
                plant(seq, seq + chance.randrange(3))
        if chance.random() < 0.3 and history.rows:
            history.rows.extend(dict(row) for row in chance.choices(history.rows, k=3))
    return history


def examples(n: int, *, jobs: int = 20) -> list[History]:
    """Let Hypothesis draw the journals of ``n`` brokers, with damage.

    They are for one query of Spark, which is as many examples. The name of a broker says what to
    make its journal of again: a seed and a number of jobs.
    """
    drawn: dict[str, History] = {}

    @settings(max_examples=n, phases=[Phase.generate], database=None)
    @given(st.integers(0, 2**32), st.integers(1, jobs))
    def draw(seed: int, size: int) -> None:
        name = f"seed{seed}jobs{size}"
        drawn[name] = story(Random(seed), name, jobs=size)

    draw()
    return list(drawn.values())


# As Spark has it


@functools.lru_cache(maxsize=1)
def _names() -> tuple[str, ...]:
    return tuple(column.name for column in COLUMNS)


def frame(spark: SparkSession, rows: Iterable[Row]) -> DataFrame:
    """Return rows as a DataFrame of events, by way of Arrow: a hundred thousand in a second."""
    import pyarrow as pa

    from eventmq_contrib.journal.parquet import arrow_schema
    from eventmq_contrib.spark.journal import EVENTS

    table = pa.Table.from_pylist(list(rows), schema=arrow_schema().remove_metadata())
    return spark.createDataFrame(table, schema=EVENTS)


def write_journal(
    folder: Path, rows: Sequence[Row], *, size: int = 65_536, sealed: bool = False
) -> None:
    """Write rows as the sealed files of a journal: by broker and hour, numbers in order.

    Args:
        folder: Of the journal.
        rows: In any order.
        size: Rows of a file at most.
        sealed: With seal logs, as a journal makes them.
    """
    from eventmq.events import HOUR_US, FileName, partition
    from eventmq_contrib.journal.parquet import encode_events
    from eventmq_contrib.journal.seals import SealLog, seal_of

    logs: dict[str, SealLog] = {}

    def end(part: list[Row]) -> None:
        name = FileName(part[0]["broker_id"], part[0]["seq"], part[-1]["seq"])
        path = folder / partition(part[0]["ts_us"]) / str(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(encode_events({n: [row.get(n) for row in part] for n in _names()}))
        if sealed:
            if name.broker not in logs:
                logs[name.broker] = SealLog(folder, name.broker)
                logs[name.broker].open([])
            hour = partition(part[0]["ts_us"])
            logs[name.broker].append(seal_of(name, hour, path.read_bytes()))

    part: list[Row] = []
    for row in sorted(rows, key=lambda row: (row["broker_id"], row["seq"])):
        hour = row["ts_us"] // HOUR_US
        if part and (
            len(part) == size
            or part[-1]["broker_id"] != row["broker_id"]
            or part[-1]["seq"] + 1 != row["seq"]
            or part[-1]["ts_us"] // HOUR_US != hour
        ):
            end(part)
            part = []
        part.append(row)
    if part:
        end(part)
