"""Dramatiq on EventMQ: `EventMQBroker` for actors and workers, `EventMQBackend` for their results.

Actors, middleware and the command ``dramatiq`` are unmodified; a message is a job of an EventMQ
queue. Dramatiq comes with ``eventmq[dramatiq]``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from eventmq_contrib.extras import need

if TYPE_CHECKING:
    from eventmq_contrib.dramatiq.broker import EventMQBackend, EventMQBroker

__all__ = ["EventMQBackend", "EventMQBroker"]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name in __all__:
        need("dramatiq", user=__name__, extra="dramatiq")
        return getattr(importlib.import_module(f"{__name__}.broker"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
