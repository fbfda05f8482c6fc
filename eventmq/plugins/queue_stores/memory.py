"""The queue store of ``durability = "memory"`` and of ``memory://`` apps: gone with the process.

It is the SQLite store without a file, so its write results are the same to the letter.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from eventmq.hookspecs import hookimpl
from eventmq.plugins.options import read_options
from eventmq.plugins.queue_stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.interfaces import Factory, PluginContext, QueueStore

__all__ = ["eventmq_queue_stores"]

#: Settings of stores that have files.
_IGNORED = frozenset(
    {"directory", "durability", "fsync_interval", "reserve", "page_checksums", "expect_store"}
)

#: Events are kept as in a file, within less.
_OPTIONS = {
    "dedupe_window": 86_400.0, "keep_results": 86_400.0,
    "events_ring": 16 * 1024 * 1024, "events_cap": 64 * 1024 * 1024,
    "events_values": 0,
}  # fmt: skip


def make_store(context: PluginContext) -> QueueStore:
    """Return a store; options ``dedupe_window keep_results events_ring ...``."""
    explicit = {name: value for name, value in context.options.items() if name not in _IGNORED}
    options = read_options(replace(context, options=explicit), _OPTIONS)
    return SqliteStore(None, context.clock, durability="memory", **options)


@hookimpl
def eventmq_queue_stores() -> Mapping[str, Factory[QueueStore]]:
    """Provide ``memory``."""
    return {"memory": make_store}
