"""Additions to store time: moves the times in the SQLite store that were set since the anchor.

The added time had passed before, so a wait that began after it must not end earlier. Ages are not
moved: their readers account for additions (`Timekeeper.before`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.errors import EventMQError
from eventmq.headers import parse_headers
from eventmq.job import HELD
from eventmq.plugins.database import add_function

if TYPE_CHECKING:
    import apsw

    from eventmq.timekeeping import Addition

__all__ = ["move_waits", "prepare_additions"]

#: Seconds by which a sum of seconds may be less than exact.
_SLACK = 1e-3

#: Delayed jobs that wait for a store time which was set since the anchor: they were admitted, or
#: tried, or released from a graph since then. Where a job is held back, HELD is added to that time.
_WAITS = f"""state = 1 AND eta = 0
  AND (ready_at BETWEEN :anchor AND {HELD} OR ready_at > {HELD} + :anchor)
  AND (created >= :anchor
    OR EXISTS (SELECT 1 FROM attempts WHERE attempts.id = jobs.id AND attempts.at >= :anchor)
    OR (attempt = 1 AND EXISTS (SELECT 1 FROM nodes WHERE nodes.id = jobs.id)
      AND ready_at - countdown_of(CAST(headers AS BLOB)) >= :anchor - {_SLACK}))"""

_STATEMENTS = (
    f"UPDATE jobs SET ready_at = ready_at + :seconds, rank = rank + :rank WHERE {_WAITS}",
    """UPDATE deadlines SET at = at + :seconds WHERE EXISTS (SELECT 1 FROM jobs
       WHERE seq >= deadlines.first AND seq < deadlines."end" AND created >= :anchor)""",
    "UPDATE limiters SET updated = updated + :seconds WHERE updated >= :anchor",
)


def prepare_additions(db: apsw.Connection) -> None:
    """Give a connection the function that the statements need."""
    add_function(db, "countdown_of", _countdown_of)


def move_waits(db: apsw.Connection, addition: Addition) -> None:
    """Move what waits since the anchor of an addition, which the same commit stores."""
    values = {
        "anchor": addition.anchor, "seconds": addition.seconds,
        "rank": int(addition.seconds * 1_000_000),
    }  # fmt: skip
    for statement in _STATEMENTS:
        db.execute(statement, values)


def _countdown_of(headers: bytes) -> float:
    """Return the countdown that headers say, 0.0 where they are damaged."""
    try:
        return parse_headers(headers.decode()).countdown
    except (EventMQError, ValueError):
        return 0.0
