"""Rates and bars as text, and the widths of columns."""

from __future__ import annotations

from eventmq_contrib.top.views import bars, fitting, rate


def test_rates_and_bars() -> None:
    assert ["-", "0/s", "0.5/s", "12,346/s"] == [rate(n) for n in (None, 0.0, 0.5, 12345.6)]
    assert "▁▄█" == bars([9.0, 0.0, 2.0, 5.0], 3)
    assert "▁▁" == bars([0.0, 0.0], 30)


def test_columns_give_way_before_they_are_cut_and_ids_are_never_cut() -> None:
    rows = [{"id": "12345678", "task": "t" * 30, "worker": "w" * 20, "error": "e" * 50}]
    assert {"id": 8, "task": 30, "worker": 20, "error": 50} == fitting([*rows[0]], rows, 116, ())
    assert {"id": 8, "task": 20, "worker": 20, "error": 20} == fitting([*rows[0]], rows, 76, ())
    assert {"id": 8, "task": 12, "error": 12} == fitting([*rows[0]], rows, 38, ("worker",))
