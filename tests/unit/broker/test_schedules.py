"""SCHEDULE and UNSCHEDULE in the broker: stored before they are acknowledged, then forwarded."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.errors import SettingsError
from eventmq.plugins.schedule_stores import BrokerSchedules
from eventmq.wire.batches import pack
from eventmq.wire.commands import Ack, Error, Inform, Reply, Schedule
from eventmq.wire.features import Features
from eventmq.wire.schedules import identity
from tests.support.broker_harness import Broker

if TYPE_CHECKING:
    from pathlib import Path

    from eventmq.schedule import Schedule as Stored


def legacy(*args: Any, path: str = "jobs", **more: Any) -> bytes:
    call = {"callable": "tick", "path": path, "args": list(args), "kwargs": {}, **more}
    return json.dumps(["run", call]).encode()


BODY = legacy()


def stored(broker: Broker) -> list[Stored]:
    def ask(name: str, arguments: Any) -> Any:
        return broker.call(name, **arguments)

    store = BrokerSchedules(ask, partial(partial, ask))
    return list(store.load().schedules)


def schedules_in(messages: Any) -> list[Schedule]:
    return [message for message in messages if isinstance(message, Schedule)]


@pytest.mark.parametrize(
    ("message", "trigger", "haste"),
    [
        (Schedule("1", "q", "interval:60", BODY), 'every:{"seconds": 60.0}', True),
        (Schedule("1", "q", "nohaste,interval:1.5", BODY), 'every:{"seconds": 1.5}', False),
        (Schedule("1", "q", "cron:0 4 * * *", BODY), 'cron:{"expression": "0 4 * * *"}', True),
        (Schedule("1", "q", "", BODY, "60", ""), 'every:{"seconds": 60.0}', True),
        (Schedule("1", "q", "", BODY, "-1", "5 4 * * *"), 'cron:{"expression": "5 4 * * *"}', True),
    ],
)
def test_both_forms_are_kept(broker: Broker, message: Schedule, trigger: str, haste: bool) -> None:
    [ack] = broker.tell(b"c", message._replace(headers=f"guarantee,{message.headers}"))
    assert isinstance(ack, Ack)
    broker.crash()
    [schedule] = stored(broker)
    assert (schedule.trigger, schedule.queue, schedule.body) == (trigger, "q", BODY)
    assert (schedule.source, schedule.legacy, schedule.nohaste) == ("wire", True, not haste)
    assert schedule.last_fire_time == (None if haste else schedule.created)
    assert schedule.headers == "guarantee"


def test_nothing_is_answered_that_was_not_asked_for(broker: Broker) -> None:
    assert broker.tell(b"c", Schedule("1", "q", "interval:60", BODY)) == []
    assert broker.tell(b"c", Schedule("1", "q", "", BODY, remove=True)) == []


def test_headers_of_the_job_are_kept_and_those_of_time_are_not(broker: Broker) -> None:
    headers = "run_count:5,nohaste,interval:60,timeout:9,retry-count:2,ack-requested,own:1"
    broker.tell(b"c", Schedule("1", "q", headers, BODY))
    [schedule] = stored(broker)
    assert set(schedule.headers.split(",")) == {"timeout:9", "retry-count:2", "own:1"}
    assert (schedule.run_count, schedule.remaining) == (5, 5)


def test_the_identity_is_what_is_called_with_what() -> None:
    """A hash of path, callable and arguments, not of trigger or order of keys."""
    assert identity(BODY, "") == identity(legacy(), "")
    turned = json.dumps(["run", dict(reversed(json.loads(BODY)[1].items()))]).encode()
    assert identity(BODY, "") == identity(turned, "")
    others = [legacy(1), legacy(path="more"), legacy(class_args=[7]), legacy(kwargs={"a": 1}), b"x"]
    assert len({identity(body, "") for body in [BODY, *others]}) == 6
    assert identity(b"x", "a") != identity(b"x", "b")
    assert len({identity(body, "") for body in (b"[" * 100_000, b"\xff", b"[]", b"[1,2]")}) == 4


def test_a_schedule_of_the_same_call_is_replaced(broker: Broker) -> None:
    broker.tell(b"c", Schedule("1", "q", "nohaste,interval:60", BODY))
    broker.tell(b"c", Schedule("2", "q", "nohaste,interval:60", legacy(2)))
    broker.clock.time += 100
    broker.tell(b"c", Schedule("3", "other", "nohaste", BODY, "-1", "* * * * *"))
    first, second = sorted(stored(broker), key=lambda made: made.queue)
    assert (first.queue, first.last_fire_time, first.version) == ("other", broker.clock.now(), 2)
    assert (second.queue, second.version) == ("q", 1)


def test_the_same_again_changes_nothing(broker: Broker) -> None:
    """Repeating is safe: the schedule neither fires at once nor restarts."""
    message = Schedule("1", "q", "interval:60,ack-requested", BODY)
    broker.tell(b"c", message)
    before = stored(broker)
    broker.clock.time += 100
    assert [type(m) for m in broker.tell(b"c", message._replace(id="2"))] == [Ack]
    assert stored(broker) == before


def test_one_that_has_ended_begins_anew(broker: Broker) -> None:
    """As it does if the scheduler has removed it already."""
    message = Schedule("1", "q", "interval:60,run_count:2", BODY)
    broker.tell(b"c", message)
    [made] = stored(broker)
    step = [made.name, made.version, broker.clock.now(), 0, "x" * 32]
    assert broker.call("schedules.advance", rows=[step])["done"] == [True]
    broker.tell(b"c", message._replace(id="2"))
    [again] = stored(broker)
    assert (again.remaining, again.last_fire_time, again.version) == (2, None, 3)


@pytest.mark.parametrize("interval", [None, "60"])
def test_unschedule_removes_by_identity(broker: Broker, interval: str | None) -> None:
    """Whatever the form, the queue and the interval, also with a cron expression."""
    broker.tell(b"c", Schedule("1", "q", "", BODY, "-1", "* * * * *"))
    broker.tell(b"c", Schedule("2", "q", "interval:60", legacy(2)))
    cron = None if interval is None else ""
    removal = Schedule("3", "other", "ack-requested", BODY, interval, cron, remove=True)
    assert [type(m) for m in broker.tell(b"c", removal)] == [Ack]
    assert [made.body for made in stored(broker)] == [legacy(2)]
    broker.crash()
    assert [made.body for made in stored(broker)] == [legacy(2)]


def test_a_task_of_ours_can_be_scheduled_by_message(broker: Broker) -> None:
    headers = "task:shop.send,content-type:msgpack,interval:60"
    broker.tell(b"c", Schedule("1", "q", headers, b"\x92\x90\x80"))
    [schedule] = stored(broker)
    assert (schedule.task, schedule.legacy) == ("shop.send", False)
    assert set(schedule.headers.split(",")) == {"task:shop.send", "content-type:msgpack"}


def test_a_trigger_that_there_cannot_be_is_refused(tmp_path: Path) -> None:
    def check(text: str) -> None:
        raise SettingsError(f"no such day: {text}")

    broker = Broker(tmp_path)
    broker.core.schedules.check = check
    [error] = broker.tell(b"c", Schedule("1", "q", "cron:0 0 30 2 *", BODY))
    assert isinstance(error, Error)
    assert error.code == "bad-trigger"
    assert "no such day" in error.text
    broker.close()


def test_a_full_disk_refuses_a_schedule_and_goes_on(broker: Broker) -> None:
    from eventmq.errors import QueueFull

    broker.put(b"c", Schedule("1", "q", "ack-requested,interval:60", BODY))
    _, settle = broker.core.take_batch()
    settle(QueueFull("the disk is full"))
    broker.tick()
    [error] = broker.took(b"c")
    assert isinstance(error, Error)
    assert error.code == "store-full"
    assert stored(broker) == []


# Legacy schedulers


def test_a_legacy_scheduler_gets_each_once_per_session_and_no_haste_in_a_repetition(
    broker: Broker,
) -> None:
    message = Schedule("1", "q", "guarantee", BODY, "60", "")
    broker.tell(b"s", Inform("i", "", "scheduler"))
    broker.tell(b"c", message)
    assert schedules_in(broker.took(b"s")) == [message]
    broker.tell(b"c", message._replace(id="2"))
    assert schedules_in(broker.took(b"s")) == []
    changed = message._replace(id="3", interval="70")
    broker.tell(b"c", changed)
    assert schedules_in(broker.took(b"s")) == [changed]
    [again] = schedules_in(broker.tell(b"s", Inform("i", "", "scheduler")))
    assert again._replace(id="3") == changed._replace(headers="guarantee,nohaste")
    broker.tell(b"c", changed._replace(id="4"))
    assert schedules_in(broker.took(b"s")) == []


def test_a_scheduler_that_follows_another_gets_all_that_is_plain(broker: Broker) -> None:
    broker.tell(b"s1", Inform("i", "", "scheduler"))
    broker.tell(b"s2", Inform("i", "", "scheduler"))
    for n in range(1200):
        broker.put(b"c", Schedule(str(n), "q", "interval:60,nohaste", legacy(n)))
    broker.put(b"c", Schedule("x", "q", "interval:60,content-type:msgpack", b"\x92\x90\x80"))
    broker.tick()
    assert (len(schedules_in(broker.took(b"s1"))), schedules_in(broker.took(b"s2"))) == (1200, [])
    broker.unreachable.add(b"s1")
    broker.wait(16)
    got = schedules_in(broker.took(b"s2"))
    assert {message.body for message in got} == {legacy(n) for n in range(1200)}
    assert {message.headers for message in got} == {"interval:60,nohaste"}


def test_schedulers_of_ours_are_told_that_a_legacy_one_fires(broker: Broker) -> None:
    ask = {"holder": "h", "seconds": 1.0}
    ours = Features(session="beat").format()
    broker.tell(b"ours", Inform("i", "", "scheduler", ours))
    assert broker.call("schedules.lease", **ask)["foreign"] is False
    broker.tell(b"s", Inform("i", "", "scheduler"))
    assert broker.call("schedules.lease", **ask)["foreign"] is True
    message = Schedule("1", "q", "interval:60", BODY)
    broker.tell(b"c", message)
    assert schedules_in(broker.took(b"ours")) == []
    broker.unreachable.add(b"s")
    broker.wait(16)
    assert broker.call("schedules.lease", **ask)["foreign"] is False


# Calls


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("list", {"limit": 0}),
        ("list", {"limit": "x"}),
        ("list", {"after": -1}),
        ("list", {"name": 5}),
        ("save", {}),
        ("save", {"rows": [5]}),
        ("save", {"rows": [[["a", 0, None, None, "", b"\xc1"], None]]}),
        ("save", {"rows": [[["a", 0, None, None, "", pack({"trigger": 5})], None]]}),
        ("save", {"rows": [[["a", 0, None, None, "", pack({"nonsense": 5})], None]]}),
        ("save", {"rows": [[["a", 0, None, None, "", pack([1])], None]]}),
        ("advance", {"rows": [["a", 1, "x", None, ""]]}),
        ("advance", {"rows": [["a", 1, 1.0, None, ""]] * 1001}),
        ("remove", {"name": 5}),
        ("remove", {"name": "a", "version": "x"}),
        ("lease", {"holder": "", "seconds": 1}),
        ("lease", {"holder": "a", "seconds": -1}),
        ("lease", {"holder": "a", "seconds": float("nan")}),
        ("lease", {"holder": "a" * 300, "seconds": 1}),
        ("lease", {}),
    ],
)
def test_bad_arguments_are_refused(broker: Broker, name: str, arguments: dict[str, Any]) -> None:
    error = broker.call(f"schedules.{name}", **arguments)
    assert isinstance(error, Error)
    assert error.code in {"bad-arguments", "bad-body"}
    assert broker.call("schedules.list")["rows"] == []


def test_a_list_goes_on_page_by_page(broker: Broker) -> None:
    for n in range(7):
        broker.put(b"c", Schedule(str(n), "q", "interval:60", legacy(n)))
    broker.tick()
    names, after = [], 0
    while True:
        page = broker.call("schedules.list", after=after, limit=3, scan=True)
        names += [row[0] for row in page["rows"]]
        after = page["revision"]
        if not page["more"]:
            break
    assert len(set(names)) == len(names) == 7
    assert page["head"] == after == 7


def test_a_call_is_answered_in_a_reply(broker: Broker) -> None:
    from eventmq.wire.commands import Call

    [reply] = broker.tell(b"c", Call("1", "schedules.remove", pack({"name": "a"})))
    assert isinstance(reply, Reply)
    assert reply.result == pack(False)
