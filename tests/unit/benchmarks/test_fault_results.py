"""What rows of the faults came to: runs add up, and become a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.faults.results import Row, keep, read, summed, table
from tests.support.executors import Comparison

if TYPE_CHECKING:
    from pathlib import Path

ABOUT = {"seconds": 2.5, "commit": "abc1234", "machine": {"cores": 2}}


def test_runs_of_a_row_add_up(tmp_path: Path) -> None:
    """What is named as the worst has the highest of all, the rest the sum."""
    path = tmp_path / "results.json"
    keep(path, "kills", Row(1000, 4, 0, 3, {"of them": {"broker": 4}, "s at worst": 1.5}), ABOUT)
    keep(path, "kills", Row(500, 2, 0, 1, {"of them": {"child": 2}, "s at worst": 0.5}), ABOUT)
    row = summed(read(path))
    more = {"of them": {"broker": 4, "child": 2}, "s at worst": 1.5}
    assert row == Row(1500, 6, 0, 4, more)
    assert row.bound == 0.5


def test_rates_do_not_add_up(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    for rate in (11.5, 10.4):
        keep(path, "soak", Row(1000, 0, 0, 0, {"rounds a second": rate}), ABOUT)
    assert summed(read(path)).more == {"rounds a second": "11.5; 10.4"}


def test_where_something_was_lost_there_is_no_bound() -> None:
    assert Row(1000, 4, 1, 3, {}).bound is None
    assert Row(1000, 0, 0, 3, {}).bound is None


def test_the_table_has_a_line_for_each_row(tmp_path: Path) -> None:
    """With all commits that were tried, and what was not counted said so."""
    path = tmp_path / "results.json"
    keep(path, "soak", Row(90_000, 0, 0, 0, {"fsck": "in order"}), ABOUT)
    keep(path, "hostile", Row(0, 800, 0, None, {"ports": 8}), ABOUT)
    keep(path, "hostile", Row(0, 800, 0, None, {"ports": 8}), ABOUT | {"commit": "def5678"})
    lines = table(read(path)).splitlines()
    assert [line.strip() for line in lines if "``" in line] == ["* - ``soak``", "* - ``hostile``"]
    assert "     - abc1234, def5678" in lines
    assert "     - not counted" in lines
    assert "     - fsck: in order" in lines
    assert "     - 1,600: ports 16" in lines


def test_what_many_runs_say_is_cut_in_the_table(tmp_path: Path) -> None:
    """The file has all of it."""
    path = tmp_path / "results.json"
    for first in range(5):
        keep(path, "simulation", Row(10, 2, 0, None, {"seeds": f"from {first}"}), ABOUT)
    assert "     - 10: seeds: from 0; from 1; from 2 and 2 more runs" in table(read(path))
    assert summed(read(path)).more == {"seeds": "from 0; from 1; from 2; from 3; from 4"}


def test_a_killed_executor_is_charged_for_once() -> None:
    """Neither twice, nor never, nor to another job."""
    fine = Comparison(lost=[], again=[], unpaid=[], deaths=[0, 5])
    assert fine.wrong([0, 5]) == set()
    assert fine._replace(deaths=[0, 5, 5]).wrong([0, 5]) == {5}
    assert fine.wrong([0, 5, 5]) == {5}
    assert fine.wrong([0, 7]) == {5, 7}
    assert fine._replace(lost=[1], unpaid=[2]).wrong([0, 5]) == {1, 2}
