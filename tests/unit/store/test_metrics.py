"""Metrics of jobs: they equal the rows of the events, and are limited in number."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventmq.events import KIND_CODES, Block, EventKind, Field, gap, pack_blocks, rows_of
from eventmq.store.metrics import OTHER, RUN_BUCKETS, Histogram, JobMetrics, MetricsLimits
from tests.support.broker_harness import Broker

if TYPE_CHECKING:
    from pathlib import Path

AT = 1_800_000_000.0
SUCCEEDED = KIND_CODES[EventKind.SUCCEEDED]


def ended(
    n: int = 1,
    queue: str = "q",
    task: str = "t",
    kind: EventKind = EventKind.SUCCEEDED,
    **fields: Any,
) -> Block:
    """Return the block of the ends of ``n`` jobs; a list as a field has one value per job."""
    common = {
        Field.KIND: KIND_CODES[kind], Field.AT: AT, Field.QUEUE: queue,
        Field.LABEL: (task, "", "", "", "", ""),
    }  # fmt: skip
    block = Block(common, ["id"] * n, {})
    for name, value in fields.items():
        block.put(getattr(Field, name), value if isinstance(value, list) else [value] * n)
    return block


def only(metrics: JobMetrics) -> dict[str, Any]:
    [row] = metrics.rows()
    return row


# The metrics equal the events

seconds = st.floats(0.0, 4000.0, width=32)
OFFSETS = st.one_of(st.just(None), st.floats(-50.0, 50.0, width=32))


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    """Draw an event block of ends, also with clocks of workers that differ, or without a start."""
    n = draw(st.integers(1, 60))
    same = draw(st.booleans())
    runs = draw(st.lists(seconds, min_size=n, max_size=n))
    ready = [AT - 4000.0 - each for each in draw(st.lists(seconds, min_size=n, max_size=n))]
    offsets = draw(st.lists(OFFSETS, min_size=n, max_size=n))
    starts = [0.0 if o is None else AT - run + o for run, o in zip(runs, offsets, strict=True)]
    if same:
        starts, runs, ready = [starts[0]] * n, [runs[0]] * n, [ready[0]] * n
    fields: dict[str, Any] = {"STARTED": starts, "RAN": runs, "READY": ready}
    if not any(starts):
        fields = {}  # as `eventmq.store.events` leaves them out
    elif draw(st.booleans()):
        fields["LEASED"] = AT - draw(seconds)
    return ended(n, **fields)


@given(st.lists(blocks(), max_size=4))
def test_waits_and_runs_are_those_of_the_rows(made: list[Block]) -> None:
    """Whether they are counted one by one, together, or sorted."""
    metrics = JobMetrics()
    metrics.count(made)
    rows = list(rows_of("b", 1, pack_blocks(made))) if made else []
    if not rows:
        assert [] == metrics.rows()
        return
    figures = only(metrics)
    assert len(rows) == figures["outcomes"]["succeeded"]
    for name, column in (("wait", "wait_us"), ("run", "run_us")):
        values = [row[column] / 1e6 for row in rows if column in row]
        bounds, counts, total = figures[name]
        expected = [0] * (len(bounds) + 1)
        exact = {float(bound) for bound in bounds}
        for value in values:
            expected[bisect_left(bounds, value)] += 1
        assert len(values) == sum(counts)
        near = any(abs(value - bound) < 1e-5 for value in values for bound in exact)
        if not near:  # the rows have whole microseconds
            assert expected == counts
        assert sum(values) == pytest.approx(total, abs=1e-5 * max(1, len(values)))


def test_a_value_at_a_bound_is_within_it() -> None:
    """As ``le`` of Prometheus; alone and among many."""
    for n in (1, 5, 100):
        histogram = Histogram((1.0, 2.0))
        histogram.add_all([0.5, 1.0, 1.5, 2.0, 3.0] * n)
        assert [2 * n, 2 * n, n] == histogram.counts


def test_short_jobs_are_all_in_one_bucket() -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.add_all([0.25] * 1000)
    histogram.add_all([7.0] * 1000)
    assert ([1000, 0, 1000], 7250.0) == (histogram.counts, histogram.total)


@pytest.mark.parametrize("n", [1, 3, 100])
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0, 1e300])
def test_a_run_time_that_is_none_spoils_no_figure(n: int, wrong: float) -> None:
    """Workers report run times, and may report any value."""
    metrics = JobMetrics()
    starts = [AT - 9.0 + i / 1000 for i in range(n)]
    metrics.count([ended(n, STARTED=starts, RAN=[wrong] * n, READY=AT - 10.0)])
    metrics.count([ended(n, STARTED=starts, RAN=[0.5] * (n - 1) + [0.25], READY=AT - 10.0)])
    _, counts, total = only(metrics)["run"]
    assert (n, n * 0.5 - 0.25) == (sum(counts), total)


# Counting


def test_each_job_is_submitted_once(tmp_path: Path) -> None:
    """At its admission, not when it becomes ready again; ends are counted by outcome."""
    broker = Broker(tmp_path)
    job_id, _ = broker.submit()
    broker.submit(headers="task:shop.later,countdown:60")
    metrics = broker.core.state.metrics
    assert {"shop.add": 1, "shop.later": 1} == {
        row["task"]: row["submitted"] for row in metrics.rows()
    }
    broker.call("cancel", ids=[job_id])
    broker.clock.time += 100.0
    broker.tick()
    rows = {row["task"]: row for row in metrics.rows()}
    assert 1 == rows["shop.later"]["submitted"]
    assert {"succeeded": 0, "failed": 0, "expired": 0, "cancelled": 1} == rows["shop.add"][
        "outcomes"
    ]
    broker.close()


def test_what_is_not_stored_is_not_counted(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.submit()
    broker.store.engine.event_log._end = None  # the next commit fails
    with pytest.raises(Exception, match="NoneType"):
        broker.submit()
    assert 1 == only(broker.core.state.metrics)["submitted"]
    broker.close()


def test_a_retry_is_no_end() -> None:
    metrics = JobMetrics()
    metrics.count([ended(kind=EventKind.RETRY, STARTED=AT - 1, RAN=0.5, READY=AT - 3)])
    row = only(metrics)
    assert (1, 0, 1) == (row["retried"], sum(row["outcomes"].values()), sum(row["run"][1]))


def test_gaps_and_kinds_of_a_newer_version_are_left_out() -> None:
    metrics = JobMetrics()
    unknown = ended()
    unknown.common[Field.KIND] = len(KIND_CODES)
    metrics.count([gap(1, 2, AT), unknown])
    assert [] == metrics.rows()


# Limits


def test_a_million_names_are_others() -> None:
    """First of tasks within their queue, then of queues; the number of rows is limited."""
    metrics = JobMetrics()
    metrics.limits = MetricsLimits(max_queues=2, max_tasks=3)
    names = [("mail", f"t{n}") for n in range(1000)] + [(f"q{n}", "t") for n in range(1000)]
    for _ in range(500):
        metrics.count(ended(queue=queue, task=task) for queue, task in names)
    rows = {(row["queue"], row["task"]): row["outcomes"]["succeeded"] for row in metrics.rows()}
    assert {
        ("mail", "t0"): 500, ("mail", "t1"): 500, ("mail", "t2"): 500,
        ("mail", OTHER): 997 * 500, ("q0", OTHER): 500, (OTHER, OTHER): 999 * 500,
    } == rows  # fmt: skip
    assert ("mail", "q0", OTHER) == tuple(map(metrics.queue_label, ("mail", "q0", "q1")))


def test_what_is_named_as_the_others_is_counted_with_them() -> None:
    """No two rows have the same names, since Prometheus reads one value of each."""
    metrics = JobMetrics()
    metrics.limits = MetricsLimits(max_queues=2, max_tasks=3)
    names = [(OTHER, OTHER), (OTHER, "t"), ("mail", OTHER), *(("mail", f"t{n}") for n in range(9))]
    metrics.count(ended(queue=queue, task=task) for queue, task in [*names, ("q", "t")])
    rows = [(row["queue"], row["task"]) for row in metrics.rows()]
    assert sorted({*rows}) == sorted(rows)
    assert 13 == sum(row["outcomes"]["succeeded"] for row in metrics.rows())


def test_a_queue_that_is_forgotten_gives_its_names_back() -> None:
    """Its metrics restart at zero; those of all others stay, whatever their names."""
    metrics = JobMetrics()
    metrics.limits = MetricsLimits(max_queues=2, max_tasks=2)
    names = [("a", "t"), ("a", "u"), ("a", "v"), (OTHER, "t"), ("b", "t")]
    metrics.count(ended(queue=queue, task=task) for queue, task in names)
    for queue in ("a", "a", OTHER, "unknown"):
        metrics.forget_queue(queue)
    metrics.count([ended(queue="b"), ended(queue="c", task="x"), ended(queue="a")])
    rows = {(row["queue"], row["task"]): row["outcomes"]["succeeded"] for row in metrics.rows()}
    assert {("b", "t"): 1, ("c", "x"): 1, (OTHER, OTHER): 3} == rows


def test_a_bound_that_is_reached_is_said_once() -> None:
    """With the first name that gets no metrics of its own."""
    metrics = JobMetrics()
    metrics.limits = MetricsLimits(max_queues=2, max_tasks=3)
    limits: list[tuple[str, str]] = []
    metrics.on_limit = lambda field, name: limits.append((field, name))
    metrics.count([ended(task="t1"), ended(task="t2"), ended(queue="r"), ended(task=OTHER)])
    assert [] == limits
    for _ in range(2):
        metrics.count([ended(task="t4"), ended(task="t5"), ended(queue="s"), ended(queue="u")])
    assert [("max_tasks", "q/t4"), ("max_queues", "s")] == limits
    metrics.forget_queue("r")
    metrics.count([ended(queue="s"), ended(queue="u")])
    assert 2 == len(limits)


def test_queues_and_tasks_have_buckets_of_their_own() -> None:
    """The first matching pattern applies; others have the default buckets."""
    metrics = JobMetrics()
    rules = (("reports/*", (60.0, 600.0)), ("*/shop.*", (0.5,)))
    metrics.limits = replace(MetricsLimits(), run_buckets=rules)
    metrics.count(
        ended(queue=queue, task=task, STARTED=AT - 100, RAN=90.0, READY=AT - 200)
        for queue, task in (("reports", "shop.x"), ("mail", "shop.x"), ("mail", "x"))
    )
    runs = [row["run"][:2] for row in metrics.rows()]
    usual = [0] * (len(RUN_BUCKETS) + 1)
    usual[RUN_BUCKETS.index(300.0)] = 1
    assert [[[60.0, 600.0], [0, 1, 0]], [[0.5], [0, 1]], [list(RUN_BUCKETS), usual]] == runs
