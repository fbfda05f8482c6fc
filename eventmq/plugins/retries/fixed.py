"""Retry policy ``fixed``: the same delay before every attempt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eventmq.sdk import fixed, hookimpl, option, read_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.sdk import Factory, Failure, PluginContext, RetryPolicy

__all__ = ["FixedDelay", "eventmq_retry_policies"]


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
class Options:
    """Options of the policy. ``delay``: seconds."""

    delay: float = option(1.0, ge=0)


def make_policy(context: PluginContext) -> RetryPolicy:
    """Return a policy; raises `PluginError` for a wrong option."""
    return FixedDelay(read_options(context, Options).delay)


@hookimpl
def eventmq_retry_policies() -> Mapping[str, Factory[RetryPolicy]]:
    """Provide ``fixed``."""
    return {"fixed": make_policy}
