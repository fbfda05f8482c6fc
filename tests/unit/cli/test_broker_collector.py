"""The cyclic garbage collector of a broker: rare from before it reads its store."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import gc, sys
from eventmq.broker.runner import BrokerRunner
from eventmq.cli.program import program

def bind(self):
    sys.exit(0 if gc.get_threshold()[0] >= 100_000 else "it collects while the store is read")

BrokerRunner.bind = bind
program(["broker", "--bind", "tcp://127.0.0.1:0"])
"""


def test_the_collector_is_calm_while_the_store_is_read(tmp_path):
    """The objects of a hundred thousand subqueues would be scanned dozens of times."""
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (0, "") == (done.returncode, done.stderr)
