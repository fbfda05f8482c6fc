"""Records: packs rows as parameters of statements, in PostgreSQL's binary format.

Many rows are packed as one parameter: an array of the row type of their table, which ``unnest``
turns into rows. For server and client this takes two thirds of the time of one array per column
(measured with 17 columns). It is not slower than COPY, which would need a round trip of its own.
"""

from __future__ import annotations

from itertools import chain, repeat
from struct import Struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from eventmq.engine import Column, Table

__all__ = ["SQL_TYPES", "Records", "pack_array", "pack_value", "with_ordered_columns"]

#: Type of a column -> its name in SQL.
SQL_TYPES = {"text": "text", "integer": "int8", "real": "float8", "bytes": "bytea"}

#: Type of a column -> its OID, the same in all databases.
_OIDS = {"text": 25, "integer": 20, "real": 701, "bytes": 17}

#: Maximum bytes of several rows in one statement, which keeps them in memory twice.
MAX_BYTES = 32 * 1024 * 1024

#: Header of an array: dimensions, whether it has NULLs, type, length, first index.
_ARRAY = Struct(">iiIii").pack

#: Header of a value in a row: type and length. NULL has the length -1.
_VALUE = Struct(">Ii").pack

_LENGTH = Struct(">i").pack

_PACK: dict[str, Callable[[Any], bytes]] = {
    "text": str.encode, "integer": Struct(">q").pack, "real": Struct(">d").pack, "bytes": bytes,
}  # fmt: skip


def pack_value(kind: str, value: Any) -> bytes:
    """Return a packed value of a column type."""
    return _PACK[kind](value)


def pack_array(kind: str, values: Sequence[Any]) -> bytes:
    """Return a packed array of values of a column type; no value is None."""
    packed = list(map(_PACK[kind], values))
    pieces = chain.from_iterable(zip(map(_LENGTH, map(len, packed)), packed, strict=True))
    return _ARRAY(1, 0, _OIDS[kind], len(packed), 1) + b"".join(pieces)


def _is_fixed(column: Column) -> bool:
    return column.type in {"integer", "real"} and not column.null


def with_ordered_columns(table: Table) -> Table:
    """Return a table with its columns in the order for PostgreSQL: fixed lengths first."""
    return table._replace(columns=tuple(sorted(table.columns, key=lambda c: not _is_fixed(c))))


class Records:
    """Packs rows of a table as arrays.

    Args:
        table: The table, as `with_ordered_columns` returns it; for a period, the template.
        columns: Columns that the rows have; all others are NULL in the array.
        oid: OID of the row type of the table.
        names: Columns of the row type, which may include those of a later release.
        types: OIDs of the types of these columns.
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
        positions = {name: position for position, name in enumerate(columns)}
        declared = {column.name: column for column in table.columns}
        #: Size of a row without its variable-length values.
        self._size = 4 + 8 * len(names)
        #: Variable-length values: position, packing function, and whether they may be None.
        self._variable: list[tuple[int, Callable[[Any], bytes], bool]] = []
        #: The bytes before each variable-length value, and after the last one: packing function,
        #: and its arguments, which are constants or positions. The last argument, the length of the
        #: value, is added later.
        self._fixed: list[tuple[Callable[..., bytes], list[Any]]] = []
        layout: str = ">ii"
        parts: list[Any] = []
        for name, kind in zip(names, types, strict=True):
            if name not in positions:
                layout, parts = layout + "8s", [*parts, _VALUE(kind, -1)]
            elif _is_fixed(column := declared[name]):
                layout += "8s" + ("q" if column.type == "integer" else "d")
                parts = [*parts, _VALUE(kind, 8), positions[name]]
                self._size += 8
            else:
                self._fixed.append((Struct(layout + "4si").pack, [*parts, _VALUE(kind, 0)[:4]]))
                self._variable.append((positions[name], _PACK[column.type], column.null))
                layout, parts = ">", []
        self._fixed.append((Struct(layout).pack, parts))
        self._count = len(names)

    def arrays(self, rows: Sequence[tuple[Any, ...]]) -> Iterator[bytes]:
        """Yield the rows as one array, or as several if they exceed `MAX_BYTES`."""
        packed = self.array(rows)
        if len(packed) <= MAX_BYTES or len(rows) == 1:
            yield packed
            return
        half = len(rows) // 2
        yield from self.arrays(rows[:half])
        yield from self.arrays(rows[half:])

    # hot loop: python -m benchmarks drain
    def array(self, rows: Sequence[tuple[Any, ...]]) -> bytes:
        """Return the rows as an array; packs column by column, without a loop over rows."""
        columns = list(zip(*rows, strict=True))
        values: list[list[bytes]] = []
        lengths: list[list[int]] = []
        for position, pack, null in self._variable:
            if null:
                column = [None if value is None else pack(value) for value in columns[position]]
                lengths.append([-1 if value is None else len(value) for value in column])
                values.append([value or b"" for value in column])
            else:
                values.append(list(map(pack, columns[position])))
                lengths.append(list(map(len, values[-1])))
        sizes = map(sum, zip(repeat(self._size), *(map(len, column) for column in values)))
        heads: list[Any] = [sizes if values else repeat(self._size, len(rows)), repeat(self._count)]
        pieces: list[Any] = []
        for number, (pack_head, parts) in enumerate(self._fixed):
            heads += [repeat(p) if type(p) is bytes else columns[p] for p in parts]
            if number < len(values):
                pieces += [map(pack_head, *heads, lengths[number]), values[number]]
            elif heads:
                pieces.append(map(pack_head, *heads))
            heads = []
        head = _ARRAY(1, 0, self._oid, len(rows), 1)
        return head + b"".join(chain.from_iterable(zip(*pieces)))  # noqa: B905
