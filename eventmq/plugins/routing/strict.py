"""Strict queue order: the heaviest queue that has jobs, always.

**Warning**: a queue gets nothing for as long as a heavier one has jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.sdk import factory, hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eventmq.sdk import Factory, QueueOrder

__all__ = ["Strict", "eventmq_queue_orders"]


class Strict:
    """A `QueueOrder` without memory."""

    def choose(self, queues: Sequence[tuple[int, str]]) -> str:
        """Return the queue of the largest weight; among equals the first by name."""
        return min((-weight, name) for weight, name in queues)[1]

    def charge(self, queue: str, weight: int, jobs: int) -> None:
        """Do nothing: this order has no state."""


make_order = factory(Strict)


@hookimpl
def eventmq_queue_orders() -> Mapping[str, Factory[QueueOrder]]:
    """Provide ``strict``."""
    return {"strict": make_order}
