"""Tasks: their names and options, what a call sends, shared tasks."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import gc
import pickle
import sys
from datetime import datetime, timedelta, timezone
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from eventmq.client.handle import ResultClient
from eventmq.client.submit import Submitter
from eventmq.errors import NotAllowed, SettingsError
from eventmq.headers import Headers, parse_headers
from eventmq.job import IdFactory
from eventmq.main_module import main_name, real_name
from eventmq.plugins.serializers.msgpack_ import Msgpack
from eventmq.policies import exponential, fixed
from eventmq.rates import parse_rate
from eventmq.task import AsyncTask, CallOptions, Task, TaskOptions, shared, shared_task
from eventmq.task.unique import Unique
from eventmq.wire.batches import decode_batch
from eventmq.wire.outcomes import OutcomeReader
from tests.support.client_harness import FakeBroker, Net, NetRunner

if TYPE_CHECKING:
    from eventmq.policies import Backoff
    from eventmq.wire.commands import Request

UTC = timezone.utc


class FakeApp:
    """What tasks know of an app, on a net."""

    def queue_of(self, task: str) -> str:
        return "default"

    release = ""

    def __init__(self, *modules: str) -> None:
        self.broker = FakeBroker()
        self.runner = NetRunner(Net(self.broker))
        self.closed = False
        self.modules = modules
        self.defaults: dict[str, Any] = {}
        self.queues: set[str] = set()
        self.policies: set[Backoff] = set()
        serializer = self.serializer = Msgpack()
        reader = OutcomeReader(lambda _: serializer, {"msgpack"})
        results = ResultClient(self.runner, reader, answer_timeout=5.0, result_timeout=60.0)
        ids = IdFactory(self.runner.clock)
        self.submitter = Submitter(self.runner, results, ids=ids, timeout=5.0)

    def content(self, name: str | None) -> tuple[str, Msgpack]:
        return name or "msgpack", self.serializer

    def with_defaults(self, explicit: Any) -> TaskOptions | None:
        return TaskOptions.read({**self.defaults, **explicit}) if self.defaults else None

    def uses_policy(self, policy: Backoff) -> None:
        self.policies.add(policy)

    def now(self) -> float:
        return self.runner.clock.now()

    def uses_queue(self, queue: str) -> None:
        self.queues.add(queue)

    def names_module(self, module: str) -> bool:
        return module in self.modules

    def task(self, function: Any, **options: Any) -> Task[Any, Any]:
        return shared.declare(function, TaskOptions.read(options), lambda: self)

    def last(self) -> Request:
        return list(self.broker.jobs.values())[-1]

    def headers(self) -> Headers:
        return parse_headers(self.last().headers)

    def arguments(self) -> Any:
        return msgpack.unpackb(self.last().body)


@pytest.fixture
def app() -> FakeApp:
    return FakeApp()


def add(a: int, b: int = 2) -> int:
    """Add."""
    return a + b


def join(a: object, b: int = 2) -> str:
    """Join anything to a number."""
    return f"{a}{b}"


async def double(a: int) -> int:
    return 2 * a


# Names


def test_a_task_is_called_after_module_and_function(app: FakeApp) -> None:
    assert app.task(add).name == f"{__name__}.add"
    assert app.task(add, name="shop.add").name == "shop.add"


def test_a_nested_function_has_no_locals_in_its_name(app: FakeApp) -> None:
    def inner() -> None: ...

    name = "test_a_nested_function_has_no_locals_in_its_name.inner"
    assert app.task(inner).name == f"{__name__}.{name}"


@pytest.mark.parametrize(
    ("spec", "file", "name"),
    [
        ("shop.tasks", "/srv/shop/tasks.py", "shop.tasks"),
        ("shop.__main__", "/srv/shop/__main__.py", "shop.__main__"),
        (None, "/srv/tasks.py", "tasks"),
        (None, None, "__main__"),
    ],
)
def test_a_task_of_the_script_that_runs_has_the_name_that_workers_import(
    spec: str | None, file: str | None, name: str, monkeypatch: pytest.MonkeyPatch, app: FakeApp
) -> None:
    main = ModuleType("__main__")
    main.__file__ = file
    main.__spec__ = None
    if spec:
        main.__spec__ = type("Spec", (), {"name": spec})()
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert main_name() == name
    assert real_name("__main__") == name
    assert real_name("other") == "other"

    def work() -> None: ...

    work.__module__, work.__qualname__ = "__main__", "work"
    assert app.task(work).name == f"{name}.work"


def test_a_task_looks_like_its_function(app: FakeApp) -> None:
    task = app.task(add)
    assert task.__name__ == "add"  # type: ignore[attr-defined]
    assert task.__doc__ == "Add."
    assert task.__wrapped__ is add  # type: ignore[attr-defined]
    assert repr(task) == f"<Task {__name__}.add>"


@shared_task
def at_module_level(n: int) -> int:
    return n


def test_a_task_at_module_level_can_be_pickled_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(at_module_level)) is at_module_level


# Calls here


def test_a_call_runs_here_and_now(app: FakeApp) -> None:
    assert app.task(add)(1, b=5) == 6
    assert asyncio.run(app.task(double)(4)) == 8
    assert app.broker.jobs == {}


def test_the_kind_of_the_function_decides_the_kind_of_the_task(app: FakeApp) -> None:
    assert type(app.task(add)) is Task
    assert type(app.task(double)) is AsyncTask

    @functools.wraps(double)
    def wrapped(*args: Any) -> Any:
        return double(*args)

    assert type(app.task(wrapped)) is AsyncTask


@pytest.mark.parametrize("thing", [None, 5, "add", object(), int, functools.partial(add)])
def test_only_functions_are_tasks(app: FakeApp, thing: Any) -> None:
    with pytest.raises(SettingsError, match="a task is a function"):
        app.task(thing)


class Mailer:
    def send(self, to: str) -> None: ...

    @classmethod
    def new(cls) -> None: ...

    @staticmethod
    def check(to: str) -> None: ...

    class Inner:
        def send(self) -> None: ...

    def maker(self) -> Any:
        def send(self: str) -> None: ...

        return send


@pytest.mark.parametrize(
    ("method", "name"),
    [
        (Mailer.send, "Mailer.send"),
        (Mailer().send, "Mailer.send"),
        (vars(Mailer)["new"], "Mailer.new"),
        (Mailer.new, "Mailer.new"),
        (Mailer.Inner.send, "Mailer.Inner.send"),
    ],
    ids=["function", "bound", "classmethod", "of a class", "inner"],
)
def test_a_method_is_no_task_and_the_reason_is_said(app: FakeApp, method: Any, name: str) -> None:
    with pytest.raises(SettingsError) as caught:
        app.task(method)
    assert str(caught.value) == (
        f"a task is a function, and {name} is a method: a worker has no object to call it on; "
        "write a function that gets what it needs as arguments, such as an id"
    )


def test_a_staticmethod_is_a_task_once_it_is_unwrapped(app: FakeApp) -> None:
    with pytest.raises(SettingsError, match=r"write @staticmethod above @app\.task"):
        app.task(vars(Mailer)["check"])
    assert app.task(Mailer.check).name.endswith("Mailer.check")


def test_functions_near_classes_are_tasks(app: FakeApp) -> None:
    assert app.task(Mailer.check).name.endswith("Mailer.check")
    assert app.task(Mailer().maker()).name.endswith("Mailer.maker.send")


def test_a_lambda_needs_a_name(app: FakeApp) -> None:
    with pytest.raises(SettingsError, match="name="):
        app.task(lambda: 1)
    assert app.task(lambda: 1, name="one")() == 1


def test_the_jobs_of_a_generator_say_that_they_stream(app: FakeApp) -> None:
    """And what the declaration says of that, unless it is the default."""

    def stream() -> Any:
        yield 1

    async def astream() -> Any:
        yield 1

    for function in (stream, astream):
        app.task(function).delay()
        headers = app.headers()
        assert (headers.stream, headers.replayable, headers.stream_unread) == (True, False, "")
        assert headers.stream_idle is None
    task = app.task(stream, replayable=True, stream_idle=5, stream_unread="cancel")
    task.options(priority=1).delay()
    headers = app.headers()
    assert (headers.replayable, headers.stream_idle, headers.stream_unread) == (True, 5.0, "cancel")


@pytest.mark.parametrize(
    "options", [{"replayable": True}, {"stream_idle": 5.0}, {"stream_unread": "cancel"}]
)
def test_only_a_generator_has_options_of_streams(app: FakeApp, options: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=f"not a generator .* leave out {next(iter(options))}"):
        app.task(add, **options)


# Submission


def test_delay_sends_the_arguments_for_the_default_queue(app: FakeApp) -> None:
    job = app.task(add).delay(1, b=3)
    request = app.last()
    assert request.id == job.id
    assert request.queue == "default"
    assert request.headers == f"ack-requested,task:{__name__}.add,content-type:msgpack"
    assert app.arguments() == [[1], {"b": 3}]


def test_adelay_sends_the_same(app: FakeApp) -> None:
    task = app.task(add)
    asyncio.run(task.adelay(1))
    asyncio.run(task.options(priority=3).adelay(2, b=1))
    assert app.arguments() == [[2], {"b": 1}]
    assert app.headers().priority == 3


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1, 2, 3), {}), ((1,), {"c": 1}), ((1,), {"a": 1})]
)
def test_arguments_that_the_function_does_not_take_are_refused_here(
    app: FakeApp, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    task = app.task(add, name="shop.add")
    for submit in (
        lambda: task.delay(*args, **kwargs),
        lambda: task.options(queue="q").delay(*args, **kwargs),
        lambda: task.apply_async(args, kwargs),
        lambda: task.map([args], **kwargs),
    ):
        with pytest.raises(TypeError, match=r"task shop\.add"):
            submit()
    assert app.broker.jobs == {}


def test_options_of_the_declaration_become_headers(app: FakeApp) -> None:
    task = app.task(
        add,
        queue="email",
        retries=3,
        priority=7,
        expires=60,
        ignore_result=True,
        result_ttl=5.0,
        keep_arguments=True,
    )
    task.delay(1)
    assert app.last().queue == "email"
    headers = app.headers()
    assert headers.retry_count == 3
    assert headers.priority == 7
    assert headers.expires == app.now() + 60
    assert headers.ignore_result
    assert headers.result_ttl == 5.0
    assert headers.keep_arguments


def test_options_of_the_call_win(app: FakeApp) -> None:
    task = app.task(add, queue="email", retries=3, priority=7, ignore_result=True, expires=60)
    task.options(
        queue="fast", retries=0, priority=0, ignore_result=False, expires=timedelta(minutes=5)
    ).delay(1)
    headers = app.headers()
    assert app.last().queue == "fast"
    assert (headers.retry_count, headers.priority, headers.ignore_result) == (0, 0, False)
    assert headers.expires == app.now() + 300


def test_apply_async_says_everything_by_arguments(app: FakeApp) -> None:
    task = app.task(add)
    headers = {"trace": "a,b"}
    job = task.apply_async((1,), {"b": 2}, queue="q", countdown=2.5, job_id="mine", headers=headers)
    assert job.id == "mine"
    assert app.last().queue == "q"
    assert app.headers().countdown == 2.5
    assert app.headers().extra == (("trace", "a,b"),)
    assert app.arguments() == [[1], {"b": 2}]


def test_a_moment_is_sent_as_unix_time(app: FakeApp) -> None:
    when = datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    app.task(add).apply_async((1,), eta=when, expires=when + timedelta(hours=1))
    assert app.headers().eta == when.timestamp()
    assert app.headers().expires == when.timestamp() + 3600
    assert app.headers().countdown == 0.0


def test_map_sends_one_job_per_tuple(app: FakeApp) -> None:
    jobs = app.task(add).map([(1,), [2]], b=5)
    assert [job.id for job in jobs] == list(app.broker.jobs)
    assert app.arguments() == [[2], {"b": 5}]
    assert len(asyncio.run(app.task(add).amap([(3,)]))) == 1
    assert len(app.task(add).options(queue="q").map([(3,)])) == 1
    assert app.last().queue == "q"
    assert app.queues == {"default", "q"}
    assert app.task(add).map([]) == []


@pytest.mark.parametrize("calls", [[1, 2], ["ab"], [(1,), 2], [{"a": 1}], "abc", 5, {"a": 1}])
def test_map_takes_tuples_only(app: FakeApp, calls: Any) -> None:
    with pytest.raises(SettingsError, match="argument tuples"):
        app.task(add).map(calls)
    assert app.broker.jobs == {}


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ("ab", None, "args is of type str; allowed is: a list or tuple, as in apply_async((value,"),
        (5, None, "args is of type int; allowed is: a list or tuple, as in apply_async((value,))"),
        ({1}, None, "args is of type set; allowed is: a list or tuple"),
        ((1,), 2, "kwargs is of type int; allowed is: a mapping of names to values, as in "),
        ((1, 3), "ab", 'as in apply_async((value,), {"name": value})'),
        ((), {1: 2}, "a name in kwargs is of type int; allowed is: text, as in apply_async("),
    ],
)
def test_arguments_are_a_sequence_and_a_mapping(
    app: FakeApp, args: Any, kwargs: Any, words: str
) -> None:
    """Text is never split into its letters; the error shows the right call, and no argument."""
    with pytest.raises(SettingsError) as caught:
        app.task(add).apply_async(args, kwargs)
    assert words in str(caught.value)
    assert app.broker.jobs == {}


def test_map_makes_its_ids(app: FakeApp) -> None:
    with pytest.raises(SettingsError, match="job_id"):
        app.task(add).options(job_id="one").map([(1,)])


# Options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": ""}, "name is ''"),
        ({"name": 5}, "name is 5"),
        ({"queue": "x" * 256}, "1 to 255 characters"),
        ({"retries": -1}, "retries is -1; allowed is: a whole number from 0"),
        ({"retries": 1.5}, "retries is 1.5"),
        ({"retries": True}, "retries is True"),
        ({"retry_policy": 5}, "retry_policy is 5; allowed is: the name of a retry policy"),
        ({"retry_policy": ""}, "retry_policy is ''"),
        ({"retry_policy": "fixed:{"}, "retry_policy is"),
        ({"retry_on": ValueError("x")}, "retry_on is ValueError"),
        ({"no_retry_on": (int,)}, "an exception class"),
        ({"priority": 256}, "from 0 to 255"),
        ({"priority": -1}, "priority is -1"),
        ({"expires": 0}, "expires is 0; allowed is: seconds, more than 0"),
        ({"expires": float("nan")}, "expires is nan"),
        ({"expires": "5"}, "expires is '5'"),
        ({"ignore_result": 1}, "ignore_result is 1; allowed is: True or False"),
        ({"keep_arguments": 1}, "keep_arguments is 1; allowed is: True or False"),
        ({"guarantee": False, "keep_arguments": True}, "keep_arguments exclude each other"),
        ({"guarantee": False, "keep_logs": True}, "keep_logs exclude each other: logs are kept"),
        ({"result_ttl": -1}, "result_ttl is -1"),
        ({"result_ttl": float("inf")}, "result_ttl is inf"),
        ({"serializer": 5}, "serializer is 5"),
        ({"retrys": 5}, "no argument 'retrys'; did you mean 'retries'?"),
    ],
)
def test_a_wrong_option_is_an_error_at_the_declaration(
    app: FakeApp, options: dict[str, Any], words: str
) -> None:
    """Errors name argument and allowed values."""
    with pytest.raises(SettingsError) as caught:
        app.task(add, **options)
    assert words in str(caught.value)


def refused(kind: type[Any], name: str) -> bool:
    """Return whether an option is known by name only."""
    try:
        kind(**{name: object()})
    except NotAllowed:
        return True
    except SettingsError:
        return False
    return False


@pytest.mark.parametrize(("kind", "what"), [(CallOptions, "a call"), (TaskOptions, "a task")])
def test_what_is_refused_is_not_offered_as_an_argument(kind: type[Any], what: str) -> None:
    """The list in the message is that of the options, less those that are refused."""
    with pytest.raises(SettingsError, match=f"{what} takes no argument 'zzz'") as caught:
        kind.read({"zzz": 1})
    listed = str(caught.value).partition("known are: ")[2].split(", ")
    names = [field.name for field in dataclasses.fields(kind) if field.name != "roles"]
    declared = ["majordomo"] if kind is TaskOptions else []  # by an installed plugin
    assert listed == sorted([*declared, *(name for name in names if not refused(kind, name))])


def test_a_job_without_guarantee_says_so_in_its_headers(app: FakeApp) -> None:
    app.task(add, guarantee=False).delay(1, 2)
    assert "guarantee:False" in app.broker.received[-1].headers


def test_retries_and_no_guarantee_exclude_each_other(app: FakeApp) -> None:
    """Both options are named, at the declaration and at the call; nothing is sent."""
    words = "guarantee=False and retries=2 exclude each other"
    with pytest.raises(SettingsError, match=words):
        app.task(add, guarantee=False, retries=2)
    task = app.task(add, guarantee=False)
    with pytest.raises(SettingsError, match=words):
        task.options(retries=2).delay(1, 2)
    with pytest.raises(SettingsError, match=words):
        task.apply_async((1, 2), retries=2)
    assert app.broker.received[1:] == []


def test_defaults_may_be_said() -> None:
    explicit = TaskOptions.read({
        "timeout": None, "soft_timeout": None, "unique": None, "rate_limit": None,
        "max_concurrency": None, "limit_key": None, "guarantee": True, "schedule": None,
        "replayable": False, "majordomo": None, "retry_on": Exception,
    })  # fmt: skip
    assert explicit == TaskOptions()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"queue": ""}, "queue is ''"),
        ({"priority": 300}, "priority is 300"),
        ({"countdown": -1}, "countdown is -1"),
        ({"countdown": timedelta(seconds=-1)}, "countdown is -1"),
        ({"countdown": "soon"}, "countdown is 'soon'"),
        ({"eta": 5.0}, "eta is 5.0; allowed is: an aware datetime"),
        ({"eta": datetime(2030, 1, 1)}, "this one is naive"),  # noqa: DTZ001
        ({"countdown": 1, "eta": datetime.now(UTC)}, "one of them"),
        ({"expires": 0}, "more than 0"),
        ({"expires": datetime(2030, 1, 1)}, "naive"),  # noqa: DTZ001
        ({"retries": -1}, "retries is -1"),
        ({"job_id": ""}, "job_id is ''"),
        ({"job_id": 5}, "job_id is 5"),
        ({"headers": "x"}, "a mapping of text to text"),
        ({"headers": {"a": 1}}, "a mapping of text to text"),
        ({"headers": {"priority": "5"}}, "use the options"),
        ({"headers": {"timeout": "x"}}, "use the options"),
        ({"ignore_result": "yes"}, "ignore_result is 'yes'"),
        ({"result_ttl": "long"}, "result_ttl is 'long'"),
        ({"counddown": 1}, "did you mean 'countdown'?"),
        ({"timeout": 0}, "timeout is 0; allowed is: seconds, more than 0"),
        ({"timeout": -5}, "timeout is -5"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"timeout": float("inf")}, "timeout is inf"),
        ({"timeout": 10**12}, "at most 1000000000, or None for no limit"),
        ({"timeout": "1m"}, "timeout is '1m'"),
        ({"timeout": True}, "timeout is True"),
        ({"soft_timeout": 0}, "soft_timeout is 0"),
        ({"timeout": 5, "soft_timeout": 5}, "allowed is: less than timeout, which is 5"),
    ],
)
def test_a_wrong_option_of_a_call_is_an_error_before_anything_is_sent(
    app: FakeApp, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        app.task(add).options(**options)
    assert words in str(caught.value)
    assert app.broker.received[1:] == []


def test_no_options_are_the_same_object() -> None:
    assert CallOptions.read({}) is CallOptions.read({})


# For workers


def test_a_worker_learns_what_it_needs(app: FakeApp) -> None:
    task = app.task(
        add, name="shop.add", retry_policy=fixed(delay=5.0), retry_on=KeyError,
        no_retry_on=[ValueError], ignore_result=True, serializer="json",
    )  # fmt: skip
    spec = task.spec()
    assert spec.name == "shop.add"
    assert spec.function is add
    assert (spec.retry_policy, spec.retry_options) == ("fixed", {"delay": 5.0})
    assert (spec.retry_on, spec.no_retry_on) == ((KeyError,), (ValueError,))
    assert spec.ignore_result
    assert spec.serializer == "json"


def test_a_retry_policy_is_a_name_or_made() -> None:
    assert TaskOptions().backoff.name == "exponential"
    assert TaskOptions(retry_policy="none").backoff.name == "none"
    made = exponential(base=2.0, cap=5.0)
    assert TaskOptions(retry_policy=made).backoff is made


# Shared tasks


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No shared task and no app of another test."""
    gc.collect()
    monkeypatch.setattr(shared, "_declared", {})
    monkeypatch.setattr(shared, "_apps", set())


@pytest.mark.usefixtures("fresh")
def test_a_shared_task_goes_through_the_only_app() -> None:
    task = shared_task(add)
    with pytest.raises(NotAllowed, match="make one first"):
        task.delay(1)
    app = FakeApp()
    shared.register_app(app)
    task.delay(1)
    assert app.arguments() == [[1], {}]


@pytest.mark.usefixtures("fresh")
def test_a_shared_task_goes_through_the_only_open_app() -> None:
    task = shared_task(queue="email")(add)
    first, second = FakeApp(), FakeApp()
    for app in (first, second):
        shared.register_app(app)
    first.closed = True
    task.delay(1)
    assert second.last().queue == "email"
    second.closed, first.closed = True, False
    task.delay(2)
    assert first.arguments() == [[2], {}]


@pytest.mark.usefixtures("fresh")
def test_of_several_apps_the_one_that_names_the_module_is_taken() -> None:
    task = shared_task(add)
    first, second = FakeApp(), FakeApp(__name__)
    for app in (first, second):
        shared.register_app(app)
    task.delay(1)
    assert first.broker.jobs == {}
    first.modules = (__name__,)
    with pytest.raises(NotAllowed, match="2 apps"):
        task.delay(2)


@pytest.mark.usefixtures("fresh")
def test_every_app_has_the_shared_tasks() -> None:
    shared_task(name="lib.add")(add)
    app = FakeApp()
    own = {"own": app.task(double, name="own")}
    table = shared.TaskTable(own, app)
    assert set(table) == {"own", "lib.add"}
    assert len(table) == 2
    table["lib.add"].delay(3)
    assert app.arguments() == [[3], {}]
    with pytest.raises(KeyError):
        _ = table["nobody"]


@pytest.mark.usefixtures("fresh")
def test_a_shared_task_has_the_defaults_of_the_app_that_it_goes_through() -> None:
    """They apply to options that it does not set: called directly, with options, by the table."""
    task = shared_task(name="lib.add", timeout=5)(add)
    app, plain = FakeApp(), FakeApp()
    app.defaults = {"timeout": 60, "retries": 3, "queue": "mail"}
    shared.register_app(app)
    table = shared.TaskTable({}, app)
    for submit in (task.delay, task.options(priority=1).delay, table["lib.add"].delay):
        submit(1)
        assert ("mail", 5.0, 3) == (
            app.last().queue,
            app.headers().timeout,
            app.headers().retry_count,
        )
    assert ("mail", 3) == (table["lib.add"].declared.queue, table["lib.add"].declared.retries)
    shared.TaskTable({}, plain)["lib.add"].delay(1)
    assert ("default", 0) == (plain.last().queue, plain.headers().retry_count)


@pytest.mark.usefixtures("fresh")
def test_defaults_that_a_shared_task_cannot_have_name_it(app: FakeApp) -> None:
    shared_task(name="lib.add", guarantee=False)(add)
    app.defaults = {"retries": 3}
    with pytest.raises(SettingsError, match=r"shared task lib\.add, with task_defaults: .*retries"):
        _ = shared.TaskTable({}, app)["lib.add"]


@pytest.mark.usefixtures("fresh")
def test_a_task_can_be_submitted_through_another_app(app: FakeApp) -> None:
    other = FakeApp()
    app.task(add).bound_to(other).delay(1)
    assert app.broker.jobs == {}
    assert other.arguments() == [[1], {}]


def test_two_functions_of_one_name_are_an_error_and_one_declared_twice_is_not(
    app: FakeApp,
) -> None:
    tasks: dict[str, Task[Any, Any]] = {}
    shared.add_task(tasks, app.task(add, name="x"))
    shared.add_task(tasks, app.task(add, name="x"))
    with pytest.raises(SettingsError, match="two tasks are called 'x'"):
        shared.add_task(tasks, app.task(double, name="x"))


# Unique keys


def keys(app: FakeApp) -> list[str]:
    """Return the unique keys of the jobs that were sent one by one."""
    return [parse_headers(request.headers).unique for request in app.broker.received[1:]]


def test_a_key_is_made_of_the_arguments_however_they_are_given(app: FakeApp) -> None:
    """They may be passed by position, by keyword or by default."""

    def send(to: str, subject: str = "hi", *rest: str, urgent: bool = False, **more: str) -> None:
        """Take all kinds of arguments."""

    task = app.task(send, name="send", unique="{to}/{subject}/{urgent}")
    task.delay("a")
    task.delay(to="a", subject="hi")
    task.delay("a", "hi", urgent=True)
    task.options(unique="{to}:{tenant}").delay("b", tenant="t")
    task.options(unique="constant {{}}").delay("c")
    task.options(unique="*:{to}").delay("d")
    assert keys(app) == [
        "send:a/hi/False", "send:a/hi/False", "send:a/hi/True", "send:b:t",
        "send:constant {}", "*:d",
    ]  # fmt: skip


def test_a_key_says_its_mode_period_and_states(app: FakeApp) -> None:
    unique = Unique("k", mode="keep_last", period=5, states=["queued", "delayed"])
    app.task(add, unique=unique).delay(1, 2)
    headers = parse_headers(app.broker.received[-1].headers)
    assert (headers.unique_mode, headers.unique_period) == ("keep_last", 5.0)
    assert headers.unique_states == "delayed+queued"


def test_many_calls_have_a_key_each(app: FakeApp) -> None:
    app.task(add, name="add", unique="{a}").map([(1, 2), (3, 4)])
    [request] = app.broker.received[1:]
    templates, _ = decode_batch(request.body, 2)
    assert [parse_headers(text).unique for _, text in templates] == ["add:1", "add:3"]


def test_a_long_key_is_cut_and_stays_different(app: FakeApp) -> None:
    task = app.task(join, name="add", unique="{a}")
    task.apply_async(("x" * 1000 + "1", 0))
    task.apply_async(("x" * 1000 + "2", 0))
    first, second = keys(app)
    assert first != second
    assert len(first) == len(second) == 255


def test_a_key_is_cut_by_its_bytes_between_two_characters(app: FakeApp) -> None:
    """A broker takes 1,024 bytes, task included."""
    task = app.task(join, name="add", unique="{a}")
    for last in "12":
        task.apply_async(("\N{EURO SIGN}" * 255 + last, 0))
    first, second = keys(app)
    assert first != second
    assert first.startswith("add:" + "\N{EURO SIGN}" * 62)
    assert len(first.encode()) <= 255


@pytest.mark.parametrize(
    ("unique", "words"),
    [
        ("", "the key of unique is ''"),
        (5, "a key template such as 'user:{to}'"),
        ("{x", "is malformed"),
        ("{}", "allowed is the name of an argument"),
        ("{0}", "allowed is the name of an argument"),
        ("{c}", "names 'c'; the arguments of the function are: a, b"),
    ],
)
def test_a_bad_key_template_is_an_error_at_the_declaration(
    app: FakeApp, unique: Any, words: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        app.task(add, unique=unique)
    assert words in str(caught.value)
    with pytest.raises(SettingsError) as caught:
        app.task(add).options(unique=unique).delay(1, 2)
    assert words in str(caught.value)
    assert app.broker.received[1:] == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "first"}, "'reject', 'replace', 'keep_last'"),
        ({"period": 0}, "the period of unique is 0"),
        ({"states": ["asleep"]}, "some of blocked, cancelled"),
        ({"states": "queued"}, "some of blocked, cancelled"),
        ({"states": []}, "some of blocked, cancelled"),
    ],
)
def test_a_wrong_word_about_a_key_names_the_right_ones(options: Any, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Unique("k", **options)
    assert words in str(caught.value)


def test_a_key_that_cannot_be_filled_in_sends_nothing(app: FakeApp) -> None:
    """An argument of this call is missing, or has not what the template takes of it."""

    def anything(**more: object) -> None:
        """Take what comes."""

    with pytest.raises(SettingsError, match="cannot be filled in: no argument 'to'"):
        app.task(anything, unique="{to}").delay(cc="a")
    with pytest.raises(SettingsError, match="cannot be filled in"):
        app.task(add, unique="{a.name}").delay(1, 2)
    assert app.broker.received[1:] == []


def test_no_guarantee_and_a_key_exclude_each_other(app: FakeApp) -> None:
    words = "guarantee=False and unique exclude each other"
    with pytest.raises(SettingsError, match=words):
        app.task(add, guarantee=False, unique="{a}")
    with pytest.raises(SettingsError, match=words):
        app.task(add, guarantee=False).options(unique="{a}").delay(1, 2)


# Limits


def test_limits_travel_in_the_headers(app: FakeApp) -> None:
    task = app.task(add, timeout=30, soft_timeout=20.5)
    headers = task.template.headers
    assert (headers.timeout, headers.soft_limit) == (30.0, 20.5)
    headers = task.options(timeout=40, soft_timeout=35).template.headers
    assert (headers.timeout, headers.soft_limit) == (40.0, 35.0)


def test_limits_of_a_call_must_fit_those_of_the_task(app: FakeApp) -> None:
    task = app.task(add, timeout=30, soft_timeout=20)
    with pytest.raises(SettingsError, match="soft_timeout is 20; allowed is: less than timeout"):
        task.options(timeout=10).delay(1, 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout": 0}, "timeout is 0; allowed is: seconds, more than 0"),
        ({"soft_timeout": -1}, "soft_timeout is -1"),
        ({"timeout": 5, "soft_timeout": 6}, "soft_timeout is 6; allowed is: less than timeout"),
    ],
)
def test_wrong_limits_are_an_error_at_the_declaration(
    app: FakeApp, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        app.task(add, **options)
    assert words in str(caught.value)


# Limits of the broker


def test_limits_of_the_broker_travel_in_the_headers(app: FakeApp) -> None:
    """The key is made of the arguments, and is that of the task without its name."""
    task = app.task(join, name="add", rate_limit="100/m", max_concurrency=5, limit_key="a:{a}")
    task.delay(1, 2)
    task.delay(b=4, a="x,y")
    sent_headers = [parse_headers(request.headers) for request in app.broker.received[1:]]
    assert [(h.limit_rate, h.limit_running, h.limit_key) for h in sent_headers] == [
        ("100/m", 5, "a:1"),
        ("100/m", 5, "a:x,y"),
    ]
    task.map([(7, 8), (7, 9)])
    templates, _ = decode_batch(app.broker.received[-1].body, 2)
    assert {parse_headers(text).limit_key for _, text in templates} == {"a:7"}


def test_a_key_for_limits_and_a_unique_key_are_two(app: FakeApp) -> None:
    app.task(add, name="add", unique="{a}", limit_key="{b}").delay(1, 2)
    headers = parse_headers(app.broker.received[-1].headers)
    assert (headers.unique, headers.limit_key) == ("add:1", "2")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rate_limit": ""}, "rate_limit is ''; allowed is: a number per time, such as '5/s'"),
        ({"rate_limit": 100}, "rate_limit is 100; allowed is: a number per time"),
        ({"rate_limit": "100"}, "'100/m', '1000/h', '5000/d' or '2/10s'"),
        ({"rate_limit": "0/s"}, "rate_limit is '0/s'"),
        ({"rate_limit": "5/w"}, "rate_limit is '5/w'"),
        ({"rate_limit": "1.5/s"}, "rate_limit is '1.5/s'"),
        ({"max_concurrency": 0}, "max_concurrency is 0; allowed is: a whole number from 1"),
        ({"max_concurrency": -1}, "max_concurrency is -1; allowed is: a whole number from 1"),
        ({"max_concurrency": "5"}, "max_concurrency is '5'"),
        ({"max_concurrency": True}, "max_concurrency is True"),
        ({"limit_key": ""}, "limit_key is ''; allowed is: a key template"),
        ({"limit_key": 5}, "limit_key is 5"),
        ({"limit_key": "{to"}, "the key template '{to' is malformed"),
        ({"limit_key": "{who}"}, "limit_key of task add names 'who'"),
        ({"guarantee": False, "rate_limit": "5/s"}, "guarantee=False and rate_limit exclude"),
        ({"guarantee": False, "max_concurrency": 1}, "guarantee=False and max_concurrency"),
        ({"guarantee": False, "limit_key": "{a}"}, "guarantee=False and limit_key exclude"),
    ],
)
def test_a_limit_that_is_none_is_an_error_at_the_declaration(
    app: FakeApp, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        app.task(add, name="add", **options)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("5/s", (5, 1.0)),
        ("100/m", (100, 60.0)),
        ("1000/h", (1000, 3600.0)),
        ("1/d", (1, 86_400.0)),
        ("2/10s", (2, 10.0)),
        ("3/2m", (3, 120.0)),
    ],
)
def test_rates_are_read(text: str, rate: tuple[int, float]) -> None:
    assert parse_rate(text) == rate
