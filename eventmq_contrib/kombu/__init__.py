"""Celery, and any other software on kombu, with EventMQ as its broker and result store.

The transport carries messages as jobs; `records` keeps results; `backend` is Celery's result
backend. Importing this package makes the scheme ``eventmq://`` known to both. Celery and kombu come
with ``eventmq[celery]``.
"""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from eventmq_contrib.extras import need

if TYPE_CHECKING:
    from eventmq_contrib.kombu.transport import Channel, Transport

__all__ = ["Channel", "Transport"]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name in __all__:
        need("kombu", user=__name__, extra="celery")
        return getattr(importlib.import_module(f"{__name__}.transport"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _register() -> None:
    """Make the scheme known to those of kombu and Celery that are installed."""
    with suppress(ImportError):
        from kombu.transport import TRANSPORT_ALIASES

        TRANSPORT_ALIASES.setdefault("eventmq", f"{__name__}:Transport")
    with suppress(ImportError):  # kombu is used without Celery too
        from celery.app.backends import BACKEND_ALIASES

        BACKEND_ALIASES.setdefault("eventmq", f"{__name__}.backend:EventMQBackend")


_register()
