"""Kept logs of jobs that workers send."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from eventmq.broker.limits import Limits
from eventmq.job import OutcomeKind
from eventmq.wire.batches import LoggedRow
from eventmq.wire.commands import Error
from tests.support.broker_harness import Broker, chunks, row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def logs(broker: Broker, job: str) -> list[tuple[int, str]]:
    return [(log["attempt"], log["text"]) for log in broker.call("info", id=job, logs=True)["logs"]]


def answer(broker: Broker, text: bytes, kind: int = 0, **more: Any) -> None:
    """Answer the job of a worker with one free slot."""
    chunk = broker.dispatched[-1]
    broker.answer(b"worker", chunk, [LoggedRow.of(row(kind=kind, **more), text)])


def test_an_info_has_the_logs_only_where_they_are_asked_for(broker: Broker) -> None:
    job, _ = broker.submit()
    broker.worker()
    answer(broker, b"said\n")
    assert "logs" not in broker.call("info", id=job)
    [log] = broker.call("info", id=job, logs=True)["logs"]
    assert log == {"attempt": 1, "at": broker.clock.now(), "text": "said\n"}


def test_a_job_that_has_logged_nothing_has_none(broker: Broker) -> None:
    job, _ = broker.submit()
    broker.worker()
    assert logs(broker, job) == []
    answer(broker, b"")
    assert logs(broker, job) == []


def test_each_attempt_has_its_log(broker: Broker) -> None:
    job, _ = broker.submit(headers="retry-count:3")
    broker.worker()
    for number in range(1, 4):
        kind = OutcomeKind.RETRY if number < 3 else OutcomeKind.FAILED
        answer(broker, b"try %d\n" % number, int(kind), content_type="error", countdown=1.0)
        broker.wait(2.0)
        broker.ready(b"worker", 1, received=len(broker.dispatched))
    assert logs(broker, job) == [(1, "try 1\n"), (2, "try 2\n"), (3, "try 3\n")]
    broker.clock.time += 20 * 86_400.0
    assert len(logs(broker, job)) == 3, "as long as the failed job is kept"


def test_logs_are_kept_as_long_as_a_result_would_be(broker: Broker) -> None:
    """Also for a job whose result is not kept."""
    job, _ = broker.submit(headers="ignore-result,result-ttl:60")
    broker.worker()
    answer(broker, b"said\n")
    broker.clock.time += 50.0
    assert logs(broker, job) == [(1, "said\n")]
    broker.clock.time += 20.0
    assert logs(broker, job) == []


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path, limits=Limits(max_job_log_bytes=256))
    yield broker
    broker.close()


def test_what_is_too_much_for_this_broker_is_cut(strict: Broker) -> None:
    """Worker and broker may have different settings."""
    job, _ = strict.submit()
    strict.worker()
    answer(strict, b"".join(b"line %d\n" % n for n in range(100)))
    [(_, text)] = logs(strict, job)
    lines = text.splitlines()
    assert lines[0] == "[the lines before these were cut]"
    assert lines[1:] == [f"line {n}" for n in range(101 - len(lines), 100)]
    assert 240 < len(text) <= 256


def test_bytes_that_are_no_text_are_shown_as_far_as_possible(broker: Broker) -> None:
    job, _ = broker.submit()
    broker.worker()
    answer(broker, b"caf\xe9\n\xff")
    assert logs(broker, job) == [(1, "caf�\n�")]


def test_a_job_without_guarantee_keeps_none(broker: Broker) -> None:
    job, _ = broker.submit(headers="guarantee:False")
    broker.worker()
    answer(broker, b"said\n")
    assert logs(broker, job) == []


def test_a_log_of_a_job_that_is_not_in_the_chunk_changes_nothing(broker: Broker) -> None:
    job, _ = broker.submit()
    [(chunk, _)] = chunks(broker.worker())
    rows = [LoggedRow.of(row(position), b"x\n") for position in (0, 5, -1)]
    broker.answer(b"worker", chunk, rows)
    assert logs(broker, job) == [(1, "x\n")]
    broker.answer(b"worker", chunk, [LoggedRow.of(row(0), b"again\n")])
    assert logs(broker, job) == [(1, "x\n")]


def test_the_argument_is_a_bool(broker: Broker) -> None:
    error = broker.call("info", id="x", logs="yes")
    assert isinstance(error, Error)
    assert error.code == "bad-arguments"
