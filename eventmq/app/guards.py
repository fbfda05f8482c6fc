"""Guards: keep a queue order or a routing strategy that fails from ending the broker.

The first failure of a plugin is logged, and a built-in one serves in its place until the broker is
restarted: its state cannot be trusted any more. Built-in ones run without a guard.
"""

# ruff: noqa: BLE001 - whatever a plugin raises, the broker goes on

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, cast

from eventmq.errors import HookError
from eventmq.plugins.routing.least_recently_used import LeastRecentlyUsed
from eventmq.plugins.routing.weighted_fair import WeightedFair

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eventmq.interfaces import KeyedRouting, QueueOrder, RoutingStrategy, WorkerView

__all__ = ["Guard", "GuardedOrder", "GuardedRouting", "guarded_orders"]

log = logging.getLogger("eventmq.broker")


class Guard:
    """Failure of one plugin: what all of its objects share.

    Args:
        what: Begins the message: ``queue order 'x' of plugin 'y' of the distribution 'z'``.
        fallback: What serves in its place.
    """

    def __init__(self, what: str, fallback: str) -> None:
        self._what = what
        self._fallback = fallback
        self.failed = False

    def fail(self, method: str, error: Exception) -> None:
        """Log a failure with its traceback if it is the first one."""
        if self.failed:
            return
        self.failed = True
        what = f"{self._what} failed in {method!r}: {type(error).__name__}: {error}"
        msg = "%s; %r serves in its place until the broker is restarted"
        log.error(msg, what, self._fallback, exc_info=error)


def guarded_orders(make: Callable[[], QueueOrder], what: str) -> Callable[[], QueueOrder]:
    """Return what makes the queue order of a session, guarded; it does not raise.

    Args:
        make: Makes one.
        what: Names the plugin, for the message.
    """
    guard = Guard(what, "weighted-fair")

    def guarded() -> QueueOrder:
        if not guard.failed:
            try:
                return GuardedOrder(make(), guard)
            except Exception as error:
                guard.fail("the factory", error)
        return WeightedFair()

    return guarded


class GuardedOrder:
    """A queue order of a plugin until that fails, then `WeightedFair`."""

    def __init__(self, order: QueueOrder, guard: Guard) -> None:
        self._order = order
        self._guard = guard
        self._fallback = WeightedFair()

    def choose(self, queues: Sequence[tuple[int, str]]) -> str:
        """Return what the order chooses."""
        if not self._guard.failed:
            try:
                chosen = self._order.choose(list(queues))
                if any(chosen == name for _, name in queues):
                    return chosen
                names = ", ".join(repr(name) for _, name in queues)
                raise HookError(f"it returned {chosen!r}, which is none of {names}")
            except Exception as error:
                self._guard.fail("choose", error)
        return self._fallback.choose(queues)

    def charge(self, queue: str, weight: int, jobs: int) -> None:
        """Record that the session got jobs of a queue."""
        if not self._guard.failed:
            try:
                self._order.charge(queue, weight, jobs)
                return
            except Exception as error:
                self._guard.fail("charge", error)
        self._fallback.charge(queue, weight, jobs)


class GuardedRouting:
    """A routing strategy of a plugin until that fails, then `LeastRecentlyUsed`, without keys.

    Args:
        strategy: That of the plugin.
        what: Names the plugin, for the message.
    """

    def __init__(self, strategy: RoutingStrategy, what: str) -> None:
        self._strategy = strategy
        self._guard = Guard(what, "least-recently-used")
        self._fallback = LeastRecentlyUsed()
        self.by_key = strategy.by_key

    def choose(self, queue: str, workers: Sequence[WorkerView], n: int) -> Sequence[str]:
        """Return what the strategy chooses."""
        if not self._guard.failed:
            try:
                chosen = list(self._strategy.choose(queue, list(workers), n))
                credit = {worker.session: worker.credit for worker in workers}
                for session, chunks in Counter(chosen).items():
                    if session not in credit:
                        raise HookError(f"it returned {session!r}, which is no session offered")
                    if chunks > credit[session]:
                        msg = f"it returned {session!r} {chunks} times, with a credit of "
                        raise HookError(f"{msg}{credit[session]}")
                return chosen
            except Exception as error:
                self._guard.fail("choose", error)
        return self._fallback.choose(queue, workers, n)

    def key(self, queue: str, headers: str) -> str:
        """Return the key of the strategy, "" since it failed."""
        if not self._guard.failed:
            try:
                key: object = cast("KeyedRouting", self._strategy).key(queue, headers)
                if isinstance(key, str):
                    return key
                raise HookError(f"it returned {type(key).__name__}, not text")
            except Exception as error:
                self._guard.fail("key", error)
        return ""

    def prefer(self, queue: str, key: str, workers: Sequence[WorkerView], now: float) -> str | None:
        """Return what the strategy prefers, since it failed the first session with credit."""
        if not self._guard.failed:
            try:
                strategy = cast("KeyedRouting", self._strategy)
                session = strategy.prefer(queue, key, list(workers), now)
                if session is None or any(session == worker.session for worker in workers):
                    return session
                raise HookError(f"it returned {session!r}, which is no session offered")
            except Exception as error:
                self._guard.fail("prefer", error)
        return next((worker.session for worker in workers if worker.credit > 0), None)
