"""Schedules as rows: changed in batches, and loaded page by page."""

from __future__ import annotations

from contextlib import closing

import pytest

from eventmq.engine import schedules
from eventmq.engine.schedules import ScheduleTable, pack_row
from eventmq.engine.tables import SCHEDULE_TABLES
from eventmq.plugins.database import SqliteRows, connect, definitions
from eventmq.schedule import Progress
from eventmq.store.reads import LoadSchedules
from eventmq.testing.suites.schedule_store import new_schedule


@pytest.fixture
def table():
    with closing(connect(":memory:", busy=0.0)) as db:
        for statement in [text for table in SCHEDULE_TABLES for text in definitions(table)]:
            db.execute(statement)
        yield ScheduleTable(SqliteRows(db, SCHEDULE_TABLES))


def rows_of(*names, version=None):
    return [(pack_row(new_schedule(name)), version) for name in names]


@pytest.mark.parametrize("portion", [1, 2, 3, 4, 7])
def test_a_full_load_returns_each_schedule_once_in_portions_of_any_size(
    table, monkeypatch, portion
):
    monkeypatch.setattr(schedules, "_PORTION", portion)
    names = [f"s{n}" for n in range(6)]
    table.save(rows_of(*names))
    table.remove("s1", None)
    page = table.load(LoadSchedules())
    assert [row.name for row in page.rows] == ["s0", "s2", "s3", "s4", "s5"]
    assert (page.gone, page.revision, page.more) == ([], 7, False)
    [row, _] = table.load(LoadSchedules(4)).rows
    assert row.name == "s4"
    assert table.load(LoadSchedules(5)).gone == ["s1"]
    other = table.load(LoadSchedules(source="elsewhere"))
    assert (other.rows, other.revision) == ([], 7)


def test_changes_of_one_name_in_one_call_follow_each_other(table):
    assert table.save([*rows_of("a", "b", "a"), *rows_of("a", version=1)]) == (
        ["done", "done", "stale", "done"], 3,
    )  # fmt: skip
    steps = [Progress("a", 2, 1.0, None, "x"), Progress("a", 2, 2.0, None, "y"),
             Progress("a", 3, 3.0, None, "z"), Progress("none", 1, 3.0, None, "z")]  # fmt: skip
    assert table.advance(steps) == ([True, False, True, False], 5)
    assert [(row.name, row.version, row.last_job) for row in table.load(LoadSchedules()).rows] == [
        ("b", 1, ""), ("a", 4, "z"),
    ]  # fmt: skip


def test_removed_schedules_make_room_for_others(table, monkeypatch):
    monkeypatch.setattr(schedules, "MAX_SCHEDULES", 2)
    assert table.save(rows_of("a", "b", "c"))[0] == ["done", "done", "full"]
    assert table.remove("a", 7) == (False, 2)
    assert table.remove("a", 1) == (True, 3)
    assert table.remove("a", None) == (False, 3)
    assert table.save(rows_of("c", "a"))[0] == ["done", "full"]
    assert table.put(new_schedule("a"), 1.0) == ("full", 4)
    assert table.put(new_schedule("b"), 1.0) == ("same", 4)
