"""Observers of events: plugins that get the events of jobs."""

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
    """A plugin that records the events that it gets."""

    def __init__(self) -> None:
        self.events: list[Mapping[str, Any]] = []

    @hookimpl
    def eventmq_job_event(self, event: Mapping[str, Any]) -> None:
        self.events.append(event)


def row(number: int) -> EventRow:
    return EventRow(number, 1, pack_blocks([gap(1, 2, 5.0)]))


def test_a_plugin_is_told_what_happens_to_jobs() -> None:
    """It gets all events before the app is closed, in order and not on the broker's thread."""
    observer = Observer()
    app = EventMQ("watched", broker="memory://", plugins=[observer])

    @app.task
    def add(x: int, y: int) -> int:
        return x + y

    job = add.delay(1, 2)
    assert job.get(timeout=20) == 3
    app.close()
    assert [event["kind"] for event in observer.events] == ["enqueued", "succeeded"]
    assert [event["seq"] for event in observer.events] == [1, 2]
    assert {event["job_id"] for event in observer.events} == {job.id}
    assert {"queue", "ts_us", "task"} <= observer.events[0].keys()


def test_a_slow_observer_delays_no_job() -> None:
    """Events without room are refused, and offered again later."""
    go = threading.Event()
    events: list[int] = []

    def slow(event: Mapping[str, Any]) -> None:
        go.wait(20)
        events.append(event["seq"])

    observers = Observers(slow, "b", 0)
    accepted = [observers.put([row(number)]) for number in range(1, 20)]
    n = accepted.index(False)
    assert not any(accepted[n:])
    go.set()
    observers.close()
    assert events == list(range(1, n + 1))


def test_observers_are_told_once_and_the_log_says_what_they_missed(caplog) -> None:
    events: list[Mapping[str, Any]] = []
    observers = Observers(events.append, "b", 4)
    for number in (4, 5, 9):
        observers.put([row(number)])
    observers.close()
    assert [event["seq"] for event in events] == [5, 9]
    assert events[0]["job_id"] == ""
    assert "events 6 to 8 were dropped" in caplog.text
