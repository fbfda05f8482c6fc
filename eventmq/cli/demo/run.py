"""The processes of the demo: a broker and a worker as children, the client in this process."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventmq.cli.processes import Child, delayed_signals, ignored_signals, ready_fields
from eventmq.errors import EventMQError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

    from eventmq.app import EventMQ
    from eventmq.client.handle import Job

__all__ = ["DemoProcesses", "DemoRun"]

#: Seconds within which a process must be ready, and within which it must have ended.
START_TIMEOUT = 30.0
STOP_TIMEOUT = 5.0

#: Seconds for running jobs at the end; there are none unless the demo is interrupted.
GRACE = 1.0

#: Seconds that the jobs may take; far more than they do.
JOBS_TIMEOUT = 300.0

_APP = "eventmq.cli.demo.tasks:app"
_LOOPBACK = "tcp://127.0.0.1:0"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRun:
    """Results of a run.

    Attributes:
        results: Result of each file, in order; None where the job failed.
        errors: One sentence per failed job.
        receipt: Seconds until all jobs were on disk.
        seconds: Seconds from the submission to the last result.
        delays: Seconds from the submission to the start, of each job that succeeded.
    """

    results: Sequence[dict[str, Any] | None]
    errors: Sequence[str]
    receipt: float
    seconds: float
    delays: Sequence[float]


class DemoProcesses:
    """Broker, worker and client; in a ``with`` block, whose end leaves nothing behind.

    Args:
        workers: Number of worker processes.
        keep: Leave the data directory where it is.

    Attributes:
        folder: Directory of the data and the logs.
        ready: The ready line of the broker.
    """

    def __init__(self, workers: int, *, keep: bool) -> None:
        self.folder = Path()
        self.ready = ""
        self._workers = workers
        self._keep = keep
        self._stack = ExitStack()
        self._app: EventMQ | None = None

    def __enter__(self) -> Self:
        try:
            with delayed_signals():  # a signal before the callback would leak it
                self.folder = Path(tempfile.mkdtemp(prefix="eventmq-demo-"))
                self._stack.callback(self._tidy)
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with ignored_signals():
            self._stack.close()

    def _tidy(self) -> None:
        if not self._keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None:
        self.ready = self._child(
            "broker", "--bind", _LOOPBACK, "--data-dir", str(self.folder / "data")
        )
        address = ready_fields(self.ready)["main"]
        self._child(
            "worker", "-A", _APP, "--broker", address, "-c", str(self._workers),
            "-Q", "demo", "--grace", str(GRACE),
        )  # fmt: skip
        self._app = self._client(address)

    def _child(self, *arguments: str) -> str:
        """Start a command of this program and return its line with ``ready``."""
        name = arguments[0]
        log = self._stack.enter_context((self.folder / f"{name}.log").open("w"))
        env = {key: text for key, text in os.environ.items() if not key.startswith("EVENTMQ_")}
        child = Child(name, arguments, on_line=log.write, cwd=self.folder, env=env)
        self._stack.callback(child.stop, STOP_TIMEOUT)
        return child.wait_ready(START_TIMEOUT)

    def _client(self, address: str) -> EventMQ:
        from eventmq.cli.demo.tasks import make_app

        app = make_app(address)
        self._stack.callback(app.close)
        return app

    # Jobs

    def run(self, paths: Sequence[Path], on_done: Callable[[], None]) -> DemoRun:
        """Submit one job per file, and wait for all.

        Args:
            paths: The files.
            on_done: Called after each job.
        """
        assert self._app is not None  # noqa: S101 - entered
        task = self._app.tasks["measure_file"]
        submitted, start = time.time(), time.perf_counter()
        jobs = task.map([(str(path),) for path in paths])
        receipt = time.perf_counter() - start
        for _ in self._app.as_completed(jobs, timeout=JOBS_TIMEOUT):
            on_done()
        seconds = time.perf_counter() - start
        errors: list[str] = []
        results = [_result(job, errors) for job in jobs]
        delays = [r["started"] - submitted for r in results if r is not None]
        return DemoRun(
            results=results, errors=errors, receipt=receipt, seconds=seconds, delays=delays
        )


def _result(job: Job[dict[str, Any]], errors: list[str]) -> dict[str, Any] | None:
    try:
        return job.get(timeout=STOP_TIMEOUT)
    except EventMQError as error:
        errors.append(str(error))
        return None
