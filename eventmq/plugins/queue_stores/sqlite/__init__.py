"""Embedded queue store: one SQLite file in the broker's data directory."""

from eventmq.plugins.queue_stores.sqlite.store import eventmq_queue_stores

__all__ = ["eventmq_queue_stores"]
