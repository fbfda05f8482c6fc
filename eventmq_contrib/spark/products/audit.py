"""Whether every job that was accepted ended: the operator's proof."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eventmq_contrib.spark.products.leases import double_leased
from eventmq_contrib.spark.products.numbers import numbers
from eventmq_contrib.spark.products.states import RUNNING, ended, kind_of, lives

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import Column, DataFrame

    from eventmq_contrib.spark.products.numbers import Numbers

__all__ = ["LISTED", "STUCK_AFTER", "Audit", "audit", "job_states"]

#: Seconds without a word from a worker after which its job is stuck.
STUCK_AFTER = 60.0

#: Ids in a list at most.
LISTED = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What became of all jobs.

    Attributes:
        jobs: How many there are: the sum of the nine that follow.
        succeeded: Ended with a result.
        failed: Failed for good.
        cancelled: Were cancelled.
        expired: Were not started in time.
        waiting: Wait for a worker, or for their time.
        running: Have a worker that was heard of lately.
        stuck: Have a worker that was not.
        lost: Have not ended, and a number after their first event is missing.
        unknown: Have not ended, and a gap is after their first event.
        double_leased: Had two leases at once, or one after their end; counted above as well.
        missing_events: Numbers between the first event and the last that are not there, and in no
            gap.
        stuck_ids: Ids of those, the oldest first; the lists are bounded.
        lost_ids: As above.
        double_leased_ids: As above.
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
    missing_events: int
    stuck_ids: tuple[str, ...]
    lost_ids: tuple[str, ...]
    double_leased_ids: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether nothing is lost, double-leased or missing."""
        return not (self.lost or self.double_leased or self.missing_events)

    def as_dict(self) -> dict[str, Any]:
        """Return it by the names of its fields."""
        return dataclasses.asdict(self)

    @classmethod
    def columns(cls) -> str:
        """Return the type of a row of it, as Spark writes types."""
        fields = dataclasses.fields(cls)
        return ", ".join(
            f"{each.name} {'array<string>' if each.name.endswith('_ids') else 'long'}"
            for each in fields
        )


def audit(
    events: DataFrame, *, stuck_after: float = STUCK_AFTER, listed: int = LISTED,
    queue: str | None = None, task: str | None = None,
    since: float | None = None, until: float | None = None, jobs: DataFrame | None = None,
) -> Audit:  # fmt: skip
    """Return what became of all jobs.

    Args:
        events: All of a journal, each of them once: numbers are looked for in all of them.
        stuck_after: Seconds; see `job_states`.
        listed: Ids in a list at most.
        queue: Only jobs of this queue.
        task: Only jobs of this task.
        since: Only jobs whose first event is then or later, Unix time in seconds.
        until: Only jobs whose first event is before then, Unix time in seconds.
        jobs: What `states.lives` says of those of the queue and task, where that is there.
    """
    known = numbers(events)
    for name, value in (("queue", queue), ("task", task)):
        if value is not None:
            events = events.where(events[name] == value)
    states = job_states(events, known, stuck_after=stuck_after, jobs=jobs)
    if since is not None:
        states = states.where(states.first_us >= round(since * 1_000_000))
    if until is not None:
        states = states.where(states.first_us < round(until * 1_000_000))
    digest = _digest(states).persist()
    try:
        return _summed(digest, events, sum(each.missing for each in known), listed)
    finally:
        digest.unpersist()


def job_states(
    events: DataFrame, known: Iterable[Numbers], *, stuck_after: float = STUCK_AFTER,
    jobs: DataFrame | None = None,
) -> DataFrame:  # fmt: skip
    """Return a row per job: ``broker_id, job_id, state, first_seq, first_us, suspect``.

    Args:
        events: Each of them once.
        known: The numbers of all brokers.
        stuck_after: Seconds: a job that has a worker is stuck if its last event is that much
            older than the last event of its broker.
        jobs: What `states.lives` says of them, where that is there.

    Returns:
        ``state`` is one of the names of `Audit`; ``suspect`` says that a job has more than one end
        or more than one event of a lease, so that it may be double-leased.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    kind = "broker_id string, broker_us long, missing long, last_missing long, last_dropped long"
    brokers = events.sparkSession.createDataFrame([tuple(each) for each in known], kind)
    jobs = (lives(events) if jobs is None else jobs).join(F.broadcast(brokers), "broker_id")
    return jobs.select(
        "broker_id", "job_id", _state(stuck_after).alias("state"), "first_seq", "first_us",
        ((jobs.ends > 1) | (jobs.leases > 1)).alias("suspect"),
    )  # fmt: skip


def _state(stuck_after: float) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

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
    """Return one row per state for jobs that nobody asks for, and one for each of the others.

    So all that is asked about states is asked of a few rows, and jobs are put together once.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    asked = states.suspect | states.state.isin("stuck", "lost")
    names = ("broker_id", "job_id", "first_seq")
    details = [F.when(asked, states[name]).alias(name) for name in names]
    return states.groupBy("state", "suspect", *details).agg(F.count("*").alias("n"))


def _summed(digest: DataFrame, events: DataFrame, missing: int, listed: int) -> Audit:
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    rows = digest.groupBy("state").agg(F.sum("n"), F.sum(digest.suspect.cast("int"))).collect()
    counts = {state: n for state, n, _ in rows}
    double: list[str] = []
    n_double = 0
    if any(suspects for _, _, suspects in rows):
        n_double, double = _doubled(digest, events, listed)
    names = ("succeeded", "failed", "cancelled", "expired", "waiting", "running", "stuck", "lost")
    ids = _oldest(digest, counts, listed)
    return Audit(
        jobs=sum(counts.values()), **{name: counts.get(name, 0) for name in (*names, "unknown")},
        double_leased=n_double, missing_events=missing,
        stuck_ids=ids["stuck"], lost_ids=ids["lost"], double_leased_ids=tuple(double),
    )  # fmt: skip


def _oldest(digest: DataFrame, counts: Mapping[str, int], most: int) -> dict[str, tuple[str, ...]]:
    """Return ids by state: of stuck and lost jobs, asked for at once, where there are any."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - as all who use Spark write it

    listed: dict[str, list[str]] = {"stuck": [], "lost": []}
    if listed.keys() & counts.keys():
        order = Window.partitionBy("state").orderBy("broker_id", "first_seq")
        place = F.row_number().over(order)
        some = digest.where(digest.state.isin(*listed)).withColumn("place", place)
        rows = some.where(F.col("place") <= most).orderBy("place").select("state", "job_id")
        for state, job_id in rows.collect():
            listed[state].append(job_id)
    return {state: tuple(ids) for state, ids in listed.items()}


def _doubled(digest: DataFrame, events: DataFrame, most: int) -> tuple[int, list[str]]:
    """Return how many jobs are double-leased, and the ids of some."""
    keys = ["broker_id", "job_id"]
    suspects = digest.where(digest.suspect).select(*keys, "first_seq")
    found = double_leased(events.join(suspects, keys, "left_semi")).join(suspects, keys)
    found = found.orderBy("broker_id", "first_seq").select("job_id").persist()
    try:
        n = found.count()
        return n, [row.job_id for row in found.take(most)]
    finally:
        found.unpersist()
