"""Schedules of an app: declared in code, edited at any time, and fired in a ``memory://`` app."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.app import EventMQ
from eventmq.app.beat import BrokerBeatClient
from eventmq.app.wiring import Triggers
from eventmq.errors import ScheduleNotFound, SettingsError
from eventmq.events import rows_of
from eventmq.graph import Signature
from eventmq.interfaces import current_job
from eventmq.policies import Timing, at, cron, every
from eventmq.schedule import Schedule
from eventmq.scheduler.machine import SchedulerMachine
from eventmq.scheduler.runner import ScheduledJob
from tests.support.plugin_harness import providing
from tests.support.system import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Seconds that anything in these tests may take.
DEADLINE = 20.0


@pytest.fixture
def app() -> Iterator[EventMQ]:
    with EventMQ("shop", broker="memory://", result_timeout=DEADLINE) as app:
        yield app


def add(a: int, b: int = 0) -> int:
    return a + b


# Who did it


def acts(app: EventMQ) -> list[tuple[Any, ...]]:
    """Return what was done in the broker: operation, actor and schedule."""
    rows = app.ask("events.read", {"after": 0})["rows"]
    events = [event for first, _, body in rows for event in rows_of("b", first, body)]
    return [
        (event["operation"], event.get("actor"), event.get("schedule_id"))
        for event in events if event["kind"] == "operation"
    ]  # fmt: skip


def test_the_setting_says_who_changes_schedules_and_jobs() -> None:
    """Operations are distinguished: one call of the broker saves, enables and disables."""
    with EventMQ("shop", broker="memory://", actor="anna@host") as app:
        task = app.task(name="add")(add)
        app.schedule("nightly", task.s(1), cron("0 3 * * *"))
        app.schedules.disable("nightly")
        app.schedules.disable("nightly")
        app.schedules.enable("nightly")
        app.schedules.run("nightly")
        app.unschedule("nightly")
        task.options(countdown=99).delay(1).cancel()
        assert acts(app) == [
            *((what, "anna@host", "nightly") for what in ("schedule", "disable", "enable", "run")),
            ("unschedule", "anna@host", "nightly"), ("cancel", "anna@host", None),
        ]  # fmt: skip


def test_a_program_says_nobody_unless_it_is_told(app: EventMQ) -> None:
    """An argument of the call wins."""
    app.task(name="add")(add).delay(1).get()
    app.ask("pause", {"queue": "default"})
    app.ask("resume", {"queue": "default", "actor": "bob"})
    assert acts(app) == [("pause", None, None), ("resume", "bob", None)]


# Signatures


def test_a_signature_is_a_call_as_data(app: EventMQ) -> None:
    task = app.task(name="add")(add)
    assert task.s(1, b=2) == Signature("add", (1,), {"b": 2})
    assert task.si(1).immutable
    assert not task.s(1).immutable
    assert task.options(queue="fast", priority=3).s(1) == Signature(
        "add", (1,), {}, {"queue": "fast", "priority": 3}
    )


# Edits


def test_a_schedule_is_in_the_store_when_schedule_returns(app: EventMQ) -> None:
    task = app.task(name="add", retries=2, queue="slow")(add)
    app.schedule("nightly", task.s(1, b=2), cron("0 3 * * *", tz="Europe/Paris"), priority=7)
    made = app.schedules.get("nightly")
    assert (made.task, made.queue, made.source, made.app) == ("add", "slow", "client", "shop")
    headers = set(made.headers.split(","))
    assert {"task:add", "content-type:msgpack", "retry-count:2", "priority:7"} == headers
    assert made.trigger == 'cron:{"expression":"0 3 * * *","tz":"Europe/Paris"}'
    assert abs((made.last_fire_time or 0) - app.clock.now()) < DEADLINE
    assert app.unschedule("nightly")
    assert not app.unschedule("nightly")


def test_a_schedule_of_the_same_name_is_replaced_and_goes_on(app: EventMQ) -> None:
    task = app.task(name="add")(add)
    app.schedule("a", task.s(1), every(hours=1), run_count=5)
    first = app.schedules.get("a")
    app.schedule("a", task.s(1), every(hours=1), run_count=5)
    assert app.schedules.get("a") == first
    app.schedule("a", task.s(2), every(hours=1), run_count=5)
    second = app.schedules.get("a")
    assert (second.last_fire_time, second.remaining, second.version) == (first.last_fire_time, 5, 2)
    app.schedule("a", task.s(2), every(hours=2))
    third = app.schedules.get("a")
    assert (third.last_fire_time or 0) > (second.last_fire_time or 0)
    assert third.remaining is None


@pytest.mark.parametrize("number", [1, 2])
def test_one_that_has_ended_and_is_still_there_begins_anew(app: EventMQ, number: int) -> None:
    """The beat that removes it comes later."""
    task = app.task(name="add")(add)
    app.schedule("a", task.s(1), every(hours=1), run_count=5)
    ended = replace(app.schedules.get("a"), remaining=0)
    assert app.schedules.store.save([(ended, ended.version)]).done == [True]
    app.schedule("a", task.s(number), every(hours=1), run_count=5)
    stored = app.schedules.get("a")
    assert stored.remaining == 5
    assert stored.created > ended.created


def test_relative_expiry_is_kept_as_a_length_of_time(app: EventMQ) -> None:
    task = app.task(name="add", expires=60.0)(add)
    app.schedule("a", task.s(1), every(hours=1))
    app.schedule("b", task.s(1), every(hours=1), expires=timedelta(minutes=5))
    assert app.schedules.get("a").expires_in == 60.0
    assert app.schedules.get("b").expires_in == 300.0
    assert "expires" not in app.schedules.get("a").headers


def test_disabling_and_enabling(app: EventMQ) -> None:
    task = app.task(name="add")(add)
    app.schedule("a", task.s(1), every(seconds=1e6))
    app.schedules.disable("a")
    app.schedules.disable("a")
    made = app.schedules.get("a")
    assert not made.enabled
    assert app.schedules.next_fire_time(made) is None
    app.schedules.enable("a")
    again = app.schedules.get("a")
    assert again.enabled
    assert (again.last_fire_time or 0) > (made.last_fire_time or 0)
    assert app.schedules.next_fire_time(again) == pytest.approx((again.last_fire_time or 0) + 1e6)


def test_the_next_fire_time_has_its_jitter(app: EventMQ) -> None:
    """It is the time at which a beat makes the job, not only what the trigger says."""
    task = app.task(name="add")(add)
    app.schedule("a", task.s(1), every(seconds=1000), jitter=500.0)
    store, made = app.schedules.store, app.schedules.get("a")
    machine = SchedulerMachine(store.identity, Triggers(app.plugins))
    machine.replace([made], app.clock.now())
    assert machine.next_tick() == app.schedules.next_fire_time(made)
    assert machine.next_tick() != (made.last_fire_time or 0) + 1000


def test_running_one_now_does_not_touch_its_fire_times(app: EventMQ) -> None:
    task = app.task(name="add", expires=60.0)(add)
    app.schedule("a", task.s(1, b=2), every(hours=1))
    before = app.schedules.get("a")
    assert app.schedules.run("a").get() == 3
    assert app.schedules.get("a") == before


def test_the_ids_of_past_jobs_are_those_that_fired() -> None:
    """Also of the intervals from before it was switched off and on."""
    with EventMQ("shop", broker="memory://") as app:
        fired: list[str] = []

        @app.task(name="tick")
        def tick() -> None:
            fired.append(current_job().id)

        app.schedule("often", tick.s(), every(seconds=0.1))

        def past() -> dict[str, float]:
            return app.schedules.past_jobs(app.schedules.get("often"))

        until(lambda: len(fired) >= 4, "it has fired")
        app.schedules.disable("often")
        until(lambda: {*fired[:2]} <= {*past()}, "the first steps are stored")
        app.schedules.enable("often")
        before = len(fired)
        until(lambda: len(fired) >= before + 4, "it has fired again")
        both = {*fired[:2], *fired[before + 1 : before + 3]}
        until(lambda: both <= {*past()}, "the steps after it was enabled are stored too")
        app.schedules.disable("often")
        ids = past()
        assert sorted(ids.values(), reverse=True) == [*ids.values()]
        assert app.schedules.past_jobs(replace(app.schedules.get("often"), trigger="own:{}")) == {}


@pytest.mark.parametrize(
    ("expression", "zone", "count"),
    [
        ("0 9 * * 1-5", "UTC", 40), ("30 2 * * *", "Europe/Paris", 40), ("0 3 1 * *", "UTC", 2),
        ("*/7 * * * *", "Europe/Paris", 80), ("15 * * * *", "Australia/Lord_Howe", 100),
    ],
)  # fmt: skip
def test_past_fire_times_are_those_of_the_trigger(
    app: EventMQ, expression: str, zone: str, count: int
) -> None:
    """Over the end of summer time, at weekends, and after an hour that has no whole interval."""
    start = datetime(2026, 9, 20, tzinfo=timezone.utc).timestamp()
    end = datetime(2026, 11, 20, tzinfo=timezone.utc).timestamp()
    timing = cron(expression, tz=zone)
    trigger, times, at = Triggers(app.plugins)(str(timing)), list[float](), start
    while (at := trigger.next_after(at)) is not None and at <= end:
        times.append(at)
    made = Schedule(name="a", trigger=str(timing), created=start, last_fire_time=times[-1])
    found = app.schedules.past_jobs(made, 100)
    real = [at for at in found.values() if at in times]
    assert real[:count] == times[: -count - 1 : -1]


def test_the_error_of_an_unknown_name_has_the_nearest(app: EventMQ) -> None:
    task = app.task(name="add")(add)
    app.schedule("nightly", task.s(1), every(hours=1))
    for act in (app.schedules.get, app.schedules.enable, app.schedules.disable, app.schedules.run):
        with pytest.raises(ScheduleNotFound, match="no schedule 'nigthly'; did you mean 'nightly'"):
            act("nigthly")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"signature": "add"}, r"needs a task or a signature such as task\.s\(1\)"),
        ({"trigger": 30}, r"needs every\(seconds=30\)"),
        ({"trigger": Timing("sunrise")}, "no trigger is called 'sunrise'"),
        ({"trigger": Timing("every", {"minutes": 1})}, "has no option 'minutes'"),
        ({"run_count": 0}, "run_count of a schedule is 0; allowed is: a whole number from 1"),
        ({"misfire": "never"}, "allowed is: skip, one, all"),
        ({"overlap": "never"}, "allowed is: allow, skip, queue"),
        ({"jitter": -1.0}, "jitter of a schedule is -1.0"),
        ({"window": float("nan")}, "window of a schedule is nan"),
        ({"job_id": "x"}, "job_id is for one job"),
        ({"eta": datetime.now(timezone.utc)}, "eta is for one job"),
        ({"expires": datetime.now(timezone.utc)}, "expires as a datetime is for one job"),
        ({"priority": 999}, "priority is 999"),
        ({"colour": "red"}, "a call takes no argument 'colour'"),
        ({"name": ""}, "name of a schedule"),
        ({"name": "n" * 256}, "1 to 255 characters"),
        ({"trigger": at(datetime(2020, 1, 1, tzinfo=timezone.utc))}, "would never fire"),
    ],
)
def test_what_is_not_allowed_is_refused(app: EventMQ, change: dict[str, Any], problem: str) -> None:
    task = app.task(name="add")(add)
    arguments = {"name": "a", "signature": task.s(1), "trigger": every(hours=1), **change}
    with pytest.raises(SettingsError, match=problem):
        app.schedule(**arguments)
    assert app.schedules.list() == []


def test_arguments_that_the_task_does_not_take_are_refused(app: EventMQ) -> None:
    task = app.task(name="add")(add)
    with pytest.raises(TypeError, match="task add: "):
        app.schedule("a", task.s(1, 2, 3), every(hours=1))


def test_a_signing_serializer_is_refused() -> None:
    """It signs each job with its id, and a schedule's jobs have many."""
    with EventMQ(
        "signed", broker="memory://", serializer="dill", accept_content=("dill", "msgpack"),
        plugin_options={"dill": {"keys": ["k" * 32]}},
    ) as app:  # fmt: skip
        task = app.task(name="add")(add)
        with pytest.raises(SettingsError, match="serializer 'dill' signs every job individually"):
            app.schedule("a", task.s(1), every(hours=1))


def test_a_unique_key_is_made_of_the_arguments_of_the_schedule(app: EventMQ) -> None:
    task = app.task(name="add", unique="sum:{a}")(add)
    app.schedule("a", task.s(5), every(hours=1))
    assert "sum:5" in app.schedules.get("a").headers
    client, made = BrokerBeatClient(app.components), app.schedules.get("a")
    jobs = [ScheduledJob(c * 32, "add", "nobody", made.headers, made.body) for c in "12"]
    assert list(client.submit(jobs)()) == [True, None]


def test_a_task_by_name_needs_no_code(app: EventMQ) -> None:
    app.schedule("far", Signature("elsewhere.work", (1,)), every(hours=1))
    assert "task:elsewhere.work" in app.schedules.get("far").headers


# Code

MODULE = """
from eventmq import EventMQ, cron, every

app = EventMQ("coded", broker="memory://")


@app.task(schedule=every(seconds=30))
def tick():
    pass


@app.task
def send(to):
    pass


app.schedule("nightly", send.s("a@b.c"), cron("0 3 * * *"), queue="mail")
app.schedule("gone", send.s("x"), every(hours=1))
app.unschedule("gone")
"""


def test_a_module_declares_and_sends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Importing it opens no connection."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "coded.py").write_text(MODULE)
    import coded  # type: ignore[import-not-found]  # just written

    try:
        assert not coded.app.components.started
        declared = coded.app.schedules.in_code()
        assert set(declared) == {"coded.tick", "nightly"}
        assert (declared["nightly"].queue, declared["nightly"].source) == ("mail", "code")
        assert declared["coded.tick"].trigger == 'every:{"seconds":30.0}'
    finally:
        coded.app.close()
        sys.modules.pop("coded")


def test_two_schedules_of_the_code_with_one_name_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    more = 'app.schedule("nightly", send.s("other"), every(hours=1))\n'
    (tmp_path / "twice.py").write_text(MODULE + more)
    with pytest.raises(SettingsError, match="two schedules of the code have the name 'nightly'"):
        import twice  # type: ignore[import-not-found]  # noqa: F401 - just written


def test_a_schedule_of_a_task_must_be_one(app: EventMQ) -> None:
    with pytest.raises(SettingsError, match=r"schedule is 'nightly'; allowed is: every"):
        app.task(schedule="nightly")(add)  # type: ignore[arg-type]  # the point


# All in one process


def test_a_memory_app_fires_what_its_tasks_and_callers_say() -> None:
    done, own = threading.Semaphore(0), threading.Event()
    with EventMQ("shop", broker="memory://") as app:

        @app.task(name="own", schedule=every(seconds=0.2))
        def own_task() -> None:
            own.set()

        @app.task(name="called")
        def called(number: int) -> None:
            if number == 5:
                done.release()

        app.schedule("fast", called.s(5), every(seconds=0.1), run_count=3, nohaste=False)
        for _ in range(3):
            assert done.acquire(timeout=DEADLINE)
        assert own.wait(DEADLINE)
        assert not done.acquire(timeout=0.3)
        assert [made.name for made in app.schedules.list()] == ["own"]


def test_a_store_of_memory_is_shared_with_the_beat() -> None:
    done = threading.Event()
    with EventMQ("shop", broker="memory://", schedule_store="memory") as app:

        @app.task(name="called")
        def called() -> None:
            done.set()

        app.schedule("fast", called, every(seconds=0.1))
        assert done.wait(DEADLINE)


def test_a_trigger_of_a_plugin_is_chosen_by_its_name() -> None:
    class Soon:
        def __init__(self, after: float) -> None:
            self.after = after

        def next_after(self, fire_time: float) -> float | None:
            return fire_time + self.after

        def latest(self, fire_time: float, now: float) -> float | None:
            return None

    plugin = providing(eventmq_triggers={"soon": lambda context: Soon(**context.options)})
    done = threading.Event()
    with EventMQ("shop", broker="memory://", plugins=[plugin]) as app:

        @app.task(name="called")
        def called() -> None:
            done.set()

        app.schedule("fast", called.s(), Timing("soon", {"after": 0.1}))
        assert done.wait(DEADLINE)


def test_a_task_that_needs_arguments_cannot_have_a_schedule_alone(app: EventMQ) -> None:
    app.task(name="add", schedule=every(hours=1))(add)
    with pytest.raises(SettingsError, match="task add: missing a required argument"):
        app.schedules.in_code()


def test_a_passing_refusal_is_told_from_a_final_one(app: EventMQ) -> None:
    app.task(name="add")(add)
    client = BrokerBeatClient(app.components)
    headers = "task:add,content-type:msgpack"
    good = ScheduledJob("1" * 32, "add", "default", headers, b"\x92\x91\x01\x80")
    large = ScheduledJob("2" * 32, "add", "default", headers, b"x" * (17 * 1024 * 1024))
    plain = ScheduledJob("3" * 32, "", "default", "", b"\xff")
    assert list(client.submit([good, large, plain])()) == [True, None, None]
    assert list(client.submit([good])()) == [True]
    assert app.job("1" * 32).get() == 1
    assert client.unfinished(["1" * 32, "4" * 32]) == {"1" * 32: False, "4" * 32: False}
