"""Queue store for ``durability = "memory"`` and for ``memory://`` apps; it ends with the process.

It is the SQLite store without a file, so that both behave alike.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from eventmq.plugins.queue_stores.sqlite.store import SqliteStore
from eventmq.sdk import hookimpl, option, read_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.sdk import Factory, PluginContext, QueueStore

__all__ = ["eventmq_queue_stores"]

#: Options that only stores with files have.
_IGNORED = frozenset({
    "directory", "durability", "fsync_interval", "reserve", "page_checksums", "checkpoints",
    "expect_store",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the store, with smaller limits for events than those of the SQLite store."""

    dedupe_window: float = option(86_400.0, ge=0)
    keep_results: float = option(86_400.0, ge=0)
    events_ring: int = option(16 * 1024 * 1024, ge=0)
    events_cap: int = option(64 * 1024 * 1024, ge=0)
    events_values: int = option(0, ge=0)


def make_store(context: PluginContext) -> QueueStore:
    """Return a store; raises `PluginError` for a wrong option."""
    explicit = {name: value for name, value in context.options.items() if name not in _IGNORED}
    options = asdict(read_options(replace(context, options=explicit), Options))
    return SqliteStore(None, context.clock, durability="memory", **options)


@hookimpl
def eventmq_queue_stores() -> Mapping[str, Factory[QueueStore]]:
    """Provide ``memory``."""
    return {"memory": make_store}
