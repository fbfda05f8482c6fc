"""The queue store of ``durability = "memory"`` and of ``memory://`` apps: gone with the process.

It is the SQLite store without a file, so its verdicts are the same to the letter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.errors import PluginError
from eventmq.hookspecs import hookimpl
from eventmq.plugins.queue_stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.interfaces import Factory, PluginContext, QueueStore

__all__ = ["eventmq_queue_stores"]

_IGNORED = {"directory", "durability", "relaxed_interval", "reserve"}
_TAKEN = {"dedupe_window", "keep_results"}


def make_store(context: PluginContext) -> QueueStore:
    """Return a store; options ``dedupe_window`` and ``keep_results`` in seconds."""
    if unknown := sorted(set(context.options) - _IGNORED - _TAKEN):
        known = ", ".join(sorted(_TAKEN))
        raise PluginError(f"queue store memory: unknown option {unknown[0]!r}; known are {known}")
    options = {name: context.options[name] for name in _TAKEN if name in context.options}
    return SqliteStore(None, context.clock, durability="memory", **options)


@hookimpl
def eventmq_queue_stores() -> Mapping[str, Factory[QueueStore]]:
    """Provide ``memory``."""
    return {"memory": make_store}
