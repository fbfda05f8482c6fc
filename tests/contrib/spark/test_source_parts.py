"""Parts of the data source that need no Spark: options, ids, which events are read, the pace."""

from __future__ import annotations

import re
import time
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventmq.errors import BrokerUnavailable, SettingsError, StoreError
from eventmq.events import SCHEMA_VERSION
from eventmq.job import id_time
from eventmq_contrib.journal.catalog import JournalFile, sort_key
from eventmq_contrib.spark.session import map_error
from eventmq_contrib.spark.source import stream as stream_module
from eventmq_contrib.spark.source.files import (
    Slice,
    bundles,
    latest,
    plan,
    read_slice,
    sealed_files,
)
from eventmq_contrib.spark.source.ids import derived_id, derived_ids, unix_ms
from eventmq_contrib.spark.source.options import (
    Connection,
    ReadOptions,
    StreamOptions,
    WriteOptions,
    connected,
    parse_timestamp,
    read_options,
)
from eventmq_contrib.spark.source.writer import Shape, paced

if TYPE_CHECKING:
    from pathlib import Path

# Options


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        (ReadOptions, {"tabel": "jobs"}, "takes no option 'tabel'; did you mean 'table'"),
        (ReadOptions, {"table": "job"}, "option 'table' cannot be 'job'; allowed is: events, jobs"),
        (WriteOptions, {"idcolumn": "a"}, "did you mean 'idColumns'"),
        (WriteOptions, {"idColumns": "a,a"}, "columns, each once"),
        (WriteOptions, {"rate": "-1"}, "above 0"),
        (WriteOptions, {"rate": "fast"}, "option 'rate' cannot be 'fast'"),
        (WriteOptions, {"maxInFlight": "0"}, "a whole number from 1"),
        (WriteOptions, {"ignoreResult": "perhaps"}, "true or false"),
        (StreamOptions, {"startingOffset": "first"}, "earliest or latest"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_right(
    kind: type[Connection], given: dict[str, str], words: str
) -> None:
    with pytest.raises(SettingsError, match=re.escape(words)):
        read_options(kind, given, subject="it")


@pytest.mark.parametrize("name", ["key", "brokerKey"])
def test_key_material_is_refused_and_not_repeated(name: str) -> None:
    """Options show in plans; a file's path does not matter there."""
    secret = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
    with pytest.raises(SettingsError, match="the path of a key file") as caught:
        read_options(Connection, {name: secret}, subject="it")
    assert secret not in str(caught.value)
    assert caught.value.__cause__ is None
    read_options(Connection, {name: "/etc/eventmq/client.key"}, subject="it")


def test_names_of_options_have_no_case_and_a_path_is_a_journal() -> None:
    """As Spark hands them over."""
    assert read_options(ReadOptions, {"PATH": "j"}, subject="it").journal == "j"
    options = read_options(WriteOptions, {"argcolumns": "a, b", "RATE": "5"}, subject="it")
    assert (options.arguments, options.rate) == (("a", "b"), 5.0)
    assert WriteOptions(queue="q", run_limit=3.0).call() == {"queue": "q", "timeout": 3.0}


def test_a_broker_inside_one_process_is_refused() -> None:
    options = Connection(broker="memory://")
    with pytest.raises(SettingsError, match="exists in one process"), connected(options):
        pass


# Which column is what


@pytest.mark.parametrize(
    ("options", "columns", "words"),
    [
        (WriteOptions(), ["job_id"], "no task is named"),
        (WriteOptions(task="t"), ["x"], "no column has the ids of jobs"),
        (WriteOptions(task="t", ids=("x",)), ["x", "job_id"], "allowed is one of them"),
        (WriteOptions(task="t", ids=("y",)), ["x"], "option 'idColumns' needs a column 'y'"),
        (WriteOptions(task="t", ids=("x",), arguments=("xs",)), ["x"], "did you mean 'x'"),
        (WriteOptions(task="t", ids=("x",), id_time="at"), ["x"], "option 'idTime' needs a column"),
        (WriteOptions(action="replay"), ["job_id"], "a replay needs a column 'attempt'"),
    ],
)
def test_columns_that_do_not_fit_are_named_before_anything_is_sent(
    options: WriteOptions, columns: list[str], words: str
) -> None:
    with pytest.raises(SettingsError, match=re.escape(words)):
        Shape.of(options, columns)


def test_columns_are_keyword_arguments_by_default() -> None:
    assert Shape.of(WriteOptions(task="t"), ["a", "job_id", "b"]) == Shape(
        (), ("a", "b"), job_id=True
    )
    some = WriteOptions(task="t", arguments=("b",), ids=("a",), id_time="2026-01-31")
    assert Shape.of(some, ["a", "b"]) == Shape(("b",), (), job_id=False)


# Ids


def test_ids_of_rows_are_the_same_for_the_same_keys_and_no_others() -> None:
    """Whatever the types: a text is not a number, and 1 is not 1.0."""
    times = [datetime(2026, 1, 31, tzinfo=timezone.utc), datetime(2026, 1, 31)]  # noqa: DTZ001
    values = [
        1, "1", 1.0, True, "True", b"1", Decimal(1), Decimal("1.0"), date(2026, 1, 31), *times,
        [1], ["1"], {"a": 1}, {"a": "1"}, "(1,)", "", 2,
    ]  # fmt: skip
    ids = list(derived_ids("t", [values]))
    assert ids == list(derived_ids("t", [values]))
    assert len({*ids, *derived_ids("u", [values])}) == 2 * len(values)
    assert all(re.fullmatch(r"[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}", i) for i in ids)
    assert {id_time(i) for i in ids} == {946_684_800.0}


def test_an_id_does_not_depend_on_the_time_zone_of_the_session() -> None:
    """The same instant is the same key."""
    there = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
    here = there.astimezone(timezone(timedelta(hours=2)))
    assert len(set(derived_ids("t", [[there, here]]))) == 1


def test_a_row_without_a_key_has_no_id() -> None:
    with pytest.raises(SettingsError, match="has no value in a column of idColumns"):
        list(derived_ids("t", [[1, 2], ["a", None]]))


def test_ids_begin_with_the_given_time() -> None:
    at = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
    assert unix_ms(at) == unix_ms(at.replace(tzinfo=None)) == 1_769_860_800_000
    assert unix_ms(date(2026, 1, 31)) == 1_769_817_600_000
    assert id_time(derived_id("x", unix_ms(at))) == at.timestamp()
    assert (
        parse_timestamp("2026-01-31T12:00Z")
        == parse_timestamp("2026-01-31T13:00+01:00")
        == at.timestamp()
    )
    assert parse_timestamp("created_at") is None
    for wrong in (None, "soon", datetime(1969, 1, 1, tzinfo=timezone.utc)):
        with pytest.raises(SettingsError, match="the column of idTime has"):
            unix_ms(wrong)


# Which events


@st.composite
def folders(draw: st.DrawFn) -> list[JournalFile]:
    """Files of two brokers, whose numbers may overlap, and may leave some out."""
    files = []
    for broker in "ab":
        first = 1
        for _ in range(draw(st.integers(0, 6))):
            last = first + draw(st.integers(0, 20))
            files.append(JournalFile(broker, first, last, f"{broker}{first}-{last}", ""))
            first = max(1, last + draw(st.integers(-10, 5)))
    return sorted(files, key=sort_key)


def numbers(files: list[JournalFile]) -> set[tuple[str, int]]:
    return {(file.broker, n) for file in files for n in range(file.first, file.last + 1)}


@given(folders(), st.integers(1, 30))
def test_each_event_is_read_once_however_batches_are_cut(
    files: list[JournalFile], limit: int
) -> None:
    """Also where files overlap; a batch has no more than it may, and the last one the rest."""
    read: list[tuple[str, int]] = []
    offset: dict[str, int] = {}
    while (end := latest(files, offset, limit)) != offset:
        batch = [
            (part.broker, n)
            for part in plan(files, offset, end)
            for n in range(part.first, part.last + 1)
        ]
        assert 0 < len(batch) <= limit
        read += batch
        offset = end
    assert sorted(read) == sorted(numbers(files))
    assert offset == latest(files, {})
    whole = [(p.broker, n) for p in plan(files, {}) for n in range(p.first, p.last + 1)]
    assert sorted(whole) == sorted(read)


def test_small_files_are_read_together() -> None:
    """A task of Spark costs more than a small file."""
    ends = [*range(1000, 100_001, 1000), 300_000]
    slices = [Slice("", last - 999, last, "b") for last in ends[:-1]]
    slices.append(Slice("", 100_001, 300_000, "b"))
    groups = bundles(slices)
    assert [len(group) for group in groups] == [65, 35, 1]
    assert [part for group in groups for part in group] == slices


def test_no_broker_gets_more_than_an_hour_ahead_of_another() -> None:
    """Otherwise a watermark would leave out events of the other."""
    files = [
        JournalFile(broker, 1 + 10 * hour, 10 + 10 * hour, broker, f"hour={hour:02}")
        for broker in "ab"
        for hour in range(3)
    ]
    ends: list[dict[str, int]] = [{}]
    while (end := latest(files, ends[-1], 10)) != ends[-1]:
        ends.append(end)
    assert ends[1:4] == [{"a": 10}, {"a": 10, "b": 10}, {"a": 20, "b": 10}]
    assert ends[-1] == {"a": 30, "b": 30}


def test_what_is_behind_missing_numbers_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are copied in any order. Events that are missing at the first scan stay missing."""
    now = 0.0
    monkeypatch.setattr(stream_module.time, "monotonic", lambda: now)
    hour = tmp_path / "date=2026-11-21" / "hour=08"
    hour.mkdir(parents=True)

    def copied(*names: str) -> dict[str, int]:
        for name in names:
            (hour / f"{name}.parquet").touch()
        return stream.latestOffset({"b": 10}, None)  # type: ignore[arg-type]

    stream = stream_module.JournalStream(StreamOptions(journal=str(tmp_path)), None)  # type: ignore[arg-type]
    assert copied("a-5-9", "a-20-29", "b-1-10", "b-15-20") == {"a": 29, "b": 20}
    now = 7.0
    assert copied("a-40-49", "b-31-40", "c-3-4") == {"a": 29, "b": 20, "c": 4}
    now = stream_module.GAP_TIMEOUT
    assert copied("b-21-30", "c-9-9") == {"a": 29, "b": 40, "c": 4}
    now += 7.0
    assert copied() == {"a": 49, "b": 40, "c": 4}


def test_a_torn_file_is_named(tmp_path: Path) -> None:
    hour = tmp_path / "date=2026-11-21" / "hour=08"
    hour.mkdir(parents=True)
    for name in ("b-1-2.parquet", "_b-3-4.parquet", "notes.txt"):
        (hour / name).write_bytes(b"PAR1")
    [file] = sealed_files(str(tmp_path))
    path = file.path
    assert file[:3] == ("b", 1, 2)
    schema = pa.schema([("seq", pa.int64()), ("kind", pa.string())])
    [part] = plan([file], {})
    with pytest.raises(StoreError, match=r"b-1-2\.parquet is torn, or no file of a journal"):
        list(read_slice(part, schema))
    pq.write_table(pa.table({"x": [1]}), path)
    with pytest.raises(StoreError, match="no file of a journal"):
        list(read_slice(part, schema))
    newer = pa.table({"seq": [1], "kind": ["x"]}).replace_schema_metadata(
        {"eventmq.schema_version": str(SCHEMA_VERSION + 1)}
    )
    pq.write_table(newer, path)
    with pytest.raises(StoreError, match=r"b-1-2\.parquet is of a newer EventMQ"):
        list(read_slice(part, schema))
    with pytest.raises(StoreError, match="there is no journal in"):
        sealed_files(str(tmp_path / "none"))


def test_columns_that_an_older_version_did_not_write_are_null(tmp_path: Path) -> None:
    """And only the numbers of the slice are read, of the kinds that are wanted."""
    path = tmp_path / "b-1-4.parquet"
    pq.write_table(pa.table({"seq": [1, 2, 3, 4], "kind": ["x", "failed", "failed", "y"]}), path)
    [part] = plan([JournalFile("b", 1, 4, str(path), "")], {"b": 2})
    schema = pa.schema([("seq", pa.int64()), ("queue", pa.string())])
    [batch] = read_slice(part, schema, ("failed",))
    assert batch.to_pylist() == [{"seq": 3, "queue": None}]


# The pace


def test_rows_go_out_no_faster_than_the_rate() -> None:
    batch: Any = pa.record_batch({"x": list(range(30))})
    begin = time.monotonic()
    sizes = [part.num_rows for part in paced([batch, batch.slice(0, 5)], 100.0, 4000)]
    took = time.monotonic() - begin
    assert sizes == [25, 5, 5]
    # The last part goes when the thirty before it are due.
    assert took >= 0.29


def test_without_a_rate_parts_are_of_what_may_be_in_flight() -> None:
    batch: Any = pa.record_batch({"x": list(range(30))})
    assert [part.num_rows for part in paced([batch], 0.0, 20)] == [20, 10]


# Causes of an error of Spark


def test_the_cause_of_an_error_of_spark_is_found_in_its_text() -> None:
    """The last one that is known: that is what ended the task."""
    text = """[STREAM_FAILED] Query terminated with exception: Traceback
      File "files.py", line 135, in read_slice
    eventmq_contrib.spark.journal.JournalError: j is torn: move it away
    During handling of the above exception, another exception occurred:
    eventmq.errors.BrokerUnavailable: no broker could be reached in time
    JVM stacktrace: ..."""
    error = map_error(RuntimeError(text))
    assert isinstance(error, BrokerUnavailable)
    assert str(error) == "no broker could be reached in time"
    assert map_error(RuntimeError("java.lang.OutOfMemoryError: heap")) is None
