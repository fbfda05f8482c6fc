"""The built-in middleware keeps the contract, and so does one with both methods."""

from __future__ import annotations

import logging

import pytest

from eventmq.interfaces import PluginContext
from eventmq.plugins.middleware import log_context
from eventmq.testing import FakeClock, MiddlewareSuite


class TestLogContext(MiddlewareSuite):
    @pytest.fixture(autouse=True)
    def _record_factory(self):
        before = logging.getLogRecordFactory()
        yield
        logging.setLogRecordFactory(before)

    def make(self):
        return log_context.make_middleware(PluginContext("log-context", {}, FakeClock()))


class Counting:
    """As an author would write it."""

    def __init__(self):
        self.calls = 0

    def submit(self, submission, proceed):
        self.calls += 1
        submission.headers["count"] = str(self.calls)
        return proceed(submission)

    def execute(self, job, proceed):
        self.calls += 1
        return proceed()


class TestCounting(MiddlewareSuite):
    def make(self):
        return Counting()
