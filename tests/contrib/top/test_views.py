"""Rates as bars, and texts of cells."""

from __future__ import annotations

from eventmq_contrib.top.views import bars, cell


def test_rates_as_bars() -> None:
    assert "▁▄█" == bars([9.0, 0.0, 2.0, 5.0], 3)
    assert "▁▁" == bars([0.0, 0.0], 30)


def test_cells_are_short_and_safe() -> None:
    assert ["-", "12345678", "x\\x1b"] == [
        cell("task", None), cell("id", "0" * 24 + "12345678"), cell("task", "x\x1b")
    ]  # fmt: skip
    assert 300 == len(cell("error", "e" * 10_000))
