"""Rows as parameters of statements, in PostgreSQL's binary format.

Many rows are one parameter, an array of the row type of their table, of which ``unnest`` makes rows
again. That takes server and client two thirds of the time that an array for each column takes
(measured with 17 columns), and no more than COPY, which would need a trip of its own.
"""

from __future__ import annotations

from itertools import chain, repeat
from struct import Struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from eventmq.engine import Column, Table

__all__ = ["SQL_TYPES", "Records", "in_order", "pack_array", "pack_value"]

#: Type of a column -> its name in SQL.
SQL_TYPES = {"text": "text", "integer": "int8", "real": "float8", "bytes": "bytea"}

#: Its number in the catalog, the same in all databases.
_OIDS = {"text": 25, "integer": 20, "real": 701, "bytes": 17}

#: Bytes of rows that one statement gets at most, if they are several: it keeps them twice.
MOST_BYTES = 32 * 1024 * 1024

#: The head of an array: dimensions, whether there is a NULL, type, length, first index.
_ARRAY = Struct(">iiIii").pack

#: What comes before a value in a row: type, length. NULL has the length -1.
_VALUE = Struct(">Ii").pack

_LENGTH = Struct(">i").pack

_PACK: dict[str, Callable[[Any], bytes]] = {
    "text": str.encode, "integer": Struct(">q").pack, "real": Struct(">d").pack, "bytes": bytes,
}  # fmt: skip


def pack_value(kind: str, value: Any) -> bytes:
    """Return a value of a type of column."""
    return _PACK[kind](value)


def pack_array(kind: str, values: Sequence[Any]) -> bytes:
    """Return an array of values of a type of column, none of them None."""
    packed = list(map(_PACK[kind], values))
    pieces = chain.from_iterable(zip(map(_LENGTH, map(len, packed)), packed, strict=True))
    return _ARRAY(1, 0, _OIDS[kind], len(packed), 1) + b"".join(pieces)


def _is_fixed(column: Column) -> bool:
    return column.type in {"integer", "real"} and not column.null


def in_order(table: Table) -> Table:
    """Return a table as PostgreSQL has it: columns of a fixed length come first."""
    return table._replace(columns=tuple(sorted(table.columns, key=lambda c: not _is_fixed(c))))


class Records:
    """Makes arrays of rows of a table.

    Args:
        table: As `in_order` returns it; of a period the template.
        columns: What a row has; the others are NULL in the array.
        oid: Number of the row type of the table.
        names: The columns of that type, some of them of a later release.
        types: Numbers of their types.
    """

    def __init__(
        self,
        table: Table,
        columns: Sequence[str],
        oid: int,
        names: Sequence[str],
        types: Sequence[int],
    ) -> None:
        self._oid = oid
        places = {name: place for place, name in enumerate(columns)}
        declared = {column.name: column for column in table.columns}
        #: Of a row without its values of other lengths.
        self._size = 4 + 8 * len(names)
        #: The values of other lengths: place, how they are packed, whether they may be None.
        self._others: list[tuple[int, Callable[[Any], bytes], bool]] = []
        #: Head before each of these, and at the end: how it is packed, of which constants and
        #: places; the last one of the heads before is the length of the value.
        self._heads: list[tuple[Callable[..., bytes], list[Any]]] = []
        form: str = ">ii"
        parts: list[Any] = []
        for name, kind in zip(names, types, strict=True):
            if name not in places:
                form, parts = form + "8s", [*parts, _VALUE(kind, -1)]
            elif _is_fixed(column := declared[name]):
                form += "8s" + ("q" if column.type == "integer" else "d")
                parts = [*parts, _VALUE(kind, 8), places[name]]
                self._size += 8
            else:
                self._heads.append((Struct(form + "4si").pack, [*parts, _VALUE(kind, 0)[:4]]))
                self._others.append((places[name], _PACK[column.type], column.null))
                form, parts = ">", []
        self._heads.append((Struct(form).pack, parts))
        self._count = len(names)

    def arrays(self, rows: Sequence[tuple[Any, ...]]) -> Iterator[bytes]:
        """Yield the rows as an array, or as several where they are long."""
        packed = self.array(rows)
        if len(packed) <= MOST_BYTES or len(rows) == 1:
            yield packed
            return
        half = len(rows) // 2
        yield from self.arrays(rows[:half])
        yield from self.arrays(rows[half:])

    # hot loop: python -m benchmarks drain
    def array(self, rows: Sequence[tuple[Any, ...]]) -> bytes:
        """Return the rows as an array: column by column, without a loop for each row."""
        columns = list(zip(*rows, strict=True))
        values: list[list[bytes]] = []
        lengths: list[list[int]] = []
        for place, pack, null in self._others:
            if null:
                column = [None if value is None else pack(value) for value in columns[place]]
                lengths.append([-1 if value is None else len(value) for value in column])
                values.append([value or b"" for value in column])
            else:
                values.append(list(map(pack, columns[place])))
                lengths.append(list(map(len, values[-1])))
        sizes = map(sum, zip(repeat(self._size), *(map(len, column) for column in values)))
        heads: list[Any] = [sizes if values else repeat(self._size, len(rows)), repeat(self._count)]
        pieces: list[Any] = []
        for number, (pack_head, parts) in enumerate(self._heads):
            heads += [repeat(p) if type(p) is bytes else columns[p] for p in parts]
            if number < len(values):
                pieces += [map(pack_head, *heads, lengths[number]), values[number]]
            elif heads:
                pieces.append(map(pack_head, *heads))
            heads = []
        head = _ARRAY(1, 0, self._oid, len(rows), 1)
        return head + b"".join(chain.from_iterable(zip(*pieces)))  # noqa: B905
