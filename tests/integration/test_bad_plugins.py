"""A faulty plugin ends a program at its start, with one sentence that tells what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

OFF = "switch it off with -p no:wanting or EVENTMQ_DISABLED_PLUGINS=wanting"

WHO = "plugin 'wanting' of the distribution 'wanting-orders'"

GOOD = """
from dataclasses import dataclass
from eventmq.sdk import factory, hookimpl, option

@dataclass
class Order:
    step: float = option(1.0, gt=0)

    def choose(self, queues):
        return queues[0][1]

    def charge(self, queue, weight, jobs):
        pass

@hookimpl
def eventmq_queue_orders():
    return {"wanting": factory(Order)}
"""

ROUTING = """
from eventmq.sdk import factory, hookimpl

class Strategy:
    def choose(self, queue, workers, n):
        return []

@hookimpl
def eventmq_routing_strategies():
    return {"wanting": factory(Strategy)}
"""


@pytest.fixture
def start(tmp_path):
    """Call it with the plugin's code and settings: returns exit code, stdout and stderr lines."""

    def start(code: str, settings: str) -> tuple[int, str, list[str]]:
        site = tmp_path / "site"
        info = site / "wanting_orders-1.0.dist-info"
        info.mkdir(parents=True)
        (site / "wanting.py").write_text(code, encoding="utf-8")
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: wanting-orders\nVersion: 1.0\n"
            "Provides-Extra: lib\nRequires-Dist: no-such-library; extra == 'lib'\n"
        )
        (info / "entry_points.txt").write_text("[eventmq]\nwanting = wanting\n")
        (tmp_path / "eventmq.toml").write_text(settings, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "eventmq", "broker", "--bind", "tcp://127.0.0.1:0"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{site}:{ROOT}"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr.splitlines()

    return start


TAKEN = GOOD.replace('"wanting":', '"strict":')

MISSPELT = GOOD.replace("eventmq_queue_orders", "eventmq_queue_order")

LAZY = GOOD.replace("factory(Order)", "lambda context: __import__('no_such_library')")

CHOSEN = 'queue_order = "wanting"'

OPTIONS = f"{CHOSEN}\n[eventmq.plugins.wanting]\n"

ORDER = f"queue order 'wanting' of {WHO}"

WRONG_VERSION = f"cannot import name 'loafs' from 'json' ({json.__file__})"

NONE = "No module named 'no_such_library'"

BAD = {
    "import": (
        "import no_such_library", "", f"{WHO} cannot be imported: ModuleNotFoundError: {NONE}",
    ),
    "library": (
        LAZY, CHOSEN,
        f"{ORDER} needs the library 'no_such_library': pip install 'wanting-orders[lib]' ({NONE})",
    ),
    "library of another version": (
        LAZY.replace("__import__('no_such_library')", "exec('from json import loafs')"), CHOSEN,
        f"{ORDER} cannot be made: ImportError: {WRONG_VERSION}",
    ),
    "exit of the factory": (
        LAZY.replace("__import__('no_such_library')", "exit('no licence')"), CHOSEN,
        f"{ORDER} cannot be made: SystemExit: no licence",
    ),
    "exit of a hook": (
        f"{GOOD}\n@hookimpl\ndef eventmq_configure(app):\n    exit('no licence')\n", "",
        f"{WHO} failed in eventmq_configure: SystemExit: no licence",
    ),
    "unknown option": (
        GOOD, f"{OPTIONS}stp = 2", f"{ORDER}: 'wanting' has no option 'stp'; did you mean 'step'?",
    ),
    "wrong option": (
        GOOD, f"{OPTIONS}step = 0",
        f"{ORDER}: option 'step' of 'wanting' must be a number above 0, not 0",
    ),
    "missing method": (
        GOOD.replace("def charge", "def change"), CHOSEN,
        f"{ORDER} has no 'charge', which the contract QueueOrder asks for",
    ),
    "undeclared capability": (
        ROUTING, 'routing_strategy = "wanting"',
        (
            f"routing strategy 'wanting' of {WHO} has no 'by_key', which the contract "
            "RoutingStrategy asks for"
        ),
    ),
    "name taken": (
        TAKEN, "",
        f"{WHO}: queue order 'strict' is provided by the built-in plugin 'routing.strict' too",
    ),
    "unknown hook": (
        MISSPELT, "",
        (
            f"{WHO} implements 'eventmq_queue_order', which is not a hook; did you mean "
            "'eventmq_queue_orders'?"
        ),
    ),
}  # fmt: skip

OF_OPTIONS = ("unknown option", "wrong option")


@pytest.mark.parametrize("name", BAD)
def test_one_sentence_names_plugin_distribution_problem_and_remedy(start, name):
    """Switching it off is no remedy for a wrong option: its name would be unknown then."""
    code, settings, expected = BAD[name]
    exit_code, stdout, lines = start(code, settings)
    remedy = "see [eventmq.plugins.wanting] of eventmq.toml" if name in OF_OPTIONS else OFF
    assert (exit_code, stdout, lines) == (1, "", [f"error: {expected}; {remedy}"])
