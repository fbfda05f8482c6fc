"""Retry policy ``none``: a failed job is not tried again, whatever ``retries`` says.

Only a task that raises `Retry` with a countdown gets another attempt, since it asks no policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.sdk import factory, hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.sdk import Factory, Failure, RetryPolicy

__all__ = ["NoRetry", "eventmq_retry_policies"]


class NoRetry:
    """A `RetryPolicy` without retries."""

    def delay(self, failure: Failure) -> float | None:
        """Return None."""
        return None


make_policy = factory(NoRetry)


@hookimpl
def eventmq_retry_policies() -> Mapping[str, Factory[RetryPolicy]]:
    """Provide ``none``."""
    return {"none": make_policy}
