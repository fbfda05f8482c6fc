"""What a peer's app module gives to the one who measures."""

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
    """Submits jobs in the ways that a peer's documentation names.

    Each method may be a coroutine: the loop that measures awaits what it returns, so an
    asynchronous library runs in one event loop, as its users run it.
    """

    def open(self) -> Awaitable[None] | None:
        """Connect, before anything is measured."""
        return None

    def close(self) -> Awaitable[None] | None:
        """Let go of the connections."""
        return None

    @abc.abstractmethod
    def submit(self, task: str, *arguments: Any) -> Awaitable[None] | None:
        """Submit one job; return when the library's own call does."""

    @abc.abstractmethod
    def submit_many(self, n: int) -> Awaitable[None] | None:
        """Submit so many jobs of the task ``nothing`` in the fastest documented way."""

    @abc.abstractmethod
    def call(self, number: int) -> Any:
        """Submit ``same(number)`` and return its result, waiting as the library waits."""
