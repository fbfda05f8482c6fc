"""Each option of Celery's decorator is honoured, needless, or refused by its name."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
from celery import Task
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

from eventmq import EventMQ, JobFailed, SettingsError
from eventmq.testing import use_app
from eventmq_contrib.celery import MaxRetriesExceededError, shared_task
from eventmq_contrib.celery.options import read_options

HONOURED = {
    "name": ("shop.add", "name", "shop.add"),
    "queue": ("mail", "queue", "mail"),
    "priority": (7, "priority", 7),
    "ignore_result": (True, "ignore_result", True),
    "time_limit": (30, "timeout", 30),
    "soft_time_limit": (20, "soft_timeout", 20),
    "serializer": ("json", "serializer", "json"),
    "expires": (60, "expires", 60),
    "max_retries": (5, "retries", 5),
    "retry_kwargs": ({"max_retries": 9}, "retries", 9),
}


@pytest.mark.parametrize("name", HONOURED)
def test_an_option_is_honoured(name):
    value, ours, expected = HONOURED[name]
    assert read_options("t", {name: value})[0][ours] == expected


REFUSED = {
    "acks_late": (False, "guarantee=False"),
    "acks_on_failure_or_timeout": (False, "failed retry"),
    "base": (Task, "middleware"),
    "exchange": ("x", "queue="),
    "expires": ("tomorrow", "seconds"),
    "max_retry": (3, "'max_retries'"),
    "on_failure": (print, "middleware"),
    "pydantic_strict": (True, "default mode"),
    "rate_limit": (0.5, "1/2s"),
    "reject_on_worker_lost": (False, "guarantee=False"),
    "retry_kwargs": ({"queue": "mail"}, "countdown and max_retries"),
    "serializer": ("pickle", "msgpack"),
    "unique": ("user:{to}", r"eventmq\.shared_task"),
    "zzz": (1, "attribute of the task"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_option_that_cannot_be_honoured_is_an_error(name):
    value, right = REFUSED[name]
    with pytest.raises(SettingsError, match=right) as caught:
        read_options("shop.add", {name: value})
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("compression", "gzip"), ("throws", (KeyError,)), ("typing", False), ("rate_limit", "10/m")],
)
def test_an_option_that_is_weaker_is_a_warning(name, value):
    with pytest.warns(UserWarning, match=f"task t: {name}="):
        read_options("t", {name: value})


def test_every_option_of_celery_is_known():
    """Those of this version of Celery, and None for each, which is its default."""
    inner = {"abstract", "from_config", "request_stack", "resultrepr_maxsize", "Request"}
    inner |= {"Strategy", "OperationalError", "MaxRetriesExceededError"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some are deprecated
        values = {name: getattr(Task, name) for name in [*vars(Task)] if not name.startswith("_")}
    values = {
        name: value
        for name, value in values.items()
        if name not in inner and not callable(value) and not isinstance(value, property)
    }
    assert {"acks_late", "max_retries", "track_started", "retry_on_worker_lost"} <= values.keys()
    for name, value in values.items():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            read_options("t", {name: value})


def test_a_delay_is_that_of_celery():
    _, rules = read_options(
        "t", {"autoretry_for": (OSError,), "retry_backoff": 2, "retry_jitter": False}
    )
    delays = [rules.automatic(OSError(), n)["countdown"] for n in range(12)]
    assert delays == [2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600, 600]
    assert rules.automatic(OSError(), 10**9)["countdown"] == 600
    assert rules.automatic(ValueError(), 0) is None


@pytest.fixture
def app():
    app = EventMQ("options", imports=[__name__])
    yield app
    app.close()


def run(app, task, *args, steps=5):
    with use_app(app) as inline:
        job = app.tasks[task.name].delay(*args)
        for _ in range(steps):
            inline.drain()
            inline.travel(200)
        return job, job.state, job.info()["attempt"]


def test_an_error_is_retried_only_where_it_is_asked_for(app):
    @shared_task(name="options.plain", max_retries=5)
    def plain():
        raise OSError("once")

    @shared_task(name="options.again", autoretry_for=(OSError,), max_retries=2)
    def again():
        raise OSError("three times")

    assert run(app, plain)[1:] == ("failed", 1)
    assert run(app, again)[1:] == ("failed", 3)


def test_self_is_the_task_and_the_request(app):
    seen = []

    @shared_task(name="options.bound", bind=True, max_retries=1)
    def bound(self, number):
        request = self.request
        seen.append((request.retries, request.args, request.called_directly, self.max_retries))
        if request.retries == 0:
            raise self.retry(countdown=1)
        return number

    assert run(app, bound, 5)[1] == "succeeded"
    assert seen == [(0, (5,), False, 1), (1, (5,), False, 1)]
    with pytest.raises(Exception, match="called directly"):
        bound(5)
    with pytest.raises(AttributeError, match=r"self\.request\.chord is not there"):
        bound.request.chord  # noqa: B018
    with pytest.raises(AttributeError, match="write a chain"):
        bound.replace(None)


def test_the_last_retry_raises_what_celery_raises(app):
    caught = []

    @shared_task(name="options.last", bind=True, max_retries=0)
    def last(self):
        try:
            self.retry()
        except self.MaxRetriesExceededError as error:
            caught.append(type(error))
        raise self.retry(exc=KeyError("gone"))

    with use_app(app) as inline:
        job = app.tasks["options.last"].delay()
        inline.drain()
        with pytest.raises(JobFailed, match="gone"):
            job.get()
    assert caught == [MaxRetriesExceededError]


@pytest.mark.parametrize("given", [True, False])
def test_the_error_of_an_attempt_is_kept(app, given):
    @shared_task(name="options.kept", bind=True, max_retries=1)
    def kept(self):
        try:
            raise KeyError("no stock")
        except KeyError as error:
            raise self.retry(countdown=1, **({"exc": error} if given else {}))  # noqa: B904 - as tasks do

    with use_app(app) as inline:
        job = app.tasks["options.kept"].delay()
        inline.drain()
        assert "no stock" in str(job.info()["attempts"][0])


@pytest.mark.parametrize(
    "arguments", [{"throw": False}, {"queue": "x"}, {"max_retries": 9}, {"args": (1,)}]
)
def test_retry_refuses_what_it_cannot_do(app, arguments):
    @shared_task(name="options.refusing", bind=True, max_retries=3)
    def refusing(self):
        self.retry(**arguments)

    with use_app(app) as inline:
        job = app.tasks["options.refusing"].delay()
        inline.drain()
        with pytest.raises(JobFailed, match=next(iter(arguments))):
            job.get()


def test_ignore_and_reject_of_celery(app):
    @shared_task(name="options.ignored")
    def ignored():
        raise Ignore

    @shared_task(name="options.rejected", autoretry_for=(Exception,))
    def rejected():
        raise Reject("no stock", requeue=False)

    assert run(app, ignored)[1] == "succeeded"
    assert run(app, rejected)[1:] == ("failed", 1)


def test_a_soft_limit_of_celery_would_never_come():
    with pytest.raises(SettingsError, match=r"of Celery, .* eventmq\.SoftTimeLimitExceeded"):

        @shared_task(name="options.soft")
        def soft():
            try:
                return 1
            except SoftTimeLimitExceeded:
                return 2


def test_options_of_a_call(app):
    @shared_task(name="options.called")
    def called(a, b=0):
        return a + b

    with use_app(app) as inline:
        job = called.apply_async((1,), {"b": 2}, countdown=5, task_id="mine", time_limit=9)
        assert (job.id, job.state) == ("mine", "delayed")
        inline.travel(6)
        inline.drain()
        assert job.get() == 3
        for option in ("link", "routing_key", "shadow", "retries", "zzz"):
            with pytest.raises(SettingsError, match=option):
                called.apply_async((1,), **{option: "x"})
        with pytest.raises(TypeError, match="list or tuple"):
            called.apply_async("12")
        assert called.s(1).task == called.si(1).task == "options.called"


@pytest.mark.parametrize("function", ["async def f(): ...", "def f():\n    yield"])
def test_what_celery_cannot_run_is_sent_to_eventmqs_decorator(function):
    scope = {"__name__": "options"}
    exec(function, scope)
    with pytest.raises(SettingsError, match=r"eventmq\.shared_task"):
        shared_task(scope["f"])


def test_the_decorator_needs_no_celery():
    code = (
        "import sys; sys.modules['celery'] = sys.modules['kombu'] = None\n"
        "from eventmq_contrib.celery import shared_task\n"
        "print(shared_task(name='a')(lambda: 1).name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "a\n", done.stderr


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"accept_content": ["msgpack", "application/json"]}, "'celery' in the setting middleware"),
        ({"middleware": ["celery"]}, "option 'app' is ''"),
        (
            {"middleware": ["celery"], "plugin_options": {"celery": {"app": "old:app"}}},
            "'application/json' in accept_content",
        ),
    ],
)
def test_a_setting_that_is_missing_is_named(settings, error):
    with EventMQ("options", **settings) as app, pytest.raises(Exception, match=error):
        app.make_executor()
