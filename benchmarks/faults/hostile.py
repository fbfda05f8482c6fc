"""Runs the hostile tests of broker and gateways with more messages than the test suite does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["FILES", "send_malformed"]

ROOT = Path(__file__).resolve().parents[2]

#: Test files, and the number of ports that each sends malformed messages to.
FILES = {
    "tests/integration/test_emqp_hostile.py": 4,
    "tests/contrib/gateways/majordomo/test_gateway.py": 2,
    "tests/contrib/gateways/mc0/test_gateway.py": 1,
    "tests/contrib/gateways/emp/test_server.py": 1,
}

#: Tests whose number of messages can be set: see ``tests/support/fuzz.py``.
_THESE = "by_the_thousand or thousands_of_malformed"

#: Timeout of one of them, in seconds.
_PATIENCE = 1800


def send_malformed(file: str, messages: int) -> tuple[int, int, float]:
    """Run the tests of a file with a number of messages for each port.

    Returns:
        The numbers of passed and failed tests, and the seconds.
    """
    command = [
        sys.executable, "-m", "pytest", "-q", f"--timeout={_PATIENCE}",
        "-k", _THESE, file,
    ]  # fmt: skip
    start = time.monotonic()
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "EVENTMQ_TEST_FUZZ": str(messages)},
    )  # fmt: skip
    took = time.monotonic() - start
    passed, failed = (
        int(match[1]) if (match := re.search(rf"(\d+) {word}", done.stdout)) else 0
        for word in ("passed", "(?:failed|error)")
    )
    if failed or not passed:
        print(done.stdout[-4000:], flush=True)
    return passed, failed or int(not passed), took
