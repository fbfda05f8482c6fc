"""Built-in retry policies; a task names one, with its arguments, by a `eventmq.policies.Backoff`.

``exponential``, the default, doubles its delays, with full jitter: before attempt n + 1 a job waits
a random time between 0 and min(cap, base * 2^(n-1)) seconds. Jobs that failed together are then
spread out, more than with jitter of a fixed fraction (Brooker, "Exponential Backoff And Jitter",
AWS Architecture Blog, 2015). ``fixed`` waits the same time before every attempt. ``none`` never
retries, whatever ``retries`` is; only a task that raises `Retry` with a countdown gets another
attempt, since that does not involve the policy.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eventmq.sdk import exponential, factory, fixed, hookimpl, option, read_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from eventmq.sdk import Factory, Failure, PluginContext, RetryPolicy

__all__ = ["ExponentialDelay", "FixedDelay", "NoRetry", "eventmq_retry_policies"]

#: Maximum number of doublings, so that the float does not overflow; caps are reached earlier.
_MAX_DOUBLINGS = 1000


@dataclass(frozen=True, slots=True)
class ExponentialDelay:
    """A `RetryPolicy` with delays up to ``base``, 2 * ``base``, 4 * ``base`` ... ``cap`` seconds.

    ``fraction`` returns a random number from 0 to 1.

    Raises:
        PluginError: ``base`` or ``cap`` is not a number, ``base`` is not more than 0, or ``cap`` is
            less than ``base`` or infinite.
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
class ExponentialOptions:
    """Options of ``exponential``: the first and the largest upper bound of delays, in seconds."""

    base: float = 1.0
    cap: float = 600.0


@dataclass(frozen=True, slots=True)
class FixedDelay:
    """A `RetryPolicy` that waits ``seconds`` each time.

    Raises:
        PluginError: ``seconds`` is not a number, negative or infinite.
    """

    seconds: float = 1.0

    def __post_init__(self) -> None:
        fixed(self.seconds)

    def delay(self, failure: Failure) -> float | None:
        """Return the delay in seconds."""
        return self.seconds


@dataclass(frozen=True, slots=True)
class FixedOptions:
    """Options of ``fixed``. ``delay``: seconds before each attempt."""

    delay: float = option(1.0, ge=0)


class NoRetry:
    """A `RetryPolicy` without retries."""

    def delay(self, failure: Failure) -> float | None:
        """Return None: do not retry."""
        return None


def make_exponential(context: PluginContext) -> RetryPolicy:
    """Return a policy; raises `PluginError` for a wrong option."""
    options = read_options(context, ExponentialOptions)
    return ExponentialDelay(options.base, options.cap)


def make_fixed(context: PluginContext) -> RetryPolicy:
    """Return a policy; raises `PluginError` for a wrong option."""
    return FixedDelay(read_options(context, FixedOptions).delay)


@hookimpl
def eventmq_retry_policies() -> Mapping[str, Factory[RetryPolicy]]:
    """Provide the policies."""
    return {"exponential": make_exponential, "fixed": make_fixed, "none": factory(NoRetry)}
