"""Celery's own integration tests on EventMQ and on Redis, and how they differ.

``python -m tests.contrib.kombu.foreign FOLDER [--on eventmq|redis] [--reports FOLDER] [TEST ...]``
takes the unpacked source distribution of Celery, which has its tests, and starts a broker and a
``redis-server``, where the tests record what their tasks did. The result backend has the alias
``rediseventmq://``, since some tests are skipped unless the name begins with ``redis``. A failed
test is not repeated, and one that takes longer than `LIMIT` has failed. It needs what Celery's
``requirements/test.txt`` names, of which pytest, pytest-order, pytest-subtests, pytest-timeout and
pydantic are enough. Reports of earlier runs in the folder count for tests that were not run now.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).parents[3]

#: Seconds that one test may take; Celery's own limit is 300.
LIMIT = 90

#: Makes the schemes known in the process of the tests and in the commands that it starts.
SITE = """
from celery.app.backends import BACKEND_ALIASES
import eventmq_contrib.kombu

BACKEND_ALIASES["rediseventmq"] = "eventmq_contrib.kombu.backend:EventMQBackend"
"""

PLUGIN = f"""
import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.timeout({LIMIT}), append=False)
"""

#: Part of a name -> why tests that pass on Redis fail on EventMQ.
REASONS = {
    "test_Inspect::test_scheduled": "the broker holds a task until its eta, so no worker lists it",
    "test_chord::test_chord_on_error": "it reads the parts of a chord from Redis",
    "test_error_propagates_from_chord": "Celery expects that failure of Redis, by the scheme",
    "test_redis_backend": "it uses the Redis client of the backend",
    "cancels_subscription": "it counts the channels of Redis",
    "test_connection_recovery": "it drains BRPOP of Redis; test_transport has a silent broker",
    "test_replaced_task_nesting_level": "now and then: it forgets what was received before delay()",
}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def start(stack: ExitStack, *command: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    return process


def run(kind: str, source: Path, folder: Path, report: Path, tests: list[str]) -> None:
    """Run tests on ``eventmq`` or ``redis``."""
    port = str(free_port())
    (folder / "sitecustomize.py").write_text(SITE)
    (folder / "limit_plugin.py").write_text(PLUGIN)
    with ExitStack() as stack:
        redis = ["redis-server", "--port", port, "--save", "", "--dir", str(folder)]
        start(stack, *redis, "--logfile", str(folder / f"{kind}-redis.log"))
        urls = [f"redis://127.0.0.1:{port}/0"] * 2
        if kind == "eventmq":
            data = str(folder / "data")
            bind = ["--bind", "tcp://127.0.0.1:0", "--data-dir", data]
            broker = start(stack, sys.executable, "-m", "eventmq", "broker", *bind)
            assert broker.stdout is not None
            address = broker.stdout.readline().split("tcp://")[1].split()[0]
            urls = [f"eventmq://{address}", f"rediseventmq://{address}"]
        environment = {
            **os.environ,
            "TEST_BROKER": urls[0], "TEST_BACKEND": urls[1],
            "REDIS_HOST": "127.0.0.1", "REDIS_PORT": port,
            "PYTHONPATH": os.pathsep.join([str(source), str(folder), str(ROOT)]),
        }  # fmt: skip
        options = ["-q", "-p", "celery.contrib.pytest", "-p", "limit_plugin"]
        options += ["-p", "no:cacheprovider", "-p", "no:rerunfailures"]
        options += ["--continue-on-collection-errors"]  # of backends whose libraries are missing
        command = [sys.executable, "-m", "pytest", *options, f"--junitxml={report}"]
        subprocess.run([*command, *tests], cwd=source, env=environment, check=False)


def outcomes(report: Path) -> dict[str, str]:
    """Return test -> passed, skipped, failure or error."""
    found = {}
    for case in ET.parse(report).iter("testcase"):
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        name = f"{case.get('classname')}::{case.get('name')}"
        found[name] = min(kinds, default="passed")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.contrib.kombu.foreign")
    parser.add_argument("source", type=Path)
    parser.add_argument("--on", choices=("redis", "eventmq"))
    parser.add_argument("--reports", type=Path)
    parser.add_argument("tests", nargs="*", default=["t/integration"])
    arguments = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as name:
        found: dict[str, dict[str, str]] = {}
        for kind in ("redis", "eventmq"):
            folder = Path(name, kind)
            folder.mkdir()
            reports = (arguments.reports or folder).resolve()
            if arguments.on in {None, kind}:
                report = reports / f"{kind}-{time.strftime('%H%M%S')}.xml"
                run(kind, arguments.source.resolve(), folder, report, arguments.tests)
            cases = found[kind] = {}
            for each in sorted(reports.glob(f"{kind}-*.xml")):
                cases.update(outcomes(each))
            print(kind, dict(Counter(cases.values())))
    for case in sorted({*found["redis"], *found["eventmq"]}):
        differing = [cases.get(case, "not run") for cases in found.values()]
        if len(set(differing)) > 1:
            print(case, *differing, *(REASONS[part] for part in REASONS if part in case))


if __name__ == "__main__":
    main()
