"""Kills workers and brokers of a Celery application, and counts what is lost.

``python -m tests.contrib.kombu.kills [eventmq] [redis] [redis-visibility-10] [--kills 10]``: a
client sends messages while a worker, with its processes, or the broker is killed by SIGKILL in
turn, and started again. The application uses ``acks_late``. Redis has ``appendfsync always``;
the number is its visibility timeout, by default that of kombu, one hour. A message whose
``delay()`` returned and that has not run `PATIENCE` seconds after the last one that ran is lost.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from threading import Event, Thread

from tests.support.system import until

ROOT = Path(__file__).parents[3]

#: Seconds between two kills, and without a run until messages count as lost.
INTERVAL, PATIENCE = 2.0, 25.0

APP = """
import os, time
from celery import Celery
import eventmq_contrib.kombu

app = Celery("killed", broker=os.environ["CELERY_URL"])
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, task_ignore_result=True,
                broker_connection_retry_on_startup=True, worker_prefetch_multiplier=4)
if timeout := int(os.environ["VISIBILITY"]):
    app.conf.broker_transport_options = {"visibility_timeout": timeout}


@app.task
def note(number):
    time.sleep(0.01)
    with open(os.environ["RECORD"], "a") as file:
        file.write(f"{number}\\n")
"""


class Processes:
    """Broker and worker in a folder; each can be killed and started again."""

    def __init__(self, kind: str, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.kind, _, visibility = kind.partition("-visibility-")
        self.folder = folder
        (folder / "killed.py").write_text(APP)
        slash = "/0" if self.kind == "redis" else ""
        self.environment = {
            "CELERY_URL": f"{self.kind}://127.0.0.1:{self.port}{slash}",
            "VISIBILITY": visibility or "0", "RECORD": str(folder / "record"),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]),
        }  # fmt: skip
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("broker", "worker"):
            self.start(name)

    def start(self, name: str) -> None:
        commands = {
            "eventmq": [sys.executable, "-m", "eventmq", "broker", "--bind",
                        f"tcp://127.0.0.1:{self.port}", "--data-dir", str(self.folder / "data")],
            "redis": ["redis-server", "--port", str(self.port), "--dir", str(self.folder), "--save",
                      "", "--appendonly", "yes", "--appendfsync", "always"],
            "worker": [sys.executable, "-m", "celery", "-A", "killed", "worker", "-c", "2",
                       "-l", "WARNING"],
        }  # fmt: skip
        command = commands[self.kind if name == "broker" else name]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                command, cwd=self.folder, env={**os.environ, **self.environment}, stdout=log,
                stderr=log, start_new_session=True,
            )  # fmt: skip

    def kill(self, name: str) -> None:
        process = self.running[name]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def measure(kind: str, kills: int, folder: Path) -> dict[str, int]:
    """Return how many messages were sent and lost, and how many ran more than once."""
    processes = Processes(kind, folder)
    os.environ.update(processes.environment)
    sys.path.insert(0, str(folder))
    record, stopped, sent = folder / "record", Event(), 0
    record.touch()

    def send() -> None:
        nonlocal sent
        from killed import note  # type: ignore[import-not-found]

        while not stopped.is_set():
            try:
                note.delay(sent)
            except Exception as error:  # noqa: BLE001 - the broker is away: it is sent again
                print(f"{kind}: message {sent} is sent again: {error!r}", file=sys.stderr)
            else:
                sent += 1

    sender = Thread(target=send)
    sender.start()
    try:
        until(lambda: record.stat().st_size, "the worker runs")
        for number in range(kills):
            name = ("worker", "broker")[number % 2]
            processes.kill(name)
            processes.start(name)
            time.sleep(INTERVAL)
        stopped.set()
        sender.join()
        size, since = -1, time.monotonic()
        while time.monotonic() - since < PATIENCE:
            if record.stat().st_size != size:
                size, since = record.stat().st_size, time.monotonic()
            time.sleep(0.1)
    finally:
        stopped.set()
        for name in ("worker", "broker"):
            processes.kill(name)
    runs = Counter(map(int, record.read_text().split()))
    lost, twice = sent - len(runs), sum(count > 1 for count in runs.values())
    return {"kills": kills, "sent": sent, "lost": lost, "ran more than once": twice}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.contrib.kombu.kills")
    parser.add_argument("kinds", nargs="*", default=["eventmq", "redis", "redis-visibility-10"])
    parser.add_argument("--kills", type=int, default=10)
    arguments = parser.parse_intermixed_args()
    if len(arguments.kinds) == 1:  # a process has one application
        with tempfile.TemporaryDirectory() as folder:
            print(arguments.kinds[0], measure(arguments.kinds[0], arguments.kills, Path(folder)))
        return
    for kind in arguments.kinds:
        command = [sys.executable, "-m", "tests.contrib.kombu.kills", kind]
        subprocess.run([*command, "--kills", str(arguments.kills)], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
