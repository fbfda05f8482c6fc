"""The routing strategies that settings choose, in a broker of an app."""

from __future__ import annotations

import pytest

from eventmq.app import EventMQ
from eventmq.errors import PluginNotFound


def test_a_queue_can_have_a_routing_strategy_of_its_own():
    """An app whose broker routes one queue by key runs its jobs as any other."""
    with EventMQ("shop", broker="memory://", queue_routing_strategies={"reports": "sticky"}) as app:

        @app.task(name="report", queue="reports")
        def report(tenant):
            return tenant

        bound = report.options(headers={"routing-key": "tenant-7"})
        assert [bound.delay(7).get(), report.delay(8).get()] == [7, 8]


def test_an_unknown_routing_strategy_of_a_queue_is_named():
    with (
        EventMQ("shop", broker="memory://", queue_routing_strategies={"reports": "stiky"}) as app,
        pytest.raises(PluginNotFound, match="sticky"),
    ):
        app.make_broker(binds={})


def test_an_unknown_queue_order_is_an_error_before_the_broker_starts():
    """And not when the first worker comes, which would end a broker that serves."""
    app = EventMQ("shop", broker="memory://", store="memory", queue_order="strictly")
    with app, pytest.raises(PluginNotFound, match="did you mean 'strict'"):
        app.make_broker(binds={})
