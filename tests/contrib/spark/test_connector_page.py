"""The code of the page about the connector runs, block after block, against a broker."""

from __future__ import annotations

import re
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tests.contrib.spark.histories import story, write_journal
from tests.support.page_files import ROOT
from tests.support.system import System

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

_BLOCK = re.compile(r"^\.\. code-block:: python\n\n((?:(?: {3}.*)?\n)+)", re.MULTILINE)


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    system = System(tmp_path)
    system.broker()
    yield system
    system.stop()


def test_the_page_about_the_connector_runs(spark: SparkSession, system: System) -> None:
    """In order, in one session; the jobs that it submits are there."""
    rows = story(Random(1), "b", jobs=60, damage=False).rows
    write_journal(system.folder / "journal", rows)
    text = (ROOT / "docs" / "howto" / "analyse" / "spark-connector.rst").read_text(encoding="utf-8")
    blocks = _BLOCK.findall(text)
    assert len(blocks) == 7
    names: dict[str, Any] = {}
    for block in blocks:
        code = re.sub(r"^ {3}", "", block, flags=re.MULTILINE)
        code = code.replace("tcp://127.0.0.1:47291", system.address)
        # The folder in which the session of the tests was started is another one.
        for name in ("journal", "apologies"):
            code = re.sub(rf'(load\(|", )"{name}"', rf'\1"{system.folder / name}"', code)
        exec(compile(code, "spark-connector.rst", "exec"), names)
    app = system.app()
    tasks = [row["task"] for row in app.ask("jobs")["jobs"]]
    assert tasks.count("shop.confirm") == tasks.count("shop.reindex") == 2
    expired = sum(row["kind"] == "expired" for row in rows)
    assert expired > 0
    assert tasks.count("shop.apologise") == expired
    assert names["failures"].count() > 0
