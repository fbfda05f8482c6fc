"""The policy keeps EventMQ's contract, and its own promises."""

from __future__ import annotations

import pytest
from eventmq import EventMQ
from eventmq.sdk import PluginError
from eventmq.testing import RetryPolicySuite

from eventmq_retry_example import fibonacci, plugin


class TestContract(RetryPolicySuite):
    def make(self):
        return plugin.Fibonacci(unit=0.2)

    def test_delays_are_the_numbers_of_fibonacci_up_to_the_cap(self) -> None:
        policy = plugin.Fibonacci(unit=2.0, cap=20.0)
        delays = [policy.delay(self.failure(attempt)) for attempt in range(1, 9)]
        assert delays == [2.0, 2.0, 4.0, 6.0, 10.0, 16.0, 20.0, 20.0]

    def test_a_missing_right_is_not_tried_again(self) -> None:
        assert plugin.Fibonacci().delay(self.failure(1, exception=PermissionError())) is None


def test_a_wrong_option_is_an_error_where_the_task_is_declared() -> None:
    with pytest.raises(PluginError) as caught:
        fibonacci(unit=0)
    assert str(caught.value) == "option 'unit' of 'fibonacci' must be a number above 0, not 0"


def test_a_task_is_tried_again() -> None:
    attempts = []
    app = EventMQ("test", broker="memory://", plugins=[plugin])

    @app.task(retries=4, retry_policy=fibonacci(unit=0.01))
    def shaky() -> int:
        attempts.append(1)
        return len(attempts) if len(attempts) > 2 else 1 // 0

    with app:
        assert shaky.delay().get(timeout=30) == 3
