"""Tools for tests of apps and plugins; EventMQ itself does not import them.

`use_app` runs the jobs of an app inside a test; the pytest plugin `eventmq.testing.plugin` provides
it as fixtures.

The suites need pytest and load when first used, so that this package can be imported without
pytest. The author of a plugin subclasses the suite of a contract::

    class TestMine(SerializerSuite):
        def make(self):
            return MySerializer()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.lazy import load_names

if TYPE_CHECKING:
    from eventmq.testing.clock import FakeClock
    from eventmq.testing.cluster import Enqueued
    from eventmq.testing.inline import InlineApp, use_app
    from eventmq.testing.suites.command import CommandSuite
    from eventmq.testing.suites.gateway import GatewaySuite
    from eventmq.testing.suites.middleware import MiddlewareSuite
    from eventmq.testing.suites.queue_order import QueueOrderSuite
    from eventmq.testing.suites.queue_store import QueueStoreSuite
    from eventmq.testing.suites.result_backend import ResultBackendSuite
    from eventmq.testing.suites.retry_policy import RetryPolicySuite
    from eventmq.testing.suites.routing import KeyedRoutingSuite, RoutingStrategySuite
    from eventmq.testing.suites.row_store import RowStoreSuite
    from eventmq.testing.suites.schedule_store import ScheduleStoreSuite
    from eventmq.testing.suites.serializer import SerializerSuite
    from eventmq.testing.suites.trigger import TriggerSuite
    from eventmq.testing.suites.worker_pool import WorkerPoolSuite

__all__ = [
    "CommandSuite",
    "Enqueued",
    "FakeClock",
    "GatewaySuite",
    "InlineApp",
    "KeyedRoutingSuite",
    "MiddlewareSuite",
    "QueueOrderSuite",
    "QueueStoreSuite",
    "ResultBackendSuite",
    "RetryPolicySuite",
    "RoutingStrategySuite",
    "RowStoreSuite",
    "ScheduleStoreSuite",
    "SerializerSuite",
    "TriggerSuite",
    "WorkerPoolSuite",
    "use_app",
]

__getattr__ = load_names(
    __name__,
    {
        "CommandSuite": ".suites.command",
        "Enqueued": ".cluster",
        "FakeClock": ".clock",
        "GatewaySuite": ".suites.gateway",
        "InlineApp": ".inline",
        "KeyedRoutingSuite": ".suites.routing",
        "MiddlewareSuite": ".suites.middleware",
        "QueueOrderSuite": ".suites.queue_order",
        "QueueStoreSuite": ".suites.queue_store",
        "ResultBackendSuite": ".suites.result_backend",
        "RetryPolicySuite": ".suites.retry_policy",
        "RoutingStrategySuite": ".suites.routing",
        "RowStoreSuite": ".suites.row_store",
        "ScheduleStoreSuite": ".suites.schedule_store",
        "SerializerSuite": ".suites.serializer",
        "TriggerSuite": ".suites.trigger",
        "WorkerPoolSuite": ".suites.worker_pool",
        "use_app": ".inline",
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
