"""Store contract: what the engine needs from a queue store plugin.

A `RowStore` keeps rows in the tables of `eventmq.engine.tables`, inside transactions. The engine
alone knows what the rows mean. Each method takes many rows, so that a store behind a network needs
one round trip for all of them.

Reads see the writes of the same transaction. Most writes return nothing, so a store may collect
them and send them together with the next read or with the commit. `RowStore.insert_new` and
`RowStore.delete_runs` return a result. A store that has not sent such a write yet may return the
result that the engine expects; if that assumption proves wrong, it raises `Mismatch` from a later
call, at the latest from `commit`. The engine then rolls back and repeats the batch with ``careful``
set, which forbids such assumptions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Mismatch", "Request", "RowStore"]

#: Arguments of one `RowStore.get`: table, columns, keys and ``by``.
Request = tuple[str, "Sequence[str]", "Sequence[Any]", str]


class Mismatch(Exception):
    """Rows are not as the engine or the store assumed: the engine repeats the batch carefully."""


class RowStore(Protocol):
    """Stores rows of tables, in transactions. One thread uses it.

    Tables, indexes and columns are named as `eventmq.engine.tables` declares them; the table of a
    period by `eventmq.engine.tables.period_name`. A row is a tuple of values in the order of
    ``columns``: str without NUL, int, float, bytes or None, by the type of the column; an int is
    accepted for a float. A key is the value of the primary key, or a tuple if that has several
    columns. A call names each row at most once. Keys, prefixes and bounds contain no None. A store
    may sort None anywhere in an index, and rows with equal index columns in any order. Reads
    outside of a transaction see committed rows.

    Any method may raise the plugin's own exceptions if the store cannot be read or written; the
    engine then rolls back.

    Attributes:
        refusals: Exception types that mean that the store cannot keep a value, such as an integer
            that is too large. The store stays usable after one of these.
    """

    refusals: tuple[type[Exception], ...]

    # Transactions

    def begin(self, *, careful: bool = False) -> None:
        """Begin a transaction.

        Args:
            careful: Return no result that is not known to be right; see the module.
        """

    def commit(self) -> None:
        """Commit a transaction: its writes are then as durable as the store promises.

        Raises:
            Mismatch: A result that was returned earlier was wrong. Nothing was stored.
        """

    def rollback(self) -> None:
        """Roll a transaction back. Does nothing if none was begun."""

    # Writing

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert rows that do not exist yet; columns that are not named get their defaults.

        If ``columns`` lacks the serial key, the store assigns one greater than all before.
        """

    def insert_new(
        self, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]
    ) -> list[int]:
        """Insert rows, except those that conflict with a primary key or unique index.

        Returns:
            The positions of the conflicting rows in ``rows``, ascending; empty if the store
            assumes that there are none.
        """

    def put(self, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert rows; each replaces the row that has the same primary key.

        In the table of a period a store may assume that no such row exists. ``columns`` are all
        columns of the table, or those without a default.
        """

    def update(self, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
        """Update columns of rows; rows that do not exist are ignored.

        Args:
            table: The table to update.
            columns: The columns to change.
            rows: For each row its new values, followed by its primary key.
        """

    def delete(self, table: str, keys: Sequence[Any]) -> None:
        """Delete rows by primary key; keys that do not exist are ignored."""

    def delete_runs(self, table: str, runs: Sequence[tuple[int, int]], expected: int) -> int:
        """Delete the rows whose integer key is in one of the runs, both ends included.

        Args:
            table: The table to delete from.
            runs: First and last key of each run; ascending, without overlap.
            expected: The number of rows that the engine expects to be deleted.

        Returns:
            The number of deleted rows; ``expected`` if the store only assumes it.
        """

    def delete_range(
        self,
        index: str,
        prefix: Sequence[Any] = (),
        *,
        gt: Sequence[Any] = (),
        ge: Sequence[Any] = (),
        lt: Sequence[Any] = (),
        le: Sequence[Any] = (),
    ) -> None:
        """Delete the rows that `scan` would return for the same arguments."""

    # Reading

    def get(
        self,
        table: str,
        columns: Sequence[str],
        keys: Sequence[Any],
        *,
        by: str = "",
        damaged: bool = False,
    ) -> list[tuple[Any, ...]]:
        """Return all rows that have one of the keys, in any order; keys without rows are ignored.

        Args:
            table: The table to read.
            columns: The columns to return, derived ones included.
            keys: The keys, each once.
            by: The index to use: each key has values for its first columns. "" for the primary key.
            damaged: Return text that is not UTF-8 as bytes. Otherwise a row with such text raises
                `UnicodeDecodeError`, in stores where it can occur.
        """

    def get_all(self, requests: Sequence[Request]) -> list[list[tuple[Any, ...]]]:
        """Return what `get` returns for each request, in one round trip."""

    def scan(
        self,
        index: str,
        columns: Sequence[str],
        prefix: Sequence[Any] = (),
        *,
        gt: Sequence[Any] = (),
        ge: Sequence[Any] = (),
        lt: Sequence[Any] = (),
        le: Sequence[Any] = (),
        limit: int | None = None,
        descending: bool = False,
        damaged: bool = False,
    ) -> Iterator[tuple[Any, ...]]:
        """Return rows in the order of an index, or of a primary key.

        An index with a condition contains only the rows that meet it.

        Args:
            index: Name of the index, or of a table to scan by its primary key.
            columns: The columns to return, derived ones included.
            prefix: Values that the first columns of the index must equal.
            gt: Values that the following columns, compared as a tuple, must exceed.
            ge: The same, greater or equal.
            lt: The same, less.
            le: The same, less or equal.
            limit: Maximum number of rows, None for all.
            descending: Return the last rows first.
            damaged: As for `get`.

        Returns:
            An iterator. Exhaust or close it before the transaction writes again. A store may read
            ``limit`` rows at once, so set a limit where only few rows are needed.
        """

    def heads(
        self,
        index: str,
        columns: Sequence[str],
        prefixes: Sequence[Sequence[Any]],
        *,
        descending: bool = False,
    ) -> list[tuple[Any, ...] | None]:
        """Return the first row for each prefix of an index, or the last with ``descending``.

        The rows are in the order of the prefixes; None for a prefix that has no row.
        """

    def measure(
        self,
        index: str,
        columns: Sequence[str] = (),
        prefix: Sequence[Any] = (),
        *,
        gt: Sequence[Any] = (),
        ge: Sequence[Any] = (),
        lt: Sequence[Any] = (),
        le: Sequence[Any] = (),
    ) -> tuple[int, int]:
        """Return the number of rows that `scan` would return, and the total bytes of the columns.

        The columns are text or bytes; text counts as UTF-8.
        """

    def tally(self, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return each distinct combination of values of columns, followed by its number of rows."""

    # Single values

    def values(self) -> dict[str, Any]:
        """Return all single values by name: str, int, float or bytes."""

    def set_values(self, values: dict[str, Any]) -> None:
        """Write single values; None removes one."""

    # Tables of periods

    def periods(self, table: str) -> list[int]:
        """Return the numbers of the periods that have a table, ascending."""

    def make_period(self, table: str, number: int) -> None:
        """Create the table of a period if it does not exist."""

    def drop_period(self, table: str, number: int) -> bool:
        """Drop the table of a period with all its rows; return False if it is in use.

        The store does not wait for another session that reads the table, such as a dump: the table
        then stays as it is.
        """
