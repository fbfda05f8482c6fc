"""The readers with Spark Connect: a client without a JVM of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from random import Random
from typing import TYPE_CHECKING

from tests.contrib.spark.conftest import TIMEOUT
from tests.contrib.spark.histories import story, write_journal
from tests.support.page_files import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def test_the_readers_work_with_spark_connect(connect: str, tmp_path: Path) -> None:
    """They all find each event once.

    The client is a process of its own, since one has either a session of this kind or of the other.
    """
    rows = story(Random(1), "b").rows
    write_journal(tmp_path / "journal", rows, sealed=True)
    done = subprocess.run(
        [sys.executable, "-m", "tests.contrib.spark.connect_program",
         connect, str(tmp_path / "journal")],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=TIMEOUT - 20, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    n = len({(row["broker_id"], row["seq"]) for row in rows})
    assert result.pop("kind") == "pyspark.sql.connect.session"
    assert result == {"source": n, "journal": n, "stream": n, "address": n, "proven": True}
