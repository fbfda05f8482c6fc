"""The adapter for the public benchmark harness of queues in PostgreSQL, and its output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg

from benchmarks.harness.app import WINDOW, percentiles

ROOT = Path(__file__).resolve().parents[3]

_METRICS = {
    "claim_p50_ms", "claim_p95_ms", "claim_p99_ms", "enqueue_rate", "completion_rate",
    "queue_depth", "producer_target_rate",
}  # fmt: skip


def test_a_replica_describes_itself_submits_jobs_and_reports_metrics(
    database_url: str,
) -> None:
    environment = {
        **os.environ, "DATABASE_URL": database_url, "WORKER_COUNT": "4", "SAMPLE_EVERY_S": "1",
        "PRODUCER_PACING": "harness", "PRODUCER_RATE": "60",
    }  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.harness"], env=environment, cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as replica:  # fmt: skip
        assert replica.stdin is not None
        assert replica.stdout is not None
        descriptor = json.loads(replica.stdout.readline())
        replica.stdin.write("ENQUEUE 20\nENQUEUE 40\n")
        replica.stdin.flush()
        metrics: dict[str, float] = {}
        completed = 0.0
        while completed < 59.0 or set(metrics) != _METRICS or metrics["claim_p50_ms"] == 0.0:
            sample = json.loads(replica.stdout.readline())
            metrics[sample["metric"]] = sample["value"]
            completed += sample["value"] * (sample["metric"] == "completion_rate")
        replica.send_signal(signal.SIGTERM)
        assert replica.wait(30) == 0
    assert metrics["producer_target_rate"] == 60.0
    manifest = json.loads((ROOT / "benchmarks/harness/adapter.json").read_text())
    assert descriptor["kind"] == "descriptor"
    assert descriptor["system"] == manifest["system"]
    with psycopg.connect(database_url) as connection:
        tables = "SELECT schemaname || '.' || tablename FROM pg_tables"
        existing = {name for (name,) in connection.execute(tables)}
    assert set(manifest["event_tables"]) <= existing
    assert set(manifest["event_tables"]) == set(descriptor["event_tables"])


def test_percentiles_are_of_the_window() -> None:
    old = [(0.0, 100.0)] * 1000
    new = [(WINDOW + 1.0, number / 1000) for number in range(100)]
    actual = percentiles(old + new, WINDOW + 2.0)
    assert actual == {"claim_p50_ms": 50.0, "claim_p95_ms": 95.0, "claim_p99_ms": 99.0}
    assert set(percentiles([], 0.0).values()) == {0.0}
