"""Queue orders and routing strategies of plugins that fail, in a broker that goes on."""

from __future__ import annotations

import types

import pytest

from eventmq.app import EventMQ
from eventmq.app.guards import GuardedRouting, guarded_orders
from eventmq.interfaces import WorkerView
from eventmq.sdk import hookimpl

QUEUES = [(10, "mail"), (20, "default")]
WORKERS = [WorkerView("a", 1, 0), WorkerView("b", 2, 0)]


class Order:
    """Chooses the first queue."""

    def choose(self, queues):
        return queues[0][1]

    def charge(self, queue, weight, jobs):
        pass


class Raises(Order):
    def choose(self, queues):
        raise KeyError("jobs")


class WithoutArgument(Order):
    def choose(self):
        return "mail"


class NotOffered(Order):
    def choose(self, queues):
        return "nobody"


class Empties(Order):
    def choose(self, queues):
        queues.clear()
        return "nobody"


class RaisesInCharge(Order):
    def charge(self, queue, weight, jobs):
        raise ValueError("no such account")


def use(order):
    chosen = order.choose(QUEUES)
    order.charge(chosen, {name: weight for weight, name in QUEUES}.get(chosen, 1), 1)
    return chosen


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (Raises, "failed in 'choose': KeyError: 'jobs'"),
        (WithoutArgument, "failed in 'choose': TypeError"),
        (NotOffered, "it returned 'nobody', which is not one of 'mail', 'default'"),
        (Empties, "it returned 'nobody', which is not one of 'mail', 'default'"),
        (RaisesInCharge, "failed in 'charge': ValueError: no such account"),
    ],
)
def test_an_order_that_fails_is_logged_once_and_replaced_for_all_sessions(kind, error, caplog):
    make = guarded_orders(kind, "queue order 'x' of plugin 'y'")
    orders = [make(), make()]
    for order in orders:
        use(order)
    orders.append(make())  # made after the failure
    for order in orders:  # weighted-fair: two of the heavier queue for one of the other
        chosen = [use(order) for _ in range(30)]
        assert chosen.count("default") in range(19, 22)
    (record,) = caplog.records
    text = record.getMessage()
    assert text.startswith("queue order 'x' of plugin 'y' ")
    assert error in text
    assert text.endswith("; 'weighted-fair' serves in its place until the broker is restarted")
    assert record.exc_info[2] is not None


def test_an_order_that_does_not_fail_is_used(caplog):
    order = guarded_orders(Order, "queue order 'x'")()
    assert [use(order) for _ in range(5)] == ["mail"] * 5
    assert not caplog.records


def test_a_factory_that_fails_for_a_later_session_is_logged_and_replaced(caplog):
    def make():
        raise OSError("too many files")

    assert use(guarded_orders(make, "queue order 'x'")()) == "default"
    (record,) = caplog.records
    assert "queue order 'x' failed in 'the factory': OSError: too many files" in record.getMessage()


class Strategy:
    """Returns, or raises, what it is given."""

    def __init__(self, chosen=("a",), key="k", preferred="a"):
        self.by_key = True
        self.chosen, self.the_key, self.preferred = chosen, key, preferred

    def choose(self, queue, workers, n):
        return _said(self.chosen)

    def key(self, queue, headers):
        return _said(self.the_key)

    def prefer(self, queue, key, workers, now):
        return _said(self.preferred)


def _said(value):
    if isinstance(value, Exception):
        raise value
    return value


@pytest.mark.parametrize(
    ("strategy", "error"),
    [
        (Strategy(chosen=KeyError("x")), "failed in 'choose': KeyError: 'x'"),
        (Strategy(chosen=None), "failed in 'choose': TypeError"),
        (Strategy(chosen=[]), "it returned no session for the queue 'q', whose jobs would wait"),
        (Strategy(chosen=["c"]), "it returned 'c', which was not offered"),
        (Strategy(chosen=["a", "a"]), "it returned 'a' 2 times, with a credit of 1"),
        (Strategy(key=KeyError("x")), "failed in 'key': KeyError: 'x'"),
        (Strategy(key=7), "failed in 'key': HookError: it returned int, not text"),
        (Strategy(preferred=KeyError("x")), "failed in 'prefer': KeyError: 'x'"),
        (Strategy(preferred="c"), "failed in 'prefer': HookError: it returned 'c'"),
    ],
)
def test_a_strategy_that_fails_is_logged_once_and_replaced_without_keys(strategy, error, caplog):
    routing = GuardedRouting(strategy, "routing strategy 'x' of plugin 'y'")
    for _ in range(2):
        routing.choose("q", WORKERS, 3)
        routing.key("q", "headers")
        assert routing.prefer("q", "k", WORKERS, 0.0) in {"a", "b"}
    assert sorted(routing.choose("q", WORKERS, 3)) == ["a", "b", "b"]
    assert routing.key("q", "headers") == ""
    (record,) = caplog.records
    text = record.getMessage()
    assert text.startswith("routing strategy 'x' of plugin 'y' failed in ")
    assert error in text
    assert "'least-recently-used' serves in its place" in text


def test_a_strategy_that_does_not_fail_is_used(caplog):
    routing = GuardedRouting(Strategy(preferred=None), "routing strategy 'x'")
    assert routing.choose("q", WORKERS, 1) == ["a"]
    assert routing.key("q", "headers") == "k"
    assert routing.prefer("q", "k", WORKERS, 0.0) is None
    assert not caplog.records


def _plugin(**hooks):
    module = types.ModuleType("ageing")
    for name, provided in hooks.items():
        hook = _hook(provided)
        hook.__name__ = name
        setattr(module, name, hookimpl(hook))
    return module


def _hook(provided):
    def hook():
        return {name: lambda context, kind=kind: kind() for name, kind in provided.items()}

    return hook


def test_a_broker_outlives_an_order_and_a_strategy_that_raise(caplog):
    """Jobs of two queues are done, though each choice among queues and workers fails."""
    plugin = _plugin(
        eventmq_queue_orders={"ageing": RaisesInCharge},
        eventmq_routing_strategies={"picky": lambda: Strategy(key=KeyError("tenant"))},
    )
    options = {"queue_order": "ageing", "routing_strategy": "picky"}
    with EventMQ("shop", broker="memory://", plugins=[plugin], **options) as app:

        @app.task(name="add")
        def add(a, b):
            return a + b

        jobs = [add.options(queue=queue).delay(1, 2) for queue in ("mail", "default") * 5]
        assert [job.get(timeout=30) for job in jobs] == [3] * 10
    warnings = [r.getMessage() for r in caplog.records if "serves in its place" in r.getMessage()]
    assert sorted(text.partition(" failed")[0] for text in warnings) == [
        "queue order 'ageing' of plugin 'ageing'",
        "routing strategy 'picky' of plugin 'ageing'",
    ]
