"""The form of log lines."""

from __future__ import annotations

import logging
import re
from contextvars import copy_context

import pytest

from eventmq.cli.logs import start_logging
from eventmq.execution.context import current
from eventmq.interfaces import JobContext
from eventmq.plugins.middleware.log_context import LogContext

HEAD = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} "


@pytest.fixture
def say(capsys):
    """Return what a line looks like that a logger writes inside a job, or outside."""
    factory = logging.getLogRecordFactory()

    def say(name, *, task="shop.add"):
        start_logging("info")
        logger = logging.getLogger(name)
        context = copy_context()
        if task is not None:
            context.run(current.set, JobContext("j1", task, "default", 2, 3, ""))
        context.run(logger.info, "hello")
        return capsys.readouterr().err

    yield say
    logging.setLogRecordFactory(factory)


def test_a_line_has_time_level_origin_and_inside_a_task_the_job(say):
    LogContext()
    assert re.fullmatch(HEAD + r"INFO    shop\.mail \[shop\.add j1 attempt 2\]: hello\n",
                        say("shop.mail"))  # fmt: skip


def test_a_line_outside_of_jobs_has_no_empty_brackets(say):
    LogContext()
    assert say("shop.mail", task=None).endswith("INFO    shop.mail: hello\n")


def test_a_line_that_names_the_job_itself_does_not_say_it_twice(say):
    LogContext()
    assert say("eventmq.execution.joblog").endswith("INFO    eventmq.execution.joblog: hello\n")


def test_a_legacy_job_has_no_task(say):
    LogContext()
    assert "[(legacy) j1 attempt 2]" in say("shop.mail", task="")


def test_without_the_middleware_lines_are_written_all_the_same(say):
    logging.setLogRecordFactory(logging.LogRecord)
    assert say("shop.mail").endswith("INFO    shop.mail: hello\n")


def test_an_app_that_configures_logging_does_not_silence_us(say):
    """``dictConfig`` disables the loggers that are there, unless told not to."""
    for name in ("eventmq", "eventmq.execution.joblog"):
        logging.getLogger(name).disabled = True
    assert say("eventmq.execution.joblog").endswith(": hello\n")
    assert not logging.getLogger("eventmq").disabled
