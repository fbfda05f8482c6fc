"""Celery's own integration tests on EventMQ and on Redis, and how they differ.

``python -m tests.contrib.kombu.foreign FOLDER [eventmq|redis ...]`` takes the unpacked source
distribution of Celery, which has its tests, and starts a broker and a ``redis-server``, where the
tests record what their tasks did. The result backend has the alias ``rediseventmq://``, since some
tests are skipped unless the name begins with ``redis``. A failed test is not repeated. It needs
what Celery's ``requirements/test.txt`` names, of which pytest, pytest-order, pytest-subtests,
pytest-timeout and pydantic are enough.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).parents[3]

#: Makes the alias known, in the process of the tests and, by its import, in the workers.
PLUGIN = """
from celery.app.backends import BACKEND_ALIASES
import eventmq_contrib.kombu

BACKEND_ALIASES["rediseventmq"] = "eventmq_contrib.kombu.backend:EventMQBackend"
"""

#: Seconds that one run may take.
LIMIT = 3000


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def start(stack: ExitStack, *command: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    return process


def run(kind: str, source: Path, folder: Path, *arguments: str) -> dict[str, str]:
    """Run the tests on ``eventmq`` or ``redis``; return the outcome of each test."""
    port, report = str(free_port()), folder / f"{kind}.xml"
    (folder / "alias_plugin.py").write_text(PLUGIN)
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
        options = ["-q", "-p", "celery.contrib.pytest", "-p", "alias_plugin"]
        options += ["-p", "no:cacheprovider", "-p", "no:rerunfailures"]
        options += ["--continue-on-collection-errors"]  # of backends whose libraries are missing
        command = [sys.executable, "-m", "pytest", *options, f"--junitxml={report}"]
        subprocess.run(
            [*command, *(arguments or ("t/integration",))],
            cwd=source, env=environment, check=False, timeout=LIMIT,
        )  # fmt: skip
    return outcomes(report)


def outcomes(report: Path) -> dict[str, str]:
    found = {}
    for case in ET.parse(report).iter("testcase"):
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        name = f"{case.get('classname')}::{case.get('name')}"
        found[name] = min(kinds, default="passed")
    return found


def main(source: str, *kinds: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        found = {}
        for kind in kinds or ("redis", "eventmq"):
            found[kind] = run(kind, Path(source).resolve(), Path(name))
    for kind, cases in found.items():
        counts = {text: list(cases.values()).count(text) for text in sorted({*cases.values()})}
        print(kind, counts)
    if len(found) > 1:
        for case in sorted(set().union(*found.values())):
            differing = [cases.get(case, "not run") for cases in found.values()]
            if len(set(differing)) > 1:
                print(case, *differing)


if __name__ == "__main__":
    main(*sys.argv[1:])
