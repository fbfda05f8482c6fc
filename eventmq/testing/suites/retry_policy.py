"""What every retry policy must do."""

# ruff: noqa: S101 - suites are methods that assert

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from math import isfinite
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eventmq.interfaces import RetryPolicy

__all__ = ["RetryPolicySuite"]


class RetryPolicySuite:
    """Subclass it and return your policy from `make`."""

    def make(self) -> RetryPolicy:
        """Return the policy; called once per test."""
        raise NotImplementedError("define make() in your subclass: it returns your retry policy")

    def test_every_attempt_has_a_delay_or_is_the_last(self) -> None:
        """Seconds from 0, finite, or None; also for numbers that nobody expects."""
        policy = self.make()
        for attempt in [*range(1, 200), 10_000, 10**9]:
            delay = policy.delay(attempt)
            assert delay is None or (delay >= 0 and isfinite(delay)), f"attempt {attempt}: {delay}"

    def test_an_answer_does_not_depend_on_other_jobs(self) -> None:
        """One object serves all jobs of a task: whether it goes on is decided by the attempt."""
        policy = self.make()
        again = [policy.delay(attempt) is None for attempt in range(1, 20)]
        for _ in range(50):
            policy.delay(7)
        assert [policy.delay(attempt) is None for attempt in range(1, 20)] == again

    def test_threads_can_share_it(self) -> None:
        """One object serves all threads of a process."""
        with ThreadPoolExecutor(4) as pool:
            delays = list(pool.map(self.make().delay, [1, 2, 3] * 200))
        assert all(delay is None or delay >= 0 for delay in delays)
