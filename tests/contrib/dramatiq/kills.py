"""Kills Dramatiq's workers and the broker while messages are processed; nothing may be lost.

A short run is a test. A longer one::

    python -m tests.contrib.dramatiq.kills --messages 5000 --kills 20
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import dramatiq

from eventmq_contrib.dramatiq import EventMQBroker
from tests.support.system import System, until

#: A worker's module: its actor appends each number to RECORD, and fails once for every tenth.
ACTORS = """
import os, time
import dramatiq
from eventmq_contrib.dramatiq import EventMQBroker

dramatiq.set_broker(EventMQBroker(url=os.environ["BROKER"]))

@dramatiq.actor(min_backoff=10, max_backoff=50)
def record(number):
    time.sleep(0.002)
    retries = dramatiq.middleware.CurrentMessage.get_current_message().options.get("retries", 0)
    if number % 10 == 0 and not retries:
        raise ValueError(number)
    with open(os.environ["RECORD"], "a") as file:
        file.write(f"{number}\\n")

dramatiq.get_broker().add_middleware(dramatiq.middleware.CurrentMessage())
"""


class Outcome(NamedTuple):
    """What a run found: numbers that were never recorded, and how many were more than once."""

    lost: list[int]
    repeated: int
    failed: int


def start_worker(system: System) -> subprocess.Popen[bytes]:
    """Start ``dramatiq`` with two processes, in a process group of its own."""
    environment = {**os.environ, "BROKER": system.address, "RECORD": str(system.record)}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(system.folder), str(Path(__file__).parents[3])]
    )
    command = [sys.executable, "-m", "dramatiq", "dramatiq_actors", "-p", "2", "-t", "4"]
    with (system.folder / "dramatiq.log").open("ab") as log:
        return subprocess.Popen(
            command, cwd=system.folder, env=environment, stderr=log, start_new_session=True
        )


def kill_group(worker: subprocess.Popen[bytes]) -> None:
    """Kill a worker with its processes by SIGKILL, and reap it."""
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


def recorded(system: System) -> list[int]:
    """Return the numbers that were processed to their end, in order."""
    return (
        [int(line) for line in system.record.read_text().split()] if system.record.exists() else []
    )


def run(folder: Path, *, messages: int, kills: int, deadline: float) -> Outcome:
    """Send messages, kill a worker or the broker now and then, and wait until all are processed."""
    (folder / "dramatiq_actors.py").write_text(ACTORS)
    system = System(folder)
    process = system.broker()
    broker = EventMQBroker(url=system.address)
    broker.declare_queue("default")
    worker = start_worker(system)
    try:
        for number in range(messages):
            broker.enqueue(dramatiq.Message("default", "record", (number,), {}, {}))
        for kill in range(kills):
            seen = len(set(recorded(system)))
            target = min(messages, seen + messages // (2 * kills) + 1)
            until(lambda: len(set(recorded(system))) >= target, "more messages", deadline)  # noqa: B023
            if kill % 2:
                process.kill9()
                process = system.broker()
            else:
                kill_group(worker)
                worker = start_worker(system)
        until(lambda: len(set(recorded(system))) >= messages, "all messages", deadline)
        broker.join("default", timeout=int(deadline * 1000))
        failed = broker.app.ask("jobs", {"state": "failed"})["jobs"]
        numbers = recorded(system)
        lost = sorted(set(range(messages)) - set(numbers))
        return Outcome(lost, len(numbers) - len(set(numbers)), len(failed))
    finally:
        kill_group(worker)
        broker.close()
        system.stop()


def main() -> int:
    """Run it, print what it found, and return 1 if a message was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=5000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--deadline", type=float, default=300.0)
    options = vars(parser.parse_args())
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        outcome = run(Path(folder), **options)
    sys.stdout.write(f"{options} {outcome} in {time.monotonic() - began:.0f} s\n")
    return bool(outcome.lost or outcome.failed)


if __name__ == "__main__":
    sys.exit(main())
