"""The built-in worker pools keep the contract."""

from __future__ import annotations

import os

import pytest

from eventmq.interfaces import PluginContext
from eventmq.plugins.pools import asyncio, prefork, threads
from eventmq.testing import FakeClock, WorkerPoolSuite
from eventmq.testing.suites.pool_tasks import LOADER, make_executor


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
class TestPrefork(WorkerPoolSuite):
    def make(self, slots):
        options = {"concurrency": slots, "loader": LOADER, "arguments": {}}
        return prefork.make_prefork_pool(PluginContext("prefork", options, FakeClock()))


class TestThreads(WorkerPoolSuite):
    processes = False

    def make(self, slots):
        options = {"concurrency": slots, "executor": make_executor()}
        return threads.make_threads_pool(PluginContext("threads", options, FakeClock()))


class TestAsyncio(WorkerPoolSuite):
    processes = False

    def make(self, slots):
        options = {"concurrency": slots, "executor": make_executor()}
        return asyncio.make_asyncio_pool(PluginContext("asyncio", options, FakeClock()))
