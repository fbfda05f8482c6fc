"""Operations: pause and purge queues, retry and drop failed jobs, read their histories."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.broker import operations
from eventmq.broker.limits import Limits
from eventmq.broker.outcomes import MAX_ERROR
from eventmq.errors import QueueFull
from eventmq.job import OutcomeKind
from eventmq.wire.batches import encode_batch, encode_outcomes, pack, unpack
from eventmq.wire.commands import Call, Cancel, Error, Reply, Request, decode
from eventmq.wire.results import ERROR_TYPE, RemoteError, decode_error, encode_error
from tests.support.broker_harness import Broker, chunks, row

if TYPE_CHECKING:
    from pathlib import Path

    from eventmq.wire.batches import OutcomeRow


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make slices of five jobs."""
    monkeypatch.setattr(operations, "SLICE", 5)


def ask(broker: Broker, name: str, **arguments: Any) -> Any:
    return broker.call(name, client=b"boss", **arguments)


def queue(broker: Broker, name: str = "default") -> dict[str, Any]:
    [match] = [row for row in ask(broker, "queues") if row["name"] == name]
    return dict(match)


def code(answer: object) -> str:
    assert isinstance(answer, Error)
    return answer.code


def submit(broker: Broker, n: int, queue: str = "default", headers: str = "") -> list[str]:
    """Submit jobs of task shop.add, or of the task in the headers."""
    ids = [broker.new_id() for _ in range(n)]
    text = f"task:shop.add,content-type:msgpack,{headers}".rstrip(",")
    body = encode_batch([(queue, text)], [(i, 0, b"x") for i in ids])
    broker.tell(b"client", Request(broker.new_id(), "", f"batch:{n}", body))
    return ids


def failure(kind: OutcomeKind = OutcomeKind.FAILED, error: str = "builtins.ValueError", **more):
    """Return the outcome of a task that has raised."""
    result = encode_error(RemoteError(error, "it broke", "Traceback ..."))
    fields: dict[str, Any] = {"content_type": ERROR_TYPE, "started": 5.0, "run_time": 0.5, **more}
    return row(0, kind, result, **fields)


def fail(broker: Broker, *ids: str, error: str = "builtins.ValueError", **more: Any) -> None:
    """Let a worker run jobs one by one; the named ones fail, the others succeed."""
    broker.core.state.run_times.clear()
    messages = broker.worker(b"f", "failing", **more)
    while pairs := chunks(messages):
        [(chunk, index)] = pairs
        assert len(index.entries) == 1
        outcome = failure(error=error) if index.entries[0].id in ids else row()
        messages = broker.answer(b"f", chunk, [outcome])


def failed(broker: Broker, n: int, **more: Any) -> list[str]:
    ids = submit(broker, n)
    fail(broker, *ids, **more)
    return ids


def states(broker: Broker, ids: list[str]) -> list[str]:
    return [state for _, state in ask(broker, "state", ids=ids)]


def bulk(broker: Broker, bulk_id: str = "s", **arguments: Any) -> int:
    """Run a bulk operation to its end; return the number of affected jobs."""
    answer = ask(broker, "bulk", id=bulk_id, **arguments)
    assert not isinstance(answer, Error), answer
    for _ in range(100):
        if answer["done"]:
            return int(answer["count"])
        answer = ask(broker, "bulk", id=bulk_id)
    raise AssertionError("the bulk operation never ends")


# Pause


def test_a_paused_queue_hands_out_nothing_and_takes_jobs_as_ever(broker: Broker) -> None:
    broker.submit()
    assert ask(broker, "pause", queue="default") is None
    broker.submit()
    assert chunks(broker.worker()) == []
    assert (queue(broker)["paused"], queue(broker)["waiting"]) == (True, 2)


def test_a_resumed_queue_hands_out_at_once(broker: Broker) -> None:
    broker.submit()
    ask(broker, "pause", queue="default")
    broker.worker()
    ask(broker, "resume", queue="default")
    assert len(chunks(broker.took(b"worker"))) == 1
    assert queue(broker)["paused"] is False


def test_a_pause_survives_a_crash_and_other_queues_go_on(broker: Broker) -> None:
    broker.submit()
    broker.submit(queue="other")
    ask(broker, "pause", queue="default")
    broker.crash()
    [(chunk, _)] = chunks(broker.worker(queues='[[10, "default"], [10, "other"]]', window=2))
    assert chunk.queue == "other"
    ask(broker, "resume", queue="default")
    broker.crash()
    assert queue(broker)["paused"] is False


def test_what_runs_in_a_paused_queue_ends_as_usual(broker: Broker) -> None:
    job_id, _ = broker.submit()
    [(chunk, _)] = chunks(broker.worker())
    ask(broker, "pause", queue="default")
    broker.answer(b"worker", chunk, [row()])
    assert states(broker, [job_id]) == ["succeeded"]


def test_delayed_jobs_of_a_paused_queue_become_ready_and_wait(broker: Broker) -> None:
    broker.submit(headers="countdown:1")
    ask(broker, "pause", queue="default")
    broker.wait(3.0)
    assert chunks(broker.worker()) == []
    assert queue(broker)["waiting"] == 1


def test_a_queue_that_only_a_worker_named_can_be_paused(broker: Broker) -> None:
    """It has no jobs yet."""
    broker.worker()
    assert ask(broker, "pause", queue="default") is None
    broker.submit()
    assert chunks(broker.took(b"worker")) == []


@pytest.mark.parametrize("name", ["pause", "resume"])
def test_a_queue_that_is_not_there_is_said(broker: Broker, name: str) -> None:
    assert code(ask(broker, name, queue="nosuch")) == "queue-not-found"


# Purge


@pytest.mark.usefixtures("short")
def test_a_purge_ends_what_waits_and_leaves_what_runs(broker: Broker) -> None:
    """Waiting and delayed jobs, in the window or outside of it."""
    running, _ = broker.submit()
    [(chunk, _)] = chunks(broker.worker())
    waiting = submit(broker, 12)
    delayed = submit(broker, 3, headers="countdown:60")
    other = submit(broker, 2, queue="other")
    assert bulk(broker, action="cancel", queue="default", reason="purged") == 15
    assert set(states(broker, waiting + delayed)) == {"cancelled"}
    assert set(states(broker, other)) == {"queued"}
    assert queue(broker) | {"workers": 0} == {
        "name": "default", "waiting": 0, "delayed": 0, "running": 1, "failed": 0,
        "paused": False, "workers": 0, "limits": "", "waited": 0.0,
    }  # fmt: skip
    assert chunks(broker.answer(b"worker", chunk, [row()])) == []
    assert states(broker, [running]) == ["succeeded"]


def test_a_purge_reaches_jobs_beyond_the_window(tmp_path: Path) -> None:
    """These are in the store only, and the window is not filled with them later."""
    broker = Broker(tmp_path, Limits(queue_window=4))
    submit(broker, 20)
    assert bulk(broker, action="cancel", queue="default") == 20
    (after,) = submit(broker, 1)
    [(_, index)] = chunks(broker.worker())
    assert [entry.id for entry in index.entries] == [after]
    broker.close()


@pytest.mark.usefixtures("short")
def test_what_comes_after_the_begin_is_not_purged(broker: Broker) -> None:
    """A bulk operation affects jobs up to the last number at its start, so it ends."""
    submit(broker, 12)
    broker.put(
        b"boss", Call("7", "bulk", pack({"id": "s", "action": "cancel", "queue": "default"}))
    )
    later_jobs = submit(broker, 3)
    assert bulk(broker) == 12
    assert set(states(broker, later_jobs)) == {"queued"}


@pytest.mark.usefixtures("short")
def test_a_slice_is_one_commit_and_a_crash_between_two_loses_nothing(broker: Broker) -> None:
    """The operation continues at its cursor; the repeated call returns the whole count."""
    ids = submit(broker, 22)
    begin = {"id": "s", "action": "cancel", "queue": "default", "reason": "purged"}
    broker.put(b"boss", Call("7", "bulk", pack(begin)))
    sizes = []
    for _ in range(3):
        broker.core.decide(broker.clock.now())
        entries, settle = broker.core.take_batch()
        broker.store.submit(entries)
        [write_results] = broker.store.finished()
        settle(write_results)
        sizes.append(broker.core.state.counters["cancelled"])
    assert sizes == [0, 5, 10]
    broker.crash()
    broker.tick()
    answer = ask(broker, "bulk", **begin)
    assert (answer["count"], answer["done"]) == (22, True)
    assert set(states(broker, ids)) == {"cancelled"}
    assert queue(broker)["waiting"] == 0
    broker.crash()
    assert bulk(broker) == 22
    assert broker.core.state.counters["cancelled"] == 0


@pytest.mark.usefixtures("short")
def test_those_who_wait_for_swept_jobs_are_answered(broker: Broker) -> None:
    ids = submit(broker, 8)
    broker.tell(b"c", Call("7", "get", pack({"ids": ids})))
    bulk(broker, action="cancel", queue="default", reason="purged")
    rows = [
        each for m in broker.took(b"c") if isinstance(m, Reply) for each in unpack(m.result, "")
    ]
    assert sorted(each[0] for each in rows) == sorted(ids)
    assert {decode_error(each[3]).message for each in rows} == {"purged"}


def test_running_jobs_are_cancelled_if_that_is_said(broker: Broker) -> None:
    running, _ = broker.submit()
    broker.worker()
    waiting, _ = broker.submit()
    assert bulk(broker, action="cancel", queue="default", running=True) == 2
    assert states(broker, [running, waiting]) == ["cancelled", "cancelled"]
    assert [m.job for m in broker.took(b"worker") if isinstance(m, Cancel)] == [running]


def test_jobs_are_cancelled_by_task_and_by_state(broker: Broker) -> None:
    adds = submit(broker, 3)
    ids = [broker.new_id() for _ in range(2)]
    for job_id in ids:
        text = "task:shop.sub,content-type:msgpack"
        broker.tell(b"client", Request(job_id, "other", text, b"x"))
    later_jobs = submit(broker, 2, headers="countdown:60")
    assert bulk(broker, "1", action="cancel", task="shop.sub") == 2
    assert bulk(broker, "2", action="cancel", task="shop.add", state="delayed") == 2
    assert set(states(broker, ids + later_jobs)) == {"cancelled"}
    assert set(states(broker, adds)) == {"queued"}


def test_a_disk_without_space_stops_a_bulk_operation_until_there_is_some(broker: Broker) -> None:
    submit(broker, 3)
    broker.put(
        b"boss", Call("7", "bulk", pack({"id": "s", "action": "cancel", "queue": "default"}))
    )
    broker.core.decide(broker.clock.now())
    entries, settle = broker.core.take_batch()
    broker.store.submit(entries)
    [write_results] = broker.store.finished()
    settle(write_results)
    broker.core.decide(broker.clock.now())
    _, settle = broker.core.take_batch()
    settle(QueueFull("no space"))
    broker.core.decide(broker.clock.now())
    assert not broker.core.has_writes
    broker.wait(2.0)
    assert bulk(broker) == 3


def test_the_name_of_the_call_before_1_0_is_taken_too(broker: Broker) -> None:
    """Also where grants are checked, since the old name is read as the new one."""
    broker.submit()
    frames = Call("7", "sweep", pack({"id": "s", "action": "cancel", "queue": "default"})).frames()
    assert decode(frames).name == "bulk"
    assert ask(broker, "sweep", id="s", action="cancel", queue="default")["action"] == "cancel"
    assert bulk(broker) == 1


def test_two_bulk_operations_take_turns(broker: Broker, short: None) -> None:
    submit(broker, 12)
    submit(broker, 12, queue="other")
    for name in ("default", "other"):
        call = {"id": name, "action": "cancel", "queue": name}
        broker.put(b"boss", Call(name, "bulk", pack(call)))
    broker.tick()
    assert [bulk(broker, "default"), bulk(broker, "other")] == [12, 12]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"id": "s", "action": "cancel", "queue": "nosuch"}, "queue-not-found"),
        ({"id": "s", "action": "cancel"}, "bad-arguments"),
        ({"id": "s", "action": "burn", "queue": "default"}, "bad-arguments"),
        ({"id": "", "action": "cancel", "queue": "default"}, "bad-arguments"),
        ({"id": "s", "action": "cancel", "queue": "default", "state": "failed"}, "bad-arguments"),
        ({"id": "s", "action": "cancel", "queue": "default", "error": "X"}, "bad-arguments"),
        ({"id": "s", "action": "cancel", "queue": "default", "running": 1}, "bad-arguments"),
        ({"id": "s", "action": "drop", "since": "yesterday"}, "bad-arguments"),
        ({"id": "unknown"}, "bad-arguments"),
    ],
)
def test_a_bulk_operation_that_makes_no_sense_is_refused(
    broker: Broker, arguments: dict[str, Any], expected: str
) -> None:
    broker.submit()
    assert code(ask(broker, "bulk", **arguments)) == expected
    assert queue(broker)["waiting"] == 1


# Failed jobs


def test_a_failed_job_is_queued_again_under_its_id(broker: Broker) -> None:
    """As its next attempt, with its body and its history."""
    [job_id] = failed(broker, 1)
    assert ask(broker, "retry", ids=[job_id]) == [[job_id, "queued", "failed"]]
    assert (queue(broker)["failed"], queue(broker)["waiting"]) == (0, 0)
    [(chunk, index)] = chunks(broker.took(b"f"))
    [entry] = index.entries
    assert (entry.id, entry.attempt, entry.delivery) == (job_id, 2, 2)
    assert index.payload(chunk.body, entry) == b"x"
    broker.answer(b"f", chunk, [row(result=b"\x05")])
    [[_, state, _, result]] = ask(broker, "get", ids=[job_id])
    assert (state, result) == ("succeeded", b"\x05")
    assert [a["attempt"] for a in ask(broker, "info", id=job_id)["attempts"]] == [1]


def test_a_retry_survives_a_crash(broker: Broker) -> None:
    [job_id] = failed(broker, 1)
    broker.tell(b"f", Reply("x", b"\x90", "y", "chunk:99"))
    ask(broker, "pause", queue="default")
    ask(broker, "retry", ids=[job_id])
    broker.crash()
    assert states(broker, [job_id]) == ["queued"]
    assert (queue(broker)["failed"], queue(broker)["waiting"]) == (0, 1)
    assert len(ask(broker, "info", id=job_id)["attempts"]) == 1


@pytest.mark.parametrize(("name", "expected"), [("retry", "queued"), ("drop", "")])
def test_a_broker_killed_right_after_the_commit_has_done_it(
    broker: Broker, name: str, expected: str
) -> None:
    """It was killed before its answer; the repeated call returns the state."""
    [job_id] = failed(broker, 1)
    ask(broker, "pause", queue="default")
    broker.put(b"boss", Call("7", name, pack({"ids": [job_id]})))
    broker.core.decide(broker.clock.now())
    entries, _ = broker.core.take_batch()
    broker.store.submit(entries)
    broker.crash()
    assert ask(broker, name, ids=[job_id]) == [[job_id, expected, expected]]
    assert (queue(broker)["failed"], queue(broker)["waiting"]) == (0, int(name == "retry"))


def test_what_cannot_be_retried_or_dropped_says_its_state(broker: Broker) -> None:
    job_id, _ = broker.submit()
    for name in ("retry", "drop"):
        answer = ask(broker, name, ids=[job_id, "nobody"])
        assert answer == [[job_id, "queued", "queued"], ["nobody", "", ""]]
    assert queue(broker)["waiting"] == 1


def test_retrying_twice_is_one_retry(broker: Broker) -> None:
    """A client may repeat an unanswered call."""
    [job_id] = failed(broker, 1)
    ask(broker, "pause", queue="default")
    ask(broker, "retry", ids=[job_id])
    assert ask(broker, "retry", ids=[job_id]) == [[job_id, "queued", "queued"]]
    assert queue(broker)["waiting"] == 1
    assert broker.core.state.counters["failed_retried"] == 1


def test_a_retry_of_an_attempt_is_done_to_that_attempt_only(broker: Broker) -> None:
    """The repeated call changes nothing, even after the job has failed again."""
    one, two = failed(broker, 2)
    first = {"ids": [one, two], "attempts": [1, 2]}
    assert ask(broker, "retry", **first) == [[one, "queued", "failed"], [two, "failed", "failed"]]
    fail(broker, one)
    assert ask(broker, "retry", **first) == [[i, "failed", "failed"] for i in (one, two)]
    broker.crash()
    assert ask(broker, "retry", ids=[one], attempts=[2]) == [[one, "queued", "failed"]]
    assert queue(broker)["failed"] == 1


@pytest.mark.parametrize("attempts", [[1], [1, 1, 1], [1, -1], [1, True], "11", {"a": 1}])
def test_attempts_that_do_not_fit_the_ids_are_refused(broker: Broker, attempts: object) -> None:
    ids = failed(broker, 2)
    assert code(ask(broker, "retry", ids=ids, attempts=attempts)) == "bad-arguments"
    assert queue(broker)["failed"] == 2


def test_a_retried_job_goes_to_the_back_of_its_queue(tmp_path: Path) -> None:
    """Also if the window is smaller than the queue."""
    broker = Broker(tmp_path, Limits(queue_window=4))
    ids = failed(broker, 3)
    ask(broker, "pause", queue="default")
    broker.clock.time += 5.0
    waiting = submit(broker, 10)
    broker.clock.time += 5.0
    ask(broker, "retry", ids=ids)
    ask(broker, "resume", queue="default")
    messages = broker.took(b"f")
    got = []
    while pairs := chunks(messages):
        [(chunk, index)] = pairs
        got += [entry.id for entry in index.entries]
        messages = broker.answer(b"f", chunk, [row(i) for i in range(len(index.entries))])
    assert sorted(got) == sorted(waiting + ids)
    assert got[:10] == waiting
    broker.close()


def test_an_expiry_that_has_passed_does_not_stop_a_retry(broker: Broker) -> None:
    """The operator wants the job to run now."""
    ids = submit(broker, 1, headers=f"expires:{broker.clock.now() + 10}")
    fail(broker, *ids)
    broker.clock.time += 20
    ask(broker, "retry", ids=ids)
    assert len(chunks(broker.worker())) == 1


def test_a_dropped_job_is_gone_with_its_history(broker: Broker) -> None:
    ids = failed(broker, 2)
    assert ask(broker, "drop", ids=ids[:1]) == [[ids[0], "dropped", "failed"]]
    assert states(broker, ids) == ["", "failed"]
    assert queue(broker)["failed"] == 1
    broker.crash()
    assert states(broker, ids) == ["", "failed"]
    assert queue(broker)["failed"] == 1


def test_failed_jobs_are_listed_the_last_first_by_filters(broker: Broker) -> None:
    old = failed(broker, 2)
    broker.clock.time += 100.0
    new = failed(broker, 1, error="shop.errors.OutOfStock")
    since = broker.clock.now() - 50.0
    both = [*new, *reversed(old)]

    def listed(**filters: Any) -> list[str]:
        answer = ask(broker, "failed", **filters)
        assert answer["cursor"] == ""
        return [each["id"] for each in answer["failed"]]

    assert listed() == both
    assert listed(since=since) == new
    assert listed(until=since) == both[1:]
    assert listed(error="OutOfStock") == listed(error="shop.errors.OutOfStock") == new
    assert listed(error="ValueError", queue="default", task="shop.add") == both[1:]
    assert listed(queue="other") == listed(task="other") == listed(error="errors") == []


def test_a_listing_goes_on_page_by_page(broker: Broker) -> None:
    ids = failed(broker, 5)
    got, cursor = [], ""
    for _ in range(3):
        answer = ask(broker, "failed", limit=2, cursor=cursor)
        got += [each["id"] for each in answer["failed"]]
        cursor = answer["cursor"]
    assert (got, cursor) == (list(reversed(ids)), "")
    assert code(ask(broker, "failed", limit=0)) == "bad-arguments"


@pytest.mark.usefixtures("short")
def test_many_failed_jobs_are_retried_slice_by_slice(broker: Broker) -> None:
    """Each once, although they may fail again meanwhile."""
    ids = failed(broker, 12)
    more = submit(broker, 1)
    fail(broker, *more, error="shop.OutOfStock")
    assert bulk(broker, action="retry", error="ValueError") == 12
    assert queue(broker)["failed"] == 1
    fail(broker, *ids)
    infos = [ask(broker, "info", id=job_id) for job_id in ids]
    assert {(info["state"], info["attempt"]) for info in infos} == {("failed", 2)}
    assert {tuple(a["attempt"] for a in info["attempts"]) for info in infos} == {(1, 2)}


@pytest.mark.usefixtures("short")
def test_many_failed_jobs_are_dropped_slice_by_slice(broker: Broker) -> None:
    ids = failed(broker, 12)
    broker.put(b"boss", Call("7", "bulk", pack({"id": "s", "action": "drop", "queue": "default"})))
    broker.core.decide(broker.clock.now())
    entries, _ = broker.core.take_batch()
    broker.store.submit(entries)
    broker.crash()
    broker.tick()
    assert bulk(broker) == 12
    assert set(states(broker, ids)) == {""}
    assert queue(broker)["failed"] == 0


# Histories


def retry(broker: Broker, n: int, **more: Any) -> str:
    """Submit a job that fails ``n`` times and is retried each time."""
    job_id, _ = broker.submit()
    messages = broker.worker()
    for number in range(n):
        [(chunk, _)] = chunks(messages)
        outcome = failure(OutcomeKind.RETRY, f"shop.Error{number}", countdown=1.0, **more)
        broker.answer(b"worker", chunk, [outcome])
        broker.wait(2.0)
        messages = broker.took(b"worker")
    return job_id


def types(broker: Broker, job_id: str) -> list[str]:
    attempts = ask(broker, "info", id=job_id)["attempts"]
    return [decode_error(attempt["error"]).type for attempt in attempts]


def test_each_failed_attempt_is_kept_with_its_error(broker: Broker) -> None:
    job_id = retry(broker, 2)
    first, second = ask(broker, "info", id=job_id)["attempts"]
    at = first.pop("at")
    assert 0 < at < second["at"]
    assert decode_error(first.pop("error"))[:3] == ("shop.Error0", "it broke", "Traceback ...")
    assert first == {
        "attempt": 1, "delivery": 1, "started": 5.0, "ran": 0.5, "worker": "w",
        "content_type": ERROR_TYPE,
    }  # fmt: skip
    assert (second["attempt"], second["delivery"]) == (2, 2)


def test_the_history_is_there_after_a_crash_and_after_the_end(broker: Broker) -> None:
    job_id = retry(broker, 1)
    broker.crash()
    assert types(broker, job_id) == ["shop.Error0"]
    chunk = broker.dispatched[-1]
    broker.worker(received=2, held=(2,))
    broker.answer(b"worker", chunk, [row()])
    assert types(broker, job_id) == ["shop.Error0"]
    assert states(broker, [job_id]) == ["succeeded"]


def test_the_last_ten_attempts_are_kept(broker: Broker) -> None:
    job_id = retry(broker, 13)
    assert types(broker, job_id) == [f"shop.Error{n}" for n in range(3, 13)]
    [(chunk, _)] = chunks([broker.dispatched[-1]])
    broker.answer(b"worker", chunk, [failure(error="shop.Last")])
    assert types(broker, job_id) == [*(f"shop.Error{n}" for n in range(4, 13)), "shop.Last"]


def test_a_history_goes_with_the_outcome(broker: Broker) -> None:
    """Not before the outcome, and with the next commit after it at the latest."""
    job_id = retry(broker, 1)
    [(chunk, _)] = chunks([broker.dispatched[-1]])
    broker.answer(b"worker", chunk, [row()])
    for days, rows in ((0.9, 1), (1.3, 0)):
        broker.clock.time += days * 86_400.0 - 30.0
        broker.core.shift(broker.clock.now(), days * 86_400.0)
        broker.submit()
        broker.wait(70.0)
        broker.submit()
        count = broker.store._db.execute("SELECT count(*) FROM attempts").fetchone()
        assert count == (rows,)
    assert states(broker, [job_id]) == [""]


def test_a_very_long_error_is_not_kept_but_said(broker: Broker) -> None:
    job_id, _ = broker.submit()
    [(chunk, _)] = chunks(broker.worker())
    long: OutcomeRow = row(0, OutcomeKind.RETRY, b"x" * (MAX_ERROR + 1), countdown=1.0)
    broker.answer(b"worker", chunk, [long])
    [attempt] = ask(broker, "info", id=job_id)["attempts"]
    assert "too long" in decode_error(attempt["error"]).message


def test_a_retry_whose_commit_failed_leaves_no_history(broker: Broker) -> None:
    """The worker repeats its REPLY, which then counts once."""
    job_id, _ = broker.submit()
    [(chunk, _)] = chunks(broker.worker())
    outcome = failure(OutcomeKind.RETRY, countdown=1.0)
    reply = Reply("r", encode_outcomes([outcome]), chunk.id, chunk.headers)
    broker.put(b"worker", reply)
    broker.core.decide(broker.clock.now())
    _, settle = broker.core.take_batch()
    settle(QueueFull("no space"))
    broker.tick()
    assert ask(broker, "info", id=job_id)["attempts"] == []
    broker.tell(b"worker", reply)
    assert [a["attempt"] for a in ask(broker, "info", id=job_id)["attempts"]] == [1]


# Retention


def test_failed_jobs_over_their_age_are_forgotten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With a warning and a counter; younger ones are kept."""
    broker = Broker(tmp_path, Limits(failed_ttl=100.0))
    old = failed(broker, 2)
    broker.wait(60.0)
    young = failed(broker, 1)
    with caplog.at_level(logging.WARNING, "eventmq.broker"):
        broker.wait(60.0)
    assert states(broker, old + young) == ["", "", "failed"]
    assert queue(broker)["failed"] == 1
    assert broker.core.state.counters["failed_forgotten"] == 2
    assert "failed jobs of queue default were forgotten" in caplog.text
    broker.crash()
    assert queue(broker)["failed"] == 1
    broker.close()


def test_failed_jobs_over_their_bytes_are_forgotten_the_oldest_first(tmp_path: Path) -> None:
    broker = Broker(tmp_path, Limits(max_failed_bytes=1000))
    ids = []
    for _ in range(4):
        job_id, _ = broker.submit(body=b"x" * 300)
        ids.append(job_id)
        fail(broker, job_id)
        broker.wait(3.0)
    kept = states(broker, ids)
    assert kept == sorted(kept)
    assert kept.count("failed") == queue(broker)["failed"] == 2
    broker.close()


def test_the_age_of_failed_jobs_is_looked_at_after_a_restart(tmp_path: Path) -> None:
    """Also if no other job fails from then on."""
    broker = Broker(tmp_path, Limits(failed_ttl=100.0))
    ids = failed(broker, 2)
    broker.wait(60.0)
    broker.crash()
    broker.wait(39.0)
    assert states(broker, ids) == ["failed", "failed"]
    broker.wait(3.0)
    assert states(broker, ids) == ["", ""]
    broker.close()


def test_the_bytes_of_failed_jobs_count_after_a_restart(tmp_path: Path) -> None:
    """The oldest are deleted as soon as there are too many, whichever run stored them."""
    broker = Broker(tmp_path, Limits(max_failed_bytes=1000))
    ids = []
    for _ in range(3):
        job_id, _ = broker.submit(body=b"x" * 300)
        ids.append(job_id)
        fail(broker, job_id)
        broker.wait(3.0)
        broker.crash()
    broker.wait(3.0)
    assert states(broker, ids) == ["", "failed", "failed"]
    broker.close()


def test_an_idle_broker_does_not_look_for_failed_jobs_again_and_again(broker: Broker) -> None:
    """It would write to the disk for nothing."""
    failed(broker, 1)
    broker.wait(5.0)
    broker.clock.time += 5.0
    broker.core.decide(broker.clock.now())
    assert not broker.core.has_writes
