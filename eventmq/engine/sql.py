"""Texts of the statements behind the verbs, for SQL databases; their parameters are ``?``."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eventmq.engine.tables import Index, Schema, Table

__all__ = ["Statements", "create", "names", "quote", "steps_between"]

S = TypeVar("S")

_OPERATORS = (">", ">=", "<", "<=")


def quote(name: str) -> str:
    """Return a name as SQL has it: some of ours are words of its own."""
    return f'"{name}"'


def names(columns: Sequence[str]) -> str:
    """Return a list of columns."""
    return ", ".join(map(quote, columns))


def _tuple(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"({', '.join(items)})"


class Statements:
    """Makes the texts of statements that read.

    Args:
        schema: The tables.
        expression: Turns a column to read into SQL, given its table and name; None: as declared.
    """

    def __init__(
        self, schema: Schema, expression: Callable[[Table, str], str] | None = None
    ) -> None:
        self.schema = schema
        self._expression = expression or declared

    def columns(self, table: Table, columns: Sequence[str]) -> str:
        """Return what a SELECT names."""
        return ", ".join(self._expression(table, name) for name in columns)

    def where(self, index: Index, prefix: int, bounds: Sequence[int]) -> str:
        """Return the condition of a scan, "" for none; its parameters are prefix and bounds.

        Args:
            index: That is scanned.
            prefix: How many columns are given.
            bounds: How many columns are given of each of the four bounds.
        """
        conditions = [index.where] if index.where else []
        conditions += [f"{quote(name)} = ?" for name in index.columns[:prefix]]
        rest = [quote(name) for name in index.columns[prefix:]]
        conditions += [
            f"{_tuple(rest[:count])} {operator} {_tuple(['?'] * count)}"
            for operator, count in zip(_OPERATORS, bounds, strict=True)
            if count
        ]
        return f" WHERE {' AND '.join(conditions)}" if conditions else ""

    def scan(
        self,
        name: str,
        columns: Sequence[str],
        prefix: int,
        bounds: Sequence[int],
        *,
        limited: bool,
        descending: bool,
    ) -> str:
        """Return the SELECT of a scan; with ``limited`` the limit is the last parameter."""
        table, index = self.schema.index(name)
        step = " DESC" if descending else ""
        order = ", ".join(f"{quote(column)}{step}" for column in index.columns)
        return (
            f"SELECT {self.columns(table, columns)} FROM {quote(table.name)}"
            f"{self.where(index, prefix, bounds)} ORDER BY {order}{' LIMIT ?' if limited else ''}"
        )

    def delete_range(self, name: str, prefix: int, bounds: Sequence[int]) -> str:
        """Return the DELETE of a scan."""
        table, index = self.schema.index(name)
        return f"DELETE FROM {quote(table.name)}{self.where(index, prefix, bounds)}"


def declared(table: Table, name: str) -> str:
    """Return a column to read as SQL: its name, or the expression of a derived one."""
    return table.derived.get(name) or quote(name)


def create(table: Table, types: Mapping[str, str], *, tail: str = "") -> list[str]:
    """Return the statements that make a table with its indexes, if they are not there.

    Args:
        table: The table.
        types: The database's own name of each type.
        tail: Stands behind the definition of the table.
    """
    lone_integer = len(table.key) == 1 and next(
        column.type == "integer" for column in table.columns if column.name == table.key[0]
    )
    parts = []
    for column in table.columns:
        default = "" if column.default is None else f" DEFAULT {column.default!r}"
        key = " PRIMARY KEY" if lone_integer and column.name == table.key[0] else ""
        null = "" if column.null or key else " NOT NULL"
        parts.append(f"{quote(column.name)} {types[column.type]}{null}{default}{key}")
    if not lone_integer:
        parts.append(f"PRIMARY KEY ({names(table.key)})")
    made = [f"CREATE TABLE IF NOT EXISTS {quote(table.name)} ({', '.join(parts)}){tail}"]
    for index in table.indexes:
        unique = "UNIQUE " if index.unique else ""
        where = f" WHERE {index.where}" if index.where else ""
        made.append(
            f"CREATE {unique}INDEX IF NOT EXISTS {quote(index.name)} ON {quote(table.name)} "
            f"({names(index.columns)}){where}"
        )
    return made


def steps_between(
    steps: Mapping[int, S],
    found: tuple[int, object],
    own: tuple[int, object],
    hash_of: Callable[[S], object],
) -> list[S] | None:
    """Return what leads from a version of tables to a later one.

    Args:
        steps: Version -> the step from it to the next.
        found: The version of the tables that are there, and the hash of their definitions.
        own: Those that are needed.
        hash_of: Returns the hash of the tables that a step is for.

    Returns:
        The steps in order, none where it is the same version; None where none lead there.
    """
    way = [steps[version] for version in range(found[0], own[0]) if version in steps]
    if len(way) != own[0] - found[0]:
        return None
    return way if found[1] == (hash_of(way[0]) if way else own[1]) else None
