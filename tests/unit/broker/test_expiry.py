"""Jobs that wait past their expiry end, whether or not a worker needs jobs."""

from __future__ import annotations

from eventmq.broker.maintenance import EXPIRED_AT_ONCE
from eventmq.wire.commands import Reply, Request
from tests.support.broker_harness import Broker, chunks, row


def submit(broker: Broker, seconds: float, headers: str = "") -> str:
    """Submit a job that expires after some seconds; return its id."""
    text = f"expires:{broker.clock.now() + seconds},{headers}".removesuffix(",")
    return broker.submit(headers=text)[0]


def state(broker: Broker, *ids: str) -> list[str]:
    return [state for _, state in broker.call("state", ids=list(ids))]


def counts(broker: Broker) -> tuple[int, int]:
    """Return how many jobs wait and how many are delayed."""
    [queue] = broker.call("queues")
    return queue["waiting"], queue["delayed"]


def test_a_job_expires_without_any_worker(broker: Broker) -> None:
    """Waiting peers are answered at that time."""
    early, later, never = submit(broker, 5), submit(broker, 50), broker.submit()[0]
    broker.wait(4.0)
    assert state(broker, early) == ["queued"]
    broker.wait(1.5)
    assert state(broker, early, later, never) == ["expired", "queued", "queued"]
    assert counts(broker) == (2, 0)
    broker.wait(50.0)
    assert state(broker, later, never) == ["expired", "queued"]
    assert counts(broker) == (1, 0)
    assert broker.core.state.next_expiry is None
    ended = [event["job_id"] for event in broker.events() if event["kind"] == "expired"]
    assert ended == [early, later]
    assert len(chunks(broker.worker())) == 1


def test_a_delayed_job_can_expire_before_its_time(broker: Broker) -> None:
    job_id = submit(broker, 5, "countdown:60")
    assert counts(broker) == (0, 1)
    broker.wait(6.0)
    assert state(broker, job_id) == ["expired"]
    assert counts(broker) == (0, 0)
    broker.wait(60.0)
    assert chunks(broker.worker()) == []


def test_a_paused_queue_does_not_keep_jobs_from_expiring(broker: Broker) -> None:
    job_id = submit(broker, 5)
    queue = broker.call("queues")[0]["name"]
    broker.call("pause", queue=queue)
    broker.worker()
    broker.wait(6.0)
    assert state(broker, job_id) == ["expired"]
    broker.call("resume", queue=queue)
    assert chunks(broker.took(b"worker")) == []


def test_a_running_job_does_not_expire(broker: Broker) -> None:
    """The expiry only limits the start."""
    job_id = submit(broker, 5)
    [(chunk, _)] = chunks(broker.worker())
    broker.wait(6.0)
    assert state(broker, job_id) == ["running"]
    broker.answer(b"worker", chunk, [row()])
    assert state(broker, job_id) == ["succeeded"]


def test_a_job_that_comes_back_too_late_expires(broker: Broker) -> None:
    """Its worker died after the expiry, and there is no other one."""
    job_id = submit(broker, 5)
    broker.worker()
    broker.wait(6.0)
    broker.wait(broker.core.state.limits.heartbeat_timeout + 5)
    assert state(broker, job_id) == ["expired"]
    assert counts(broker) == (0, 0)


def test_what_expires_is_known_after_a_restart(broker: Broker) -> None:
    """Jobs that expired while the broker was down, and jobs that expire later."""
    soon, later = submit(broker, 5), submit(broker, 60)
    broker.clock.time += 10.0
    broker.crash()
    broker.wait(1.0)
    assert state(broker, soon, later) == ["expired", "queued"]
    broker.wait(60.0)
    assert state(broker, later) == ["expired"]
    assert counts(broker) == (0, 0)
    broker.crash()
    assert state(broker, soon, later) == ["expired", "expired"]
    assert counts(broker) == (0, 0)


def test_many_jobs_expire_slice_by_slice(broker: Broker) -> None:
    """Also jobs outside of the window."""
    ids = [submit(broker, 5) for _ in range(2 * EXPIRED_AT_ONCE + 10)]
    kept = broker.submit()[0]
    broker.clock.time += 6.0
    broker.wait(3.0)
    assert counts(broker) == (1, 0)
    assert set(state(broker, *ids[:1000])) == set(state(broker, *ids[-1000:])) == {"expired"}
    assert state(broker, kept) == ["queued"]


def test_whoever_waits_hears_of_it(broker: Broker) -> None:
    job_id = submit(broker, 5, "reply-requested:True")
    messages = []
    for _ in range(12):
        broker.wait(0.5)
        messages += broker.took(b"client")
    replies = [message for message in messages if isinstance(message, Reply)]
    assert [reply.request for reply in replies] == [job_id]
    assert not any(isinstance(message, Request) for message in messages)


def test_a_job_without_guarantee_expires_too(broker: Broker) -> None:
    job_id = submit(broker, 5, "guarantee:False")
    broker.wait(4.0)
    assert state(broker, job_id) == ["queued"]
    broker.wait(3.0)
    assert state(broker, job_id) == ["expired"]
