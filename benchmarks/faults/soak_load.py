"""What clients of the soak do: rounds of everything, and what is promised by it."""

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

#: Plain jobs of a round, submitted as one.
PLAIN = 20

#: Rounds between two of what takes long: streams, jobs that are stopped, jobs that fail for good.
SELDOM = 10

#: Chords of which the result is awaited later, so that nothing waits for them.
OPEN_CHORDS = 50

#: What a number of a task has come to.
_INTENDED, _CONFIRMED = 1, 2


class Rounds:
    """One client. What has a receipt is noted, number by number, for `compare`."""

    def __init__(self) -> None:
        self._chance = random.Random(1)
        self._numbers: dict[str, bytearray] = {}
        self._chords: deque[tuple[Any, int]] = deque()
        self._round = itertools.count()
        #: Seconds of each, since somebody has taken them: until the receipt, until the result.
        self.receipts: list[float] = []
        self.results: list[float] = []
        #: What happened that has no number.
        self.counted: Counter[str] = Counter()

    # What is promised

    def _new(self, name: str) -> int:
        """Return the next number of a task, which is intended now."""
        numbers = self._numbers.setdefault(name, bytearray())
        numbers.append(_INTENDED)
        return len(numbers) - 1

    def _confirm(self, name: str, number: int) -> None:
        self._numbers[name][number] = _CONFIRMED

    @property
    def confirmed(self) -> int:
        """How many numbers have a receipt."""
        return sum(numbers.count(_CONFIRMED) for numbers in self._numbers.values())

    def compare(self, record: Path) -> tuple[Counter[str], int]:
        """Return how many confirmed numbers did not run, by task, and how often one ran again."""
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

    # What is done

    def once(self) -> None:
        """Do everything once, and wait for some of it."""
        number = next(self._round)
        self._many()
        self._round_trip()
        self._later()
        self._unique()
        self._chord()
        if number % SELDOM == 0:
            self._seldom()

    def _submit(self, task: Any, name: str, *more: object) -> Any:
        """Submit one with the next number, and note how long the receipt took."""
        number = self._new(name)
        begun = time.perf_counter()
        job = task.delay(number, *more)
        self.receipts.append(time.perf_counter() - begun)
        self._confirm(name, number)
        return job

    def _many(self) -> None:
        numbers = [self._new("plain") for _ in range(PLAIN)]
        priority = self._chance.randrange(4)
        soak_app.plain.options(priority=priority).map([(number,) for number in numbers])
        for number in numbers:
            self._confirm("plain", number)

    def _round_trip(self) -> None:
        begun = time.perf_counter()
        self._submit(soak_app.plain, "plain").get(timeout=60.0)
        self.results.append(time.perf_counter() - begun)

    def _later(self) -> None:
        countdown = self._chance.random() * 10
        self._submit(soak_app.plain.options(countdown=countdown), "plain")
        self._submit(soak_app.moody, "moody")

    def _unique(self) -> None:
        """Have one job of some keys at a time; a second one is refused, which is no loss."""
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
