"""The program that lists the files of a call does so for all four processes."""

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
    documented: dict[str, int] = {}
    role = ""
    for line in run.stdout.splitlines():
        if heading := re.match(r"(\w+): (\d+)", line):
            role = heading[1]
            documented[role], files[role] = int(heading[2]), set()
        else:
            files[role].add(line.strip())
    every = {file for names in files.values() for file in names}
    files["all"] = every
    assert {role: len(names) for role, names in files.items()} == documented
    # One that cannot be left out of each.
    assert "task/task.py" in files["client"]
    assert "broker/core.py" in files["broker"]
    assert "worker/session.py" in files["manager"]
    assert "execution/executor.py" in files["child"]
