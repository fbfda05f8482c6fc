"""Actors: the events of operations, and which actors the broker believes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.broker.acts import MAX_ACTOR
from eventmq.broker.authenticator import AccessControl
from eventmq.broker.grants import Grant
from eventmq.schedule import Schedule
from eventmq.store.writes import ScheduleRow
from eventmq.wire.batches import encode_batch, pack
from eventmq.wire.calls import ACTING, CALLS
from eventmq.wire.commands import Call, Disconnect, Error, Inform, Request
from tests.unit.broker.test_operations import ask, code, failed, submit

if TYPE_CHECKING:
    from tests.support.broker_harness import Broker

ALICE = Grant("A", "alice", frozenset({"client"}))
ROOT = Grant("R", "root", frozenset({"admin"}))


def acts(broker: Broker) -> list[tuple[Any, ...]]:
    """Return operation, actor, job, queue and schedule of the recorded operations."""
    names = ("operation", "actor", "job_id", "queue", "schedule_id")
    return [
        tuple(event.get(name) for name in names)
        for event in broker.events() if event["kind"] == "operation"
    ]  # fmt: skip


def caused(broker: Broker, kind: str) -> list[tuple[Any, ...]]:
    return [
        (event["job_id"], event.get("operation"), event.get("actor"))
        for event in broker.events() if event["kind"] == kind
    ]  # fmt: skip


def schedule_row(name: str, version: int = 0) -> ScheduleRow:
    made = Schedule(name=name, task="shop.add", queue="default", trigger='every:{"seconds":5}')
    return ScheduleRow(name, version, None, None, "", pack(made.definition()))


def test_an_act_on_jobs_has_an_event_for_each_job_it_changed(broker: Broker) -> None:
    """The events that it causes have the actor too; an unknown job has no event."""
    first, second, other = submit(broker, 3)
    ask(broker, "cancel", ids=[first, second, "nonsense"], actor="anna@host")
    assert acts(broker) == [
        ("cancel", "anna@host", job_id, "default", None) for job_id in (first, second)
    ]
    assert caused(broker, "cancelled") == [(i, "cancel", "anna@host") for i in (first, second)]
    ask(broker, "cancel", ids=[first], actor="bob@host")
    assert len(acts(broker)) == 2
    assert caused(broker, "enqueued")[-1] == (other, None, None)


def test_retry_and_drop_say_who_did_it(broker: Broker) -> None:
    one, two = failed(broker, 2)
    ask(broker, "retry", ids=[one], actor="anna")
    ask(broker, "drop", ids=[two], actor="bob")
    assert [act[:3] for act in acts(broker)] == [("retry", "anna", one), ("drop", "bob", two)]
    assert caused(broker, "replayed") == [(one, "retry", "anna")]


def test_an_act_on_a_queue_or_on_the_broker_is_about_no_job(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "eventmq.broker")
    submit(broker, 1)
    ask(broker, "pause", queue="default", actor="anna")
    ask(broker, "resume", queue="default", actor="anna")
    ask(broker, "clock.accept")
    broker.tell(b"boss", Disconnect(broker.new_id()), port="admin")
    assert acts(broker) == [
        ("pause", "anna", None, "default", None), ("resume", "anna", None, "default", None),
        ("clock.accept", None, None, None, None), ("disconnect", None, None, None, None),
    ]  # fmt: skip
    assert "queue default is paused, by 'anna'" in caplog.messages
    assert "this broker was asked to stop" in caplog.messages


def test_what_a_filter_chooses_is_one_act(broker: Broker) -> None:
    """The event has its queue and task; the events of the cancelled jobs have the actor."""
    ids = submit(broker, 3)
    filters = {"action": "cancel", "queue": "default", "operation": "purge", "actor": "anna"}
    ask(broker, "bulk", id="sweep", **filters)
    ask(broker, "bulk", id="sweep", **filters)  # asks for the progress
    broker.wait(0.1)
    assert acts(broker) == [("purge", "anna", None, "default", None)]
    assert caused(broker, "cancelled") == [(job_id, "purge", "anna") for job_id in ids]


def test_what_is_dropped_by_a_filter_has_an_event_of_its_own(broker: Broker) -> None:
    """Dropped jobs have no other event."""
    ids = failed(broker, 2)
    ask(broker, "bulk", id="s", action="drop", task="shop.add", actor="anna")
    broker.wait(0.1)
    assert [act[:3] for act in acts(broker)] == [
        ("drop", "anna", None), *(("drop", "anna", job_id) for job_id in sorted(ids)),
    ]  # fmt: skip


def test_after_a_restart_the_rest_of_a_filter_has_no_actor(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event of the operation itself exists: it was committed with its record."""
    [job_id] = submit(broker, 1)
    monkeypatch.setattr(broker.core.bulk, "run", lambda: None)
    ask(broker, "bulk", id="s", action="cancel", queue="default", actor="anna")
    broker.crash()
    broker.wait(0.1)
    assert [act[:2] for act in acts(broker)] == [("cancel", "anna")]
    assert caused(broker, "cancelled") == [(job_id, None, None)]


def test_a_job_that_nobody_cancelled_by_name_has_no_event_more(broker: Broker) -> None:
    """Without a key and an actor, an event would add nothing to that of the job's end."""
    [job_id] = submit(broker, 1)
    ask(broker, "cancel", ids=[job_id])
    assert acts(broker) == []
    assert caused(broker, "cancelled") == [(job_id, "cancel", None)]


def test_changes_of_schedules_are_acts(broker: Broker) -> None:
    """Only stored changes have events."""
    rows = [[list(schedule_row(name)), None] for name in ("a", "b")]
    broker.call("schedules.save", rows=rows, actor="anna")
    again = [[list(schedule_row("a")), 7], [list(schedule_row("b", 1)), 1]]
    broker.call("schedules.save", rows=again, actor="bob", operation="disable")
    broker.call("schedules.remove", name="a", actor="bob")
    broker.call("schedules.remove", name="a", actor="bob")
    assert [(act[0], act[1], act[4]) for act in acts(broker)] == [
        ("schedule", "anna", "a"), ("schedule", "anna", "b"), ("disable", "bob", "b"),
        ("unschedule", "bob", "a"),
    ]  # fmt: skip


def test_a_schedule_that_is_run_by_hand_names_its_job(broker: Broker) -> None:
    """An unknown job is refused."""
    job_id, _ = broker.submit(headers="task:shop.add,schedule-id:nightly")
    broker.call("schedules.ran", name="nightly", id=job_id, actor="anna")
    assert acts(broker) == [("run", "anna", job_id, "default", "nightly")]
    assert code(broker.call("schedules.ran", name="nightly", id="nonsense")) == "job-not-found"
    assert len(acts(broker)) == 1


@pytest.mark.parametrize("actor", ["x" * (MAX_ACTOR + 1), "two\nlines", "\x1b[31m", 5])
def test_an_actor_that_would_spoil_a_log_is_refused_and_nothing_is_done(
    broker: Broker, actor: object
) -> None:
    [job_id] = submit(broker, 1)
    assert code(ask(broker, "cancel", ids=[job_id], actor=actor)) == "bad-arguments"
    assert ask(broker, "state", ids=[job_id]) == [[job_id, "queued"]]
    assert acts(broker) == []


def test_an_operation_that_the_call_does_not_do_is_refused(broker: Broker) -> None:
    submit(broker, 1)
    answer = ask(broker, "pause", queue="default", operation="drop")
    assert code(answer) == "bad-arguments"
    assert not broker.core.state.queue("default").counts.paused


def call_as(broker: Broker, access: AccessControl, user: str, name: str, **arguments: Any) -> None:
    """Make a call with a key."""
    who = f"peer-{user}".encode()
    for message in (
        Inform(broker.new_id(), "", "client"), Call(broker.new_id(), name, pack(arguments)),
    ):  # fmt: skip
        access.receive("main", [who, *message.frames()], user, broker.clock.now())
        broker.tick()
    assert not [m for m in broker.took(who) if isinstance(m, Error)]


@pytest.mark.parametrize(
    ("named", "expected"), [("anna@host", "anna@host"), ("", "root")], ids=["named", "not named"]
)
def test_an_admin_key_may_say_who_acts(broker: Broker, named: str, expected: str) -> None:
    """Without an actor in the call, the name of the key counts."""
    [job_id] = submit(broker, 1)
    access = AccessControl(broker.core, {"R": ROOT}, rate=0.0)
    call_as(broker, access, "R", "cancel", ids=[job_id], actor=named)
    assert [act[:3] for act in acts(broker)] == [("cancel", expected, job_id)]


def test_what_another_key_says_of_itself_is_ignored(broker: Broker) -> None:
    access = AccessControl(broker.core, {"A": ALICE}, rate=0.0)
    job_id = broker.new_id()
    body = encode_batch([("default", "task:shop.add")], [(job_id, 0, b"x")])
    for message in (
        Inform(broker.new_id(), "", "client"), Request(broker.new_id(), "", "batch:1", body),
    ):  # fmt: skip
        access.receive("main", [b"peer-A", *message.frames()], "A", broker.clock.now())
        broker.tick()
    broker.took(b"peer-A")
    call_as(broker, access, "A", "cancel", ids=[job_id], actor="root")
    assert [act[:3] for act in acts(broker)] == [("cancel", "alice", job_id)]


def test_a_machine_without_a_key_is_nobody(broker: Broker) -> None:
    """Without keys another machine may cancel a job, but its actor is not believed."""
    [job_id] = submit(broker, 1)
    access = AccessControl(broker.core, None, rate=0.0)
    call_as(broker, access, "10.0.0.7", "cancel", ids=[job_id], actor="root")
    assert acts(broker) == []
    assert caused(broker, "cancelled") == [(job_id, "cancel", None)]


def test_every_call_that_acts_takes_an_actor() -> None:
    assert {name for name, spec in CALLS.items() if "actor" in spec.arguments} == ACTING
    reading = {"failed", "jobs", "status", "workers", "events.read", "events.seal"}
    admins = {name for name, spec in CALLS.items() if spec.role == "admin"}
    assert admins - ACTING == reading & admins
