"""Races between commits and the thread that moves the log: no row is lost.

``python -m benchmarks.faults races`` does the same ten million times.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from eventmq.plugins.queue_stores.sqlite.store import SqliteStore
from tests.faults.crashes import Lost
from tests.faults.races import race
from tests.support.broker_harness import SWIFT


@pytest.mark.parametrize(("durability", "commits"), [("memory", 4000), ("durable", 1000)])
def test_no_row_is_lost_where_commits_and_checkpoints_race(durability: str, commits: int) -> None:
    with tempfile.TemporaryDirectory(dir=SWIFT) as folder:
        raced = race(Path(folder), commits, durability=durability)
    assert raced.restarts > commits / 20, "the log was restarted often"
    assert raced.reads > 10


def test_a_commit_that_is_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test of the test: a store that drops one commit."""
    submit, commits = SqliteStore.submit, iter(range(10_000))

    def forgetful(store: SqliteStore, batch: list[object]) -> None:
        if next(commits) == 500:
            store._write_results.append([{}] * len(batch))
        else:
            submit(store, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(SqliteStore, "submit", forgetful)
    with (
        tempfile.TemporaryDirectory(dir=SWIFT) as folder,
        pytest.raises(Lost, match=r"missing|are refused"),
    ):
        race(Path(folder), 1000)
