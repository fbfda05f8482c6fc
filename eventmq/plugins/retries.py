"""Built-in retry policies; tasks name one with its arguments by a `eventmq.policies.Backoff`.

``exponential``, the default, doubles its delays, with full jitter: before attempt n + 1 a job waits
a random time between 0 and min(cap, base * 2^(n-1)) seconds. Jobs that failed together so come back
spread out, which a fixed share of jitter does not do (Brooker, "Exponential Backoff And Jitter",
AWS Architecture Blog, 2015). ``fixed`` waits the same before every attempt. ``none`` tries nothing
again, whatever ``retries`` says; only a task that raises `Retry` with a countdown gets another
attempt, since it asks no policy.
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
class ExponentialOptions:
    """Options of ``exponential``, in seconds: the first limit and the largest."""

    base: float = 1.0
    cap: float = 600.0


@dataclass(frozen=True, slots=True)
class FixedDelay:
    """A `RetryPolicy` that waits ``seconds`` each time.

    Raises:
        PluginError: ``seconds`` is no number, negative or endless.
    """

    seconds: float = 1.0

    def __post_init__(self) -> None:
        fixed(self.seconds)

    def delay(self, failure: Failure) -> float | None:
        """Return the delay in seconds."""
        return self.seconds


@dataclass(frozen=True, slots=True)
class FixedOptions:
    """Options of ``fixed``. ``delay``: seconds."""

    delay: float = option(1.0, ge=0)


class NoRetry:
    """A `RetryPolicy` without retries."""

    def delay(self, failure: Failure) -> float | None:
        """Return None."""
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
