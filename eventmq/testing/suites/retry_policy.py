"""Conformance suite for retry policies."""

# ruff: noqa: S101 - suites are methods that assert

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from math import isfinite
from typing import TYPE_CHECKING, Any

from eventmq.interfaces import Failure

if TYPE_CHECKING:
    from eventmq.interfaces import RetryPolicy

__all__ = ["RetryPolicySuite"]


class _Unprintable(Exception):
    """An exception of a user that cannot be shown."""

    def __str__(self) -> str:
        raise ValueError("no text")


class RetryPolicySuite:
    """Subclass it and return your policy from `make`."""

    def make(self) -> RetryPolicy:
        """Return the policy; called once per test."""
        raise NotImplementedError("define make() in your subclass: it returns your retry policy")

    def failure(self, attempt: int = 1, **changes: Any) -> Failure:
        """Return a failure; override it where your policy looks at more than the attempt."""
        error: BaseException = changes.setdefault("exception", ConnectionError("refused"))
        kind = type(error)
        fields: dict[str, Any] = {
            "error_type": f"{kind.__module__}.{kind.__qualname__}", "task": "shop.send",
            "queue": "default", "job_id": "job-1", "created": 1.7e9,
        }  # fmt: skip
        return Failure(attempt=attempt, **{**fields, **changes})

    def test_every_attempt_has_a_delay_or_is_the_last(self) -> None:
        """A delay is None or finite and at least 0, also for very large attempt numbers."""
        policy = self.make()
        for attempt in [*range(1, 200), 10_000, 10**9]:
            delay = policy.delay(self.failure(attempt))
            assert delay is None or (delay >= 0 and isfinite(delay)), f"attempt {attempt}: {delay}"

    def test_any_failure_has_a_delay_or_is_the_last(self) -> None:
        """Whatever the exception and the job; legacy jobs have no task."""
        policy = self.make()
        for changes in (
            {"exception": _Unprintable()}, {"exception": SystemExit(3)}, {"exception": KeyError()},
            {"task": "", "created": 0.0}, {"queue": "q" * 255}, {"job_id": "chosen by a client"},
        ):  # fmt: skip
            delay = policy.delay(self.failure(2, **changes))
            assert delay is None or (delay >= 0 and isfinite(delay)), f"{changes}: {delay}"

    def test_the_last_attempt_does_not_depend_on_other_jobs(self) -> None:
        """One object serves all jobs of a task."""
        policy = self.make()
        repeated = [policy.delay(self.failure(attempt)) is None for attempt in range(1, 20)]
        for number in range(50):
            policy.delay(self.failure(7, job_id=f"other-{number}"))
        now = [policy.delay(self.failure(attempt)) is None for attempt in range(1, 20)]
        assert now == repeated

    def test_threads_can_share_it(self) -> None:
        """One object serves all threads of a process."""
        with ThreadPoolExecutor(4) as pool:
            delays = list(pool.map(self.make().delay, map(self.failure, [1, 2, 3] * 200)))
        assert all(delay is None or delay >= 0 for delay in delays)
