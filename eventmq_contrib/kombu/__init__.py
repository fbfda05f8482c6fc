"""Celery, and any other software on kombu, with EventMQ as its broker and result store.

The transport carries messages as jobs; `records` keeps results; `backend` is Celery's result
backend. Importing this package makes the scheme ``eventmq://`` known to both.
"""

from contextlib import suppress

from kombu.transport import TRANSPORT_ALIASES

from eventmq_contrib.kombu.transport import Channel, Transport

__all__ = ["Channel", "Transport"]

TRANSPORT_ALIASES.setdefault("eventmq", "eventmq_contrib.kombu:Transport")

with suppress(ImportError):  # kombu is used without Celery too
    from celery.app.backends import BACKEND_ALIASES

    BACKEND_ALIASES.setdefault("eventmq", "eventmq_contrib.kombu.backend:EventMQBackend")
