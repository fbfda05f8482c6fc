"""The queue store never reads the clock of the database, which may be set at any time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import eventmq.engine
import eventmq_contrib.postgres
from eventmq_contrib.postgres.upkeep import GAUGES

_CLOCK = re.compile(
    r"\b(now\(\)|(clock|statement|transaction)_timestamp|current_(timestamp|date|time)\b"
    r"|localtime|timeofday)",
    re.IGNORECASE,
)

FILES = (
    "ownership.py", "pipeline.py", "records.py", "rowstore.py", "schedules.py", "store.py",
    "tables.py", "upkeep.py", "versions.py",
)  # fmt: skip


def _sql(path: Path) -> str:
    """Return the source of a module without its calls of Python's clocks."""
    return re.sub(r"\w*clock\.now\(\)", "", path.read_text()).replace(GAUGES, "")


@pytest.mark.parametrize("name", FILES)
def test_no_statement_of_the_store_reads_the_time(name):
    assert _CLOCK.search(_sql(Path(eventmq_contrib.postgres.__file__).with_name(name))) is None


def test_no_statement_of_the_engine_reads_the_time():
    modules = list(Path(eventmq.engine.__file__).parent.glob("*.py"))
    assert modules
    assert [path.name for path in modules if _CLOCK.search(_sql(path))] == []
