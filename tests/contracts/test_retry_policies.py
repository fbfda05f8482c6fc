"""The built-in retry policies keep the contract."""

from __future__ import annotations

from eventmq.plugins.retries import ExponentialDelay, FixedDelay, NoRetry
from eventmq.testing import RetryPolicySuite


class TestNone(RetryPolicySuite):
    def make(self):
        return NoRetry()


class TestFixed(RetryPolicySuite):
    def make(self):
        return FixedDelay(5.0)


class TestExponential(RetryPolicySuite):
    def make(self):
        return ExponentialDelay()
