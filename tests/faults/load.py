"""Load: a client that submits numbered jobs until it is stopped, and records its receipts."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from eventmq.errors import EventMQError
from tests.support.system import until

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import IO

    from tests.support.system import System

__all__ = ["Load"]

#: Seconds between two checks of whether more jobs may be submitted.
CHECK_INTERVAL = 0.05


class Load:
    """Client in a thread of its own.

    It writes each number to the file ``intent`` before it submits it, and to ``confirmed`` when it
    has the receipt. Both are synced, so that this record survives every crash.

    Args:
        system: System whose broker gets the jobs.
        part: Number of jobs that are submitted at a time.
        ahead: Number of jobs with a receipt that may wait.
        submit_timeout: Seconds that a receipt may take.
    """

    def __init__(self, system: System, *, part: int, ahead: int, submit_timeout: float) -> None:
        self._system = system
        self._part, self._ahead = part, ahead
        self.app = system.app(submit_timeout=submit_timeout)
        self._task = self.app.task(name="survivor.work")(_stand_in)
        self.intended = 0
        #: Number -> id of its job.
        self.confirmed: dict[int, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        """Start, and wait until the first jobs have run."""
        self._thread.start()
        until(lambda: self._system.has_started(self._part), "the first jobs run")

    def last(self, seconds: float) -> None:
        """Wait for some seconds, or until `stop`."""
        self._stop.wait(seconds)

    def wait_for_progress(self, when: str) -> None:
        """Wait for a new receipt, and until its job is done."""
        before = len(self.confirmed)
        until(lambda: len(self.confirmed) > before, f"a receipt {when}")
        newest = str(max(list(self.confirmed)))
        until(lambda: newest in self._system.executed(), f"a job is done {when}")

    def stop(self) -> None:
        """Stop submitting. Idempotent."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        folder = self._system.folder
        with (folder / "intent").open("a") as intent, (folder / "confirmed").open("a") as confirmed:
            while not self._stop.is_set():
                waiting = len(self.confirmed) - self._ahead
                if waiting > 0 and not self._system.has_started(waiting):
                    self._stop.wait(CHECK_INTERVAL)
                    continue
                numbers = range(self.intended, self.intended + self._part)
                _note(intent, numbers)
                self.intended += self._part
                receipts = self._send(numbers)
                _note(confirmed, receipts)
                self.confirmed |= receipts

    def _send(self, numbers: range) -> dict[int, str]:
        """Submit numbers; return the ids of those that have a receipt.

        After an error none counts as confirmed, although some may be stored.
        """
        try:
            jobs: Any = self._task.map([(number,) for number in numbers])
        except EventMQError:
            return {}
        return {number: job.id for number, job in zip(numbers, jobs, strict=True)}

    def compare(self, executions: Mapping[str, int]) -> tuple[set[int], int]:
        """Return which confirmed numbers did not run, and how many runs were repetitions.

        Args:
            executions: Number -> how often it was executed to its end.
        """
        phantoms = [number for number in executions if int(number) >= self.intended]
        assert not phantoms, f"never submitted: {phantoms[:5]}"
        missing = {number for number in self.confirmed if str(number) not in executions}
        return missing, sum(n - 1 for n in executions.values())


def _note(file: IO[str], numbers: Iterable[int]) -> None:
    file.write("".join(f"{number}\n" for number in numbers))
    file.flush()
    os.fsync(file.fileno())


def _stand_in(*args: object) -> None:
    """Stand in for a task that runs in a worker."""
