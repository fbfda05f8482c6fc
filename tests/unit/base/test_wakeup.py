"""A thread that polls is woken by others, and by signal handlers."""

from __future__ import annotations

import select
import signal

import pytest

from eventmq.wakeup import Wakeup


@pytest.fixture
def wakeup():
    wakeup = Wakeup()
    yield wakeup
    wakeup.close()


def is_set(wakeup: Wakeup) -> bool:
    return bool(select.select([wakeup.fd], [], [], 0)[0])


def test_it_is_readable_from_set_to_clear(wakeup: Wakeup) -> None:
    assert not is_set(wakeup)
    for _ in range(3):
        wakeup.set()
        assert is_set(wakeup)
    wakeup.clear()
    assert not is_set(wakeup)


def test_clearing_what_is_not_set_does_not_wait(wakeup: Wakeup) -> None:
    wakeup.clear()
    assert not is_set(wakeup)


def test_setting_never_waits(wakeup: Wakeup) -> None:
    """Where nothing reads, until there is no room for another byte, and beyond."""
    for _ in range(100_000):
        wakeup.set()
    assert is_set(wakeup)


def test_a_signal_sets_it(wakeup: Wakeup) -> None:
    handler = signal.signal(signal.SIGUSR1, lambda *_: None)
    before = signal.set_wakeup_fd(wakeup.writer_fd, warn_on_full_buffer=False)
    try:
        signal.raise_signal(signal.SIGUSR1)
        assert is_set(wakeup)
    finally:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGUSR1, handler)


def test_setting_a_closed_one_does_nothing(wakeup: Wakeup) -> None:
    wakeup.close()
    wakeup.set()
    wakeup.close()
