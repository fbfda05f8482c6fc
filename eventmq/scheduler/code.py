"""Brings the schedules of an app's code and those in the store together, at a beat's start.

Added, changed, and removed where the code has them no more; those of other apps, of clients, of
the command line and of SCHEDULE are left alone.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.interfaces import ScheduleStore
    from eventmq.schedule import Schedule

__all__ = ["synchronise"]

logger = logging.getLogger("eventmq.scheduler")


def synchronise(
    store: ScheduleStore,
    there: Mapping[str, Schedule],
    declared: Mapping[str, Schedule],
    app: str,
    now: float,
) -> None:
    """Make the store have what the code of an app says.

    Another beat may do the same at the same time; whoever comes second finds it done.

    Args:
        store: Where.
        there: What is in it, by name.
        declared: By name.
        app: Name of the app.
        now: Unix time.
    """
    changes: list[tuple[Schedule, int | None]] = []
    for name, schedule in declared.items():
        other = there.get(name)
        if other is None:
            changes.append((schedule.begun(now), None))
            logger.info("schedule %r is new", name)
        elif not schedule.does_the_same(other):
            changes.append((schedule.succeeding(other, now), other.version))
            logger.info("schedule %r has changed", name)
    if changes:
        store.save(changes)
    for name, other in there.items():
        if other.source == "code" and other.app == app and name not in declared:
            logger.info("schedule %r is not in the code any more and is removed", name)
            store.remove(name, other.version)
