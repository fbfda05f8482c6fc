"""What each built-in routing strategy and queue order promises beyond the contract."""

from __future__ import annotations

from collections import Counter

import pytest

from eventmq.errors import PluginError
from eventmq.interfaces import PluginContext, WorkerView
from eventmq.plugins.routing import least_recently_used, round_robin, strict, weighted_fair
from eventmq.testing import FakeClock


def workers(*rooms):
    return [WorkerView(name, room, 0) for name, room in zip("abcdefgh", rooms, strict=False)]


def text(chosen):
    return "".join(chosen)


# Least recently used


def test_lru_goes_through_unused_workers_in_the_order_of_their_coming():
    strategy = least_recently_used.LeastRecentlyUsed()
    assert [text(strategy.choose("q", workers(9, 9, 9), 1)) for _ in range(4)] == list("abca")


def test_lru_deals_one_chunk_each_until_there_is_no_room():
    strategy = least_recently_used.LeastRecentlyUsed()
    assert text(strategy.choose("q", workers(1, 3, 2), 9)) == "abcbcb"
    assert text(strategy.choose("q", workers(9, 9, 9), 4)) == "acba"


def test_lru_remembers_across_queues():
    strategy = least_recently_used.LeastRecentlyUsed()
    strategy.choose("q", workers(9, 9), 1)
    assert text(strategy.choose("other", workers(9, 9), 1)) == "b"


def test_lru_prefers_who_had_no_room_for_a_while():
    strategy = least_recently_used.LeastRecentlyUsed()
    strategy.choose("q", workers(9, 9, 9), 3)
    strategy.choose("q", workers(9, 9), 5)
    assert text(strategy.choose("q", workers(9, 9, 9), 1)) == "c"


def test_lru_forgets_the_oldest_sessions(monkeypatch):
    """Sessions come and go for ever; memory does not grow with them."""
    monkeypatch.setattr(least_recently_used, "REMEMBERED", 3)
    strategy = least_recently_used.LeastRecentlyUsed()
    for number in range(10):
        strategy.choose("q", [WorkerView(str(number), 1, 0)], 1)
    assert list(strategy._used) == ["7", "8", "9"]


# Round robin


def test_round_robin_goes_on_where_the_queue_s_last_turn_ended():
    strategy = round_robin.RoundRobin()
    chosen = [text(strategy.choose("q", workers(9, 9, 9), n)) for n in (1, 1, 2, 4)]
    assert chosen == ["a", "b", "ca", "bcab"]
    assert text(strategy.choose("other", workers(9, 9, 9), 1)) == "a"


def test_round_robin_passes_over_who_has_no_room_left():
    assert text(round_robin.RoundRobin().choose("q", workers(1, 3, 1), 9)) == "abcbb"


def test_round_robin_forgets_queues_that_nobody_uses(monkeypatch):
    monkeypatch.setattr(round_robin, "REMEMBERED", 3)
    strategy = round_robin.RoundRobin()
    for number in range(10):
        strategy.choose(str(number), workers(9), 1)
    assert list(strategy._turns) == ["7", "8", "9"]


# Queue orders


def serve(order, queues, turns, jobs=1):
    """Return how many jobs each queue got."""
    weights = {name: weight for weight, name in queues}
    served = Counter()
    for _ in range(turns):
        name = order.choose(queues)
        order.charge(name, weights[name], jobs)
        served[name] += jobs
    return served


def test_weighted_fair_shares_by_weight():
    order = weighted_fair.WeightedFair()
    served = serve(order, [(10, "default"), (40, "email")], 500)
    assert served == {"default": 100, "email": 400}


def test_weighted_fair_counts_jobs_not_turns():
    """A queue of large chunks gets fewer of them."""
    order = weighted_fair.WeightedFair()
    served = Counter()
    for _ in range(1000):
        name = order.choose([(1, "large"), (1, "small")])
        jobs = 100 if name == "large" else 1
        order.charge(name, 1, jobs)
        served[name] += jobs
    assert abs(served["large"] - served["small"]) <= 100


def test_weighted_fair_gives_the_heavier_of_equals_first():
    order = weighted_fair.WeightedFair()
    assert order.choose([(10, "a"), (40, "b")]) == "b"
    assert order.choose([(10, "b"), (10, "a")]) == "b"


def test_weighted_fair_saves_up_no_share_for_an_idle_queue():
    """After an hour without jobs a queue gets its share, not an hour of jobs."""
    order = weighted_fair.WeightedFair()
    serve(order, [(1, "busy")], 1000)
    served = serve(order, [(1, "busy"), (1, "idle")], 100)
    assert abs(served["busy"] - served["idle"]) <= 1


def test_weighted_fair_lets_a_queue_that_took_much_wait_for_the_others():
    order = weighted_fair.WeightedFair()
    order.charge("greedy", 1, 100)
    served = serve(order, [(1, "greedy"), (1, "new")], 100)
    assert served["new"] == 100


def test_strict_serves_the_heaviest_and_then_by_name():
    order = strict.Strict()
    served = serve(order, [(10, "a"), (40, "b"), (40, "c")], 10)
    assert served == {"b": 10}


@pytest.mark.parametrize(
    "make",
    [
        least_recently_used.make_strategy,
        round_robin.make_strategy,
        weighted_fair.make_order,
        strict.make_order,
    ],
)
def test_an_option_is_refused_where_there_are_none(make):
    with pytest.raises(PluginError, match="no option 'x'; known are: none"):
        make(PluginContext("p", {"x": 1}, FakeClock()))
    assert make(PluginContext("p", {}, FakeClock())) is not None
