"""Schedule store ``memory``: gone with the process, for tests and for a beat that has it in code.

It is the store of files without a file, so its answers are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.plugins.schedule_stores.sqlite import SqliteSchedules
from eventmq.sdk import hookimpl, read_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.sdk import Factory, PluginContext, ScheduleStore

__all__ = ["eventmq_schedule_stores"]


def make_store(context: PluginContext) -> ScheduleStore:
    """Return a store; it has no options."""
    read_options(context, object)
    return SqliteSchedules(None, context.clock)


@hookimpl
def eventmq_schedule_stores() -> Mapping[str, Factory[ScheduleStore]]:
    """Provide ``memory``."""
    return {"memory": make_store}
