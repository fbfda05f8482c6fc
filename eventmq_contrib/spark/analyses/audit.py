"""Audit: proves that every accepted job has ended, or reports the state that it is in.

Missing numbers of events are found in blocks: the count of a block shows whether it is complete,
and only rows of incomplete blocks are sorted. So a complete journal costs one small aggregation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

from eventmq.sdk.events import ENDS, EventKind
from eventmq_contrib.journal.inspection import joined, without
from eventmq_contrib.spark.analyses import LISTED, STUCK_AFTER
from eventmq_contrib.spark.analyses.states import RUNNING, double_leased, ended, kind_of, lives
from eventmq_contrib.spark.choice import Choice
from eventmq_contrib.spark.journal import Evidence, gather

__all__ = [
    "Audit",
    "Numbers",
    "audit",
    "audit_journal",
    "gaps",
    "job_states",
    "numbers",
]

#: Conclusions of an audit, the best first.
CLEAN = "clean"
COMPLETE = "complete as far as its own seals reach; not anchored"
UNPROVEN = "nothing found; not proven"
UNSOUND = "not sound"

#: Most ranges of possibly altered events in which orphans are searched.
_SUSPECTS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Result of an audit.

    Attributes:
        jobs: Number of jobs, the sum of the nine counts that follow.
        succeeded: Ended with a result.
        failed: Failed for good.
        cancelled: Were cancelled.
        expired: Were not started in time.
        waiting: Wait for a worker, or until they are due.
        running: Have a worker, with a recent event.
        stuck: Have a worker, without a recent event.
        lost: Have not ended, and events after their first one are missing.
        unknown: Have not ended, and a gap follows their first event.
        double_leased: Had two leases at once, or one after their end; counted above as well.
        orphans: Have events and were never admitted, although no event is missing; counted above
            as well.
        missing_events: Numbers of events that are missing and in no gap, between the first and the
            last sealed one if these are known, else between the first and the last event.
        unknown_kinds: Events of a kind that does not exist.
        conflicts: Events that differ between files that have them.
        damaged: Number of problems of files and events, including those cut from ``damage``.
        proven: Whether the files were inspected, and seal logs prove that no event between the
            first and the last sealed one is missing or altered.
        anchored: Whether the last event of each broker was compared with what that broker reports,
            so that seal logs truncated together with files are found.
        stuck_ids: Ids of the stuck jobs, the oldest first; all lists of ids are bounded.
        lost_ids: Ids of the lost jobs.
        double_leased_ids: Ids of the double-leased jobs.
        orphan_ids: Ids of the orphans.
        damage: Problems, as sentences that name files and numbers.
        unproven: Reasons why it is not proven, as sentences.
        unanchored: Brokers whose last event was not compared, as sentences.
    """

    jobs: int
    succeeded: int
    failed: int
    cancelled: int
    expired: int
    waiting: int
    running: int
    stuck: int
    lost: int
    unknown: int
    double_leased: int
    orphans: int
    missing_events: int
    unknown_kinds: int
    conflicts: int
    damaged: int
    proven: bool
    anchored: bool
    stuck_ids: tuple[str, ...]
    lost_ids: tuple[str, ...]
    double_leased_ids: tuple[str, ...]
    orphan_ids: tuple[str, ...]
    damage: tuple[str, ...]
    unproven: tuple[str, ...]
    unanchored: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing was found: no job lost, double-leased or orphaned, nothing damaged."""
        problems = (self.lost, self.double_leased, self.orphans, self.missing_events, self.damaged)
        return not any(problems)

    @property
    def complete(self) -> bool:
        """Whether nothing was found, and no sealed event can be missing or altered."""
        return self.sound and self.proven

    @property
    def clean(self) -> bool:
        """Whether nothing was found, and no event can be missing or altered, even at the end."""
        return self.complete and self.anchored

    @property
    def conclusion(self) -> str:
        """The result in a few words; only ``clean`` is a proof."""
        if not self.sound:
            return UNSOUND
        if not self.proven:
            return UNPROVEN
        return CLEAN if self.anchored else COMPLETE

    def as_dict(self) -> dict[str, Any]:
        """Return the conclusion, and the fields by their names."""
        return {"conclusion": self.conclusion, **dataclasses.asdict(self)}

    @classmethod
    def columns(cls) -> str:
        """Return the schema of a row in Spark's notation."""
        fields = dataclasses.fields(cls)
        types = {"int": "long", "bool": "boolean"}
        named = (f"{field.name} {types.get(str(field.type), 'array<string>')}" for field in fields)
        return ", ".join(["conclusion string", *named])


def audit(
    events: DataFrame, *, stuck_after: float = STUCK_AFTER, listed: int = LISTED,
    queue: str | None = None, task: str | None = None,
    since: float | None = None, until: float | None = None, jobs: DataFrame | None = None,
    evidence: Evidence | None = None,
) -> Audit:  # fmt: skip
    """Return the audit of all jobs, computed from their events.

    A DataFrame of events cannot show what is missing from it. For a proof pass the evidence of the
    journal, or use `audit_journal`.

    Args:
        events: All events of a journal, each once; numbers are checked over all of them.
        stuck_after: Seconds; see `job_states`.
        listed: Most ids in a list.
        queue: Only jobs of this queue.
        task: Only jobs of this task.
        since: Only jobs whose first event is then or later, Unix time in seconds.
        until: Only jobs whose first event is before then, Unix time in seconds.
        jobs: Rows of `states.lives` for the queue and task, if they were computed before.
        evidence: Findings about the files of the journal.
    """
    choice = Choice(since=since, until=until, queue=queue, task=task)
    bounds = {} if evidence is None else evidence.files.bounds
    brokers = numbers(events, bounds)
    damage = _damage(events, listed, evidence)
    events = choice.jobs(events)
    complete = [
        broker.broker_id for broker in brokers
        if bounds.get(broker.broker_id, (0, 0))[0] == 1 and not broker.last_absent
    ]  # fmt: skip
    states = job_states(
        events, brokers, stuck_after=stuck_after, jobs=jobs, complete=complete,
        suspect=() if evidence is None else evidence.files.suspect,
    )  # fmt: skip
    digest = _digest(choice.times(states, "first_us")).persist()
    try:
        return _summed(digest, events, sum(broker.missing for broker in brokers), listed, damage)
    finally:
        digest.unpersist()


def job_states(
    events: DataFrame, numbered: Iterable[Numbers], *, stuck_after: float = STUCK_AFTER,
    jobs: DataFrame | None = None, complete: Sequence[str] = (),
    suspect: Sequence[tuple[str, int, int]] = (),
) -> DataFrame:  # fmt: skip
    """Return a row per job: ``broker_id, job_id, state, first_seq, first_us, suspect, orphan``.

    Args:
        events: Each of them once.
        numbered: Numbers of all brokers.
        stuck_after: Seconds by which the last event of a job with a worker must be older than the
            last event of its broker, for the job to be stuck.
        jobs: Rows of `states.lives`, if they were computed before.
        complete: Brokers whose events are complete from the first on.
        suspect: Broker, first and last number of events that may have been altered.

    Returns:
        ``state`` is a name of a count of `Audit`; ``suspect`` is true if a job has more than one
        end or lease, so that it may be double-leased; ``orphan`` if it was never admitted.
    """
    kind = "broker_id string, broker_us long, missing long, last_missing long, last_dropped long"
    brokers = events.sparkSession.createDataFrame([tuple(broker) for broker in numbered], kind)
    jobs = (lives(events) if jobs is None else jobs).join(F.broadcast(brokers), "broker_id")
    return jobs.select(
        "broker_id", "job_id", _state(stuck_after).alias("state"), "first_seq", "first_us",
        ((jobs.ends > 1) | (jobs.leases > 1)).alias("suspect"),
        _orphan(complete, suspect).alias("orphan"),
    )  # fmt: skip


def _orphan(complete: Sequence[str], suspect: Sequence[tuple[str, int, int]]) -> Column:
    """Return whether a job was never admitted.

    The only event of a transient job is its end, so a job with nothing but an end counts only if
    that event may have been altered.
    """
    first, broker, seq = kind_of(F.col("first")), F.col("broker_id"), F.col("first_seq")
    altered = F.lit(False)  # noqa: FBT003 - a literal
    for broker_id, low, limit in suspect[:_SUSPECTS]:
        altered |= (broker == broker_id) & seq.between(low, limit)
    admitted = first.isin(EventKind.ENQUEUED.value, EventKind.DELAYED.value)
    end = first.isin([kind.value for kind in ENDS])
    return broker.isin(list(complete)) & ~admitted & (~end | altered)


def _state(stuck_after: float) -> Column:
    last, first = kind_of(F.col("last")), F.col("first_seq")
    silent = F.col("broker_us") - F.col("last_us") >= round(stuck_after * 1_000_000)
    return (
        F.when(ended(last), last)
        .when(first < F.col("last_missing"), F.lit("lost"))
        .when(first < F.col("last_dropped"), F.lit("unknown"))
        .when(~last.isin([kind.value for kind in RUNNING]), F.lit("waiting"))
        .when(silent, F.lit("stuck"))
        .otherwise(F.lit("running"))
    )


def _digest(states: DataFrame) -> DataFrame:
    """Return one row per state for unremarkable jobs, and one for each of the others.

    All queries about states then read a few rows, and jobs are aggregated once.
    """
    detailed = states.suspect | states.orphan | states.state.isin("stuck", "lost")
    names = ("broker_id", "job_id", "first_seq")
    details = [F.when(detailed, states[name]).alias(name) for name in names]
    return states.groupBy("state", "suspect", "orphan", *details).agg(F.count("*").alias("n"))


def _summed(
    digest: DataFrame, events: DataFrame, missing: int, listed: int, damage: Mapping[str, Any]
) -> Audit:
    flags = [F.sum(digest[name].cast("int")) for name in ("suspect", "orphan")]
    rows = digest.groupBy("state").agg(F.sum("n"), *flags).collect()
    counts = {state: n for state, n, *_ in rows}
    suspected = any(suspects for *_, suspects, _ in rows)
    n_double, double = _doubled(digest, events, listed) if suspected else (0, [])
    names = ("succeeded", "failed", "cancelled", "expired", "waiting", "running", "stuck", "lost")
    ids = _oldest(digest, counts, listed)
    orphans = sum(n for *_, n in rows)
    orphaned = digest.where(digest.orphan).orderBy("broker_id", "first_seq").select("job_id")
    return Audit(
        jobs=sum(counts.values()), **{name: counts.get(name, 0) for name in (*names, "unknown")},
        double_leased=n_double, orphans=orphans, missing_events=missing,
        stuck_ids=ids["stuck"], lost_ids=ids["lost"], double_leased_ids=tuple(double),
        orphan_ids=tuple(row.job_id for row in orphaned.take(listed)) if orphans else (), **damage,
    )  # fmt: skip


def _damage(events: DataFrame, listed: int, evidence: Evidence | None) -> dict[str, Any]:
    """Return the problems of files and events, by the names of the fields of `Audit`."""
    strange = events.where(~events.kind.isin([kind.value for kind in EventKind]))
    counts = strange.groupBy("broker_id", "kind").agg(
        F.count("*").alias("n"), F.min("seq").alias("first"), F.max("seq").alias("last")
    )
    kinds = sorted(counts.collect())
    unknown = [
        f"{row.n} events of the broker {row.broker_id} between {row.first} and {row.last} have the "
        f"unknown kind {row.kind!r}"
        for row in kinds
    ]
    n_unknown = sum(row.n for row in kinds)
    if evidence is None:
        return {
            "unknown_kinds": n_unknown, "conflicts": 0, "damaged": len(unknown), "proven": False,
            "anchored": False, "damage": tuple(unknown[:listed]),
            "unproven": ("the files of the journal were not looked at",), "unanchored": (),
        }  # fmt: skip
    conflicts, clashes = evidence.conflicts(listed)
    files = evidence.files
    damaged = [*files.damage, *_missing(files.missing, events), *unknown]
    return {
        "unknown_kinds": n_unknown, "conflicts": conflicts, "damaged": len(damaged) + conflicts,
        "proven": not files.unproven, "anchored": not files.unanchored,
        "damage": tuple([*damaged, *clashes][:listed]), "unproven": tuple(files.unproven[:listed]),
        "unanchored": tuple(files.unanchored[:listed]),
    }  # fmt: skip


def _missing(ranges: Sequence[tuple[str, int, int]], events: DataFrame) -> list[str]:
    """Return a sentence for each range of numbers that is in no file and in no gap."""
    reported = gaps(events) if ranges else []
    return [
        f"the events {begin} to {end} of the broker {broker} are missing"
        for broker, first, last in ranges
        for begin, end in without([gap[1:] for gap in reported if gap[0] == broker], first, last)
    ]


def audit_journal(
    spark: SparkSession, journal: str | Path, *, sealed: Mapping[str, int] | None = None,
    **choice: Any,
) -> Audit:  # fmt: skip
    """Return the audit of a journal, with the evidence of its files.

    Args:
        spark: Spark session.
        journal: Folder of the journal, or an address that Spark knows.
        sealed: Broker -> the last sealed number as the broker reports it.
        **choice: As for `audit`: ``stuck_after``, ``listed``, ``queue``, ``task``, ``since``,
            ``until``.

    Raises:
        JournalError: There is no journal, or it has no events.
    """
    evidence = gather(spark, journal, sealed=sealed)
    return audit(evidence.events, evidence=evidence, **choice)


def _oldest(digest: DataFrame, counts: Mapping[str, int], limit: int) -> dict[str, tuple[str, ...]]:
    """Return the ids of stuck and lost jobs by state, in one query."""
    states = {"stuck", "lost"}
    rows: list[Row] = []
    if states & counts.keys():
        order = Window.partitionBy("state").orderBy("broker_id", "first_seq")
        listed = digest.where(digest.state.isin(*states)).withColumn(
            "position", F.row_number().over(order)
        )
        rows = listed.where(F.col("position") <= limit).orderBy("position").collect()
    return {state: tuple(row.job_id for row in rows if row.state == state) for state in states}


def _doubled(digest: DataFrame, events: DataFrame, limit: int) -> tuple[int, list[str]]:
    """Return how many jobs are double-leased, and the ids of some."""
    keys = ["broker_id", "job_id"]
    suspects = digest.where(digest.suspect).select(*keys, "first_seq")
    doubled = (
        double_leased(events.join(suspects, keys, "left_semi"))
        .join(suspects, keys)
        .orderBy("broker_id", "first_seq")
        .select("job_id")
        .persist()
    )
    try:
        n = doubled.count()
        return n, [row.job_id for row in doubled.take(limit)]
    finally:
        doubled.unpersist()


# Missing numbers

#: Numbers in a block, as a power of two: those of a full file.
_BITS = 16


class Numbers(NamedTuple):
    """Missing numbers of one broker.

    Attributes:
        broker_id: Id of the broker.
        last_us: Time of its last event, in microseconds.
        missing: How many numbers between the first and the last belong to neither an event nor a
            gap.
        last_missing: Highest of them, 0 for none.
        last_dropped: Highest number in a gap that has no event, 0 for none.
    """

    broker_id: str
    last_us: int
    missing: int
    last_missing: int
    last_dropped: int

    @property
    def last_absent(self) -> int:
        """Highest number without an event, 0 for none."""
        return max(self.last_missing, self.last_dropped)


def numbers(
    events: DataFrame, bounds: Mapping[str, tuple[int, int]] | None = None
) -> list[Numbers]:
    """Return the missing numbers of each broker, sorted by broker.

    Args:
        events: All events of a time range, each once.
        bounds: Broker -> first and last number that must exist, for brokers where they are known.
    """
    blocks = events.groupBy("broker_id", _block()).agg(
        F.min("seq").alias("first"), F.max("seq").alias("last"), F.count("*").alias("n"),
        F.max("ts_us").alias("last_us"),
    )  # fmt: skip
    bounds = bounds or {}
    by_broker: dict[str, list[Row]] = {broker: [] for broker in bounds}
    for block in sorted(blocks.collect()):
        by_broker.setdefault(block.broker_id, []).append(block)
    between, torn = [], []
    for broker, rows in by_broker.items():
        spans = [(row.first, row.last) for row in rows]
        ranges = [*spans, *([bounds[broker]] if broker in bounds else [])]
        first, last = min(first for first, _ in ranges), max(last for _, last in ranges)
        between += [(broker, *hole) for hole in without(spans, first, last)]
        torn += [(broker, row.block) for row in rows if row.n < row.last - row.first + 1]
    absent: dict[str, Row] = {}
    if between or torn:
        rows_absent = _absent(events, torn, between).collect()
        absent = {row.broker_id: row for row in rows_absent}
    return [
        Numbers(
            broker, max((row.last_us for row in rows), default=0),
            *(absent[broker][1:] if broker in absent else (0, 0, 0)),
        )
        for broker, rows in sorted(by_broker.items())
    ]  # fmt: skip


def _block() -> Column:
    return F.shiftright("seq", _BITS).alias("block")


def gaps(events: DataFrame) -> list[tuple[str, int, int]]:
    """Return the gaps that gap events report; adjacent ones are joined.

    Returns:
        Broker, first and last number, in their order.
    """
    rows = (
        events.where(events.kind == EventKind.GAP.value)
        .select("broker_id", "gap_first", "gap_last")
        .dropna()
        .distinct()
    )
    by_broker = groupby(sorted(map(tuple, rows.collect())), key=itemgetter(0))
    return [(broker, *gap) for broker, own in by_broker for gap in joined(row[1:] for row in own)]


def _absent(
    events: DataFrame, torn: Sequence[tuple[str, int]], between: Sequence[tuple[str, int, int]]
) -> DataFrame:  # fmt: skip
    """Return a row per broker that lacks numbers: (broker, missing, last missing, last dropped)."""
    session = events.sparkSession
    kind = "broker_id string, gap_first long, gap_last long"
    gap_rows = F.broadcast(session.createDataFrame(gaps(events), kind))
    holes = _holes(events, torn, between).alias("hole")
    meets = (
        (F.col("hole.broker_id") == gap_rows.broker_id)
        & (gap_rows.gap_first <= F.col("hole.last")) & (gap_rows.gap_last >= F.col("hole.first"))
    )  # fmt: skip
    # Without a gap these are null; least and greatest alone would leave nulls out.
    matched = F.col("gap_first").isNotNull()
    top = F.when(matched, F.least("last", "gap_last"))
    bottom = F.when(matched, F.greatest("first", "gap_first"))
    whole = (F.col("gap_first") <= F.col("last")) & (F.col("last") <= F.col("gap_last"))
    coverage = holes.join(gap_rows, meets, "left").groupBy("hole.broker_id", "first", "last").agg(
        F.coalesce(F.sum(top - bottom + 1), F.lit(0)).alias("in_gaps"),
        F.max(top).alias("dropped"),
        # Gaps do not touch: if one covers the end of a hole, what is before it is in no gap.
        F.coalesce(F.min(F.when(whole, F.col("gap_first") - 1)), F.col("last")).alias("end"),
    )  # fmt: skip
    missing = F.col("last") - F.col("first") + 1 - F.col("in_gaps")
    return coverage.groupBy("broker_id").agg(
        F.sum(missing).alias("missing"),
        F.coalesce(F.max(F.when(missing > 0, F.col("end"))), F.lit(0)).alias("last_missing"),
        F.coalesce(F.max("dropped"), F.lit(0)).alias("last_dropped"),
    )  # fmt: skip


def _holes(
    events: DataFrame, torn: Sequence[tuple[str, int]], between: Sequence[tuple[str, int, int]]
) -> DataFrame:
    """Return the ranges of numbers without an event: (broker, first, last).

    Args:
        events: As for `numbers`.
        torn: Blocks inside of which numbers are missing.
        between: Ranges that are missing between blocks, before the first one and after the last.
    """
    session = events.sparkSession
    holes = session.createDataFrame(list(between), "broker_id string, first long, last long")
    if not torn:
        return holes
    torn_blocks = session.createDataFrame(list(torn), "broker_id string, block long")
    rows = events.select("broker_id", "seq", _block()).join(
        F.broadcast(torn_blocks), ["broker_id", "block"], "left_semi"
    )
    order = Window.partitionBy("broker_id", "block").orderBy("seq")
    inside = rows.select(
        "broker_id", (F.lag("seq").over(order) + 1).alias("first"), (F.col("seq") - 1).alias("last")
    )
    return holes.unionByName(inside.where("first <= last"))
