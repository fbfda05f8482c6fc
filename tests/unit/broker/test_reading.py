"""The reader thread, and listings that it answers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.broker import reading
from eventmq.broker.reading import ReaderThread
from eventmq.engine import listings
from eventmq.store.reads import ListJobs
from tests.support.broker_harness import Broker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

QUERY = ListJobs(None, None, None, "", 9)


class Reader:
    """A reader whose answers a test decides."""

    def __init__(self, answers: list[Any], closed: list[str]) -> None:
        self.answers = answers
        self.closed = closed

    def read(self, query: Any) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else answer

    def close(self) -> None:
        self.closed.append(threading.current_thread().name)


class Reading:
    """A reader thread, and what it has answered."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.closed = list(answers), list[str]()
        self.opened = 0
        self.results: list[tuple[str, Any]] = []
        self.woken = threading.Semaphore(0)
        self.thread = ReaderThread(self.open, self.woken.release)

    def open(self) -> Reader:
        self.opened += 1
        return Reader(self.answers, self.closed)

    def read(self) -> None:
        self.thread.read(
            QUERY,
            lambda result: self.results.append(("settled", result)),
            lambda reason: self.results.append(("refused", reason)),
        )

    def take(self, n: int) -> list[tuple[str, Any]]:
        """Wait for n answers, and take them."""
        for _ in range(n):
            assert self.woken.acquire(timeout=10)
        self.thread.take()
        return self.results


@pytest.fixture
def make_reading() -> Iterator[Callable[..., Reading]]:
    made: list[Reading] = []

    def make(*answers: Any) -> Reading:
        made.append(Reading(*answers))
        return made[-1]

    yield make
    for each in made:
        each.thread.close()


def test_answers_come_in_order_and_are_settled_by_the_caller(
    make_reading: Callable[..., Reading],
) -> None:
    """Not before it asks for them."""
    each = make_reading(1, 2)
    each.read()
    each.read()
    assert each.results == []
    assert each.take(2) == [("settled", 1), ("settled", 2)]
    each.thread.close()
    assert (each.opened, each.closed) == (1, ["eventmq-reader"])


def test_a_failure_refuses_the_read_and_the_next_one_opens_again(
    make_reading: Callable[..., Reading],
) -> None:
    each = make_reading(OSError("the disk is away"), 2)
    each.read()
    each.read()
    assert each.take(2) == [("refused", "the disk is away"), ("settled", 2)]
    assert (each.opened, len(each.closed)) == (2, 1)


def test_reads_that_do_not_end_are_bounded(
    make_reading: Callable[..., Reading], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is over the limit is refused at once; the others are answered later."""
    monkeypatch.setattr(reading, "MAX_WAITING", 2)
    begun, go = threading.Event(), threading.Event()

    def slow() -> str:
        begun.set()
        assert go.wait(10)
        return "slow"

    each = make_reading(slow, 2, 3)
    each.read()
    assert begun.wait(10)
    for _ in range(3):
        each.read()
    assert [kind for kind, _ in each.results] == ["refused"]
    go.set()
    assert [kind for kind, _ in each.take(3)] == ["refused", "settled", "settled", "settled"]


def test_an_end_waits_for_no_read(make_reading: Callable[..., Reading]) -> None:
    """The thread ends after the read that is under way, which is not settled."""
    begun, go = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        assert go.wait(10)

    each = make_reading(slow)
    each.read()
    assert begun.wait(10)
    each.thread.end()
    assert each.closed == []
    go.set()
    each.thread.close()
    each.thread.take()
    assert (each.closed, each.results) == (["eventmq-reader"], [])


def test_what_is_answered_after_the_end_is_forgotten(
    make_reading: Callable[..., Reading],
) -> None:
    each = make_reading(1)
    each.read()
    assert each.woken.acquire(timeout=10)
    each.thread.close()
    each.read()
    each.thread.take()
    assert each.results == [("settled", 1)]


def test_a_page_ends_after_its_time_and_says_where_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few rows have been examined; the pages have every job once."""
    monkeypatch.setattr(listings, "_STRIDE", 1)
    broker = Broker(tmp_path)
    jobs = [broker.submit()[0] for _ in range(5)]
    monkeypatch.setattr(broker.clock, "monotonic", _TickingClock().monotonic)
    seen, cursor, pages = [], "", 0
    while True:
        page = broker.call("jobs", task="no.such.task" if pages == 0 else "", cursor=cursor)
        pages += 1
        assert page["examined"] <= 2
        assert page["complete"] == (not page["cursor"])
        seen += [row["id"] for row in page["jobs"]]
        cursor = page["cursor"]
        if not cursor:
            break
    assert pages > 2
    assert set(seen) < set(jobs)  # those of the first page do not match


class _TickingClock:
    """A clock on which each reading takes 15 ms."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 0.015
        return self.now


def test_failures_and_counts_are_answered(tmp_path: Path) -> None:
    """With the names of the call table; a count by queue is kept, others are made."""
    broker = Broker(tmp_path)
    broker.submit()
    answer = broker.call("failures")
    assert answer == {"groups": [], "cursor": "", "complete": True, "searched_to": 0.0}
    [queue] = broker.call("queues")
    for filters, expected in (
        ({"action": "cancel", "queue": queue["name"]}, 1),
        ({"action": "retry"}, 0),
        ({"action": "drop", "task": "t"}, 0),
        ({"action": "cancel", "task": "no.such.task"}, 0),
    ):
        assert broker.call("count", **filters) == {"count": expected, "complete": True}
