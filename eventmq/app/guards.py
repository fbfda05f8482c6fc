"""Guards: keep a queue order or a routing strategy that fails from ending the broker.

The first failure of a plugin is logged, and a built-in one replaces it until the broker restarts,
since the plugin's state may be inconsistent. Built-in ones run without a guard.
"""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from eventmq.errors import HookError
from eventmq.plugins.routing import LeastRecentlyUsed, WeightedFair

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eventmq.interfaces import KeyedRouting, QueueOrder, RoutingStrategy, WorkerView

__all__ = ["Guard", "GuardedOrder", "GuardedRouting", "guarded_orders"]

log = logging.getLogger("eventmq.broker")

T = TypeVar("T")


class Guard:
    """Failure state of one plugin, which all its objects share.

    Args:
        description: Start of the message: ``queue order 'x' of plugin 'y' of the
            distribution 'z'``.
        fallback: Name of the replacement.
    """

    def __init__(self, description: str, fallback: str) -> None:
        self._description = description
        self._fallback = fallback
        self.failed = False

    def run(self, method: str, call: Callable[[], T], otherwise: Callable[[], T]) -> T:
        """Return the plugin's answer, or the replacement's once the plugin has failed.

        Args:
            method: Name of the method, for the message.
            call: Calls the plugin and checks its answer.
            otherwise: Calls the replacement, at the first failure and after it.
        """
        if not self.failed:
            try:
                return call()
            except Exception as error:
                self.failed = True
                description = (
                    f"{self._description} failed in {method!r}: {type(error).__name__}: {error}"
                )
                msg = "%s; %r serves in its place until the broker is restarted"
                log.exception(msg, description, self._fallback)
        return otherwise()


def guarded_orders(make: Callable[[], QueueOrder], description: str) -> Callable[[], QueueOrder]:
    """Return a factory of guarded queue orders, one per session; it does not raise.

    Args:
        make: Factory of the plugin.
        description: Description of the plugin, for the message.
    """
    guard = Guard(description, "weighted-fair")

    def guarded() -> QueueOrder:
        return GuardedOrder(make(), guard)

    return partial(guard.run, "the factory", guarded, WeightedFair)


class GuardedOrder:
    """The queue order of a plugin until it fails, then `WeightedFair`."""

    def __init__(self, order: QueueOrder, guard: Guard) -> None:
        self._order = order
        self._guard = guard
        self._fallback = WeightedFair()

    def choose(self, queues: Sequence[tuple[int, str]]) -> str:
        """Return the queue that the order chooses."""
        return self._guard.run(
            "choose", partial(self._choose, queues), partial(self._fallback.choose, queues)
        )

    def _choose(self, queues: Sequence[tuple[int, str]]) -> str:
        chosen = self._order.choose(list(queues))
        if not any(chosen == name for _, name in queues):
            names = ", ".join(repr(name) for _, name in queues)
            raise HookError(f"it returned {chosen!r}, which is not one of {names}")
        return chosen

    def charge(self, queue: str, weight: int, jobs: int) -> None:
        """Record that the session got jobs of a queue."""
        charged = (queue, weight, jobs)
        self._guard.run(
            "charge",
            partial(self._order.charge, *charged),
            partial(self._fallback.charge, *charged),
        )


class GuardedRouting:
    """The routing strategy of a plugin until it fails, then `LeastRecentlyUsed`, without keys.

    Args:
        strategy: The plugin's strategy.
        description: Description of the plugin, for the message.
    """

    def __init__(self, strategy: RoutingStrategy, description: str) -> None:
        self._strategy = strategy
        self._guard = Guard(description, "least-recently-used")
        self._fallback = LeastRecentlyUsed()
        self.by_key = strategy.by_key

    def choose(self, queue: str, workers: Sequence[WorkerView], n: int) -> Sequence[str]:
        """Return the sessions that the strategy chooses."""
        return self._guard.run(
            "choose",
            partial(self._choose, queue, workers, n),
            partial(self._fallback.choose, queue, workers, n),
        )

    def _choose(self, queue: str, workers: Sequence[WorkerView], n: int) -> Sequence[str]:
        chosen = list(self._strategy.choose(queue, list(workers), n))
        if not chosen:
            raise HookError(
                f"it returned no session for the queue {queue!r}, whose jobs would wait although "
                f"{len(workers)} workers want them"
            )
        credit = {worker.session: worker.credit for worker in workers}
        for session, chunks in Counter(chosen).items():
            if session not in credit:
                raise HookError(f"it returned {session!r}, which was not offered")
            if chunks > credit[session]:
                raise HookError(
                    f"it returned {session!r} {chunks} times, with a credit of {credit[session]}"
                )
        return chosen

    def key(self, queue: str, headers: str) -> str:
        """Return the strategy's key; "" after a failure."""
        return self._guard.run("key", partial(self._key, queue, headers), str)

    def _key(self, queue: str, headers: str) -> str:
        key: object = cast("KeyedRouting", self._strategy).key(queue, headers)
        if not isinstance(key, str):
            raise HookError(f"it returned {type(key).__name__}, not text")
        return key

    def prefer(self, queue: str, key: str, workers: Sequence[WorkerView], now: float) -> str | None:
        """Return the session that the strategy prefers; after a failure the first with credit."""
        free = (worker.session for worker in workers if worker.credit > 0)
        call = partial(self._prefer, queue, key, workers, now)
        return self._guard.run("prefer", call, lambda: next(free, None))

    def _prefer(
        self, queue: str, key: str, workers: Sequence[WorkerView], now: float
    ) -> str | None:
        session = cast("KeyedRouting", self._strategy).prefer(queue, key, list(workers), now)
        if session is not None and all(session != worker.session for worker in workers):
            raise HookError(f"it returned {session!r}, which was not offered")
        return session
