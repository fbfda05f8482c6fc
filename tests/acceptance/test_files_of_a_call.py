"""The program that says which files a call runs through says it for all four processes."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.support.system import DEADLINE


def test_the_files_of_each_process_are_printed_and_counted() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.files_of_a_call"],
        capture_output=True, text=True, timeout=DEADLINE, check=True,
    )  # fmt: skip
    files: dict[str, set[str]] = {}
    said: dict[str, int] = {}
    role = ""
    for line in run.stdout.splitlines():
        if heading := re.match(r"(\w+): (\d+)", line):
            role = heading[1]
            said[role], files[role] = int(heading[2]), set()
        else:
            files[role].add(line.strip())
    every = {file for found in files.values() for file in found}
    files["all"] = every
    assert {role: len(found) for role, found in files.items()} == said
    # One that cannot be left out of each.
    assert "task/task.py" in files["client"]
    assert "broker/core.py" in files["broker"]
    assert "worker/session.py" in files["manager"]
    assert "execution/executor.py" in files["child"]
