"""A short month: tables keep the size of the waiting jobs and the remembered outcomes."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from benchmarks.month import Month

DAYS, JOBS, WAITING = 7, 400, 400

PERIODS = """SELECT count(*) FROM pg_class WHERE relkind = 'r'
    AND relnamespace = 'eventmq'::regnamespace AND relname ~ '^outcomes_[0-9]+$'"""


@pytest.mark.parametrize("snapshot", [0, JOBS], ids=["alone", "beside a snapshot"])
def test_tables_grow_no_more_once_the_first_outcomes_are_forgotten(database_url, snapshot):
    """Vacuum runs once a day here; a snapshot keeps all rows that were deleted in a day.

    Days differ a little, so a table may have a few pages more than at first. On one of the last
    days it may have more, since the server's own analysis may keep rows from vacuum.
    """
    with (
        closing(Month(database_url, JOBS, WAITING, snapshot)) as run,
        closing(psycopg.connect(database_url, autocommit=True)) as other,
    ):
        days = []
        for _ in range(DAYS):
            run.day()
            other.execute("VACUUM")
            days.append(run.sizes())
            [(periods,)] = other.execute(PERIODS)
            assert periods <= 14, "a day has twelve"
        for table in ("jobs", "chunks", "outcomes", "queues", "meta", "attempts"):
            sizes = [day[table] for day in days]
            assert min(sizes[-2:]) <= 1.25 * max(sizes[2:4]) + 3 * 8192, (table, sizes)
        compact = run.compact()
    assert days[-1]["jobs"] <= (4 if snapshot else 3) * compact["jobs"]
