"""Calls: what the broker reports about jobs, queues and workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eventmq.broker import calls
from eventmq.wire.commands import Error, Inform, Ready
from eventmq.wire.features import Features, Status
from tests.support.broker_harness import chunks, row

if TYPE_CHECKING:
    from tests.support.broker_harness import Broker


def test_an_info_has_the_body_only_where_it_is_asked_for(broker: Broker) -> None:
    job, _ = broker.submit(body=b"secret")
    assert {"body", "body_bytes"}.isdisjoint(broker.call("info", id=job))
    info = broker.call("info", id=job, args=True)
    assert (b"secret", 6) == (info["body"], info["body_bytes"])


def test_a_job_that_has_succeeded_has_no_body_any_more(broker: Broker) -> None:
    job, _ = broker.submit(body=b"secret")
    [(chunk, _)] = chunks(broker.worker())
    broker.answer(b"worker", chunk, [row()])
    info = broker.call("info", id=job, args=True)
    assert ("succeeded", None, 0) == (info["state"], info["body"], info["body_bytes"])


@pytest.mark.parametrize("ahead", [-60.0, 0.001, 60.0])
def test_a_job_does_not_finish_before_it_starts_whatever_the_clock_of_its_worker(
    broker: Broker, ahead: float
) -> None:
    job, _ = broker.submit()
    [(chunk, _)] = chunks(broker.worker())
    now = broker.clock.now()
    broker.answer(b"worker", chunk, [row(started=now + ahead)])
    for info in (broker.call("info", id=job), *broker.call("jobs")["jobs"]):
        assert (now + ahead, now + max(ahead, 0.0)) == (info["started"], info["finished"])


def test_a_job_that_keeps_its_arguments_has_its_body_and_headers_however_it_has_ended(
    broker: Broker,
) -> None:
    """Cancelled alone or with its queue, expired, or succeeded.

    The listings do not have them.
    """
    keeps = "keep-arguments,priority:3"
    alone, purged = (broker.submit(body=b"secret", headers=keeps)[0] for _ in range(2))
    expires = f"expires:{broker.clock.now() + 5},{keeps}"
    expired = broker.submit(body=b"secret", headers=expires, queue="other")[0]
    broker.call("cancel", ids=[alone], reason="no")
    broker.call("bulk", id="purge", action="cancel", queue="default")
    broker.wait(6.0)
    done = broker.submit(body=b"secret", headers=keeps)[0]
    [(chunk, _)] = chunks(broker.worker())
    broker.answer(b"worker", chunk, [row()])
    ids = [alone, purged, expired, done]
    infos = [broker.call("info", id=job, args=True) for job in ids]
    assert ["cancelled", "cancelled", "expired", "succeeded"] == [i["state"] for i in infos]
    assert [(b"secret", 6, 3)] * 4 == [(i["body"], i["body_bytes"], i["priority"]) for i in infos]
    assert all("keep-arguments" not in each["headers"] for each in broker.call("jobs")["jobs"])


def test_a_failed_job_and_a_transient_one_have_their_bodies(broker: Broker) -> None:
    failed, _ = broker.submit(body=b"one")
    [(chunk, _)] = chunks(broker.worker())
    broker.answer(b"worker", chunk, [row(kind=1)])
    transient, _ = broker.submit(body=b"two", headers="guarantee:False", queue="other")
    bodies = [broker.call("info", id=job, args=True)["body"] for job in (failed, transient)]
    assert [b"one", b"two"] == bodies


def test_a_body_that_is_too_long_is_only_measured(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "MAX_BODY", 5)
    job, _ = broker.submit(body=b"secret")
    info = broker.call("info", id=job, args=True)
    assert (None, 6) == (info["body"], info["body_bytes"])


def test_a_body_is_read_in_parts(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MAX_BODY", 5)
    job, _ = broker.submit(body=b"secret")
    infos = [broker.call("info", id=job, args=True, offset=offset) for offset in (0, 5, 6)]
    assert [b"secre", b"t", None] == [info["body"] for info in infos]
    error = broker.call("info", id=job, args=True, offset=-1)
    assert isinstance(error, Error)
    assert "bad-arguments" == error.code


def test_the_argument_of_info_is_a_bool(broker: Broker) -> None:
    error = broker.call("info", id="x", args="yes")
    assert isinstance(error, Error)
    assert "bad-arguments" == error.code


def test_queues_have_the_number_of_their_workers(broker: Broker) -> None:
    for queue in ("default", "mail", "spare"):
        broker.submit(queue=queue)
    broker.worker(b"w1", "w1", queues='[[10, "default"], [5, "mail"]]')
    broker.worker(b"w2", "w2", queues='[[10, "default"], [5, "default"]]')
    counts = {row["name"]: row["workers"] for row in broker.call("queues")}
    assert counts == {"default": 2, "mail": 1, "spare": 0}


def test_a_worker_is_shown_with_its_pool_its_slots_its_version_and_what_it_runs(
    broker: Broker,
) -> None:
    """The next job of each chunk, the oldest chunk first: it runs, or runs next."""
    ids = [broker.submit()[0] for _ in range(2)]
    about = Features(session="w", name="w", pool="threads", slots=8, version="1.0")
    broker.tell(b"w", Inform("i", '[[10, "default"]]', "worker", about.format()))
    first = broker.clock.now()
    broker.tell(b"w", Ready("r", Status(0, 1, ()).format()))
    broker.wait(5)
    broker.tell(b"w", Ready("s", Status(1, 2, (1,), rss=5000).format()))
    broker.tell(b"w", Ready("t", Status(1, 2, (1,)).format()))
    [shown] = broker.call("workers")
    assert 5000 == shown["rss"], "a STATUS without it changes nothing"
    assert ("threads", 8, "1.0") == (shown["pool"], shown["slots"], shown["version"])
    expected = [(ids[0], "shop.add"), (ids[1], "shop.add")]
    assert expected == [(job["id"], job["task"]) for job in shown["jobs"]]
    leased = [job["leased"] for job in shown["jobs"]]
    assert first == pytest.approx(leased[0], abs=1.0)
    assert 4 < leased[1] - leased[0] < 7
    assert leased[0] == broker.call("info", id=ids[0])["leased"]
    assert leased[0] == broker.call("jobs", limit=4)["jobs"][-1]["leased"]


def test_a_worker_that_announces_nothing_is_shown_all_the_same(broker: Broker) -> None:
    """A worker of an earlier version, and a legacy worker."""
    broker.worker(b"w", "one")
    broker.tell(b"p", Inform("1", "", "worker"))
    for number in range(2):
        broker.tell(b"p", Ready(f"r{number}"))
    shown = [(row["pool"], row["slots"], row["version"], row["jobs"]) for row in
             broker.call("workers")]  # fmt: skip
    assert [("", 0, "", []), ("", 2, "", [])] == shown


def test_of_many_chunks_only_the_first_are_shown(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "MAX_SHOWN", 1)
    broker.worker(window=2)
    for _ in range(2):
        broker.submit()
        broker.wait(1)
    [shown] = broker.call("workers")
    assert (2, 1) == (shown["running"], len(shown["jobs"]))


def test_too_long_a_version_is_refused(broker: Broker) -> None:
    about = Features(session="w", version="1" * 1000)
    messages = broker.tell(b"w", Inform("i", "", "worker", about.format()))
    assert "too-large" == next(m.code for m in messages if isinstance(m, Error))


def test_a_queue_says_how_long_its_oldest_job_has_waited(broker: Broker) -> None:
    broker.submit()
    broker.wait(60)
    broker.submit()
    [queue] = broker.call("queues")
    assert 60 <= queue["waited"] < 62
    broker.worker(window=9)
    [queue] = broker.call("queues")
    assert 0.0 == queue["waited"]
