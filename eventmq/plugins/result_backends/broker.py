"""Result backend ``broker``, the default: results travel in the REPLY and the broker keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.errors import ResultUnavailable
from eventmq.sdk import factory, hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.sdk import Factory, ResultBackend

__all__ = ["BrokerResults", "eventmq_result_backends"]


class BrokerResults:
    """A `ResultBackend` that is inline: results are sent to the broker, not stored elsewhere."""

    inline = True
    local = False

    def put(self, job_id: str, data: bytes, ttl: float) -> bytes:
        """Return the data, which is its own reference."""
        return data

    def get(self, reference: bytes) -> bytes:
        """Raise `ResultUnavailable`, as results that the broker keeps have no references."""
        raise ResultUnavailable("a result that the broker keeps has no reference; ask the broker")

    def close(self) -> None:
        """Do nothing, since this backend has no resources."""


make_backend = factory(BrokerResults)


@hookimpl
def eventmq_result_backends() -> Mapping[str, Factory[ResultBackend]]:
    """Provide ``broker``."""
    return {"broker": make_backend}
