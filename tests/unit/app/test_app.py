"""The app: settings, tasks, everything in one process, and what the command line makes of it."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.app import EventMQ, load_executor
from eventmq.app.broker import binds_of, limits_of
from eventmq.client.topics import Message
from eventmq.errors import (
    AppNotFound,
    BrokerUnavailable,
    JobCancelled,
    JobFailed,
    JobNotFound,
    NotAllowed,
    PluginCollision,
    PluginError,
    PluginNotFound,
    ProtocolError,
    ResultUnavailable,
    SerializationError,
    SettingsError,
    StoreError,
)
from eventmq.hookspecs import hookimpl
from eventmq.interfaces import TaskRole, current_job
from eventmq.policies import every
from eventmq.task import shared, shared_task
from tests.support.plugin_harness import providing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Seconds that anything in these tests may take.
DEADLINE = 20.0


def threads() -> set[str]:
    return {t.name for t in threading.enumerate() if t.name.startswith("eventmq")}


def left() -> set[str]:
    """Return the threads that still run; those of the pool end by themselves shortly after."""
    for thread in threading.enumerate():
        if thread.name.startswith("eventmq"):
            thread.join(DEADLINE)
    return threads()


@pytest.fixture
def app() -> Iterator[EventMQ]:
    """An app that has everything in this process."""
    with EventMQ("test", broker="memory://", result_timeout=DEADLINE) as app:
        yield app
    assert left() == set()


# Settings


def test_making_an_app_starts_nothing() -> None:
    app = EventMQ("shop")
    assert app.name == "shop"
    assert repr(app) == "<EventMQ shop>"
    assert left() == set()
    assert not app.components.started


def test_arguments_are_settings_and_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENTMQ_SERIALIZER", "msgpack")
    app = EventMQ(
        broker=["tcp://a:1", "tcp://b:2"], serializer="json", imports=["a.b"], submit_timeout=2.5
    )
    assert app.name == "eventmq"
    assert app.settings.broker == ("tcp://a:1", "tcp://b:2")
    assert app.settings.serializer == "json"
    assert app.settings.imports == ("a.b",)
    assert app.settings.submit_timeout == 2.5
    assert app.settings.source("serializer") == "argument"


def test_an_unknown_setting_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(SettingsError, match="did you mean 'submit_timeout'"):
        EventMQ(submit_timeot=5)
    with pytest.raises(SettingsError, match="broker"):
        EventMQ(broker="nonsense")


def test_settings_are_overridden_before_the_first_use_only(app: EventMQ) -> None:
    app.override()
    app.override(result_timeout=7.0)
    app.override(submit_timeout=3.0)
    assert app.settings.result_timeout == 7.0
    assert app.settings.broker == ("memory://",)
    assert app.overrides == {"result_timeout": 7.0, "submit_timeout": 3.0}
    with pytest.raises(SettingsError):
        app.override(nonsense=1)
    app.ask("ping")
    with pytest.raises(NotAllowed, match="in use"):
        app.override(result_timeout=8.0)


# Everything in one process


def test_a_job_runs_and_its_result_comes_back(app: EventMQ) -> None:
    @app.task
    def add(a: int, b: int = 2) -> int:
        return a + b

    job = add.delay(1)
    assert job.get() == 3
    assert job.state == "succeeded"
    assert job.ready()
    assert job.successful()
    assert app.job(job.id).get() == 3
    info = job.info()
    assert info["task"] == add.name
    assert info["created"] <= info["started"] <= info["finished"]
    assert (None, None, None) == (info["due"], info["expires"], info["leased"])


def test_a_task_that_raises_is_a_failed_job_with_its_cause(app: EventMQ) -> None:
    @app.task
    def fail() -> None:
        raise KeyError("x", 3)

    job = fail.delay()
    with pytest.raises(JobFailed) as caught:
        job.get()
    assert caught.value.remote_type == "builtins.KeyError"
    assert "in fail" in caught.value.remote_traceback
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.__cause__.args == ("x", 3)
    assert job.state == "failed"
    assert not job.successful()


def test_async_tasks_and_coroutines_work(app: EventMQ) -> None:
    @app.task
    async def double(n: int) -> int:
        await asyncio.sleep(0)
        return 2 * n

    async def main() -> None:
        job = await double.adelay(4)
        assert await job.aget() == 8
        assert await job.astate() == "succeeded"
        assert (await app.ajob(job.id)).id == job.id
        jobs = await double.amap([(1,), (2,)])
        assert (await app.await_(jobs)).pending == []
        results = [await job.aget() async for job in app.as_completed(jobs)]
        assert sorted(results) == [2, 4]
        sent = await app.asend(double.name, (5,))
        assert await sent.aget() == 10
        assert (await app.aask("ping"))["epoch"] > 0

    asyncio.run(asyncio.wait_for(main(), DEADLINE))


def test_many_jobs_run(app: EventMQ) -> None:
    @app.task
    def double(n: int) -> int:
        return 2 * n

    jobs = double.map([(n,) for n in range(2500)])
    assert app.wait(jobs).pending == []
    assert [job.get() for job in jobs] == [2 * n for n in range(2500)]
    with app.batch():
        some = [double.delay(n) for n in range(3)]
    assert {job.id for job in app.as_completed(some)} == {job.id for job in some}


def test_a_job_is_sent_by_the_name_of_its_task(app: EventMQ) -> None:
    @app.task(name="shop.add")
    def add(a: int, b: int) -> int:
        return a + b

    assert app.send("shop.add", (2,), {"b": 3}).get() == 5
    assert app.send("shop.add", (2, 3), queue=None, job_id="mine").get() == 5
    assert app.job("mine").state == "succeeded"


def test_a_task_knows_its_job(app: EventMQ) -> None:
    @app.task
    def whoami() -> list[Any]:
        job = current_job()
        return [job.id, job.attempt, job.delivery]

    job = whoami.delay()
    assert job.get() == [job.id, 1, 1]


def test_a_result_that_is_ignored_is_unavailable(app: EventMQ) -> None:
    @app.task(ignore_result=True)
    def work() -> int:
        return 1

    with pytest.raises(ResultUnavailable):
        work.delay().get()


def test_the_queues_of_tasks_are_served(app: EventMQ) -> None:
    @app.task(queue="email")
    def work() -> str:
        return current_job().queue

    assert work.delay().get() == "email"
    assert work.options(queue="sms").delay().get() == "sms"
    assert app.send(work.name, queue="fax").get() == "fax"

    @app.task(queue="later")
    def late() -> str:
        return current_job().queue

    assert late.delay().get() == "later"


def test_a_job_is_delayed(app: EventMQ) -> None:
    @app.task
    def work() -> int:
        return 1

    job = work.options(countdown=3600).delay()
    assert job.state == "delayed"
    assert app.wait([job], timeout=0.2).pending == [job]


def test_the_same_id_is_one_job(app: EventMQ) -> None:
    runs = []

    @app.task
    def work() -> None:
        runs.append(1)

    for _ in range(2):
        work.apply_async(job_id="once").get()
    assert runs == [1]


@pytest.mark.parametrize("job_id", ["nobody", "", "a\0b", "\ud800"])
def test_an_unknown_job_is_not_found(app: EventMQ, job_id: str) -> None:
    """Nor is one whose id no job can have, such as one from a request."""
    with pytest.raises(JobNotFound):
        app.job(job_id)


def test_the_id_of_a_job_is_text(app: EventMQ) -> None:
    with pytest.raises(TypeError, match="the id of a job is text, not 5"):
        app.job(5)  # type: ignore[arg-type]


def test_a_call_that_cannot_be_encoded_fails_alone(app: EventMQ) -> None:
    """The client goes on, and other threads still get their answers."""
    release = threading.Event()

    @app.task
    def wait() -> bool:
        return release.wait(20.0)

    job = wait.delay()
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(job.get, timeout=20.0)
        for arguments in ({"id": "\ud800"}, {"id": object()}, {"id": 2**70}):
            with pytest.raises(SerializationError, match="the call 'info' cannot be encoded: "):
                app.ask("info", arguments)
        release.set()
        assert waiting.result(20.0)


def test_many_jobs_by_name_have_the_ids_that_the_caller_chose(app: EventMQ) -> None:
    """Each its own arguments; sent again they are the same jobs."""
    runs = []

    @app.task(name="work")
    def work(x: int, *, y: int = 0) -> int:
        runs.append(x)
        return x + y

    calls: list[Any] = [((1,), {}), ((2,), {"y": 5}), ((3,), {"y": 7})]
    for _ in range(2):
        jobs = app.send_many("work", calls, job_ids=["a", "b", "c"])
        assert [job.id for job in jobs] == ["a", "b", "c"]
        assert [job.get() for job in jobs] == [1, 7, 10]
    assert sorted(runs) == [1, 2, 3]
    assert len({job.id for job in app.send_many("work", calls, queue="parked")}) == 3
    with app.batch():
        jobs = app.send_many("work", calls)
    assert [job.get() for job in jobs] == [1, 7, 10]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"job_ids": ["a"]}, "2 calls and 1 job_ids"),
        ({"job_ids": ["a", ""]}, "one of job_ids is ''"),
        ({"job_id": "a"}, "for many there is job_ids"),
        ({"quue": "q"}, "did you mean 'queue'"),
    ],
)
def test_wrong_options_of_many_jobs_are_refused_before_they_are_sent(
    options: dict[str, Any], words: str
) -> None:
    calls: list[Any] = [((1,), {}), ((2,), {})]
    with EventMQ() as app, pytest.raises(SettingsError, match=words):
        app.send_many("work", calls, **options)


def test_a_raw_job_waits_for_those_who_take_it(app: EventMQ) -> None:
    job = app.send_raw("foreign", b"body", {"timeout": 5, "guarantee": True})
    assert job.state == "queued"
    assert asyncio.run(app.asend_raw("foreign", b"x")).state == "queued"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("", b""), "queue is ''"),
        (("q", "text"), "body is 'str'; allowed is: bytes"),
        (("q", b"", {"timeout": "soon"}), "timeout"),
        (("q", b"", {"batch": 5}), "made by the client"),
        (("q", b"", "x"), "a mapping of names"),
    ],
)
def test_a_wrong_raw_job_is_refused_before_it_is_sent(
    arguments: tuple[Any, ...], words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        EventMQ().send_raw(*arguments)


def test_frames_are_done_by_the_task_of_their_service(app: EventMQ) -> None:
    """They are kept apart on the way there and back; one of bytes is one frame."""

    @app.task(majordomo="turn")
    def turn(frames: list[bytes]) -> list[bytes]:
        return frames[::-1]

    @app.task(majordomo="first")
    def first(frames: list[bytes]) -> bytes:
        return frames[0]

    assert app.send_raw("turn", [b"a", b"", b"\xff"]).get() == [b"\xff", b"", b"a"]
    assert app.send_raw("first", [b"a", b"b"]).get() == [b"a"]
    assert turn.delay([b"a", b"b"]).get() == [b"b", b"a"]


def test_a_service_that_returns_something_else_fails(app: EventMQ) -> None:
    app.task(name="odd", majordomo="odd")(lambda frames: 7)
    with pytest.raises(JobFailed, match="returns bytes or a list of bytes"):
        app.send_raw("odd", [b"a"]).get()


def test_a_service_is_its_queue_and_has_one_task(app: EventMQ) -> None:
    task = app.task(name="one", majordomo="s")(lambda frames: b"")
    assert task.declared.queue == "s"
    with pytest.raises(SettingsError, match="queue is 'other'"):
        app.task(name="two", majordomo="s", queue="other")(lambda frames: b"")
    app.task(name="three", majordomo="s")(lambda frames: b"")
    with pytest.raises(SettingsError, match="two tasks serve the majordomo service 's'"):
        app.make_executor()


def role(name: object) -> TaskRole:
    """Read the option ``stomp`` of a plugin."""
    if not isinstance(name, str):
        raise SettingsError(f"stomp is {name!r}; allowed is: text")
    return TaskRole(what=f"the STOMP queue {name!r}", queue=name, serves=f"stomp/{name}")


def test_a_plugin_declares_options_of_tasks() -> None:
    """It reads the value where the task is declared."""
    app = EventMQ(plugins=[providing(eventmq_task_options={"stomp": role})])
    task = app.task(name="a", stomp="q")(lambda: 1)
    assert (task.declared.queue, task.declared.roles) == ("q", (role("q"),))
    assert app.task(name="b", stomp=None)(lambda: 2).declared.roles == ()
    with pytest.raises(SettingsError, match="stomp is 7; allowed is: text"):
        app.task(stomp=7)
    with pytest.raises(SettingsError, match=r"no argument 'stmp'; did you mean 'stomp'"):
        app.task(stmp="q")
    with pytest.raises(SettingsError, match=r"queue is 'x'; allowed is: that of the STOMP queue"):
        app.task(stomp="q", queue="x")


def test_reading_an_option_of_a_plugin_is_no_use_of_the_app() -> None:
    """A command overrides settings after the module with the tasks is imported."""
    app = EventMQ(plugins=[providing(eventmq_task_options={"stomp": role})])
    app.task(name="a", stomp="q")(lambda: 1)
    app.override(broker="tcp://127.0.0.1:1")
    assert app.settings.broker == ("tcp://127.0.0.1:1",)


def test_a_task_runs_under_the_further_name_of_its_role() -> None:
    app = EventMQ(plugins=[providing(eventmq_task_options={"stomp": role})])
    app.task(name="a", stomp="q")(lambda: 1)
    assert {"a", "stomp/q"} <= {*app.make_executor().tasks}
    app.task(name="b", stomp="q")(lambda: 2)
    with pytest.raises(SettingsError, match="two tasks serve the STOMP queue 'q': a and b"):
        app.make_executor()


def test_a_task_option_has_one_plugin() -> None:
    first, second = (providing(eventmq_task_options={"stomp": role}) for _ in range(2))
    app = EventMQ(plugins=[first, second])
    words = "'stomp' of plugin 'Made#2' is one of plugin 'Made' too"
    with pytest.raises(PluginCollision, match=words):
        app.task(stomp="q")


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"stomp": "q"}, r"'stomp' of plugin 'Made'.* is not a function; switch it off with"),
        (
            {"stomp": str},
            r"'stomp' of plugin 'Made'.* returns str, not a TaskRole; switch it off with",
        ),
        ({"queue": role}, "a plugin declares the task option 'queue', which all tasks have"),
    ],
    ids=["no function", "no role", "an option of all tasks"],
)
def test_a_task_option_that_is_declared_wrongly_is_an_error(
    declared: dict[str, Any], words: str
) -> None:
    app = EventMQ(plugins=[providing(eventmq_task_options=declared)])
    with pytest.raises(PluginError, match=words):
        app.task(stomp="q")


def test_the_options_of_a_plugin_that_is_switched_off_are_gone() -> None:
    app = EventMQ(disabled_plugins=["majordomo"])
    with pytest.raises(SettingsError, match="a task takes no argument 'majordomo'"):
        app.task(majordomo="s")


@pytest.mark.parametrize("value", ["", 7, "x" * 256], ids=repr)
def test_the_name_of_a_service_is_text(app: EventMQ, value: object) -> None:
    with pytest.raises(SettingsError, match=r"majordomo is .*; allowed is: text of 1 to 255"):
        app.task(majordomo=value)


def test_a_frame_is_bytes(app: EventMQ) -> None:
    with pytest.raises(SettingsError, match="a frame of the body is 'str'"):
        app.send_raw("q", ["text"])  # type: ignore[list-item]


def test_what_is_published_reaches_subscribers(app: EventMQ) -> None:
    with app.subscribe("news", "sport") as messages:
        app.publish("weather", 1)
        app.publish("news.today", {"x": 2})
        app.publish("sport", [3])
        assert next(messages) == Message("news.today", {"x": 2}, "content-type:msgpack")
        assert next(messages).value == [3]
    assert list(messages) == []
    assert messages.dropped == 0


def test_a_program_with_a_loop_of_its_own_subscribes(app: EventMQ) -> None:
    arrived = threading.Event()
    with app.subscribe("news") as messages:
        assert messages.poll() is None
        app.publish("news", 1)
        messages.notify(arrived.set)
        assert arrived.wait(DEADLINE)
        message = messages.poll()
        assert message is not None
        assert message.value == 1
        assert messages.poll() is None


def test_a_coroutine_subscribes(app: EventMQ) -> None:
    async def main() -> None:
        async with app.subscribe("") as messages:
            await app.apublish("a", 1)
            async for message in messages:
                assert message.topic == "a"
                assert message.value == 1
                break

    asyncio.run(asyncio.wait_for(main(), DEADLINE))


def test_a_subscription_needs_a_topic(app: EventMQ) -> None:
    with pytest.raises(ValueError, match="one or more topics"):
        app.subscribe()


def test_the_broker_can_be_asked(app: EventMQ) -> None:
    assert app.ask("ping")["epoch"] == app.ask("ping")["epoch"]
    answer = app.ask("jobs", {"limit": 5})
    assert (answer["jobs"], answer["cursor"], answer["complete"]) == ([], "", True)
    with pytest.raises(ProtocolError, match="unknown call"):
        app.ask("nonsense")


def test_a_middleware_sees_submissions(app: EventMQ) -> None:
    seen: list[str] = []

    class Note:
        def submit(self, submission: Any, proceed: Any) -> Any:
            seen.append(submission.task)
            return proceed(submission)

    class Plugin:
        @hookimpl
        def eventmq_middleware(self) -> Any:
            return {"note": lambda context: Note()}

    with EventMQ(broker="memory://", plugins=[Plugin()], middleware=["note"]) as noting:
        noting.task(name="t")(lambda: 1).delay().get()
    assert seen == ["t"]


# Closing


def test_a_closed_app_is_closed(app: EventMQ) -> None:
    work = app.task(name="work")(lambda: 1)
    assert work.delay().get() == 1
    app.close()
    app.close()
    assert left() == set()
    with pytest.raises(BrokerUnavailable, match="closed"):
        work.delay()


def test_an_app_that_was_never_used_can_be_closed() -> None:
    app = EventMQ(broker="memory://")
    app.close()
    with pytest.raises(NotAllowed, match="closed"):
        app.ask("ping")


def test_two_apps_in_one_process_have_nothing_in_common() -> None:
    with EventMQ(broker="memory://") as first, EventMQ(broker="memory://") as second:
        job = first.task(name="t")(lambda: 1).delay()
        assert job.get() == 1
        with pytest.raises(JobNotFound):
            second.job(job.id)


def test_a_job_is_cancelled_by_its_id() -> None:
    """Cancelling also works in a coroutine, and twice."""
    with EventMQ(broker="memory://") as app:
        task = app.task(name="t")(lambda: 1)
        jobs = [task.apply_async(countdown=60) for _ in range(2)]
        assert app.cancel(jobs[0].id, "changed my mind") is True
        assert app.cancel(jobs[0].id) is True
        assert asyncio.run(app.acancel(jobs[1].id)) is True
        with pytest.raises(JobCancelled, match="changed my mind"):
            jobs[0].get()
        with pytest.raises(JobNotFound):
            app.cancel("nobody")


def test_memory_stands_alone() -> None:
    app = EventMQ(broker=["memory://", "tcp://127.0.0.1:1"])
    with pytest.raises(SettingsError, match="stands alone"):
        app.ask("ping")


def test_closing_does_not_wait_for_a_task_that_goes_on() -> None:
    """A thread cannot be killed: it is left behind and ends with the process."""
    started, end = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        end.wait(DEADLINE)

    with EventMQ(broker="memory://") as app:
        app.task(name="t")(work).delay()
        assert started.wait(DEADLINE)
    end.set()
    assert left() == set()


# Tasks and plugins


def test_tasks_are_known_by_name() -> None:
    app = EventMQ()

    @app.task(name="a")
    def first() -> None: ...

    assert app.tasks["a"] is first
    assert "a" in app.tasks
    with pytest.raises(SettingsError, match="two tasks are called 'a'"):

        @app.task(name="a")
        def second() -> None: ...


def test_a_plugin_may_register_tasks_when_the_app_is_wired() -> None:
    class Plugin:
        @hookimpl
        def eventmq_configure(self, app: Any) -> None:
            app.task(name="health.check")(lambda: "well")

    with EventMQ(broker="memory://", plugins=[Plugin()]) as app:
        assert app.send("health.check").get() == "well"


def test_a_plugin_that_fails_is_tried_again_at_the_next_use() -> None:
    class Plugin:
        fails = True

        @hookimpl
        def eventmq_configure(self, app: Any) -> None:
            if self.fails:
                raise SettingsError("not yet")

    plugin = Plugin()
    app = EventMQ(plugins=[plugin])
    with pytest.raises(SettingsError):
        _ = app.plugins
    plugin.fails = False
    assert app.plugins.names is not None


def test_an_unknown_serializer_is_an_error_before_anything_is_sent() -> None:
    before = threads()  # those of a test before may still end
    app = EventMQ()
    with pytest.raises(PluginNotFound, match="yaml"):
        app.task(name="a", serializer="yaml")(lambda: 1).delay()
    strict = EventMQ(accept_content=["msgpack"])
    with pytest.raises(SettingsError, match="not in accept_content"):
        strict.task(name="a", serializer="json")(lambda: 1).delay()
    assert threads() <= before


def test_an_unknown_retry_policy_is_an_error_before_anything_is_sent() -> None:
    """Neither can a worker be started that would have to ask it, nor does a job wait for one."""
    before = threads()
    app = EventMQ()
    with pytest.raises(PluginNotFound, match="no retry policy is called 'exponentially'"):
        app.task(name="a", retries=1, retry_policy="exponentially")(lambda: 1).delay()
    with pytest.raises(PluginError, match="did you mean 'delay'"):
        app.task(name="b", retry_policy='fixed:{"dely":1}')(lambda: 1).map([()])
    assert threads() <= before


def test_a_module_of_imports_that_cannot_be_imported_is_named() -> None:
    with pytest.raises(SettingsError, match=r"no\.such\.module"):
        EventMQ(imports=["no.such.module"]).load_tasks()
    EventMQ(imports=["json"]).load_tasks()


# Processes


def test_an_executor_knows_the_tasks() -> None:
    app = EventMQ()
    app.task(name="a", retries=3)(lambda: 1)
    assert "a" in app.make_executor().tasks


@pytest.mark.parametrize("options", [{"retry_policy": "linear"}, {"serializer": "yaml"}])
def test_a_task_that_names_what_there_is_not_is_an_error_of_the_worker(
    options: dict[str, Any],
) -> None:
    app = EventMQ()
    app.task(name="a", **options)(lambda: 1)
    with pytest.raises(SettingsError, match="task 'a'"):
        app.make_executor()


def test_a_pool_of_processes_must_know_where_the_app_is() -> None:
    with pytest.raises(SettingsError, match="module:attribute"):
        EventMQ().make_worker()


def slots_of(app: EventMQ, **options: Any) -> int:
    """Return how many jobs a worker of the app runs at once; the worker is not started."""
    worker = app.make_worker(**options)
    worker.stop(now=True)
    worker.run()
    return worker._pool.slots


def test_a_pool_has_a_number_of_slots_of_its_own() -> None:
    """Without a setting the pool decides: a thousand coroutines, a thread per CPU."""
    for name, slots in (("asyncio", 1000), ("threads", os.cpu_count())):
        assert slots_of(EventMQ(broker="tcp://127.0.0.1:1", pool=name)) == slots
        app = EventMQ(broker="tcp://127.0.0.1:1", pool=name, concurrency=3)
        assert slots_of(app) == 3
        assert slots_of(app, concurrency=2) == 2


@pytest.mark.parametrize("settings", [{}, {"concurrency": 3}], ids=str)
def test_no_more_slots_begin_than_there_are(settings: dict[str, Any]) -> None:
    app = EventMQ(pool="asyncio", min_concurrency=1001, **settings)
    most = settings.get("concurrency", 1000)
    with pytest.raises(SettingsError, match=f"'min_concurrency' is 1001, more than the {most} s"):
        app.make_worker()


def test_a_worker_in_a_process_of_its_own_refuses_results_that_only_it_could_read() -> None:
    app = EventMQ(result_backend="memory", pool="threads")
    with pytest.raises(
        SettingsError, match="no other process could read them; use the result backend 'brok"
    ):
        app.make_worker(path="shop:app")


def test_another_process_loads_the_executor_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("shop")
    module.app = EventMQ()  # type: ignore[attr-defined]
    module.app.task(name="a")(lambda: 1)
    monkeypatch.setitem(sys.modules, "shop", module)
    overrides = {"allow_callables": ["jobs.*"]}
    executor = load_executor(path="shop:app", overrides=overrides)
    assert "a" in executor.tasks
    assert executor.allow_callables == ("jobs.*",)
    for path in ("shop:nothing", "shop", "shop:app.tasks"):
        with pytest.raises(AppNotFound):
            load_executor(path=path, overrides={})


def test_all_ports_are_bound_unless_one_is_named() -> None:
    """With ``bind`` given, the others open only if named."""
    assert set(binds_of(EventMQ().settings)) == {"main", "worker", "admin", "publish", "subscribe"}
    named = EventMQ(bind="tcp://127.0.0.1:0", admin_bind="tcp://127.0.0.1:1")
    assert binds_of(named.settings) == {"main": "tcp://127.0.0.1:0", "admin": "tcp://127.0.0.1:1"}


def test_bounds_of_the_broker_are_settings() -> None:
    limits = limits_of(EventMQ(max_frame=2048, queue_window=7, heartbeat_timeout=9.0).settings)
    assert (limits.max_frame, limits.queue_window, limits.heartbeat_timeout) == (2048, 7, 9.0)


def test_a_broker_of_the_settings_serves(tmp_path: Any) -> None:
    """It is what ``eventmq broker`` runs, here in a thread."""
    app = EventMQ(bind="tcp://127.0.0.1:0", data_dir=tmp_path / "data")
    bound = threading.Event()
    brokers = []

    def serve() -> None:
        broker = app.make_broker()
        brokers.append(broker)
        broker.bind()
        bound.set()
        broker.run()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert bound.wait(DEADLINE)
    with EventMQ(broker=brokers[0].addresses["main"]) as client:
        job = client.send("nobody.knows", (1,))
        assert job.state == "queued"
        assert client.ask("queues")[0]["waiting"] == 1
    brokers[0].stop()
    thread.join(DEADLINE)
    assert not thread.is_alive()


@pytest.mark.parametrize("arguments", [(1, 2), ("ab",)])
def test_send_shows_the_right_call_where_arguments_are_no_sequence(arguments: Any) -> None:
    app = EventMQ(broker="memory://")
    for call in (app.send, lambda *args: asyncio.run(app.asend(*args))):
        with pytest.raises(SettingsError) as caught:
            call("t", *arguments)
        assert "as in app.send('t', (value,))" in str(caught.value)
    app.close()


@pytest.mark.parametrize(
    "ask",
    [
        lambda _, job: job.get(),
        lambda _, job: asyncio.run(job.aget()),
        lambda _, job: job.state,
        lambda _, job: job.info(),
        lambda _, job: job.ready(),
        lambda app, job: app.wait([job]),
        lambda app, job: list(app.as_completed([job])),
    ],
    ids=["get", "aget", "state", "info", "ready", "wait", "as_completed"],
)
def test_a_job_of_an_open_batch_cannot_be_asked_yet(ask: Any) -> None:
    """Waiting for it would never end: it is sent at the exit of the batch."""
    app = EventMQ(broker="memory://")
    with app.batch():
        job = app.task(name="seven")(lambda: 7).delay()
        with pytest.raises(NotAllowed, match=r"leave app\.batch\(\) first"):
            ask(app, job)
    assert job.get(timeout=DEADLINE) == 7
    app.close()


# Limits


def test_a_worker_of_threads_refuses_a_soft_limit_that_it_cannot_keep() -> None:
    """The error names the task and a remedy; other queues and coroutines do not matter."""
    app = EventMQ("shop", broker="tcp://127.0.0.1:1", pool="threads", concurrency=1)

    @app.task(name="shop.wait", soft_timeout=5)
    async def wait() -> None: ...

    @app.task(name="shop.elsewhere", soft_timeout=5, queue="elsewhere")
    def elsewhere() -> None: ...

    worker = app.make_worker()
    worker.stop(now=True)
    worker.run()

    @app.task(name="shop.block", soft_timeout=5)
    def block() -> None: ...

    with pytest.raises(SettingsError, match=r"'shop\.block' has a soft_timeout .* the default"):
        app.make_worker()


# The event log


def test_the_event_log_of_a_folder_without_a_store_says_what_to_name(tmp_path):
    with pytest.raises(StoreError) as caught:
        EventMQ(data_dir=str(tmp_path)).event_log()
    message = f"there is no store in {tmp_path}: name the data directory of a broker"
    assert str(caught.value) == message


def test_an_event_log_that_only_the_broker_can_read_is_an_error():
    with pytest.raises(StoreError) as caught:
        EventMQ().event_log("memory")
    assert str(caught.value) == "only its broker can read the events of the store 'memory'"


# Plugins at the start of a worker


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"accept_content": ["msgpack", "dill"]}, "there is no key to sign with"),
        (
            {"plugin_options": {"json": {"indent": 2}}, "accept_content": ["msgpack", "json"]},
            "'json' has no option 'indent'",
        ),
        ({"accept_content": ["msgpack", "msgpak"]}, "did you mean 'msgpack'"),
        ({"middleware": ["log-contxt"]}, "did you mean 'log-context'"),
        ({"result_backend": "sqlite:///r?max_bytes=0"}, "'max_bytes' of 'sqlite' must be a whole"),
    ],
)
def test_a_worker_does_not_start_with_a_plugin_that_it_could_not_use(settings, message):
    """It would fail its jobs one by one."""
    with pytest.raises(PluginError, match=message):
        EventMQ(broker="tcp://127.0.0.1:1", **settings).make_worker()


# Routes


def test_tasks_that_name_no_queue_go_where_their_route_says() -> None:
    """The call wins, then the task, then the first route that fits, then the default queue."""
    with EventMQ(
        "test", broker="memory://", result_timeout=DEADLINE,
        routes={"shop.mail.*": "mail", "shop.*": "shop"},
    ) as app:  # fmt: skip

        def queue() -> str:
            return current_job().queue

        mail = app.task(name="shop.mail.send")(queue)
        named = app.task(name="shop.mail.fast", queue="fast")(queue)
        other = app.task(name="elsewhere")(queue)
        assert mail.call() == "mail"
        assert mail.options(queue="fast").call() == "fast"
        assert named.call() == "fast"
        assert other.call() == "default"
        assert app.send("shop.mail.send").get() == "mail"
        assert app.send("shop.total").info()["queue"] == "shop"
        app.schedule("nightly", mail.s(), every(hours=1))
        assert app.schedules.get("nightly").queue == "mail"
    assert left() == set()


def test_a_worker_refuses_a_soft_limit_of_a_task_that_is_routed_to_it() -> None:
    app = EventMQ("test", broker="tcp://127.0.0.1:1", routes={"slow": "mail"}, pool="threads")
    app.task(name="slow", soft_timeout=5)(len)
    app.make_worker(queues=[(1, "default")]).end()
    with pytest.raises(SettingsError, match="task 'slow' has a soft_timeout"):
        app.make_worker(queues=[(1, "mail")])


# Defaults of tasks


def test_all_tasks_have_the_defaults_that_they_do_not_say_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared, "_declared", {})
    app = EventMQ("shop", task_defaults={"timeout": 60, "retries": 3})

    @app.task
    def plain() -> None: ...

    @app.task(retries=0, queue="mail")
    def own() -> None: ...

    shared_task(name="defaults.shared", retries=1)(len)
    lent = app.tasks["defaults.shared"]
    assert (lent.declared.timeout, lent.declared.retries) == (60, 1)
    assert (plain.declared.timeout, plain.declared.retries) == (60, 3)
    assert (own.declared.timeout, own.declared.retries, own.declared.queue) == (60, 0, "mail")


@pytest.mark.parametrize(
    ("defaults", "message"),
    [
        ({"timout": 60}, "a task takes no argument 'timout'; did you mean 'timeout'?"),
        ({"timeout": "60"}, "timeout is '60'; allowed is: seconds"),
        ({"bind": True}, "a task takes no argument 'bind'; a task has no self"),
        ({"name": "a"}, "task_defaults has 'name', which is an option of single tasks"),
        ({"replayable": True}, "task_defaults has 'replayable', which is an option of single"),
        ([("timeout", 60)], "task_defaults is .*; allowed is: a mapping of options of tasks"),
    ],
    ids=str,
)
def test_wrong_defaults_are_an_error_where_the_app_is_made(defaults: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        EventMQ("shop", task_defaults=defaults)


# Modules with tasks


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    for name in ("found_shop", "found_billing", "found_none", "found_broken"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "found_shop" / "tasks.py").write_text("from found_shop.app import app\n")
    (tmp_path / "found_shop" / "app.py").write_text(
        "from eventmq import EventMQ\napp = EventMQ()\nfound = app.autodiscover('found_shop')\n"
    )
    (tmp_path / "found_billing" / "tasks.py").touch()
    (tmp_path / "found_billing" / "jobs.py").touch()
    (tmp_path / "found_broken" / "tasks.py").write_text("import no_such_library\n")
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("found_"):
            del sys.modules[name]


def test_the_tasks_modules_of_packages_are_imported(packages: Path) -> None:
    app = EventMQ("shop")
    assert app.autodiscover("found_billing", "found_none") == ["found_billing.tasks"]
    assert app.autodiscover("found_billing", module="jobs") == ["found_billing.jobs"]
    assert {"found_billing.tasks", "found_billing.jobs"} <= sys.modules.keys()
    assert app.components.names_module("found_billing.tasks")
    assert not app.components.names_module("found_none.tasks")


def test_the_module_of_the_app_may_call_it(packages: Path) -> None:
    module = importlib.import_module("found_shop.app")
    assert module.found == ["found_shop.tasks"]
    assert sys.modules["found_shop.tasks"].app is module.app


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("found_none",), "autodiscover found no module 'tasks' in found_none; name packages"),
        ((), "autodiscover found no module 'tasks' in no package; name packages"),
        (("found_shp",), "'found_shp'.: it cannot be imported as a package: No module named"),
        (("json.decoder",), "'json.decoder'.: it cannot be imported as a package: "),
        (("",), "a package of autodiscover is ''; allowed is: text"),
        (([],), r"a package of autodiscover is \[\]; allowed is: text"),
    ],
    ids=str,
)
def test_packages_without_tasks_are_an_error(packages: Path, names: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        EventMQ("shop").autodiscover(*names)


def test_what_a_tasks_module_raises_is_not_hidden(packages: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        EventMQ("shop").autodiscover("found_broken")
