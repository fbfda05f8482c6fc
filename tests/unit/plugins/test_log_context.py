"""Log records name the job that runs, and `current_job` returns it to tasks."""

from __future__ import annotations

import logging
import subprocess
import sys
from contextvars import copy_context

import pytest

from eventmq.errors import EventMQError
from eventmq.interfaces import JobContext, PluginContext, current, current_job
from eventmq.plugins.middleware.log_context import make_middleware
from eventmq.testing import FakeClock

JOB = JobContext("job-1", "tasks.add", "default", 2, 3, "")
FORMAT = "%(message)s %(eventmq_job)s %(eventmq_task)s %(eventmq_attempt)s"


@pytest.fixture(autouse=True)
def record_factory():
    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(logging.LogRecord)  # apps of other tests may have installed it
    yield logging.LogRecord
    logging.setLogRecordFactory(before)


def install():
    make_middleware(PluginContext("log-context", {}, FakeClock()))


def in_job(function):
    """Call the function as a worker calls a task."""

    def call():
        current.set(JOB)
        return function()

    return copy_context().run(call)


def line(message, **extra):
    record = logging.getLogger("x").makeRecord("x", 20, "f", 1, message, (), None, extra=extra)
    return logging.Formatter(FORMAT).format(record)


def test_a_record_inside_a_task_has_job_task_and_attempt():
    install()
    assert in_job(lambda: line("hello")) == "hello job-1 tasks.add 2"


def test_a_record_outside_of_jobs_fits_the_same_format():
    install()
    assert line("hello") == "hello   "


def test_extra_fields_of_users_are_not_in_the_way():
    """``logging`` refuses an ``extra`` with the name of an attribute of the record."""
    install()
    assert in_job(lambda: line("hi", job="x", task="y", job_id="z")) == "hi job-1 tasks.add 2"


def test_installing_twice_wraps_once(record_factory):
    install()
    once = logging.getLogRecordFactory()
    install()
    assert logging.getLogRecordFactory() is once
    assert once._make is record_factory


def test_an_earlier_record_factory_stays_in_use():
    class Own(logging.LogRecord):
        pass

    logging.setLogRecordFactory(Own)
    install()
    record = logging.getLogger("x").makeRecord("x", 20, "f", 1, "m", (), None)
    assert isinstance(record, Own)


def test_the_middleware_costs_nothing_per_job():
    """A middleware without hook methods is never called."""
    middleware = make_middleware(PluginContext("log-context", {}, FakeClock()))
    assert not hasattr(middleware, "submit")
    assert not hasattr(middleware, "execute")


def test_current_job_is_the_running_one():
    assert in_job(current_job) is JOB


def test_current_job_outside_of_a_job_is_an_error():
    with pytest.raises(EventMQError, match="only inside a task"):
        current_job()


def test_a_line_from_before_the_app_fits_the_same_format(tmp_path):
    """Modules may configure logging and log before they create their app."""
    module = tmp_path / "shop.py"
    module.write_text(
        "import logging\n"
        "from eventmq import EventMQ\n"
        f"logging.basicConfig(format={FORMAT!r})\n"
        "logging.warning('early')\n"
        "app = EventMQ('shop', middleware=[])\n"
        "logging.warning('later')\n"
    )
    done = subprocess.run([sys.executable, module], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == ["early   ", "later   "]
