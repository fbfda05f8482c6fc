"""Retry policy ``fixed``: the same delay before every attempt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eventmq.hookspecs import hookimpl
from eventmq.plugins.options import read_options
from eventmq.policies import check_delay

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.interfaces import Factory, Failure, PluginContext, RetryPolicy

__all__ = ["FixedDelay", "eventmq_retry_policies"]


@dataclass(frozen=True, slots=True)
class FixedDelay:
    """A `RetryPolicy` that waits ``seconds`` each time.

    Raises:
        PluginError: ``seconds`` is no number, negative or endless.
    """

    seconds: float = 1.0

    def __post_init__(self) -> None:
        check_delay(self.seconds)

    def delay(self, failure: Failure) -> float | None:
        """Return the delay in seconds."""
        return self.seconds


def make_policy(context: PluginContext) -> RetryPolicy:
    """Return a policy for the option ``delay`` in seconds."""
    return FixedDelay(read_options(context, {"delay": 1.0})["delay"])


@hookimpl
def eventmq_retry_policies() -> Mapping[str, Factory[RetryPolicy]]:
    """Provide ``fixed``."""
    return {"fixed": make_policy}
