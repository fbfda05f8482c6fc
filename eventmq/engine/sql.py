"""SQL statements for `RowStore` methods, with ``?`` for parameters; for stores in SQL databases."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eventmq.engine.tables import Index, Schema, Table

__all__ = ["Statements", "create", "names", "quote", "steps_between"]

S = TypeVar("S")

_OPERATORS = (">", ">=", "<", "<=")


def quote(name: str) -> str:
    """Return a quoted name, since some names of columns are keywords of SQL."""
    return f'"{name}"'


def names(columns: Sequence[str]) -> str:
    """Return quoted names, separated by commas."""
    return ", ".join(map(quote, columns))


def _tuple(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"({', '.join(items)})"


class Statements:
    """Builds the statements that scan an index.

    Args:
        schema: The tables.
        expression: Returns the SQL that reads a column, given its table and name; None to read
            columns as they are declared.
    """

    def __init__(
        self, schema: Schema, expression: Callable[[Table, str], str] | None = None
    ) -> None:
        self.schema = schema
        self._expression = expression or declared

    def columns(self, table: Table, columns: Sequence[str]) -> str:
        """Return the column list of a SELECT."""
        return ", ".join(self._expression(table, name) for name in columns)

    def where(self, index: Index, prefix: int, bounds: Sequence[int]) -> str:
        """Return the WHERE clause of a scan, "" for none; its parameters are prefix and bounds.

        Args:
            index: The index to scan.
            prefix: Number of columns in the prefix.
            bounds: Number of columns in each of the bounds ``gt``, ``ge``, ``lt`` and ``le``.
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
        """Return the SELECT for a scan; with ``limited``, the last parameter is the limit."""
        table, index = self.schema.index(name)
        step = " DESC" if descending else ""
        order = ", ".join(f"{quote(column)}{step}" for column in index.columns)
        return (
            f"SELECT {self.columns(table, columns)} FROM {quote(table.name)}"
            f"{self.where(index, prefix, bounds)} ORDER BY {order}{' LIMIT ?' if limited else ''}"
        )

    def delete_range(self, name: str, prefix: int, bounds: Sequence[int]) -> str:
        """Return the DELETE for the rows of a scan."""
        table, index = self.schema.index(name)
        return f"DELETE FROM {quote(table.name)}{self.where(index, prefix, bounds)}"


def declared(table: Table, name: str) -> str:
    """Return the SQL that reads a column: its name, or the expression of a derived column."""
    return table.derived.get(name) or quote(name)


def create(table: Table, types: Mapping[str, str], *, tail: str = "") -> list[str]:
    """Return the statements that create a table and its indexes if they do not exist.

    Args:
        table: The table.
        types: Type of a column -> its name in the database.
        tail: Text that follows the definition of the table.
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
    statements = [f"CREATE TABLE IF NOT EXISTS {quote(table.name)} ({', '.join(parts)}){tail}"]
    for index in table.indexes:
        unique = "UNIQUE " if index.unique else ""
        where = f" WHERE {index.where}" if index.where else ""
        statements.append(
            f"CREATE {unique}INDEX IF NOT EXISTS {quote(index.name)} ON {quote(table.name)} "
            f"({names(index.columns)}){where}"
        )
    return statements


def steps_between(
    steps: Mapping[int, S],
    stored: tuple[int, object],
    needed: tuple[int, object],
    hash_of: Callable[[S], object],
) -> list[S] | None:
    """Return the migration steps from one version of the tables to a later one.

    Args:
        steps: Version -> the step from it to the next.
        stored: Version of the stored tables, and the hash of their definitions.
        needed: Version and hash that are needed.
        hash_of: Returns the hash of the definitions that a step migrates from.

    Returns:
        The steps in order, empty if the versions are the same; None if no steps lead from one to
        the other.
    """
    path = [steps[version] for version in range(stored[0], needed[0]) if version in steps]
    if len(path) != needed[0] - stored[0]:
        return None
    return path if stored[1] == (hash_of(path[0]) if path else needed[1]) else None
