"""Traces: the tree of a job, its waiting and running, the critical path, and what Chrome shows."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventmq.errors import JobNotFound
from eventmq_contrib.spark.analyses.trace import (
    chrome_trace,
    critical,
    events_of,
    hops,
    summarize,
    tree_lines,
)
from tests.contrib.spark.histories import frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = 1_767_600_000_000_000
COLUMNS = (
    "broker_id", "seq", "ts_us", "kind", "job_id", "root_id", "parent_id", "task", "queue",
    "attempt", "delivery", "worker_id", "error_type", "wait_us", "run_us", "leased_us",
    "started_us", "due_us",
)  # fmt: skip


class Story:
    """Writes events; times are seconds after the start."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def event(self, at: float, kind: str, job: str, **more: Any) -> None:
        row = dict.fromkeys(COLUMNS) | {
            "broker_id": "b", "seq": len(self.rows) + 1, "ts_us": START + round(at * 1e6),
            "kind": kind, "job_id": job, "task": f"shop.{job}", "queue": "default", **more,
        }  # fmt: skip
        self.rows.append(row)

    def ended(
        self, job: str, started: float, ended: float, *, ready: float | None = None,
        kind: str = "succeeded", worker: str = "host-1:7", **more: Any,
    ) -> None:  # fmt: skip
        wait = None if ready is None else round((started - ready) * 1e6)
        self.event(
            ended, kind, job, started_us=START + round(started * 1e6), wait_us=wait,
            run_us=round((ended - started) * 1e6), worker_id=worker, attempt=1, **more,
        )  # fmt: skip


def chord() -> Story:
    """A head submits three members of a chord while it runs, and continues; then the callback."""
    story = Story()
    story.event(0, "enqueued", "head")
    for member in "abc":
        story.event(2, "enqueued", member, root_id="head", parent_id="head")
    story.event(2, "delayed", "total", root_id="head", parent_id="a")
    story.ended("head", 1, 3, ready=0)
    for member, started, ended in (("a", 2.5, 4), ("c", 3, 5), ("b", 4, 9)):
        related = {"root_id": "head", "parent_id": "head"}
        story.ended(member, started, ended, ready=2, **related)
    story.event(9, "enqueued", "total", root_id="head", parent_id="a")
    story.ended("total", 10, 12, ready=9, root_id="head", parent_id="a")
    return story


def test_each_job_has_its_times_and_its_place() -> None:
    jobs = hops(chord().rows)
    assert ["head", "a", "b", "c", "total"] == list(jobs)
    assert {"head": "", "a": "head", "b": "head", "c": "head", "total": "a"} == {
        hop.id: hop.parent for hop in jobs.values()
    }
    assert (1_000_000, 2_000_000) == (jobs["head"].waited_us, jobs["head"].ran_us)
    assert (2_000_000, 5_000_000) == (jobs["b"].waited_us, jobs["b"].ran_us)
    assert {"succeeded"} == {hop.state for hop in jobs.values()}


def test_the_critical_path_goes_over_the_member_that_ended_last() -> None:
    """The callback waited for b, and b for the head, up to where that submitted it."""
    steps = critical(hops(chord().rows))
    assert ["head", "b", "total"] == [step.job for step in steps]
    seconds = [((s.from_us - START) / 1e6, (s.to_us - START) / 1e6, s.ran_us / 1e6) for s in steps]
    assert [(0, 2, 1), (2, 9, 5), (9, 12, 2)] == seconds


def test_a_chain_waits_for_the_link_before_it() -> None:
    """Also where a job of another branch ended in the same commit."""
    story = Story()
    for job in ("x1", "y1"):
        story.event(0, "enqueued", job, root_id="x1")
    for job in ("x2", "y2"):
        story.event(0, "delayed", job, root_id="x1", parent_id=f"{job[0]}1")
    story.ended("x1", 1, 3, ready=0, root_id="x1")
    story.ended("y1", 1, 3, ready=0, root_id="x1")
    for job in ("x2", "y2"):
        story.event(3, "enqueued", job, root_id="x1", parent_id=f"{job[0]}1")
    story.ended("y2", 3, 4, ready=3, root_id="x1", parent_id="y1")
    story.ended("x2", 3, 5, ready=3, root_id="x1", parent_id="x1")
    assert ["x1", "x2"] == [step.job for step in critical(hops(story.rows))]


def test_every_attempt_counts() -> None:
    """The first one has no waiting time of its own: the event that made the job ready has it."""
    story = Story()
    story.event(0, "enqueued", "a")
    story.ended("a", 1, 3, kind="retry", error_type="builtins.OSError")
    story.event(13, "enqueued", "a")
    story.event(14, "lease_lost", "a", worker_id="host-2:9")
    story.ended("a", 15, 16, ready=14, kind="failed", error_type="builtins.ValueError")
    [hop] = hops(story.rows).values()
    assert (2, 2_000_000, 3_000_000) == (len(hop.runs), hop.waited_us, hop.ran_us)
    assert ("failed", "builtins.ValueError") == (hop.state, hop.error)
    [step] = critical({"a": hop})
    assert (16_000_000, 3_000_000) == (step.to_us - step.from_us, step.ran_us)


def test_an_operation_on_a_job_is_shown_once() -> None:
    """An operation has an event, and so have its effects."""
    story = Story()
    story.event(0, "enqueued", "a")
    for kind in ("operation", "cancelled"):
        story.event(5, kind, "a", operation="cancel", actor="anna@host")
    for kind in ("operation", "replayed"):
        story.event(9, kind, "a", operation="retry", actor=None)
    [hop] = hops(story.rows).values()
    assert (["cancel by anna@host", "retry"], "queued") == (hop.acts, hop.state)
    trace = summarize("a", {"a": hop}, [])
    assert "cancel by anna@host, retry" in "\n".join(line.plain for line in tree_lines(trace))


def test_a_job_that_was_blocked_waits_from_when_it_was_released() -> None:
    """Its own event counts from the submission."""
    story = Story()
    story.event(0, "delayed", "two", root_id="one")
    story.event(50, "enqueued", "two", root_id="one")
    story.ended("two", 70, 90, ready=0, root_id="one")
    [hop] = hops(story.rows).values()
    assert (True, 20_000_000) == (hop.blocked, hop.waited_us)


def test_what_has_not_ended_is_on_no_path() -> None:
    story = Story()
    story.event(0, "enqueued", "a")
    assert [] == critical(hops(story.rows))
    trace = summarize("a", hops(story.rows), [])
    assert (None, {"queued": 1}) == (trace["seconds"], trace["states"])


def test_headers_that_go_in_a_circle_do_no_harm() -> None:
    """They are what other software made them."""
    story = Story()
    for job, parent in (("a", "b"), ("b", "c"), ("c", "a"), ("d", "d"), ("e", "nobody")):
        story.event(0, "enqueued", job, parent_id=parent)
        story.ended(job, 1, 2, ready=0, parent_id=parent)
    jobs = hops(story.rows)
    assert {"d", "e"} <= {hop.id for hop in jobs.values() if not hop.parent}
    assert lines(story, "a")
    assert 5 == len(jobs)


def lines(story: Story, job: str) -> list[str]:
    jobs = hops(story.rows)
    return [line.plain for line in tree_lines(summarize(job, jobs, critical(jobs)))]


def test_the_tree_shows_each_job_on_a_line() -> None:
    text = lines(chord(), "b")
    assert "trace b: 5 succeeded, 12 s" == text[0]
    assert 6 == len(text)
    assert "shop.head * succeeded  waited 1 s, ran 2 s  default  head" in text[1]
    assert "shop.b * succeeded  waited 2 s, ran 5 s" in next(
        line for line in text if "shop.b" in line
    )


def test_a_long_chain_goes_straight_down() -> None:
    story = Story()
    story.event(0, "enqueued", "0", root_id="0")
    for n in range(1, 300):
        story.event(0, "delayed", str(n), root_id="0", parent_id=str(n - 1))
    for n in range(300):
        if n:
            story.event(n, "enqueued", str(n), root_id="0")
        story.ended(str(n), n, n + 1, ready=n, root_id="0")
    assert 300 == len(critical(hops(story.rows)))
    assert max(map(len, lines(story, "0"))) < 90


def test_many_beside_each_other_are_counted() -> None:
    story = Story()
    story.event(0, "enqueued", "head")
    for n in range(70):
        story.event(1, "enqueued", f"m{n}", parent_id="head")
    assert "20 more: 20 queued" in lines(story, "head")[-1]


def test_hostile_names_stay_on_their_line() -> None:
    """Of tasks, queues and errors: neither markup nor control characters get through."""
    story = Story()
    evil = "[red]a\x1b[2J\nb[/red]"
    story.event(0, "enqueued", "a", task=evil, queue=evil)
    story.ended("a", 1, 2, ready=0, kind="failed", task=evil, queue=evil, error_type=evil)
    text = lines(story, "a")
    assert 2 == len(text)
    assert "\x1b" not in text[1]
    assert 3 == text[1].count(r"[red]a\x1b[2J\nb[/red]")


# Chrome


def check(trace: dict[str, Any]) -> None:
    """See that a trace keeps to the format: what each phase must have, and proper nesting."""
    assert "ms" == trace["displayTimeUnit"]
    events = trace["traceEvents"]
    for event in events:
        assert {"ph", "pid", "name"} <= set(event)
        assert isinstance(event["pid"], int)
        assert isinstance(event.get("tid", 0), int)
        if event["ph"] != "M":
            assert isinstance(event["ts"], int)
            assert event["ts"] >= 0
        if event["ph"] in "besf":
            assert {"id", "cat"} <= set(event)
    named = {(e["pid"], e.get("tid")) for e in events if e["ph"] == "M"}
    runs = [e for e in events if e["ph"] == "X"]
    for event in runs:
        assert {(event["pid"], None), (event["pid"], event["tid"])} <= named
    for one, other in combinations(runs, 2):
        if (one["pid"], one["tid"]) == (other["pid"], other["tid"]):
            first, second = sorted((one, other), key=lambda e: (e["ts"], e["ts"] + e["dur"]))
            assert first["ts"] + first["dur"] <= second["ts"]
    for begin, end in ("be", "sf"):
        pairs = [[e for e in events if e["ph"] == ph] for ph in (begin, end)]
        ids = [sorted((e["cat"], e["id"]) for e in some) for some in pairs]
        assert ids[0] == ids[1]
        assert len(set(ids[0])) == len(ids[0])
        by_id = {e["id"]: e["ts"] for e in pairs[0]}
        assert all(by_id[e["id"]] <= e["ts"] for e in pairs[1])


def test_a_trace_for_chrome_has_runs_waits_and_arrows() -> None:
    trace = chrome_trace(hops(chord().rows))
    check(trace)
    phases = [event["ph"] for event in trace["traceEvents"]]
    assert {"X": 5, "b": 5, "e": 5, "s": 4, "f": 4} == {
        ph: phases.count(ph) for ph in set(phases) - {"M"}
    }
    [total] = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["name"] == "shop.total"]
    assert (10_000_000, 2_000_000) == (total["ts"], total["dur"])


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 10), st.integers(0, 8), st.sampled_from("ab")),
        min_size=1, max_size=20,
    )
)  # fmt: skip
def test_runs_that_overlap_get_threads_of_their_own(runs: list[tuple[int, int, int, str]]) -> None:
    story = Story()
    for n, (ready, wait, run, worker) in enumerate(runs):
        parent = f"j{n // 2}" if n else None
        story.event(ready, "enqueued", f"j{n}", parent_id=parent)
        start = ready + wait
        story.ended(
            f"j{n}", start, start + run, ready=ready, worker=f"{worker}:1", parent_id=parent
        )
    trace = chrome_trace(hops(story.rows))
    check(trace)
    assert len(runs) == sum(e["ph"] == "X" for e in trace["traceEvents"])


# On Spark


def test_a_tree_is_found_from_any_of_its_jobs(spark: SparkSession) -> None:
    """By root, or by parents where no root is known; and nothing else comes along."""
    story = chord()
    for job, parent in (("top", None), ("middle", "top"), ("low", "middle"), ("other", None)):
        story.event(0, "enqueued", job, parent_id=parent)
        story.ended(job, 1, 2, ready=0, parent_id=parent)
    rows = [{**row, "schema_version": 1} for row in story.rows]
    events = frame(spark, rows).cache()
    trees = {"b": {"head", "a", "b", "c", "total"}, "middle": {"top", "middle", "low"}}
    for job_id, tree in trees.items():
        numbers = [row["seq"] for row in rows if row["job_id"] in tree]
        assert numbers == [row["seq"] for row in events_of(events, job_id)]
    assert 5 == len(events_of(events, "b", limit=4))
    with pytest.raises(JobNotFound, match="the journal has no event of a job nobody"):
        events_of(events, "nobody")
    events.unpersist()
