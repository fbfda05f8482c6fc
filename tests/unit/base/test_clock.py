"""The one place that reads time."""

from __future__ import annotations

import time

from eventmq.clock import Clock, SystemClock
from eventmq.testing.clock import FakeClock


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


def test_boot_time_never_goes_back_and_is_not_behind_monotonic_time() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    times = [clock.boottime() for _ in range(1000)]
    assert times == sorted(times)
    assert times[0] >= before


def test_the_boot_id_stays_the_same() -> None:
    assert SystemClock().boot_id() == SystemClock().boot_id()


def test_a_system_without_a_boot_id_has_an_empty_one(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("eventmq.clock.BOOT_ID", tmp_path / "none")
    assert SystemClock.boot_id() == ""


def test_the_clock_of_tests_sleeps_and_is_started_anew() -> None:
    clock = FakeClock(100.0)
    before = clock.monotonic()
    clock.sleep(50.0)
    assert (clock.now(), clock.monotonic()) == (150.0, before)
    assert clock.boottime() == before + 50.0
    boot_id = clock.boot_id()
    clock.reboot(7.0)
    assert (clock.now(), clock.boot_id() == boot_id) == (157.0, False)
    assert clock.boottime() < before
