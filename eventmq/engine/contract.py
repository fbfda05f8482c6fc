"""The store contract: what a queue store plugin brings, and the engine needs.

A `RowStore` keeps rows in the tables of `eventmq.engine.tables`, inside transactions. It knows
nothing of what they mean: the engine decides that, and asks for it by the verbs below. Each verb
takes many rows, so that a store behind a network answers in one trip.

Reads see what the same transaction wrote. Writes need no answer, so a store may collect them and
send them together, at the latest with the next read. Two of them say what they found; there a store
that has not looked yet may suppose that all is as the engine expects, and raise `Mismatch` from a
later verb, at the latest from `commit`, if it was not: the engine rolls back and begins again with
``careful``, and then it may suppose nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Mismatch", "Request", "RowStore"]

#: Arguments of one `RowStore.get`: table, columns, keys and ``by``.
Request = tuple[str, "Sequence[str]", "Sequence[Any]", str]


class Mismatch(Exception):
    """Fewer rows were changed than the engine expected: it runs the batch again, carefully."""


class RowStore(Protocol):
    """Rows of tables, in transactions. One thread.

    Tables, indexes and columns are named by text, as `eventmq.engine.tables` declares them; a table
    of a period by `eventmq.engine.tables.period_name`. A row is a tuple of values in the order of
    ``columns``: str without NUL, int, float, bytes or None, by the type of the column; a float may
    be given as int. A key is the value of the primary key, or a tuple where that has several
    columns. A call names each row once. Keys, prefixes and bounds have no None, and where None
    stands in the order of an index is the store's affair, as is the order of rows whose columns of
    the index are equal. Reads without a transaction see what is committed.

    Every verb may raise what the plugin raises for a store that cannot be read or written; the
    engine rolls back then.

    Attributes:
        refusals: Kinds of exceptions that are about values which the store cannot keep, such as a
            number that is too large: another batch may do after such a one.
    """

    refusals: tuple[type[Exception], ...]

    # Transactions

    def begin(self, *, careful: bool = False) -> None:
        """Begin a transaction.

        Args:
            careful: Suppose nothing; see the module.
        """

    def commit(self) -> None:
        """End a transaction: what it wrote is as durable as the store promises.

        Raises:
            Mismatch: Something was not as supposed. Nothing was stored.
        """

    def rollback(self) -> None:
        """Undo a transaction. Without one it does nothing."""

    # Writing

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert rows that are not there; other columns get their defaults.

        A serial key, left out, is given by the store, greater than those before.
        """

    def insert_new(
        self, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]
    ) -> list[int]:
        """Insert rows, but for those whose primary key or unique index is taken.

        Returns:
            The places of those in ``rows``, ascending; empty where a store supposes that there are
            none.
        """

    def put(self, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert rows, each in the place of the one that has its primary key.

        In a table of a period a store may suppose that there is none. ``columns`` are all columns,
        or those of them that have no default.
        """

    def update(self, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
        """Change columns of rows; a row that is not there is passed over.

        Args:
            table: Of the rows.
            columns: Those that change.
            rows: The new values of a row, and behind them its primary key.
        """

    def delete(self, table: str, keys: Sequence[Any]) -> None:
        """Delete rows by primary key; one that is not there is passed over."""

    def delete_runs(self, table: str, runs: Sequence[tuple[int, int]], expected: int) -> int:
        """Delete the rows whose key, an integer, is in one of the runs, both ends included.

        Args:
            table: Of the rows.
            runs: Ascending, and they don't overlap.
            expected: How many rows should be there.

        Returns:
            How many were; ``expected`` where a store supposes so.
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
        """Delete the rows that `scan` would give for the same arguments."""

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
        """Return the rows that have one of the keys, in any order; a key without a row has none.

        Args:
            table: Of the rows.
            columns: Those to return; derived ones as well.
            keys: Each once.
            by: The index whose columns, or first columns, the keys are; "" for the primary key.
                All rows of a key are returned.
            damaged: Give text that is not UTF-8 as bytes. Without it, such a row raises
                `UnicodeDecodeError`, where a store can meet one.
        """

    def get_all(self, requests: Sequence[Request]) -> list[list[tuple[Any, ...]]]:
        """Return what `get` returns for each request, in one trip."""

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

        An index with a condition has only the rows that meet it.

        Args:
            index: Its name, or that of a table for its primary key.
            columns: Those to return; derived ones as well.
            prefix: The first columns of the index are equal to these.
            gt: Those that follow are greater than these, together, in the order of the index.
            ge: Greater or equal.
            lt: Less.
            le: Less or equal.
            limit: Most rows, None for all.
            descending: The last ones first.
            damaged: As for `get`.

        Returns:
            An iterator, to be used up or closed before the transaction writes again. A store may
            have read ``limit`` rows when it returns it, so what reads few should say so.
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

        They are in the order of the prefixes, None where there is none.
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
        """Return how many rows `scan` would give, and how many bytes these columns have in all.

        The columns are text or bytes; text counts as UTF-8.
        """

    def tally(self, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return each combination of values of columns, and behind it how many rows have it."""

    # Single values

    def values(self) -> dict[str, Any]:
        """Return all single values, by name: str, int, float or bytes."""

    def set_values(self, values: dict[str, Any]) -> None:
        """Write single values; None removes one."""

    # Tables of periods

    def periods(self, table: str) -> list[int]:
        """Return the numbers of the periods that have a table, ascending."""

    def make_period(self, table: str, number: int) -> None:
        """Make the table of a period, if it is not there."""

    def drop_period(self, table: str, number: int) -> bool:
        """Drop the table of a period with all its rows; return False if it is in use.

        A table that another session reads, such as a dump, is not waited for and stays as it is.
        """
