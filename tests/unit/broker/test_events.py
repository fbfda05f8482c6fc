"""Events of the broker: two for an undisturbed job, and one more for everything unusual."""

from __future__ import annotations

import typing

import pytest

from eventmq.errors import QueueFull
from eventmq.events import rows_of
from eventmq.job import OutcomeKind
from eventmq.plugins.queue_stores.sqlite.store import SqliteStore
from eventmq.store import Write, reads, writes
from eventmq.store.events import MAKERS
from eventmq.wire.batches import encode_batch, pack
from eventmq.wire.commands import Call, Heartbeat, Kbai, Request
from eventmq.wire.results import RemoteError, encode_error
from tests.support.broker_harness import TASK, Broker, chunks, row

#: Writes that change nothing that the events of a job describe.
SILENT = {
    writes.LeaseChunk, writes.CloseChunk, reads.ReadQueued, writes.SaveLimits, reads.FindJobs,
    reads.ListJobs, reads.CountJobs, reads.GroupFailures, reads.History, reads.ReadEvents,
    writes.SealEvents, writes.Announce, reads.FindLineage, reads.ListGraph, reads.ReadInputs,
    reads.ReadLogs, writes.KeepTime,
    writes.SaveSuspects, writes.BeginBulkOperation, writes.Pause, writes.ForgetQueues,
    reads.ListFailed, writes.PruneFailed, reads.LoadSchedules,
    writes.PutSchedule, writes.AdvanceSchedules,
}  # fmt: skip


def kinds(broker: Broker, job_id: str) -> list[str]:
    return [event["kind"] for event in broker.events() if event.get("job_id") == job_id]


def test_every_write_makes_events_or_is_known_to_make_none() -> None:
    """A new write that changes jobs must not be forgotten."""
    assert set(typing.get_args(Write)) - set(MAKERS) == SILENT


def test_an_undisturbed_job_makes_two_events(broker: Broker) -> None:
    """The second one has lease, start, delivery and worker."""
    broker.worker(session="host:7")
    job_id, _ = broker.submit(body=b"12345")
    leased = broker.clock.now()
    broker.clock.time += 2.0
    answer = row(started=leased + 0.5, run_time=1.0)
    broker.answer(b"worker", broker.dispatched[0], [answer])
    first, last = broker.events()
    assert (first["kind"], first["bytes_in"], first["task"]) == ("enqueued", 5, "shop.add")
    assert (last["kind"], last["job_id"], last["delivery"]) == ("succeeded", job_id, 1)
    assert (last["leased_us"], last["started_us"]) == (leased * 1e6, (leased + 0.5) * 1e6)
    assert (last["wait_us"], last["run_us"]) == (500_000, 1_000_000)
    assert (last["worker_id"], last["host"]) == ("host:7", "host")
    assert [first["seq"], last["seq"]] == [1, 2]


def test_a_failed_job_that_is_queued_again_waits_from_then(broker: Broker) -> None:
    broker.worker()
    job_id, _ = broker.submit()
    broker.answer(b"worker", broker.dispatched[0], [row(kind=OutcomeKind.FAILED)])
    broker.clock.time += 5.0
    broker.call("retry", ids=[job_id])
    answer = row(started=broker.clock.now() + 0.25, run_time=1.0)
    broker.clock.time += 1.25
    broker.answer(b"worker", broker.dispatched[1], [answer])
    assert broker.events()[-1]["wait_us"] == 250_000


@pytest.mark.parametrize("wrong", [400 * 86_400.0, -365 * 86_400.0])
def test_a_wait_is_of_the_brokers_clock_however_wrong_the_workers_is(broker, wrong) -> None:
    broker.submit()
    broker.clock.time += 2.0
    broker.worker()
    leased = broker.clock.now()
    broker.clock.time += 1.5
    answer = row(started=leased + 0.5 + wrong, run_time=1.0)
    broker.answer(b"worker", broker.dispatched[0], [answer])
    event = broker.events()[-1]
    assert event["wait_us"] == (2_500_000 if wrong > 0 else 2_000_000)
    assert event["started_us"] == int((leased + 0.5 + wrong) * 1e6)


def test_jobs_of_several_tasks_keep_their_own(broker: Broker) -> None:
    """Also if they are answered together with different outcomes."""
    ids = [broker.submit(headers=f"task:t{n % 2}")[0] for n in range(4)]
    broker.core.state.run_times = {"t0": 1e-6, "t1": 1e-6}  # so that they are sent together
    [(chunk, index)] = chunks(broker.worker())
    assert [entry.id for entry in index.entries] == ids
    failed = encode_error(RemoteError("builtins.ValueError", "no"))
    broker.answer(b"worker", chunk, [row(n, kind=int(n > 1), result=failed) for n in range(4)])
    events = {event["job_id"]: (event["task"], event["kind"]) for event in broker.events(4)}
    kinds_of = ["succeeded", "succeeded", "failed", "failed"]
    assert [events[job_id] for job_id in ids] == list(zip(["t0", "t1"] * 2, kinds_of, strict=True))


def test_a_failure_says_its_type_and_where(broker: Broker) -> None:
    """Two failures of the same place have the same fingerprint, whatever their message."""
    broker.worker()
    prints = []
    for line, text in ((3, "no 1"), (9, "no 2")):
        frame = f'Traceback:\n  File "/a/{text}/tasks.py", line {line}, in add\n'
        error = encode_error(RemoteError("builtins.ValueError", text, frame))
        broker.submit()
        broker.answer(b"worker", broker.dispatched[-1], [row(kind=1, result=error)])
        broker.ready(b"worker", 1, len(broker.dispatched))
        event = broker.events()[-1]
        assert (event["kind"], event["error_type"]) == ("failed", "builtins.ValueError")
        assert event["bytes_out"] == len(error)
        prints.append(event["error_fingerprint"])
    assert len(prints[0]) == 16
    assert prints[0] == prints[1]


def test_a_retry_is_an_event_of_the_attempt_that_failed(broker: Broker) -> None:
    broker.worker()
    job_id, _ = broker.submit()
    error = encode_error(RemoteError("builtins.OSError", "gone"))
    started = broker.clock.now() + 0.5
    broker.clock.time += 1.0
    again = row(kind=OutcomeKind.RETRY, countdown=5.0, result=error, started=started, run_time=0.25)
    broker.answer(b"worker", broker.dispatched[0], [again])
    event = broker.events()[-1]
    assert (event["kind"], event["attempt"], event["delivery"]) == ("retry", 1, 1)
    assert (event["error_type"], event["run_us"]) == ("builtins.OSError", 250_000)
    assert event["wait_us"] == 500_000
    assert event["due_us"] == (broker.clock.now() + 5.0) * 1e6
    broker.ready(b"worker", 1, 1)
    broker.wait(6.0)
    broker.answer(b"worker", broker.dispatched[1], [row(started=broker.clock.now())])
    assert kinds(broker, job_id) == ["enqueued", "retry", "enqueued", "succeeded"]
    last = broker.events()[-1]
    assert (last["attempt"], last["delivery"]) == (2, 2)
    assert last["wait_us"] < 2_000_000, "waiting for its time is not waiting for a worker"


def test_each_attempt_waits_from_when_it_was_ready(broker: Broker) -> None:
    """A retry waits from its ready time; a requeued job from its first ready time."""
    broker.worker()
    broker.submit()
    kinds_told = (OutcomeKind.RETRY, OutcomeKind.HANDED_BACK, OutcomeKind.RETRY)
    for delivery, kind in enumerate(kinds_told):
        broker.wait(2.0)
        again = row(kind=kind, countdown=5.0, started=broker.clock.now() - 0.5)
        broker.answer(b"worker", broker.dispatched[delivery], [again])
        broker.wait(6.0)
        broker.ready(b"worker", 1, delivery + 1)
    events = [e for e in broker.events() if e["kind"] in {"retry", "handed_back"}]
    assert [(e["kind"], e.get("wait_us")) for e in events] == [
        ("retry", 1_500_000), ("handed_back", None), ("retry", 10_500_000),
    ]  # fmt: skip


def test_a_job_that_expires_before_it_is_ready_says_when_it_would_have_been(broker: Broker) -> None:
    """A job without this time waited for a worker that did not come in time."""
    expires = broker.clock.now() + 2.0
    due = expires + 1.0
    waited, _ = broker.submit(headers=f"expires:{expires}")
    delayed, _ = broker.submit(headers=f"expires:{expires},eta:{due}")
    broker.wait(3.0)
    events = {e["job_id"]: e.get("due_us") for e in broker.events() if e["kind"] == "expired"}
    assert events == {waited: None, delayed: due * 1e6}


def test_a_job_that_waits_for_another_expires_before_it_is_ready(broker: Broker) -> None:
    """Such as one with the unique key of a running job."""
    expires = broker.clock.now() + 2.0
    keyed = "unique:k,unique-mode:keep_last"
    broker.worker()
    broker.submit(headers=keyed)
    held, _ = broker.submit(headers=f"{keyed},expires:{expires}")
    broker.wait(3.0)
    broker.tell(b"worker", Heartbeat(broker.new_id(), "received:1,window:0,held:1"))
    event = next(event for event in broker.events() if event["kind"] == "expired")
    assert (event["job_id"], event["due_us"]) == (held, expires * 1e6)


def test_a_job_that_was_held_waits_from_the_end_of_the_other(broker: Broker) -> None:
    """Not from its submission, since it was not ready."""
    broker.worker()
    keyed = "unique:k,unique-mode:keep_last"
    broker.submit(headers=keyed)
    held, _ = broker.submit(headers=keyed)
    broker.wait(3.0)
    broker.answer(b"worker", broker.dispatched[0], [row(started=broker.clock.now())])
    broker.ready(b"worker", 1, 1)
    answer = row(started=broker.clock.now() + 0.5, run_time=0.5)
    broker.wait(1.0)
    broker.answer(b"worker", broker.dispatched[1], [answer])
    last = broker.events()[-1]
    assert (last["job_id"], last["kind"]) == (held, "succeeded")
    assert last["wait_us"] == pytest.approx(500_000, abs=1000)


def test_a_job_that_is_handed_back_says_so(broker: Broker) -> None:
    broker.worker()
    job_id, _ = broker.submit()
    broker.answer(b"worker", broker.dispatched[0], [row(kind=OutcomeKind.HANDED_BACK)])
    assert kinds(broker, job_id)[:2] == ["enqueued", "handed_back"]


def test_a_death_is_a_lost_lease_with_its_reason(broker: Broker) -> None:
    broker.worker()
    job_id, _ = broker.submit()
    died = encode_error(RemoteError("eventmq.errors.WorkerLost", "signal 9"))
    broker.answer(b"worker", broker.dispatched[0], [row(kind=OutcomeKind.DIED, result=died)])
    event = next(event for event in broker.events() if event["kind"] == "lease_lost")
    assert (event["job_id"], event["worker_id"]) == (job_id, "w")
    assert event["error_type"] == "eventmq.errors.WorkerLost"


def test_the_leases_of_a_lost_session_are_lost(broker: Broker) -> None:
    broker.worker()
    job_id, _ = broker.submit()
    leased = broker.clock.now()
    broker.tell(b"worker", Kbai("bye"))
    broker.wait(1.0)
    event = broker.events()[-1]
    assert (event["kind"], event["job_id"], event["delivery"]) == ("lease_lost", job_id, 1)
    assert (event["worker_id"], event["leased_us"]) == ("w", leased * 1e6)
    assert "error_type" not in event


def test_jobs_end_without_a_worker(broker: Broker) -> None:
    """Cancelled, or not started in time."""
    cancelled, _ = broker.submit()
    broker.call("cancel", ids=[cancelled])
    expired, _ = broker.submit(headers=f"expires:{broker.clock.now() + 1}")
    broker.wait(2.0)
    broker.worker()
    assert kinds(broker, cancelled) == ["enqueued", "cancelled"]
    assert kinds(broker, expired) == ["enqueued", "expired"]


def test_a_failed_job_that_is_retried_is_replayed(broker: Broker) -> None:
    broker.worker()
    job_id, _ = broker.submit()
    broker.answer(b"worker", broker.dispatched[0], [row(kind=OutcomeKind.FAILED)])
    broker.call("retry", ids=[job_id])
    assert kinds(broker, job_id) == ["enqueued", "failed", "replayed"]


def test_a_job_that_is_submitted_twice_is_a_duplicate(broker: Broker) -> None:
    job_id, _ = broker.submit()
    broker.submit(job_id)
    assert kinds(broker, job_id) == ["enqueued", "duplicate"]


def test_unique_jobs_replace_and_follow_each_other(broker: Broker) -> None:
    """A replaced job is cancelled; one that waits for another is delayed."""
    old, _ = broker.submit(headers="unique:k,unique-mode:replace")
    new, _ = broker.submit(headers="unique:k,unique-mode:replace")
    refused, _ = broker.submit(headers="unique:k")
    assert kinds(broker, old) == ["enqueued", "cancelled"]
    assert kinds(broker, new) == ["enqueued"]
    assert kinds(broker, refused) == ["duplicate"]
    broker.worker()
    held, _ = broker.submit(headers="unique:k,unique-mode:keep_last")
    assert kinds(broker, held) == ["delayed"]
    assert "due_us" not in broker.events()[-1]
    broker.answer(b"worker", broker.dispatched[0], [row()])
    broker.tick()
    assert kinds(broker, held) == ["delayed", "enqueued"]


def test_what_headers_say_a_job_belongs_to_is_in_its_events(broker: Broker) -> None:
    marks = "root-id:r,parent-id:p,trace-id:t,schedule-id:s,release:1.2"
    broker.submit(headers=marks)
    (event,) = broker.events()
    names = ("root_id", "parent_id", "trace_id", "schedule_id", "release")
    assert [event[name] for name in names] == ["r", "p", "t", "s", "1.2"]


def test_a_failed_commit_makes_no_event(broker: Broker) -> None:
    """The job gets its event when it is submitted again; the numbers have no gap."""
    broker.submit()
    job_id = broker.new_id()
    commit = broker.store.submit
    broker.store.submit = lambda _: broker.store._write_results.append(QueueFull("no space"))
    broker.submit(job_id)
    broker.store.submit = commit
    broker.submit(job_id)
    assert kinds(broker, job_id) == ["enqueued"]
    assert [event["seq"] for event in broker.events()] == [1, 2]


def test_numbers_go_on_after_a_crash(broker: Broker) -> None:
    broker.submit()
    broker.crash()
    broker.submit()
    assert [event["seq"] for event in broker.events()] == [1, 2]


# The bounds of the store


def small_store(broker: Broker, ring: int, cap: int) -> None:
    """Open the store with other limits."""
    broker.store.close()
    broker.store = SqliteStore(
        broker.path, broker.clock, durability="memory", reserve=0, events_ring=ring, events_cap=cap
    )
    broker.store.open()


def test_without_a_journal_the_oldest_events_make_room(broker: Broker) -> None:
    """No gap event is needed."""
    small_store(broker, 4000, 8000)
    for _ in range(100):
        broker.submit()
    numbers = [event["seq"] for event in broker.events()]
    assert numbers[0] > 40
    assert numbers == list(range(numbers[0], 101))
    assert {event["kind"] for event in broker.events()} == {"enqueued"}
    (size,) = broker.store._db.execute("SELECT sum(length(body)) FROM events").fetchone()
    assert 3000 < size < 5000


def test_a_journal_that_stays_away_is_told_what_was_dropped(broker: Broker) -> None:
    """Each number is either stored or in an event of kind gap."""
    small_store(broker, 4000, 8000)
    broker.submit()
    broker.store.submit([writes.SealEvents("j", 1, broker.clock.now(), 30.0)])
    broker.store.finished()
    for _ in range(200):
        broker.submit()
    events = broker.events(1)
    there = {event["seq"] for event in events}
    gaps = [event for event in events if event["kind"] == "gap"]
    assert gaps
    dropped = {number for gap in gaps for number in range(gap["gap_first"], gap["gap_last"] + 1)}
    assert there == set(range(min(there), max(there) + 1))
    assert dropped == set(range(2, min(there)))


# What lasts, and what was never stored


def test_a_lease_that_lasts_is_noted(broker: Broker) -> None:
    """After some seconds, and then at intervals until it ends."""
    broker.worker()
    job_id, _ = broker.submit()
    for _ in range(30):
        broker.wait(1.0)
        broker.tell(b"worker", Heartbeat(broker.new_id(), "received:1,window:0,held:1"))
    broker.answer(b"worker", broker.dispatched[0], [row()])
    assert kinds(broker, job_id) == ["enqueued", "leased", "progress", "succeeded"]
    noted = broker.events()[1]
    assert (noted["worker_id"], noted["delivery"]) == ("w", 1)
    assert noted["leased_us"] == broker.events()[0]["ts_us"]


def test_a_lease_that_lasts_is_recorded_before_what_happens_in_the_same_tick(
    broker: Broker,
) -> None:
    broker.worker()
    job_id, _ = broker.submit()
    broker.clock.time += 6.0
    broker.put(b"boss", Call(broker.new_id(), "cancel", pack({"ids": [job_id]})))
    broker.tick()
    assert kinds(broker, job_id) == ["enqueued", "leased", "cancelled"]


def test_a_lease_began_when_it_was_given_whatever_broker_hears_of_its_end(broker: Broker) -> None:
    """Not when a restarted broker recovered it, since the job started before that."""
    broker.worker()
    job_id, _ = broker.submit()
    leased = broker.clock.now()
    broker.wait(2.0)
    broker.crash()
    broker.clock.time += 1.0
    broker.worker(received=1, held=(1,), window=0)
    assert broker.call("info", id=job_id)["leased"] == leased
    broker.wait(4.0)
    broker.answer(b"worker", broker.dispatched[0], [row(started=leased + 0.5, run_time=6.0)])
    events = {event["kind"]: event["leased_us"] for event in broker.events()[1:]}
    assert events == {"leased": leased * 1e6, "succeeded": leased * 1e6}


def test_a_lease_began_when_it_was_given_though_the_broker_stood_still(broker: Broker) -> None:
    """Only its deadlines move, and a chunk that did not arrive is sent again."""
    broker.worker()
    broker.submit()
    leased = broker.clock.now()
    broker.clock.time += 60.0
    broker.core.shift(broker.clock.now(), 60.0)
    broker.wait(6.0)
    broker.ready(b"worker", 0, received=0)
    assert len(broker.dispatched) == 2
    broker.answer(b"worker", broker.dispatched[0], [row(started=leased + 0.5, run_time=6.0)])
    assert broker.events()[-1]["leased_us"] == leased * 1e6


def test_a_job_without_guarantee_makes_one_event(broker: Broker) -> None:
    """That of its end, since no commit has it before."""
    broker.worker()
    job_id, _ = broker.submit(headers="guarantee:False")
    broker.answer(b"worker", broker.dispatched[0], [row()])
    broker.wait(1.0)
    assert kinds(broker, job_id) == ["succeeded"]


# Readers


def test_events_may_have_another_id_than_their_store(broker: Broker) -> None:
    """After a failover that may have lost the last events; peers still use the id of the store."""
    store_id = broker.core.state.store_id
    assert broker.call("ping")["events_id"] == store_id
    broker.store._db.execute("INSERT INTO meta VALUES ('events_id', 'later')")
    broker.crash()
    assert broker.call("events.read")["store"] == "later"
    ping = broker.call("ping")
    assert (ping["store"], ping["events_id"]) == (store_id, "later")


def test_a_journal_reads_and_seals_by_calls(broker: Broker) -> None:
    ids = [broker.submit()[0] for _ in range(3)]
    answer = broker.call("events.read", after=1)
    assert (answer["store"], answer["first"], answer["next"]) == (
        broker.core.state.store_id, 1, 4,
    )  # fmt: skip
    events = [event["job_id"] for row in answer["rows"] for event in rows_of("b", row[0], row[2])]
    assert events == ids[1:]
    assert broker.call("events.seal", journal="j", sealed=2)["sealed"] == 2
    refused = broker.call("events.seal", journal="other", sealed=0)
    assert refused.code == "journal-taken"


@pytest.mark.parametrize("arguments", [{"after": -1}, {"after": "1"}, {"bytes": True}])
def test_calls_about_events_are_checked(broker: Broker, arguments: dict[str, object]) -> None:
    assert broker.call("events.read", **arguments).code == "bad-arguments"
    assert broker.call("events.seal", sealed=0).code == "bad-arguments"


def test_observers_are_told_in_order_and_again_where_they_had_no_room(broker: Broker) -> None:
    """They get no events from before this run of the broker."""
    broker.submit()
    broker.crash()
    events: list[list[int]] = []
    room = [False, True]

    def take(rows: list[reads.EventRow]) -> bool:
        events.append([row.first for row in rows])
        return room.pop(0) if room else True

    broker.core.events.observe = take
    broker.submit()
    broker.wait(1.0)
    broker.submit()
    broker.wait(1.0)
    assert events == [[2], [2], [3]]


def test_without_observers_events_are_not_even_read(broker: Broker) -> None:
    broker.wait(2.0)
    assert not broker.core.has_writes


def test_a_huge_commit_makes_several_rows(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fits into a frame, and the numbers continue from row to row."""
    monkeypatch.setattr("eventmq.engine.engine.ROW_EVENTS", 4)
    for n in (3, 3, 3):
        ids = [broker.new_id() for _ in range(n)]
        body = encode_batch([("default", TASK)], [(i, 0, b"x") for i in ids])
        broker.put(b"client", Request(broker.new_id(), "", f"batch:{n}", body))
    broker.tick()
    rows = broker.store._db.execute("SELECT first, count FROM events").fetchall()
    assert rows == [(1, 6), (7, 3)]
    assert [event["seq"] for event in broker.events()] == list(range(1, 10))


def test_a_job_replaced_by_another_of_its_batch_comes_before_it_ends(broker: Broker) -> None:
    """So a reader of the events gets the final state of the job last."""
    headers = f"{TASK},unique:k,unique-mode:replace"
    ids = [broker.new_id(), broker.new_id()]
    body = encode_batch([("default", headers)], [(i, 0, b"x") for i in ids])
    broker.tell(b"c", Request(broker.new_id(), "", "batch:2", body))
    events = [(event["kind"], event["job_id"]) for event in broker.events()]
    assert events == [("enqueued", ids[0]), ("cancelled", ids[0]), ("enqueued", ids[1])]
