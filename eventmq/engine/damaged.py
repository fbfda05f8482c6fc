"""Reads rows whose text may be damaged; text that is not valid UTF-8 is returned as bytes."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from eventmq.engine.contract import Request, RowStore

__all__ = ["get", "get_all", "pages", "scan", "shown"]


def get(
    store: RowStore, table: str, columns: Sequence[str], keys: Sequence[Any], *, by: str = ""
) -> list[tuple[Any, ...]]:
    """Read rows by key, as `RowStore.get` does."""
    try:
        return store.get(table, columns, keys, by=by)
    except UnicodeDecodeError:
        return store.get(table, columns, keys, by=by, damaged=True)


def get_all(store: RowStore, requests: Sequence[Request]) -> list[list[tuple[Any, ...]]]:
    """Read rows for several requests, as `RowStore.get_all` does."""
    try:
        return store.get_all(requests)
    except UnicodeDecodeError:
        return [store.get(*request[:3], by=request[3], damaged=True) for request in requests]


def scan(
    store: RowStore, index: str, columns: Sequence[str], prefix: Sequence[Any] = (), **bounds: Any
) -> Generator[tuple[Any, ...]]:
    """Scan an index, as `RowStore.scan` does; ``bounds`` are its other arguments."""
    done = 0
    try:
        for row in store.scan(index, columns, prefix, **bounds):
            done += 1
            yield row
    except UnicodeDecodeError:
        rows = store.scan(index, columns, prefix, **bounds, damaged=True)
        yield from islice(rows, done, None)


def pages(
    store: RowStore,
    index: str,
    columns: Sequence[str],
    following: Callable[[tuple[Any, ...]], Sequence[Any]],
    *,
    portion: int,
    limit: int | None = None,
    **bounds: Any,
) -> Generator[tuple[Any, ...]]:
    """Yield the rows of a scan in portions, for callers that may stop early.

    Args:
        store: The store to read.
        index: The index to scan.
        columns: The columns to return.
        following: Returns the index columns of a row; the next portion begins after them.
        portion: Maximum number of rows that are read at once.
        limit: Maximum number of rows in the first portion, None for ``portion``.
        **bounds: The other arguments of the scan.
    """
    side, limit = "lt" if bounds.get("descending") else "gt", min(limit or portion, portion)
    count = limit
    while count == limit:
        count = 0
        for count, row in enumerate(scan(store, index, columns, limit=limit, **bounds), 1):  # noqa: B007
            yield row
            bounds[side] = following(row)
        if count == limit:
            count = limit = portion


def shown(value: Any) -> str:
    """Return text for display; bytes of damaged text are decoded with replacement characters."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
