"""A client that submits numbers for as long as it is let, and what it and the worker wrote down."""

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

#: Seconds after which is looked again whether there is room for more.
LOOK = 0.05


class Load:
    """A client in a thread of its own.

    It writes each number into the file ``intent`` before it submits it, and into ``confirmed`` when
    it has the receipt, and syncs both: the oracle outlives everything.

    Args:
        system: Whose broker takes the jobs.
        part: Jobs that are submitted at a time.
        ahead: Jobs with a receipt that may wait; more come as these are worked off.
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
        """Begin, and wait until the first jobs have run."""
        self._thread.start()
        until(lambda: self._system.noted(self._part), "the first jobs run")

    def last(self, seconds: float) -> None:
        """Wait so long, or until `stop`."""
        self._stop.wait(seconds)

    def goes_on(self, when: str) -> None:
        """Wait for a receipt that comes from now on, and until its job is done."""
        have = len(self.confirmed)
        until(lambda: len(self.confirmed) > have, f"a receipt {when}")
        newest = str(max(list(self.confirmed)))
        until(lambda: newest in self._system.executed(), f"a job is done {when}")

    def stop(self) -> None:
        """Submit no more. Idempotent."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        folder = self._system.folder
        with (folder / "intent").open("a") as intent, (folder / "confirmed").open("a") as confirmed:
            while not self._stop.is_set():
                waiting = len(self.confirmed) - self._ahead
                if waiting > 0 and not self._system.noted(waiting):
                    self._stop.wait(LOOK)
                    continue
                numbers = range(self.intended, self.intended + self._part)
                _note(intent, numbers)
                self.intended += self._part
                kept = self._send(numbers)
                _note(confirmed, kept)
                self.confirmed |= kept

    def _send(self, numbers: range) -> dict[int, str]:
        """Submit numbers; return those that have a receipt, with their ids.

        Where that fails some may be there: whoever holds no receipt is promised nothing.
        """
        try:
            jobs: Any = self._task.map([(number,) for number in numbers])
        except EventMQError:
            return {}
        return {number: job.id for number, job in zip(numbers, jobs, strict=True)}

    def compare(self, ran: Mapping[str, int]) -> tuple[set[int], int]:
        """Return which confirmed numbers did not run, and how often one ran again.

        Args:
            ran: Number -> how often it was executed to the end.
        """
        phantoms = [number for number in ran if int(number) >= self.intended]
        assert not phantoms, f"nobody wanted {phantoms[:5]}"
        missing = {number for number in self.confirmed if str(number) not in ran}
        return missing, sum(n - 1 for n in ran.values())


def _note(file: IO[str], numbers: Iterable[int]) -> None:
    file.write("".join(f"{number}\n" for number in numbers))
    file.flush()
    os.fsync(file.fileno())


def _stand_in(*args: object) -> None:
    """Run in a worker."""
