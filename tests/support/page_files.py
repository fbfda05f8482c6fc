"""The files in a page of the documentation: ``.. file: NAME`` and the block of code below it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FILE = re.compile(
    r"^\.\. file: (?P<name>\S+)\n\n\.\. code-block:: \S+\n\n(?P<code>(?:(?: {4}.*)?\n)+)",
    re.MULTILINE,
)

#: Timeout of the tests of a page, in seconds.
TIMEOUT = 60.0


def write_files(page: str, folder: Path) -> list[str]:
    """Write the files of a page below ``docs`` into a folder; return their names."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    names = []
    for match in _FILE.finditer(text):
        code = re.sub(r"^ {4}", "", match["code"], flags=re.MULTILINE)
        (folder / match["name"]).write_text(code, encoding="utf-8")
        names.append(match["name"])
    return names


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of a folder in a process of their own, like a reader of the page."""
    command = [sys.executable, "-m", "pytest", "-p", "eventmq.testing.plugin", "-q", "-ra"]
    return subprocess.run(
        [*command, "-W", "error", "-p", "no:cacheprovider", *arguments],
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
