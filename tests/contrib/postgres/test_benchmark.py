"""A short run of the row of ``benchmarks`` about the store in PostgreSQL."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING

import pytest

from benchmarks import postgres as row
from benchmarks.figures import Figures
from benchmarks.peers.servers import Server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support import postgres as support

_SIZES = (200, 300, 1)


def test_the_row_measures_each_part_and_loses_nothing(
    postgres: support.Server, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def running_server(_: Path) -> Iterator[Server]:
        yield Server(database_url, postgres.pid)

    monkeypatch.setattr(row, "postgresql", running_server)
    figures = Figures("postgres", row.GOALS["postgres"], sizes=_SIZES)
    row.postgres(figures)
    assert set(row.GOALS["postgres"]) <= set(figures.series)
    for name, [value] in figures.series.items():
        assert math.isfinite(value), name
        assert value >= 0.0, name
    [cpu] = figures.series["cpu_us"]
    parts = ("client", "broker", "server", "worker")
    assert cpu > 0.0
    assert cpu == pytest.approx(sum(figures.series[f"{part}_cpu_us"][0] for part in parts))
    assert figures.series["recovery_read_s"] <= figures.series["recovery_s"]
    assert figures.series["recovery_s"] <= figures.series["killed_to_receipt_s"]
