"""PostgreSQL plugins: a queue store, a result backend and a schedule store.

The extra ``eventmq[postgres]`` installs the library ``psycopg``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq import hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.sdk import Factory, PluginContext, QueueStore, ResultBackend, ScheduleStore

__all__ = ["eventmq_queue_stores", "eventmq_result_backends", "eventmq_schedule_stores"]


@hookimpl
def eventmq_queue_stores() -> Mapping[str, Factory[QueueStore]]:
    """Provide ``postgresql``."""
    return {"postgresql": _make_store}


def _make_store(context: PluginContext) -> QueueStore:
    from eventmq_contrib.postgres.options import make_store

    return make_store(context)


@hookimpl
def eventmq_result_backends() -> Mapping[str, Factory[ResultBackend]]:
    """Provide ``postgresql``."""
    return {"postgresql": _make_results}


def _make_results(context: PluginContext) -> ResultBackend:
    from eventmq_contrib.postgres.options import make_results

    return make_results(context)


@hookimpl
def eventmq_schedule_stores() -> Mapping[str, Factory[ScheduleStore]]:
    """Provide ``postgresql``."""
    return {"postgresql": _make_schedules}


def _make_schedules(context: PluginContext) -> ScheduleStore:
    from eventmq_contrib.postgres.options import make_schedules

    return make_schedules(context)
