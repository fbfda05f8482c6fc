"""A worker on a Spark cluster whose executor, a JVM of its own, is killed with the job it runs."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.support.system import System, until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from typing_extensions import Self

    from eventmq import Job

__all__ = ["Cluster", "Comparison"]

#: Master, worker and an executor with one core and 1 GiB, of which only the executor is a process
#: of its own, as on the machines of a cluster.
MASTER = "local-cluster[1,1,1024]"

#: What the JVM of an executor runs.
EXECUTOR = b"CoarseGrainedExecutorBackend"

#: Seconds that the job runs whose executor is killed, and how many others wait behind it.
RUNS, BEHIND = 1.0, 4

#: Seconds that anything may take: a JVM and a Python start on a machine that has much else to do.
TIMEOUT = 180.0

LOST = "eventmq.errors.WorkerLost"


class Comparison(NamedTuple):
    """Result of the comparison, as numbers of jobs.

    Attributes:
        lost: Have not succeeded.
        again: Ran more often to their end than once.
        unpaid: Were begun more often than they were delivered, or had another attempt.
        deaths: Are charged with a death, as often as they are.
    """

    lost: list[int]
    again: list[int]
    unpaid: list[int]
    deaths: list[int]

    def wrong(self, struck: Iterable[int]) -> set[int]:
        """Return the jobs that did not fare as they had to: each death is charged for, once.

        Args:
            struck: The jobs whose executor was killed, as often as it was.
        """
        charged, expected = Counter(self.deaths), Counter(struck)
        return {*self.lost, *self.unpaid, *(charged - expected), *(expected - charged)}


class Cluster:
    """A broker, a client, and a worker with the pool ``spark`` and one slot.

    Args:
        folder: For the processes, and what they note.
    """

    def __init__(self, folder: Path) -> None:
        self.system = System(folder)
        self.system.broker()
        self.worker = self.system.start(
            "worker", "-A", "survivor", "--broker", self.system.address, "-c", "1",
            "--pool", "spark", "--pool-option", f"master={MASTER}",
            under=("env", f"SPARK_HOME={_home(folder)}", "SPARK_LOCAL_IP=127.0.0.1"),
        )[0]  # fmt: skip
        self.app = self.system.app()
        self.jobs: list[Job[Any]] = []
        #: Numbers of the jobs whose executor was killed.
        self.struck: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.system.stop()

    def strike(self) -> float:
        """Kill the executor while a job runs and others wait behind it; return when all have ended.

        Returns:
            Seconds that this took.
        """
        number = len(self.jobs)
        slow, work = (
            self.app.task(name=f"survivor.{name}")(_stand_in) for name in ("slow", "work")
        )
        self.jobs.append(slow.delay(number, RUNS))
        self.jobs += [work.delay(number + n) for n in range(1, BEHIND + 1)]
        until(lambda: str(number) in self.system.started(), "the job runs", TIMEOUT)
        pid = self.system.started()[str(number)]
        [executor] = [parent for parent in self.executors() if pid in _below(parent)]
        os.kill(executor, signal.SIGKILL)
        start = time.monotonic()
        self.struck.append(number)
        for job in self.jobs[number:]:
            job.get(timeout=TIMEOUT)
        return time.monotonic() - start

    def executors(self) -> list[int]:
        """Return the executors that are there."""
        return [pid for pid in _below(self.worker.pid) if EXECUTOR in _command(pid)]

    def finish(self) -> Comparison:
        """Return what became of all jobs."""
        executed, record = self.system.executed(), self.system.record.read_text()
        infos = [job.info() for job in self.jobs]
        ids = {job.id: number for number, job in enumerate(self.jobs)}
        return Comparison(
            lost=[n for n, info in enumerate(infos) if info["state"] != "succeeded"],
            again=[n for n in ids.values() if executed[str(n)] != 1],
            unpaid=[
                n for n, info in enumerate(infos)
                if record.count(f"start {n} ") > info["delivery"] or info["attempt"] != 1
            ],
            deaths=[ids[row["job_id"]] for row in self._events() if row.get("error_type") == LOST],
        )  # fmt: skip

    def _events(self) -> Iterator[Any]:
        from eventmq.events import rows_of

        answer = self.app.ask("events.read", {"after": 0, "bytes": 1 << 22})
        for first, _, body in answer["rows"]:
            yield from rows_of(answer["store"], first, body)


def _home(folder: Path) -> Path:
    """Return a home of Spark that is the installed one, but for what is written into it."""
    import pyspark

    home = folder / "spark"
    home.mkdir()
    for part in ("bin", "jars"):
        (home / part).symlink_to(Path(pyspark.__file__).parent / part)
    return home


def _below(pid: int) -> list[int]:
    """Return the processes below a process, at any depth."""
    descendants: list[int] = []
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:  # it has ended
        return descendants
    for thread in threads:
        for child in map(int, _content(thread / "children").split()):
            descendants += [child, *_below(child)]
    return descendants


def _command(pid: int) -> bytes:
    return _content(Path(f"/proc/{pid}/cmdline"))


def _content(path: Path) -> bytes:
    """Return what a file of a process says, nothing of one that has ended meanwhile."""
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""


def _stand_in(*args: object) -> None:
    """Run in the worker."""
