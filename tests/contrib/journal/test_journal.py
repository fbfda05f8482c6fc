"""The journal: every event in one sealed file, despite any kill."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from eventmq.errors import StoreError
from eventmq.events import COLUMNS
from eventmq.plugins.database import connect
from eventmq_contrib.journal.catalog import Catalog, FolderLocation
from eventmq_contrib.journal.drain import Drain
from eventmq_contrib.journal.folder import JournalFolder
from eventmq_contrib.journal.inspection import inspect
from eventmq_contrib.journal.parquet import arrow_schema
from tests.support.broker_harness import Broker, row
from tests.support.journal_harness import HarnessSource, drained, hours_of, names_of, rows_in

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "data")
    yield broker
    broker.close()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def work(broker: Broker, n: int) -> None:
    """Let so many jobs make two events each."""
    broker.worker()
    for _ in range(n):
        broker.submit()
        broker.answer(b"worker", broker.dispatched[-1], [row(started=broker.clock.now())])
        broker.ready(b"worker", 1, len(broker.dispatched))


def events_of(broker: Broker) -> list[dict[str, object]]:
    """Return the events in the store, under the broker's real id."""
    broker_id = broker.core.state.store_id
    return [{**event, "broker_id": broker_id} for event in broker.events()]


# Contents of the files


def test_the_files_hold_exactly_the_events(broker: Broker, out: Path) -> None:
    work(broker, 5)
    broker.call("cancel", ids=[broker.submit(queue="other")[0]])
    expected = events_of(broker)
    drained(broker, out)
    assert rows_in(out) == expected
    assert len(expected) == 12


def test_a_file_has_the_published_columns(broker: Broker, out: Path) -> None:
    """With their types; columns without nulls are marked so."""
    work(broker, 1)
    drained(broker, out)
    [path] = out.glob("date=*/hour=*/*.parquet")
    schema = pq.ParquetFile(path).schema_arrow
    assert schema.equals(arrow_schema())
    assert [(f.name, str(f.type), f.nullable) for f in schema] == [
        (c.name, c.type, c.nullable) for c in COLUMNS
    ]


def test_a_file_has_a_bounded_number_of_events_that_follow_each_other(
    broker: Broker, out: Path
) -> None:
    broker.submit_batch([broker.new_id() for _ in range(20)])
    drained(broker, out, rows=8)
    assert names_of(out) == [(1, 8), (9, 16), (17, 20)]


def test_a_journal_goes_on_inside_of_what_one_commit_wrote(broker: Broker, out: Path) -> None:
    """The first eight of twenty were sealed when it was killed."""
    broker.submit_batch([broker.new_id() for _ in range(20)])
    expected = events_of(broker)
    folder = JournalFolder(out)
    folder.open()
    drain = Drain(HarnessSource(broker), folder, broker.clock, rows=8)
    drain.start()
    drain.step()
    folder.close()
    assert names_of(out) == [(1, 8), (9, 16)]
    drained(broker, out)
    assert names_of(out) == [(1, 8), (9, 16), (17, 20)]
    assert rows_in(out) == expected


def test_a_file_never_spans_an_hour(broker: Broker, out: Path) -> None:
    """Nor does one with a clock that went back."""
    start = broker.clock.time
    for minutes in (0, 59, 61, 125, 10, 130):
        broker.clock.time = start + minutes * 60
        broker.submit()
    drained(broker, out)
    assert len(names_of(out)) == 5
    assert len(hours_of(out)) == 3
    for path in out.glob("date=*/hour=*/*.parquet"):
        assert (
            len({value // 3_600_000_000 for value in pq.read_table(path)["ts_us"].to_pylist()}) == 1
        )
    assert [event["seq"] for event in rows_in(out)] == list(range(1, 7))


def test_events_are_sealed_after_a_minute_or_at_the_end_of_the_hour(
    broker: Broker, out: Path
) -> None:
    folder = JournalFolder(out)
    folder.open()
    drain = Drain(HarnessSource(broker), folder, broker.clock)
    drain.start()
    broker.submit()
    drain.step()
    broker.clock.time += 59.0
    drain.step()
    assert names_of(out) == []
    broker.clock.time += 1.0
    drain.step()
    assert names_of(out) == [(1, 1)]
    broker.clock.time += 3600.0 - broker.clock.time % 3600.0 - 1.0
    broker.submit()
    drain.step()
    assert names_of(out) == [(1, 1)]
    broker.clock.time += 1.0
    drain.step()
    assert names_of(out) == [(1, 1), (2, 2)]
    folder.close()


# Broker and journal


def test_the_broker_forgets_what_is_sealed(broker: Broker, out: Path) -> None:
    for _ in range(3):
        work(broker, 3)
        drained(broker, out)
    broker.submit()
    assert len(broker.events()) < 10
    drained(broker, out)
    assert [event["seq"] for event in rows_in(out)] == list(range(1, 20))


def test_old_files_may_be_deleted(broker: Broker, out: Path) -> None:
    """The newest one records the progress of the journal."""
    for _ in range(3):
        work(broker, 3)
        drained(broker, out)
    *old, newest = sorted(
        out.glob("date=*/hour=*/[!_]*.parquet"), key=lambda path: path.stat().st_mtime_ns
    )
    for path in old:
        path.unlink()
    work(broker, 3)
    drained(broker, out)
    assert newest.exists()
    assert names_of(out) == [(13, 18), (19, 24)]


def test_a_journal_whose_files_are_all_gone_goes_on_with_a_gap(broker: Broker, out: Path) -> None:
    """Dropped events are logged, and no event is there twice."""
    for _ in range(2):
        work(broker, 3)
        drained(broker, out)
    for path in out.glob("date=*/hour=*/*.parquet"):
        path.unlink()
    work(broker, 3)
    drained(broker, out)
    drained(broker, out)
    rows = rows_in(out)
    numbers = [row["seq"] for row in rows]
    gaps = {
        n
        for row in rows
        if row["kind"] == "gap"
        for n in range(row["gap_first"], row["gap_last"] + 1)
    }
    assert gaps
    assert sorted({*numbers, *gaps}) == list(range(1, numbers[-1] + 1))
    assert len(numbers) == len(set(numbers))


def test_a_journal_that_begins_late_logs_the_missing_events(broker: Broker, out: Path) -> None:
    """Before it came, the oldest events had made room."""
    work(broker, 4)
    db = broker.store._db
    db.execute("DELETE FROM events WHERE first < 5")
    broker.store.engine.event_log.reload()
    drained(broker, out)
    drained(broker, out)
    rows = rows_in(out)
    assert [event["seq"] for event in rows] == list(range(5, 10))
    assert (rows[-1]["kind"], rows[-1]["gap_first"], rows[-1]["gap_last"]) == ("gap", 1, 4)


def test_a_file_ends_where_numbers_are_missing(broker: Broker, out: Path) -> None:
    work(broker, 4)
    drained(broker, out, rows=3)
    broker.store.engine.event_log.reload()
    for _ in range(4):
        broker.submit()
    db = broker.store._db
    db.execute("DELETE FROM events WHERE first IN (9, 10)")
    broker.store.engine.event_log.reload()
    drained(broker, out)
    assert names_of(out) == [(1, 3), (4, 6), (7, 8), (11, 12)]


def test_another_journal_is_refused_while_one_is_at_work(broker: Broker, out: Path) -> None:
    """By the folder, and by the broker where it has another folder."""
    work(broker, 1)
    drained(broker, out)
    folder = JournalFolder(out)
    folder.open()
    with pytest.raises(
        StoreError, match=f"in use by another eventmq journal .process {os.getpid()}."
    ):
        JournalFolder(out).open()
    folder.close()
    with pytest.raises(StoreError, match="another journal"):
        drained(broker, out.with_name("second"))
    broker.clock.time += 31.0
    drained(broker, out.with_name("second"))
    assert [event["kind"] for event in rows_in(out.with_name("second"))] == ["succeeded", "gap"]


def test_a_store_that_was_put_back_is_noticed(broker: Broker, out: Path, tmp_path: Path) -> None:
    """Its new events would have numbers that the journal has already."""
    work(broker, 1)
    broker.store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copytree(tmp_path / "data", tmp_path / "saved")
    work(broker, 2)
    drained(broker, out)
    broker.close()
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "saved").rename(tmp_path / "data")
    broker.start()
    with pytest.raises(StoreError, match="up to 6, the broker only up to 2"):
        drained(broker, out)


def test_events_of_several_brokers_share_a_folder(
    broker: Broker, out: Path, tmp_path: Path
) -> None:
    other = Broker(tmp_path / "other")
    work(broker, 1)
    work(other, 2)
    drained(broker, out)
    drained(other, out)
    drained(broker, out)
    other.close()
    assert names_of(out) == [(1, 2), (1, 4)]


# Kills


class Killed(BaseException):
    """Stands for the end of the process at this point."""


def kill_at(monkeypatch: pytest.MonkeyPatch, place: int) -> list[str]:
    """Let the process end at the so-manieth step that others could see; return the steps.

    What other threads do counts for nothing: Spark may be starting in one.
    """
    steps: list[str] = []
    journal = threading.get_ident()

    def step(owner: object, name: str) -> None:
        real = getattr(owner, name)

        def counted(*args: object, **named: object) -> object:
            if threading.get_ident() != journal:
                return real(*args, **named)
            steps.append(name)
            if len(steps) == place:
                raise Killed
            return real(*args, **named)

        monkeypatch.setattr(owner, name, counted)

    step(os, "fsync")
    for name in ("mkdir", "open", "replace", "unlink"):
        step(Path, name)
    for name in ("read", "seal"):
        step(HarnessSource, name)
    return steps


def test_each_event_is_there_once_wherever_the_journal_is_killed(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed at each of its steps, started again and killed at the next one."""
    broker.submit_batch([broker.new_id() for _ in range(7)])
    work(broker, 3)
    expected = events_of(broker)
    broker.close()
    place, killed = 0, True
    while killed:
        place += 1
        folder = tmp_path / str(place)
        shutil.copytree(tmp_path / "data", folder / "data")
        other = Broker(folder / "data")
        for again in range(2):
            with monkeypatch.context() as patch:
                kill_at(patch, place + again)
                try:
                    drained(other, folder / "out", rows=4)
                    killed = False
                except Killed:
                    killed = True
        drained(other, folder / "out", rows=4)
        other.close()
        assert rows_in(folder / "out") == expected, place
        assert not list(folder.glob("out/date=*/hour=*/_*"))
        inspection = inspect(Catalog.read(FolderLocation(folder / "out"), sealed=True))
        assert (inspection.damage, inspection.unproven, inspection.missing) == ([], [], []), place
        assert list(inspection.bounds.values()) == [(1, len(expected))], place
    assert place > 20


def test_each_event_is_there_once_wherever_the_broker_is_killed(broker: Broker, out: Path) -> None:
    """It comes back with the committed events, under the same numbers."""
    for n in range(4):
        work(broker, 2)
        drained(broker, out, rows=3)
        work(broker, n)
        broker.crash()
    drained(broker, out)
    assert [event["seq"] for event in rows_in(out)] == list(range(1, 29))


# Bad input


def test_what_an_earlier_journal_did_not_finish_is_removed(broker: Broker, out: Path) -> None:
    """And foreign files stay, with a line in the log."""
    work(broker, 1)
    drained(broker, out)
    [path] = out.glob("date=*/hour=*/*.parquet")
    (path.parent / f"_{broker.core.state.store_id}-3-9.parquet").write_bytes(b"PAR1 torn")
    (path.parent / "_notes.txt").write_text("mine")
    drained(broker, out)
    assert {p.name for p in path.parent.iterdir()} == {"_notes.txt", path.name}


def test_foreign_files_are_left_alone(broker: Broker, out: Path, caplog) -> None:
    work(broker, 1)
    drained(broker, out)
    [path] = out.glob("date=*/hour=*/*.parquet")
    (path.parent / "part-0000.snappy.parquet").write_bytes(b"?")
    drained(broker, out)
    assert (path.parent / "part-0000.snappy.parquet").exists()
    assert "1 files in the journal's folder were not written by a journal" in caplog.text


def test_a_torn_file_at_the_end_is_an_error(broker: Broker, out: Path) -> None:
    work(broker, 1)
    drained(broker, out)
    [path] = out.glob("date=*/hour=*/*.parquet")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(StoreError, match=r"the newest file, .*-1-2\.parquet, is torn: move"):
        drained(broker, out)


def test_a_folder_that_cannot_be_written_is_an_error(broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "journal"):
        with pytest.raises(
            StoreError, match=r"cannot write the journal .*name another folder with --out"
        ):
            drained(broker, out)


def test_a_full_disk_ends_the_journal_and_loses_nothing(
    broker: Broker, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work(broker, 1)
    expected = events_of(broker)
    folder = JournalFolder(out)
    folder.open()
    folder.close()

    journal, sync = threading.get_ident(), os.fsync

    def full(file: int) -> None:
        if threading.get_ident() == journal:
            raise OSError(28, "No space left on device")
        sync(file)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match="No space left"):
            drained(broker, out)
    drained(broker, out)
    assert rows_in(out) == expected


def test_a_card_that_cannot_be_read_is_made_anew(out: Path) -> None:
    out.mkdir()
    (out / "_journal.json").write_text("{")
    folder = JournalFolder(out)
    folder.open()
    folder.close()
    assert len(folder.id) == 16
    again = JournalFolder(out)
    again.open()
    again.close()
    assert again.id == folder.id


def test_the_events_table_is_of_this_version(broker: Broker) -> None:
    """Command of a process that reads a journal."""
    db = connect(broker.path / "queue.sqlite", busy=5.0)
    names = [row[1] for row in db.execute("PRAGMA table_info(events)")]
    db.close()
    assert names == ["first", "count", "offset", "body"]
