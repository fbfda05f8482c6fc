"""A model of rows, against which a store of rows is tried: what should be in some tables."""

# ruff: noqa: S101, PLR2004 - suites assert, and their numbers are their own

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

from eventmq.engine import TABLES, RowStore, Schema, period_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from random import Random

    from eventmq.engine import Index

__all__ = [
    "BODIES",
    "CHUNK",
    "JOB",
    "MAX_INTEGER",
    "MIN_INTEGER",
    "OUTCOME",
    "SCHEMA",
    "TEXTS",
    "Model",
]

SCHEMA = Schema(TABLES)

#: The largest and the smallest integer.
MAX_INTEGER, MIN_INTEGER = 2**63 - 1, -(2**63)

#: Texts in the order of their code points, which is that of their UTF-8; people sort otherwise.
TEXTS = (
    "", " ", "!", "0192f3c8-77aa-7000-8000-0000000000ff", "0192f3c8-77aa-7000-8000-000000000100",
    "A", "Ab", "Z", "_", "a", "aB", "ab", "z", "\x7f", "\x80", "Ä", "ß", "ä", "\u0308", "\ufb01",
    "\uffff", "\U00010000", "\U0001f680",
)  # fmt: skip

BODIES = (b"", b"\x00", b"\xff\xfe\x00\x80", "ü".encode(), b"'\\\"\n;--", bytes(range(256)))

#: Columns of the least that a job needs.
JOB = (
    "seq", "id", "queue", "rank", "state", "attempt", "delivery", "deaths", "ready_at", "expires",
    "created", "head_crc", "crc", "headers", "body",
)  # fmt: skip

CHUNK = ("session", "number", "epoch", "leases", "leased")

OUTCOME = (
    "id", "state", "at", "until", "crc", "content_type", "result", "queue", "task", "attempt",
    "delivery", "created", "started", "run_time", "worker", "unique_key",
)  # fmt: skip

_Row = dict[str, Any]


class Model:
    """What should be in some tables.

    Args:
        random: Decides what happens.
    """

    #: Table -> its columns of which rows are made; others get their defaults.
    columns: ClassVar = {
        "jobs": (*JOB, "unique_key", "subqueue"),
        "chunks": CHUNK,
        "inputs": ("job", "join_key", "first", "final", "size"),
        "graphs": ("key", "size", "remaining", "ended"),
        period_name("outcomes", 7): OUTCOME,
    }

    def __init__(self, random: Random) -> None:
        self.random = random
        self.tables: dict[str, dict[tuple[Any, ...], _Row]] = {name: {} for name in self.columns}

    def copy(self) -> dict[str, dict[tuple[Any, ...], _Row]]:
        """Return the tables as they are now."""
        return {name: dict(rows) for name, rows in self.tables.items()}

    # Values of few sorts, so that keys are taken and rows are equal

    def _value(self, kind: str, *, null: bool = False) -> Any:
        random = self.random
        if null and random.random() < 0.4:
            return None
        match kind:
            case "integer":
                return random.choice((*range(6), MAX_INTEGER, MIN_INTEGER, -1))
            case "real":
                return random.choice((0.0, 0.0, 0.5, 1.5, 1 / 3, -2.0))
            case "text":
                return random.choice(TEXTS[:12])
        return random.choice(BODIES)

    def _row(self, table: str) -> tuple[Any, ...]:
        kinds = {column.name: column for column in SCHEMA.table(table).columns}
        return tuple(
            self._value(kinds[name].type, null=kinds[name].null) for name in self.columns[table]
        )

    def _key(self, table: str, row: _Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in SCHEMA.table(table).key)

    def _has_key(self, table: str, row: _Row, but: tuple[Any, ...] | None = None) -> bool:
        """Return whether a key of a row is that of another one."""
        unique = [index.columns for index in SCHEMA.table(table).indexes if index.unique]
        return any(
            key != but and (key == self._key(table, row) or any(
                all(row[name] == other[name] for name in columns) for columns in unique))
            for key, other in self.tables[table].items()
        )  # fmt: skip

    # Changes

    def change(self, rows: RowStore) -> None:
        """Do something to the model and to the store."""
        table = self.random.choice(list(self.columns))
        change: Callable[[RowStore, str], None] = self.random.choice(
            [
                self._insert,
                self._insert_new,
                self._put,
                self._update,
                self._delete,
                self._delete_range,
            ]
        )
        change(rows, table)

    def _some(self, table: str) -> list[tuple[Any, ...]]:
        return [self._row(table) for _ in range(self.random.randrange(12))]

    def _add(self, table: str, row: tuple[Any, ...]) -> bool:
        new = dict(zip(self.columns[table], row, strict=True))
        if self._has_key(table, new):
            return False
        self.tables[table][self._key(table, new)] = new
        return True

    def _insert(self, rows: RowStore, table: str) -> None:
        new = [row for row in self._some(table) if self._add(table, row)]
        rows.insert(table, self.columns[table], new)

    def _insert_new(self, rows: RowStore, table: str) -> None:
        new = self._some(table)
        refused = [index for index, row in enumerate(new) if not self._add(table, row)]
        assert rows.insert_new(table, self.columns[table], new) == refused

    def _put(self, rows: RowStore, table: str) -> None:
        changed: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        for row in self._some(table):
            new = dict(zip(self.columns[table], row, strict=True))
            key = self._key(table, new)
            if key not in changed and not self._has_key(table, new, but=key):
                self.tables[table][key] = new
                changed[key] = row
        rows.put(table, self.columns[table], list(changed.values()))

    def _update(self, rows: RowStore, table: str) -> None:
        kinds = {column.name: column for column in SCHEMA.table(table).columns}
        fixed = {*SCHEMA.table(table).key, *(
            name for index in SCHEMA.table(table).indexes if index.unique for name in index.columns
        )}  # fmt: skip
        free = [name for name in self.columns[table] if name not in fixed]
        names = self.random.sample(free, self.random.randrange(1, len(free) + 1))
        changed = {}
        for key in dict.fromkeys([*self._keys(table), *self._keys(table)]):
            new = [self._value(kinds[name].type, null=kinds[name].null) for name in names]
            changed[key] = (*new, *key)
            if key in self.tables[table]:
                self.tables[table][key] = {
                    **self.tables[table][key], **dict(zip(names, new, strict=True)),
                }  # fmt: skip
        rows.update(table, names, list(changed.values()))

    def _keys(self, table: str) -> list[tuple[Any, ...]]:
        """Return some keys that are there, and some that may be."""
        existing = list(self.tables[table])
        existing_sample = self.random.sample(existing, self.random.randrange(len(existing) + 1))
        new = [dict(zip(self.columns[table], row, strict=True)) for row in self._some(table)]
        return list(dict.fromkeys([*existing_sample, *(self._key(table, row) for row in new)]))

    def _delete(self, rows: RowStore, table: str) -> None:
        keys = self._keys(table)[: self.random.randrange(5)]
        rows.delete(table, [key if len(key) > 1 else key[0] for key in keys])
        for key in keys:
            self.tables[table].pop(key, None)

    def _delete_range(self, rows: RowStore, table: str) -> None:
        index, prefix, bounds = self._range(table)
        rows.delete_range(index.name, prefix, **bounds)
        for row in self._scan(table, index, prefix, bounds):
            del self.tables[table][self._key(table, row)]

    # Reading

    def _range(self, table: str) -> tuple[Index, list[Any], dict[str, list[Any]]]:
        """Return an index of a table, with a prefix and bounds; some columns may be left."""
        of = SCHEMA.table(table)
        _, index = SCHEMA.index(self.random.choice([table, *(each.name for each in of.indexes)]))
        kinds = {column.name: column.type for column in of.columns}
        values = [self._value(kinds[name]) for name in index.columns]
        length = self.random.randrange(len(values) + 1)
        bounds = {
            name: [self._value(kinds[column]) for column in index.columns[length:]][
                : self.random.randrange(1, 4)
            ]
            for name in self.random.sample(["gt", "ge", "lt", "le"], self.random.randrange(3))
            if length < len(values)
        }
        return index, values[:length], bounds

    def _scan(
        self, table: str, index: Index, prefix: Sequence[Any], bounds: dict[str, list[Any]]
    ) -> list[_Row]:
        """Return what a scan should give, in any order."""
        matches = [row for row in self.tables[table].values() if _meets(row, index.where)]
        names, ordering = index.columns[: len(prefix)], index.columns[len(prefix) :]
        matches = [row for row in matches if [row[name] for name in names] == list(prefix)]
        for bound, values in bounds.items():
            compared = ordering[: len(values)]
            matches = [
                row for row in matches if _holds(bound, [row[name] for name in compared], values)
            ]
        return matches

    def compare(self, rows: RowStore) -> None:
        """Check that the store has what the model has."""
        for table, columns in self.columns.items():
            expected = [tuple(row[name] for name in columns) for row in self.tables[table].values()]
            assert Counter(rows.scan(table, columns)) == Counter(expected)
            for _ in range(3):
                self._compare_range(rows, table, *self._range(table))
            keys = self._keys(table)
            rows_read = rows.get(table, columns, [key if len(key) > 1 else key[0] for key in keys])
            present = [self.tables[table][key] for key in keys if key in self.tables[table]]
            assert Counter(rows_read) == Counter(
                tuple(row[name] for name in columns) for row in present
            )
            self._compare_heads(rows, table)

    def _compare_range(
        self, rows: RowStore, table: str, index: Index, prefix: list[Any], bounds: dict[str, Any]
    ) -> None:
        names = index.columns
        expected = sorted(
            tuple(row[name] for name in names) for row in self._scan(table, index, prefix, bounds)
        )
        limit = self.random.choice([None, 0, 1, 3, 100])
        for descending in (False, True):
            rows_read = list(rows.scan(
                index.name, names, prefix, **bounds, limit=limit, descending=descending,
            ))  # fmt: skip
            assert rows_read == (expected[::-1] if descending else expected)[:limit]
        assert rows.measure(index.name, [], prefix, **bounds) == (len(expected), 0)

    def _compare_heads(self, rows: RowStore, table: str) -> None:
        index, prefix, _ = self._range(table)
        prefixes = [prefix, *(self._prefix(table, index, len(prefix)) for _ in range(3))]
        expected = []
        for each in prefixes:
            matches = self._scan(table, index, each, {})
            first = min(
                (tuple(row[name] for name in index.columns) for row in matches), default=None
            )
            expected.append(first)
        assert rows.heads(index.name, index.columns, prefixes) == expected

    def _prefix(self, table: str, index: Index, length: int) -> list[Any]:
        kinds = {column.name: column.type for column in SCHEMA.table(table).columns}
        return [self._value(kinds[name]) for name in index.columns[:length]]


def _meets(row: _Row, condition: str) -> bool:
    """Return whether a row meets the condition of an index: numbers are compared, or None."""
    for part in filter(None, condition.split(" AND ")):
        name, operator, value = part.split(" ", 2)
        if operator == "IS":
            met = (row.get(name) is None) != ("NOT" in value)
        else:
            left, right = row.get(name, 0), float(value)
            met = {"=": left == right, ">": left > right, "<": left < right, ">=": left >= right}[
                operator
            ]
        if not met:
            return False
    return True


def _holds(bound: str, left: Iterable[Any], right: Iterable[Any]) -> bool:
    actual, expected = list(left), list(right)
    match bound:
        case "gt":
            return actual > expected
        case "ge":
            return actual >= expected
        case "lt":
            return actual < expected
    return actual <= expected
