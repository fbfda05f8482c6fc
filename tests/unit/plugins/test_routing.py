"""The choices of each built-in routing strategy and queue order."""

from __future__ import annotations

from collections import Counter

import pytest

from eventmq.app.broker import PerQueue
from eventmq.errors import PluginError
from eventmq.interfaces import PluginContext, WorkerView
from eventmq.plugins import routing
from eventmq.testing import FakeClock


def workers(*credits):
    return [WorkerView(name, credit, 0) for name, credit in zip("abcdefgh", credits, strict=False)]


def text(chosen):
    return "".join(chosen)


# Least recently used


def test_lru_goes_through_unused_workers_in_the_order_of_their_coming():
    strategy = routing.LeastRecentlyUsed()
    assert [text(strategy.choose("q", workers(9, 9, 9), 1)) for _ in range(4)] == list("abca")


def test_lru_deals_one_chunk_each_until_there_is_no_room():
    strategy = routing.LeastRecentlyUsed()
    assert text(strategy.choose("q", workers(1, 3, 2), 9)) == "abcbcb"
    assert text(strategy.choose("q", workers(9, 9, 9), 4)) == "acba"


def test_lru_remembers_across_queues():
    strategy = routing.LeastRecentlyUsed()
    strategy.choose("q", workers(9, 9), 1)
    assert text(strategy.choose("other", workers(9, 9), 1)) == "b"


def test_lru_prefers_a_worker_that_had_no_room_for_a_while():
    strategy = routing.LeastRecentlyUsed()
    strategy.choose("q", workers(9, 9, 9), 3)
    strategy.choose("q", workers(9, 9), 5)
    assert text(strategy.choose("q", workers(9, 9, 9), 1)) == "c"


def test_lru_forgets_the_oldest_sessions(monkeypatch):
    """Memory does not grow, however many sessions come and go."""
    monkeypatch.setattr(routing, "MAX_SESSIONS", 3)
    strategy = routing.LeastRecentlyUsed()
    for number in range(10):
        strategy.choose("q", [WorkerView(str(number), 1, 0)], 1)
    assert list(strategy._used) == ["7", "8", "9"]


# Round robin


def test_round_robin_goes_on_where_the_queue_s_last_turn_ended():
    strategy = routing.RoundRobin()
    chosen = [text(strategy.choose("q", workers(9, 9, 9), n)) for n in (1, 1, 2, 4)]
    assert chosen == ["a", "b", "ca", "bcab"]
    assert text(strategy.choose("other", workers(9, 9, 9), 1)) == "a"


def test_round_robin_skips_workers_without_room():
    assert text(routing.RoundRobin().choose("q", workers(1, 3, 1), 9)) == "abcbb"


def test_round_robin_forgets_the_least_recently_used_queues(monkeypatch):
    monkeypatch.setattr(routing, "MAX_QUEUES", 3)
    strategy = routing.RoundRobin()
    for number in range(10):
        strategy.choose(str(number), workers(9), 1)
    assert list(strategy._positions) == ["7", "8", "9"]


# Least loaded


def test_least_loaded_fills_the_emptiest_first():
    loaded = [WorkerView("a", 1, 3), WorkerView("b", 4, 0), WorkerView("c", 2, 2)]
    assert text(routing.LeastLoaded().choose("q", loaded, 1)) == "b"
    assert text(routing.LeastLoaded().choose("q", loaded, 4)) == "bbbc"


def test_least_loaded_compares_loads_relative_to_the_capacity():
    """Of two workers with one chunk each, the larger one is less loaded."""
    loaded = [WorkerView("small", 1, 1), WorkerView("large", 7, 1)]
    assert routing.LeastLoaded().choose("q", loaded, 3) == ["large"] * 3


def test_least_loaded_goes_round_among_equals():
    strategy = routing.LeastLoaded()
    assert text(text(strategy.choose("q", workers(9, 9, 9), 1)) for _ in range(4)) == "abca"


# Sticky

KEYS = [f"tenant-{number}" for number in range(1000)]


def owners(strategy, names, keys=KEYS):
    idle = [WorkerView(name, 4, 0) for name in names]
    return {key: strategy.prefer("q", key, idle, 0.0) for key in keys}


def test_sticky_spreads_keys_over_all_workers():
    shares = Counter(owners(routing.Sticky(), "abcde").values())
    assert set(shares) == set("abcde")
    assert all(100 <= share <= 300 for share in shares.values())


def test_sticky_moves_only_the_keys_of_a_worker_that_goes():
    strategy = routing.Sticky()
    before, after = owners(strategy, "abcde"), owners(strategy, "abde")
    assert {key for key in KEYS if before[key] != after[key]} == {
        key for key in KEYS if before[key] == "c"
    }


def test_sticky_keeps_keys_over_a_restart_of_the_broker():
    """The assignment uses no random numbers."""
    assert owners(routing.Sticky(), "abc") == owners(routing.Sticky(), "abc")


def loads(strategy, key, **loads):
    """Return the workers of a key by rank, and views with the (credit, busy) of each rank."""
    names = list("abcd")
    order = []
    while names:
        order.append(owners(strategy, names, [key])[key])
        names.remove(order[-1])
    ranks = dict(zip(("first", "second", "third", "fourth"), order, strict=True))
    views = {ranks[rank]: WorkerView(ranks[rank], *load) for rank, load in loads.items()}
    return ranks, [views.get(name, WorkerView(name, 4, 0)) for name in "abcd"]


def test_sticky_waits_for_a_full_worker_and_then_goes_to_the_next():
    """It waits ``timeout`` seconds. When the worker has credit again, its keys come back."""
    strategy = routing.Sticky(routing.Options(bound=100.0, timeout=0.5))
    ranks, full = loads(strategy, "k", first=(0, 4))
    assert strategy.prefer("q", "k", full, 10.0) is None
    assert strategy.prefer("q", "k", full, 10.4) is None
    assert strategy.prefer("q", "k", full, 10.5) == ranks["second"]
    _, free = loads(strategy, "k", first=(1, 3))
    assert strategy.prefer("q", "k", free, 11.0) == ranks["first"]
    assert strategy.prefer("q", "k", full, 11.1) is None


def test_sticky_skips_a_worker_with_more_than_its_share():
    strategy = routing.Sticky(routing.Options(bound=2.0))
    ranks, busy = loads(strategy, "k", first=(2, 4))
    assert strategy.prefer("q", "k", busy, 10.0) == ranks["second"]
    ranks, all_busy = loads(strategy, "k", first=(2, 4), second=(2, 4), third=(2, 4), fourth=(2, 4))
    assert strategy.prefer("q", "k", all_busy, 10.0) == ranks["first"]


def test_sticky_bounds_no_worker_that_is_less_than_half_full():
    """A single key stays with the worker whose caches are warm."""
    strategy = routing.Sticky(routing.Options(bound=1.0))
    ranks, views = loads(strategy, "k", first=(4, 3))
    assert strategy.prefer("q", "k", views, 10.0) == ranks["first"]


def test_sticky_keeps_a_limited_number_of_entries(monkeypatch):
    monkeypatch.setattr(routing, "MAX_RINGS", 3)
    strategy = routing.Sticky()
    for number in range(10):
        strategy.prefer("q", "k", [WorkerView(str(number), 0, 1)], 0.0)
    assert list(strategy._full) == ["7", "8", "9"]
    assert len(strategy._rings) <= 5


def test_sticky_takes_its_key_from_the_header_of_its_options():
    text = "task:shop.add,tenant:7,routing-key:x"
    assert routing.Sticky(routing.Options(header="tenant")).key("q", text) == "7"
    assert routing.Sticky(routing.Options(header="task")).key("q", text) == "shop.add"
    assert not routing.Sticky(routing.Options(header="other")).key("q", text)


@pytest.mark.parametrize(
    "options", [{"bound": 0.5}, {"bound": "inf"}, {"timeout": -1.0}, {"header": ""}]
)
def test_sticky_refuses_invalid_options(options):
    (name,) = options
    with pytest.raises(PluginError, match=name):
        routing.make_sticky(PluginContext("sticky", options, FakeClock()))


def test_a_queue_can_have_a_strategy_of_its_own():
    per_queue = PerQueue(routing.RoundRobin(), {"reports": routing.Sticky()})
    text = "task:shop.add,routing-key:x"
    assert per_queue.by_key
    assert (per_queue.key("reports", text), per_queue.key("other", text)) == ("x", "")
    assert not PerQueue(routing.RoundRobin(), {"q": routing.LeastLoaded()}).by_key


# Queue orders


def serve(order, queues, turns, jobs=1):
    """Return how many jobs each queue gets in this number of turns."""
    weights = {name: weight for weight, name in queues}
    served = Counter()
    for _ in range(turns):
        name = order.choose(queues)
        order.charge(name, weights[name], jobs)
        served[name] += jobs
    return served


def test_weighted_fair_shares_by_weight():
    order = routing.WeightedFair()
    served = serve(order, [(10, "default"), (40, "email")], 500)
    assert served == {"default": 100, "email": 400}


def test_weighted_fair_counts_jobs_not_turns():
    """A queue of large chunks gets fewer chunks."""
    order = routing.WeightedFair()
    served = Counter()
    for _ in range(1000):
        name = order.choose([(1, "large"), (1, "small")])
        jobs = 100 if name == "large" else 1
        order.charge(name, 1, jobs)
        served[name] += jobs
    assert abs(served["large"] - served["small"]) <= 100


def test_weighted_fair_gives_the_heavier_of_equals_first():
    order = routing.WeightedFair()
    assert order.choose([(10, "a"), (40, "b")]) == "b"
    assert order.choose([(10, "b"), (10, "a")]) == "b"


def test_weighted_fair_saves_up_no_share_for_an_idle_queue():
    """After an idle hour a queue gets its share, and not an hour of jobs."""
    order = routing.WeightedFair()
    serve(order, [(1, "busy")], 1000)
    served = serve(order, [(1, "busy"), (1, "idle")], 100)
    assert abs(served["busy"] - served["idle"]) <= 1


def test_weighted_fair_makes_a_queue_that_is_ahead_wait_for_the_others():
    order = routing.WeightedFair()
    order.charge("greedy", 1, 100)
    served = serve(order, [(1, "greedy"), (1, "new")], 100)
    assert served["new"] == 100


def test_weighted_fair_charges_a_queue_only_for_the_jobs_that_it_keeps():
    """Queue ``a`` has kept 1 of 100 jobs, so it is ahead by one job."""
    order = routing.WeightedFair()
    order.charge("a", 10, 100)
    order.charge("a", 10, -99)
    served = serve(order, [(10, "a"), (10, "b")], 9)
    assert served == {"a": 4, "b": 5}


def test_weighted_fair_saves_up_no_share_for_returned_jobs():
    """Jobs that other queues got meanwhile, or before a restart, are not compensated."""
    order = routing.WeightedFair()
    order.charge("a", 10, 10)
    serve(order, [(10, "b")], 1000)
    order.charge("a", 10, -1000)
    served = serve(order, [(10, "a"), (10, "b")], 100)
    assert abs(served["a"] - served["b"]) <= 1


def test_weighted_fair_holds_no_queue_back_for_earlier_shorter_jobs():
    """The lead is kept in chunks: a queue is not held back for having had shorter jobs."""
    order = routing.WeightedFair()
    queues = [(30, "a"), (10, "b")]
    order.charge("a", 30, 1000)
    order.charge("b", 10, 1000)
    served = serve(order, queues, 2, 500)
    assert served == {"a": 1000}
    served = serve(order, queues, 160)
    assert abs(served["a"] - 120) <= 6


def test_strict_serves_the_heaviest_and_then_by_name():
    order = routing.Strict()
    served = serve(order, [(10, "a"), (40, "b"), (40, "c")], 10)
    assert served == {"b": 10}


@pytest.mark.parametrize(
    "make",
    [
        routing.eventmq_routing_strategies()["least-recently-used"],
        routing.eventmq_routing_strategies()["round-robin"],
        routing.eventmq_queue_orders()["weighted-fair"],
        routing.eventmq_queue_orders()["strict"],
    ],
)
def test_plugins_without_options_refuse_any(make):
    with pytest.raises(PluginError, match="no option 'x'; known are: none"):
        make(PluginContext("p", {"x": 1}, FakeClock()))
    assert make(PluginContext("p", {}, FakeClock())) is not None
