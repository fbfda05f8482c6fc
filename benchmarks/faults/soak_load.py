"""Load of the soak: rounds of all features, and the promised jobs."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from benchmarks.faults import soak_app
from eventmq import chord
from eventmq.errors import DuplicateJob

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Rounds"]

#: Plain jobs of a round, submitted in one call.
PLAIN = 20

#: Rounds between two long features: streams, stopped jobs, jobs that fail for good.
SELDOM = 10

#: Chords whose results are awaited later, so that the round does not wait for them.
OPEN_CHORDS = 50

#: State of a number of a task.
_INTENDED, _CONFIRMED = 1, 2


class Rounds:
    """One client, which records each number with a receipt for `compare`."""

    def __init__(self) -> None:
        self._chance = random.Random(1)
        self._numbers: dict[str, bytearray] = {}
        self._chords: deque[tuple[Any, int]] = deque()
        self._round = itertools.count()
        #: Seconds until the receipt and until the result, since they were last collected.
        self.receipts: list[float] = []
        self.results: list[float] = []
        #: Counts of events without a number.
        self.counted: Counter[str] = Counter()

    # Promises

    def _new(self, name: str) -> int:
        """Return the next number of a task, and mark it as intended."""
        numbers = self._numbers.setdefault(name, bytearray())
        numbers.append(_INTENDED)
        return len(numbers) - 1

    def _confirm(self, name: str, number: int) -> None:
        self._numbers[name][number] = _CONFIRMED

    @property
    def confirmed(self) -> int:
        """Number of numbers with a receipt."""
        return sum(numbers.count(_CONFIRMED) for numbers in self._numbers.values())

    def compare(self, record: Path) -> tuple[Counter[str], int]:
        """Return lost confirmed numbers, counted by task, and how often a number ran again."""
        ran = {name: bytearray(len(numbers)) for name, numbers in self._numbers.items()}
        again = 0
        with record.open() as lines:
            for line in lines:
                name, _, number = line.partition("|")[0].partition(" ")
                if name in ran:
                    again += ran[name][int(number)] > 0
                    ran[name][int(number)] = 1
        lost: Counter[str] = Counter()
        for name, numbers in self._numbers.items():
            pairs = zip(numbers, ran[name], strict=True)
            lost[name] = sum(promised == _CONFIRMED and not done for promised, done in pairs)
        return +lost, again

    # Load

    def once(self) -> None:
        """Use every feature once, and wait for some results."""
        number = next(self._round)
        self._many()
        self._round_trip()
        self._later()
        self._unique()
        self._chord()
        if number % SELDOM == 0:
            self._seldom()

    def _submit(self, task: Any, name: str, *more: object) -> Any:
        """Submit a job with the next number, and record the time until its receipt."""
        number = self._new(name)
        start = time.perf_counter()
        job = task.delay(number, *more)
        self.receipts.append(time.perf_counter() - start)
        self._confirm(name, number)
        return job

    def _many(self) -> None:
        numbers = [self._new("plain") for _ in range(PLAIN)]
        priority = self._chance.randrange(4)
        soak_app.plain.options(priority=priority).map([(number,) for number in numbers])
        for number in numbers:
            self._confirm("plain", number)

    def _round_trip(self) -> None:
        start = time.perf_counter()
        self._submit(soak_app.plain, "plain").get(timeout=60.0)
        self.results.append(time.perf_counter() - start)

    def _later(self) -> None:
        countdown = self._chance.random() * 10
        self._submit(soak_app.plain.options(countdown=countdown), "plain")
        self._submit(soak_app.moody, "moody")

    def _unique(self) -> None:
        """Submit a unique job of some keys; a refused second job is no loss."""
        try:
            self._submit(soak_app.only, "only", self._chance.randrange(100))
        except DuplicateJob:
            self.counted["refused as duplicates"] += 1

    def _chord(self) -> None:
        number = self._new("chord")
        members = [soak_app.step.s(n) for n in range(4)]
        self._chords.append((chord(members, soak_app.add.s(number)).delay(), number))
        self._confirm("chord", number)
        if len(self._chords) > OPEN_CHORDS:
            job, _ = self._chords.popleft()
            assert job.get(timeout=60.0) == 6, "a chord that adds up wrongly"

    def _seldom(self) -> None:
        self._submit(soak_app.hopeless, "hopeless")
        job = self._submit(soak_app.parts, "parts", 200)
        assert list(job.stream(timeout=60.0)) == list(range(200)), "a stream with a gap"
        waiting = soak_app.plain.options(countdown=60.0).delay(-1)
        self.counted["cancelled while they waited"] += waiting.cancel("soak")
        running = soak_app.long.delay(-1)
        time.sleep(0.01)
        self.counted["cancelled, perhaps running"] += running.cancel("soak")
        soak_app.app.publish("soak", {"round": self._numbers["parts"][-1]})
