"""Observers of events: plugins that are told what happens to jobs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from eventmq import EventMQ, hookimpl
from eventmq.broker.runner import Observers
from eventmq.events import gap, pack_blocks
from eventmq.store.reads import EventRow

if TYPE_CHECKING:
    from collections.abc import Mapping


class Observer:
    """A plugin that remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[Mapping[str, Any]] = []

    @hookimpl
    def eventmq_job_event(self, event: Mapping[str, Any]) -> None:
        self.told.append(event)


def row(number: int) -> EventRow:
    return EventRow(number, 1, pack_blocks([gap(1, 2, 5.0)]))


def test_a_plugin_is_told_what_happens_to_jobs() -> None:
    """All of it, when the app is closed at the latest, in order and off the broker's thread."""
    observer = Observer()
    app = EventMQ("watched", broker="memory://", plugins=[observer])

    @app.task
    def add(x: int, y: int) -> int:
        return x + y

    job = add.delay(1, 2)
    assert job.get(timeout=20) == 3
    app.close()
    assert [event["kind"] for event in observer.told] == ["enqueued", "succeeded"]
    assert [event["seq"] for event in observer.told] == [1, 2]
    assert {event["job_id"] for event in observer.told} == {job.id}
    assert {"queue", "ts_us", "task"} <= observer.told[0].keys()


def test_a_slow_observer_delays_no_job() -> None:
    """What there is no room for is refused, and offered again later."""
    go = threading.Event()
    told: list[int] = []

    def slow(event: Mapping[str, Any]) -> None:
        go.wait(20)
        told.append(event["seq"])

    observers = Observers(slow, "b", 0)
    taken = [observers.put([row(number)]) for number in range(1, 20)]
    n = taken.index(False)
    assert not any(taken[n:])
    go.set()
    observers.close()
    assert told == list(range(1, n + 1))


def test_observers_are_told_once_and_the_log_says_what_they_missed(caplog) -> None:
    told: list[Mapping[str, Any]] = []
    observers = Observers(told.append, "b", 4)
    for number in (4, 5, 9):
        observers.put([row(number)])
    observers.close()
    assert [event["seq"] for event in told] == [5, 9]
    assert told[0]["job_id"] == ""
    assert "events 6 to 8 were dropped" in caplog.text
