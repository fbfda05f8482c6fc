"""A test whose service is missing is skipped, and fails where the service is required."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[2] / "conftest.py"

SKIPPED = """
import pytest

@pytest.fixture
def server():
    pytest.skip("needs queue-server: it is not installed")

def test_in_a_fixture(server):
    pass

def test_in_itself():
    pytest.skip("needs queue-server: it is not installed")

def test_of_another_system():
    pytest.skip("on Linux only")
"""


@pytest.mark.parametrize(
    ("required", "counts"),
    [
        ("", "3 skipped"),
        ("other,more", "3 skipped"),
        ("all", "1 failed, 1 skipped, 1 error"),
        ("other,queue-server", "1 failed, 1 skipped, 1 error"),
    ],
)
def test_a_skip_for_a_service_that_is_required_is_a_failure(
    tmp_path: Path, required: str, counts: str
) -> None:
    """A skip for any other reason stays one."""
    shutil.copy(CONFTEST, tmp_path)
    (tmp_path / "test_it.py").write_text(SKIPPED, "utf-8")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "EVENTMQ_TEST_REQUIRE": required},
    )  # fmt: skip
    assert counts in run.stdout, run.stdout + run.stderr
    assert ("required here: Skipped: needs queue-server: it is not" in run.stdout) is (
        "failed" in counts
    )
