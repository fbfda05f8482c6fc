"""Retry policy ``exponential``, the default: delays that double, with full jitter.

Before attempt n + 1 a job waits a random time between 0 and min(cap, base * 2^(n-1)) seconds.
Jobs that failed together so come back spread out, which a fixed share of jitter does not do
(Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eventmq.sdk import exponential, hookimpl, read_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from eventmq.sdk import Factory, Failure, PluginContext, RetryPolicy

__all__ = ["ExponentialDelay", "eventmq_retry_policies"]

#: Doublings after which a float would overflow; any sensible cap is reached long before.
_MAX_DOUBLINGS = 1000


@dataclass(frozen=True, slots=True)
class ExponentialDelay:
    """A `RetryPolicy` with delays up to ``base``, 2 * ``base``, 4 * ``base`` ... ``cap`` seconds.

    ``fraction`` returns a random number from 0 to 1.

    Raises:
        PluginError: One is no number, ``base`` is not more than 0, or ``cap`` is less than ``base``
            or endless.
    """

    base: float = 1.0
    cap: float = 600.0
    fraction: Callable[[], float] = field(default=random.random, repr=False, compare=False)

    def __post_init__(self) -> None:
        exponential(self.base, self.cap)

    def delay(self, failure: Failure) -> float | None:
        """Return the delay in seconds."""
        doublings = min(failure.attempt - 1, _MAX_DOUBLINGS)
        return self.fraction() * min(self.cap, self.base * 2.0**doublings)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the policy, in seconds: the first limit and the largest."""

    base: float = 1.0
    cap: float = 600.0


def make_policy(context: PluginContext) -> RetryPolicy:
    """Return a policy; raises `PluginError` for a wrong option."""
    options = read_options(context, Options)
    return ExponentialDelay(options.base, options.cap)


@hookimpl
def eventmq_retry_policies() -> Mapping[str, Factory[RetryPolicy]]:
    """Provide ``exponential``."""
    return {"exponential": make_policy}
