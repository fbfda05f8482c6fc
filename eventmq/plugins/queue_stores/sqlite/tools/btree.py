"""B-tree reader: reads the rows of an SQLite file page by page, skipping damaged pages.

SQLite stops reading a table at the first page that it cannot use. This module finds the pages of a
table in two ways: by the page above, and by the pointer map, which the files of EventMQ have since
they are created with ``auto_vacuum``. So it reaches the rows below a damaged page too. It never
reads free pages, which have deleted rows. It writes nothing, and trusts no number that it reads.
See "Database File Format" in the documentation of SQLite.
"""

from __future__ import annotations

from struct import unpack
from typing import TYPE_CHECKING, Any, NamedTuple

from eventmq.plugins.database import as_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from mmap import mmap

__all__ = ["BadPage", "File", "Row"]

#: Types of pages: the first byte of a page.
_INDEX_NODE, _TABLE_NODE, _INDEX_LEAF, _TABLE_LEAF = 2, 5, 10, 13
_NODES = {_INDEX_NODE, _TABLE_NODE}

#: Kinds of entries of the pointer map.
_ROOT, _FREE, _FIRST_OVERFLOW, _LATER_OVERFLOW, _BELOW = 1, 2, 3, 4, 5

#: Bytes of the header of a file, and of an entry of the pointer map.
_HEADER, _ENTRY = 100, 5

#: Serial type of an integer -> its length in bytes.
_INTEGER_SIZES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}

#: Minimum, default and maximum page size in bytes.
_MIN_SIZE, _DEFAULT_SIZE, _MAX_SIZE = 512, 4096, 65536

#: The bit in a byte of a variable-length number that says that another byte follows.
_CONTINUES = 0x80


class _Damaged(Exception):
    """A page, or a row in it, is damaged."""


class Row(NamedTuple):
    """A row: its rowid, 0 in indexes and tables without one, and the values of its record."""

    number: int
    values: list[Any]


class BadPage(NamedTuple):
    """A page that could not be read, at least in part.

    Attributes:
        page: The number of the page.
        why: What is wrong with the page.
        after: The rowid of the last row before the page, None if it is not known.
        before: The rowid of the first row after the page, None if it is not known.
        inner: Whether other pages are below it in the tree.
    """

    page: int
    why: str
    after: int | None = None
    before: int | None = None
    inner: bool = False


class File:
    """The pages of a file.

    Args:
        data: The content of the file, into which the log has been moved.
    """

    def __init__(self, data: bytes | mmap) -> None:
        self.data = data
        self.size = _page_size(data)
        reserved = data[20] if len(data) > _HEADER and data[20] in {0, 8} else 0
        self.usable = self.size - reserved
        self.pages = len(data) // self.size
        self._map_every = self.usable // _ENTRY + 1
        self._below: dict[int, list[int]] = {}
        for page in range(2, self.pages + 1):
            kind, parent = self.entry(page)
            if kind == _BELOW:
                self._below.setdefault(parent, []).append(page)

    # Pages

    def page(self, number: int) -> bytes:
        """Return a page, b"" if the file does not have it."""
        if not 1 <= number <= self.pages:
            return b""
        return self.data[(number - 1) * self.size : number * self.size]

    def entry(self, number: int) -> tuple[int, int]:
        """Return kind and parent of a page from the pointer map, (0, 0) if they are damaged."""
        map_page = 2 + (number - 2) // self._map_every * self._map_every
        if number in {1, map_page}:
            return 0, 0
        offset = (map_page - 1) * self.size + _ENTRY * (number - map_page - 1)
        entry = self.data[offset : offset + _ENTRY]
        kind, parent = (entry[0], int.from_bytes(entry[1:], "big")) if entry else (0, 0)
        return (kind, parent) if _ROOT <= kind <= _BELOW and parent <= self.pages else (0, 0)

    def roots(self) -> set[int]:
        """Return the root pages of all tables and indexes."""
        return {page for page in range(3, self.pages + 1) if self.entry(page)[0] == _ROOT}

    # Trees

    def rows(self, root: int, damage: Callable[[BadPage], None]) -> Iterator[Row]:
        """Yield the readable rows of a table or an index; a row may be yielded twice.

        Args:
            root: The root page of the tree.
            damage: Called with each page that cannot be read.
        """
        seen: set[int] = set()
        waiting: list[tuple[int, int | None, int | None]] = [(root, None, None)]
        while waiting:
            number, after, before = waiting.pop()
            if number in seen:
                continue
            seen.add(number)
            below, broken = [], ""
            try:
                node = _Node(self, number)
            except _Damaged as error:
                inner = bool(self._below.get(number))
                damage(BadPage(number, str(error), after, before, inner))
            else:
                for index in range(node.cells):
                    try:
                        row, child = node.cell(index)
                    except _Damaged as error:
                        broken = broken or str(error)
                        continue
                    if child:
                        below.append((child, after, row.number if node.numbered else None))
                        after = row.number if node.numbered else None
                    if row.values:
                        yield row
                if node.last:
                    below.append((node.last, after, before))
            if broken:
                damage(BadPage(number, broken, after, before))
            children = {child for child, _, _ in below}
            below += [
                (page, None, None) for page in self._below.get(number, ()) if page not in children
            ]
            waiting += [item for item in reversed(below) if self._belongs(item[0], number)]

    def _belongs(self, child: int, parent: int) -> bool:
        """Return whether a page is below another one, or the pointer map does not say."""
        kind, above = self.entry(child)
        return kind == 0 or (kind == _BELOW and above == parent)

    def chain(self, first: int, length: int) -> bytes:
        """Return the rest of a record that continues on overflow pages."""
        parts, number, remaining = [], first, length
        while remaining > 0:
            page = self.page(number)
            if not page or self.entry(number)[0] not in {0, _FIRST_OVERFLOW, _LATER_OVERFLOW}:
                raise _Damaged(f"page {number}, where a row continues, is missing")
            parts.append(page[4 : min(self.usable, 4 + remaining)])
            remaining -= len(parts[-1])
            number = int.from_bytes(page[:4], "big")
        return b"".join(parts)


class _Node:
    """A page of a B-tree."""

    def __init__(self, file: File, number: int) -> None:
        self.file = file
        self.page = file.page(number)
        start = _HEADER if number == 1 else 0
        if not self.page:
            raise _Damaged(f"the file ends before page {number}")
        self.kind = self.page[start]
        if self.kind not in {_INDEX_NODE, _TABLE_NODE, _INDEX_LEAF, _TABLE_LEAF}:
            raise _Damaged(f"page {number} is not a page of a table")
        #: Whether its rows have rowids.
        self.numbered = self.kind in {_TABLE_NODE, _TABLE_LEAF}
        self.cells = int.from_bytes(self.page[start + 3 : start + 5], "big")
        self._pointers = start + (12 if self.kind in _NODES else 8)
        if self._pointers + 2 * self.cells > file.usable:
            raise _Damaged(f"page {number} has more rows than fit")
        #: The rightmost page below it, 0 for none.
        self.last = 0
        if self.kind in _NODES:
            self.last = int.from_bytes(self.page[start + 8 : start + 12], "big")

    def cell(self, index: int) -> tuple[Row, int]:
        """Return a row of this page, and the page below that has the rows before it, 0 for none."""
        at = self._pointers + 2 * index
        start = int.from_bytes(self.page[at : at + 2], "big")
        if not self._pointers + 2 * self.cells <= start < self.file.usable:
            raise _Damaged("a row is outside of its page")
        child = 0
        if self.kind in _NODES:
            child, start = int.from_bytes(self.page[start : start + 4], "big"), start + 4
            if self.kind == _TABLE_NODE:
                return Row(_signed(_varint(self.page, start)[0]), []), child
        length, start = _varint(self.page, start)
        number = 0
        if self.numbered:
            number, start = _varint(self.page, start)
        return Row(_signed(number), _record(self._payload(start, length))), child

    def _payload(self, start: int, length: int) -> bytes:
        """Return a record that begins on this page ("B-tree Cell Format")."""
        usable = self.file.usable
        max_local = usable - 35 if self.kind == _TABLE_LEAF else (usable - 12) * 64 // 255 - 23
        if length <= max_local:
            local_length = length
        else:
            min_local = (usable - 12) * 32 // 255 - 23
            local_length = min_local + (length - min_local) % (usable - 4)
            local_length = local_length if local_length <= max_local else min_local
        if length > len(self.file.data) or start + local_length > usable:
            raise _Damaged("a row is longer than its page")
        local = self.page[start : start + local_length]
        if local_length == length:
            return local
        first = int.from_bytes(self.page[start + local_length : start + local_length + 4], "big")
        return local + self.file.chain(first, length - local_length)


def _page_size(data: bytes | mmap) -> int:
    size = int.from_bytes(data[16:18], "big")
    size = _MAX_SIZE if size == 1 else size
    valid = _MIN_SIZE <= size <= _MAX_SIZE and size & (size - 1) == 0
    return size if valid else _DEFAULT_SIZE


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a variable-length number, and the offset of its end."""
    value = 0
    for index in range(at, min(at + 8, len(data))):
        byte = data[index]
        value = value << 7 | byte & (_CONTINUES - 1)
        if byte < _CONTINUES:
            return value, index + 1
    if at + 8 >= len(data):
        raise _Damaged("a number is cut off")
    return value << 8 | data[at + 8], at + 9


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _record(data: bytes) -> list[Any]:
    """Return the values of a record; text that is not UTF-8 stays bytes ("Record Format")."""
    end, at = _varint(data, 0)
    offset = end
    values: list[Any] = []
    while at < end:
        kind, at = _varint(data, at)
        size = _INTEGER_SIZES.get(kind, 8 if kind == 7 else (kind - 12) // 2 if kind >= 12 else 0)  # noqa: PLR2004 - the format's numbers
        part = data[offset : offset + size]
        if len(part) < size or kind in {10, 11}:
            raise _Damaged("a row is cut off")
        offset += size
        if kind in _INTEGER_SIZES:
            values.append(int.from_bytes(part, "big", signed=True))
        elif kind == 7:  # noqa: PLR2004
            values.append(unpack(">d", part)[0])
        elif kind >= 12:  # noqa: PLR2004
            values.append(as_text(bytes(part)) if kind % 2 else bytes(part))
        else:
            values.append({0: None, 8: 0, 9: 1}[kind])
    if offset != len(data) or at != end:
        raise _Damaged("the lengths in a row do not add up")
    return values
