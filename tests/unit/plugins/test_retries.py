"""The delays of each built-in retry policy, and how a task names one."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from eventmq.errors import PluginError
from eventmq.headers import Headers, format_headers, parse_headers
from eventmq.interfaces import PluginContext
from eventmq.plugins.retries import ExponentialDelay, eventmq_retry_policies
from eventmq.policies import Backoff, exponential, fixed
from eventmq.testing import FakeClock, RetryPolicySuite


def context(**options):
    return PluginContext("p", options, FakeClock())


def delays(policy, *attempts):
    """Return the delays of the policy after these attempts failed."""
    return [policy.delay(RetryPolicySuite().failure(attempt)) for attempt in attempts]


def test_none_retries_nothing():
    assert delays(eventmq_retry_policies()["none"](context()), 1) == [None]


def test_fixed_waits_the_same_each_time():
    policy = eventmq_retry_policies()["fixed"](context(delay=2))
    assert delays(policy, 1, 2, 100) == [2.0, 2.0, 2.0]
    assert delays(eventmq_retry_policies()["fixed"](context()), 1) == [1.0]


def test_exponential_doubles_its_limit_up_to_the_cap():
    policy = ExponentialDelay(2.0, 60.0, fraction=lambda: 1.0)
    assert delays(policy, 1, 2, 3, 5, 6, 10**6) == [2.0, 4.0, 8.0, 32.0, 60.0, 60.0]


def test_exponential_has_full_jitter():
    """Delays range from zero to the limit, which spreads jobs that failed together."""
    none = ExponentialDelay(2.0, 60.0, fraction=lambda: 0.0)
    assert delays(none, 5) == [0.0]
    policy = eventmq_retry_policies()["exponential"](context())
    waits = delays(policy, *[10] * 200)
    assert min(waits) < 200.0
    assert 400.0 < max(waits) <= 512.0


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (fixed, {"delay": -1.0}),
        (fixed, {"delay": float("nan")}),
        (fixed, {"delay": float("inf")}),
        (fixed, {"delay": "5"}),
        (fixed, {"delay": timedelta(seconds=5)}),
        (exponential, {"base": 0.0}),
        (exponential, {"base": "1"}),
        (exponential, {"cap": None}),
        (exponential, {"base": 10.0, "cap": 5.0}),
        (exponential, {"cap": float("inf")}),
    ],
)
def test_invalid_options_are_refused_where_the_task_is_declared(make, options):
    with pytest.raises(PluginError, match="retry policy"):
        make(**options)


def test_options_of_the_wrong_type_or_name_are_refused():
    with pytest.raises(PluginError, match="must be a number from 0, not True"):
        eventmq_retry_policies()["fixed"](context(delay=True))
    with pytest.raises(PluginError, match="did you mean 'delay'"):
        eventmq_retry_policies()["fixed"](context(dely=1))
    with pytest.raises(PluginError, match="no option 'delay'"):
        eventmq_retry_policies()["none"](context(delay=1))


def test_a_backoff_is_name_and_options():
    assert fixed(5) == Backoff("fixed", {"delay": 5})
    assert exponential() == Backoff("exponential", {"base": 1.0, "cap": 600.0})
    assert str(fixed(5.0)) == 'fixed:{"delay":5.0}'
    assert str(Backoff("none")) == "none"


@pytest.mark.parametrize("backoff", [fixed(0.5), exponential(2.0, 9.0), Backoff("own")], ids=str)
def test_a_backoff_travels_in_a_header(backoff):
    text = format_headers(Headers(backoff=str(backoff)))
    assert Backoff.parse(parse_headers(text).backoff) == backoff


@pytest.mark.parametrize("text", ["fixed:{", "fixed:[1]", "fixed:7"])
def test_a_malformed_backoff_is_refused(text):
    with pytest.raises(PluginError, match="retry policy"):
        Backoff.parse(text)


def test_the_options_of_a_backoff_are_plain_json():
    assert json.loads(str(exponential()).partition(":")[2]) == {"base": 1.0, "cap": 600.0}
