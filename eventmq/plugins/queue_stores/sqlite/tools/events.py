"""Rules of the events: numbers without a gap, bodies that can be read, what a journal has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.errors import EventMQError
from eventmq.events.packed import unpack_blocks
from eventmq.plugins.queue_stores.sqlite.tools.rule import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    import apsw

__all__ = ["RULES"]

#: Rows of events that do not follow the one before: its end is where they should begin.
_BEFORE = """SELECT first, offset, lag(first + count) OVER numbered AS due,
  lag(offset + length(body)) OVER numbered AS place FROM events
  WINDOW numbered AS (ORDER BY first)"""


def _unreadable(db: apsw.Connection) -> Iterator[str]:
    for first, count, body in db.execute("SELECT first, count, body FROM events"):
        try:
            there = sum(len(block.ids) for block in unpack_blocks(body))
        except (EventMQError, TypeError):
            there = -1
        if there != count:
            yield str(first)


RULES = (
    Rule(
        "event-numbers", "events", "{n} rows of events do not follow the one before: {some}",
        f"SELECT 'event ' || first || ' after ' || (due - 1) FROM ({_BEFORE}) WHERE due <> first",
        "a journal reports the events between as missing; no job depends on them",
        "nothing can be done about events that are gone",
    ),
    Rule(
        "event-sizes", "events", "{n} rows of events have a wrong place in bytes: {some}",
        f"SELECT first FROM ({_BEFORE}) WHERE due = first AND place <> offset",
        "events are dropped too early, or too late, where space is short",
        "nothing need be done",
    ),
    Rule(
        "event-bodies", "events", "{n} rows of events cannot be read, by first number: {some}",
        _unreadable, "a journal stops at the first of them; no job depends on them",
    ),
    Rule(
        "journal", "events", "a journal has more events than there are: {some}",
        """SELECT 'up to ' || value FROM meta WHERE key = 'journal_sealed' AND value >=
           (SELECT max(first + count) FROM events)""",
        "the store is of an earlier time than the journal",
        "give the journal another folder",
    ),
)  # fmt: skip
