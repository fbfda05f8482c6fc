"""An earlier commit beside this one: brokers, workers and clients of both, under load.

    python -m tests.faults.upgrades [--commit 203776b] [--jobs 20000] [--broker new|old]

The earlier one is taken from the history of this repository and installed into a folder of its own.
Two clients, one of each, submit to two workers, one of each; the broker is of this commit, then of
the earlier one. Meanwhile the workers are ended and started again, as a rolling deployment does,
and one is killed. Each client checks every result. The last line is an object; the exit code is 0
if every job had the expected result.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.support.shell import Program, Shell, free_port

__all__ = ["COMMIT", "TASKS", "install", "main", "mixed"]

#: The last commit before stores, gateways and events changed their places.
COMMIT = "203776b"

#: Code that a client or worker of any version understands.
TASKS = """
import time

from eventmq import EventMQ, current_job, fixed

app = EventMQ("mixed")


@app.task
def add(a, b):
    return a + b


@app.task(retries=2, retry_policy=fixed(delay=0.05))
def shaky(number):
    if current_job().attempt == 1:
        raise ValueError(f"not yet: {number}")
    return number


@app.task
def parts(count):
    for number in range(count):
        yield number
    return count


@app.task
def total(numbers):
    return sum(numbers)


@app.task
def slow(seconds):
    time.sleep(seconds)
    return seconds
"""

#: Submits jobs of all kinds, checks each result, and prints how many there were.
CLIENT = """
import json
import sys

from mixed import add, app, parts, shaky, slow, total

from eventmq import JobCancelled, JobFailed, chain, chord, group

count, wait = int(sys.argv[1]), 300.0
done = {}
many = add.map([(n, 1) for n in range(count)])
with app.batch():
    some = [shaky.delay(n) for n in range(count // 20)]
alone = [add.delay(n, n) for n in range(100)]
assert [job.get(timeout=wait) for job in many] == [n + 1 for n in range(count)]
assert [job.get(timeout=wait) for job in alone] == [2 * n for n in range(100)]
assert [job.get(timeout=wait) for job in some] == list(range(count // 20))
done["plain"] = len(many) + len(alone) + len(some)
for n in range(20):
    assert chain(add.s(n, 1), add.s(2)).delay().get(timeout=wait) == n + 3
    assert group(add.s(i, n) for i in range(5)).delay().get(timeout=wait) == [
        i + n for i in range(5)
    ]
    assert chord([add.s(i, 0) for i in range(9)], total.s()).delay().get(timeout=wait) == 36
    job = parts.delay(50)
    assert list(job.stream(timeout=wait)) == list(range(50))
    assert job.get(timeout=wait) == 50
    late = add.options(countdown=600).delay(1, 1)
    assert late.cancel("not needed")
    try:
        late.get(timeout=wait)
    except JobCancelled:
        pass
    else:
        raise AssertionError("it was cancelled")
    try:
        add.delay(1, "x").get(timeout=wait)
    except JobFailed as error:
        assert "TypeError" in str(error), error
    else:
        raise AssertionError("it fails")
done["others"] = 20 * 6
assert {row["name"] for row in app.ask("queues")} >= {"default"}
assert app.ask("status")["version"]
app.close()
print(json.dumps(done))
"""


def install(commit: str, folder: Path) -> Path:
    """Install what a commit has into a folder, to be put on ``PYTHONPATH``.

    Args:
        commit: A name that git knows in this repository.
        folder: A new folder is made in it.
    """
    source, target = folder / f"source-{commit}", folder / f"eventmq-{commit}"
    source.mkdir()
    root = Path(__file__).parents[2]
    archive = subprocess.run(
        ["git", "archive", commit, "--", "eventmq", "eventmq_contrib", "setup.cfg",
         "pyproject.toml", "README.rst", "LICENSE"],
        cwd=root, check=True, capture_output=True,
    ).stdout  # fmt: skip
    subprocess.run(["tar", "x", "-C", str(source)], input=archive, check=True)
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation",
         "--target", str(target), str(source)],
        check=True,
    )  # fmt: skip
    return target


class Version(Shell):
    """A folder in which one version is run.

    Args:
        folder: New; it gets the module of the tasks.
        path: Where the version is, None for the one that runs this.
        broker: Address of the broker.
    """

    def __init__(self, folder: Path, path: Path | None, broker: str) -> None:
        folder.mkdir()
        (folder / "mixed.py").write_text(TASKS)
        (folder / "client.py").write_text(CLIENT)
        where = Path(__file__).parents[2] if path is None else path
        python_path = os.pathsep.join([str(where), str(folder)])
        super().__init__(folder, PYTHONPATH=python_path, EVENTMQ_BROKER=broker)

    def broker(self, bind: str) -> Program:
        program = self.start("broker", "--bind", bind)
        program.ready()
        return program

    def worker(self) -> Program:
        program = self.start("worker", "-A", "mixed", "-c", "2", "--grace", "5")
        while not program.line().startswith("ready"):
            pass
        return program

    def client(self, jobs: int) -> Program:
        return self.launch(sys.executable, "client.py", str(jobs))


def mixed(old: Path, folder: Path, *, jobs: int, old_broker: bool) -> dict[str, object]:
    """Run both versions against one broker; return the counts of the clients.

    Args:
        old: As `install` returns it.
        folder: For their files; it has none yet.
        jobs: Plain jobs of each client.
        old_broker: Whether the broker is of the earlier version.
    """
    folder.mkdir()
    bind = f"tcp://127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        versions = {
            "old": Version(folder / "old", old, bind), "new": Version(folder / "new", None, bind),
        }  # fmt: skip
        for version in versions.values():
            stack.callback(version.close)
        broker = versions["old" if old_broker else "new"].broker(bind)
        workers = {name: version.worker() for name, version in versions.items()}
        clients = {name: version.client(jobs) for name, version in versions.items()}
        for name, signum in (
            ("old", signal.SIGTERM), ("new", signal.SIGTERM), ("old", signal.SIGKILL),
            ("new", signal.SIGKILL),
        ):  # fmt: skip
            workers[name].stop(signum)
            workers[name] = versions[name].worker()
        counted: dict[str, object] = {"broker": "old" if old_broker else "new"}
        for name, client in clients.items():
            code = client.process.wait(600)
            client.wait()
            lines = client.text.strip().splitlines()
            counted[name] = json.loads(lines[-1]) if code == 0 else lines[-12:]
        codes = [program.stop() for program in (*workers.values(), broker)]
        counted["ended"] = codes
        counted["good"] = codes == [0, 0, 0] and all(
            isinstance(counted[name], dict) for name in clients
        )
        return counted


def main(arguments: list[str]) -> int:
    """Run it; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.upgrades")
    parser.add_argument("--commit", default=COMMIT, help=f"the earlier one; {COMMIT} by default")
    parser.add_argument("--jobs", type=int, default=20_000, help="plain jobs of each client")
    parser.add_argument("--broker", choices=["new", "old"], help="only with a broker of this one")
    options = parser.parse_args(arguments)
    good = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        old = install(options.commit, folder)
        for broker in ("new", "old"):
            if options.broker in {None, broker}:
                counted = mixed(old, folder / broker, jobs=options.jobs, old_broker=broker == "old")
                good = good and bool(counted["good"])
                print(json.dumps(counted), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
