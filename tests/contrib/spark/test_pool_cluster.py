"""A worker with the pool ``spark`` on a cluster whose executor, a JVM of its own, is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contrib.spark.conftest import TIMEOUT
from tests.support.executors import BEHIND, Cluster, Comparison


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="finds the executor by /proc")
@pytest.mark.timeout(TIMEOUT)
def test_the_job_of_a_killed_executor_is_charged_with_a_death_and_no_other(
    java: None, tmp_path: Path
) -> None:
    """It is tried again on another executor, and ends; those behind it run once."""
    with Cluster(tmp_path) as cluster:
        cluster.inject()
        assert cluster.finish() == Comparison(lost=[], again=[], unpaid=[], deaths=[0])
        assert len(cluster.jobs) == 1 + BEHIND
        assert cluster.system.record.read_text().count("start 0 ") == 2
