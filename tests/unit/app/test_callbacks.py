"""What an app runs when workers come and go."""

from __future__ import annotations

import threading

import pytest

from eventmq.app import EventMQ
from eventmq.app.worker import Callbacks
from eventmq.clock import SystemClock
from eventmq.errors import EventMQError
from eventmq.interfaces import JobContext
from eventmq.job import IdFactory
from eventmq.testing import FakeClock, use_app


@pytest.fixture(name="callbacks")
def recording():
    callbacks = Callbacks()
    callbacks.calls = []
    callbacks.worker_start += [lambda: callbacks.calls.append("start")]
    callbacks.worker_stop += [lambda: callbacks.calls.append("stop")]
    callbacks.child_start += [lambda: callbacks.calls.append("child")]
    return callbacks


def fail():
    raise ValueError("no disk")


def test_they_run_around_a_worker(callbacks):
    with callbacks.worker():
        assert callbacks.calls == ["start"]
    assert callbacks.calls == ["start", "stop"]


def test_of_several_workers_in_a_process_the_first_and_the_last_count(callbacks):
    with callbacks.worker():
        with callbacks.worker():
            pass
        assert callbacks.calls == ["start"]
    with callbacks.worker():
        pass
    assert callbacks.calls == ["start", "stop", "start", "stop"]


def test_a_worker_whose_start_fails_does_not_run(callbacks):
    """Nor do its stop callbacks run; the error names the function that failed."""
    callbacks.worker_start.append(fail)
    with (
        pytest.raises(EventMQError, match=r"fail of on_worker_start failed: ValueError: no disk"),
        callbacks.worker(),
    ):
        raise AssertionError
    assert callbacks.calls == ["start"]


def test_a_failure_at_the_stop_is_logged_and_the_others_run(callbacks, caplog):
    callbacks.worker_stop.insert(0, fail)
    with callbacks.worker():
        pass
    assert callbacks.calls == ["start", "stop"]
    assert "fail of on_worker_stop failed" in caplog.text


def test_they_run_once_in_each_process_that_runs_jobs(callbacks, monkeypatch):
    callbacks.child()
    callbacks.child()
    monkeypatch.setattr("os.getpid", lambda: -7)
    callbacks.child()
    assert callbacks.calls == ["child", "child"]


def test_the_decorators_give_the_function_back():
    app = EventMQ("x")
    assert app.on_worker_start(fail) is fail
    assert app.on_worker_stop(fail) is fail
    assert app.on_child_start(fail) is fail
    assert app.on_child_stop(fail) is fail


def test_a_process_that_ran_jobs_ends_once(callbacks):
    """Not one that ran none, such as the worker's own where the pool has processes."""
    callbacks.child_stop += [lambda: callbacks.calls.append("child-stop")]
    callbacks.end_child()
    assert callbacks.calls == []
    callbacks.child()
    callbacks.end_child()
    callbacks.end_child()
    assert callbacks.calls == ["child", "child-stop"]


def test_a_failure_at_the_end_of_a_child_is_logged_and_the_others_run(callbacks, caplog):
    callbacks.child_stop += [fail, lambda: callbacks.calls.append("child-stop")]
    callbacks.child()
    callbacks.end_child()
    assert callbacks.calls == ["child", "child-stop"]
    assert "fail of on_child_stop failed" in caplog.text


def test_an_app_without_any_gives_its_pools_nothing_to_call():
    executor = EventMQ("x").make_executor()
    assert (executor._on_start, executor._on_stop) == (None, None)
    executor.stop()


def test_an_app_with_its_worker_in_the_process_runs_all_of_them():
    calls = []
    with EventMQ("both", broker="memory://") as app:
        app.on_worker_start(lambda: calls.append("start"))
        app.on_child_start(lambda: calls.append("child"))
        app.on_child_stop(lambda: calls.append("child-stop"))
        app.on_worker_stop(lambda: calls.append("stop"))
        task = app.task(name="task")(lambda: list(calls))
        assert sorted(task.delay().get()) == ["child", "start"]
        assert task.options(queue="a-second-worker").delay().get() == task.delay().get()
    for thread in threading.enumerate():
        if thread.name == "eventmq-worker":
            thread.join(20)
    assert calls == ["start", "child", "child-stop", "stop"]


def test_an_app_inside_a_test_runs_none():
    app = EventMQ("x")
    app.on_child_start(fail)
    app.on_worker_start(fail)
    task = app.task(name="task")(lambda: 7)
    with use_app(app):
        assert task.delay().get() == 7


# What a task knows of its job


def job(job_id="j", headers=""):
    return JobContext(job_id, "t", "q", 1, 1, headers)


def test_a_job_knows_when_it_was_made():
    """The time is in its headers, or else in its id, if EventMQ made that."""
    clock = FakeClock(now=1_700_000_000.5)
    assert job(IdFactory(clock).new()).created == 1_700_000_000.5
    assert job(IdFactory(SystemClock()).new(), "created:12.5").created == 12.5
    assert job("chosen-by-the-caller").created == 0.0


def test_a_job_gives_the_headers_that_callers_add():
    assert job(headers="task:t,request-id:7%2C8").header("request-id") == "7,8"
    assert job().header("request-id", "none") == "none"
