"""A worker on a Spark cluster, whose executor (a JVM) is killed with the job that it runs."""

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

#: Master, worker and an executor with one core and 1 GiB. Only the executor is a separate process,
#: as on a cluster.
MASTER = "local-cluster[1,1,1024]"

#: Main class of the JVM of an executor.
EXECUTOR = b"CoarseGrainedExecutorBackend"

#: Seconds of the job whose executor is killed, and number of jobs that wait behind it.
RUNS, BEHIND = 1.0, 4

#: Timeout of every wait, in seconds: a JVM and a Python start on a busy machine.
TIMEOUT = 180.0

LOST = "eventmq.errors.WorkerLost"


class Comparison(NamedTuple):
    """Result of the comparison, as numbers of jobs.

    Attributes:
        lost: Jobs that have not succeeded.
        again: Jobs that ran to their end more than once.
        unpaid: Jobs that were started more often than delivered, or had another attempt.
        deaths: Jobs that are charged with a death, once for each death.
    """

    lost: list[int]
    again: list[int]
    unpaid: list[int]
    deaths: list[int]

    def wrong(self, killed_jobs: Iterable[int]) -> set[int]:
        """Return the jobs with a wrong result: each death must be charged exactly once.

        Args:
            killed_jobs: The jobs whose executor was killed, once for each kill.
        """
        charged, expected = Counter(self.deaths), Counter(killed_jobs)
        return {*self.lost, *self.unpaid, *(charged - expected), *(expected - charged)}


class Cluster:
    """A broker, a client, and a worker with the pool ``spark`` and one slot.

    Args:
        folder: Folder of the processes and their records.
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
        self.killed_jobs: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.system.stop()

    def inject(self) -> float:
        """Kill the executor while a job runs and others wait behind it; wait until all have ended.

        Returns:
            The seconds from the kill to the last end.
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
        self.killed_jobs.append(number)
        for job in self.jobs[number:]:
            job.get(timeout=TIMEOUT)
        return time.monotonic() - start

    def executors(self) -> list[int]:
        """Return the process ids of the running executors."""
        return [pid for pid in _below(self.worker.pid) if EXECUTOR in _command(pid)]

    def finish(self) -> Comparison:
        """Return the comparison of all jobs with their records."""
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
    """Return a SPARK_HOME with links to the installed one and writable folders of its own."""
    import pyspark

    home = folder / "spark"
    home.mkdir()
    for part in ("bin", "jars"):
        (home / part).symlink_to(Path(pyspark.__file__).parent / part)
    return home


def _below(pid: int) -> list[int]:
    """Return all descendants of a process."""
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
    """Return the content of a file of a process, b"" if the process has ended."""
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""


def _stand_in(*args: object) -> None:
    """Run in the worker."""
