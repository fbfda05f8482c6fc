"""The row of an event: what it says, and that its page says the same."""

from __future__ import annotations

import re

import pytest

from eventmq.events import COLUMNS, ENDS, STATES, EventKind, FileName, partition
from eventmq.job import TERMINAL
from tests.support.page_files import ROOT

PAGE = (ROOT / "docs" / "reference" / "events.rst").read_text(encoding="utf-8")


def rows_after(title):
    """Return the rows of the table below a title, each a tuple of its cells."""
    table = PAGE.partition(f"\n{title}\n--")[2].partition(".. list-table::")[2]
    table = re.split(r"\n\S", table)[0]
    cells = re.findall(r"\n   \* - (.*)\n     - (.*)\n     - (.*)", table)
    return cells[1:]


def test_the_page_has_every_column_with_its_type_and_meaning():
    expected = [
        (f"``{name}``", type_ if nullable else f"{type_}, never null", meaning)
        for name, type_, nullable, meaning in COLUMNS
    ]
    assert rows_after("Columns") == expected


def test_the_page_has_every_kind_with_the_state_after_it():
    expected = [(f"``{kind}``", str(STATES.get(kind, "unchanged"))) for kind in EventKind]
    assert [row[:2] for row in rows_after("Kinds")] == expected


def test_the_kinds_that_end_a_job_lead_to_the_states_that_end_it():
    assert {STATES[kind] for kind in ENDS} == TERMINAL
    assert {kind for kind, state in STATES.items() if state in TERMINAL} == ENDS


def test_a_file_name_is_read_back():
    name = FileName("0f3c", 1, 65536)
    assert str(name) == "0f3c-1-65536.parquet"
    assert FileName.parse(str(name)) == name


@pytest.mark.parametrize(
    "name",
    ["_0f3c-1-2.parquet", ".0f3c-1-2.parquet", "0f3c-1-2.parquet.tmp", "0f3c-2-1.parquet",
     "0f3c-1.parquet", "-1-2.parquet", "part-0000.parquet", "0f3c-1-2.parquet\n"],
)  # fmt: skip
def test_other_files_are_not_of_a_journal(name):
    assert FileName.parse(name) is None


def test_the_last_microsecond_of_an_hour_belongs_to_it():
    hour = 1_800_000_000_000_000 // 3_600_000_000 * 3_600_000_000
    assert partition(hour) == "date=2027-01-15/hour=08"
    assert partition(hour + 3_599_999_999) == "date=2027-01-15/hour=08"
    assert partition(hour + 3_600_000_000) == "date=2027-01-15/hour=09"
