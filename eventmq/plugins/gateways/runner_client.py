"""The client of an app as a guest of a gateway's thread: requests and results change no thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventmq.errors import BrokerUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from eventmq.client.runner import ClientRunner
    from eventmq.client.runner_loop import IoLoop

__all__ = ["ClientGuest"]

#: Seconds after which it is tried again to lead, where somebody else does.
AGAIN = 0.01


class ClientGuest:
    """Implements `eventmq.plugins.gateways.runner_router.Guest`.

    While somebody else uses the client just then, or it was closed, it has no sockets to poll;
    calls back come in another thread then.

    Args:
        runner: The client.
    """

    def __init__(self, runner: ClientRunner) -> None:
        self._runner = runner
        self._loop: IoLoop | None = None
        self._leads = False

    def wanted(self, now: float) -> tuple[Sequence[tuple[Any, int]], float]:
        """Send what was asked for; return what to poll."""
        if not self._leads and not self._lead():
            return (), AGAIN
        assert self._loop is not None  # noqa: S101 - it is led
        items, due = self._loop.wanted()
        return items, max(0.0, due - now)

    def _lead(self) -> bool:
        try:
            self._loop = self._runner.loop()
        except BrokerUnavailable:
            return False
        self._leads = self._loop.host()
        return self._leads

    def step(self, ready: Sequence[tuple[Any, int]], sources: AbstractSet[Any], now: float) -> bool:
        """Read what came. It is a guest as long as the gateway runs."""
        if self._leads and self._loop is not None:
            self._leads = self._loop.step(ready)
        return True

    def close(self) -> None:
        """Leave the client to whoever else uses it. Idempotent."""
        loop, self._loop, self._leads = self._loop, None, False
        if loop is not None:
            loop.unhost()
