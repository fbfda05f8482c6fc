"""Listings of a real broker while it commits: pages, groups, counts, a retry of all that match."""

from __future__ import annotations

from benchmarks.figures import Figures
from benchmarks.listings import GOALS, listings


def test_listings_are_answered_beside_the_commits() -> None:
    """The row of the benchmark with few jobs: each figure is there, and no page takes a second."""
    figures = Figures("listings")
    figures.sizes = (6000, 200)
    listings(figures)
    rows = {row["name"]: row["median"] for row in figures.rows()}
    assert set(rows) == set(GOALS["listings"])
    assert all(value < 1000 for name, value in rows.items() if name.endswith("_ms"))
    assert rows["retried_per_second"] > 0
