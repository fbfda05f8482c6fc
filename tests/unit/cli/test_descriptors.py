"""A process that serves many asks for as many descriptors as it is allowed."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Sets the limits of the process, then asks.
PROGRAM = """
import logging, resource, sys
from eventmq.cli.broker import raise_descriptor_limit
logging.basicConfig(format="%(message)s")
soft, hard, peers = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(raise_descriptor_limit(peers), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def provided(soft: int, hard: int, peers: int) -> tuple[list[int], str]:
    """Return the result and the limits afterwards, and the log."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(soft), str(hard), str(peers)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [int(word) for word in done.stdout.split()], done.stderr


@pytest.mark.parametrize(
    ("soft", "hard", "peers", "expected"),
    [(64, 500, 300, 400), (450, 500, 300, 450), (64, 500, 1000, 500)],
)
def test_as_many_descriptors_as_peers_need_and_the_system_allows(
    soft: int, hard: int, peers: int, expected: int
) -> None:
    """Never fewer than there were, never more than allowed; too few are warned of."""
    limit, log = provided(soft, hard, peers)
    assert [expected, expected, hard] == limit
    assert ("only 500 descriptors are allowed, but 1000 peers" in log) == (expected < peers)
