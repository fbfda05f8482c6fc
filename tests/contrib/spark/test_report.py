"""The values of the report, against plain Python. The test of the tutorial makes its page."""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.errors import StoreError
from eventmq_contrib.spark.analyses.audit import audit, numbers
from eventmq_contrib.spark.analyses.report import MAX_ROWS, QUEUES, SPANS, Choice, report, timeline
from eventmq_contrib.spark.analyses.slo import Objective, slo
from eventmq_contrib.spark.analyses.states import executions
from tests.contrib.spark.histories import frame, story

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

ENDS = {"succeeded", "failed", "cancelled", "expired"}
READY = {"enqueued", "lease_lost", "handed_back", "replayed"}


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """Two brokers, 600 jobs, nothing planted; some queues have names of their own."""
    history = [
        row for n in range(2) for row in story(Random(n), f"b{n}", jobs=300, damage=False).rows
    ]
    for row in history:
        if hash_of(row["job_id"]) % 9 < 5:
            row["queue"] = f"q{hash_of(row['job_id']) % 9}"
    return history


def hash_of(job_id: str) -> int:
    return sum(map(ord, job_id))


@pytest.fixture(scope="module")
def events(spark: SparkSession, rows: list[dict[str, Any]]) -> Iterator[DataFrame]:
    table = frame(spark, rows).cache()
    yield table
    table.unpersist()


class Plain:
    """The same, counted row by row."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.jobs: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for row in sorted(rows, key=lambda row: (row["broker_id"], row["seq"])):
            self.jobs[row["broker_id"], row["job_id"]].append(row)
        #: Queue, ready, start (None: never), end of each wait.
        self.waits: list[tuple[str, int, int | None]] = []
        self.runs: list[tuple[str, int, int]] = []
        for job in self.jobs.values():
            self._add(job)

    def _add(self, rows: list[dict[str, Any]]) -> None:
        ready, ran, gone = None, False, None
        for row in rows:
            ran = ran or row["kind"] == "leased"
            if row.get("started_us") is not None:
                ran = True
                since = row["started_us"] - row["wait_us"] if "wait_us" in row else ready
                assert since is not None
                self.waits.append((row["queue"], since, row["started_us"]))
                end = row["started_us"] + row["run_us"]
                self.runs.append((row["queue"], row["started_us"], end))
            if row["kind"] in READY:
                ready = row["ts_us"]
            if row["kind"] in ENDS:
                gone = row["ts_us"]
        if not ran and ready is not None:
            self.waits.append((rows[0]["queue"], ready, gone))


def test_what_happened_when_is_what_the_events_say(
    events: DataFrame, rows: list[dict[str, Any]]
) -> None:
    first, last = (f(row["ts_us"] for row in rows) for f in (min, max))
    result = timeline(events, first, last)
    plain = Plain(rows)
    times, width = [round(t * 1e6) for t in result["times"]], round(result["width"] * 1e6)
    assert times[0] <= first < times[0] + width
    assert times[-1] <= last < times[-1] + width
    assert len(times) <= SPANS

    def counted(kinds: set[str]) -> list[int]:
        spans = Counter((r["ts_us"] - times[0]) // width for r in rows if r["kind"] in kinds)
        return [spans[n] for n in range(len(times))]

    names = {"succeeded": "succeeded", "failed": "failed", "retry": "tried again"}
    for kind, name in names.items():
        assert counted({kind}) == result["ended"][name]
    came = [sum(values) for values in zip(*result["came"].values(), strict=True)]
    assert sum(came) == sum("bytes_in" in r and r["kind"] == "enqueued" for r in rows)
    assert QUEUES + 1 == len(result["came"])

    queue = next(iter(result["came"]))
    for n, begin in enumerate(times):
        end = min(begin + width, last)
        # A job that starts within a span does not count at the end of that span.
        started = times[0] + (n + 1) * width
        ages = [
            end - ready
            for name, ready, start in plain.waits
            if name == queue and ready < end and (start is None or start >= started)
        ]
        assert result["ages"][queue][n] == pytest.approx(max(ages, default=0) / 1e6)
        busy = sum(
            max(0, min(end_, begin + width) - max(start, begin))
            for name, start, end_ in plain.runs
            if name == queue
        )
        assert result["working"][queue][n] == pytest.approx(busy / width)
        waits = sorted(s - r for _, r, s in plain.waits if s and begin <= s < begin + width)
        if n == 5:
            p50 = result["waited"]["p50"][n]
            assert waits[0] / 1e6 <= p50 <= waits[-1] / 1e6


def test_a_job_whose_end_may_be_missing_is_none_that_waits(spark: SparkSession) -> None:
    """Number 2 is not there: it may have been the end of "a", which stays out of the picture."""
    rows = [(1, "enqueued", "a", 0), (3, "enqueued", "b", 50), (4, "expired", "b", 100)]
    made = [
        {
            "broker_id": "b0", "seq": seq, "ts_us": second * 1_000_000, "kind": kind,
            "job_id": job_id, "queue": "email", "schema_version": 1,
        }
        for seq, kind, job_id, second in rows
    ]  # fmt: skip
    result = timeline(frame(spark, made), 0, 100_000_000)
    assert result["ages"]["email"][-1] == 0.0
    assert 50.0 - result["width"] <= max(result["ages"]["email"]) <= 50.0


def test_what_parts_share_is_what_each_has_on_its_own(events: DataFrame) -> None:
    """Runs and jobs are put together once; nothing of them is left afterwards."""
    queue = "email"
    result = report(events, choice=Choice(queue=queue))
    expected = audit(events, listed=MAX_ROWS, queue=queue)
    assert result["audit"] == {**expected.as_dict(), "sound": expected.sound}
    known = numbers(events)
    [level] = slo(events.where(events.queue == queue), Objective(), brokers=known).collect()
    assert {name: result["slo"][0][name] for name in level.asDict()} == level.asDict()
    assert result["whole"]["runs"] == executions(events).where(f"queue = '{queue}'").count()
    session: Any = events.sparkSession
    assert len(session._jsc.sc().getRDDStorageInfo()) == 1  # the events of these tests


def test_without_an_event_there_is_no_report(events: DataFrame) -> None:
    with pytest.raises(StoreError, match="no event of this time, queue and task"):
        report(events, choice=Choice(queue="nobody's"))
