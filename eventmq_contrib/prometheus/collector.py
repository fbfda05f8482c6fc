"""Converts the figures of a broker or worker to metrics for Prometheus.

The figures of a broker are the answer to the CALL ``metrics`` (`eventmq.wire.calls`); the broker
bounds the number of names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.utils import floatToGoString

__all__ = ["families"]

Figures = Mapping[str, Any]

_ERRORS = "errors."

#: Counters of the broker that `_jobs` exports by task.
_BY_TASK = frozenset({"ended", "succeeded", "failed", "cancelled", "expired", "retries"})

#: Other counters that alert rules need from the start: a rate is computed from the step from 0.
_FROM_ZERO = ("failed_forgotten", "lease_lost")

_JOB = ("queue", "task")

_STATES = ("waiting", "delayed", "blocked", "running", "failed")

#: Figure of a queue -> name of its gauge, and help.
_OF_QUEUE = {
    "oldest": ("oldest_waiting_seconds", "Seconds that the oldest waiting job has waited."),
    "workers": ("workers", "Workers that serve the queue."),
    "paused": ("paused", "1 while the queue is paused."),
}

#: Figure of a broker -> name of its gauge, and help.
_OF_BROKER = {
    "started": ("eventmq_broker_start_time_seconds", "Unix time of the broker's start."),
    "peers": ("eventmq_broker_peers", "Peers that the broker knows."),
    "sessions": ("eventmq_workers", "Worker sessions."),
    "unsent_bytes": ("eventmq_broker_unsent_bytes", "Bytes that peers have not read yet."),
    "epoch": ("eventmq_store_epoch", "Grows with each owner of the store, and each start."),
}

_WITHOUT_OWNER = "Seconds during which this broker knew no active owner of the shared store."

_OUTCOMES = "Jobs that ended, by outcome."


def families(figures: Figures | None) -> Iterator[Metric]:
    """Yield the metrics.

    Args:
        figures: Figures of a broker or a worker, None if it did not answer.
    """
    if figures is not None and "worker" in figures:
        yield from _worker(figures["worker"])
        return
    yield GaugeMetricFamily("eventmq_up", "Whether the broker answered.", figures is not None)
    if figures is None:
        return
    info = {"version": figures["version"], "role": figures["role"]}
    yield InfoMetricFamily("eventmq_broker", "Version and role of the broker.", info)
    for key, (name, text) in _OF_BROKER.items():
        yield GaugeMetricFamily(name, text, figures[key])
    yield CounterMetricFamily(
        "eventmq_without_owner_seconds", _WITHOUT_OWNER, figures["without_owner"]
    )
    for name, value in figures["store"].items():
        yield GaugeMetricFamily(f"eventmq_store_{name}", "What the store says of itself.", value)
    commits = HistogramMetricFamily("eventmq_commit_seconds", "How long the store took to commit.")
    _add(commits, (), figures["commits"])
    yield commits
    yield from _jobs(figures["jobs"])
    yield from _queues(figures["queues"])
    yield _slots(figures["workers"])
    yield from _counters(figures["counters"])


def _worker(figures: Figures) -> Iterator[Metric]:
    yield _slots([(figures["name"], figures["used"], figures["slots"])])
    online = GaugeMetricFamily(
        "eventmq_worker_online", "1 while a broker knows the worker.", labels=("worker",)
    )
    online.add_metric((figures["name"],), figures["online"])
    yield online


def _slots(rows: Iterable[tuple[str, int, int]]) -> Metric:
    slots = GaugeMetricFamily(
        "eventmq_worker_slots", "Busy slots, and all slots.", labels=("worker", "state")
    )
    for name, used, total in rows:
        slots.add_metric((name, "used"), used)
        slots.add_metric((name, "total"), total)
    return slots


def _add(family: HistogramMetricFamily, labels: tuple[str, ...], histogram: list[Any]) -> None:
    """Add the buckets and the sum of a histogram."""
    bounds, counts, total = histogram
    names = [*map(floatToGoString, bounds), "+Inf"]
    family.add_metric(labels, list(zip(names, accumulate(counts), strict=True)), total)


def _jobs(rows: Iterable[Figures]) -> Iterator[Metric]:
    submitted = CounterMetricFamily("eventmq_jobs_submitted", "Jobs admitted.", labels=_JOB)
    ended = CounterMetricFamily("eventmq_jobs", _OUTCOMES, labels=(*_JOB, "outcome"))
    retries = CounterMetricFamily(
        "eventmq_job_retries", "Attempts that failed and were repeated.", labels=_JOB
    )
    waits = HistogramMetricFamily(
        "eventmq_job_wait_seconds", "Time from ready to start.", labels=_JOB
    )
    runs = HistogramMetricFamily("eventmq_job_run_seconds", "How long jobs ran.", labels=_JOB)
    for row in rows:
        labels = (row["queue"], row["task"])
        submitted.add_metric(labels, row["submitted"])
        retries.add_metric(labels, row["retried"])
        for outcome, count in row["outcomes"].items():
            ended.add_metric((*labels, outcome), count)
        _add(waits, labels, row["wait"])
        _add(runs, labels, row["run"])
    yield from (submitted, ended, retries, waits, runs)


def _queues(rows: list[Figures]) -> Iterator[Metric]:
    jobs = GaugeMetricFamily(
        "eventmq_queue_jobs", "Jobs of the queue now.", labels=("queue", "state")
    )
    demand = GaugeMetricFamily(
        "eventmq_queue_demand", "Jobs that run or could run now.", labels=("queue",)
    )
    for row in rows:
        for state in _STATES:
            jobs.add_metric((row["name"], state), row[state])
        demand.add_metric((row["name"],), row["running"] + row["waiting"])
    yield from (jobs, demand)
    for key, (name, text) in _OF_QUEUE.items():
        gauge = GaugeMetricFamily(f"eventmq_queue_{name}", text, labels=("queue",))
        for row in rows:
            gauge.add_metric((row["name"],), row[key])
        yield gauge


def _counters(counters: Mapping[str, int]) -> Iterator[Metric]:
    """Yield the other counters of the broker since its start."""
    errors = CounterMetricFamily("eventmq_errors", "ERROR messages sent.", labels=("code",))
    others = CounterMetricFamily(
        "eventmq_broker_events", "Other counters of the broker, by name.", labels=("name",)
    )
    for name, value in sorted({**dict.fromkeys(_FROM_ZERO, 0), **counters}.items()):
        if name.startswith(_ERRORS):
            errors.add_metric((name.removeprefix(_ERRORS),), value)
        elif name not in _BY_TASK:
            others.add_metric((name,), value)
    yield from (errors, others)
