"""Runs the programs of the tests like a user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*arguments: str, module: str = "tests.simulation") -> subprocess.CompletedProcess[str]:
    """Run a module like a user, with the same hashes of names in each run."""
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=290
    )
