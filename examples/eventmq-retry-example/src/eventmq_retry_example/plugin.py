"""Retry policy ``fibonacci``: waits 1, 1, 2, 3, 5, 8 ... times a unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eventmq.sdk import Backoff, check_options, factory, hookimpl, option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.sdk import Factory, Failure, RetryPolicy


@dataclass(frozen=True, slots=True)
class Fibonacci:
    """The policy; its fields are its options."""

    unit: float = option(1.0, "Seconds of the first delay.", gt=0)
    cap: float = option(600.0, "Seconds of the longest delay.", gt=0)

    def delay(self, failure: Failure) -> float | None:
        """Return seconds until the next attempt; None is none: a missing right stays missing."""
        if isinstance(failure.exception, PermissionError):
            return None
        before, delay = 0.0, self.unit
        for _ in range(failure.attempt - 1):
            if delay >= self.cap:
                break
            before, delay = delay, before + delay
        return min(delay, self.cap)


def fibonacci(unit: float = 1.0, cap: float = 600.0) -> Backoff:
    """Wait 1, 1, 2, 3, 5, 8 ... times ``unit`` seconds, at most ``cap``.

    Raises:
        PluginError: An argument is not allowed.
    """
    return Backoff("fibonacci", check_options("fibonacci", Fibonacci, unit=unit, cap=cap))


@hookimpl
def eventmq_retry_policies() -> Mapping[str, Factory[RetryPolicy]]:
    """Provide ``fibonacci``."""
    return {"fibonacci": factory(Fibonacci)}
