"""Jobs inside a test: submitted, looked at, run, and let wait, on the real broker."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
import weakref
from configparser import ConfigParser
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from eventmq import chord, hookimpl
from eventmq.app import EventMQ
from eventmq.clock import SystemClock
from eventmq.errors import (
    JobCancelled,
    JobFailed,
    NotAllowed,
    ResultTimeout,
    SerializationError,
)
from eventmq.execution.failures import Retry
from eventmq.interfaces import current_job
from eventmq.testing import Enqueued, use_app

SETUP = Path(__file__).parents[3] / "setup.cfg"


@pytest.fixture(name="inline")
def inline_app():
    with EventMQ("test") as app, use_app(app) as inline:
        yield inline


@pytest.fixture(name="add")
def adding(inline):
    @inline.app.task(name="add")
    def add(a, b=0):
        return a + b

    return add


# Running


def test_nothing_runs_before_it_is_asked_for(inline, add):
    job = add.delay(1, 2)
    assert job.state == "queued"
    assert inline.drain() == 1
    assert (job.state, job.get()) == ("succeeded", 3)
    assert inline.drain() == 0


def test_waiting_for_a_result_runs_what_is_needed_and_no_more(inline, add):
    jobs = [add.delay(n) for n in range(3)]
    assert jobs[1].get() == 1
    assert [job.state for job in jobs] == ["succeeded", "succeeded", "queued"]


def test_a_call_runs_the_job_also_from_within_another_one(inline, add):
    @inline.app.task(name="outer")
    def outer():
        return add.call(1, 2, timeout=1) + add.options(priority=3).call(3)

    assert outer.call() == 6
    assert asyncio.run(add.acall(4, b=5)) == 9
    assert inline.drain() == 0


def test_a_call_that_cannot_end_says_why_and_the_job_goes_on(inline, add):
    with pytest.raises(ResultTimeout, match="due in 60 s: travel there first"):
        add.options(countdown=60).call(1)
    (waiting,) = inline.enqueued(add)
    inline.travel(61)
    assert inline.drain() == 1
    assert inline.app.job(waiting.id).get() == 1


def test_jobs_run_by_priority_and_then_in_order(inline):
    runs = []
    task = inline.app.task(name="note")(runs.append)
    for number, priority in enumerate([0, 5, 0, 5]):
        task.options(priority=priority).delay(number)
    inline.drain()
    assert runs == [1, 3, 0, 2]


def test_jobs_submit_others_also_to_queues_that_are_new(inline, add):
    @inline.app.task(name="outer")
    def outer():
        add.options(queue="other").delay(1)

    outer.delay()
    assert inline.drain() == 2


def test_jobs_wait_for_others(inline, add):
    """The other jobs may stand behind the waiting one in its queue, several deep."""

    @inline.app.task(name="sum")
    def total(depth):
        return 1 if not depth else total.delay(depth - 1).get() + add.delay(1, 0).get()

    job, last = total.delay(5), add.delay(7)
    assert (job.get(), last.get()) == (6, 7)


def test_a_job_that_waits_for_itself_is_told_so(inline):
    @inline.app.task(name="ouroboros")
    def ouroboros():
        return inline.app.job(current_job().id).get()

    with pytest.raises(JobFailed, match="running: it is the job that waits"):
        ouroboros.delay().get()


def test_a_task_that_submits_itself_for_ever_ends_the_drain(inline):
    @inline.app.task(name="again")
    def again():
        again.delay()

    again.delay()
    with pytest.raises(AssertionError, match="run 50 jobs and there are more"):
        inline.drain(limit=50)


def test_a_strict_drain_raises_what_a_job_raised(inline, add):
    add.delay(1, "x")
    assert inline.drain() == 1
    add.delay(2, "x")
    with pytest.raises(JobFailed) as caught:
        inline.drain(strict=True)
    assert isinstance(caught.value.__cause__, TypeError)
    assert inline.drain(strict=True) == 0


def test_attempts_and_deliveries_are_counted(inline):
    seen = []

    @inline.app.task(name="flaky", retries=2, retry_policy="fixed")
    def flaky():
        job = current_job()
        seen.append((job.attempt, job.delivery, job.queue))
        raise Retry(countdown=10)

    job = flaky.delay()
    for _ in range(4):
        inline.drain()
        inline.travel(10)
    assert seen == [(1, 1, "default"), (2, 2, "default"), (3, 3, "default")]
    assert job.state == "failed"


def test_what_cannot_travel_is_refused_as_by_the_real_client(inline, add):
    with pytest.raises(SerializationError):
        add.delay(object())


def test_middleware_runs(inline):
    """Those of the app's settings: log-context by default."""
    seen = []

    class Wrap:
        def execute(self, job, proceed):
            seen.append(job.task)
            return proceed()

    from tests.support.plugin_harness import providing

    plugin = providing(eventmq_middleware={"wrap": lambda context: Wrap()})
    app = EventMQ("m", plugins=[plugin], middleware=["wrap"])
    task = app.task(name="nothing")(lambda: None)
    with use_app(app):
        task.delay().get()
    assert seen == ["nothing"]


# Coroutines and threads


def test_coroutines_submit_wait_and_are_tasks(inline, add):
    """Inside a running loop as well, where a second one cannot run in the same thread."""

    @inline.app.task(name="double")
    async def double(n):
        await asyncio.sleep(0)
        job = await add.adelay(n, n)
        return await job.aget()

    async def main():
        job = await double.adelay(4)
        return await job.aget(), double.delay(5).get()

    assert asyncio.run(main()) == (8, 10)
    assert double.delay(6).get() == 12


def test_an_error_of_a_coroutine_is_the_job_s(inline):
    @inline.app.task(name="fail")
    async def fail():
        raise KeyError("x")

    async def main():
        await (await fail.adelay()).aget()

    with pytest.raises(JobFailed, match="KeyError"):
        asyncio.run(main())


def test_threads_may_take_turns(inline, add):
    got = []
    thread = threading.Thread(target=lambda: got.append(add.delay(1, 2).get()))
    thread.start()
    thread.join()
    assert got == [3]


# Looking


def test_what_waits_is_seen_with_its_arguments(inline, add):
    add.delay(1, b=2)
    add.options(queue="slow", countdown=60, priority=3).delay("x")
    first, second = inline.enqueued(add)
    assert (first.task, first.args, first.kwargs, first.state) == ("add", (1,), {"b": 2}, "queued")
    assert (second.queue, second.state, second.due) == ("slow", "delayed", 60.0)
    assert (second.priority, second.attempt) == (3, 1)
    assert isinstance(first, Enqueued)
    assert inline.enqueued("other") == []


def test_what_was_sent_together_is_seen_one_by_one(inline, add):
    add.map([(1,), (2,)], b=5)
    with inline.app.batch():
        add.delay(3)
        assert len(inline.enqueued()) == 2
    inline.app.send("elsewhere", (4,))
    inline.app.send_raw("plain", b"body")
    waiting = [(job.task, job.args, job.kwargs) for job in inline.enqueued()]
    assert waiting == [
        ("add", (1,), {"b": 5}),
        ("add", (2,), {"b": 5}),
        ("add", (3,), {}),
        ("elsewhere", (4,), {}),
        ("", (b"body",), {}),
    ]


def test_what_has_ended_does_not_wait(inline, add):
    add.delay(1)
    inline.drain()
    assert inline.enqueued() == []
    inline.assert_enqueued(add, count=0)


def test_jobs_are_expected_by_task_arguments_queue_and_number(inline, add):
    add.delay(1, b=(2, 3))
    add.options(queue="slow").delay(1)
    assert len(inline.assert_enqueued(add)) == 2
    assert len(inline.assert_enqueued("add", queue="slow", count=1)) == 1
    assert len(inline.assert_enqueued(add, args=[1], kwargs={"b": [2, 3]})) == 1
    inline.assert_enqueued(add, args=(2,), count=0)


def test_a_disappointed_test_says_what_waits_instead(inline, add):
    with pytest.raises(AssertionError, match="nothing waits at all"):
        inline.assert_enqueued(add)
    add.options(countdown=60, queue="slow").delay(1, b="x")
    with pytest.raises(AssertionError) as caught:
        inline.assert_enqueued(add, args=(2,), queue="slow")
    assert str(caught.value).splitlines() == [
        "no job waits that is add args=(2,) queue='slow'; expected: 1 or more",
        "waiting: add(1, b='x') in queue slow, due in 60 s",
    ]
    with pytest.raises(AssertionError, match="1 jobs wait that is add; expected: 3"):
        inline.assert_enqueued(add, count=3)


# Time


def test_a_delayed_job_runs_when_its_time_has_come(inline, add):
    job = add.options(countdown=timedelta(hours=1)).delay(1)
    inline.travel(3590)
    assert inline.drain() == 0
    inline.travel(timedelta(seconds=10))
    assert inline.drain() == 1
    assert job.get() == 1


def test_a_moment_by_the_machine_s_clock_is_reached_by_travelling_there(inline, add):
    when = datetime.now(timezone.utc) + timedelta(days=30)
    job = add.options(eta=when).delay(1)
    inline.travel_to(when)
    assert inline.now >= when
    assert inline.drain() == 1
    assert job.get() == 1


def test_time_stands_still_while_nobody_travels(inline):
    assert inline.now == inline.now


def test_nobody_is_missed_after_a_long_way(inline, add):
    """Neither client nor broker take the other for dead."""
    job = add.options(countdown=3600 * 24 * 365).delay(1)
    inline.travel(timedelta(days=366))
    assert job.state == "queued"
    assert job.get() == 1


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), timedelta(0)])
def test_time_goes_forward_only(inline, seconds):
    with pytest.raises(ValueError, match="more than 0"):
        inline.travel(seconds)


def test_a_moment_must_be_ahead_and_have_a_zone(inline):
    with pytest.raises(ValueError, match="is past"):
        inline.travel_to(inline.now - timedelta(seconds=1))
    with pytest.raises(ValueError, match="no time zone"):
        inline.travel_to(datetime(2100, 1, 1))  # noqa: DTZ001 - the mistake


# Waiting for what cannot come


def test_an_unknown_task_is_said_to_be_one(inline):
    job = inline.app.send("nobody.knows.it")
    with pytest.raises(ResultTimeout, match="no task of that name is registered"):
        job.get()


def test_a_delayed_job_is_said_to_be_delayed(inline, add):
    with pytest.raises(ResultTimeout, match="due in 60 s: travel there first"):
        add.options(countdown=60).delay(1).get()


def test_many_jobs_are_waited_for(inline, add):
    jobs = [add.delay(n) for n in range(3)]
    late = add.options(countdown=60).delay(9)
    assert [job.get() for job in inline.app.as_completed(jobs)] == [0, 1, 2]
    assert inline.app.wait([*jobs, late]) == (jobs, [late])


def test_a_subscription_gets_what_is_there_and_waits_for_nothing(inline):
    with inline.app.subscribe("news") as news:
        inline.app.publish("news.today", 7)
        assert next(news).value == 7
        with pytest.raises(NotAllowed, match="nothing more will happen"):
            next(news)


# The app before and after


def test_the_app_is_afterwards_as_it_was():
    """Its own broker still has what it had, and has nothing of the test."""
    with EventMQ("both", broker="memory://", result_backend="memory") as app:
        add = app.task(name="add")(lambda a: a)
        before = add.delay(1)
        clock = app.clock
        with use_app(app) as inline:
            job = add.delay(2)
            inline.travel(1000)
            assert job.get() == 2
            with pytest.raises(NotAllowed, match="used by another test"), use_app(app):
                pass
        assert app.clock is clock
        assert app.settings.result_backend == "memory"
        assert before.get() == 1
        assert add.delay(3).get() == 3


def test_plugins_that_a_test_has_loaded_read_the_machine_s_clock_afterwards():
    """The store of a broker that the app starts then is one of them."""
    clocks = []

    class Timed:
        def __init__(self, context):
            clocks.append(context.clock)

        def delay(self, failure):
            return 0.0

    class Plugin:
        @hookimpl
        def eventmq_retry_policies(self):
            return {"timed": Timed}

    with EventMQ("mine", plugins=[Plugin()]) as app:
        with use_app(app) as inline:
            app.plugins.retry_policy("timed", {})
            inline.travel(86_400)
            [clock] = clocks
            assert clock.now() > time.time() + 80_000
        before = time.time(), time.monotonic()
        assert before[0] <= clock.now() <= time.time()
        assert before[1] <= clock.monotonic() <= time.monotonic()
        assert SystemClock.boot_id() == clock.boot_id()
        assert clock.boottime() <= SystemClock.boottime()


def test_an_app_in_a_test_connects_to_nothing():
    app = EventMQ("far", broker="tcp://192.0.2.1:9", submit_timeout=0.1)
    add = app.task(name="add")(lambda a: a)
    with use_app(app) as inline:
        add.delay(1)
        assert inline.drain() == 1
        assert repr(inline) == "<InlineApp far>"


def test_two_tests_of_one_app_share_nothing():
    app = EventMQ("twice")
    add = app.task(name="add", expires=10.0)(lambda a: a)
    for _ in range(2):
        with use_app(app) as inline:
            assert inline.enqueued() == []
            job = add.delay(1)
            inline.travel(5)
            assert job.get() == 1
            late = add.delay(1)
            inline.travel(11)
            assert inline.drain() == 0
            assert late.state == "expired"


# The plugin


def test_pytest_finds_the_plugin_by_its_module_s_name():
    """Naming it with -p as well therefore does not load it twice."""
    setup = ConfigParser()
    setup.read(SETUP, encoding="utf-8")
    points = setup["options.entry_points"]["pytest11"].strip()
    assert points == "eventmq.testing.plugin = eventmq.testing.plugin"


def test_the_plugin_imports_nothing_that_takes_time():
    heavy = (
        "zmq",
        "msgpack",
        "apsw",
        "sqlite3",
        "asyncio",
        "pluggy",
        "eventmq.app",
        "eventmq.wire",
    )
    code = (
        "import sys, pytest; before = set(sys.modules); import eventmq.testing.plugin;"
        f"print(sorted((set(sys.modules) - before) & set({heavy!r})))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert process.stdout.strip() == "[]"


def test_an_app_that_is_gone_is_gone_at_once():
    """Else shared tasks could not tell which app is theirs."""
    app = EventMQ("short")
    with use_app(app):
        app.task(name="add")(lambda a: a).delay(1)
    components = weakref.ref(EventMQ("shorter").components)
    assert components() is None


# What operators do


def test_a_cancelled_job_does_not_run(inline, add):
    job = add.delay(1)
    assert job.cancel("not needed")
    assert inline.drain() == 0
    with pytest.raises(JobCancelled, match="not needed"):
        job.get()
    assert inline.enqueued() == []


def test_a_paused_queue_is_said_to_be_one(inline, add):
    job = add.delay(1)
    inline.app.ask("pause", {"queue": "default"})
    with pytest.raises(ResultTimeout, match="is queued: its queue is paused"):
        job.get()
    inline.app.ask("resume", {"queue": "default"})
    assert job.get() == 1


def test_a_failed_job_can_be_queued_again(inline, add):
    job = add.delay(1, "x")
    inline.drain()
    assert job.state == "failed"
    inline.app.ask("retry", {"ids": [job.id]})
    assert inline.drain() == 1
    assert job.info()["attempt"] == 2


def test_a_callback_takes_more_than_a_message_may_have():
    """The worker fetches the results, as with a real broker."""
    with EventMQ("test", max_frame=100_000) as app, use_app(app):

        @app.task(name="fill")
        def fill(number):
            return bytes([number]) * 20_000

        @app.task(name="measure")
        def measure(parts):
            return [[part[0], len(part)] for part in parts]

        job = chord([fill.s(n) for n in range(5)], measure.s()).delay()
        assert job.get() == [[n, 20_000] for n in range(5)]
