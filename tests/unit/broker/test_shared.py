"""Sessions that count jobs: their slots share their chunks."""

from __future__ import annotations

from eventmq.wire.commands import Heartbeat, Inform
from tests.support.broker_harness import Broker, chunks, row


def join(broker: Broker, name: str, jobs: int) -> None:
    broker.worker(name.encode(), name, window=0)
    broker.ready(name.encode(), window=jobs, jobs=jobs)


def counts(broker: Broker, name: str) -> list[int]:
    """Return the number of jobs of each chunk that a session got since the last call."""
    return [len(index.entries) for _, index in chunks(broker.took(name.encode()))]


def test_free_slots_are_filled_with_one_chunk_of_jobs_of_any_length(broker: Broker) -> None:
    """The run time is not known; other sessions get one such job per chunk."""
    broker.submit_batch([broker.new_id() for _ in range(50)])
    broker.worker(b"w", "w", window=0)
    got = chunks(broker.ready(b"w", window=40, jobs=40))
    assert [len(index.entries) for _, index in got] == [40]


def test_it_gets_as_many_new_jobs_as_have_ended(broker: Broker) -> None:
    """Without a new STATUS, since its credit is absolute."""
    broker.submit_batch([broker.new_id() for _ in range(50)])
    broker.worker(b"w", "w", window=0)
    ((chunk, _),) = chunks(broker.ready(b"w", window=40, jobs=40))
    got = broker.answer(b"w", chunk, [row(position, run_time=5.0) for position in (7, 3, 11)])
    assert [len(index.entries) for _, index in chunks(got)] == [3]


def test_it_holds_no_more_chunks_than_it_wants(broker: Broker) -> None:
    """The window counts beside the jobs."""
    broker.worker(b"w", "w", window=0)
    broker.ready(b"w", window=1, jobs=40)
    broker.submit()
    broker.submit()
    assert counts(broker, "w") == [1]


def test_few_jobs_are_divided_among_those_that_want_them(broker: Broker) -> None:
    """The first session does not get all of them."""
    join(broker, "a", 40)
    join(broker, "b", 40)
    broker.submit_batch([broker.new_id() for _ in range(10)])
    assert {sum(counts(broker, name)) for name in "ab"} <= {4, 5, 6}


def test_a_session_that_wants_nothing_gets_nothing(broker: Broker) -> None:
    """With zero jobs it counts chunks, and the window applies."""
    join(broker, "a", 40)
    broker.ready(b"a", window=0)
    broker.submit()
    assert counts(broker, "a") == []


def statuses(broker: Broker, name: str) -> list[str | None]:
    """Return the status of the HEARTBEATs that a worker got since the last call."""
    got = broker.took(name.encode())
    return [message.status for message in got if isinstance(message, Heartbeat)]


def test_a_worker_is_told_how_many_jobs_wait_for_it(broker: Broker) -> None:
    """Also while it gets chunks all the time; its own jobs do not count."""
    broker.worker(b"w", "w", window=1)
    for _ in range(4):
        broker.submit()
    chunk = broker.dispatched[-1]
    broker.took(b"w")
    broker.wait(1.0)
    assert set(statuses(broker, "w")) == {"waiting:3"}
    for _ in range(6):
        broker.wait(0.25)
        broker.submit(queue="other")
        broker.submit()
    assert statuses(broker, "w")[-1] in {"waiting:7", "waiting:8"}
    broker.answer(b"w", chunk, [row()])
    assert len(broker.dispatched) == 2


def test_a_worker_that_is_always_between_two_jobs_is_told_too(broker: Broker) -> None:
    """Each tick of the broker has an answer of it, when it has no job for a moment."""
    broker.worker(b"w", "w", window=1)
    for _ in range(20):
        broker.submit()
    broker.took(b"w")
    received: list[str | None] = []
    for number in range(1, 11):
        broker.clock.time += 0.2
        got = broker.answer(b"w", broker.dispatched[-1], [row(run_time=0.2)])
        got += broker.ready(b"w", 1, received=number)
        received += [message.status for message in got if isinstance(message, Heartbeat)]
    assert len(received) >= 2, "in two seconds"
    assert received[-1] in {f"waiting:{n}" for n in range(8, 14)}


def test_a_legacy_worker_is_told_nothing(broker: Broker) -> None:
    """It would not understand the status."""
    got = broker.tell(b"p", Inform(broker.new_id(), "", "worker"))
    assert [message.status for message in got if isinstance(message, Heartbeat)] == [None]
