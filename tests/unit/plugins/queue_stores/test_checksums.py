"""Checksums of outcomes that are made from those of their jobs' rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventmq.interfaces import PluginContext
from eventmq.job import JobRecord, JobState
from eventmq.plugins.queue_stores.sqlite.disk import FILE_NAME
from eventmq.plugins.queue_stores.sqlite.store import make_store
from eventmq.plugins.queue_stores.sqlite.tools.fsck import SqliteTools
from eventmq.store.reads import ReadQueued
from eventmq.store.writes import Admit, Finish, Finished, SubqueueKey
from eventmq.testing.clock import FakeClock
from eventmq.testing.suites.queue_store_recovery import StoreHarness

if TYPE_CHECKING:
    from pathlib import Path

#: How a job differs from the one before it: prefix of its id, body, result and its time to live.
_KINDS = st.tuples(
    st.sampled_from(["a", "bb", "é", "éé"]),
    st.sampled_from([b"", b"x", b"y"]),
    st.sampled_from([b"", b"r", b"s"]),
    st.sampled_from([0.0, 60.0]),
    st.booleans(),
)


class _Harness(StoreHarness):
    def __init__(self, path: Path) -> None:
        self.path, self.clock = path, FakeClock()
        self.options = {"directory": str(path / "data"), "reserve": 0}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(kinds=st.lists(_KINDS, min_size=1, max_size=12))
def test_outcomes_have_the_right_checksums_whatever_ids_bodies_and_results(tmp_path_factory, kinds):
    harness = _Harness(tmp_path_factory.mktemp("store"))
    store = make_store(PluginContext("sqlite", harness.options, harness.clock))
    store.open()
    try:
        jobs = [
            JobRecord(f"{prefix}{i:03}", "q", "task:t,content-type:json", body, seq=i, rank=i)
            for i, (prefix, body, *_) in enumerate(kinds, 1)
        ]
        harness.commit(store, Admit(jobs))
        first = (-(2**63), -1)
        [(rows, _)] = harness.commit(store, ReadQueued("q", SubqueueKey("t"), first, 99, 999))
        known = dict(zip((job.id for job in jobs), jobs, strict=True))
        now = harness.clock.now()
        ended = [
            Finished(
                row if read else known[row.id],  # a job may end that was never read again
                JobState.SUCCEEDED, now, ttl, "json", result,
            )
            for row, (_, _, result, ttl, read) in zip(rows, kinds, strict=True)
        ]  # fmt: skip
        assert harness.commit(store, Finish(ended)) == [{}]
    finally:
        store.close()
    assert SqliteTools(harness.path / "data" / FILE_NAME, durable=True).check() == []
