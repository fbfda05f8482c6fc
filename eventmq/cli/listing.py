"""Listings of jobs, which the broker gives page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from eventmq.app import EventMQ

__all__ = ["rows_of"]


def rows_of(
    app: EventMQ, listing: str, filters: Mapping[str, Any], limit: int
) -> Iterator[dict[str, Any]]:
    """Yield rows until the end, or the limit.

    Args:
        app: Asks the broker.
        listing: ``jobs`` or ``failed``: the call, and the name of the rows in its result.
        filters: Of the call; None is none.
        limit: Most rows.
    """
    from eventmq.wire.calls import MAX_ROWS

    given = {name: value for name, value in filters.items() if value is not None}
    cursor = ""
    while limit:
        page = app.ask(listing, {**given, "cursor": cursor, "limit": min(limit, MAX_ROWS)})
        yield from page[listing]
        limit -= len(page[listing])
        cursor = page["cursor"]
        if not cursor:
            return
