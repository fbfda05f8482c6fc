"""Interface of a peer's app module for the measurement."""

from __future__ import annotations

import abc
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable

__all__ = ["URL", "Client", "url"]

#: Environment variable with the address of the server.
URL = "PEERS_URL"


def url() -> str:
    """Return the address of the server that was started for this run."""
    return os.environ[URL]


class Client(abc.ABC):
    """Submits jobs as documented by the peer.

    Each method may be a coroutine: the measuring loop awaits the result, so an asynchronous library
    runs in one event loop, as in the programs of its users.
    """

    def open(self) -> Awaitable[None] | None:
        """Connect, before the measurement."""
        return None

    def close(self) -> Awaitable[None] | None:
        """Close the connections."""
        return None

    @abc.abstractmethod
    def submit(self, task: str, *arguments: Any) -> Awaitable[None] | None:
        """Submit one job; return when the library's own call does."""

    @abc.abstractmethod
    def submit_many(self, n: int) -> Awaitable[None] | None:
        """Submit ``n`` jobs of the task ``nothing`` in the fastest documented way."""

    @abc.abstractmethod
    def call(self, number: int) -> Any:
        """Submit ``same(number)`` and wait for its result in the way of the library."""
