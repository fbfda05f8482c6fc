"""The one place that reads time."""

from __future__ import annotations

import time

from eventmq.clock import Clock, SystemClock


def test_now_is_unix_time() -> None:
    before = time.time()
    now = SystemClock().now()
    assert before <= now <= time.time()


def test_monotonic_never_goes_back() -> None:
    clock = SystemClock()
    times = [clock.monotonic() for _ in range(1000)]
    assert times == sorted(times)


def test_the_system_clock_is_a_clock_without_state() -> None:
    clock: Clock = SystemClock()
    assert isinstance(clock.now(), float)
    assert not hasattr(clock, "__dict__")
