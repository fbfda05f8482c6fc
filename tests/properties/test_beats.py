"""Beats over simulated weeks, killed and paused at random: each fire time exactly once."""

from __future__ import annotations

import random
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest

from eventmq.policies import at, cron, every
from eventmq.scheduler.machine import TOLERANCE
from tests.support.beat_harness import KINDS_OF_STORES, Beats, Killed, make_trigger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventmq.scheduler.runner import BeatRunner

NOW = datetime(2026, 10, 18, 11, 0, 0, tzinfo=timezone.utc).timestamp()
WEEK = 7 * 86_400.0

SCHEDULES = {
    "minutes": every(minutes=17),
    "hours": every(hours=3),
    "wall": cron("*/20 * * * *", tz="Europe/Paris"),
    "night": cron("30 2 * * *", tz="Europe/Paris"),
    "monday": cron("0 9 * * 1", tz="America/New_York"),
    "once": at(datetime.fromtimestamp(NOW + 3 * 86_400 + 5, timezone.utc)),
}


def expected(name: str, end: float) -> list[float]:
    """Return all fire times up to a time."""
    trigger, fire_time, fire_times = make_trigger(str(SCHEDULES[name])), NOW, []
    while (fire_time := trigger.next_after(fire_time)) is not None and fire_time <= end:
        fire_times.append(fire_time)
    return fire_times


class Weather:
    """Kills beats at random points, and chooses when one is paused."""

    def __init__(self, seed: int, rate: float) -> None:
        self.random = random.Random(seed)
        self.rate = rate
        self.deaths = 0

    def crash(self, where: str) -> None:
        if self.random.random() < self.rate:
            self.deaths += 1
            raise Killed(where)


@pytest.fixture
def beats(seed: int) -> Iterator[Beats]:
    """Where many are due, several batches are on their way at a time."""
    beats = Beats(NOW, kind=KINDS_OF_STORES[seed % 3], batch=2)
    yield beats
    beats.close()


def step(beats: Beats, alive: list[BeatRunner | None], paused: dict[int, float], weather) -> float:
    """Run a tick of every living beat; return the seconds until the next one."""
    now, waits = beats.clock.now(), [600.0]
    for index, beat in enumerate(alive):
        if paused.get(index, 0.0) > now:
            waits.append(paused[index] - now)
            continue
        living = alive[index] = beat or beats.start(weather.crash)
        try:
            beats.tick(living)
        except Killed:
            alive[index] = None
            paused[index] = now + weather.random.uniform(0.1, 5.0)
            waits.append(paused[index] - now)
        else:
            if weather.random.random() < 0.01:
                paused[index] = now + weather.random.uniform(1.0, 20.0)
                waits.append(paused[index] - now)
            next_tick = living._machine.next_tick()
            waits.append(0.5 if next_tick is None else max(0.01, next_tick - now))
    return min(waits)


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_each_fire_time_fires_exactly_once(beats: Beats, number: int, seed: int) -> None:
    """Two and three beats over two weeks with the end of summer time, and hundreds of deaths."""
    weather = Weather(seed, 0.02)
    for name, trigger in SCHEDULES.items():
        beats.add(name, trigger, source="code")
    alive: list[BeatRunner | None] = [None] * number
    paused: dict[int, float] = {}
    end = NOW + 2 * WEEK
    while beats.clock.now() < end:
        wait = step(beats, alive, paused, weather)
        # Leave the middle of nowhere out: a beat wakes up for its fire times, and for the lease.
        beats.clock.advance(min(wait, 900.0) + weather.random.uniform(0.0, 1.0))
    for _ in range(40):  # leftovers of the last death
        step(beats, alive, paused, weather)
        beats.clock.advance(0.5)
    assert weather.deaths > 50
    for name in SCHEDULES:
        fire_times = [fire_time for fire_time in beats.fire_times(name) if fire_time <= end]
        assert expected(name, end) == fire_times, name
    delay = max(
        when - fire_time
        for name in SCHEDULES
        for when, fire_time in zip(beats.fired(name), beats.fire_times(name), strict=True)
    )
    assert delay < TOLERANCE


@pytest.mark.parametrize("seed", range(5))
def test_an_edit_between_fire_times_neither_loses_nor_doubles_one(beats: Beats, seed: int) -> None:
    """Queues and schedules are edited while two beats fire every second."""
    weather = Weather(seed, 0.01)
    beats.add("busy", every(seconds=1), source="code")
    alive: list[BeatRunner | None] = [None, None]
    paused: dict[int, float] = {}
    end = NOW + 600
    while beats.clock.now() < end:
        wait = step(beats, alive, paused, weather)
        if weather.random.random() < 0.3:
            stored = beats.store.find("busy")
            stored.queue = str(weather.random.random())
            assert beats.store.save([(stored, stored.version)]).done[0]
        beats.clock.advance(min(wait, 1.0) + weather.random.uniform(0.0, 0.2))
    fire_times = [fire_time - NOW for fire_time in beats.fire_times("busy")]
    assert list(range(1, len(fire_times) + 1)) == fire_times
    assert len(fire_times) > 570
