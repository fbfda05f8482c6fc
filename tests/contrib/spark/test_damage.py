"""The audit as a proof: whatever is done to the files of a journal is found and named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException

from eventmq.errors import StoreError
from eventmq.events import FileName
from eventmq_contrib.atomic import write_file
from eventmq_contrib.journal import seals
from eventmq_contrib.journal.catalog import Catalog, FolderLocation, JournalError, hour_start
from eventmq_contrib.journal.compaction import Compaction
from eventmq_contrib.journal.folder import JournalFolder
from eventmq_contrib.journal.inspection import inspect
from eventmq_contrib.journal.retention import forget
from eventmq_contrib.journal.seals import Seal, SealLog, SealRecord
from eventmq_contrib.spark import EventMQDataSource, read_journal
from eventmq_contrib.spark.analyses.audit import audit_journal
from eventmq_contrib.spark.command import spark as group
from eventmq_contrib.spark.source.files import sealed_files
from tests.support.broker_harness import Broker, row
from tests.support.journal_harness import drained

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from eventmq_contrib.journal.inspection import Inspection

    #: Damages a journal; returns the text that the audit must contain.
    Plant = Callable[[Path], str]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal of a broker's events: six files over two hours, 46 events."""
    folder = tmp_path_factory.mktemp("sound")
    broker = Broker(folder / "data")
    try:
        for hour in range(2):
            worker = b"worker%d" % hour
            broker.worker(worker)
            for _ in range(11 + hour):
                broker.submit()
                broker.answer(worker, broker.dispatched[-1], [row(started=broker.clock.now())])
                broker.ready(worker, 1, len(broker.dispatched))
                broker.clock.time += 1.0
            drained(broker, folder / "journal", rows=10)
            broker.clock.time += 3600.0
    finally:
        broker.close()
    assert [file[1:3] for file in files_of(folder / "journal")] == [
        (1, 10), (11, 20), (21, 22), (23, 32), (33, 42), (43, 46),
    ]  # fmt: skip
    return folder / "journal"


@pytest.fixture
def journal(sound: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(sound, tmp_path / "journal")
    return tmp_path / "journal"


def files_of(journal: Path) -> list[Any]:
    return Catalog.read(FolderLocation(journal)).current()


def path_of(journal: Path, first: int) -> Path:
    """Return the file with a first number."""
    [path] = [Path(file.path) for file in files_of(journal) if file.first == first]
    return path


def inspection_of(journal: Path) -> Inspection:
    return inspect(Catalog.read(FolderLocation(journal), sealed=True))


def command(journal: Path | str, *more: str) -> tuple[int, dict[str, Any]]:
    given = ["audit", "--journal", str(journal), "--json", *more]
    done = CliRunner().invoke(group, given, standalone_mode=False)
    assert done.exception is None, done.output
    return done.return_value, json.loads(done.stdout)


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Rewrite a file with other rows, as an attacker would: its checksums are right."""
    table = change(pq.ParquetFile(path).read())
    pq.write_table(table, path, compression="zstd", write_page_checksum=True)


def replaced(table: pa.Table, name: str, values: Any) -> pa.Table:
    column = table.column_names.index(name)
    return table.set_column(column, table.schema.field(name), pa.array(values, table[name].type))


def edited(name: str, row: int, value: Any) -> Callable[[pa.Table], pa.Table]:
    """Return what puts another value into one row."""

    def edit(table: pa.Table) -> pa.Table:
        values = table[name].to_pylist()
        values[row] = value
        return replaced(table, name, values)

    return edit


# Each of these is one way to damage a journal


def first_file_deleted(journal: Path) -> str:
    path_of(journal, 1).unlink()
    return "the events 1 to 10 of the broker"


def first_files_deleted(journal: Path) -> str:
    for first in (1, 11, 21):
        path_of(journal, first).unlink()
    return "the events 1 to 22 of the broker"


def last_file_deleted(journal: Path) -> str:
    path_of(journal, 43).unlink()
    return "the events 43 to 46 of the broker"


def last_files_deleted(journal: Path) -> str:
    for first in (33, 43):
        path_of(journal, first).unlink()
    return "-33-42.parquet was sealed and is gone"


def middle_file_deleted(journal: Path) -> str:
    path_of(journal, 11).unlink()
    return "the events 11 to 20 of the broker"


def all_files_deleted(journal: Path) -> str:
    for file in files_of(journal):
        Path(file.path).unlink()
    return "the events 1 to 46 of the broker"


def last_row_cut(journal: Path) -> str:
    rewrite(path_of(journal, 43), lambda table: table[:-1])
    return "-43-46.parquet has 3 events, not 4 as its name says"


def first_row_cut(journal: Path) -> str:
    rewrite(path_of(journal, 1), lambda table: table[1:])
    return "-1-10.parquet has 9 events, not 10 as its name says"


def row_doubled(journal: Path) -> str:
    rewrite(path_of(journal, 11), lambda t: pa.concat_tables([t[:5], t[4:5], t[6:]]))
    return "-11-20.parquet was altered"


def numbers_shifted(journal: Path) -> str:
    rewrite(
        path_of(journal, 43), lambda t: replaced(t, "seq", pc.add(t["seq"], 5).combine_chunks())
    )
    return "-43-46.parquet has the events 48 to 51, not those of its name"


def range_renamed(journal: Path) -> str:
    path = path_of(journal, 43)
    path.rename(path.with_name(path.name.replace("-43-46", "-47-50")))
    return "-47-50.parquet has the events 43 to 46, not those of its name"


def name_widened(journal: Path) -> str:
    path = path_of(journal, 43)
    path.rename(path.with_name(path.name.replace("-43-46", "-43-47")))
    return "-43-47.parquet has 4 events, not 5 as its name says"


def other_content(journal: Path) -> str:
    rewrite(path_of(journal, 11), edited("run_us", 3, 77))
    return "-11-20.parquet was altered"


def end_of_another_job(journal: Path) -> str:
    rewrite(path_of(journal, 11), edited("job_id", 1, "nobody"))
    return "-11-20.parquet was altered"


def unknown_kind(journal: Path) -> str:
    rewrite(path_of(journal, 11), edited("kind", 1, "vanished"))
    return "have the unknown kind 'vanished'"


def second_end(journal: Path) -> str:
    def end(table: pa.Table) -> pa.Table:
        row = table.to_pylist()[1]
        return pa.concat_tables([
            table[:2], pa.Table.from_pylist([{**row, "seq": row["seq"] + 1}], table.schema),
            table[3:],
        ])  # fmt: skip

    rewrite(path_of(journal, 11), end)
    return "-11-20.parquet was altered"


def end_before_beginning(journal: Path) -> str:
    def swap(table: pa.Table) -> pa.Table:
        kinds, ids = table["kind"].to_pylist(), table["job_id"].to_pylist()
        kinds[:2], ids[:2] = kinds[1::-1], ids[1::-1]
        return replaced(replaced(table, "kind", kinds), "job_id", ids)

    rewrite(path_of(journal, 11), swap)
    return "-11-20.parquet was altered"


def byte_flipped(journal: Path) -> str:
    byte_flipped_in(path_of(journal, 23))
    return "-23-32.parquet: a page is damaged"


def footer_flipped(journal: Path) -> str:
    """In the name of a column that may be missing: the rest can be read as before."""
    path = path_of(journal, 23)
    data = path.read_bytes()
    offset = data.rindex(b"\x05queue") if b"\x05queue" in data else data.rindex(b"queue")
    path.write_bytes(data[:offset] + data[offset:].replace(b"queue", b"quoue", 1))
    return "-23-32.parquet was altered"


def truncated(journal: Path) -> str:
    path = path_of(journal, 23)
    path.write_bytes(path.read_bytes()[:-9])
    return "-23-32.parquet is torn"


def emptied(journal: Path) -> str:
    path_of(journal, 23).write_bytes(b"")
    return "-23-32.parquet is torn"


def without_rows(journal: Path) -> str:
    rewrite(path_of(journal, 23), lambda table: table[:0])
    return "-23-32.parquet is empty"


def of_another_hour(journal: Path) -> str:
    path = path_of(journal, 23)
    hour = path.parent.with_name("hour=03")
    hour.mkdir()
    path.rename(hour / path.name)
    return "-23-32.parquet has events of date="


def times_moved(journal: Path) -> str:
    later = 7_200_000_000
    rewrite(
        path_of(journal, 23),
        lambda t: replaced(t, "ts_us", pc.add(t["ts_us"], later).combine_chunks()),
    )
    return "not of its folder's hour"


def of_another_broker(journal: Path) -> str:
    path = path_of(journal, 43)
    path.rename(path.with_name("0123456789abcdef-43-46.parquet"))
    return "not of that of its name"


def another_broker_inside(journal: Path) -> str:
    rewrite(path_of(journal, 23), lambda t: replaced(t, "broker_id", ["other"] * 10))
    return "-23-32.parquet has events of the broker other"


def copied_under_another_name(journal: Path) -> str:
    path = path_of(journal, 43)
    shutil.copy(path, path.with_name(path.name.replace("-43-46", "-47-50")))
    return "-47-50.parquet has the events 43 to 46, not those of its name"


def copied_to_another_hour(journal: Path) -> str:
    path = path_of(journal, 1)
    hour = path.parent.with_name("hour=03")
    hour.mkdir()
    shutil.copy(path, hour / path.name)
    return f"{hour / path.name} is not in the seal log"


def overlap_with_other_content(journal: Path) -> str:
    path = path_of(journal, 11)
    other = path.with_name(path.name.replace("-11-20", "-12-14"))
    shutil.copy(path, other)
    rewrite(other, lambda table: edited("job_id", 0, "other")(table[1:4]))
    return f"the event 12 of the broker {FileName.parse(path.name).broker} is not the same in"  # type: ignore[union-attr]


def newer_version(journal: Path) -> str:
    metadata = {"eventmq.schema_version": "99"}
    rewrite(path_of(journal, 23), lambda table: table.replace_schema_metadata(metadata))
    return "-23-32.parquet is of a newer EventMQ"


def foreign_file(journal: Path) -> str:
    path = path_of(journal, 23)
    pq.write_table(pa.table({"a": [1]}), path.with_name("part-0000.parquet"))
    return "part-0000.parquet is not a file of a journal, by its name"


def foreign_columns(journal: Path) -> str:
    pq.write_table(pa.table({"a": [1]}), path_of(journal, 23))
    return "-23-32.parquet has no events, it lacks the column broker_id"


def log_line_removed(journal: Path) -> str:
    [log] = (journal / "_seals").glob("*.jsonl")
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:2] + lines[3:]))
    return "line 3 of the seal log"


def log_edited(journal: Path) -> str:
    [log] = (journal / "_seals").glob("*.jsonl")
    log.write_text(log.read_text().replace('"last": 46', '"last": 45'))
    return "of the seal log"


PLANTS: list[Plant] = [
    first_file_deleted, first_files_deleted, last_file_deleted, last_files_deleted,
    middle_file_deleted, all_files_deleted, last_row_cut, first_row_cut, row_doubled,
    numbers_shifted, range_renamed, name_widened, other_content, end_of_another_job, unknown_kind,
    second_end, end_before_beginning, byte_flipped, footer_flipped, truncated, emptied,
    without_rows, of_another_hour, times_moved, of_another_broker, another_broker_inside,
    copied_under_another_name, copied_to_another_hour, overlap_with_other_content, newer_version,
    foreign_file, foreign_columns, log_line_removed, log_edited,
]  # fmt: skip

#: Damages for which the whole audit is run.
AUDITED: list[Plant] = [
    first_file_deleted, last_file_deleted, all_files_deleted, last_row_cut, numbers_shifted,
    end_of_another_job, unknown_kind, byte_flipped, footer_flipped, overlap_with_other_content,
    newer_version,
]  # fmt: skip

#: Damage that is found in the events, by Spark.
BY_EVENTS: list[Plant] = [unknown_kind, overlap_with_other_content]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_the_files_show_each_damage(journal: Path, plant: Plant) -> None:
    """Without Spark: by names, footers, checksums and the seal log."""
    expected = plant(journal)
    result = inspection_of(journal)
    ranges = [f"the events {a} to {b} of the broker {broker}" for broker, a, b in result.missing]
    assert result.damage
    if plant not in BY_EVENTS:
        assert any(expected in each for each in (*result.damage, *ranges)), (
            *result.damage,
            *ranges,
        )


@pytest.mark.parametrize("plant", AUDITED, ids=lambda plant: plant.__name__)
def test_the_audit_names_each_damage(spark: SparkSession, journal: Path, plant: Plant) -> None:
    expected = plant(journal)
    code, result = command(journal)
    assert code == 1
    assert any(expected in each for each in result["damage"]), result["damage"]
    assert result["damaged"] >= len(result["damage"]) >= 1


def test_a_whole_journal_is_clean_and_that_is_proven(spark: SparkSession, journal: Path) -> None:
    code, result = command(journal)
    assert (code, result["proven"], result["damage"], result["unproven"]) == (0, True, [], [])
    assert (result["jobs"], result["succeeded"]) == (23, 23)


def test_an_end_that_no_broker_was_asked_for_is_not_called_clean(
    spark: SparkSession, journal: Path
) -> None:
    """The last file and the last line of the seal log are cut: only the broker knows of them."""
    [log] = (journal / "_seals").glob("*.jsonl")
    broker = log.stem
    path_of(journal, 43).unlink()
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))
    expected = (
        f"not anchored: the end of the events of the broker {broker}, number 42, was not compared "
        "with the broker's own: eventmq spark audit --broker tcp://HOST:PORT does that"
    )
    code, result = command(journal)
    assert (code, result["proven"], result["anchored"]) == (0, True, False)
    assert result["conclusion"] == "complete as far as its own seals reach; not anchored"
    assert result["unanchored"] == [expected]
    given = ["audit", "--journal", str(journal)]
    shown = CliRunner().invoke(group, given, standalone_mode=False).stdout
    assert expected in shown
    assert "clean" not in shown
    blind = audit_journal(spark, journal)
    assert (blind.complete, blind.clean) == (True, False)
    anchored = audit_journal(spark, journal, sealed={broker: 46})
    assert (anchored.anchored, anchored.conclusion, anchored.missing_events) == (
        True,
        "not sound",
        4,
    )
    other = audit_journal(spark, journal, sealed={"another": 1})
    assert (other.anchored, len(other.unanchored)) == (False, 1)


def test_a_whole_journal_whose_broker_was_asked_is_clean(
    spark: SparkSession, journal: Path
) -> None:
    result = audit_journal(spark, journal, sealed={files_of(journal)[0].broker: 46})
    assert (result.clean, result.conclusion, result.unanchored) == (True, "clean", ())


# Uncertainty, and harmless differences


def unproven(journal: Path) -> list[str]:
    result = inspection_of(journal)
    assert (result.damage, result.missing) == ([], [])
    return result.unproven


def test_without_a_seal_log_nothing_is_proven(spark: SparkSession, journal: Path) -> None:
    """As of a journal of before: nothing is found, and that is no proof."""
    shutil.rmtree(journal / "_seals")
    code, result = command(journal)
    assert (code, result["proven"], result["damaged"]) == (1, False, 0)
    [reason] = result["unproven"]
    assert reason.startswith("there is no seal log of the broker")


def reopened(journal: Path) -> None:
    """Start a journal on the folder, and stop it."""
    broker = files_of(journal)[0].broker
    folder = JournalFolder(journal)
    folder.open()
    folder.checkpoint(broker)
    folder.close()


def test_files_from_before_the_log_stay_unproven_until_they_are_forgotten(journal: Path) -> None:
    """A journal that continues does not make them proven."""
    shutil.rmtree(journal / "_seals")
    reopened(journal)
    [reason] = unproven(journal)
    assert reason.endswith("up to 46 were sealed while there was no seal log")
    hour = path_of(journal, 23).parent
    assert forget(journal, before=hour_start(files_of(journal)[-1]))[0] == 3
    assert hour.is_dir()
    assert unproven(journal) == [reason]


def test_the_file_of_a_killed_journal_is_inspected_without_the_log(journal: Path) -> None:
    """One may be newer than the log, whole or with a line that was not finished; not two."""
    [log] = (journal / "_seals").glob("*.jsonl")
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:-1]) + lines[-1][:20])
    assert unproven(journal) == []
    reopened(journal)
    assert log.read_text() == "".join(lines)
    log.write_text("".join(lines[:-1]))
    path = path_of(journal, 43)
    whole = path.read_bytes()
    byte_flipped_in(path)
    assert "a page is damaged" in inspection_of(journal).damage[0]
    path.write_bytes(whole)
    log.write_text("".join(lines[:-2]))
    [reason] = unproven(journal)
    assert "2 files of the broker" in reason
    assert "copy the log again, or start the journal once" in reason
    reopened(journal)
    assert "up to 46 were sealed while" in unproven(journal)[0]


def test_a_journal_whose_newest_file_is_missing_continues_and_logs_it(
    journal: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Events that it reads again are logged again; those that it does not get stay missing."""
    path = path_of(journal, 43)
    whole = path.read_bytes()
    path.unlink()
    reopened(journal)
    assert "files with the events 43 to 46" in caplog.text
    result = inspection_of(journal)
    assert result.damage == []
    assert [each[1:] for each in result.missing] == [(43, 46)]
    path.write_bytes(whole)
    reopened(journal)
    assert unproven(journal) == []
    assert list(inspection_of(journal).bounds.values()) == [(1, 46)]


def test_a_compacted_journal_is_proven_without_its_small_files(
    spark: SparkSession, journal: Path
) -> None:
    """And damage to the large ones is found."""
    assert Compaction(journal).run(2e9) == (6, 2)
    for first in (1, 11, 21, 23, 33):
        for path in journal.rglob(f"*-{first}-*.parquet"):
            path.unlink()
    code, result = command(journal)
    assert (code, result["jobs"], result["damage"]) == (0, 23, [])
    large = path_of(journal, 1)
    assert large.parts[-4] == "compacted"
    data = large.read_bytes()
    byte_flipped_in(large)
    assert "a page is damaged" in inspection_of(journal).damage[0]
    large.write_bytes(data)
    rewrite(large, edited("run_us", 3, 77))
    assert "was altered" in inspection_of(journal).damage[0]
    large.unlink()
    later_result = inspection_of(journal)
    assert [each[1:] for each in later_result.missing] == [(1, 22)]
    assert len(later_result.damage) == 3


def test_a_journal_that_was_put_back_with_its_log_is_shown_by_the_broker(journal: Path) -> None:
    """It agrees with itself; the broker has a later number."""
    [log] = (journal / "_seals").glob("*.jsonl")
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))
    last_file_deleted(journal)
    assert unproven(journal) == []
    catalog = Catalog.read(FolderLocation(journal), sealed=True)
    [broker] = catalog.logs
    inspection = inspect(catalog, {broker: 46, "other": 3})
    assert inspection.missing == [*sorted([(broker, 43, 46), ("other", 1, 3)])]


def test_a_journal_at_work_is_no_damage(journal: Path, tmp_path: Path) -> None:
    """Files are sealed after the log was read first, before they are listed, and thereafter."""
    later = tmp_path / "later"
    shutil.copytree(journal, later)
    [log] = (journal / "_seals").glob("*.jsonl")
    lines = log.read_text().splitlines(keepends=True)
    names = [path_of(journal, first) for first in (23, 33, 43)]
    for path in names:
        path.unlink()
    log.write_text("".join(lines[:-3]))

    def seal(number: int, *, logged: bool = True) -> None:
        path = names[number]
        shutil.copy(later / path.relative_to(journal), path)
        if logged:
            log.write_text("".join(lines[: number - 2 or None]))

    class AtWork(FolderLocation):
        def paths(self) -> list[str]:
            seal(0)
            seal(1, logged=False)
            paths = super().paths()
            seal(1)
            seal(2)
            return paths

    names[0].parent.mkdir(exist_ok=True)
    inspection = inspect(Catalog.read(AtWork(journal), sealed=True))
    assert (inspection.damage, inspection.unproven, inspection.missing) == ([], [], [])
    assert [file.last for file in inspection.sound][-1] == 42


def test_where_a_log_begins_and_ends_is_known_without_reading_all_of_it(journal: Path) -> None:
    """A stream checks each second."""
    [log] = (journal / "_seals").glob("*.jsonl")
    data = log.read_bytes()
    for some in (b"", data[:50], data[:300], data[:-30], data):
        whole, brief = SealRecord.parse("b", some), SealRecord.brief("b", some)
        assert (brief.head, brief.last) == (whole.head, whole.last)
    path_of(journal, 43).unlink()
    reopened(journal)
    brief = SealRecord.brief("b", log.read_bytes())
    assert (brief.head, brief.last, brief.end) == (1, 42, 46)


def test_what_was_forgotten_is_not_missing(journal: Path) -> None:
    last = hour_start(files_of(journal)[-1])
    [(_, begin)] = forget(journal, before=last)[1].items()
    assert (begin, unproven(journal)) == (23, [])
    path_of(journal, 23).unlink()
    assert "the events 23 to 32" in " ".join(
        f"the events {a} to {b}" for _, a, b in inspection_of(journal).missing
    )


# The seal log without the lines of forgotten files


def trim(journal: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Forget the first hour, and let the journal leave its lines out of the log; return that."""
    forget(journal, before=hour_start(files_of(journal)[-1]), trim_seals=True)
    monkeypatch.setattr(seals, "TRIM_BYTES", 0)
    reopened(journal)
    [log] = (journal / "_seals").glob("*.jsonl")
    return log


def lines_of(log: Path) -> list[bytes]:
    return log.read_bytes().splitlines(keepends=True)


def test_a_log_without_the_lines_of_forgotten_files_proves_the_others(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The audit of these is the same as before."""
    [log] = (journal / "_seals").glob("*.jsonl")
    before, whole = lines_of(log), SealRecord.parse("b", log.read_bytes())
    trim(journal, monkeypatch)
    after = lines_of(log)
    assert (len(before), len(after)) == (7, 5)
    assert after[2:] == before[4:]
    record, brief = (read("b", log.read_bytes()) for read in (SealRecord.parse, SealRecord.brief))
    assert (record.trimmed, record.begin, record.end, record.last) == (22, 1, 46, 46)
    assert (brief.head, brief.last, brief.end) == (record.head, record.last, record.end)
    assert record.valid == {numbers for numbers in whole.valid if numbers[0] >= 23}
    result = inspection_of(journal)
    assert (result.damage, result.missing, unproven(journal)) == ([], [], [])
    [(_, bounds)] = result.bounds.items()
    assert bounds == (23, 46)


def test_a_journal_goes_on_with_a_log_that_was_trimmed_and_trims_it_again(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time that more was forgotten, and while it is at work."""
    log = trim(journal, monkeypatch)
    broker = files_of(journal)[0].broker
    writer = SealLog(journal, broker)
    writer.open([(FileName(*f[:3]), Path(f.path)) for f in files_of(journal)])
    trimmed = log.read_bytes()
    seal = Seal(47, 50, "date=2030-01-01/hour=00", 9, "0" * 64)
    writer.append(seal)
    assert log.read_bytes().startswith(trimmed), "nothing more was forgotten"
    path_of(journal, 23).unlink()
    forget(journal)
    writer.append(seal._replace(first=51, last=60))
    assert log.read_bytes().startswith(trimmed), "that was not said"
    forget(journal, trim_seals=True)
    writer.append(seal._replace(first=61, last=70))
    record = SealRecord.parse(broker, log.read_bytes())
    assert (record.damage, record.trimmed, record.begin, record.end) == ([], 32, 1, 70)
    assert sorted(record.valid) == [(33, 42), (43, 46), (47, 50), (51, 60), (61, 70)]


def line_taken_out(log: Path) -> None:
    version, trimmed, _, *rest = lines_of(log)
    log.write_bytes(b"".join([version, trimmed, *rest]))


def trimmed_line_altered(log: Path) -> None:
    log.write_bytes(log.read_bytes().replace(b'"trimmed": 22', b'"trimmed": 32'))


def trimmed_line_taken_out(log: Path) -> None:
    version, _, *rest = lines_of(log)
    log.write_bytes(b"".join([version, *rest]))


@pytest.mark.parametrize("plant", [line_taken_out, trimmed_line_altered, trimmed_line_taken_out])
def test_a_trimmed_log_that_is_damaged_is_found(
    journal: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[Path], None]
) -> None:
    plant(trim(journal, monkeypatch))
    assert any("of the seal log of the broker" in text for text in inspection_of(journal).damage)


def test_forgotten_events_count_as_missing_without_their_record(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log remembers that there was more."""
    trim(journal, monkeypatch)
    (journal / "_seals" / "begin.json").unlink()
    assert [each[1:] for each in inspection_of(journal).missing] == [(1, 22)]
    with pytest.raises(JournalError, match="lacks its beginning: the events 1 to 22"):
        Catalog.read(FolderLocation(journal)).files()


def test_a_forgotten_file_that_comes_back_is_reported(
    sound: Path, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its content is no longer known."""
    trim(journal, monkeypatch)
    back = path_of(sound, 1)
    shutil.copytree(back.parent, journal / Path(*back.parts[-3:-1]), dirs_exist_ok=True)
    expected = "-1-10.parquet is not in the seal log: files before that were forgotten there"
    assert any(each.endswith(expected) for each in inspection_of(journal).damage)


def test_a_log_keeps_lines_that_are_needed_or_damaged(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file that is still there, as a forgetting that was killed leaves it; and of a log that
    is no proof: its damage stays visible. A few lines are not worth a rewrite.
    """
    [log] = (journal / "_seals").glob("*.jsonl")
    data = log.read_bytes()
    back = path_of(journal, 1)
    content = back.read_bytes()
    forget(journal, before=hour_start(files_of(journal)[-1]), trim_seals=True)
    reopened(journal)
    assert log.read_bytes() == data, "less than a MiB"
    monkeypatch.setattr(seals, "TRIM_BYTES", 0)
    back.parent.mkdir(parents=True, exist_ok=True)
    back.write_bytes(content)
    reopened(journal)
    assert log.read_bytes() == data
    back.unlink()
    damaged = data.replace(b'"first": 11', b'"first": 12', 1)
    log.write_bytes(damaged)
    reopened(journal)
    assert log.read_bytes() == damaged


def test_a_log_that_cannot_be_trimmed_goes_on_as_it_is(
    journal: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    [log] = (journal / "_seals").glob("*.jsonl")
    data = log.read_bytes()

    def full(path: Path, content: bytes | str) -> None:
        if path == log:
            raise OSError(28, "No space left on device")
        write_file(path, content)

    monkeypatch.setattr(seals, "write_file", full)
    trim(journal, monkeypatch)
    assert log.read_bytes() == data
    assert "keeps lines of forgotten files: [Errno 28] No space left on device" in caplog.text


def byte_flipped_in(path: Path) -> None:
    chunk = pq.read_metadata(path).row_group(0).column(4)
    assert chunk.path_in_schema == "job_id"
    data = bytearray(path.read_bytes())
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    data[begin + chunk.total_compressed_size - 1] ^= 1
    path.write_bytes(data)


# Other readers of a journal


def test_tables_refuse_a_journal_without_its_beginning(spark: SparkSession, journal: Path) -> None:
    """And a file that contradicts its name; by each way to read."""
    spark.dataSource.register(EventMQDataSource)
    first_file_deleted(journal)
    expected = "lacks its beginning: the events 1 to 10 of the broker"
    with pytest.raises(JournalError, match=expected):
        read_journal(spark, journal)
    with pytest.raises(PySparkException, match=expected):
        spark.read.format("eventmq").load(str(journal)).count()
    with pytest.raises(JournalError, match=expected):
        sealed_files(str(journal))
    forget(journal)
    assert read_journal(spark, journal).count() == 36
    last_row_cut(journal)
    expected = "-43-46.parquet has 3 events, not 4 as its name says"
    with pytest.raises(JournalError, match=expected):
        read_journal(spark, journal)
    with pytest.raises(PySparkException, match=expected):
        spark.read.format("eventmq").load(str(journal)).count()


def test_a_stream_does_not_pass_over_what_was_forgotten_before_it_came(journal: Path) -> None:
    broker = files_of(journal)[0].broker
    forget(journal, before=hour_start(files_of(journal)[-1]))
    for read in ({}, {broker: 22}, {broker: 46}):
        assert [file.first for file in sealed_files(str(journal), read)] == [23, 33, 43]
    with pytest.raises(StoreError, match=r"the events 12 to 22 of the broker .* were forgotten"):
        sealed_files(str(journal), {broker: 11})


def test_a_damaged_page_ends_a_table_by_each_way_to_read(
    spark: SparkSession, journal: Path
) -> None:
    """Only the read columns are checked: other columns are unchanged."""
    spark.dataSource.register(EventMQDataSource)
    byte_flipped_in(path_of(journal, 23))
    source = spark.read.format("eventmq").load(str(journal))
    for events in (read_journal(spark, journal), source):
        with pytest.raises(Exception, match=r"-23-32\.parquet"):
            events.select("job_id").collect()
    assert read_journal(spark, journal).select("seq").count() == 46
