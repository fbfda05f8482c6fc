"""Conformance suite for the stores below the engine: rows, indexes, transactions."""

# ruff: noqa: S101, PLR2004 - suites assert, and their numbers are their own

from __future__ import annotations

from contextlib import closing
from functools import partial
from itertools import product
from random import Random
from typing import TYPE_CHECKING, Any, cast

import pytest

from eventmq.engine import Mismatch, RowStore, period_name
from eventmq.job import STATE_CODES, JobState
from eventmq.testing.suites.row_model import (
    BODIES,
    CHUNK,
    JOB,
    MAX_INTEGER,
    MIN_INTEGER,
    OUTCOME,
    TEXTS,
    Model,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


__all__ = ["RowStoreSuite"]

_REALS = (0.0, 0.1, 1 / 3, -2.5, 5e-324, 1.7976931348623157e308, 4102444800.000001, -1e-9)

_INTEGERS = (0, 1, -1, 255, 2**31, 2**53 + 1, MAX_INTEGER, MIN_INTEGER)

_PAIR = ("seq", "record")

_OPERATION = ("id", "operation", "at", "bound", "cursor", "affected", "done")


def _job(seq: int, job_id: str = "", **values: Any) -> tuple[Any, ...]:
    """Return a row of `JOB`, and behind it the values of other columns."""
    row = {
        "seq": seq, "id": job_id or f"j{seq}", "queue": 1, "rank": seq, "state": 2, "attempt": 1,
        "delivery": 0, "deaths": 0, "ready_at": 1.5, "expires": 0.0, "created": 1.5,
        "head_crc": 7, "crc": 8, "headers": "task:t", "body": b"b",
    }  # fmt: skip
    return tuple((row | values).values())


def _operation(name: str) -> tuple[Any, ...]:
    return (name, b"", 1.5, 1, 2, 3, 0)


def _outcome(job_id: str, **values: Any) -> tuple[Any, ...]:
    row = {
        "id": job_id, "state": 4, "at": 9.5, "until": 10.5, "crc": 5, "content_type": "json",
        "result": b"r", "queue": 1, "task": 1, "attempt": 1, "delivery": 1, "created": 1.0,
        "started": 2.0, "run_time": 0.5, "worker": 1, "unique_key": None,
    }  # fmt: skip
    return tuple((row | values).values())


class RowStoreSuite:
    """Subclass it, return your store from `make` and close it in `close`.

    ``durable`` is False for a store that keeps nothing when it is closed.
    """

    durable = True

    def make(self) -> RowStore:
        """Return the store with the tables of `eventmq.engine.TABLES`; each time the same rows.

        It is empty the first time of a test. No other one is open.
        """
        raise NotImplementedError("define make() in your subclass: it returns your store of rows")

    def close(self, rows: RowStore) -> None:
        """Close a store, which may be in a transaction: that is undone."""
        raise NotImplementedError("define close() in your subclass: it closes your store of rows")

    @pytest.fixture
    def row_store(self) -> Iterator[RowStore]:
        """The store, empty."""
        self._opened = self.make()
        yield self._opened
        self._opened.rollback()
        self.close(self._opened)

    def reopen(self) -> RowStore:
        """Close the store of the test, and return another one on the same rows."""
        if not self.durable:
            pytest.skip("this store keeps nothing when it is closed")
        self.close(self._opened)
        self._opened = self.make()
        return self._opened

    def write(self, rows: RowStore, *steps: Callable[[], Any]) -> None:
        """Run steps in a transaction."""
        rows.begin(careful=True)
        for step in steps:
            step()
        rows.commit()

    # Values

    def test_values_come_back_as_they_were(self, row_store: RowStore) -> None:
        """Integers of 64 bits, all digits of a float, any text and any bytes, None."""
        texts = [text * 3 for text in TEXTS]
        values = list(product(_INTEGERS, _REALS))
        written = [
            (
                n, f"{n}{texts[n % len(texts)]}", integer, integer, 1, 1, 0, 0, real, real, real,
                0, 1, texts[-n % len(texts)], BODIES[n % len(BODIES)],
                None if n % 3 else texts[n % len(texts)], -real,
            )
            for n, (integer, real) in enumerate(values)
        ]  # fmt: skip
        columns = (*JOB, "unique_key", "eta")
        self.write(row_store, lambda: row_store.insert("jobs", columns, written))
        assert list(row_store.scan("jobs", columns)) == written
        kinds = {tuple(map(type, row[:15])) for row in row_store.scan("jobs", columns)}
        assert kinds == {tuple(map(type, written[0][:15]))}

    def test_whole_numbers_in_columns_of_reals_are_reals(self, row_store: RowStore) -> None:
        """What was written as 3 is read as 3.0."""
        columns = ("task", "key", "tokens", "updated", "period")
        self.write(row_store, lambda: row_store.put("limiters", columns, [("t", "k", 3, 0, -1)]))
        [row] = row_store.scan("limiters", columns)
        assert row == ("t", "k", 3.0, 0.0, -1.0)
        assert list(map(type, row)) == [str, str, float, float, float]

    @pytest.mark.parametrize("size", [0, 1, 3_000, 1_000_000, 20_000_000], ids=str)
    def test_bytes_of_any_length(self, row_store: RowStore, size: int) -> None:
        """Up to a body of 20 MB; some such rows in one call."""
        body = Random(size).randbytes(size)
        written = [(n, body) for n in range(1 + (0 < size < 20_000_000))]
        self.write(row_store, lambda: row_store.insert("suspects", _PAIR, written))
        assert row_store.get("suspects", _PAIR, [n for n, _ in written]) == written

    def test_long_text(self, row_store: RowStore) -> None:
        """Counted in bytes where it is measured."""
        text = "aü\U0001f680" * 100_000
        self.write(row_store, lambda: row_store.insert("names", ("id", "name"), [(1, "n")]))
        row = _job(1, headers=text)
        self.write(row_store, lambda: row_store.insert("jobs", JOB, [row]))
        assert row_store.get("jobs", ["headers"], [1]) == [(text,)]
        assert row_store.measure("jobs", ["headers", "body"]) == (1, len(text.encode()) + 1)

    def test_columns_that_are_not_named_get_their_defaults(self, row_store: RowStore) -> None:
        """None is the default of columns that may be None."""
        self.write(row_store, lambda: row_store.insert("jobs", JOB, [_job(1)]))
        columns = ("unique_key", "subqueue", "eta")
        assert row_store.get("jobs", columns, [1]) == [(None, 0, 0.0)]

    def test_text_is_ordered_by_its_code_points(self, row_store: RowStore) -> None:
        """This holds in keys and indexes, whatever the language of the database."""
        columns = ("job", "join_key", "first", "final", "size")
        texts = list(TEXTS)
        assert sorted(texts, key=str.encode) == texts
        shuffled = Random(1).sample(texts, len(texts))
        written = [(text, 1, 2, 3, 4) for text in shuffled]
        self.write(row_store, lambda: row_store.insert("inputs", columns, written))
        assert [job for (job,) in row_store.scan("inputs", ["job"])] == texts
        after = row_store.scan("inputs", ["job"], gt=["Z"], le=["\U00010000"])
        assert [job for (job,) in after] == [text for text in texts if "Z" < text <= "\U00010000"]
        for text in texts:
            assert row_store.get("inputs", ["job"], [text]) == [(text,)]

    # Insert, put, update, delete

    def test_nothing_is_written_where_no_rows_are_given(self, row_store: RowStore) -> None:
        """A batch need not look whether there are some."""
        self.write(
            row_store,
            lambda: row_store.insert("suspects", _PAIR, []),
            lambda: row_store.put("suspects", _PAIR, []),
            lambda: row_store.update("suspects", ["record"], []),
            lambda: row_store.delete("suspects", []),
            lambda: row_store.set_values({}),
        )
        row_store.begin(careful=True)
        assert row_store.insert_new("suspects", _PAIR, []) == []
        assert row_store.delete_runs("suspects", [], 0) == 0
        assert row_store.get("suspects", _PAIR, []) == []
        assert row_store.heads("jobs_ready", ["seq"], []) == []
        row_store.commit()

    @pytest.mark.parametrize("row", [_job(1, "other"), _job(9, "j1")], ids=["key", "index"])
    def test_inserting_a_key_that_is_taken_fails(
        self, row_store: RowStore, row: tuple[Any, ...]
    ) -> None:
        """Nothing of the transaction is stored, and the store goes on."""
        self.write(row_store, lambda: row_store.insert("jobs", JOB, [_job(1)]))
        steps = (
            lambda: row_store.insert("jobs", JOB, [_job(2)]),
            lambda: row_store.insert("jobs", JOB, [_job(3), row]),
        )
        with pytest.raises(row_store.refusals):
            self.write(row_store, *steps)
        row_store.rollback()
        assert list(row_store.scan("jobs", JOB)) == [_job(1)]
        self.write(row_store, lambda: row_store.insert("jobs", JOB, [_job(2)]))
        assert [seq for (seq,) in row_store.scan("jobs", ["seq"])] == [1, 2]

    def test_a_number_that_has_no_place_is_refused(self, row_store: RowStore) -> None:
        """Writing it fails, and so does reading by it; the next batch succeeds."""
        for step in (
            lambda: row_store.insert("jobs", JOB, [_job(1), _job(MAX_INTEGER + 1)]),
            lambda: row_store.get("jobs", JOB, [MAX_INTEGER + 1]),
            lambda: list(row_store.scan("jobs", JOB, le=(MAX_INTEGER + 1,), limit=1)),
        ):
            with pytest.raises(row_store.refusals):
                self.write(row_store, lambda: row_store.insert("jobs", JOB, [_job(2)]), step)
            row_store.rollback()
        self.write(row_store, lambda: row_store.insert("jobs", JOB, [_job(MAX_INTEGER)]))
        assert list(row_store.scan("jobs", ["seq"])) == [(MAX_INTEGER,)]

    def test_insert_new_says_which_are_taken(self, row_store: RowStore) -> None:
        """A key may be in use by the primary key, by a unique index, or within one call."""
        self.write(row_store, lambda: row_store.insert("jobs", JOB, [_job(1), _job(2)]))
        rows = [_job(3), _job(1, "a"), _job(4, "j2"), _job(5), _job(5, "b"), _job(6, "j5"), _job(7)]
        row_store.begin(careful=True)
        assert row_store.insert_new("jobs", JOB, rows) == [1, 2, 4, 5]
        assert row_store.insert_new("jobs", JOB, [_job(8)]) == []
        row_store.commit()
        expected = [_job(n) for n in (1, 2, 3, 5, 7, 8)]
        assert list(row_store.scan("jobs", JOB)) == expected

    @pytest.mark.parametrize("taken", [_job(1, "a"), _job(4, "j2")], ids=["key", "index"])
    def test_a_supposed_insert_is_a_mismatch_or_says_what_is_taken(
        self, row_store: RowStore, taken: tuple[Any, ...]
    ) -> None:
        """Without ``careful``; after a mismatch nothing is stored, and the batch runs again."""
        self.write(row_store, lambda: row_store.insert("jobs", JOB, [_job(1), _job(2)]))
        rows = [_job(3), taken, _job(5)]
        for careful in (False, True):
            row_store.begin(careful=careful)
            try:
                positions = row_store.insert_new("jobs", JOB, rows)
                row_store.put("suspects", _PAIR, [(1, b"x")])
                row_store.commit()
            except Mismatch:
                assert not careful
                row_store.rollback()
                assert list(row_store.scan("jobs", JOB)) == [_job(1), _job(2)]
                assert list(row_store.scan("suspects", _PAIR)) == []
            else:
                assert positions == [1]
                break
        assert list(row_store.scan("jobs", JOB)) == [_job(n) for n in (1, 2, 3, 5)]

    def test_put_takes_the_place_of_a_row(self, row_store: RowStore) -> None:
        """It replaces the whole row: columns that are not named get their defaults."""
        columns = (*JOB, "unique_key", "eta")
        old = [(*_job(n), "key", 5.0) for n in (1, 2)]
        self.write(row_store, lambda: row_store.insert("jobs", columns, old))
        new = [_job(2, "x", body=b"new"), _job(3)]
        self.write(row_store, lambda: row_store.put("jobs", JOB, new))
        expected = [old[0], *((*row, None, 0.0) for row in new)]
        assert list(row_store.scan("jobs", columns)) == expected

    def test_put_by_a_key_of_several_columns(self, row_store: RowStore) -> None:
        """Both columns decide which row it is."""
        old = [("a", 1, 1, b"a1", 0.0), ("a", 2, 1, b"a2", 0.0), ("b", 1, 1, b"b1", 0.0)]
        self.write(row_store, lambda: row_store.put("chunks", CHUNK, old))
        new = [("a", 2, 7, b"", 9.5), ("b", 2, 1, b"b2", 0.5)]
        self.write(row_store, lambda: row_store.put("chunks", CHUNK, new))
        assert list(row_store.scan("chunks", CHUNK)) == [old[0], new[0], old[2], new[1]]

    def test_put_in_a_table_of_a_period(self, row_store: RowStore) -> None:
        """Without ``careful`` a store may suppose that the rows are new."""
        table = period_name("outcomes", 3)
        self.write(row_store, lambda: row_store.make_period("outcomes", 3))
        for rows in ([_outcome("a"), _outcome("b")], [_outcome("b", result=None), _outcome("c")]):
            for careful in (False, True):
                row_store.begin(careful=careful)
                try:
                    row_store.put(table, OUTCOME, rows)
                    row_store.commit()
                    break
                except Mismatch:
                    assert not careful
                    row_store.rollback()
        expected = [_outcome("a"), _outcome("b", result=None), _outcome("c")]
        assert list(row_store.scan(table, OUTCOME)) == expected

    def test_update_changes_rows_that_are_there(self, row_store: RowStore) -> None:
        """Those that are not there are passed over, other columns stay."""
        self.write(row_store, lambda: row_store.insert("jobs", JOB, [_job(1), _job(2), _job(3)]))
        new = [(5, b"x", "k", 3), (6, b"", None, 1), (7, b"y", "z", 9)]
        columns = ("rank", "body", "unique_key")
        self.write(row_store, lambda: row_store.update("jobs", columns, new))
        rows = list(row_store.scan("jobs", (*JOB, "unique_key")))
        expected = [
            (*_job(1, rank=6, body=b""), None), (*_job(2), None),
            (*_job(3, rank=5, body=b"x"), "k"),
        ]  # fmt: skip
        assert rows == expected

    def test_update_by_a_key_of_several_columns(self, row_store: RowStore) -> None:
        """The key stands behind the values, in the order of the table."""
        old = [("a", 1, 1, b"", 0.0), ("a", 2, 1, b"", 0.0), ("b", 1, 1, b"", 0.0)]
        self.write(row_store, lambda: row_store.put("chunks", CHUNK, old))
        new = [(b"x", 1.5, "b", 1), (b"y", 2.5, "a", 2), (b"z", 3.5, "b", 2)]
        self.write(row_store, lambda: row_store.update("chunks", ["leases", "leased"], new))
        expected = [old[0], ("a", 2, 1, b"y", 2.5), ("b", 1, 1, b"x", 1.5)]
        assert list(row_store.scan("chunks", CHUNK)) == expected

    def test_delete_by_keys(self, row_store: RowStore) -> None:
        """Keys may have one column or several; a key without a row is ignored."""
        chunks = [(session, n, 1, b"", 0.0) for session in "ab" for n in (1, 2)]
        self.write(
            row_store,
            lambda: row_store.insert("suspects", _PAIR, [(n, b"") for n in range(200)]),
            lambda: row_store.insert("chunks", CHUNK, chunks),
        )
        self.write(
            row_store,
            lambda: row_store.delete("suspects", [n * 2 for n in range(150)]),
            lambda: row_store.delete("chunks", [("b", 1), ("a", 2), ("c", 1)]),
        )
        assert [n for (n,) in row_store.scan("suspects", ["seq"])] == list(range(1, 200, 2))
        assert list(row_store.scan("chunks", ["session", "number"])) == [("a", 1), ("b", 2)]

    def test_delete_runs_says_how_many_there_were(self, row_store: RowStore) -> None:
        """Both ends of a run are deleted; with ``careful`` the number is what was found."""
        written = [(n, b"") for n in (*range(-3, 50), MAX_INTEGER)]
        self.write(row_store, lambda: row_store.insert("suspects", _PAIR, written))
        row_store.begin(careful=True)
        assert row_store.delete_runs("suspects", [(-9, -2), (5, 5), (10, 19)], 99) == 13
        assert row_store.delete_runs("suspects", [(48, 60)], 13) == 2
        assert row_store.delete_runs("suspects", [(48, 60), (MAX_INTEGER, MAX_INTEGER)], 2) == 1
        row_store.commit()
        remaining = [-1, 0, 1, 2, 3, 4, *range(6, 10), *range(20, 48)]
        assert [n for (n,) in row_store.scan("suspects", ["seq"])] == remaining

    @pytest.mark.parametrize("runs", [[(1, 3)], [(1, 1), (3, 5)]], ids=len)
    def test_a_supposed_deletion_is_a_mismatch_or_says_how_many(
        self, row_store: RowStore, runs: list[tuple[int, int]]
    ) -> None:
        """This is without ``careful``; a deletion as expected is simply committed."""
        written = [(n, b"") for n in (1, 3, 4, 7)]
        self.write(row_store, lambda: row_store.insert("suspects", _PAIR, written))
        count = sum(low <= n <= high for n, _ in written for low, high in runs)
        for expected in (count + 1, count):
            row_store.begin()
            try:
                deleted = row_store.delete_runs("suspects", runs, expected)
                row_store.commit()
            except Mismatch:
                assert expected != count
                row_store.rollback()
                assert row_store.measure("suspects") == (4, 0)
            else:
                assert deleted == count
                break
        assert row_store.measure("suspects") == (4 - count, 0)

    # Reading

    @pytest.mark.parametrize("count", [1, 2, 7, 8, 99, 100, 101, 1000])
    def test_get_by_many_keys(self, row_store: RowStore, count: int) -> None:
        """Keys may be primary, of a unique index or of several columns; some have no row."""
        written = [(*_job(n, f"é{n}"), f"k{n % 7}") for n in range(0, 2 * count, 2)]
        columns = (*JOB, "unique_key")
        chunks = [(f"s{n % 3}", n, 1, b"%d" % n, 0.5) for n in range(count)]
        self.write(
            row_store,
            lambda: row_store.insert("jobs", columns, written),
            lambda: row_store.insert("chunks", CHUNK, chunks),
        )
        keys = Random(count).sample(range(2 * count), count)
        expected = {row for row in written if row[0] in keys}
        rows = row_store.get("jobs", columns, keys)
        assert (len(rows), set(rows)) == (len(expected), expected)
        rows = row_store.get("jobs", columns, [f"é{n}" for n in keys], by="jobs_id")
        assert (len(rows), set(rows)) == (len(expected), expected)
        pairs = [(f"s{n % 2}", n) for n in range(count)]
        rows = row_store.get("chunks", CHUNK, pairs)
        assert sorted(rows) == sorted(row for row in chunks if row[:2] in pairs)

    def test_get_by_an_index_that_is_not_unique(self, row_store: RowStore) -> None:
        """All rows of a key; an index with a condition has only those that meet it."""
        columns = ("key", "graph", "first", "end")
        written = [(n, n % 5, n, n) for n in range(40)]
        jobs = [_job(n, state=1 + n % 2, ready_at=float(n % 4)) for n in range(40)]
        self.write(
            row_store,
            lambda: row_store.insert("handlers", columns, written),
            lambda: row_store.insert("jobs", JOB, jobs),
        )
        for keys in ([3], [1, 4, 77], [*range(-9, 3)]):
            rows = row_store.get("handlers", columns, keys, by="handlers_graph")
            assert sorted(rows) == [row for row in written if row[1] in keys]
        rows = row_store.get("jobs", ["seq"], [0.0, 1.0, 2.0], by="jobs_delayed")
        assert sorted(rows) == [(n,) for n in range(40) if n % 2 == 0 and n % 4 < 3]

    def test_get_by_the_first_columns_of_an_index(self, row_store: RowStore) -> None:
        """One of them, as it is or in a tuple, or several."""
        jobs = [(*_job(n, rank=n % 3), n % 2) for n in range(20)]
        columns = (*JOB, "subqueue")
        self.write(row_store, lambda: row_store.insert("jobs", columns, jobs))
        expected = [(n,) for n in range(20) if n % 2]
        assert sorted(row_store.get("jobs", ["seq"], [1, 7], by="jobs_ready")) == expected
        assert sorted(row_store.get("jobs", ["seq"], [(1,), (7,)], by="jobs_ready")) == expected
        rows = row_store.get("jobs", ["seq"], [(0, 2), (1, 1), (7, 1)], by="jobs_ready")
        assert sorted(rows) == [(n,) for n in range(20) if (n % 2, n % 3) in {(0, 2), (1, 1)}]

    def test_get_all_answers_several_requests(self, row_store: RowStore) -> None:
        """The answers are in order; some requests have no keys, or no rows."""
        row_store.begin(careful=True)
        row_store.insert("jobs", JOB, [_job(n) for n in range(9)])
        row_store.insert("suspects", _PAIR, [(4, b"x")])
        answers = row_store.get_all([
            ("jobs", ["seq", "body"], ["j5"], "jobs_id"), ("jobs", ["seq"], [], ""),
            ("suspects", _PAIR, [4, 5], ""), ("jobs", ["id"], [7], ""),
            ("chunks", CHUNK, [("a", 1)], ""),
        ])  # fmt: skip
        assert answers == [[(5, b"b")], [], [(4, b"x")], [("j7",)], []]
        assert row_store.get_all([]) == []
        row_store.commit()

    def test_reads_see_what_the_transaction_wrote(self, row_store: RowStore) -> None:
        """This holds for each verb, and again after the next write."""
        row_store.begin(careful=True)
        row_store.insert("suspects", _PAIR, [(n, b"%d" % n) for n in range(5)])
        assert row_store.get("suspects", _PAIR, [3]) == [(3, b"3")]
        row_store.put("suspects", _PAIR, [(3, b"new")])
        assert row_store.measure("suspects", ["record"]) == (5, 7)
        row_store.update("suspects", ["record"], [(b"", 4)])
        assert list(row_store.scan("suspects", _PAIR, gt=[2])) == [(3, b"new"), (4, b"")]
        row_store.delete("suspects", [0])
        assert row_store.heads("suspects", ["seq"], [()]) == [(1,)]
        row_store.delete_range("suspects", lt=[3])
        assert sorted(row_store.tally("suspects", ["record"])) == [(b"", 1), (b"new", 1)]
        row_store.set_values({"a": 1})
        assert row_store.values()["a"] == 1
        row_store.make_period("outcomes", 5)
        assert row_store.periods("outcomes") == [5]
        row_store.commit()

    def test_a_scan_may_be_closed_before_its_end(self, row_store: RowStore) -> None:
        """Another read may come between its rows; the transaction can write afterwards."""
        written = [(n, b"x" * 100) for n in range(5000)]
        self.write(row_store, lambda: row_store.insert("suspects", _PAIR, written))
        row_store.begin()
        with closing(cast("Any", row_store.scan("suspects", _PAIR))) as open_scan:
            assert [next(open_scan), next(open_scan)] == written[:2]
            assert row_store.get("suspects", ["seq"], [7]) == [(7,)]
            assert next(open_scan) == written[2]
        row_store.delete("suspects", [0])
        assert list(row_store.scan("suspects", _PAIR)) == written[1:]
        row_store.commit()

    def test_heads_are_the_first_rows_in_order(self, row_store: RowStore) -> None:
        """One for each prefix, None where no row meets it; twice where it is asked twice."""
        rows = [
            (*_job(n, rank=-(n % 10), state=2 - (n % 10 == 9)), n % 4) for n in range(100)
        ]  # fmt: skip
        columns = (*JOB, "subqueue")
        self.write(row_store, lambda: row_store.insert("jobs", columns, rows))
        first_rows = row_store.heads("jobs_ready", ["subqueue", "seq"], [(3,), (9,), (0,), (3,)])
        assert first_rows == [(3, 7), None, (0, 8), (3, 7)]
        first_rows = row_store.heads("jobs_ready", ["seq"], [(1, -5), (1, -6)])
        assert first_rows == [(5,), None]
        first_rows = row_store.heads(
            "jobs_ready", ["subqueue", "rank", "seq"], [(3,), (9,), (1, -5)], descending=True
        )
        assert first_rows == [(3, -1, 91), None, (1, -5, 85)]

    def test_heads_of_many_prefixes_are_those_of_each(self, row_store: RowStore) -> None:
        """Any number may be requested at once, in any order, of one column or of several."""
        rows = [(*_job(n, rank=-(n // 300)), n % 301) for n in range(900)]
        self.write(row_store, lambda: row_store.insert("jobs", (*JOB, "subqueue"), rows))
        for descending in (False, True):
            for columns in (("subqueue",), ("subqueue", "rank")):
                ordered = sorted((row[-1], row[3], row[0]) for row in rows)
                first = {
                    key[: len(columns)]: key for key in (ordered if descending else ordered[::-1])
                }
                prefixes = [(7_000,), *list(first)[::-1], *list(first)[:5]]
                if len(columns) > 1:
                    prefixes[0] = (7_000, 0)
                first_rows = row_store.heads(
                    "jobs_ready", ["subqueue", "rank", "seq"], prefixes, descending=descending
                )
                assert first_rows == [first.get(prefix) for prefix in prefixes]

    def test_measure_counts_rows_and_bytes(self, row_store: RowStore) -> None:
        """It counts the rows that the same scan returns. None counts as no bytes."""
        rows = [
            (*_job(n, headers="ü" * n, body=b"12345", expires=float(n % 2)), "k" if n % 3 else None)
            for n in range(10)
        ]  # fmt: skip
        columns = (*JOB, "unique_key")
        self.write(row_store, lambda: row_store.insert("jobs", columns, rows))
        assert row_store.measure("jobs") == (10, 0)
        assert row_store.measure("jobs", ["headers"], gt=[4], le=[7]) == (3, 2 * (5 + 6 + 7))
        assert row_store.measure("jobs", ["headers", "body"], [3]) == (1, 6 + 5)
        assert row_store.measure("jobs_expires", ["body"]) == (5, 25)
        assert row_store.measure("jobs", ["unique_key"], lt=[3]) == (3, 2)
        assert row_store.measure("jobs", ["body"], [77]) == (0, 0)
        assert [type(n) for n in row_store.measure("jobs", ["body"])] == [int, int]

    def test_tally_counts_combinations(self, row_store: RowStore) -> None:
        """For one column and for several."""
        rows = [_job(n, queue=n % 2, state=n % 3) for n in range(12)]
        self.write(row_store, lambda: row_store.insert("jobs", JOB, rows))
        assert sorted(row_store.tally("jobs", ["queue"])) == [(0, 6), (1, 6)]
        expected = sorted((q, s, 2) for q in range(2) for s in range(3))
        assert sorted(row_store.tally("jobs", ["queue", "state"])) == expected

    def test_derived_columns(self, row_store: RowStore) -> None:
        """They are read only; what is long is left out."""
        table = period_name("outcomes", 1)
        short, long = b"s" * 4096, b"l" * 4097
        succeeded, cancelled = STATE_CODES[JobState.SUCCEEDED], STATE_CODES[JobState.CANCELLED]
        rows = [
            _outcome("a", state=succeeded, result=short),
            _outcome("b", state=succeeded, result=long),
            _outcome("c", state=succeeded, result=None),
            _outcome("d", state=cancelled, result=long),
        ]  # fmt: skip
        columns = ("id", "short_result", "short_crc", "long")
        self.write(
            row_store,
            lambda: row_store.make_period("outcomes", 1),
            lambda: row_store.insert(table, OUTCOME, rows),
            lambda: row_store.insert("jobs", JOB, [_job(1)]),
            lambda: row_store.insert(
                "events", ["first", "count", "offset", "body"], [(1, 2, 3, b"1234")]
            ),
        )
        assert list(row_store.scan(table, columns)) == [
            ("a", short, 5, 0), ("b", None, None, 4097), ("c", None, 5, 0), ("d", long, 5, 0),
        ]  # fmt: skip
        assert row_store.get(table, ["long"], ["b"]) == [(4097,)]
        assert row_store.get("jobs", ["seq", "no_body"], [1]) == [(1, None)]
        assert list(row_store.scan("events", ["first", "size"])) == [(1, 4)]

    # Keys that the store gives

    def test_serial_keys_ascend(self, row_store: RowStore) -> None:
        """They follow the order of the rows, above existing keys, also after a restart."""
        table, insert = "bulk_operations", row_store.insert
        ids = [f"o{n}" for n in range(90)]
        for start in (0, 30, 60):
            rows = [_operation(name) for name in ids[start : start + 30]]
            self.write(row_store, partial(insert, table, _OPERATION, rows))
        stored = list(row_store.scan(table, ("key", "id")))
        assert [name for _, name in stored] == ids
        row_store.begin()
        row_store.insert(table, _OPERATION, [_operation("undone")])
        row_store.rollback()
        row_store.begin(careful=True)
        again = [_operation("o7"), _operation("later")]
        assert row_store.insert_new(table, _OPERATION, again) == [0]
        row_store.commit()
        keys = [key for (key,) in row_store.scan(table, ["key"])]
        assert keys[:-1] == [key for key, _ in stored]
        assert keys == sorted(set(keys))
        row_store = self.reopen()
        rows = [_operation("restart")]
        self.write(row_store, partial(row_store.insert, table, _OPERATION, rows))
        assert list(row_store.scan(table, ["id"]))[-1] == ("restart",)

    # Single values

    def test_single_values_keep_their_types(self, row_store: RowStore) -> None:
        """Written again they are replaced, also by another type; None removes them."""
        first = {
            "text": "aü\U0001f680", "empty": "", "integer": MIN_INTEGER, "real": 0.1, "whole": 3.0,
            "bytes": b"\x00\xff", "none": b"", "zero": 0,
        }  # fmt: skip
        before = row_store.values()
        self.write(row_store, lambda: row_store.set_values(first))
        stored = row_store.values()
        assert stored == {**before, **first}
        assert [type(stored[name]) for name in first] == list(map(type, first.values()))
        self.write(
            row_store, lambda: row_store.set_values({"text": 5, "empty": None, "not there": None})
        )
        del first["empty"]
        assert row_store.values() == {**before, **first, "text": 5}

    # Tables of periods

    def test_periods_are_tables_of_their_own(self, row_store: RowStore) -> None:
        """Made once, however often that is asked; with an index; dropped with all rows."""
        for number in (12, 3, 100, 3):
            self.write(row_store, partial(row_store.make_period, "outcomes", number))
        assert row_store.periods("outcomes") == [3, 12, 100]
        for number in (3, 12):
            rows = [_outcome(f"{number}-{n}", unique_key="k") for n in range(2)]
            name = period_name("outcomes", number)
            self.write(row_store, partial(row_store.insert, name, OUTCOME, rows))
        index = period_name("outcomes_unique", 12)
        assert sorted(row_store.scan(index, ["id"], ["k"])) == [("12-0",), ("12-1",)]
        table = period_name("outcomes", 12)
        assert sorted(row_store.get(table, ["id"], [("k", 4, 1.0)], by=index)) == [
            ("12-0",), ("12-1",),
        ]  # fmt: skip
        self.write(row_store, lambda: row_store.drop_period("outcomes", 12))
        assert row_store.periods("outcomes") == [3, 100]
        self.write(row_store, lambda: row_store.make_period("outcomes", 12))
        assert row_store.measure(period_name("outcomes", 12)) == (0, 0)
        row_store = self.reopen()
        assert row_store.periods("outcomes") == [3, 12, 100]
        assert row_store.measure(period_name("outcomes", 3)) == (2, 0)

    def test_making_and_dropping_a_period_is_undone(self, row_store: RowStore) -> None:
        """Like everything in a transaction; afterwards it can be made, and used, again."""
        self.write(row_store, lambda: row_store.make_period("outcomes", 1))
        row_store.begin()
        row_store.make_period("outcomes", 2)
        row_store.insert(period_name("outcomes", 2), OUTCOME, [_outcome("a")])
        row_store.drop_period("outcomes", 1)
        assert row_store.periods("outcomes") == [2]
        row_store.rollback()
        assert row_store.periods("outcomes") == [1]
        name = period_name("outcomes", 2)
        self.write(
            row_store,
            lambda: row_store.make_period("outcomes", 2),
            lambda: row_store.insert(name, OUTCOME, [_outcome("b")]),
        )
        assert list(row_store.scan(name, ["id"])) == [("b",)]

    # Transactions

    def test_a_rollback_undoes_all(self, row_store: RowStore) -> None:
        """It undoes any write, whether read or not; without a transaction it does nothing."""
        row_store.rollback()
        self.write(
            row_store,
            lambda: row_store.insert("suspects", _PAIR, [(1, b"1"), (2, b"2"), (3, b"3")]),
            lambda: row_store.set_values({"kept": "yes"}),
        )
        values = row_store.values()
        for reads in (False, True):
            row_store.begin()
            row_store.insert("suspects", _PAIR, [(4, b"4")])
            row_store.put("suspects", _PAIR, [(1, b"new")])
            row_store.update("suspects", ["record"], [(b"new", 2)])
            row_store.delete("suspects", [3])
            row_store.set_values({"kept": None, "other": 1})
            if reads:
                assert row_store.measure("suspects") == (3, 0)
            row_store.rollback()
            row_store.rollback()
            assert list(row_store.scan("suspects", _PAIR)) == [(1, b"1"), (2, b"2"), (3, b"3")]
            assert row_store.values() == values

    def test_what_was_committed_is_there_after_a_restart(self, row_store: RowStore) -> None:
        """What was not committed is not."""
        self.write(row_store, lambda: row_store.insert("jobs", JOB, [_job(1)]))
        row_store.begin()
        row_store.insert("jobs", JOB, [_job(2)])
        assert row_store.measure("jobs") == (2, 0)
        row_store = self.reopen()
        assert list(row_store.scan("jobs", JOB)) == [_job(1)]

    # Anything, against a model

    @pytest.mark.parametrize("seed", range(12))
    def test_rows_are_those_of_a_model(self, row_store: RowStore, seed: int) -> None:
        """Random transactions on several tables, read in every way in between."""
        random = Random(seed)
        model = Model(random)
        self.write(row_store, lambda: row_store.make_period("outcomes", 7))
        for _ in range(25):
            kept = model.copy()
            row_store.begin(careful=True)
            for _ in range(random.randrange(6)):
                model.change(row_store)
                if random.random() < 0.5:
                    model.compare(row_store)
            if random.random() < 0.7:
                row_store.commit()
            else:
                row_store.rollback()
                model.tables = kept
            model.compare(row_store)
