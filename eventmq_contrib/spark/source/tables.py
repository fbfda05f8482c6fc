"""The tables that a broker has: their columns, and its answers as their rows."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from eventmq import EventMQ

__all__ = ["ENDED", "JOBS", "OF_BROKER", "QUEUES", "job_rows", "queue_rows"]

#: States of jobs that have an outcome.
ENDED = ("succeeded", "failed", "cancelled", "expired")

#: Columns of jobs and types, as Spark reads them. ``ran`` is in seconds.
JOBS = (
    "id string, task string, queue string, state string, attempt int, delivery int, priority int, "
    "created timestamp, due timestamp, expires timestamp, started timestamp, ran double, "
    "finished timestamp, worker string, error_type string, error string, headers string"
)

#: Columns of queues and types.
QUEUES = (
    "name string, waiting bigint, delayed bigint, running bigint, failed bigint, paused boolean, "
    "workers int, limits string"
)

#: Table -> its columns, of those that only a broker has.
OF_BROKER = {"jobs": JOBS, "failed": JOBS, "outcomes": JOBS, "queues": QUEUES}

_QUEUE = ("name", "waiting", "delayed", "running", "failed", "paused", "workers", "limits")


def job_rows(app: EventMQ, listing: str, filters: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a listing of jobs, page by page.

    Args:
        app: Asks the broker.
        listing: ``jobs`` or ``failed``.
        filters: Of the call; None is none.
    """
    given = {name: value for name, value in filters.items() if value is not None}
    cursor = ""
    while True:
        page = app.ask(listing, {**given, "cursor": cursor})
        for row in page[listing]:
            yield _job(row)
        cursor = page["cursor"]
        if not cursor:
            return


def _job(row: Mapping[str, Any]) -> tuple[Any, ...]:
    from eventmq.wire.results import decode_error

    error = decode_error(row["error"]) if row["error"] else None
    return (
        row["id"], row["task"] or None, row["queue"], row["state"], row["attempt"],
        row["delivery"], row["priority"], _time(row["created"]), _time(row["due"]),
        _time(row["expires"]), _time(row["started"]), row["ran"] if row["started"] else None,
        _time(row["finished"]), row["worker"] or None, error.type if error else None,
        error.message if error else None, row["headers"],
    )  # fmt: skip


def _time(seconds: float) -> datetime | None:
    return datetime.fromtimestamp(seconds, timezone.utc) if seconds else None


def queue_rows(app: EventMQ) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of the queues."""
    for row in app.ask("queues"):
        yield tuple(row[name] for name in _QUEUE)
