"""The thread that sends what has waited for long enough: it is there only while it is needed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from eventmq.execution import poolkit
from eventmq.execution.poolkit import Timer

if TYPE_CHECKING:
    import pytest

DEADLINE = 10.0


def test_the_thread_ends_when_nothing_is_due_and_begins_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pool that has ended leaves none behind."""
    monkeypatch.setattr(poolkit, "IDLE_TIMEOUT", 0.01)
    timer = Timer()
    for _ in range(3):
        called: list[threading.Thread] = []
        done = threading.Event()

        def call(called: list[threading.Thread] = called, done: threading.Event = done) -> None:
            called.append(threading.current_thread())
            done.set()

        timer(0.0, call)
        assert done.wait(DEADLINE)
        called[0].join(DEADLINE)
        assert not called[0].is_alive()


def test_calls_come_in_the_order_of_their_times() -> None:
    timer = Timer()
    order: list[str] = []
    done = threading.Event()
    timer(1.0, lambda: (order.append("late"), done.set()))
    timer(0.0, lambda: order.append("soon"))
    assert done.wait(DEADLINE)
    assert order == ["soon", "late"]
