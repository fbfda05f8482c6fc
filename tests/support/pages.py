"""Finds and overwrites pages of a store's file."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from eventmq.plugins.database import connect, first_row
from eventmq.plugins.queue_stores.sqlite.tools.btree import File

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["PAGE", "leaves", "nodes", "overwrite"]

#: Bytes of a page.
PAGE = 4096


def root_of(path: Path, name: str) -> int:
    """Return the first page of a table or an index."""
    with closing(connect(path, busy=0.0)) as db:
        [root] = first_row(db, "SELECT rootpage FROM sqlite_master WHERE name = ?", (name,))
        first_row(db, "PRAGMA journal_mode = DELETE")  # then the file has all pages
    return int(root)


def nodes(path: Path, name: str) -> list[int]:
    """Return the inner pages of a table or an index."""
    return _pages(path, name)[0]


def leaves(path: Path, name: str) -> list[int]:
    """Return the leaf pages of a table or an index, in the order of the file."""
    return _pages(path, name)[1]


def _pages(path: Path, name: str) -> tuple[list[int], list[int]]:
    root = root_of(path, name)
    file = File(path.read_bytes())
    below, pages = [root], list[int]()
    while below:
        page = below.pop()
        pages.append(page)
        below += [n for n in range(2, file.pages + 1) if file.entry(n) == (5, page)]
    inner = {n for n in pages if file.page(n)[0] in {2, 5}}
    return sorted(inner), sorted(set(pages) - inner)


def overwrite(path: Path, page: int, content: bytes) -> None:
    """Overwrite a page."""
    data = bytearray(path.read_bytes())
    data[(page - 1) * PAGE : page * PAGE] = content
    path.write_bytes(data)
