"""Brings the store in line with the schedules of an app's code, at the start of a beat.

Schedules that the code no longer has are removed; those of other apps, of clients, of the command
line and of SCHEDULE messages are left alone.
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
    stored: Mapping[str, Schedule],
    declared: Mapping[str, Schedule],
    app: str,
    now: float,
) -> None:
    """Add, change and remove schedules until the store has those that the code declares.

    Another beat may do the same at the same time; the second one finds it done.

    Args:
        store: The schedule store to change.
        stored: Schedules in the store, by name.
        declared: Schedules in the code, by name.
        app: Name of the app.
        now: Unix time.
    """
    changes: list[tuple[Schedule, int | None]] = []
    for name, schedule in declared.items():
        other = stored.get(name)
        if other is None:
            changes.append((schedule.started(now), None))
            logger.info("schedule %r is new", name)
        elif not schedule.does_the_same(other):
            changes.append((schedule.succeeding(other, now), other.version))
            logger.info("schedule %r has changed", name)
    if changes:
        store.save(changes)
    for name, other in stored.items():
        if other.source == "code" and other.app == app and name not in declared:
            logger.info("schedule %r is not in the code any more and is removed", name)
            store.remove(name, other.version)
