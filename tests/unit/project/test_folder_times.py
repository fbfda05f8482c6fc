"""How long the tests of a folder took is a line of information, whatever the machine."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).parents[2] / "conftest.py"


def test_a_folder_that_takes_longer_than_its_aim_fails_nothing(tmp_path: Path) -> None:
    """The exit code says whether tests passed, and nothing about the machine."""
    folder = tmp_path / "tests" / "unit"
    folder.mkdir(parents=True)
    source, aims = re.subn(r"(\(\"unit\", .*\)): 180\.0", r"\1: 0.0", CONFTEST.read_text("utf-8"))
    assert aims == 1
    (tmp_path / "tests" / "conftest.py").write_text(source, "utf-8")
    (folder / "test_slow.py").write_text("def test_slow():\n    sum(range(100_000))\n", "utf-8")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    line = r"^tests/unit,properties,contracts: \d+ s \(aim: 0 s\)$"
    assert re.search(line, run.stdout, re.MULTILINE)
