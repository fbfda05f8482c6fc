"""Retry policy ``none``: a failed job is not tried again, whatever ``retries`` says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.hookspecs import hookimpl
from eventmq.plugins.options import read_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.interfaces import Factory, Failure, PluginContext, RetryPolicy

__all__ = ["NoRetry", "eventmq_retry_policies"]


class NoRetry:
    """A `RetryPolicy` without retries."""

    def delay(self, failure: Failure) -> float | None:
        """Return None."""
        return None


def make_policy(context: PluginContext) -> RetryPolicy:
    """Return the policy; there are no options."""
    read_options(context, {})
    return NoRetry()


@hookimpl
def eventmq_retry_policies() -> Mapping[str, Factory[RetryPolicy]]:
    """Provide ``none``."""
    return {"none": make_policy}
