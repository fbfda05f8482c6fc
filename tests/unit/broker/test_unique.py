"""Unique keys in the broker: one job per key, and the end of the one before."""

from __future__ import annotations

import logging
from urllib.parse import quote

import pytest

from eventmq.errors import ProtocolError, QueueFull
from eventmq.job import OutcomeKind
from eventmq.store.writes import unique_rule
from eventmq.wire.batches import decode_exceptions, encode_batch, pack, unpack
from eventmq.wire.commands import Ack, Call, Error, Kbai, Reply, Request
from eventmq.wire.results import decode_error
from tests.support.broker_harness import TASK, Broker, chunks, row


def headers(mode: str, more: str = "") -> str:
    return ",".join(filter(None, ["unique:k", f"unique-mode:{mode}" if mode else "", more]))


def submit(broker: Broker, mode: str = "", more: str = "", job_id: str = "") -> str:
    job_id, [got] = broker.submit(job_id, headers=headers(mode, more))
    assert isinstance(got, Ack), got
    return job_id


def refused(broker: Broker, mode: str = "", more: str = "") -> str:
    """Submit a job that is refused; return the id that the ERROR names."""
    _, [error] = broker.submit(headers=headers(mode, more))
    assert isinstance(error, Error), error
    assert error.code == "duplicate"
    return error.text


def states(broker: Broker, *ids: str) -> list[str]:
    return [state for _, state in broker.call("state", ids=list(ids))]


def sent(broker: Broker) -> list[str]:
    """Return the ids of the dispatched jobs, in order."""
    return [entry.id for _, index in chunks(broker.dispatched) for entry in index.entries]


def counts(broker: Broker) -> tuple[int, int, int]:
    """Return waiting, delayed and running jobs, after checking that memory and store agree."""
    [queue] = broker.call("queues")
    there = broker.store.engine.tables.counts()["default"]
    kept = broker.core.state.queues["default"].counts
    assert (there.queued, there.delayed) == (kept.queued, kept.delayed)
    return queue["waiting"], queue["delayed"], queue["running"]


def test_the_second_job_with_a_key_is_refused_until_the_first_has_ended(broker: Broker) -> None:
    """Waiting or running."""
    first = submit(broker)
    assert refused(broker) == first
    broker.worker()
    assert refused(broker) == first
    broker.answer(b"worker", broker.dispatched[0], [row()])
    submit(broker)
    assert counts(broker) == (0, 0, 1)


def test_the_same_request_again_gets_its_receipt(broker: Broker) -> None:
    for mode in ("", "replace", "keep_last"):
        job_id = submit(broker, mode, f"unique:{mode}x")
        submit(broker, mode, f"unique:{mode}x", job_id)
    assert counts(broker) == (3, 0, 0)


def test_a_batch_says_which_of_its_jobs_have_a_key_that_is_taken(broker: Broker) -> None:
    """Also if the other job is in the same batch."""
    templates = [("default", TASK), ("default", f"{TASK},{headers('')}")]
    names = [broker.new_id() for _ in range(4)]
    body = encode_batch(templates, [(n, i % 2, b"x") for i, n in enumerate(names)])
    [ack] = broker.tell(b"client", Request("m", "", "batch:4", body))
    assert isinstance(ack, Ack)
    assert decode_exceptions(ack.extra or b"") == {3: ("duplicate", names[1])}
    assert broker.core.state.counters["admitted"] == 3
    assert counts(broker) == (3, 0, 0)


def test_a_replaced_job_ends_as_cancelled_with_the_reason_and_is_never_started(
    broker: Broker,
) -> None:
    """Debounce: each call postpones the job; waiting peers of the old one are answered at once."""
    first = submit(broker, "replace", "countdown:5")
    broker.put(b"waiter", Call("c", "get", pack({"ids": [first]})))
    broker.tick()
    broker.wait(4.0)
    second = submit(broker, "replace", "countdown:5")
    [reply] = [m for m in broker.took(b"waiter") if isinstance(m, Reply)]
    [[job_id, state, _, result]] = unpack(reply.result, "")
    assert (job_id, state) == (first, "cancelled")
    assert f"replaced by job {second}" in decode_error(result).message
    broker.worker()
    broker.wait(4.0)
    assert sent(broker) == []
    assert counts(broker) == (0, 1, 0)
    broker.wait(2.0)
    assert sent(broker) == [second]
    assert broker.core.state.counters["replaced"] == 1


def test_a_queued_job_leaves_the_window_when_it_is_replaced(broker: Broker) -> None:
    first = submit(broker, "replace")
    second = submit(broker, "replace")
    assert counts(broker) == (1, 0, 0)
    broker.worker(window=2)
    assert sent(broker) == [second]
    assert states(broker, first, second) == ["cancelled", "running"]


def test_a_parked_job_can_be_replaced(broker: Broker) -> None:
    broker.worker(tasks=("shop.other",))
    first = submit(broker, "replace")
    broker.wait(2.0)
    second = submit(broker, "replace")
    broker.worker(b"w2", "two")
    assert sent(broker) == [second]
    assert states(broker, first) == ["cancelled"]


def test_a_running_job_is_not_replaced(broker: Broker) -> None:
    broker.worker()
    first = submit(broker, "replace")
    assert refused(broker, "replace") == first
    broker.answer(b"worker", broker.dispatched[0], [row()])
    submit(broker, "replace")


def test_a_job_that_is_leased_in_the_same_turn_is_not_replaced(broker: Broker) -> None:
    """Its chunk is sent after the commit that would have ended it."""
    first = submit(broker, "replace")
    broker.worker(window=0)
    text = f"{TASK},ack-requested,{headers('replace')}"
    broker.put(b"client", Request("second", "default", text, b"x"))
    broker.ready(b"worker", 1)
    assert sent(broker) == [first]
    assert [m.text for m in broker.took(b"client") if isinstance(m, Error)] == [first]
    assert states(broker, first, "second") == ["running", ""]


def test_two_in_one_turn_leave_one(broker: Broker) -> None:
    """Each message is a write of its own; a worker waits already."""
    broker.worker(window=4)
    for name in ("a", "b", "c"):
        broker.put(b"client", Request(name, "default", f"{TASK},{headers('replace')}", b"x"))
    broker.tick()
    assert sent(broker) == ["c"]
    assert states(broker, "a", "b", "c") == ["cancelled", "cancelled", "running"]
    assert counts(broker) == (0, 0, 1)


def test_the_last_one_takes_over_time_and_place(broker: Broker) -> None:
    """So it cannot be postponed for ever."""
    first = submit(broker, "keep_last", "countdown:5")
    broker.wait(4.0)
    second = submit(broker, "keep_last", "countdown:5")
    broker.worker()
    broker.wait(1.5)
    assert sent(broker) == [second]
    assert states(broker, first) == ["cancelled"]


def test_the_last_one_keeps_the_place_in_the_queue(broker: Broker) -> None:
    submit(broker, "keep_last")
    broker.wait(1.0)
    other, _ = broker.submit()
    last = submit(broker, "keep_last")
    broker.worker(window=2)
    assert sent(broker) == [last, other]


def test_the_last_one_waits_for_the_running_one(broker: Broker) -> None:
    """At most one runs and one waits, which becomes ready when the first has ended."""
    broker.worker()
    first = submit(broker, "keep_last")
    second = submit(broker, "keep_last")
    assert broker.call("info", id=second)["due"] == 0.0
    third = submit(broker, "keep_last")
    assert states(broker, first, second, third) == ["running", "cancelled", "delayed"]
    assert counts(broker) == (0, 1, 1)
    broker.answer(b"worker", broker.dispatched[0], [row()])
    broker.ready(b"worker", 1, received=1)
    assert sent(broker) == [first, third]
    assert counts(broker) == (0, 0, 1)


@pytest.mark.parametrize("kind", [OutcomeKind.RETRY, OutcomeKind.HANDED_BACK, OutcomeKind.DIED])
def test_the_last_one_waits_until_the_first_is_over_for_good(
    broker: Broker, kind: OutcomeKind
) -> None:
    """A failed attempt, or a lost worker, is not the end of a job."""
    broker.worker()
    first, second = submit(broker, "keep_last"), submit(broker, "keep_last")
    broker.answer(b"worker", broker.dispatched[0], [row(0, kind, countdown=1.0)])
    broker.ready(b"worker", 1, received=1)
    broker.wait(2.0)
    broker.ready(b"worker", 1, received=1)
    third = submit(broker, "keep_last")
    assert states(broker, second, third) == ["cancelled", "delayed"]
    assert sent(broker) == [first, first]
    broker.answer(b"worker", broker.dispatched[1], [row()])
    broker.ready(b"worker", 1, received=2)
    assert sent(broker) == [first, first, third]


def test_keys_and_those_who_wait_survive_a_restart(broker: Broker) -> None:
    broker.worker()
    first, second = submit(broker, "keep_last"), submit(broker, "keep_last")
    broker.crash()
    assert refused(broker) == first
    broker.worker(received=1, held=(1,))
    broker.answer(b"worker", broker.dispatched[0], [row()])
    broker.ready(b"worker", 1, received=1)
    assert sent(broker) == [first, second]


def test_a_job_that_waits_for_no_other_is_released_at_the_start(broker: Broker) -> None:
    """Whatever happened to the first job."""
    broker.worker()
    _, second = submit(broker, "keep_last"), submit(broker, "keep_last")
    broker.store._db.execute("DELETE FROM jobs WHERE id <> ?", (second,))
    broker.crash()
    broker.worker(b"w2", "two")
    broker.wait(0.5)
    assert sent(broker)[1:] == [second]


def test_a_job_of_a_lost_worker_keeps_its_key(broker: Broker) -> None:
    broker.worker()
    first = submit(broker)
    broker.tell(b"worker", Kbai("bye"))
    assert refused(broker) == first


def test_a_cancelled_job_frees_its_key_and_who_waits_for_it(broker: Broker) -> None:
    broker.worker()
    first, second = submit(broker, "keep_last"), submit(broker, "keep_last")
    broker.call("cancel", ids=[first])
    broker.ready(b"worker", 1, received=1)
    assert sent(broker) == [first, second]
    assert counts(broker) == (0, 0, 1)


def test_a_failed_job_that_is_queued_again_has_its_key_again(broker: Broker) -> None:
    """The operator decides: the key is not checked."""
    broker.worker()
    first = submit(broker)
    broker.answer(b"worker", broker.dispatched[0], [row(0, OutcomeKind.FAILED)])
    broker.call("retry", ids=[first])
    assert refused(broker) == first


def test_a_failed_commit_changes_nothing(broker: Broker) -> None:
    """The old job is still there, and the new one can be submitted again."""
    first = submit(broker, "replace")
    text = f"{TASK},ack-requested,{headers('replace')}"
    broker.put(b"client", Request("new", "default", text, b"x"))
    broker.core.decide(broker.clock.now())
    _, settle = broker.core.take_batch()
    settle(QueueFull("no space"))
    assert [m.frames[2] for m in broker.core.take_deferred_sends()] == [b"ERROR"]
    assert states(broker, first, "new") == ["queued", ""]
    submit(broker, "replace", job_id="new")
    assert states(broker, first, "new") == ["cancelled", "queued"]


def test_a_period_goes_on_after_the_end(broker: Broker) -> None:
    broker.worker()
    first = submit(broker, more="unique-period:60")
    broker.answer(b"worker", broker.dispatched[0], [row()])
    broker.wait(10.0)
    assert refused(broker, more="unique-period:60") == first
    broker.wait(51.0)
    submit(broker, more="unique-period:60")


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ("unique-mode:sometimes", "bad-header"),
        ("unique-period:-1", "bad-header"),
        ("unique-states:asleep", "bad-header"),
        ("guarantee:False", "bad-header"),
        ("unique:" + "k" * 1025, "too-large"),
    ],
)
def test_nonsense_about_keys_is_refused(broker: Broker, more: str, code: str) -> None:
    _, [error] = broker.submit(headers=f"unique:k,{more}")
    assert isinstance(error, Error)
    assert error.code == code


def test_a_taken_key_is_no_warning_in_the_log(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """The mode is meant for that; it is only counted."""
    submit(broker)
    with caplog.at_level(logging.WARNING, "eventmq.broker"):
        refused(broker)
    assert caplog.text == ""
    assert broker.core.state.counters["errors.duplicate"] == 1


def test_other_headers_are_no_key() -> None:
    """A value that looks like a key is only a value."""
    assert unique_rule("x-note:unique:a") is None
    with pytest.raises(ProtocolError, match="unique-states is 'x'"):
        unique_rule("unique:a,unique-states:x")


@pytest.mark.parametrize("name", ["unique", "limit-key", "task"])
def test_a_key_is_bounded_in_bytes(broker: Broker, name: str) -> None:
    """1,024 bytes are accepted, and more are refused, since no index accepts any length.

    The error has the limit and the length. A batch is refused as a whole.
    """
    fits = quote("€" * 341 + "x")
    others = "content-type:msgpack" if name == "task" else TASK
    refused = []
    for job_id in ("a", "b"):
        text = f"{others},ack-requested,{name}:{fits}{'y' if job_id == 'b' else ''}"
        refused.append(broker.tell(b"client", Request(job_id, "q", text, b"x")))
    [[stored], [error]] = refused
    assert isinstance(stored, Ack)
    assert isinstance(error, Error)
    assert error.code == "too-large"
    assert "at most 1,024 bytes" in error.text
    assert "1,025" in error.text
    templates = [("q", TASK), ("q", f"{others},{name}:{fits}y")]
    body = encode_batch(templates, [("c", 0, b"x"), ("d", 1, b"x")])
    [error] = broker.tell(b"client", Request("m", "", "batch:2", body))
    assert isinstance(error, Error)
    assert error.code == "too-large"
    assert states(broker, "a", "b", "c", "d") == ["queued", "", "", ""]
